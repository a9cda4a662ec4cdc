"""Mocks behind the Model Context Protocol."""
