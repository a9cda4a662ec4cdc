"""Agents that speak OpenAI's Responses."""
