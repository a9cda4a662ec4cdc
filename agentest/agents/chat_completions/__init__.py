"""Agents that speak OpenAI's chat completions."""
