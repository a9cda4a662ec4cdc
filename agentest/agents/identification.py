"""Which agent lives at an address: the probes of all protocols, asked one after the other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from importlib import import_module
from urllib.parse import urlsplit

from agentest.agents.detection import Finding, Look
from agentest.config.agent_types import AGENT_TYPES
from agentest.support.deadlines import TimeLimit

LONGEST_LOOK_S = 5.0
_LAST = ("http", "websocket")
"""What fits where no other type does."""


async def findings(look: Look, first: str = "") -> AsyncIterator[Finding]:
    """What the probes know, up to the first that speaks of the endpoint itself and not of its server.

    Args:
        first: the type whose probe is asked before all others.
    """
    for name in _order(first):
        finding = await ask(name, look)
        if finding is not None:
            yield finding
            if is_at(finding, look.url):
                return


async def ask(name: str, look: Look) -> Finding | None:
    """What the probe of one type knows; None where it knows nothing, or there is none."""
    probe = AGENT_TYPES[name].probe
    if probe is None:
        return None
    module, _, function = probe.partition(":")
    finding: Finding | None = await getattr(import_module(module), function)(look)
    return finding


async def look_around(look: Look, first: str = "") -> list[Finding]:
    """The same, as far as it is found out within a few seconds."""
    found: list[Finding] = []
    with suppress(TimeoutError), TimeLimit(LONGEST_LOOK_S):
        async for finding in findings(look, first):
            found.append(finding)
    return found


def is_at(finding: Finding, url: str) -> bool:
    """Whether what was found is at an address itself, and not elsewhere at its server."""
    return _place(str(finding.settings.get("endpoint", ""))) == _place(url)


def _order(first: str) -> Iterator[str]:
    yield from (name for name in AGENT_TYPES if name == first)
    yield from (name for name in AGENT_TYPES if name != first and name not in _LAST)
    yield from (name for name in _LAST if name != first)


def _place(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.netloc, parts.path.rstrip("/")
