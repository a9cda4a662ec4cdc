"""Which agent lives at an address: the probes of all protocols, asked one after the other."""

from __future__ import annotations

from importlib import import_module

from agentest.agents.probing import Finding, Look
from agentest.config.agent_types import AGENT_TYPES


async def identify(look: Look) -> Finding | None:
    """What the endpoint speaks, or another path of its server; None where no probe knows it."""
    for kind in AGENT_TYPES.values():
        if kind.probe is not None:
            finding: Finding | None = await import_module(kind.probe).probe(look)
            if finding is not None:
                return finding
    return None
