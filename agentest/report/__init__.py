"""Reporters: they receive the events of a run and show them. They format, and never decide what passed."""
