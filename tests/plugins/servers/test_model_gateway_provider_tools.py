"""Tools that the model's provider runs itself: their calls are recorded, and no mock can answer them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from scripted_provider import FORM_OF, ROOTS
from test_model_gateway import BOTH_WAYS, Talk, anyio_backend, gateway
from test_model_gateway_faults import Faulty, request_of

__all__ = ["anyio_backend"]
from agentest import call
from agentest.domain.tool_visibility import Approval, SeenBy
from agentest.domain.transcript import ARGUMENTS_UNKNOWN, ToolCall, ToolOutcome
from agentest.mocks.binding import bind
from agentest.plugins.servers.model_gateway.wire_form import sse
from agentest.scenarios.trajectory_parser import parse_trajectory
from agentest.trajectory.matcher import TrajectoryMatcher

pytestmark = pytest.mark.anyio
Json = dict[str, Any]
TEXT = {
    "responses": {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Done."}],
    },
    "anthropic": {"type": "text", "text": "Done."},
    "gemini": {"text": "Done."},
    "chat": {"content": "Done."},
}


def whole(form: str, parts: Sequence[Json], about: Json, number: int) -> Json:
    """Return an answer with parts: items, blocks, parts of a content, or deltas of a message.

    Args:
        about: what stands beside the parts, such as Gemini's `groundingMetadata`.
    """
    if form == "responses":
        return {
            "id": f"resp_{number}",
            "object": "response",
            "status": "completed",
            "output": [*parts],
        } | about
    if form == "anthropic":
        usage = {"input_tokens": 1, "output_tokens": 1}
        head = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": "m"}
        return {**head, "content": [*parts], "stop_reason": "end_turn", "usage": usage, **about}
    if form == "gemini":
        return {
            "candidates": [{"content": {"role": "model", "parts": [*parts]}, "finishReason": "STOP", **about}]
        }
    message = {"role": "assistant"}
    for part in parts:
        message |= part
    return {"id": f"c{number}", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}


def events(form: str, answer: Json, about: Json) -> list[Json | str]:
    """Return an answer as the events of a stream."""
    if form == "responses":
        begun = {**answer, "status": "in_progress", "output": []}
        made: list[Json | str] = [{"type": "response.created", "response": begun}]
        for at, item in enumerate(answer["output"]):
            place = {"output_index": at}
            made.append(
                {"type": "response.output_item.added", **place, "item": {**item, "status": "in_progress"}}
            )
            made.append({"type": f"response.{item['type']}.in_progress", **place, "item_id": item.get("id")})
            made.append({"type": "response.output_item.done", **place, "item": item})
        return [*made, {"type": "response.completed", "response": answer}]
    if form == "anthropic":
        made = [{"type": "message_start", "message": {**answer, "content": []}}]
        for at, block in enumerate(answer["content"]):
            begun, given = block, json.dumps(block.get("input", {}))
            deltas = [given[:3], given[3:]] if "input" in block else []
            if "input" in block:
                begun = {**block, "input": {}}
            made.append({"type": "content_block_start", "index": at, "content_block": begun})
            for piece in deltas:
                delta = {"type": "input_json_delta", "partial_json": piece}
                made.append({"type": "content_block_delta", "index": at, "delta": delta})
            made.append({"type": "content_block_stop", "index": at})
        end = {"stop_reason": answer["stop_reason"]}
        return [*made, {"type": "message_delta", "delta": end, "usage": {}}, {"type": "message_stop"}]
    if form == "gemini":
        parts = answer["candidates"][0]["content"]["parts"]
        made = [{"candidates": [{"content": {"role": "model", "parts": [part]}}]} for part in parts]
        if about:  # some come before the last chunk
            made[0]["candidates"][0] |= about  # type: ignore[index]
        made[-1]["candidates"][0]["finishReason"] = "STOP"  # type: ignore[index]
        return made
    message = answer["choices"][0]["message"]
    head = {"id": answer["id"], "object": "chat.completion.chunk"}
    deltas = [{key: value} for key, value in message.items()]
    made = [{**head, "choices": [{"index": 0, "delta": each, "finish_reason": None}]} for each in deltas]
    end = {"index": 0, "delta": {}, "finish_reason": "stop"}
    return [*made, {**head, "choices": [end]}, "[DONE]"]


class Answers(Faulty):
    """A provider that gives answers one after the other, and the last one for ever."""

    def __init__(self, form: str, answers: Sequence[Sequence[Json]], about: Json | None = None) -> None:
        self.bodies: list[Json] = []

        async def answer(request: web.Request, number: int) -> web.StreamResponse:
            body = await request.json()
            self.bodies.append(body)
            parts = answers[min(number, len(answers)) - 1]
            made = whole(form, parts, about or {}, number)
            if not (body.get("stream") or "stream" in request.path):
                return web.json_response(made)
            shown = [sse(each) for each in events(form, made, about or {})]
            return web.Response(body=b"".join(shown), headers={"Content-Type": "text/event-stream"})

        super().__init__(answer)


@asynccontextmanager
async def talking(
    form: str,
    answers: Sequence[Sequence[Json]],
    *,
    about: Json | None = None,
    mocks: Mapping[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[tuple[Talk, Answers]]:
    provider = Answers(form, answers, about)
    bound = {name: bind(lambda value=mock, **_: value) for name, mock in (mocks or {}).items()}
    async with gateway(provider=provider, **settings) as gate, gate.talk(form, "a", mocks=bound) as talk:
        yield talk, provider


async def ask(
    talk: Talk, form: str, *, stream: bool, more: Json | None = None, text: str = "look one"
) -> Any:
    """Send a request in a turn of its own. Returns the response."""
    talk.turn += 1
    talk.serving.begin_turn(talk.turn)
    path, body = request_of(form, stream=stream, text=text)
    with talk.known.said(text):
        path = path.removeprefix(f"/{ROOTS[form]}")
        return await talk.agent.client.post(talk.agent.base + path, json={**body, **(more or {})})


def facts(calls: Sequence[ToolCall]) -> list[tuple[Any, ...]]:
    return [(call.name, call.args, call.result, call.error) for call in calls]


SEARCHED = [{"type": "web_search_result", "url": "https://a.example", "title": "A"}]
LOGS = {"stdout": "3\n", "stderr": "", "return_code": 0}
HIT = {"type": "url_citation", "url_citation": {"url": "https://a.example", "title": "A"}}
ROWS: dict[str, tuple[str, list[Json], Json, list[tuple[Any, ...]]]] = {
    # openai 3.57, types/responses
    "web_search_call": (
        "responses",
        [
            {
                "type": "web_search_call",
                "id": "ws_1",
                "status": "completed",
                "action": {"type": "search", "query": "x"},
            }
        ],
        {},
        [("web_search", {"type": "search", "query": "x"}, None, None)],
    ),
    "web_search_call without its action": (
        "responses",
        [{"type": "web_search_call", "id": "ws_1", "status": "completed"}],
        {},
        [("web_search", None, None, None)],
    ),
    "file_search_call": (
        "responses",
        [
            {
                "type": "file_search_call",
                "id": "fs_1",
                "status": "completed",
                "queries": ["x"],
                "results": [{"text": "y"}],
            }
        ],
        {},
        [("file_search", {"queries": ["x"]}, [{"text": "y"}], None)],
    ),
    "code_interpreter_call": (
        "responses",
        [
            {
                "type": "code_interpreter_call",
                "id": "ci_1",
                "code": "1+2",
                "container_id": "c",
                "outputs": [{"logs": "3"}],
            }
        ],
        {},
        [("code_interpreter", {"code": "1+2", "container_id": "c"}, [{"logs": "3"}], None)],
    ),
    "image_generation_call": (
        "responses",
        [
            {
                "type": "image_generation_call",
                "id": "ig_1",
                "status": "completed",
                "result": "aGk=",
                "size": "1x1",
            }
        ],
        {},
        [("image_generation", {"size": "1x1"}, "(4 characters of base64)", None)],
    ),
    "mcp_call": (
        "responses",
        [
            {
                "type": "mcp_call",
                "id": "m",
                "name": "ship",
                "server_label": "s",
                "arguments": '{"to": "Oslo"}',
                "output": '{"ok": 1}',
            }
        ],
        {},
        [("ship", {"to": "Oslo"}, {"ok": 1}, None)],
    ),
    "mcp_call that fails, without an id": (
        "responses",
        [
            {
                "type": "mcp_call",
                "name": "ship",
                "server_label": "s",
                "arguments": "{}",
                "error": {"type": "mcp_tool_execution_error"},
            }
        ],
        {},
        [("ship", {}, None, '{"type": "mcp_tool_execution_error"}')],
    ),
    "mcp_call without a name": (
        "responses",
        [{"type": "mcp_call", "id": "m", "arguments": "{}"}],
        {},
        [("mcp", {}, None, None)],
    ),
    "a type that is not known yet": (
        "responses",
        [{"type": "teleport_call", "id": "t", "target": "Oslo"}],
        {},
        [("teleport", {"target": "Oslo"}, None, None)],
    ),
    "shell_call in a container of the provider": (
        "responses",
        [
            {
                "type": "shell_call",
                "id": "sh",
                "call_id": "call_1",
                "action": {"commands": ["ls"]},
                "status": "completed",
            },
            {"type": "shell_call_output", "id": "sho", "call_id": "call_1", "output": [{"stdout": "a"}]},
        ],
        {},
        [("shell", {"commands": ["ls"]}, [{"stdout": "a"}], None)],
    ),
    "ten at once": (
        "responses",
        [{"type": "web_search_call", "id": "same", "action": {"query": "x"}}] * 10,
        {},
        [("web_search", {"query": "x"}, None, None)] * 10,
    ),
    # anthropic 2.14, types/beta
    "server_tool_use": (
        "anthropic",
        [
            {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "x"}},
            {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": SEARCHED},
        ],
        {},
        [("web_search", {"query": "x"}, SEARCHED, None)],
    ),
    "server_tool_use of two kinds, one of which fails": (
        "anthropic",
        [
            {"type": "server_tool_use", "id": "srv_1", "name": "web_fetch", "input": {"url": "u"}},
            {
                "type": "server_tool_use",
                "id": "srv_2",
                "name": "bash_code_execution",
                "input": {"command": "ls"},
            },
            {
                "type": "web_fetch_tool_result",
                "tool_use_id": "srv_1",
                "content": {"type": "web_fetch_tool_result_error", "error_code": "unavailable"},
            },
            {"type": "bash_code_execution_tool_result", "tool_use_id": "srv_2", "content": LOGS},
        ],
        {},
        [
            (
                "web_fetch",
                {"url": "u"},
                {"type": "web_fetch_tool_result_error", "error_code": "unavailable"},
                '{"type": "web_fetch_tool_result_error", "error_code": "unavailable"}',
            ),
            ("bash_code_execution", {"command": "ls"}, LOGS, None),
        ],
    ),
    "mcp_tool_use": (
        "anthropic",
        [
            {
                "type": "mcp_tool_use",
                "id": "mcp_1",
                "name": "ship",
                "server_name": "s",
                "input": {"to": "Oslo"},
            },
            {
                "type": "mcp_tool_result",
                "tool_use_id": "mcp_1",
                "is_error": True,
                "content": [{"type": "text", "text": "No."}],
            },
        ],
        {},
        [("ship", {"to": "Oslo"}, "No.", '[{"type": "text", "text": "No."}]')],
    ),
    # google-genai 3.6, types.py
    "executableCode": (
        "gemini",
        [
            {"executableCode": {"language": "PYTHON", "code": "1+2"}},
            {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "3\n"}},
            {"executableCode": {"language": "PYTHON", "code": "1/0"}},
            {"codeExecutionResult": {"outcome": "OUTCOME_FAILED", "output": "E"}},
        ],
        {},
        [
            (
                "code_execution",
                {"language": "PYTHON", "code": "1+2"},
                {"outcome": "OUTCOME_OK", "output": "3\n"},
                None,
            ),
            (
                "code_execution",
                {"language": "PYTHON", "code": "1/0"},
                {"outcome": "OUTCOME_FAILED", "output": "E"},
                "OUTCOME_FAILED",
            ),
        ],
    ),
    "toolCall, whose search is shown again as grounding": (
        "gemini",
        [
            {"toolCall": {"id": "t1", "toolType": "GOOGLE_SEARCH_WEB", "args": {"queries": ["x"]}}},
            {"toolResponse": {"id": "t1", "toolType": "GOOGLE_SEARCH_WEB", "response": {"found": 1}}},
        ],
        {"groundingMetadata": {"webSearchQueries": ["x"], "groundingChunks": [{"web": {"uri": "u"}}]}},
        [("google_search", {"queries": ["x"]}, {"found": 1}, None)],
    ),
    "grounding": (
        "gemini",
        [],
        {
            "groundingMetadata": {
                "webSearchQueries": ["x"],
                "groundingChunks": [{"web": {"uri": "u"}}, {"maps": {"uri": "m"}}],
            },
            "urlContextMetadata": {"urlMetadata": [{"retrievedUrl": "r"}]},
        },
        [
            ("google_search", {"queries": ["x"]}, [{"web": {"uri": "u"}}], None),
            ("google_maps", None, [{"maps": {"uri": "m"}}], None),
            ("url_context", None, [{"retrievedUrl": "r"}], None),
        ],
    ),
    "grounding that needed no search": ("gemini", [], {"groundingMetadata": {}}, []),
    # groq 1.7, types/chat
    "executed_tools": (
        "chat",
        [
            {
                "executed_tools": [
                    {"index": 0, "type": "search", "arguments": '{"query": "x"}'},
                    {"index": 0, "type": "search", "arguments": '{"query": "x"}', "output": "A"},
                    {"index": 1, "type": "python", "arguments": '{"code": "1"}', "output": "1"},
                ],
                "annotations": [HIT],
            }
        ],
        {},
        [
            ("web_search", {"query": "x"}, "A", None),
            ("code_interpreter", {"code": "1"}, "1", None),
        ],
    ),
    # openai 3.57, types/chat
    "annotations": (
        "chat",
        [{"annotations": [HIT, {"type": "file", "file": {"name": "a.pdf"}}]}],
        {},
        [("web_search", None, [HIT], None)],
    ),
}


@pytest.mark.parametrize("row", ROWS)
@BOTH_WAYS
async def test_calls_of_the_provider_are_recorded(row: str, stream: bool) -> None:
    form, parts, about, expected = ROWS[row]
    async with talking(form, [[*parts, TEXT[form]]], about=about) as (talk, _):
        response = await ask(talk, form, stream=stream)
        await talk.known.end_turn()

    assert response.status_code == 200
    assert "Done." in response.text
    assert facts(talk.calls) == expected
    assert {(call.mocked, call.seen_by, call.by_real_tool) for call in talk.calls} <= {
        (False, SeenBy.MODEL, True)
    }
    assert await talk.known.error_of(None) is None


@pytest.mark.parametrize("row", ["annotations", "web_search_call without its action"])
async def test_arguments_that_an_answer_does_not_show_are_unknown(row: str) -> None:
    form, parts, *_ = ROWS[row]
    async with talking(form, [[*parts, TEXT[form]]]) as (talk, _):
        await ask(talk, form, stream=False)
    assert [call.invalid_arguments for call in talk.calls] == [ARGUMENTS_UNKNOWN]
    assert [call.outcome for call in talk.calls] == [ToolOutcome.ANSWERED]


@pytest.mark.parametrize("row", ["web_search_call", "server_tool_use", "executableCode", "annotations"])
@BOTH_WAYS
async def test_a_mock_that_the_provider_bypasses_ends_the_conversation(row: str, stream: bool) -> None:
    form, parts, about, [(name, *_), *_] = ROWS[row]
    async with talking(form, [[*parts, TEXT[form]]], about=about, mocks={name: 1}) as (talk, _):
        response = await ask(talk, form, stream=stream)
        error = await talk.known.error_of(None)

    why = f"the model's provider ran '{name}' itself, which a mock cannot answer"
    assert why in response.text
    assert error
    assert why in str(error)
    assert [(call.name, call.mocked) for call in talk.calls][:1] == [(name, False)]


@BOTH_WAYS
async def test_the_same_call_in_two_turns_is_two_calls(stream: bool) -> None:
    form, parts, *_ = ROWS["web_search_call"]
    async with talking(form, [[*parts, TEXT[form]]]) as (talk, _):
        for _ in range(2):
            await ask(talk, form, stream=stream)
            await talk.known.end_turn()
    assert [call.turn_index for call in talk.calls] == [0, 1]


@BOTH_WAYS
async def test_a_result_that_comes_with_a_later_answer_is_no_second_call(stream: bool) -> None:
    """Anthropic's `pause_turn`, and code that calls tools of the client."""
    use, result = ROWS["server_tool_use"][1]
    async with talking("anthropic", [[use], [result, TEXT["anthropic"]]]) as (talk, _):
        for _ in range(2):
            response = await ask(talk, "anthropic", stream=stream)
            assert response.status_code == 200
        await talk.known.end_turn()
    assert [(call.turn_index, *facts([call])[0]) for call in talk.calls] == [
        (0, "web_search", {"query": "x"}, SEARCHED, None)
    ]


@BOTH_WAYS
async def test_a_search_inside_the_agents_own_function_of_that_name_is_one_call(stream: bool) -> None:
    """The function asks a search model. Outside of it the provider's tool is a call of its own."""
    own = {
        "type": "function_call",
        "id": "i",
        "call_id": "c",
        "name": "web_search",
        "arguments": '{"q": "x"}',
    }
    done = {"type": "function_call_output", "call_id": "c", "output": "found"}
    said = {"role": "user", "content": "look one"}
    offered = {"tools": [{"type": "function", "name": "web_search", "parameters": {}}]}
    answers = [[own], [SEARCH, TEXT["responses"]], [SEARCH, TEXT["responses"]]]
    async with talking("responses", answers) as (talk, _):
        for more in (offered, {"tools": [{"type": "web_search"}]}, {**offered, "input": [said, own, done]}):
            response = await ask(talk, "responses", stream=stream, more=more)
            assert response.status_code == 200
    assert [(call.args, call.result) for call in talk.calls] == [
        ({"q": "x"}, "found"),
        (SEARCH["action"], None),
    ]


ASKS = {
    "type": "mcp_approval_request",
    "id": "mcpr_1",
    "name": "ship",
    "server_label": "s",
    "arguments": "{}",
}
SHIPPED = {
    "type": "mcp_call",
    "id": "m",
    "name": "ship",
    "arguments": "{}",
    "output": "ok",
    "approval_request_id": "mcpr_1",
}


@pytest.mark.parametrize("approve", [True, False])
@BOTH_WAYS
async def test_a_call_that_waits_for_approval_has_not_run(approve: bool, stream: bool) -> None:
    answers = [[ASKS], [*([SHIPPED] if approve else []), TEXT["responses"]]]
    async with talking("responses", answers, mocks={"find": 1}) as (talk, _):
        await ask(talk, "responses", stream=stream)
        await talk.known.end_turn()
        assert [(call.name, call.approval) for call in talk.calls] == [("ship", Approval.PENDING)]
        said = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": approve}
        await ask(
            talk,
            "responses",
            stream=stream,
            more={"input": [{"role": "user", "content": "ok"}, ASKS, said]},
            text="ok",
        )
        assert await talk.known.error_of(None) is None
    [call] = talk.calls
    assert (call.name, call.turn_index) == ("ship", 1)
    assert call.approval is (Approval.GRANTED if approve else Approval.DENIED)
    assert call.outcome is (ToolOutcome.ANSWERED if approve else ToolOutcome.DENIED)
    assert call.result == ("ok" if approve else None)


CLIENT_CALLS = {
    "shell": {
        "type": "shell_call",
        "id": "i",
        "call_id": "c",
        "action": {"commands": ["ls"]},
        "status": "completed",
    },
    "local_shell": {"type": "local_shell_call", "id": "i", "call_id": "c", "action": {"command": ["ls"]}},
    "apply_patch": {
        "type": "apply_patch_call",
        "id": "i",
        "call_id": "c",
        "operation": {"path": "a", "type": "delete_file"},
    },
    "computer": {"type": "computer_call", "id": "i", "call_id": "c", "actions": [{"type": "wait"}]},
}
SEARCH = ROWS["web_search_call"][1][0]


@pytest.mark.parametrize("tool", CLIENT_CALLS)
@BOTH_WAYS
async def test_tools_that_the_client_runs_are_mocked_like_functions(tool: str, stream: bool) -> None:
    """A call of the provider in a hidden round counts once, and is shown to the agent."""
    call = CLIENT_CALLS[tool]
    async with talking("responses", [[SEARCH, call], [TEXT["responses"]]], mocks={tool: {"done": 1}}) as (
        talk,
        provider,
    ):
        response = await ask(talk, "responses", stream=stream)
    assert response.status_code == 200
    assert call["type"] not in response.text
    assert "web_search_call" in response.text or not stream
    assert [(each.name, each.mocked) for each in talk.calls] == [("web_search", False), (tool, True)]
    given = provider.bodies[1]["input"][-1]
    assert (given["type"], given["call_id"]) == (f"{call['type']}_output", "c")
    assert json.loads(json.dumps(given["output"]).strip('"').replace("\\", "")) == {"done": 1}


@pytest.mark.parametrize("tool", CLIENT_CALLS)
@BOTH_WAYS
async def test_a_tool_that_the_client_runs_does_not_run_without_a_mock(tool: str, stream: bool) -> None:
    answers = [[CLIENT_CALLS[tool]]]
    async with talking("responses", answers, allows_real=False) as (talk, _):
        response = await ask(talk, "responses", stream=stream)
    assert "has no mock" in response.text
    assert CLIENT_CALLS[tool]["type"] not in response.text


@BOTH_WAYS
async def test_the_result_of_a_tool_that_the_client_runs_is_recorded(stream: bool) -> None:
    call = CLIENT_CALLS["shell"]
    async with talking("responses", [[call], [TEXT["responses"]]]) as (talk, _):
        response = await ask(talk, "responses", stream=stream)
        assert "shell_call" in response.text
        output = {"type": "shell_call_output", "call_id": "c", "output": [{"stdout": "a", "stderr": ""}]}
        history = [{"role": "user", "content": "look one"}, call, output]
        await ask(talk, "responses", stream=stream, more={"input": history})
    assert facts(talk.calls) == [("shell", {"commands": ["ls"]}, [{"stdout": "a", "stderr": ""}], None)]


OFFERS: dict[str, tuple[str, Json, list[str]]] = {
    "responses": (
        "responses",
        {
            "tools": [
                {"type": "web_search_preview_2025_03_11"},
                {"type": "web_search_2025_08_26"},
                {"type": "computer_use_preview"},
                {"type": "code_interpreter"},
                {"type": "mcp", "server_label": "s"},
                {"type": "function", "name": "find", "parameters": {}},
            ]
        },
        ["web_search", "computer", "code_interpreter", "mcp", "find"],
    ),
    "anthropic": (
        "anthropic",
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}, {"type": "mcp_toolset"}]},
        ["web_search", "mcp_toolset"],
    ),
    "gemini": (
        "gemini",
        {"tools": [{"googleSearch": {}}, {"code_execution": {}, "functionDeclarations": [{"name": "find"}]}]},
        ["find", "google_search", "code_execution"],
    ),
    "chat": (
        "chat",
        {"tools": [{"type": "openrouter:web_search"}, {"type": "function", "function": {"name": "find"}}]},
        ["web_search", "find"],
    ),
}


@pytest.mark.parametrize("case", OFFERS)
def test_tools_of_the_provider_are_offered_under_the_names_of_their_calls(case: str) -> None:
    form, body, names = OFFERS[case]
    from agentest.plugins.servers.model_gateway.server import target_of

    made = FORM_OF[form]()
    wire = target_of(f"/{ROOTS[form]}{made.path}", "", {}).form
    assert wire
    assert [*wire.request({**made.request([made.user("x")], stream=False), **body}, made.path).tools] == names


async def test_a_turn_whose_agent_offers_only_tools_of_the_provider_is_seen() -> None:
    async with talking("responses", [[TEXT["responses"]]]) as (talk, _):
        await ask(talk, "responses", stream=False, more={"tools": [{"type": "web_search"}]})
        assert (await talk.known.end_turn()).missing is None


@pytest.mark.parametrize("form", ["chat", "gemini"])
async def test_a_ban_of_arguments_that_nobody_shows_is_undecided(form: str) -> None:
    """Citations show that the provider searched, but not for what."""
    pages = {"urlContextMetadata": {"urlMetadata": [{"retrievedUrl": "https://example.com"}]}}
    parts, about, name = {
        "chat": ([{"annotations": [HIT]}], {}, "web_search"),
        "gemini": ([], pages, "url_context"),
    }[form]
    async with talking(form, [[*parts, TEXT[form]]], about=about) as (talk, _):
        await ask(talk, form, stream=False)
    ban = parse_trajectory({"forbidden": [call(name, query="x")]})
    assert TrajectoryMatcher(ban).match(list(talk.calls)).error
