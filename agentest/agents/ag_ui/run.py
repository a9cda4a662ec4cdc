"""One run of an AG-UI agent, put together from its events in whatever order they come."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from agentest.agents.ag_ui.calls import Call, Interrupt, interrupts_of, old_interrupt, told_once
from agentest.agents.ag_ui.thread import State, Thread, Wire, call, calls_of, new_id, told_late
from agentest.agents.json_reader import shown
from agentest.domain.transcript import Usage
from agentest.support.errors import AgentError

_SKIPPED = ("STEP_", "REASONING_", "THINKING_", "ACTIVITY_", "SUBAGENT_", "RAW", "RUN_STARTED")
"""Beginnings of the types of events that say nothing of reply, calls and state."""
TOLD = "the agent reports an error"
"""How the error begins that the agent itself has told."""
_MOST_TOLD = 2000
"""Messages and calls of one run: real agents have tens of them, and more would only hold us up."""
_ON_INTERRUPT = "on_interrupt"
_ROLES = ("assistant", "user", "system", "developer")


class Run:
    """Takes the events of one run, and changes thread and state as they tell."""

    def __init__(
        self,
        thread: Thread,
        state: State,
        waiting: Sequence[Call] = (),
        settled: AbstractSet[str] = frozenset(),
    ) -> None:
        """`waiting`: calls that the agent still has to answer; `settled`: ids of those that are done with."""
        thread.begin_run()
        self.thread = thread
        self.finished = False
        self.spoke = False
        """Whether anything of a reply has come."""
        self.interrupts: list[Interrupt] = []
        self.usage = Usage()
        self.result: Any = None
        self.pending: frozenset[str] = frozenset()
        """Ids of calls of which the agent says that they wait for us; empty: it does not say."""
        self.subagents: dict[str, str] = {}
        self.late: set[str] = set()
        """Ids of calls of earlier runs that only a snapshot of this one tells of."""
        self._settled = settled
        self._calls: list[Call] = list(waiting)
        self._latest: dict[str, Call] = {one.id: one for one in waiting}
        self._listed: list[str] = []
        """Ids of the calls in the last snapshot."""
        self._roles: dict[str, str] = {}
        self._texts: dict[tuple[str, str], list[str]] = {}
        self._dropped: list[Wire] = []
        """Messages that were streamed and that a later snapshot lacks."""
        self._chunk: str | None = None
        self._chunk_call: str | None = None
        self._handlers: Mapping[str, Callable[[Wire], None]] = {
            "TEXT_MESSAGE_START": self._start_text,
            "TEXT_MESSAGE_CONTENT": self._add_text,
            "TEXT_MESSAGE_END": _nothing,
            "TEXT_MESSAGE_CHUNK": self._text_chunk,
            "REASONING_MESSAGE_CONTENT": self._add_reasoning,
            "REASONING_ENCRYPTED_VALUE": self._keep_encrypted,
            "TOOL_CALL_START": self._start_call,
            "TOOL_CALL_ARGS": self._add_arguments,
            "TOOL_CALL_END": self._end_call,
            "TOOL_CALL_CHUNK": self._call_chunk,
            "TOOL_CALL_RESULT": self._add_result,
            "MESSAGES_SNAPSHOT": self._take_snapshot,
            "STATE_SNAPSHOT": lambda event: state.take_snapshot(event.get("snapshot")),
            "STATE_DELTA": lambda event: state.take_delta(event.get("delta")),
            "SUBAGENT_STARTED": self._name_subagent,
            "CUSTOM": self._custom,
            "RUN_FINISHED": self._finish,
            "RUN_ERROR": self._fail,
        }

    def take(self, event: Wire) -> bool:
        """Take one event; whether its type is known. Raises AgentError for what no event may say."""
        kind = str(event.get("type", ""))
        handler = self._handlers.get(kind)
        if handler is not None:
            handler(event)
            self._check_size()
        return handler is not None or kind.startswith(_SKIPPED)

    def _check_size(self) -> None:
        if len(self._calls) + max(len(self._texts), self.thread.told) > _MOST_TOLD:
            raise AgentError(f"the agent's run has more than {_MOST_TOLD:,} messages and tool calls")

    @property
    def begun(self) -> bool:
        """Whether the agent has said or done anything yet."""
        return bool(self._calls or self._texts)

    @property
    def messages(self) -> list[Wire]:
        """What the run has added to the thread; and what was streamed, where a snapshot has no text."""
        self._settle()
        new = self.thread.new
        return new if any(map(_speaks, new)) else [*self._dropped, *new]

    @property
    def calls(self) -> list[Call]:
        """The calls of the run in order. Raises AgentError for one that never had a name."""
        self._settle()
        return told_once(self._calls, self._listed)

    def went_on_after(self, call: Call) -> bool:
        """Whether the agent has said something after a call, without having been answered."""
        if call.id in self.late:
            return True
        told = [m["id"] for m in self.messages if call.id in (one["id"] for one in calls_of(m))]
        after = False
        for message in self.messages:
            if after and _speaks(message):
                return True
            after = after or message["id"] in told
        return False

    @property
    def seen(self) -> list[Call]:
        """The calls that are known by name, of a run that has failed."""
        return [one for one in self._calls if one.name]

    # Texts

    def _start_text(self, event: Wire) -> None:
        role, identifier = event.get("role") or "assistant", _text(event, "messageId")
        if role not in _ROLES:
            raise AgentError(f"a message of the agent has an unknown `role`: {shown(event)}")
        self._roles[identifier] = role
        message = self.thread.message(identifier, role)
        message.update({key: event[key] for key in ("name", "subagentRunId") if event.get(key)})

    def _add_text(self, event: Wire) -> None:
        identifier, delta = _text(event, "messageId"), _text(event, "delta")
        role = self._roles.get(identifier, "assistant")
        self._pieces(identifier, role).append(delta)
        self.spoke = self.spoke or (role == "assistant" and bool(delta))

    def _text_chunk(self, event: Wire) -> None:
        whole = {**event, "messageId": event.get("messageId") or self._chunk}
        if _text(whole, "messageId") != self._chunk:
            self._start_text(whole)
        self._chunk = whole["messageId"]
        if event.get("delta"):
            self._add_text(whole)

    def _add_reasoning(self, event: Wire) -> None:
        self._pieces(_text(event, "messageId"), "reasoning").append(_text(event, "delta"))

    def _keep_encrypted(self, event: Wire) -> None:
        """Keep what a model's provider wants back with a message or a call."""
        for message in self.thread.messages:
            for one in (message, *calls_of(message)):
                if one["id"] == event.get("entityId"):
                    one["encryptedValue"] = event.get("encryptedValue")

    def _pieces(self, identifier: str, role: str) -> list[str]:
        """The pieces of a message's text: joined when they are needed, since there may be very many."""
        key = (identifier, role)
        if key not in self._texts:
            content = self.thread.message(identifier, role).get("content")
            self._texts[key] = [content] if isinstance(content, str) else []
        return self._texts[key]

    def _settle(self) -> None:
        """Write texts and arguments as far as they have come into the thread's messages."""
        for (identifier, role), pieces in self._texts.items():
            self.thread.message(identifier, role)["content"] = "".join(pieces)
        for message in self.thread.new:
            for one in calls_of(message):
                known = self._latest.get(one["id"])
                if known is not None and known.name:
                    one["function"] = {"name": known.name, "arguments": known.arguments or "{}"}

    # Calls

    def _call(self, identifier: str) -> Call:
        return self._latest[identifier] if identifier in self._latest else self._new_call(identifier)

    def _new_call(self, identifier: str) -> Call:
        self._calls.append(Call(identifier))
        self._latest[identifier] = self._calls[-1]
        return self._calls[-1]

    def _start_call(self, event: Wire) -> None:
        identifier, name = _text(event, "toolCallId"), _text(event, "toolCallName")
        begun = self._call(identifier)
        if begun.name and (begun.ended or begun.answered):  # some servers number the calls of each step anew
            begun = self._new_call(identifier)
        begun.begin(name)
        if not any(one["id"] == identifier for message in self.thread.new for one in calls_of(message)):
            message = self.thread.message(event.get("parentMessageId") or identifier, "assistant")
            message["toolCalls"] = [*calls_of(message), call(identifier, name, "")]
            if event.get("subagentRunId"):
                message.setdefault("subagentRunId", event["subagentRunId"])

    def _add_arguments(self, event: Wire) -> None:
        self._call(_text(event, "toolCallId")).pieces.append(_text(event, "delta"))

    def _end_call(self, event: Wire) -> None:
        self._call(_text(event, "toolCallId")).ended = True

    def _call_chunk(self, event: Wire) -> None:
        whole = {**event, "toolCallId": event.get("toolCallId") or self._chunk_call}
        self._chunk_call = _text(whole, "toolCallId")
        if event.get("toolCallName") and event["toolCallName"] != self._call(self._chunk_call).name:
            self._start_call(whole)
        if event.get("delta"):
            self._add_arguments(whole)

    def _add_result(self, event: Wire) -> None:
        identifier, content = _text(event, "toolCallId"), event.get("content")
        if identifier in self._settled and identifier not in self._latest:
            return  # what we have answered, told once more
        answered = self._call(identifier)
        if not answered.answered:
            message = {"id": event.get("messageId") or new_id(), "role": "tool", "toolCallId": identifier}
            self.thread.add({**message, "content": content})
        answered.answer(content)

    # The whole

    def _take_snapshot(self, event: Wire) -> None:
        self._settle()
        known = [one for message in self.thread.messages for one in calls_of(message)]
        before = [message for message in (*self._dropped, *self.thread.new) if _speaks(message)]
        self.thread.replace(event.get("messages"))
        self._texts.clear()
        kept = {message["id"] for message in self.thread.messages}
        self._dropped = [message for message in before if message["id"] not in kept]
        self.spoke = self.spoke or any(map(_speaks, self.thread.new))
        self._listed = []
        late = told_late(known, self.thread.earlier)
        for message in self.thread.earlier:
            self._take_late(message, late)
        for message in self.thread.new:
            self._take_listed(message)

    def _take_late(self, message: Wire, late: AbstractSet[str]) -> None:
        """Note the calls that a snapshot places before this run, and that were told of by nothing before."""
        told = [one for one in calls_of(message) if one["id"] in late or one["id"] in self.late]
        self.late |= {one["id"] for one in told}
        if told or message.get("toolCallId") in self.late:
            self._take_listed({**message, "toolCalls": told})

    def _take_listed(self, message: Wire) -> None:
        """Note what a message of a snapshot tells of calls that are not done with."""
        for one in calls_of(message):
            if one["id"] in self._latest or one["id"] not in self._settled:
                self._listed.append(one["id"])
                self._call(one["id"]).list(one["function"])
        identifier = message.get("toolCallId") if message["role"] == "tool" else None
        if isinstance(identifier, str) and (identifier in self._latest or identifier not in self._settled):
            self._call(identifier).answer(message.get("content"))

    def _name_subagent(self, event: Wire) -> None:
        self.subagents[str(event.get("subagentRunId"))] = str(event.get("name") or "subagent")

    def _custom(self, event: Wire) -> None:
        if event.get("name") == _ON_INTERRUPT:
            self.interrupts.append(old_interrupt(event))

    def _finish(self, event: Wire) -> None:
        self.finished, self.result = True, event.get("result")
        self.usage = _usage(event.get("usage"))
        outcome = event.get("outcome")
        if not isinstance(outcome, Mapping):
            return
        match outcome.get("type"):
            case "cancelled":
                raise AgentError("the agent's run was cancelled (RUN_FINISHED with the outcome `cancelled`)")
            case "interrupt":
                self.interrupts = interrupts_of(outcome)
            case "success":
                listed = outcome.get("pendingToolCallIds")
                self.pending = frozenset(map(str, listed if isinstance(listed, list) else ()))
            case unknown if unknown is not None:
                raise AgentError(
                    "the agent's run ended with an outcome that nobody knows (expected success, interrupt or "
                    f"cancelled): {shown(outcome)}"
                )

    def _fail(self, event: Wire) -> None:
        code = f" ({event['code']})" if event.get("code") else ""
        raise AgentError(f"{TOLD}: {shown(event.get('message') or event)}{code}")


def _nothing(event: Wire) -> None:
    """The end of a message says nothing that its pieces have not said."""


def _text(event: Wire, key: str) -> str:
    """A field of an event that must be a text. Raises AgentError."""
    value = event.get(key)
    if not isinstance(value, str) or (not value and key != "delta"):
        raise AgentError(f"a {event.get('type')} of the agent has no `{key}`: {shown(event)}")
    return value


def _speaks(message: Wire) -> bool:
    return message["role"] == "assistant" and bool(message.get("content"))


def _usage(reported: Any) -> Usage:
    """Tokens of all models of the run; whatever is missing or no number counts as 0."""
    entries = (
        [entry for entry in reported if isinstance(entry, Mapping)] if isinstance(reported, list) else []
    )

    def count(key: str) -> int:
        values = (entry.get(key) for entry in entries)
        return sum(v for v in values if isinstance(v, int) and not isinstance(v, bool) and v > 0)

    return Usage(count("inputTokens"), count("outputTokens"), count("cachedInputTokens"))
