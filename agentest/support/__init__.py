"""Small tools that know nothing of agents, models or scenarios."""
