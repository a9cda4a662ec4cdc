"""Reporters: they receive the events of a run and show them.

They format results and never decide what passed.
"""
