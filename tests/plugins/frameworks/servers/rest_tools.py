"""The shop's tools as calls of its REST interface: with requests in threads, or with httpx."""

from __future__ import annotations

import os
from typing import Any

import requests
from errands import ASKED


def request_of(method: str, path: str, **more: Any) -> dict[str, Any]:
    """What a client is called with. The base is the mocks', or the shop's own."""
    asked = ASKED.get()
    base = asked.rest_url or os.environ.get("AGENTEST_REST_URL") or os.environ["SHOP_REST_URL"]
    return {"method": method, "url": base.rstrip("/") + path, "headers": asked.headers, **more}


def send(**request: Any) -> Any:
    return told(requests.request(**request, timeout=60))


def told(answer: Any) -> Any:
    """Return the text for the model: the value, or the error."""
    return answer.json() if answer.status_code < 400 else {"status": answer.status_code, "said": answer.text}


def check_stock(item: str) -> Any:
    """How many of an item are in stock."""
    return send(**request_of("GET", f"/stock/{item}"))


def reserve_item(item: str, quantity: int) -> Any:
    """Puts items aside for the customer."""
    return send(**request_of("POST", "/reservations", json={"item": item, "quantity": quantity}))


def search(query: str) -> Any:
    """Searches the catalogue."""
    return send(**request_of("GET", "/search", params={"query": query}))


def cancel_order(item: str) -> Any:
    """Cancels the order of an item."""
    return send(**request_of("DELETE", f"/orders/{item}"))


TOOLS = [check_stock, reserve_item, search, cancel_order]


async def send_async(**request: Any) -> Any:
    import httpx

    async with httpx.AsyncClient(timeout=60) as client:
        return told(await client.request(**request))


async def check_stock_async(item: str) -> Any:
    """How many of an item are in stock."""
    return await send_async(**request_of("GET", f"/stock/{item}"))


async def reserve_item_async(item: str, quantity: int) -> Any:
    """Puts items aside for the customer."""
    return await send_async(**request_of("POST", "/reservations", json={"item": item, "quantity": quantity}))


async def search_async(query: str) -> Any:
    """Searches the catalogue."""
    return await send_async(**request_of("GET", "/search", params={"query": query}))


async def cancel_order_async(item: str) -> Any:
    """Cancels the order of an item."""
    return await send_async(**request_of("DELETE", f"/orders/{item}"))
