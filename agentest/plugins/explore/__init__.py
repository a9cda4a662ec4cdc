"""Finds failures that no test was written for, and shrinks each to a scenario that still fails."""
