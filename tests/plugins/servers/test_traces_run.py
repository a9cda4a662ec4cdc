"""Runs of agents whose calls come only from spans: on the command line, and in the turn loop."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from project import Project, free_port
from pydantic import TypeAdapter

from agentest.agents.call_source_addresses import Addresses, with_user_variables
from agentest.agents.port import AgentReply, NoReply, TurnContext
from agentest.config.agent_types import AgentConfig
from agentest.conversation.turn_loop import ConversationSpec, TurnLoop
from agentest.conversation.user import ScriptedUser
from agentest.domain.messages import Message, UserText
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import Conversation, ToolCall, Usage
from agentest.mocks.resolver import MockResolver
from agentest.plugins.servers.port import Identity, SpanCall, SpanRequest, TurnTraces
from agentest.plugins.servers.server_calls import MockServerCalls, TracedCalls
from agentest.runner.known_tools import agent_traits
from agentest.store.spans import spans_of
from agentest.support.trace_context import new_key, note_request

AGENT = """
import json, os, secrets, sys, urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Agent(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(204); self.end_headers()

    def do_POST(self):
        word, *rest = json.loads(self.rfile.read(int(self.headers["content-length"])))["message"].split()
        if "traceparent" in self.headers:  # first: for two seconds after the reply it may stall
            send(spans_of(word, rest, *self.headers["traceparent"].split("-")[1:3]))
        reply = json.dumps({"reply": "" if word == "hand" else f"done: {word}"}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

def spans_of(word, rest, trace, parent):
    root = secrets.token_hex(8)
    spans = [] if word == "hello" else [span(trace, root, {
        "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": word,
        "gen_ai.tool.call.arguments": json.dumps({"item": " ".join(rest)}),
        "gen_ai.tool.call.result": '{"key": "sk-s3cret-1234567890"}',
    })]
    spans.append(span(trace, root, {"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 5}))
    if rest != ["slowly"]:
        spans.append({**span(trace, parent, {}), "spanId": root})
    return spans

def span(trace, parent, attributes):
    values = [{"key": key, "value": {"intValue" if isinstance(value, int) else "stringValue": value}}
              for key, value in attributes.items()]
    return {"traceId": trace, "spanId": secrets.token_hex(8), "parentSpanId": parent, "name": "x",
            "startTimeUnixNano": "1", "endTimeUnixNano": "2", "attributes": values}

def send(spans):
    body = json.dumps({"resource_spans": [{"scope_spans": [{"spans": spans}]}]}).encode()
    urllib.request.urlopen(urllib.request.Request(
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] + "/v1/traces", body, {"content-type": "application/json"}))

ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Agent).serve_forever()
"""
SCENARIOS = """
def shop(name, *turns, **more):
    scenario(name, turns=list(turns), trajectory={"forbidden": ["cancel"]}, **more)

shop("holds", {"user_message": "stock tea", "trajectory": {"expected": [call("stock", item="tea")]}}, "hello")
shop("wrong", {"user_message": "stock rum", "trajectory": {"expected": [call("stock", item="tea")]}})
shop("banned", "hello", "cancel tea")
shop("handed over", "hand over")
shop("incomplete", "stock slowly")
"""


def served_by(port: int, **keys: Any) -> dict[str, Any]:
    return {
        "type": "http",
        "endpoint": f"http://127.0.0.1:{port}/chat",
        "body": {"message": "{{message}}"},
        "reply": "reply",
        "server": {"command": [sys.executable, "agent.py", str(port)], "ready": f"tcp://127.0.0.1:{port}"},
        **keys,
    }


def test_a_run_whose_agent_is_seen_by_its_spans(tmp_path: Path) -> None:
    """Configuration alone: bans are caught, arguments compared, and what is incomplete is errored; the spans
    are in a file of their own, in which no secret is."""
    project, port = Project(tmp_path), free_port()
    project.write("agent.py", AGENT)
    project.scenario(SCENARIOS)
    project.write(".agentest/spans.jsonl", "the last run's\n")
    project.config("", agent=served_by(port, traces=True, headers={"x-key": "sk-s3cret-1234567890"}))
    run = project.run()
    statuses = {each["name"]: each["status"] for each in project.results["scenarios"]}
    assert (run.returncode, statuses) == (
        1,
        {
            "holds": "passed",
            "wrong": "failed",
            "banned": "failed",
            "handed over": "passed",
            "incomplete": "errored",
        },
    )
    assert "calls of agent 'agent' cannot be seen: traces incomplete  1 scenario" in run.stdout
    assert " the spans" in run.stdout
    assert "traces incomplete: the spans of 0 of 1 request" in str(project.scenario_result("incomplete"))
    assert "traces of agent 'agent' were incomplete in 1 turn" in run.stderr
    [first, _] = project.scenario_result("holds")["conversations"][0]["turns"]
    [made] = first["toolCalls"]
    assert (made["name"], made["args"], made["seenBy"]) == ("stock", {"item": "tea"}, "spans")
    assert first["usage"]["promptTokens"] == 5
    lines = [json.loads(line) for line in (tmp_path / ".agentest/spans.jsonl").read_text().splitlines()]
    told = {(line["scenario"], line["turnIndex"], line["about"]) for line in lines}
    assert {("holds", 0, "tool"), ("holds", 1, None), ("banned", 1, "tool"), ("wrong", 0, "model")} <= told
    assert "s3cret" not in json.dumps(lines)
    talk = project.scenario_result("holds")["conversations"][0]["conversationId"]
    mine = spans_of(tmp_path / ".agentest", "holds", "agent", talk)
    assert [each for each in lines if each["conversationId"] == talk] == mine


@pytest.mark.slow
def test_missing_spans_beside_a_mock_server(tmp_path: Path) -> None:
    """A ban of a tool that the mock server does not list is errored, though the scenario mocks it: the agent
    may have a tool of that name, whose spans are missing."""
    project, port = Project(tmp_path), free_port()
    project.write("agent.py", AGENT)
    project.scenario(
        """
def shop(name, tools):
    scenario(name, turns=["stock slowly"], trajectory={"forbidden": ["cancel"]}, tools=tools)

shop("its own", {"price": 1})
shop("mocked", {"cancel": 1})
"""
    )
    project.config("", agent=served_by(port, mcp_mock=True, traces=True))
    run = project.run()
    statuses = {each["name"]: each["status"] for each in project.results["scenarios"]}
    assert (run.returncode, statuses) == (2, {"its own": "errored", "mocked": "errored"})
    assert "cannot be seen: traces incomplete" in run.stdout


def test_spans_reach_the_workers_of_a_run(tmp_path: Path) -> None:
    """The receiver is in the run's own process, and conversations in others: the same verdicts."""
    project, port = Project(tmp_path), free_port()
    project.write("agent.py", AGENT)
    project.scenario(SCENARIOS.replace('shop("incomplete"', 'shop("also holds"').replace("slowly", "quickly"))
    project.config("", agent=served_by(port, traces=True))
    run = project.run("--workers", "2")
    failed = [each["name"] for each in project.results["scenarios"] if each["status"] != "passed"]
    assert (run.returncode, sorted(failed)) == (1, ["banned", "wrong"])
    assert (tmp_path / ".agentest/spans.jsonl").stat().st_size


def test_traces_off_leave_no_trace(tmp_path: Path) -> None:
    """Without `traces` nothing is received or named, and spans of an earlier run are not among this one's."""
    project, port = Project(tmp_path), free_port()
    project.write("agent.py", "import os; assert 'OTEL_EXPORTER_OTLP_ENDPOINT' not in os.environ\n" + AGENT)
    project.scenario('scenario("s", turns=["hello"])')
    project.write(".agentest/spans.jsonl", "the last run's\n")
    project.config("", agent=served_by(port))
    assert project.run().returncode == 0
    assert (tmp_path / ".agentest/spans.jsonl").read_text() == "the last run's\n"
    assert not list(tmp_path.glob(".agentest/runs/*/spans.jsonl"))


def test_what_the_user_writes_wins() -> None:
    """An address of the user's own for everything is not overridden by ours for traces alone."""
    told = Addresses(otlp="http://127.0.0.1:1").by_variable
    assert told["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] == "http://127.0.0.1:1/v1/traces"
    own = with_user_variables(
        told, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://mine", "OTEL_BSP_SCHEDULE_DELAY": "9"}
    )
    assert own["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://mine"
    assert own["OTEL_BSP_SCHEDULE_DELAY"] == "9"
    assert "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT" not in own
    assert "OTEL_SDK_DISABLED" not in Addresses(mcp="http://127.0.0.1:1").by_variable


@dataclass
class Spans:
    """The spans' calls of each turn, for each query."""

    answers: dict[int, list[TurnTraces]]
    asked: list[SpanRequest] = field(default_factory=list)

    async def spans_of(self, asked: SpanRequest) -> TurnTraces:
        self.asked.append(asked)
        known = self.answers.get(asked.turn_index, [TurnTraces()])
        return known.pop(0) if len(known) > 1 else known[0]


class Speaker:
    """An agent that gets two requests per turn, and replies or raises."""

    name = "shop"

    def __init__(self, *replies: str | Exception, stays_open: bool) -> None:
        self._replies = list(replies)
        self._stays_open = stays_open

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        note_request(stays_open=self._stays_open)
        note_request()
        reply = self._replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return AgentReply(reply)


def spans(turn: int, *names: str, missing: str | None = None, **more: Any) -> TurnTraces:
    calls = [
        SpanCall(
            spans=frozenset({f"{turn}{name}"}),
            call=ToolCall(name, {"n": 1}, None, False, turn, seen_by=SeenBy.SPANS),
        )
        for name in names
    ]
    return TurnTraces(calls=tuple(calls), missing=missing, **more)


def held(
    source: Spans,
    *replies: str | Exception,
    alone: bool = True,
    stays_open: bool = False,
    **tools: Any,
) -> Conversation:
    who = Identity(key=new_key(), session_id=None, conversation_id="c", scenario="s", agent="shop")
    mocks = MockResolver(tools, scenario="s", conversation_id="c", unmocked_tools="error")
    served = MockServerCalls(who, mocks)
    traced = TracedCalls(mocks, source, who.key, alone=alone)
    user = ScriptedUser([UserText(str(at)) for at in range(len(replies))])
    agent = Speaker(*replies, stays_open=stays_open)
    loop = TurnLoop(ConversationSpec("c", "s", 9), agent, user, mocks, [served, traced])
    return anyio.run(loop.run)


def called(conversation: Conversation) -> list[list[str]]:
    return [[call.name for call in turn.tool_calls] for turn in conversation.turns]


def test_a_turn_has_the_facts_of_its_spans() -> None:
    """If the agent reports none, calls, tokens and model calls come from spans, which are queried after the
    reply, with the number of requests."""
    source = Spans({0: [spans(0, "a", "b", usage=Usage(9, 4), model_calls=2)], 1: [spans(1)]})
    conversation = held(source, "yes", "no")
    assert called(conversation) == [["a", "b"], []]
    assert (conversation.turns[0].usage, conversation.turns[0].model_calls) == (Usage(9, 4), 2)
    first, second = source.asked[:2]
    assert (first.turn_index, first.asks, first.requests, first.wait) == (0, 1, 2, True)
    assert second.began_ns >= first.began_ns


def test_an_agent_that_hands_over_is_seen_by_its_spans() -> None:
    """A reply without text is a turn if spans have a call in it, and the agent's error otherwise."""
    assert called(held(Spans({0: [spans(0, "transfer")]}), "")) == [["transfer"]]
    failure = held(Spans({}), "").failure
    assert failure
    assert "neither text nor tool calls" in failure.message


def test_spans_that_come_late_still_count() -> None:
    """Spans that arrive between a turn's end and the conversation's are recorded; each call once."""
    late = {
        0: [spans(0, "a", missing="traces incomplete"), spans(0, "a", "b")],
        1: [spans(1, missing="lost")],
    }
    conversation = held(Spans(late), "yes", "no")
    assert called(conversation) == [["a", "b"], []]
    assert [turn.calls_hidden for turn in conversation.turns] == [None, "lost"]
    told_elsewhere = held(Spans({0: [spans(0, "a", missing="lost")]}), "yes", alone=False)
    assert told_elsewhere.turns[0].calls_hidden is None


def test_calls_before_an_error_are_kept() -> None:
    """If the agent fails, the calls in its spans are recorded."""
    source = Spans({0: [spans(0, "a")]})
    conversation = held(source, NoReply("it is on fire"))
    assert conversation.unfinished
    assert [call.name for call in conversation.unfinished.tool_calls] == ["a"]
    assert "on fire" in (conversation.failure.message if conversation.failure else "")


@pytest.mark.parametrize("late", [False, True], ids=["in-the-turn", "late"])
def test_a_real_tool_that_ran_in_place_of_a_mock(late: bool) -> None:
    """A span of a mocked tool without a call at the mock server means that the real one ran."""
    at_once = spans(0, "book")
    answers = [replace(at_once, calls=(), missing="lost"), at_once] if late else [at_once]
    failure = held(Spans({0: answers}), "booked", book={"ok": True}).failure
    assert failure
    assert "agent 'shop' ran tool 'book' itself" in failure.message


def test_a_connection_that_stays_open_is_waited_for_at_the_end() -> None:
    """Its span ends with the conversation: no turn waits for it, and its calls are known then."""
    hidden = spans(0, "a", missing="it stays open")
    source = Spans({0: [hidden, spans(0, "a")], 1: [replace(hidden, calls=()), spans(1, "b")]})
    conversation = held(source, "yes", "no", stays_open=True)
    assert called(conversation) == [["a"], ["b"]]
    assert [turn.calls_hidden for turn in conversation.turns] == [None, None]
    assert [(asked.turn_index, asked.wait) for asked in source.asked] == [
        (0, False),
        (1, False),
        (0, True),
        (1, False),
    ]


SIGHTS: list[tuple[dict[str, Any], bool]] = [
    ({"type": "chat_completions"}, True),
    ({"type": "chat_completions", "tool_visibility": "reported"}, True),
    ({"type": "chat_completions", "tool_visibility": "returned"}, False),
    ({"type": "ag_ui"}, False),
    ({"type": "chat_completions", "mcp_mock": {"port": 4319}}, False),
    ({"type": "chat_completions", "traces": False}, False),
]


@pytest.mark.parametrize(
    ("keys", "alone"), SIGHTS, ids=["unsaid", "reported", "returned", "ag_ui", "mcp", "off"]
)
def test_missing_spans_hide_calls_without_another_source(keys: dict[str, Any], alone: bool) -> None:
    """Spans are not the only source if the protocol or a mock server reports calls."""
    known = {"endpoint": "http://127.0.0.1:1", "traces": {"port": 4318}, **keys}
    agent = TypeAdapter(AgentConfig).validate_python(known)
    assert agent_traits("shop", agent).visible_by_spans_only is alone
