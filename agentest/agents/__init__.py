"""Agents under test: one small port, and a room for each protocol they speak."""
