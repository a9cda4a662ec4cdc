"""A pipeline built with google-adk, for `adk api_server`."""

from . import agent as agent
