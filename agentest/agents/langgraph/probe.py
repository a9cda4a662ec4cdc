"""Whether an endpoint is a LangGraph server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urljoin

from agentest.agents.probing import Finding, Look


async def probe(look: Look) -> Finding | None:
    """A LangGraph server says so at /info, and lists its graphs as assistants."""
    info = await look.get("/info")
    if info is None or not _is_langgraph(info.json):
        return None
    found = await look.post_nothing("/assistants/search")
    assistants = found.json if found is not None and isinstance(found.json, list) else []
    graphs = list(
        dict.fromkeys(a["graph_id"] for a in assistants if isinstance(a, Mapping) and "graph_id" in a)
    )
    settings: dict[str, Any] = {"type": "langgraph", "endpoint": urljoin(look.url, "/").rstrip("/")}
    if graphs:
        settings["assistant_id"] = graphs[0]
    names = f", with the graphs {', '.join(map(str, graphs))}" if graphs else ""
    return Finding(settings=settings, because=f"its /info is that of a LangGraph server{names}")


def _is_langgraph(info: Any) -> bool:
    return isinstance(info, Mapping) and any(str(key).startswith("langgraph_") for key in info)
