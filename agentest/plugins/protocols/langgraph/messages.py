"""LangChain's messages in the form of a LangGraph server, and the results of runs that contain them.

The module reads texts, tool calls with their results, and token counts. It also decides which messages
belong to a turn and which of them is the reply.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from agentest.agents import json_reader as reader
from agentest.agents.http_sender import EventStream
from agentest.domain.transcript import Remark, ToolCall, Usage
from agentest.plugins.protocols.protocol_client import agent_call
from agentest.support.errors import AgentError
from agentest.support.lazy_dataclasses import dataclass

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
_TEXT_BLOCKS = ("text", "output_text", "refusal")
_PROVIDER_CALLS = ("server_tool_call", "server_tool_use")
"""Types of blocks for calls that the model's provider made, such as a web search."""
_BLOCKS_WITHOUT_TEXT = re.compile(
    r"(thinking|reasoning(_content)?|tool_use|(tool|function)_call(_chunk)?|_result)$"
    r"|^(input_json_delta|image(_url)?|audio|video|file|non_standard)$"
)
OnUnknown = Callable[[str, object], None]  # called for each ignored value with its category and its type
PLACE = "is this the address of a LangGraph server, like http://localhost:2024?"
MESSAGES = "messages"
_INTERRUPT, _ERROR = "__interrupt__", "__error__"
_IGNORED_EVENTS = ("metadata", "custom", "debug", "tasks", "checkpoints", "feedback", "heartbeat")
_TOKEN_EVENTS = ("messages", "messages/partial", "messages/complete", "messages/metadata")


def is_message(value: Any) -> bool:
    """Return whether a value is a message of a known kind."""
    return isinstance(value, Mapping) and kind_of(value) is not None


def kind_of(message: Wire) -> str | None:
    """Return AI, TOOL or HUMAN; None for all other messages and values."""
    kind = message.get("type", message.get("role"))  # a node may return messages in OpenAI's form
    return _KINDS.get(kind) if isinstance(kind, str) else None


def text_of(message: Wire, on_unknown: OnUnknown = lambda *_: None) -> str:
    """Return a message's text. Raises AgentError if `content` is neither a text nor a list."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise AgentError(
            "the `content` of a message of the graph is neither text nor a list of blocks: "
            f"{reader.excerpt(content)}"
        )
    return "".join(_block_text(block, on_unknown) for block in content)


def _block_text(block: Any, on_unknown: OnUnknown) -> str:
    if isinstance(block, str):
        return block
    kind = block.get("type") if isinstance(block, Mapping) else type(block).__name__
    if kind in _TEXT_BLOCKS:
        text = block.get("text", block.get("refusal"))
        if isinstance(text, str):
            return text
    elif not _BLOCKS_WITHOUT_TEXT.search(str(kind)):
        on_unknown("content block", kind)
    return ""


def calls_of(messages: Sequence[Wire], turn_index: int, waiting: Mapping[str, ToolCall]) -> list[ToolCall]:
    """Return the calls in messages, in order, with their results if there are any.

    A call that two messages report is one call. With other arguments it is another call, because some models
    reuse ids. Calls in `waiting` are of earlier turns and waited for a decision, so they belong to this turn.
    """
    results: dict[str, list[Wire]] = {}
    for message in messages:
        if kind_of(message) == TOOL:
            results.setdefault(str(message.get("tool_call_id")), []).append(message)
    calls = []
    for key, call in waiting.items():
        result, error = _result(_nth_result(results, key, 0))
        calls.append(replace(call, turn_index=turn_index, result=result, error=error))
    by_id: dict[str, list[ToolCall]] = {}
    for call in calls:
        by_id.setdefault(call.call_id or "", []).append(call)
    rounds = [requests for each in messages if kind_of(each) == AI and (requests := list(_requests(each)))]
    for round, requests in enumerate(rounds):
        for request in requests:
            same_id = by_id.setdefault(request["id"], []) if request["id"] else []
            if not any((call.name, call.args) == (request["name"], request["args"]) for call in same_id):
                result, error = _result(_nth_result(results, request["id"], len(same_id)))
                call = agent_call(
                    name=request["name"],
                    args=request["args"],
                    turn_index=turn_index,
                    result=result,
                    invalid_arguments=request["error"],
                    error=error,
                    call_id=request["id"],
                    round=round,
                )
                calls.append(call)
                same_id.append(call)
    known = {call.call_id for call in calls}
    without_call = [
        _call_from_result(answers[0], turn_index) for key, answers in results.items() if key not in known
    ]
    return [*without_call, *calls]


def _nth_result(results: Mapping[str, Sequence[Wire]], call_id: str | None, number: int) -> Wire | None:
    answers = results.get(call_id or "", ())
    return answers[min(number, len(answers) - 1)] if answers else None


def _requests(message: Wire) -> Iterator[Wire]:
    for call in _list(message, "tool_calls"):
        yield _request(call, _args(call))
    for call in _list(message, "invalid_tool_calls"):  # where LangChain puts arguments that do not parse
        yield _request(call, call.get("args"), str(call.get("error") or "the arguments are not valid JSON"))
    for block in reader.objects_at(
        message, "content"
    ):  # tools that the provider runs are in no list of calls
        if block.get("type") in _PROVIDER_CALLS:
            yield _request(block, block.get("args", block.get("input", {})))


def _request(call: Wire, args: Any, error: str | None = None) -> Wire:
    name = call.get("name") or reader.mapping_at(call, "function").get("name")
    if not isinstance(name, str) or not name:
        raise AgentError(f"a tool call of the graph has no name: {reader.excerpt(call)}")
    return {"id": reader.text_at(call, "id") or None, "name": name, "args": args, "error": error}


def _list(message: Wire, key: str) -> Sequence[Wire]:
    value = message.get(key) or []
    if not reader.is_list_of_objects(value):
        raise AgentError(
            f"`{key}` of a message of the graph is not a list of objects: {reader.excerpt(value)}"
        )
    return value


def _args(call: Wire) -> Any:
    function = call.get("function")
    if "args" in call or not isinstance(function, Mapping):
        return call.get("args", {})
    return reader.read_result(function.get("arguments") or "{}")


def _call_from_result(answer: Wire, turn_index: int) -> ToolCall:
    result, error = _result(answer)
    return agent_call(
        name=reader.text_at(answer, "name") or "(unnamed tool)",
        args=None,
        turn_index=turn_index,
        result=result,
        invalid_arguments="the graph's messages contain only its result",
        error=error,
        call_id=answer.get("tool_call_id"),
    )


def _result(answer: Wire | None) -> tuple[Any, str | None]:
    if answer is None:
        return None, None
    text = text_of(answer)
    return reader.read_result(text), text if answer.get("status") == "error" else None


def usage_of(messages: Iterable[Wire]) -> Usage:
    """Return the sum of the tokens that messages report."""
    reported = (reader.reported_usage(message.get("usage_metadata")) for message in messages)
    return sum(filter(None, reported), Usage())


@dataclass(frozen=True, slots=True, kw_only=True)
class SentMessage:
    """The user's message as it was sent."""

    id: str
    text: str


def after_user(messages: Sequence[Wire], sent: SentMessage | None) -> Sequence[Wire]:
    """Return the messages after the user's message; all of them if it is missing.

    Not every graph preserves message ids, so the last user message with the same text also counts.
    """
    users = [index for index, message in enumerate(messages) if kind_of(message) == HUMAN]
    for index in reversed(users) if sent else ():
        if messages[index].get("id") == sent.id:  # type: ignore[union-attr]
            return messages[index + 1 :]
    if sent and users and text_of(messages[users[-1]]).strip() == sent.text.strip():
        return messages[users[-1] + 1 :]
    return messages


def new_in_state(messages: Sequence[Wire], known: Container[str], sent: SentMessage | None) -> list[Wire]:
    """Return the messages of this turn in a graph's state: those after the user's message.

    If the user's message is missing, known messages are left out. If some messages have no ids, the turn
    starts after the last message of any user.
    """
    later = after_user(messages, sent)
    if len(later) == len(messages) and not all(m.get("id") for m in messages):
        last = max((i for i, m in enumerate(messages) if kind_of(m) == HUMAN), default=-1)
        later = messages[last + 1 :]
    old = known if len(later) == len(messages) else ()
    return [m for m in later if _is_of_agent(m) and m.get("id") not in old]


def new_in_updates(updates: Iterable[Wire], known: Container[str]) -> list[Wire]:
    """Return the messages that nodes have added in this turn, each once and in its latest form."""
    named: dict[str, Wire] = {}
    for number, message in enumerate(updates):
        if _is_of_agent(message) and message.get("id") not in known:
            named[message.get("id") or f"#{number}"] = message
    return [*named.values()]


def merged(updates: Sequence[Wire], state: Sequence[Wire]) -> list[Wire]:
    """Merge streamed messages with those of the state, in order and without duplicate ids.

    Messages without ids may appear twice: the state's copy has an id.
    """
    if not updates:
        return [*state]
    ids = {m.get("id") for m in updates}
    return [*updates, *(m for m in state if not m.get("id") or m["id"] not in ids)]


def distinct(messages: Sequence[Wire]) -> Sequence[Wire]:
    """Return each message once: those with ids if there are any, because the others repeat them."""
    return [m for m in messages if m.get("id")] or messages


def _is_of_agent(message: Wire) -> bool:
    return kind_of(message) in (AI, TOOL)


def reply_of(messages: Sequence[Wire], on_unknown: OnUnknown) -> str | None:
    """Return the reply in a turn's messages.

    The reply is the text of the last message. If that has none, it is the last text without tool calls,
    or the result of a tool that ends the turn (`return_direct`).
    """
    spoken = [m for m in messages if kind_of(m) == AI and text_of(m, on_unknown).strip()]
    if spoken and spoken[-1] is messages[-1]:
        return text_of(spoken[-1])
    final = [m for m in spoken if not m.get("tool_calls")]
    if final:
        return text_of(final[-1])
    return text_of(messages[-1]) or None if messages and kind_of(messages[-1]) == TOOL else None


def remarks_of(messages: Sequence[Wire], reply: str | None, agent: str) -> tuple[Remark, ...]:
    """Return the texts that are not the reply."""
    spoken = [m for m in messages if kind_of(m) == AI and text_of(m).strip()]
    remarks = [Remark(reader.text_at(m, "name") or agent, text_of(m)) for m in spoken]
    last = max((i for i, remark in enumerate(remarks) if remark.text == reply), default=len(remarks))
    return (*remarks[:last], *remarks[last + 1 :])


@dataclass(slots=True)
class GraphRun:
    """The result of a run, as far as events have reported it."""

    values: Any = None  # the graph's state; None if it was not reported
    following: tuple[str, ...] = ()  # the nodes that run next
    state_error: str | None = None  # why the state could not be read, if it was not reported
    messages: list[Wire] = field(default_factory=list)
    """The messages that nodes have added, in order, including removed ones and those of subgraphs."""
    interrupts: list[Wire] = field(default_factory=list)
    stopped: bool = False  # True if the graph reported an interrupt, even one without a question
    problem: str | None = None  # the error that the graph reported
    ended: bool = True  # True if the run is known to have ended

    def take_state(self, values: Any) -> None:
        """Store the state of the graph and its interrupts."""
        if isinstance(values, Mapping):
            self._take_interrupts(values)
            values = {key: value for key, value in values.items() if key != _INTERRUPT}
        self.values = values

    def take_update(self, update: Any) -> None:
        """Add the messages and interrupts of an update, `{node: change or list of changes}`."""
        if not isinstance(update, Mapping):
            return
        self._take_interrupts(update)
        for change in update.values():
            for entry in change if isinstance(change, list) else [change]:
                if isinstance(entry, Mapping):
                    messages: Any = entry.get(MESSAGES)
                    listed = messages if isinstance(messages, list) else [messages]
                    self.messages += [message for message in listed if is_message(message)]

    def _take_interrupts(self, values: Mapping[str, Any]) -> None:
        self.stopped = self.stopped or _INTERRUPT in values
        interrupts = values.get(_INTERRUPT)
        for interrupt in interrupts if isinstance(interrupts, list) else ():
            if isinstance(interrupt, Mapping) and interrupt not in self.interrupts:
                self.interrupts.append(interrupt)


def state_messages(values: Any) -> list[Wire] | None:
    """Return the messages in a state; None if it has no list of messages."""
    state_value = values.get(MESSAGES) if isinstance(values, Mapping) else None
    return [m for m in state_value if is_message(m)] if isinstance(state_value, list) else None


def read_answer(body: bytes) -> GraphRun:
    """Read a response of `/runs/wait`, which contains only the state. Raises AgentError."""
    data = reader.read_json(body, PLACE)
    run = GraphRun()
    if isinstance(data, Mapping) and _ERROR in data:
        run.problem = _failure(data[_ERROR])
    else:
        run.take_state(data)
    return run


def _failure(error: Any) -> str:
    if not isinstance(error, Mapping):
        return f"the graph failed: {reader.excerpt(error)}"
    texts = [str(error[key]) for key in ("error", "message") if error.get(key)]
    return f"the graph failed: {': '.join(texts) or reader.excerpt(error)}"


async def read_stream(
    events: EventStream, on_run: Callable[[str], object], on_unknown: OnUnknown
) -> GraphRun:
    """Read a response of `/runs/stream` up to its end or the event `end` of older servers. Raises AgentError.

    `on_run` receives the run's id if the stream has it.
    """
    run, begun = GraphRun(ended=False), False
    async for event in events:
        kind, inside, _ = event.name.partition("|")
        data = reader.read_text(event.data) if event.data.strip() else None
        begun = True
        if kind == "metadata" and isinstance(data, Mapping) and isinstance(data.get("run_id"), str):
            on_run(data["run_id"])
        elif kind in ("error", "end"):
            run.problem = _failure(data) if kind == "error" else run.problem
            run.ended = True
            break
        elif kind == "updates":
            run.take_update(data)
        elif kind == "values" and not inside:
            run.take_state(data)
        elif kind in _TOKEN_EVENTS:
            items = data if isinstance(data, list) else [data]
            if any(isinstance(m, Mapping) and kind_of(m) == AI and text_of(m).strip() for m in items):
                events.note_first_token()
        elif kind not in (*_IGNORED_EVENTS, "values"):
            on_unknown("event", kind)
    if not begun:
        raise reader.truncated_stream_error("any event")
    return run
