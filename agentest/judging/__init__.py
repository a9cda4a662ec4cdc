"""Evaluate conversations: deterministic checks, judges, custom metrics and grouping of failures."""
