"""Which agent lives at an address: the probes of all protocols, asked one after the other."""

from __future__ import annotations

from importlib import import_module

from agentest.agents.probing import Finding, Look
from agentest.config.agent_types import AGENT_TYPES

_ANY_FORM = "http"
"""The type that fits where no other does."""


async def identify(look: Look) -> Finding | None:
    """What the endpoint speaks, or another path of its server; None where no probe knows it."""
    for name in sorted(AGENT_TYPES, key=lambda name: name == _ANY_FORM):
        module = AGENT_TYPES[name].probe
        if module is not None:
            finding: Finding | None = await import_module(module).probe(look)
            if finding is not None:
                return finding
    return None
