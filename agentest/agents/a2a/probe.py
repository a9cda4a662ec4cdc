"""Whether an endpoint is an A2A agent: it has a card."""

from __future__ import annotations

from typing import Any
from urllib.parse import urljoin

from agentest.agents.a2a.finding import base_of, find_card
from agentest.agents.probing import Finding, Look


async def probe(look: Look) -> Finding | None:
    """The agent that the card at the endpoint, or at its server's root, speaks of."""

    async def fetch(url: str) -> Any:
        seen = await look.get(url)
        return seen.json if seen is not None and seen.status == 200 else None

    for endpoint in dict.fromkeys((look.url, urljoin(look.url, "/"))):
        card = await find_card(endpoint, fetch)
        if card is not None and card.offers:
            return Finding(
                settings={"type": "a2a", "endpoint": base_of(endpoint)},
                because=f"its agent card offers A2A {card.offers[0].version}",
            )
    return None
