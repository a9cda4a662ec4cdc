"""Whether an endpoint speaks the AI SDK's protocol."""

from __future__ import annotations

from agentest.agents.probing import Finding, Look

_HEADERS = {
    "x-vercel-ai-ui-message-stream": "answers with a UI message stream",
    "x-vercel-ai-data-stream": "answers with a data stream of AI SDK 4",
}


async def probe(look: Look) -> Finding | None:
    """Its streams say what they are by a header; pydantic-ai refuses `{}` for want of a `trigger`."""
    seen = await look.post_nothing()
    if seen is None:
        return None
    for header, because in _HEADERS.items():
        if header in seen.headers:
            return Finding(settings={"type": "ai_sdk", "endpoint": look.url}, because=f"it {because}")
    if seen.status == 422 and b"discriminator 'trigger'" in seen.body:
        because = "it wants a `trigger`, as the AI SDK's client sends it"
        return Finding(settings={"type": "ai_sdk", "endpoint": look.url}, because=because)
    return None
