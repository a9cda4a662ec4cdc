"""Two runs side by side: what regressed, what improved, and what chance explains."""
