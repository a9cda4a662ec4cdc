"""The process of an agent that the run starts itself."""
