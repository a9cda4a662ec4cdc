"""LangChain's messages as a LangGraph server writes them: texts, tool calls and their results, tokens."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentest.agents.http_sender import EventStream
from agentest.agents.json_reader import cut_stream, read_json, read_result, read_text, shown
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import Remark, ToolCall, Usage
from agentest.support.errors import AgentError

Wire = Mapping[str, Any]

AI, TOOL, HUMAN = "ai", "tool", "human"
_KINDS = {
    "ai": AI,
    "AIMessage": AI,
    "AIMessageChunk": AI,
    "assistant": AI,
    "tool": TOOL,
    "ToolMessage": TOOL,
    "human": HUMAN,
    "HumanMessage": HUMAN,
    "user": HUMAN,
}
_TEXTS = ("text", "output_text", "refusal")
_PROVIDERS_CALLS = ("server_tool_call", "server_tool_use")
"""Blocks that tell of a call which the model's provider has made, like a search of the web."""
_NOT_SAID = (
    "thinking",
    "redacted_thinking",
    "reasoning",
    "reasoning_content",
    "tool_use",
    "tool_call",
    "tool_call_chunk",
    "invalid_tool_call",
    "function_call",
    "input_json_delta",
    "server_tool_call_chunk",
    "server_tool_result",
    "web_search_tool_result",
    "image",
    "image_url",
    "audio",
    "video",
    "file",
    "non_standard",
    *_PROVIDERS_CALLS,
)
OnUnknown = Callable[[str, object], None]
"""Receives what is ignored, in a word, and its type."""


def is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and kind_of(value) is not None


def kind_of(message: Wire) -> str | None:
    """AI, TOOL or HUMAN; None for every other message, and for what is none."""
    kind = message.get("type", message.get("role"))
    return _KINDS.get(kind) if isinstance(kind, str) else None


def text_of(message: Wire, on_unknown: OnUnknown = lambda *_: None) -> str:
    """What a message says. Raises AgentError for a `content` that is none."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise AgentError(
            f"the `content` of a message of the graph is neither text nor a list of blocks: {shown(content)}"
        )
    return "".join(_block(block, on_unknown) for block in content)


def _block(block: Any, on_unknown: OnUnknown) -> str:
    if isinstance(block, str):
        return block
    kind = block.get("type") if isinstance(block, Mapping) else type(block).__name__
    if kind in _TEXTS:
        text = block.get("text", block.get("refusal"))
        if isinstance(text, str):
            return text
    elif kind not in _NOT_SAID:
        on_unknown("content block", kind)
    return ""


def calls_of(messages: Sequence[Wire], turn_index: int, waiting: Mapping[str, ToolCall]) -> list[ToolCall]:
    """The calls in messages, in order, with their results as far as there are any.

    A call that two messages tell of is one. Some models use ids again: with other arguments it is another.

    Args:
        waiting: calls of earlier turns that had to wait, by id: they belong to this turn.
    """
    results: dict[str, list[Wire]] = {}
    for message in messages:
        if kind_of(message) == TOOL:
            results.setdefault(str(message.get("tool_call_id")), []).append(message)
    calls = [_answered(call, _nth(results, key, 0), turn_index) for key, call in waiting.items()]
    by_id: dict[str, list[ToolCall]] = {}
    for call in calls:
        by_id.setdefault(call.call_id or "", []).append(call)
    asking = [requests for each in messages if kind_of(each) == AI and (requests := list(_requests(each)))]
    for round, requests in enumerate(asking):
        for request in requests:
            same_id = by_id.setdefault(request["id"], []) if request["id"] else []
            if not any((call.name, call.args) == (request["name"], request["args"]) for call in same_id):
                answer = _nth(results, request["id"], len(same_id))
                calls.append(_call(request, answer, turn_index, round))
                same_id.append(calls[-1])
    told = {call.call_id for call in calls}
    late = [_orphan(answers[0], turn_index) for key, answers in results.items() if key not in told]
    return [*late, *calls]


def _nth(results: Mapping[str, Sequence[Wire]], call_id: str | None, number: int) -> Wire | None:
    """The result for the call that is the `number`-th of its id."""
    answers = results.get(call_id or "", ())
    return answers[min(number, len(answers) - 1)] if answers else None


def _requests(message: Wire) -> Iterable[Wire]:
    """The calls of one message: `{id, name, args, error, output}`."""
    for call in _list(message, "tool_calls"):
        yield {"id": _id(call), "name": _name(call), "args": _args(call), "error": None}
    for call in _list(message, "invalid_tool_calls"):
        error = call.get("error") or "the arguments are not valid JSON"
        yield {"id": _id(call), "name": _name(call), "args": call.get("args"), "error": str(error)}
    content = message.get("content")
    for block in content if isinstance(content, list) else ():
        if isinstance(block, Mapping) and block.get("type") in _PROVIDERS_CALLS:
            args = block.get("args", block.get("input", {}))
            yield {"id": _id(block), "name": _name(block), "args": args, "error": None}


def _list(message: Wire, key: str) -> list[Wire]:
    found = message.get(key) or []
    if not isinstance(found, list) or not all(isinstance(call, Mapping) for call in found):
        raise AgentError(f"`{key}` of a message of the graph is not a list of objects: {shown(found)}")
    return found


def _id(call: Wire) -> str | None:
    identifier = call.get("id")
    return identifier if isinstance(identifier, str) and identifier else None


def _args(call: Wire) -> Any:
    """The arguments of a call, also of one in OpenAI's form, as a node may return it."""
    function = call.get("function")
    if "args" in call or not isinstance(function, Mapping):
        return call.get("args", {})
    given = function.get("arguments") or "{}"
    return read_result(given)


def _name(call: Wire) -> str:
    function = call.get("function")
    name = call.get("name") or (function.get("name") if isinstance(function, Mapping) else None)
    if not isinstance(name, str) or not name:
        raise AgentError(f"a tool call of the graph has no name: {shown(call)}")
    return name


def _call(call: Wire, answer: Wire | None, turn_index: int, round: int) -> ToolCall:
    result, error = _result(answer)
    return ToolCall(
        name=call["name"],
        args=call["args"],
        result=result,
        mocked=False,
        turn_index=turn_index,
        invalid_arguments=call["error"],
        error=error,
        seen_by=SeenBy.AGENT,
        call_id=call["id"],
        round=round,
    )


def _answered(call: ToolCall, answer: Wire | None, turn_index: int) -> ToolCall:
    result, error = _result(answer)
    return replace(call, turn_index=turn_index, result=result, error=error)


def _orphan(answer: Wire, turn_index: int) -> ToolCall:
    """A call of which only the result has come."""
    result, error = _result(answer)
    name = answer.get("name")
    return ToolCall(
        name=name if isinstance(name, str) and name else "(unnamed tool)",
        args=None,
        result=result,
        mocked=False,
        turn_index=turn_index,
        invalid_arguments="the graph's messages tell its result alone",
        error=error,
        seen_by=SeenBy.AGENT,
        call_id=answer.get("tool_call_id"),
    )


def _result(answer: Wire | None) -> tuple[Any, str | None]:
    """What a tool has answered, and the error that it reports."""
    if answer is None:
        return None, None
    text = text_of(answer)
    return read_result(text), text if answer.get("status") == "error" else None


def usage_of(messages: Iterable[Wire]) -> Usage:
    """The tokens that messages report, added up."""
    return sum((_usage(m.get("usage_metadata")) for m in messages), Usage())


def _usage(reported: Any) -> Usage:
    if not isinstance(reported, Mapping):
        return Usage()
    details = reported.get("input_token_details")
    cached = details.get("cache_read") if isinstance(details, Mapping) else 0
    return Usage(
        _tokens(reported.get("input_tokens")), _tokens(reported.get("output_tokens")), _tokens(cached)
    )


def _tokens(count: Any) -> int:
    return count if isinstance(count, int) and not isinstance(count, bool) and count > 0 else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """The user's message as it was sent."""

    id: str
    text: str


def after_user(messages: Sequence[Wire], sent: Sent | None) -> Sequence[Wire]:
    """What follows the user's message; everything where that is not there (any more).

    Not every graph keeps the ids of messages: the last of a user with this text will do.
    """
    users = [index for index, message in enumerate(messages) if kind_of(message) == HUMAN]
    for index in reversed(users) if sent else ():
        if messages[index].get("id") == sent.id:  # type: ignore[union-attr]
            return messages[index + 1 :]
    if sent and users and text_of(messages[users[-1]]).strip() == sent.text.strip():
        return messages[users[-1] + 1 :]
    return messages


def new_in_state(messages: Sequence[Wire], known: Container[str], sent: Sent | None) -> list[Wire]:
    """What a graph's state holds of this turn: what follows the user's message, and is not older.

    Messages without ids cannot be told from older ones where the user's is missing: those after the last
    message of any user are taken then.
    """
    later = after_user(messages, sent)
    if len(later) == len(messages) and not all(m.get("id") for m in messages):
        last = max((i for i, m in enumerate(messages) if kind_of(m) == HUMAN), default=-1)
        later = messages[last + 1 :]
    old = known if len(later) == len(messages) else ()
    return [m for m in later if _is_said(m) and m.get("id") not in old]


def new_on_the_way(told: Iterable[Wire], known: Container[str]) -> list[Wire]:
    """What nodes have added in this turn, each message once, in its latest form."""
    named: dict[str, Wire] = {}
    for number, message in enumerate(told):
        if _is_said(message) and message.get("id") not in known:
            named[message.get("id") or f"#{number}"] = message
    return [*named.values()]


def merged(told: Sequence[Wire], state: Sequence[Wire]) -> list[Wire]:
    """Messages of both in order. What was told without an id has one in the state: the calls alone count."""
    if not told:
        return [*state]
    ids = {m.get("id") for m in told}
    return [*told, *(m for m in state if not m.get("id") or m["id"] not in ids)]


def distinct(messages: Sequence[Wire]) -> Sequence[Wire]:
    """Each message once: those with ids, where there are any, as the others come again with one."""
    return [m for m in messages if m.get("id")] or messages


def _is_said(message: Wire) -> bool:
    return kind_of(message) in (AI, TOOL)


def reply_of(messages: Sequence[Wire], on_unknown: OnUnknown) -> tuple[str | None, Wire | None]:
    """The reply in a turn's messages, and the message that it is.

    The text of the last message; else of the last that calls no tool; else what a tool has answered that
    ends the turn by itself (`return_direct`).
    """
    spoken = [m for m in messages if kind_of(m) == AI and text_of(m, on_unknown).strip()]
    if spoken and spoken[-1] is messages[-1]:
        return text_of(spoken[-1]), spoken[-1]
    final = [m for m in spoken if not m.get("tool_calls")]
    if final:
        return text_of(final[-1]), final[-1]
    if messages and kind_of(messages[-1]) == TOOL:
        return text_of(messages[-1]) or None, messages[-1]
    return None, None


def remarks_of(messages: Sequence[Wire], reply: str | None, agent: str) -> tuple[Remark, ...]:
    """What was said on the way to the reply."""
    spoken = [m for m in messages if kind_of(m) == AI and text_of(m).strip()]
    said = [Remark(_author(m, agent), text_of(m)) for m in spoken]
    last = max((i for i, remark in enumerate(said) if remark.text == reply), default=len(said))
    return (*said[:last], *said[last + 1 :])


def _author(message: Wire, agent: str) -> str:
    name: Any = message.get("name")
    return name if isinstance(name, str) and name else agent


PLACE = "is this the address of a LangGraph server, like http://localhost:2024?"
MESSAGES = "messages"
_INTERRUPT, _ERROR = "__interrupt__", "__error__"
_SKIPPED = ("metadata", "custom", "debug", "tasks", "checkpoints", "feedback", "heartbeat")
_TOKENS = ("messages", "messages/partial", "messages/complete", "messages/metadata")


@dataclass(slots=True)
class RunTold:
    """What a run has told so far."""

    values: Any = None
    """The graph's state; None: not told."""
    messages: list[Wire] = field(default_factory=list)
    """What nodes have added, in order: also what later ones removed, and that of the graphs inside."""
    interrupts: list[Wire] = field(default_factory=list)
    stopped: bool = False
    """Whether the graph said that it was interrupted, be it without a question."""
    problem: str | None = None
    """Why the run has failed, in the graph's words."""
    ended: bool = True
    """Whether the run is known to have come to its end."""

    def take_state(self, values: Any) -> None:
        """Take the state of the graph."""
        if isinstance(values, Mapping):
            self._take_interrupts(values)
            values = {key: value for key, value in values.items() if key != _INTERRUPT}
        self.values = values

    def take_update(self, update: Any) -> None:
        """Take what nodes have changed: `{node: change or changes}`."""
        if not isinstance(update, Mapping):
            return
        self._take_interrupts(update)
        for change in update.values():
            for one in change if isinstance(change, list) else [change]:
                if isinstance(one, Mapping):
                    self._take_messages(one.get(MESSAGES))

    def _take_messages(self, messages: Any) -> None:
        found = messages if isinstance(messages, list) else [messages]
        self.messages += [message for message in found if is_message(message)]

    def _take_interrupts(self, told: Mapping[str, Any]) -> None:
        self.stopped = self.stopped or _INTERRUPT in told
        interrupts = told.get(_INTERRUPT)
        for interrupt in interrupts if isinstance(interrupts, list) else ():
            if isinstance(interrupt, Mapping) and interrupt not in self.interrupts:
                self.interrupts.append(interrupt)


def state_messages(values: Any) -> list[Wire] | None:
    """The messages in a state; None where it has no list of them."""
    found = values.get(MESSAGES) if isinstance(values, Mapping) else None
    return [m for m in found if is_message(m)] if isinstance(found, list) else None


def read_answer(body: bytes) -> RunTold:
    """What an answer of `/runs/wait` tells: the state alone. Raises AgentError."""
    data = read_json(body, PLACE)
    told = RunTold()
    if isinstance(data, Mapping) and _ERROR in data:
        told.problem = _failure(data[_ERROR])
    else:
        told.take_state(data)
    return told


def _failure(error: Any) -> str:
    if not isinstance(error, Mapping):
        return f"the graph failed: {shown(error)}"
    words = [str(error[key]) for key in ("error", "message") if error.get(key)]
    return f"the graph failed: {': '.join(words) or shown(error)}"


class StreamReader:
    """Reads `/runs/stream`: what each node changed, and texts as they are written."""

    def __init__(self, on_unknown: OnUnknown) -> None:
        self._on_unknown = on_unknown

    async def read(self, events: EventStream, on_run: Callable[[str], object]) -> RunTold:
        """What the run tells. It closes at its end; older servers say `end` first. Raises AgentError.

        `on_run` receives the id of the run, where the stream has it.
        """
        told, begun = RunTold(ended=False), False
        async for event in events:
            kind, _, _ = event.name.partition("|")
            data = read_text(event.data) if event.data.strip() else None
            begun = True
            if kind == "metadata" and isinstance(data, Mapping) and isinstance(data.get("run_id"), str):
                on_run(data["run_id"])
            if kind == "error":
                told.problem = _failure(data)
            if kind in ("error", "end"):
                told.ended = True
                break
            if self._take(told, kind, "|" in event.name, data):
                events.note_first_token()
        if not begun:
            raise cut_stream("any event")
        return told

    def _take(self, told: RunTold, kind: str, inside: bool, data: Any) -> bool:
        """Take one event; whether it has a piece of text."""
        if kind == "updates":
            told.take_update(data)
        elif kind == "values" and not inside:
            told.take_state(data)
        elif kind in _TOKENS:
            return _has_text(data)
        elif kind not in (*_SKIPPED, "values"):
            self._on_unknown("event", kind)
        return False


def _has_text(data: Any) -> bool:
    items = data if isinstance(data, list) else [data]
    return any(isinstance(m, Mapping) and kind_of(m) == AI and text_of(m).strip() for m in items)
