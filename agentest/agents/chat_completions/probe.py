"""Whether there are chat completions: the endpoint asks for `messages`, or its server lists models."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urljoin

from agentest.agents.probing import Finding, Look
from agentest.agents.recognising import recognised
from agentest.config.agents.chat_completions import CHAT_PATH

_MODELS = "/v1/models"


async def probe(look: Look) -> Finding | None:
    """The endpoint itself, or the one beside the list of models."""
    here = await look.post_nothing()
    if here is not None and recognised(here) == "chat_completions":
        because = "it asks for the `messages` of chat completions"
        return Finding(settings={"type": "chat_completions", "endpoint": look.url}, because=because)
    seen = await look.get(_MODELS)
    if seen is None or not isinstance(seen.json, Mapping) or seen.json.get("object") != "list":
        return None
    endpoint = urljoin(look.url, CHAT_PATH)
    return Finding(
        settings={"type": "chat_completions", "endpoint": endpoint},
        because=f"its {_MODELS} lists models, as servers with chat completions do",
    )
