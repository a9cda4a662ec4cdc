"""The runs that are kept: a folder for each, and how one is found again."""
