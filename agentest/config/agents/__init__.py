"""What the configuration says of an agent: one module for each type."""
