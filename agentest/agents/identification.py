"""Identify the agent at an address by running the probes of all protocols in order."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from importlib import import_module
from urllib.parse import urlsplit

from agentest.agents.detection import Finding, Look
from agentest.config.agent_types import AGENT_TYPES
from agentest.support.deadlines import TimeLimit

LONGEST_LOOK_S = 5.0
_FALLBACK_TYPES = ("http", "websocket")
"""Types that fit only if no other type does."""


async def findings(look: Look, first: str = "") -> AsyncIterator[Finding]:
    """Yield the findings, up to the first one about the endpoint itself.

    Args:
        first: the type to probe first.
    """
    for name in _order(first):
        finding = await ask(name, look)
        if finding is not None:
            yield finding
            if is_at(finding, look.url):
                return


async def ask(name: str, look: Look) -> Finding | None:
    """Run the probe of one type. Returns None if there is no finding or no probe."""
    probe = AGENT_TYPES[name].probe
    if probe is None:
        return None
    module, _, function = probe.partition(":")
    finding: Finding | None = await getattr(import_module(module), function)(look)
    return finding


async def look_around(look: Look, first: str = "") -> list[Finding]:
    """Return the findings that the probes make within `LONGEST_LOOK_S` seconds."""
    found: list[Finding] = []
    with suppress(TimeoutError), TimeLimit(LONGEST_LOOK_S):
        async for finding in findings(look, first):
            found.append(finding)
    return found


def is_at(finding: Finding, url: str) -> bool:
    """Return True if a finding is about this exact address, not about another path of its server."""
    return _place(str(finding.settings.get("endpoint", ""))) == _place(url)


def _order(first: str) -> Iterator[str]:
    yield from (name for name in AGENT_TYPES if name == first)
    yield from (name for name in AGENT_TYPES if name != first and name not in _FALLBACK_TYPES)
    yield from (name for name in _FALLBACK_TYPES if name != first)


def _place(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.netloc, parts.path.rstrip("/")
