"""Settings of agents, one module per type."""
