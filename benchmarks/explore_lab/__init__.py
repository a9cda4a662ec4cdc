"""Thirty planted bugs and their right twins: what `agentest explore` finds, and what it reports falsely."""
