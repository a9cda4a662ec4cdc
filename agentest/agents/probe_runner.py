"""Identify the agent at an address by running the probes of all protocols in order."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from importlib import import_module
from urllib.parse import urlsplit

from agentest.agents.response_features import DetectedProtocol, EndpointProbe
from agentest.config.agent_types import AGENT_TYPES
from agentest.support.deadlines import TimeLimit

LONGEST_LOOK_S = 5.0
_FALLBACK_TYPES = ("http", "websocket")
"""Types that fit only if no other type does."""


async def detect_protocols(look: EndpointProbe, first: str = "") -> AsyncIterator[DetectedProtocol]:
    """Yield the findings, up to the first one about the endpoint itself.

    Args:
        first: the type to probe first.
    """
    for name in _order(first):
        finding = await run_probe(name, look)
        if finding is not None:
            yield finding
            if is_at(finding, look.url):
                return


async def run_probe(name: str, look: EndpointProbe) -> DetectedProtocol | None:
    """Run the probe of one type. Returns None if there is no finding or no probe."""
    probe = AGENT_TYPES[name].probe
    if probe is None:
        return None
    module, _, function = probe.partition(":")
    finding: DetectedProtocol | None = await getattr(import_module(module), function)(look)
    return finding


async def detect_within_limit(look: EndpointProbe, first: str = "") -> list[DetectedProtocol]:
    """Return the findings that the probes make within `LONGEST_LOOK_S` seconds."""
    found: list[DetectedProtocol] = []
    with suppress(TimeoutError), TimeLimit(LONGEST_LOOK_S):
        async for finding in detect_protocols(look, first):
            found.append(finding)
    return found


def is_at(finding: DetectedProtocol, url: str) -> bool:
    """Return True if a finding is about this exact address, not about another path of its server."""
    return _place(str(finding.settings.get("endpoint", ""))) == _place(url)


def _order(first: str) -> Iterator[str]:
    yield from (name for name in AGENT_TYPES if name == first)
    yield from (name for name in AGENT_TYPES if name != first and name not in _FALLBACK_TYPES)
    yield from (name for name in _FALLBACK_TYPES if name != first)


def _place(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.netloc, parts.path.rstrip("/")
