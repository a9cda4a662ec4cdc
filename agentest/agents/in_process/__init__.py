"""Agent objects of frameworks that run in this process: their tools are answered by mocks, untouched."""
