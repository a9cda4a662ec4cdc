"""Agents of Google's ADK behind its own server."""
