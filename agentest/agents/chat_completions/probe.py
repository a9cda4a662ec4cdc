"""Whether a server has chat completions: servers of OpenAI's form list their models."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urljoin

from agentest.agents.probing import Finding, Look
from agentest.config.agents.chat_completions import CHAT_PATH

_MODELS = "/v1/models"


async def probe(look: Look) -> Finding | None:
    """The endpoint of chat completions, where the server lists models."""
    seen = await look.get(_MODELS)
    if seen is None or not isinstance(seen.json, Mapping) or seen.json.get("object") != "list":
        return None
    endpoint = urljoin(look.url, CHAT_PATH)
    return Finding(
        settings={"type": "chat_completions", "endpoint": endpoint},
        because=f"its {_MODELS} lists models, as servers with chat completions do",
    )
