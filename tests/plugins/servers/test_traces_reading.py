"""Reading spans: calls and models in every convention, each call once, from captured and written spans."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentest.domain.transcript import ARGUMENTS_UNKNOWN, Usage
from agentest.plugins.servers.traces.conventions import (
    Span,
    SpanEvent,
    is_agentic,
    model_of,
    session_of,
    tool_of,
)
from agentest.plugins.servers.traces.server import spans_in_json
from agentest.plugins.servers.traces.span_calls import ParsedSpan, calls_of, usage_of

CAPTURED = Path(__file__).parent / "spans"
"""What servers of tests/plugins/frameworks sent: asked to `reserve lamp 2`, then about `both lamp sofa`."""
STOCK = {"lamp": 3, "sofa": 12}


def seen(span: Span) -> ParsedSpan:
    return ParsedSpan(
        trace_id=span.trace_id,
        span_id=span.span_id,
        parent_id=span.parent_id,
        start_ns=span.start_ns,
        end_ns=span.end_ns,
        scope=span.scope,
        agentic=is_agentic(span),
        tool=tool_of(span),
        model=model_of(span),
    )


def a_span(number: int, parent: int | None = None, scope: str = "one", **keys: Any) -> Span:
    return Span(
        trace_id="a" * 32,
        span_id=f"{number:016x}",
        parent_id=f"{parent:016x}" if parent else None,
        start_ns=number,
        scope=scope,
        **keys,
    )


def a_long_span(number: int, begin: int, end: int, scope: str, attributes: Mapping[str, Any]) -> Span:
    return replace(a_span(number, scope=scope, attributes=attributes), start_ns=begin, end_ns=end)


def a_tool(name: str, **more: Any) -> dict[str, Any]:
    told = {f"gen_ai.tool.call.{key}": value for key, value in more.items()}
    return {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name, **told}


def openinference(name: str, arguments: str) -> dict[str, Any]:
    return {"openinference.span.kind": "TOOL", "tool.name": name, "input.value": arguments}


def told(*spans: Span) -> list[tuple[Any, ...]]:
    calls = [each.call for each in calls_of([seen(span) for span in spans], 0)]
    return [(call.name, call.args, call.result) for call in calls]


def stock(item: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
    return "check_stock", {"item": item}, {"item": item, "in_stock": STOCK[item], "from": "the real shop"}


@pytest.mark.parametrize("framework", ["google_adk", "langgraph", "openai_agents", "pydantic_ai"])
def test_captured_spans_tell_what_the_agent_called(framework: str) -> None:
    """Names, arguments, results and order of all calls are known of each framework, those at once too."""
    spans = spans_in_json((CAPTURED / f"{framework}.json").read_bytes())
    turns = [[span for span in spans if span.trace_id.endswith(f"{turn:08x}")] for turn in range(3)]
    reserved = {"reservation": "R-lamp-2", "from": "the real shop"}
    assert told(*turns[0]) == [stock("lamp"), ("reserve_item", {"item": "lamp", "quantity": 2}, reserved)]
    assert sorted(told(*turns[1]), key=str) == [stock("lamp"), stock("sofa")]
    assert told(*turns[2]) == []


def test_usage_of_captured_spans() -> None:
    """Tokens are those of the model's calls, and not again those of the agent's span around them."""
    spans = spans_in_json((CAPTURED / "pydantic_ai.json").read_bytes())
    first = [seen(span) for span in spans if span.trace_id.endswith("0" * 8)]
    assert usage_of(first) == (Usage(187, 47), 3)


ARGS = {"item": "tea", "n": 2}
TEXT = json.dumps(ARGS)
CONVENTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "gen_ai": ("execute_tool stock", a_tool("stock", arguments=TEXT, result='{"ok": true}')),
    "gen_ai-structured": ("execute_tool stock", a_tool("stock", arguments=ARGS, result={"ok": True})),
    "pydantic-ai-old": (
        "running tool",
        {"gen_ai.tool.name": "stock", "tool_arguments": TEXT, "tool_response": '{"ok": true}'},
    ),
    "adk-old": (
        "execute_tool stock",
        {
            "gen_ai.tool.name": "stock",
            "gcp.vertex.agent.tool_call_args": TEXT,
            "gcp.vertex.agent.tool_response": '{"ok": true}',
        },
    ),
    "openinference": (
        "stock",
        {
            "openinference.span.kind": "TOOL",
            "tool.name": "stock",
            "input.value": TEXT,
            "output.value": '{"ok": true}',
        },
    ),
    "openinference-unnamed": (
        "stock",
        {"openinference.span.kind": "TOOL", "input.value": TEXT, "output.value": '{"ok": true}'},
    ),
    "ai-sdk": (
        "ai.toolCall",
        {"ai.toolCall.name": "stock", "ai.toolCall.args": TEXT, "ai.toolCall.result": '{"ok": true}'},
    ),
    "traceloop": (
        "stock.tool",
        {
            "traceloop.span.kind": "tool",
            "traceloop.entity.name": "stock",
            "traceloop.entity.input": json.dumps({"inputs": ARGS, "tags": [], "metadata": {}}),
            "traceloop.entity.output": '{"ok": true}',
        },
    ),
    "traceloop-function": (
        "stock.tool",
        {
            "traceloop.span.kind": "tool",
            "traceloop.entity.name": "stock",
            "traceloop.entity.input": json.dumps({"args": [], "kwargs": ARGS}),
            "traceloop.entity.output": '{"ok": true}',
        },
    ),
    "langsmith": (
        "stock",
        {
            "langsmith.span.kind": "tool",
            "langsmith.trace.name": "stock",
            "gen_ai.prompt": json.dumps({"input": TEXT}),
            "gen_ai.completion": '{"ok": true}',
        },
    ),
    "mcp": (
        "tools/call stock",
        {
            "mcp.method.name": "tools/call",
            "gen_ai.tool.name": "stock",
            "gen_ai.tool.call.arguments": TEXT,
            "gen_ai.tool.call.result": json.dumps(
                {"content": [{"type": "text", "text": '{"ok": true}'}], "isError": False}
            ),
        },
    ),
}


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_every_convention_tells_the_same(convention: str) -> None:
    """A tool call is read alike, however its span writes name, arguments and result."""
    name, attributes = CONVENTIONS[convention]
    assert told(a_span(1, name=name, attributes=attributes)) == [("stock", ARGS, {"ok": True})]


NOT_TOLD: dict[str, tuple[dict[str, Any], Any, str | None]] = {
    "nothing": (a_tool("stock"), None, ARGUMENTS_UNKNOWN),
    "a-bare-value": (
        {"openinference.span.kind": "TOOL", "tool.name": "stock", "input.value": "tea"},
        None,
        ARGUMENTS_UNKNOWN,
    ),
    "a-bare-number": (
        {"openinference.span.kind": "TOOL", "tool.name": "stock", "input.value": "7"},
        None,
        ARGUMENTS_UNKNOWN,
    ),
    "no-json": (a_tool("stock", arguments='{"item": '), '{"item": ', "the arguments are not a JSON object"),
    "a-list": (a_tool("stock", arguments='["tea"]'), ["tea"], "the arguments are not a JSON object"),
    "none-needed": (a_tool("stock", arguments=""), {}, None),
}


@pytest.mark.parametrize("case", NOT_TOLD)
def test_unknown_arguments_stay_unknown(case: str) -> None:
    """A call without known arguments is marked; ones that are not a JSON object are recorded as is."""
    attributes, args, problem = NOT_TOLD[case]
    [each] = calls_of([seen(a_span(1, name="x", attributes=attributes))], 3)
    assert (each.call.args, each.call.invalid_arguments, each.call.turn_index) == (args, problem, 3)


def asked_by_model(*calls: tuple[str | None, Mapping[str, Any]]) -> dict[str, Any]:
    attributes: dict[str, Any] = {"openinference.span.kind": "LLM"}
    for at, (call_id, args) in enumerate(calls):
        begin = f"llm.output_messages.0.message.tool_calls.{at}.tool_call"
        attributes[f"{begin}.function.name"] = "stock"
        attributes[f"{begin}.function.arguments"] = json.dumps(args)
        if call_id:
            attributes[f"{begin}.id"] = call_id
    return attributes


def bare(value: str, **more: Any) -> dict[str, Any]:
    return {"openinference.span.kind": "TOOL", "tool.name": "stock", "input.value": value, **more}


def test_a_bare_value_is_found_in_the_models_request() -> None:
    """A tool with one argument may report only its value; the model's span has the object."""
    model = a_span(1, attributes=asked_by_model(("a", {"item": "tea"}), ("b", {"item": "7"})))
    by_value = [a_span(2, attributes=bare("7")), a_span(3, attributes=bare("tea"))]
    assert [args for _, args, _ in told(model, *by_value)] == [{"item": "7"}, {"item": "tea"}]
    message = {"type": "tool", "data": {"content": "4", "tool_call_id": "b"}}
    [known] = calls_of(
        [seen(model), seen(a_span(2, attributes=bare("?", **{"output.value": json.dumps(message)})))], 0
    )
    assert (known.call.args, known.call.call_id, known.call.result) == ({"item": "7"}, "b", 4)


def test_a_name_alone_is_matched_only_if_unambiguous() -> None:
    """One call matches one request of the model; of two, neither does."""
    names = [a_span(2, attributes=a_tool("stock")), a_span(3, attributes=a_tool("stock"))]
    one = a_span(1, attributes=asked_by_model((None, {"item": "tea"})))
    both = a_span(1, attributes=asked_by_model((None, {"item": "tea"}), (None, {"item": "rum"})))
    assert told(one, names[0]) == [("stock", {"item": "tea"}, None)]
    assert [args for _, args, _ in told(one, *names)] == [None, None]
    assert [args for _, args, _ in told(both, *names)] == [None, None]


SAME: dict[str, tuple[list[Span], list[tuple[str, Any]]]] = {
    "nested": (
        [
            a_span(1, attributes=a_tool("stock", id="a")),
            a_span(2, 1, "http", name="POST"),
            a_span(3, 2, "fastmcp", attributes=a_tool("stock", arguments=TEXT)),
        ],
        [("stock", ARGS)],
    ),
    "nested-under-the-servers-name": (
        [
            a_span(1, attributes=a_tool("shop_stock", arguments=TEXT)),
            a_span(2, 1, "mcp", attributes=a_tool("stock")),
        ],
        [("shop_stock", ARGS)],
    ),
    "two-instrumentations-side-by-side": (
        [
            a_span(1, attributes=a_tool("stock", id="a")),
            a_span(2, scope="two", attributes=a_tool("stock", id="a", arguments=TEXT)),
        ],
        [("stock", ARGS)],
    ),
    "two-instrumentations-without-ids": (
        [
            a_long_span(1, 1, 9, "v2", a_tool("stock", arguments=TEXT)),
            a_long_span(2, 2, 8, "openinference", openinference("stock", TEXT)),
            a_long_span(3, 9, 12, "openinference", openinference("stock", TEXT)),
            a_long_span(4, 10, 13, "v2", a_tool("stock", arguments=TEXT)),
        ],
        [("stock", ARGS), ("stock", ARGS)],
    ),
    "two-instrumentations-with-ids-of-their-own": (
        [
            a_long_span(1, 1, 9, "v2", a_tool("stock", id="a", arguments=TEXT)),
            a_long_span(2, 2, 8, "two", a_tool("stock", id="b", arguments=TEXT)),
        ],
        [("stock", ARGS)],
    ),
    "two-instrumentations-one-without-arguments": (
        [
            a_long_span(1, 1, 9, "v2", a_tool("stock")),
            a_long_span(2, 2, 8, "openinference", openinference("stock", TEXT)),
        ],
        [("stock", ARGS)],
    ),
    "two-instrumentations-of-parallel-calls": (
        [
            a_long_span(1, 1, 20, "v2", a_tool("stock", arguments=TEXT)),
            a_long_span(2, 2, 20, "v2", a_tool("stock", arguments=TEXT)),
            a_long_span(3, 3, 20, "v2", a_tool("stock", arguments="{}")),
            a_long_span(4, 4, 20, "openinference", openinference("stock", TEXT)),
            a_long_span(5, 5, 20, "openinference", openinference("stock", "{}")),
            a_long_span(6, 6, 20, "openinference", openinference("stock", TEXT)),
        ],
        [("stock", ARGS), ("stock", ARGS), ("stock", {})],
    ),
    "two-instrumentations-at-other-times": (
        [
            a_long_span(1, 1, 2, "v2", a_tool("stock", arguments=TEXT)),
            a_long_span(2, 3, 4, "openinference", openinference("stock", TEXT)),
        ],
        [("stock", ARGS), ("stock", ARGS)],
    ),
    "two-instrumentations-of-other-tools": (
        [
            a_long_span(1, 1, 9, "v2", a_tool("stock", arguments=TEXT)),
            a_long_span(2, 2, 8, "openinference", openinference("stock", "{}")),
            a_long_span(3, 2, 8, "openinference", openinference("sell", TEXT)),
        ],
        [("stock", ARGS), ("stock", {}), ("sell", ARGS)],
    ),
    "again-by-one-instrumentation": (
        [
            a_span(1, attributes=a_tool("stock", id="a", arguments=TEXT)),
            a_span(2, attributes=a_tool("stock", id="a", arguments=TEXT)),
        ],
        [("stock", ARGS), ("stock", ARGS)],
    ),
    "parallel-and-out-of-order": (
        [
            a_span(5, attributes=a_tool("b", arguments="{}")),
            a_span(3, attributes=a_tool("a", arguments="{}")),
        ],
        [("a", {}), ("b", {})],
    ),
    "another-tool-within": (
        [
            a_span(1, attributes=a_tool("ask_expert", arguments="{}")),
            a_span(2, 1, attributes=a_tool("stock", arguments="{}")),
        ],
        [("ask_expert", {}), ("stock", {})],
    ),
    "the-merged-span-of-adk": ([a_span(1, attributes=a_tool("(merged tools)"))], []),
    "a-circle": (
        [
            a_span(1, 2, attributes=a_tool("stock", arguments="{}")),
            a_span(2, 1, name="odd"),
        ],
        [("stock", {})],
    ),
}


@pytest.mark.parametrize("case", SAME)
def test_a_call_counts_once(case: str) -> None:
    """Spans within one another, or of two instrumentations, are one call; else each is one."""
    spans, expected = SAME[case]
    assert [(name, args) for name, args, _ in told(*spans)] == expected


def test_a_failing_tool_says_why() -> None:
    """The error of a call is in its status, its exception, or what LangChain and MCP write around it."""
    raised = SpanEvent(name="exception", attributes={"exception.message": "sold out"})
    langchain = {"type": "tool", "data": {"content": "sold out", "status": "error"}}
    mcp = {"content": [{"type": "text", "text": "sold out"}], "isError": True}
    spans = [
        a_span(1, status="error", status_message="sold out", attributes=a_tool("a")),
        a_span(2, status="error", events=(raised,), attributes=a_tool("b")),
        a_span(3, attributes=bare("tea", **{"output.value": json.dumps(langchain)})),
        a_span(4, attributes=a_tool("d", result=json.dumps(mcp))),
    ]
    assert [each.call.error for each in calls_of([seen(s) for s in spans], 0)] == ["sold out"] * 4


USAGE = {
    "gen_ai": {
        "gen_ai.operation.name": "chat",
        "gen_ai.usage.input_tokens": 9,
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.usage.cache_read.input_tokens": 2,
    },
    "gen_ai-old": {
        "llm.request.type": "chat",
        "gen_ai.usage.prompt_tokens": 9,
        "gen_ai.usage.completion_tokens": 4,
        "gen_ai.usage.cache_read_input_tokens": 2,
    },
    "openinference": {
        "openinference.span.kind": "LLM",
        "llm.token_count.prompt": 9,
        "llm.token_count.completion": 4,
        "llm.token_count.prompt_details.cache_read": 2,
    },
}


@pytest.mark.parametrize("convention", USAGE)
def test_tokens_of_models(convention: str) -> None:
    """Tokens are read by every convention, once for spans within one another, and added up for several."""
    inner, outer = a_span(2, 1, attributes=USAGE[convention]), a_span(1, attributes=USAGE["gen_ai"])
    assert usage_of([seen(outer), seen(inner)]) == (Usage(9, 4, 2), 1)
    other = a_span(3, 1, attributes=USAGE[convention])
    assert usage_of([seen(outer), seen(inner), seen(other)]) == (Usage(18, 8, 4), 2)
    assert usage_of([]) == (Usage(), None)


def test_tokens_that_two_instrumentations_tell() -> None:
    """Model calls that two instrumentations report count once; those of one instrumentation each."""
    first, second = USAGE["gen_ai"], USAGE["openinference"]
    spans = [
        a_long_span(1, 1, 9, "v2", first),
        a_long_span(2, 2, 8, "openinference", second),
        a_long_span(3, 10, 19, "openinference", second),
        a_long_span(
            4, 11, 18, "v2", {**first, "gen_ai.usage.input_tokens": 0, "gen_ai.usage.output_tokens": 0}
        ),
    ]
    assert usage_of([seen(span) for span in spans]) == (Usage(18, 8, 4), 2)
    more = a_long_span(5, 11, 18, "v2", {**first, "gen_ai.usage.input_tokens": 1})
    assert usage_of([seen(span) for span in (*spans, more)])[1] == 3


def test_spans_of_a_web_server_are_not_an_agents() -> None:
    """A span of only a request shows no agent; one with a session identifies it."""
    assert not is_agentic(a_span(1, attributes={"http.route": "/health"}))
    spoken = a_span(1, attributes={"gen_ai.conversation.id": "s-1"})
    assert is_agentic(spoken)
    assert session_of(spoken) == "s-1"
