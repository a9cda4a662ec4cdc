"""Agents that speak Anthropic's Messages."""
