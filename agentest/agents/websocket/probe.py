"""Whether a WebSocket opens at an endpoint."""

from __future__ import annotations

import re

from agentest.agents.probing import Finding, Look

_NO_ANSWER_TO_A_POST = (400, 403, 404, 405, 426)


async def probe(look: Look) -> Finding | None:
    """It is opened and closed, where a POST is not answered; what its messages are is not known then."""
    seen = await look.post_nothing()
    if seen is None or seen.status not in _NO_ANSWER_TO_A_POST or not await look.opens_websocket():
        return None
    return Finding(
        settings={"type": "websocket", "endpoint": re.sub("^http", "ws", look.url)},
        because="a WebSocket opens there (`body` and `reply` say what its messages are)",
    )
