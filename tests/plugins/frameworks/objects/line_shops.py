"""The shops, led to the mocks by one line each, as a team would write it in a handler or an application."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any

import agentest.mocks

Answer = Callable[[str], Awaitable[str]]


def langgraph(ctx: Any = None) -> Answer:
    shop: Any = import_module("shop_langgraph")
    tools = agentest.mocks.langchain([shop.check_stock, shop.reserve_item, shop.ask_clerk], ctx)
    graph = shop.graph(import_module("langgraph.prebuilt").ToolNode(tools)).compile()

    async def answer(said: str) -> str:
        state = await graph.ainvoke({"messages": [("user", said)]})
        return str(state["messages"][-1].content)

    return answer


def openai_agents(ctx: Any = None) -> Answer:
    agents, shop = import_module("agents"), import_module("shop_openai_agents")
    clerk = shop.clerk.as_tool("ask_clerk", "Ask the clerk.")
    tools = agentest.mocks.openai_agents([shop.check_stock, shop.reserve_item, clerk], ctx)
    agent = agents.Agent(name="shop", model=shop.Rules(), tools=tools)

    async def answer(said: str) -> str:
        return str((await agents.Runner.run(agent, said)).final_output)

    return answer


def pydantic_ai(ctx: Any = None) -> Answer:
    agent = import_module("shop_pydantic_ai").agent
    mocks = agentest.mocks.pydantic_ai(ctx=ctx)

    async def answer(said: str) -> str:
        return str((await agent.run(said, capabilities=[mocks])).output)

    return answer


def pydantic_ai_toolsets(ctx: Any = None) -> Answer:
    shop, kinds = import_module("shop_pydantic_ai"), import_module("pydantic_ai")
    tools = agentest.mocks.pydantic_ai([shop.check_stock, kinds.Tool(shop.reserve_item), shop.ask_clerk], ctx)
    agent = kinds.Agent(shop.FunctionModel(shop.respond), toolsets=tools)

    async def answer(said: str) -> str:
        return str((await agent.run(said)).output)

    return answer


def google_adk(ctx: Any = None) -> Answer:
    shop = import_module("shop_google_adk")
    app = import_module("google.adk.apps.app").App(
        name="shop", root_agent=shop.agent, plugins=[agentest.mocks.adk(ctx)]
    )
    runner = import_module("google.adk.runners").InMemoryRunner(app=app)
    types = import_module("google.genai.types")

    async def answer(said: str) -> str:
        session = await runner.session_service.create_session(app_name="shop", user_id="u")
        message = types.Content(role="user", parts=[types.Part(text=said)])
        text = ""
        async for event in runner.run_async(user_id="u", session_id=session.id, new_message=message):
            parts = event.content.parts if event.content else []
            text = "".join(part.text or "" for part in parts or []) or text
        return text

    return answer


MAKERS: dict[str, Callable[[Any], Answer]] = {
    "langgraph": langgraph,
    "openai_agents": openai_agents,
    "pydantic_ai": pydantic_ai,
    "pydantic_ai_toolsets": pydantic_ai_toolsets,
    "google_adk": google_adk,
}


def object_of(name: str) -> Any:
    """An agent object whose code has the line."""
    if name == "langgraph":
        shop: Any = import_module("shop_langgraph")
        tools = agentest.mocks.langchain([shop.check_stock, shop.reserve_item])
        return shop.graph(import_module("langgraph.prebuilt").ToolNode(tools)).compile()
    if name == "openai_agents":
        shop = import_module("shop_openai_agents")
        tools = agentest.mocks.openai_agents([shop.check_stock, shop.reserve_item])
        return import_module("agents").Agent(name="shop", model=shop.Rules(), tools=tools)
    if name == "google_adk":
        shop = import_module("shop_google_adk")
        app = import_module("google.adk.apps.app").App
        return app(name="shop", root_agent=shop.agent, plugins=[agentest.mocks.adk()])
    shop, kinds = import_module("shop_pydantic_ai"), import_module("pydantic_ai")
    model = shop.FunctionModel(shop.respond)
    functions = [shop.check_stock, shop.reserve_item]
    if name == "pydantic_ai":
        return kinds.Agent(model, tools=functions, capabilities=[agentest.mocks.pydantic_ai()])
    return kinds.Agent(model, toolsets=agentest.mocks.pydantic_ai(functions))


def handler_of(name: str) -> Any:
    async def handler(messages: list[dict[str, Any]], ctx: Any) -> str:
        return await MAKERS[name](ctx)(messages[-1]["content"])

    return handler


def app_of(name: str) -> Any:
    """An ASGI application whose agent is made once, before any conversation."""
    answer = MAKERS[name](None)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        said = json.loads((await receive())["body"])["message"]
        body = json.dumps({"reply": await answer(said)}).encode()
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app
