"""Finding an agent's card from the endpoint: the server's root, the agent's own address, or the card's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit, urlunsplit
from uuid import UUID, uuid5

from agentest.agents.a2a.card import Card, read_card

WELL_KNOWN = "/.well-known/agent-card.json"
OLD_WELL_KNOWN = "/.well-known/agent.json"
_LANGGRAPH = "/a2a/"
"""What stands before the assistant's id in addresses of LangGraph's server."""

_GRAPHS = UUID("6ba7b821-9dad-11d1-80b4-00c04fd430c8")
"""From which LangGraph's server makes the ids of the assistants that it has for graphs."""

Fetch = Callable[[str], Awaitable[Any]]
"""The JSON value at an address; None where there is none."""


def base_of(endpoint: str) -> str:
    """The agent's address: the endpoint, but for that of a card the address to which the card belongs."""
    parts = urlsplit(endpoint)
    path, query = parts.path or "/", parts.query
    for known in (WELL_KNOWN, OLD_WELL_KNOWN):
        if path.endswith(known):
            path, query = path.removesuffix(known) or "/", ""
            if assistant := parse_qs(parts.query).get("assistant_id"):
                path = f"{path.rstrip('/')}{_LANGGRAPH}{quote(assistant[0], '')}"
            break
    return urlunsplit((parts.scheme, parts.netloc, path, query, ""))


async def find_card(endpoint: str, fetch: Fetch) -> Card | None:
    """The card of the agent at an endpoint, looked for where servers have it. None where there is none."""
    for url, own in _places(endpoint):
        card = read_card(await fetch(url))
        if card is not None and (own or _names(card, base_of(endpoint))):
            return card
    return None


def _names(card: Card, base: str) -> bool:
    """Whether a card at a server's root is that of the agent at this address: there may be several."""
    path = urlsplit(base).path.rstrip("/")
    return any(urlsplit(offer.url).path.rstrip("/") == path for offer in card.offers)


def _places(endpoint: str) -> Iterator[tuple[str, bool]]:
    """Addresses to ask, and whether what is there speaks of this agent alone."""
    base = base_of(endpoint)
    if urlsplit(endpoint).path.endswith((WELL_KNOWN, OLD_WELL_KNOWN)):
        yield endpoint, True
    parts = urlsplit(base)
    root, path = urlunsplit((parts.scheme, parts.netloc, "", "", "")), parts.path.rstrip("/")
    yield f"{root}{path}{WELL_KNOWN}", True
    before, found, assistant = path.rpartition(_LANGGRAPH)
    if found:
        yield f"{root}{before}{WELL_KNOWN}?assistant_id={assistant}", True
    if path:
        yield f"{root}{WELL_KNOWN}", False
    yield f"{root}{path}{OLD_WELL_KNOWN}", True
    if path:
        yield f"{root}{OLD_WELL_KNOWN}", False


def langgraph_assistant(url: str, problem: str) -> str:
    """The id of a graph's own assistant, where LangGraph's server refuses the graph's name; else ""."""
    _, found, name = urlsplit(url).path.rstrip("/").rpartition(_LANGGRAPH)
    return str(uuid5(_GRAPHS, name)) if found and "must be a UUID" in problem else ""
