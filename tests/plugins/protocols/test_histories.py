"""Where conversations begin: after a history, with files, and with fields of their own in requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from talking import as_events, as_json, held
from wire import completion, http, wire

from agentest import scenario
from agentest.domain.results import Status
from agentest.report.console.text import DisplayOptions
from agentest.report.console.transcript import transcript_lines
from agentest.scenarios.discovery import discover_file
from agentest.store.codec import CODECS, conversation_json
from agentest.support.errors import ConfigError
from agentest.support.importing import Imports
from agentest.testing import STOP, CheckedRun, ScriptedAgent, ScriptedModel, arun_scenarios, run_scenarios

HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "Where is order 17?"},
    {
        "role": "assistant",
        "content": "It was lost.",
        "tool_calls": [{"name": "find", "args": {"id": 17}, "result": {"at": None}}],
    },
]
ID = "history_1_tool_calls_0"
CALL = {"id": ID, "type": "function", "function": {"name": "find", "arguments": '{"id": 17}'}}
RESULT = {"role": "tool", "content": '{"at": null}'}
USER, ASSISTANT = {"role": "user"}, {"role": "assistant"}
ASKED, ANSWERED = "Where is order 17?", "It was lost."
COMPLETIONS = [
    {**USER, "content": ASKED},
    {**ASSISTANT, "content": None, "tool_calls": [CALL]},
    {**RESULT, "tool_call_id": ID},
    {**ASSISTANT, "content": ANSWERED},
    {**USER, "content": "Why?"},
]
RUN = [
    {"type": "RUN_STARTED", "threadId": "t", "runId": "r"},
    {"type": "TEXT_MESSAGE_START", "messageId": "a", "role": "assistant"},
    {"type": "TEXT_MESSAGE_CONTENT", "messageId": "a", "delta": "Hello."},
    {"type": "TEXT_MESSAGE_END", "messageId": "a"},
    {"type": "RUN_FINISHED", "threadId": "t", "runId": "r"},
]
STREAM = [{"type": "start"}, {"type": "text-start", "id": "t"}, {"type": "text-end", "id": "t"}]
STREAM.insert(2, {"type": "text-delta", "id": "t", "delta": "Hello."})
STATE = [
    {"type": "human", "content": "Why?"},
    {"type": "ai", "content": "Hello.", "id": "a", "tool_calls": []},
]
GRAPH = {"model": {"messages": STATE[1:]}}
ENDPOINT = {"type": "http", "reply": "reply", "body": {"messages": "{{messages}}"}}


def wire_of(body: dict[str, Any]) -> Any:
    """The messages of a request, without ids of our own."""
    messages = body.get("messages", body.get("input"))
    messages = messages["messages"] if isinstance(messages, dict) else messages
    return [{key: value for key, value in each.items() if key != "id"} for each in messages]


@pytest.mark.parametrize(
    ("config", "answers", "sent"),
    [
        ({"type": "chat_completions"}, [http(completion())], COMPLETIONS),
        (
            {"type": "anthropic_messages"},
            [as_json({**ASSISTANT, "content": [{"type": "text", "text": "Hello."}]})],
            [
                COMPLETIONS[0],
                {
                    **ASSISTANT,
                    "content": [{"type": "tool_use", "id": ID, "name": "find", "input": {"id": 17}}],
                },
                {
                    **USER,
                    "content": [{"type": "tool_result", "tool_use_id": ID, "content": RESULT["content"]}],
                },
                {**ASSISTANT, "content": [{"type": "text", "text": ANSWERED}]},
                COMPLETIONS[4],
            ],
        ),
        (
            {"type": "responses"},
            [
                as_json(
                    {
                        "id": "r",
                        "status": "completed",
                        "output": [
                            {
                                "type": "message",
                                **ASSISTANT,
                                "content": [{"type": "output_text", "text": "Hello."}],
                            }
                        ],
                    }
                )
            ],
            [
                COMPLETIONS[0],
                {"type": "function_call", "call_id": ID, **CALL["function"]},
                {"type": "function_call_output", "call_id": ID, "output": RESULT["content"]},
                *COMPLETIONS[3:],
            ],
        ),
        (
            {"type": "ag_ui"},
            [as_events(*RUN)],
            [
                COMPLETIONS[0],
                {**ASSISTANT, "content": "", "toolCalls": [CALL]},
                {**RESULT, "toolCallId": ID},
                *COMPLETIONS[3:],
            ],
        ),
        (
            {"type": "ai_sdk"},
            [as_events(*STREAM, {"type": "finish"}, "[DONE]", names=False)],
            [
                {**USER, "parts": [{"type": "text", "text": ASKED}]},
                {
                    **ASSISTANT,
                    "parts": [
                        {
                            "type": "tool-find",
                            "toolCallId": ID,
                            "state": "output-available",
                            "input": {"id": 17},
                            "output": {"at": None},
                        }
                    ],
                },
                {**ASSISTANT, "parts": [{"type": "text", "text": ANSWERED, "state": "done"}]},
                {**USER, "parts": [{"type": "text", "text": "Why?"}]},
            ],
        ),
        (
            {"type": "langgraph", "assistant_id": "shop"},
            [
                http(
                    f"event: updates\ndata: {json.dumps(GRAPH)}\n\n".encode(),
                    headers=("content-type: text/event-stream",),
                ),
                as_json({"values": {"messages": STATE}, "next": []}),
            ],
            COMPLETIONS,
        ),
        (ENDPOINT, [as_json({"reply": "Hello."})], [COMPLETIONS[0], *COMPLETIONS[3:]]),
    ],
    ids=lambda value: value.get("type") if isinstance(value, dict) else "",
)
def test_the_history_comes_before_the_first_message(config: Any, answers: Any, sent: Any) -> None:
    """Each protocol has its own form for messages, calls and results; none of the calls is one of the run."""
    told = held(config, ["Why?"], *answers, history=HISTORY)
    assert wire_of(told.requests[0].body) == sent
    assert (told.problem, told.replies, told.calls) == ("", ["Hello."], [])


def refused(agent: Any, **options: Any) -> str:
    made = scenario("in the middle", turns=["Why?"], history=HISTORY, **options)
    with pytest.raises(ConfigError) as caught:
        run_scenarios([made], agent=agent)
    return str(caught.value)


def test_a_protocol_that_takes_no_history_says_so_before_the_first_conversation() -> None:
    """The error has the scenario, its place, the agent and its type; no request is sent."""
    with ScriptedAgent(["Hello."]) as agent:
        said = refused({**ENDPOINT, "endpoint": agent.endpoint, "body": {"text": "{{message}}"}})
        assert "the `history` of scenario 'in the middle' (" in said
        assert "cannot be sent to agent 'agent' (type: http)" in said
        assert "write {{messages}} into its `headers` or `body`, or leave `history` out" in said
        assert "(type: a2a)" in refused({"type": "a2a", "endpoint": agent.endpoint})
        assert agent.requests == []


def run_after_history(model: ScriptedModel | None = None, **options: Any) -> tuple[CheckedRun, list[Any]]:
    options = {"goal": "Get the money back.", "conversations_per_scenario": 1, **options}
    with ScriptedAgent(["unused", "unused", "Here it is."]) as agent:
        result = run_scenarios([scenario("s", history=HISTORY, **options)], agent=agent, model=model)
        return result, agent.requests


def test_calls_of_a_history_are_no_calls_of_the_run() -> None:
    """Trajectories and mocks see only what follows it."""
    banned = {"forbidden": ["find"], "max_calls": 0}
    result, requests = run_after_history(
        turns=["Why?"], trajectory=banned, tools={"find": {}}, expect={"says": "Here"}
    )
    assert requests[0]["messages"] == COMPLETIONS
    [found] = result.scenarios[0].conversations
    assert found.conversation.tool_calls == ()
    assert found.trajectory is not None
    assert found.trajectory.matched


def test_users_and_judges_know_the_history() -> None:
    """The user's model has it as its own talk, the judges as context that is not judged."""
    model = ScriptedModel(user=["Why?", STOP])
    result, _ = run_after_history(model, criteria=["Is polite"])
    user = next(each for each in model.requests if each.key.role == "user")
    assert [(each["role"], each["content"]) for each in user.messages[2:]] == [
        ("assistant", ASKED),
        ("user", ANSWERED),
    ]
    assert f"what you have written in this chat: {ASKED}" in str(user.messages[0]["content"])
    judged = [str(each.messages) for each in model.requests if each.key.role == "judge"]
    assert judged
    for text in judged:
        assert "It is context and not to be judged" in text
        assert text.index("earlier_assistant") < text.index("The conversation:")
    assert result.scenarios[0].verdict.passed


def test_reports_show_the_history() -> None:
    """The results have it, with calls and their results as texts, and are read back; so has the console."""
    result, _ = run_after_history(turns=["Why?"], expect={"says": "Here"})
    [found] = result.scenarios[0].conversations
    data = conversation_json(found, None, {})
    assert data["history"] == [
        {"role": "user", "text": ASKED},
        {"role": "tool call", "text": 'find({"id": 17}) → {"at": null}'},
        {"role": "assistant", "text": ANSWERED},
    ]
    read = CODECS.read(type(found), json.loads(json.dumps(data)))
    assert read.conversation.history == found.conversation.history
    lines = [each.plain for each in transcript_lines(found, DisplayOptions(), 0)]
    assert lines[1:5] == [
        "before the first turn",
        f"  user   {ASKED}",
        '  tool   find({"id": 17}) → {"at": null}',
        f"  agent  {ANSWERED}",
    ]


# Files, headers and fields


def test_files_of_the_first_message(tmp_path: Path) -> None:
    """A simulated user's first message has them. Paths are relative to the scenario file."""
    (tmp_path / "note.txt").write_text("hello")
    (tmp_path / "s.sim.yaml").write_text(
        "scenarios:\n- {name: s, goal: g, knowledge: [k], attachments: [note.txt, {url: 'http://a/b.png'}]}\n"
    )
    found = discover_file(tmp_path / "s.sim.yaml", Imports())
    with ScriptedAgent(["Hello."]) as agent:
        run_scenarios(found.scenarios, agent=agent, conversations_per_scenario=1)
        first, second = (body["messages"][-1]["content"] for body in agent.requests)
        assert [part["type"] for part in first] == ["text", "file", "image_url"]
        assert first[1]["file"] == {"filename": "note.txt", "file_data": "data:text/plain;base64,aGVsbG8="}
        assert second == "k"
        with pytest.raises(ConfigError, match=r"`attachments` of scenario 's' \(.*type: http\), which is"):
            run_scenarios(found.scenarios, agent={**ENDPOINT, "endpoint": agent.endpoint})
        assert len(agent.requests) == 2


def test_headers_and_fields_of_one_scenario() -> None:
    """They replace those of the agent for this scenario alone, and are hidden like the agent's own."""
    own = scenario(
        "own",
        turns=["Hi."],
        headers={"x-tenant": "acme", "Authorization": "Bearer sk-live-12345678"},
        body={"order": 17, "who": "{{scenario}}", "messages": ["{{messages}}"]},
    )
    agent = {
        **ENDPOINT,
        "headers": {"X-Tenant": "none", "X-Kept": "1"},
        "body": {"kept": 1, "order": "{{message}}"},
    }

    async def go() -> list[Any]:
        async with wire(as_json({"reply": "sk-live-12345678"})) as opened:
            given = {**agent, "endpoint": f"http://127.0.0.1:{opened.port}/"}
            run = await arun_scenarios([own, scenario("plain", turns=["Hi."])], agent=given, concurrency=1)
            [result, _] = run.scenarios
            assert result.conversations[0].conversation.turns[0].agent_message == "[redacted]"
            return opened.requests

    one, two = anyio.run(go)
    assert (one.headers["x-tenant"], one.headers["x-kept"], two.headers["x-tenant"]) == ("acme", "1", "none")
    assert one.body == {
        "kept": 1,
        "order": 17,
        "who": "own",
        "messages": [[{"role": "user", "content": "Hi."}]],
    }
    assert two.body == {"kept": 1, "order": "Hi."}


@pytest.mark.parametrize(
    ("agent", "options", "said"),
    [
        ({}, {"headers": {"X A": "1"}}, "headers: 'X A' is not a valid header name"),
        (
            {},
            {"headers": {"Content-Length": "3"}},
            "'Content-Length' follows from the body",
        ),
        ({"type": "ai_sdk"}, {"body": {"messages": []}}, "body: `messages` is written by Agentest"),
        ({"type": "http", "body": {"x": "{{message}}"}}, {"body": {"x": "{{foo}}"}}, "placeholder {{foo}}"),
        (
            {"type": "http", "body": ["{{message}}"]},
            {"body": {"x": 1}},
            "body: agent 'agent' (type: http) has no",
        ),
    ],
)
def test_wrong_headers_and_fields(agent: Any, options: Any, said: str) -> None:
    """The scenario is errored, with its file and line, and the others run."""
    with ScriptedAgent(["Hello."]) as opened:
        given = {"endpoint": opened.endpoint, **agent}
        [result] = run_scenarios([scenario("s", turns=["Hi."], **options)], agent=given).scenarios
    assert result.verdict.status is Status.ERRORED
    assert said in result.verdict.reasons[0].message
    assert f"{Path(__file__).name}:{result.line}: scenario 's': " in result.verdict.reasons[0].message
