"""The file formats of evaluation sets."""
