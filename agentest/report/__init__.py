"""Reporters: they listen to the events of a run and tell somebody. They format and never compute."""
