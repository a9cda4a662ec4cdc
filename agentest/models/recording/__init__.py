"""Models' answers recorded and replayed."""
