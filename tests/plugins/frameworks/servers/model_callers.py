"""Agents of many frameworks that call their model over HTTP and have two functions as tools.

POST /chat takes {session, message}. Guests e to h (`look e1`) are answered by streams. Tools that have really
run are noted in the file REAL_CALLS.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from serving import options, serve

Reply = Callable[[str, str], Awaitable[str]]
"""Returns the agent's reply in a session to a message."""
KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY", "AZURE_OPENAI_API_KEY")
GEMINI = "gemini-2.5-flash"
RULE = "Help."


def find(q: str) -> str:
    """Find something.

    Args:
        q: what to find
    """
    return _ran("find", q)


def send(q: str) -> str:
    """Send something.

    Args:
        q: what to send
    """
    return _ran("send", q)


TOOLS: list[Callable[[str], str]] = [find, send]


def _ran(name: str, q: str) -> str:
    with open(os.environ["REAL_CALLS"], "a", encoding="utf-8") as log:
        log.write(f"{name} {q}\n")
    return json.dumps({"real": q})


def openai_agents(api: str, *, stream: bool) -> Reply:
    from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    model: Any = OpenAIChatCompletionsModel("m", AsyncOpenAI()) if api == "chat" else "m"
    agent = Agent(name="a", instructions=RULE, model=model, tools=[function_tool(each) for each in TOOLS])
    histories: dict[str, list[Any]] = {}

    async def reply(session: str, message: str) -> str:
        items = [*histories.get(session, []), {"role": "user", "content": message}]
        if stream:
            result: Any = Runner.run_streamed(agent, items)
            async for _ in result.stream_events():
                pass
        else:
            result = await Runner.run(agent, items)
        histories[session] = result.to_input_list()
        return str(result.final_output)

    return reply


def langgraph(api: str, *, stream: bool, output: Any = None) -> Reply:
    from langchain.agents import create_agent
    from langchain.agents.structured_output import ToolStrategy
    from langgraph.checkpoint.memory import MemorySaver

    model: Any
    if api in ("chat", "responses"):
        from langchain_openai import ChatOpenAI

        encrypted = {"store": False, "include": ["reasoning.encrypted_content"], "use_responses_api": True}
        model = ChatOpenAI(model="m", streaming=stream, **(encrypted if api == "responses" else {}))
    elif api == "anthropic":
        from langchain_anthropic import ChatAnthropic

        thinking = {"type": "enabled", "budget_tokens": 1024}
        model = ChatAnthropic(model="m", streaming=stream, thinking=thinking, max_tokens=2048)
    else:
        from langchain_google_genai import ChatGoogleGenerativeAI

        model = ChatGoogleGenerativeAI(model=GEMINI, streaming=stream)
    form: Any = ToolStrategy(output) if output else None
    agent = create_agent(model, tools=TOOLS, checkpointer=MemorySaver(), response_format=form)

    async def reply(session: str, message: str) -> str:
        config: Any = {"configurable": {"thread_id": session}}
        result = await agent.ainvoke({"messages": [("user", message)]}, config)
        return str(result["structured_response"].answer if output else result["messages"][-1].text)

    return reply


class Answer(BaseModel):
    answer: str


def pydantic_ai_output(api: str, *, stream: bool) -> Reply:
    return pydantic_ai(api, stream=stream, output=Answer)


def pydantic_ai(api: str, *, stream: bool, output: Any = str) -> Reply:
    from pydantic_ai import Agent

    names = {"chat": "openai-chat:m", "responses": "openai-responses:m", "anthropic": "anthropic:m"}
    agent = Agent(names.get(api, f"google:{GEMINI}"), tools=TOOLS, output_type=output)
    histories: dict[str, Any] = {}

    async def read(_: Any, events: Any) -> None:
        async for _event in events:
            pass

    async def reply(session: str, message: str) -> str:
        handler = read if stream else None
        result = await agent.run(
            message, message_history=histories.get(session), event_stream_handler=handler
        )
        histories[session] = result.all_messages()
        return result.output.answer if isinstance(result.output, Answer) else result.output

    return reply


def anthropic_threads(_: str, *, stream: bool) -> Reply:
    """Anthropic's client with its tool loop, whose history Anthropic stores."""
    from anthropic import AsyncAnthropic, beta_async_tool

    def made(function: Callable[[str], str]) -> Any:
        async def run(q: str) -> str:
            return function(q)

        return beta_async_tool(run, name=function.__name__, description="A tool.")

    client = AsyncAnthropic(max_retries=0)
    threads: dict[str, Any] = {}

    async def reply(session: str, message: str) -> str:
        if session not in threads:
            tools = [made(each) for each in TOOLS]
            threads[session] = client.beta.messages.thread(model="m", max_tokens=100, tools=tools)
        threads[session].append({"role": "user", "content": message})
        text = ""
        async for each in threads[session].tool_runner(stream=stream):
            said = await each.get_final_message() if stream else each
            text = "".join(block.text for block in said.content if block.type == "text")
        return text

    return reply


def google_genai(api: str, *, stream: bool) -> Reply:
    from google import genai
    from google.genai import types

    client = genai.Client()
    config = types.GenerateContentConfig(tools=list(TOOLS))
    chats: dict[str, Any] = {}

    async def reply(session: str, message: str) -> str:
        if session not in chats:
            chats[session] = client.aio.chats.create(model=GEMINI, config=config)
        if not stream:
            return str((await chats[session].send_message(message)).text)
        return "".join([part.text or "" async for part in await chats[session].send_message_stream(message)])

    return reply


def google_adk_output(api: str, *, stream: bool) -> Reply:
    return google_adk(api, stream=stream, output=Answer)


def langgraph_output(api: str, *, stream: bool) -> Reply:
    return langgraph(api, stream=stream, output=Answer)


def google_adk(api: str, *, stream: bool, output: Any = None) -> Reply:
    from google.adk.agents import Agent
    from google.adk.agents.run_config import RunConfig, StreamingMode
    from google.adk.runners import InMemoryRunner
    from google.genai import types

    agent = Agent(name="a", model=GEMINI, tools=list(TOOLS), output_schema=output)
    runner = InMemoryRunner(agent, app_name="a")
    config = RunConfig(streaming_mode=StreamingMode.SSE if stream else StreamingMode.NONE)
    known: set[str] = set()

    async def reply(session: str, message: str) -> str:
        if session not in known:
            known.add(session)
            await runner.session_service.create_session(app_name="a", user_id="u", session_id=session)
        text = ""
        content = types.Content(role="user", parts=[types.Part(text=message)])
        async for event in runner.run_async(
            user_id="u", session_id=session, new_message=content, run_config=config
        ):
            if event.is_final_response() and event.content:
                text = "".join(part.text or "" for part in event.content.parts or ())
        return str(json.loads(text)["answer"]) if output else text

    return reply


def smolagents(api: str, *, stream: bool) -> Reply:
    from smolagents import OpenAIServerModel, ToolCallingAgent, tool

    tools = [tool(each) for each in TOOLS]
    agents: dict[str, Any] = {}

    async def reply(session: str, message: str) -> str:
        if session not in agents:
            model = OpenAIServerModel(model_id="m")
            agents[session] = ToolCallingAgent(
                tools=tools, model=model, max_steps=6, verbosity_level=0, stream_outputs=stream
            )
        return str(await asyncio.to_thread(agents[session].run, message, reset=False))

    return reply


def agno(api: str, *, stream: bool) -> Reply:
    from agno.agent import Agent
    from agno.db.in_memory import InMemoryDb

    model: Any
    if api == "anthropic":
        from agno.models.anthropic import Claude as model
    elif api == "responses":
        from agno.models.openai import OpenAIResponses as model
    else:
        from agno.models.openai import OpenAIChat as model
    agent = Agent(
        model=model(id="m"),
        tools=list(TOOLS),
        db=InMemoryDb(),
        add_history_to_context=True,
        num_history_runs=10,
        telemetry=False,
    )

    async def reply(session: str, message: str) -> str:
        if not stream:
            return str((await agent.arun(message, session_id=session)).content)
        events = agent.arun(message, session_id=session, stream=True)
        return "".join([str(each.content) async for each in events if each.event == "RunContent"])

    return reply


def microsoft_agents(api: str, *, stream: bool) -> Reply:
    from agent_framework.openai import OpenAIChatClient, OpenAIChatCompletionClient

    client: Any = (OpenAIChatCompletionClient if api == "chat" else OpenAIChatClient)(model="m")
    agent = client.as_agent(instructions=RULE, tools=list(TOOLS))
    sessions: dict[str, Any] = {}

    async def reply(session: str, message: str) -> str:
        if session not in sessions:
            sessions[session] = agent.create_session()
        if not stream:
            return str((await agent.run(message, session=sessions[session])).text)
        updates = agent.run(message, session=sessions[session], stream=True)
        return "".join([update.text async for update in updates])

    return reply


def strands_output(api: str, *, stream: bool) -> Reply:
    return strands(api, stream=stream, output=Answer)


def strands(api: str, *, stream: bool, output: Any = None) -> Reply:
    from strands import Agent, tool

    model: Any
    if api == "anthropic":
        from strands.models.anthropic import AnthropicModel

        model = AnthropicModel(model_id="m", max_tokens=100)
    else:
        from strands.models.openai import OpenAIModel

        model = OpenAIModel(model_id="m")
    tools: Any = [tool(each) for each in TOOLS]
    agents: dict[str, Agent] = {}

    async def reply(session: str, message: str) -> str:
        if session not in agents:
            agents[session] = Agent(model=model, tools=tools, callback_handler=None)
        result = await agents[session].invoke_async(message, structured_output_model=output)
        return result.structured_output.answer if output else str(result)

    return reply


def llama_index(api: str, *, stream: bool) -> Reply:
    from llama_index.core.agent.workflow import FunctionAgent
    from llama_index.core.memory import ChatMemoryBuffer
    from llama_index.llms.openai import OpenAI, OpenAIResponses

    model: Any = OpenAIResponses if api == "responses" else OpenAI
    agent = FunctionAgent(tools=list(TOOLS), llm=model(model="gpt-4o"), streaming=stream)
    memories: dict[str, Any] = {}

    async def reply(session: str, message: str) -> str:
        if session not in memories:
            memories[session] = ChatMemoryBuffer.from_defaults(token_limit=100_000)
        return str(await agent.run(message, memory=memories[session]))

    return reply


def crewai(api: str, *, stream: bool) -> Reply:
    from crewai import LLM, Agent
    from crewai.tools import tool

    tools = [tool(each.__name__)(each) for each in TOOLS]
    agent = Agent(
        role="r", goal="g", backstory="b", llm=LLM(model="openai/gpt-4o", stream=stream), tools=tools
    )
    histories: dict[str, list[dict[str, str]]] = {}

    async def reply(session: str, message: str) -> str:
        said = [*histories.get(session, []), {"role": "user", "content": message}]
        text = str((await agent.kickoff_async(said)).raw)
        histories[session] = [*said, {"role": "assistant", "content": text}]
        return text

    return reply


def azure(api: str, *, stream: bool) -> Reply:
    from openai import AsyncAzureOpenAI

    client = AsyncAzureOpenAI(api_version="2025-04-01-preview", max_retries=0)
    properties = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
    schema = {**properties, "additionalProperties": False}
    functions = [{"name": each.__name__, "parameters": schema, "strict": True} for each in TOOLS]
    named = {each.__name__: each for each in TOOLS}
    histories: dict[str, list[Any]] = {}

    async def chat(history: list[Any]) -> str:
        tools: Any = [{"type": "function", "function": each} for each in functions]
        given: Any = {"model": "m", "messages": history, "tools": tools}
        if stream:
            async with client.chat.completions.stream(**given) as events:
                message = (await events.get_final_completion()).choices[0].message
        else:
            message = (await client.chat.completions.create(**given)).choices[0].message
        history.append(message.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True))
        for call in message.tool_calls or ():
            result = named[call.function.name](**json.loads(call.function.arguments))
            history.append({"role": "tool", "tool_call_id": call.id, "content": result})
        return "" if message.tool_calls else str(message.content)

    async def responses(history: list[Any]) -> str:
        encrypted = {"store": False, "include": ["reasoning.encrypted_content"]}
        given: Any = {"model": "m", "input": history, **encrypted}
        given["tools"] = [{"type": "function", **each} for each in functions]
        if stream:
            async with client.responses.stream(**given) as events:
                response: Any = await events.get_final_response()
        else:
            response = await client.responses.create(**given)
        history += [each.model_dump(exclude_none=True) for each in response.output]
        calls = [each for each in response.output if each.type == "function_call"]
        for call in calls:
            result = named[call.name](**json.loads(call.arguments))
            history.append({"type": "function_call_output", "call_id": call.call_id, "output": result})
        return "" if calls else str(response.output_text)

    async def reply(session: str, message: str) -> str:
        history = histories.setdefault(session, [])
        history.append({"role": "user", "content": message})
        text = ""
        while not text:
            text = await (chat if api == "chat" else responses)(history)
        return text

    return reply


def claude(api: str, *, stream: bool) -> Reply:
    from claude_agent_sdk import (
        ClaudeAgentOptions,
        ClaudeSDKClient,
        ResultMessage,
        create_sdk_mcp_server,
        tool,
    )

    def made(function: Callable[[str], str]) -> Any:
        @tool(function.__name__, "A tool.", {"q": str})
        async def run(args: dict[str, Any]) -> dict[str, Any]:
            return {"content": [{"type": "text", "text": function(args["q"])}]}

        return run

    options = ClaudeAgentOptions(
        model="claude-sonnet-4-5",
        system_prompt=RULE,
        mcp_servers={"shop": create_sdk_mcp_server("shop", tools=[made(each) for each in TOOLS])},
        allowed_tools=[f"mcp__shop__{each.__name__}" for each in TOOLS],
        setting_sources=[],
        include_partial_messages=stream,
        env={"ENABLE_TOOL_SEARCH": "false", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"},
    )
    clients: dict[str, Any] = {}

    async def reply(session: str, message: str) -> str:
        if session not in clients:
            clients[session] = ClaudeSDKClient(options)
            await clients[session].connect()
        await clients[session].query(message)
        async for each in clients[session].receive_response():
            if isinstance(each, ResultMessage):
                return str(each.result)
        return ""

    return reply


class Message(BaseModel):
    """The user's words."""

    session: str
    message: str


def make_app(whole: Reply, stream: Reply) -> FastAPI:
    app = FastAPI()

    @app.post("/chat")
    async def chat(said: Message) -> dict[str, str]:
        reply = stream if said.message.split()[-1][0] in "efgh" else whole
        return {"reply": await reply(said.session, said.message)}

    return app


if __name__ == "__main__":
    os.environ.update(dict.fromkeys(KEYS, "none"))
    chosen = options(framework="", api="")
    make = globals()[chosen.framework]
    serve(make_app(make(chosen.api, stream=False), make(chosen.api, stream=True)), chosen.port)
