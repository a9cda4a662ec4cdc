"""Agents behind a WebSocket: one connection for each conversation."""
