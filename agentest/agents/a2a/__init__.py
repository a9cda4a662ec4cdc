"""Agents that speak A2A (Agent2Agent), versions 1.0 and 0.3."""
