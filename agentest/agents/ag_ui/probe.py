"""Whether an endpoint speaks AG-UI: one that checks its input misses what every run has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urljoin

from agentest.agents.probing import Finding, Look, Seen

_REFUSED = (400, 422, 500)
_OF_A_RUN = (b"threadId", b"runId")
_DOCUMENT = "/openapi.json"
_INPUT = "#/components/schemas/RunAgentInput"


async def probe(look: Look) -> Finding | None:
    """What the endpoint says of a run without anything, else what the server's OpenAPI document does."""
    async for path in look.places("/ag-ui"):
        if _misses_a_run(await look.post_nothing(path)):
            return Finding(
                settings={"type": "ag_ui", "endpoint": urljoin(look.url, path) if path else look.url},
                because="it asks for the `threadId` and `runId` of an AG-UI run",
            )
    document = await look.get(_DOCUMENT)
    described = next(_takes_runs(document.json if document is not None else None), None)
    if described is None:
        return None
    return Finding(
        settings={"type": "ag_ui", "endpoint": urljoin(look.url, described)},
        because=f"its {_DOCUMENT} says that POST {described} takes AG-UI runs",
    )


def _misses_a_run(seen: Seen | None) -> bool:
    return seen is not None and seen.status in _REFUSED and all(word in seen.body for word in _OF_A_RUN)


def _takes_runs(document: Any) -> Iterator[str]:
    paths = document.get("paths") if isinstance(document, Mapping) else None
    for path, operations in paths.items() if isinstance(paths, Mapping) else ():
        post = operations.get("post") if isinstance(operations, Mapping) else None
        if isinstance(post, Mapping) and "{" not in path and _INPUT in str(post.get("requestBody")):
            yield path
