"""Agents behind AG-UI: runs of a thread, reported as streams of events."""
