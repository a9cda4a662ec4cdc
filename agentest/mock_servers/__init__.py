"""Servers that stand beside an agent: its tools, answered by mocks, and a receiver of its traces."""
