"""Processes that a run starts: their groups end with it."""
