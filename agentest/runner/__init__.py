"""A run: what will be run, everything it talks to, and the order of it all."""
