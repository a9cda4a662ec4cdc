"""An agent of Google's ADK that needs no model."""

from . import agent as agent
