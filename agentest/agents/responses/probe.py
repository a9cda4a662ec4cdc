"""Whether an endpoint speaks OpenAI's Responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urljoin

from agentest.agents.probing import Finding, Look, Seen

_PATHS = ("/v1/responses", "/responses")


async def probe(look: Look) -> Finding | None:
    """Ask without an `input`: at the endpoint, and, where nobody is there, where Responses usually are."""
    async for path in look.places(*_PATHS):
        why = _why(await look.post_nothing(path))
        if why:
            endpoint = urljoin(look.url, path) if path else look.url
            return Finding(settings={"type": "responses", "endpoint": endpoint}, because=why)
    return None


def _why(seen: Seen | None) -> str | None:
    data = seen.json if seen else None
    if not isinstance(data, Mapping):
        return None
    if data.get("object") == "response" and "output" in data:
        return "it answers with a `response` object"
    return "it asks for the `input` of a response" if _lacks_input(data.get("error")) else None


def _lacks_input(error: Any) -> bool:
    if not isinstance(error, Mapping):
        return False
    return error.get("param") == "input" or "'input'" in str(error.get("message"))
