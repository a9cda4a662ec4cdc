"""Conversations as scripted scenarios: Python source that says the same again."""
