"""Finding out how a conversation went: trajectories, checks, judges, deduplication."""
