"""Servers for an agent's process: MCP and HTTP servers whose tools mocks answer."""
