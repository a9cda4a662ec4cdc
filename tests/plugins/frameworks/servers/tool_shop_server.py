"""The real shop, whose tools are behind MCP (/mcp) and REST (described at /openapi.json).

It notes every call that it has really run in the file SHOP_LOG.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import own_tools
from fastapi import FastAPI
from mcp.server import MCPServer
from pydantic import BaseModel
from serving import options, serve

mcp = MCPServer("shop", log_level="WARNING")
for made in own_tools.TOOLS:
    mcp.tool()(made)
mcp_app = mcp.streamable_http_app()


@asynccontextmanager
async def sessions(_: FastAPI) -> AsyncIterator[None]:
    async with mcp.session_manager.run():
        yield


app = FastAPI(title="shop", lifespan=sessions)


class Reservation(BaseModel):
    item: str
    quantity: int


@app.get("/stock/{item}", operation_id="check_stock")
def check_stock(item: str) -> dict[str, Any]:
    return own_tools.check_stock(item)


@app.post("/reservations", operation_id="reserve_item", status_code=201)
def reserve_item(wanted: Reservation) -> dict[str, Any]:
    return own_tools.reserve_item(wanted.item, wanted.quantity)


@app.get("/search", operation_id="search")
def search(query: str) -> dict[str, Any]:
    return own_tools.search(query)


@app.delete("/orders/{item}", operation_id="cancel_order")
def cancel_order(item: str) -> dict[str, Any]:
    return own_tools.cancel_order(item)


app.mount("/", mcp_app)

if __name__ == "__main__":
    serve(app, options().port)
