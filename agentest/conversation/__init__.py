"""Conversations: the turn loop between an agent, a simulated user and mocks."""
