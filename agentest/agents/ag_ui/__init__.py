"""Agents behind AG-UI: runs of a thread, told as a stream of events."""
