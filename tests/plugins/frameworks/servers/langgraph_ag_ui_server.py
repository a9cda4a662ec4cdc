"""The shop's agent in LangGraph behind AG-UI, by ag-ui-langgraph: it keeps its threads itself."""

from __future__ import annotations

from ag_ui_langgraph import LangGraphAgent, add_langgraph_fastapi_endpoint
from fastapi import FastAPI
from langgraph.checkpoint.memory import MemorySaver
from langgraph_app.agent import build
from serving import options, serve

if __name__ == "__main__":
    chosen = options(client_tools=False)
    app = FastAPI()
    graph = build(own_tools=not chosen.client_tools).compile(checkpointer=MemorySaver())
    add_langgraph_fastapi_endpoint(app, LangGraphAgent(name="shop", graph=graph), chosen.path)
    serve(app, chosen.port)
