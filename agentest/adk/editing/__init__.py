"""Evaluation sets edited in place: what is not edited stays byte for byte as it is."""
