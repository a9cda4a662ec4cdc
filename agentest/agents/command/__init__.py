"""Agents that are programs: one process for each turn, or for each conversation."""
