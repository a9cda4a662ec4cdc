"""The protocols that models speak."""
