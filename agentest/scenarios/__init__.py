"""Scenarios: what they say, what they expect, and how their files are found."""
