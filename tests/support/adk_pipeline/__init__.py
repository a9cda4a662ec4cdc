"""A pipeline of google-adk's own, for `adk api_server`."""

from . import agent as agent
