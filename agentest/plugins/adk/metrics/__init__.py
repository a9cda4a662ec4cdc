"""The metrics of evaluation sets."""
