"""Whether an endpoint speaks Anthropic's Messages."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urljoin

from agentest.agents.probing import Finding, Look, Seen

_PATHS = ("/v1/messages",)


async def probe(look: Look) -> Finding | None:
    """Ask with an empty request: at the endpoint, and, where nobody is there, where Messages usually are."""
    async for path in look.places(*_PATHS):
        if _is_error(await look.post_nothing(path)):
            endpoint = urljoin(look.url, path) if path else look.url
            return Finding(
                settings={"type": "anthropic_messages", "endpoint": endpoint},
                because="its errors have the form of Anthropic's",
            )
    return None


def _is_error(seen: Seen | None) -> bool:
    data = seen.json if seen else None
    if not isinstance(data, Mapping) or data.get("type") != "error":
        return False
    error = data.get("error")
    return isinstance(error, Mapping) and isinstance(error.get("type"), str) and "message" in error
