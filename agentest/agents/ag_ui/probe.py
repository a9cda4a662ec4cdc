"""Whether an endpoint speaks AG-UI: one that checks its input misses what every run has."""

from __future__ import annotations

from agentest.agents.probing import Finding, Look

_REFUSED = (400, 422, 500)
_OF_A_RUN = (b"threadId", b"runId")


async def probe(look: Look) -> Finding | None:
    """What the endpoint says of a run without anything; None where that tells nothing of AG-UI."""
    seen = await look.post_nothing()
    if seen is None or seen.status not in _REFUSED or not all(word in seen.body for word in _OF_A_RUN):
        return None
    return Finding(
        settings={"type": "ag_ui", "endpoint": look.url},
        because="it asks for the `threadId` and `runId` of an AG-UI run",
    )
