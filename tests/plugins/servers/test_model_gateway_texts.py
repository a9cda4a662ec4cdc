"""Calls that a model writes where only some agents look for them: in thoughts, in text, under odd keys."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from aiohttp import web
from test_model_gateway import BOTH_WAYS, anyio_backend
from test_model_gateway_faults import asked, sent
from test_model_gateway_provider_tools import TEXT, ask, events, talking, whole

__all__ = ["anyio_backend"]
from agentest.plugins.servers.model_gateway.exchange import written_in
from agentest.plugins.servers.model_gateway.wire_form import sse
from agentest.support.errors import MockError

pytestmark = pytest.mark.anyio
Json = dict[str, Any]
AS_TEXT = '<tool_call>\n{"name": "find", "arguments": {"q": "1"}}\n</tool_call>'
PLAN = "The user wants a table, so I could call find, and then send the answer."


def thoughts(text: str) -> dict[str, tuple[str, list[Json]]]:
    """Return where APIs have what a model thinks, by the name of the place."""
    half = len(text) // 2
    pieces = [{"type": "reasoning.text", "text": each} for each in (text[:half], text[half:])]
    return {
        "reasoning_content": ("chat", [{"reasoning_content": text}, TEXT["chat"]]),
        "reasoning": ("chat", [{"reasoning": text, "content": None}]),
        "reasoning_details": ("chat", [{"reasoning_details": pieces}, TEXT["chat"]]),
        "summary": (
            "responses",
            [
                {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": text}]},
                TEXT["responses"],
            ],
        ),
        "reasoning item": (
            "responses",
            [
                {"type": "reasoning", "id": "rs", "content": [{"type": "reasoning_text", "text": text}]},
                TEXT["responses"],
            ],
        ),
        "thinking": (
            "anthropic",
            [{"type": "thinking", "thinking": text, "signature": "s"}, TEXT["anthropic"]],
        ),
        "thought": ("gemini", [{"text": text, "thought": True}, TEXT["gemini"]]),
        "thought in pieces": (
            "gemini",
            [{"text": each, "thought": True} for each in (text[:half], text[half:])] + [TEXT["gemini"]],
        ),
    }


async def outcome(form: str, parts: list[Json], *, stream: bool, about: Json | None = None) -> Any:
    """Return what the agent received, and the error of the turn."""

    async def answer(request: web.Request, number: int) -> web.StreamResponse:
        made = whole(form, parts, {}, number) | (about or {})
        if stream:
            return await sent(request, [sse(each) for each in events(form, made, {})])
        return web.json_response(made)

    async with asked(form, answer, stream=stream, mocks={"find": lambda: 1}) as (response, gate):
        (known,) = gate.traffic.active
        fault = await known.error_of(None)
        try:
            await known.end_turn()
        except MockError as error:
            fault = fault or error
    return response, fault


@pytest.mark.parametrize("place", thoughts(""))
@BOTH_WAYS
async def test_a_call_of_a_mocked_tool_among_thoughts_may_have_run_the_real_one(
    place: str, stream: bool
) -> None:
    form, parts = thoughts(AS_TEXT)[place]
    _, fault = await outcome(form, parts, stream=stream)
    assert "the model wrote a call of 'find' as text" in str(fault)

    form, parts = thoughts(PLAN)[place]
    response, fault = await outcome(form, parts, stream=stream)
    assert (response.status_code, fault) == (200, None)


MARKS = {
    "<tool_call>find\n<arg_key>q</arg_key>": True,
    '[TOOL_CALLS]find{"q": "1"}': True,
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>find\n": True,
    '<|tool_call_begin|>functions.find:0<|tool_call_argument_begin|>{"q": "1"}': True,
    '<|channel|>commentary to=functions.find <|message|>{"q": "1"}': True,
    '```tool_code\nfind(q="1")\n```': True,
    "<tool_call>find_all": False,
    "A tool call: find. I want to find it.": False,
}
"""Calls as the templates of several models write them."""


@pytest.mark.parametrize("text", MARKS)
@BOTH_WAYS
async def test_the_marks_of_a_models_template_show_a_call(text: str, stream: bool) -> None:
    _, fault = await outcome("chat", [{"reasoning_content": text}, TEXT["chat"]], stream=stream)
    assert ("the model wrote a call of 'find' as text" in str(fault)) is MARKS[text]


WAYS = [
    (json.dumps, "utf-8", "find"),
    (lambda value: json.dumps(value).replace("f", r"\u0066"), "utf-8", "find"),
    (lambda value: json.dumps(value).replace("/", r"\/"), "utf-8", "shop/find"),
    (json.dumps, "utf-16", "find"),
    (json.dumps, "utf-8", "größe"),
    (partial(json.dumps, ensure_ascii=False), "utf-8", "größe"),
]
"""How an answer with a call of a tool may be written."""


@pytest.mark.parametrize(("write", "encoding", "name"), WAYS)
def test_a_call_is_seen_in_whatever_way_the_answer_is_written(
    write: Callable[[Any], str], encoding: str, name: str
) -> None:
    text = json.dumps({"name": name, "arguments": {}}, ensure_ascii=False)
    answer = {"content": f"<tool_call>{text}"}
    data = write(answer).encode(encoding)
    assert json.loads(data) == answer
    assert written_in(answer, {"send", name}, data) == name
    assert written_in(answer, {"send"}, data) is None


async def test_a_tool_that_is_only_banned_may_have_run_if_the_model_wrote_its_call() -> None:
    """What the call could change is not judged; mocks of other tools are not in doubt."""
    async with talking("chat", [[{"content": AS_TEXT}]], mocks={"send": 1}) as (talk, _):
        talk.known.named = {"find"}
        await ask(talk, "chat", stream=False)
        assert "wrote a call of 'find' as text" in str((await talk.known.end_turn()).missing)


CALL = {"name": "find", "arguments": {"q": "one"}}
SCHEMA = {"properties": {"q": {"type": "string"}}, "type": "object"}
UNDER_KEYS: dict[str, tuple[Json, bool]] = {
    "actions": ({"actions": [CALL]}, True),
    "steps": ({"steps": [{"id": 1, "tool": "find", "tool_input": {"q": "one"}}]}, True),
    "arguments first": ({"actions": [{"arguments": {"q": "one"}, "name": "find"}]}, True),
    "with an id": ({"actions": [{"name": "find", "id": "c", "arguments": '{"q": "one"}'}]}, True),
    "another tool": ({"actions": [{"name": "send", "arguments": {}}]}, False),
    "a list of tools": ({"tools": [{"name": "find", "parameters": SCHEMA}], "more": 1}, False),
    "a list with schemas": ({"available": [{"name": "find", "input_schema": {"type": "object"}}]}, False),
    "a list of names": ({"available": ["find", "send"]}, False),
    "an author": ({"author": {"name": "find", "role": "assistant"}}, False),
}


@pytest.mark.parametrize("case", UNDER_KEYS)
@pytest.mark.parametrize("place", ["message", "text", "body"])
@BOTH_WAYS
async def test_an_object_with_a_mocked_tool_and_arguments_is_a_call(
    case: str, place: str, stream: bool
) -> None:
    """At no place of an API, or as JSON in a reply. A reply that lists tools is none."""
    given, is_call = UNDER_KEYS[case]
    part = {"message": given, "text": {"content": json.dumps(given)}, "body": {}}[place]
    if place == "body" and stream:
        pytest.skip("a chunk has no further keys")
    about = given if place == "body" else None
    response, fault = await outcome("chat", [TEXT["chat"], part], stream=stream, about=about)

    assert response.status_code == 200
    assert ("the model wrote a call of 'find' as text" in str(fault)) is is_call
    assert is_call or fault is None
