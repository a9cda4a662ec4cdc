"""Whether an endpoint speaks the AI SDK's protocol."""

from __future__ import annotations

from urllib.parse import urljoin

from agentest.agents.probing import Finding, Look, Seen

_HEADERS = {
    "x-vercel-ai-ui-message-stream": "answers with a UI message stream",
    "x-vercel-ai-data-stream": "answers with a data stream of AI SDK 4",
}


async def probe(look: Look) -> Finding | None:
    """Its streams say what they are by a header; pydantic-ai refuses `{}` for want of a `trigger`."""
    async for path in look.places("/api/chat"):
        seen = await look.post_nothing(path)
        because = _why(seen) if seen is not None else None
        if because is not None:
            endpoint = urljoin(look.url, path) if path else look.url
            return Finding(settings={"type": "ai_sdk", "endpoint": endpoint}, because=because)
    return None


def _why(seen: Seen) -> str | None:
    for header, because in _HEADERS.items():
        if header in seen.headers:
            return f"it {because}"
    wants_trigger = seen.status == 422 and b"discriminator 'trigger'" in seen.body
    return "it wants a `trigger`, as the AI SDK's client sends it" if wants_trigger else None
