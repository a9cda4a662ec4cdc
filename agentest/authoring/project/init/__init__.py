"""`agentest init`: a configuration, a first scenario, and what else a project needs."""
