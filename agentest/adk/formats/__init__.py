"""The files of evaluation sets in all their forms."""
