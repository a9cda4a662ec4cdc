"""Mocks: how they are bound to a call, and how they answer an agent's calls."""
