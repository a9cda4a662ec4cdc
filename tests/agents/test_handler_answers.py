"""Handler results: text, mappings and client library objects are accepted, all else is refused."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from agentest.agents.port import AgentReply
from agentest.agents.python_agent import read_answer
from agentest.config.agents.in_process import check_handler
from agentest.domain.messages import ToolRequest
from agentest.domain.transcript import Usage
from agentest.support.errors import AgentError

FIND = ToolRequest("c1", "find", '{"q": 1}')
CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"q": 1}'}}
USAGE = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
INPUT_OUTPUT = {"input_tokens": 3, "output_tokens": 4}


class Object(BaseModel, extra="allow"):
    """A stand-in for objects of openai and litellm, which are pydantic models."""


class AIMessage(BaseModel):
    """A stand-in for LangChain's message."""

    content: Any
    additional_kwargs: dict[str, Any] = {}
    type: str = "ai"
    name: str | None = None
    id: str | None = "run-1"
    tool_calls: list[dict[str, Any]] = []
    invalid_tool_calls: list[dict[str, Any]] = []
    usage_metadata: dict[str, int] | None = None


def langchain_call(name: str = "find", args: Any = None) -> dict[str, Any]:
    return {"name": name, "args": {"q": 1} if args is None else args, "id": "c1", "type": "tool_call"}


def attributes(value: Any) -> Any:
    """Turn a JSON value into plain objects with attributes; arguments of calls stay unchanged."""
    if isinstance(value, list):
        return [attributes(item) for item in value]
    if not isinstance(value, dict):
        return value
    return SimpleNamespace(
        **{key: item if key == "input" else attributes(item) for key, item in value.items()}
    )


MESSAGES = [
    ({"role": "assistant", "content": "Hi"}, AgentReply("Hi")),
    ({"role": "assistant", "content": None, "tool_calls": [CALL]}, AgentReply(None, (FIND,))),
    ({"content": "Look.", "refusal": None, "tool_calls": [CALL, CALL]}, AgentReply("Look.", (FIND, FIND))),
    ({"content": [{"type": "text", "text": "Hi"}], "tool_calls": None}, AgentReply("Hi")),
    ({"content": None, "refusal": "No."}, AgentReply("No.")),
]


@pytest.mark.parametrize("form", [dict, lambda m: Object(**m), attributes])
@pytest.mark.parametrize(("message", "reply"), MESSAGES)
def test_messages_and_completions(message: dict[str, Any], reply: AgentReply, form: Any) -> None:
    """A message, or a completion with usage, may be a mapping, a pydantic model or an object."""
    assert read_answer(form(message)) == reply
    completion = {"id": "x", "choices": [{"index": 0, "message": message}], "usage": USAGE}
    assert read_answer(form(completion)) == AgentReply(reply.text, reply.tool_requests, Usage(3, 4))


@pytest.mark.parametrize(
    ("message", "reply"),
    [
        (AIMessage(content="Hi"), AgentReply("Hi")),
        (
            AIMessage(content="", tool_calls=[langchain_call()], usage_metadata=INPUT_OUTPUT),
            AgentReply("", (FIND,), Usage(3, 4)),
        ),
        (
            AIMessage(
                content=[
                    {"type": "thinking", "thinking": "Hm."},
                    {"type": "text", "text": "Look."},
                    {"type": "tool_use", "id": "c1", "name": "find", "input": {"q": 1}},
                ],
                tool_calls=[langchain_call()],
            ),
            AgentReply("Look.", (FIND,)),
        ),
        (
            AIMessage(content="", invalid_tool_calls=[langchain_call(args='{"q')]),
            AgentReply("", (ToolRequest("c1", "find", '{"q'),)),
        ),
        (AIMessage(content=["Hel", {"type": "text", "text": "lo"}]), AgentReply("Hello")),
    ],
)
def test_messages_of_langchain(message: AIMessage, reply: AgentReply) -> None:
    """LangChain messages keep their calls, even with invalid arguments, and their usage."""
    assert read_answer(message) == reply
    assert read_answer(message.model_dump()) == reply


def test_messages_of_anthropic() -> None:
    """Tool calls inside the content are read."""
    called = {"type": "tool_use", "id": "c1", "name": "find", "input": {"q": 1}}
    parts = [{"type": "text", "text": "Look."}, called]
    message = {"role": "assistant", "content": parts, "usage": INPUT_OUTPUT}
    for form in (dict, attributes):
        assert read_answer(form(message)) == AgentReply("Look.", (FIND,), Usage(3, 4))


class Reply(BaseModel):
    text: str = "Hi"


async def unfinished() -> str:
    return "Hi"


LINE = unfinished.__code__.co_firstlineno


class Broken:
    def model_dump(self, **_: Any) -> Any:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (None, "the handler returned None; it may return a text, or a chat-completions message"),
        (5, "returned a value of type int; it may return"),
        ([{"content": "Hi"}], "returned a value of type list; it may"),
        (object(), "returned a value of type object; it may"),
        (BaseModel, "returned a value of type ModelMetaclass; it may"),
        (Reply(), "returned a value of type Reply with 'text'; it may"),
        (
            unfinished(),
            f"the coroutine of unfinished ({__file__}:{LINE}), which did not run: write `return await",
        ),
        ({"answer": "Hi"}, "returned a value of type dict with 'answer'; it may"),
        ({}, "returned a value of type dict with no keys; it may"),
        ({"choices": [{}]}, "returned a value of type dict with 'choices'; it may"),
        (Broken(), "returned a value of type Broken that cannot be read: RuntimeError: no"),
        ({"tool_calls": [{"id": "c1"}]}, "a tool call of the agent has no function name"),
        ({"tool_calls": [langchain_call(args={1, 2})]}, "the arguments of a tool call are not JSON"),
    ],
)
def test_invalid_results(answer: Any, problem: str) -> None:
    """The error has the value and lists what a handler may return."""
    with pytest.raises(AgentError) as caught:
        read_answer(answer() if answer is unfinished else answer)
    assert problem in str(caught.value)


KEYS = st.sampled_from(
    ["choices", "message", "content", "tool_calls", "invalid_tool_calls", "refusal", "usage"]
) | st.sampled_from(
    ["usage_metadata", "id", "name", "args", "function", "arguments", "type", "text", "input"]
)
SCALARS = st.none() | st.booleans() | st.integers() | st.sampled_from(["", "text", "tool_use", "\ud800"])
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(JSON, st.booleans())
def test_any_answer(answer: Any, as_object: bool) -> None:
    """Any value that a handler returns is a reply or an AgentError."""
    with suppress(AgentError):
        reply = read_answer(attributes(answer) if as_object else answer)
        assert reply.text is None or isinstance(reply.text, str)
        assert all(isinstance(r.arguments, str) and r.name for r in reply.tool_requests)


class Called:
    def __call__(self, messages: Any, ctx: Any) -> str:
        return "Hi"


@pytest.mark.parametrize(
    "handler",
    [lambda messages, ctx: "", lambda *all: "", lambda m, c, extra=1: "", lambda: "", Called(), print],
)
def test_a_handler_takes_messages_and_context(handler: Any) -> None:
    """One without parameters makes an agent object."""
    check_handler(handler)


@pytest.mark.parametrize(
    "handler", [lambda messages: "", lambda m, c, extra: "", lambda m, *, ctx: "", lambda **all: ""]
)
def test_a_handler_with_another_signature_is_refused_with_its_place(handler: Any) -> None:
    with pytest.raises(ValueError, match=r"^test_handler_answers.py:\d+: .*called with \(messages, ctx\): "):
        check_handler(handler)
