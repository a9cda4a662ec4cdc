"""Clients for the agents under test: one small interface, and one package or module per protocol."""
