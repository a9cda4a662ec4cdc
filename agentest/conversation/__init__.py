"""Holding conversations: agents, simulated users, mocks, and the turn loop between them."""
