"""Receive traces that agents export, and extract tool calls and model calls from them."""
