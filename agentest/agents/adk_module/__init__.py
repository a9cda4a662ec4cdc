"""Agents of Google's ADK that run in this process, by google-adk's own runner."""
