"""General utilities without knowledge of agents, models or scenarios."""
