"""The transcript of a conversation: frozen values that the turn loop writes and the evaluation reads."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, fields
from enum import StrEnum
from operator import attrgetter
from typing import Any, NamedTuple

from agentest.domain.changes import InjectedFault
from agentest.domain.end_reason import Ending
from agentest.domain.messages import EarlierMessage, ToolSpec
from agentest.domain.tool_visibility import Approval, SeenBy, ToolOutcome
from agentest.support.json_text import copied, fast_copy, safe_repr
from agentest.support.lazy_dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that the other side reported; all 0 if it reported none."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cached_tokens + other.cached_tokens,
        )


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call of the agent and its answer.

    `args` is the arguments object. If the agent sent something else (invalid JSON, a list), it is that, and
    `invalid_arguments` describes the error. `result` is the answer before JSON encoding.
    """

    name: str
    args: Any
    result: Any
    mocked: bool
    turn_index: int
    invalid_arguments: str | None = None
    error: str | None = None  # message of the exception that the mock raised
    seen_by: SeenBy = SeenBy.CALLER
    """The source of the call: the one that answered it, otherwise the one with the most details."""
    call_id: str | None = field(default=None, compare=False)
    """The call's id in the agent's protocol, which all sources share; None without an id."""
    also_seen_by: tuple[SeenBy, ...] = ()  # the other sources that reported the same call
    duration_ms: float | None = field(default=None, compare=False)
    """The time until the answer; None if that was not observed."""
    round: int | None = field(default=None, compare=False)
    """The index of the agent's message in the turn that requested the call; None if unknown."""
    raised: str | None = None
    """The unintended exception of the mock's own code, with its location: `KeyError at salon.sim.py:12`."""
    approval: Approval | None = field(default=None, compare=False)
    """The decision of the user or the configuration; None if the agent did not request approval."""
    by_real_tool: bool = field(default=False, compare=False)
    """True if the real tool answered: behind a mock server, or in the agent after it consulted us."""
    simulated: bool = field(default=False, compare=False)

    @property
    def outcome(self) -> ToolOutcome:
        """How the call went: the one reading of its answer, error, approval and arguments."""
        if self.approval in _OF_APPROVAL:
            return _OF_APPROVAL[self.approval]
        if self.error == CANCELLED:
            return ToolOutcome.CANCELLED
        if self.error == NO_MOCK and not self.mocked:
            return ToolOutcome.UNMOCKED
        if self.invalid_arguments not in (None, ARGUMENTS_UNKNOWN):
            return ToolOutcome.REFUSED
        if self.failed:
            return ToolOutcome.FAILED
        if self.mocked or self.by_real_tool or self.result is not None or self.seen_by is SeenBy.MODEL:
            return ToolOutcome.ANSWERED
        return ToolOutcome.UNREPORTED if self.seen_by in _REPORTING else ToolOutcome.UNANSWERED

    @property
    def failed(self) -> bool:
        """True if the agent received an error: the tool raised, or its answer is an error."""
        says_so = isinstance(self.result, Mapping) and bool(self.result.get("error"))
        return self.error is not None or self.invalid_arguments not in (None, ARGUMENTS_UNKNOWN) or says_so

    @property
    def ran(self) -> bool:
        """True if a tool may have run. A call that waits for approval or was denied has not run."""
        return self.approval not in (Approval.DENIED, Approval.PENDING)


_REPORTING = frozenset({SeenBy.AGENT, SeenBy.MODEL, SeenBy.SPANS})
WAITS_FOR_APPROVAL = "it waits for the user's approval"
"""The `error` of a call that the user has not approved yet."""
CANCELLED = "cancelled before it answered"  # the `error` of a call that has no answer yet
NO_MOCK = "no mock"  # the `error` of a call to a tool that has no mock
_OF_APPROVAL = {Approval.PENDING: ToolOutcome.WAITING, Approval.DENIED: ToolOutcome.DENIED}
NO_RECORDED_ANSWER = "no recorded answer to a request to the agent's model"
ARGUMENTS_UNKNOWN = "the agent does not report its arguments"
"""The `invalid_arguments` of a call for which the protocol reported only the name and the result."""
get_call_metadata = attrgetter(
    *(each.name for each in fields(ToolCall) if each.name not in ("args", "result"))
)
"""All fields of a call except arguments and result, in order."""


def waiting(call: ToolCall) -> ToolCall:
    """Return the agent's call in the state in which it waits for the user's approval."""
    return replace(call, error=WAITS_FOR_APPROVAL, approval=Approval.PENDING)


def are_arguments_unknown(call: ToolCall) -> bool:
    """True if the arguments of a call are unknown, so that conditions on them cannot be decided."""
    return call.args is None and call.invalid_arguments == ARGUMENTS_UNKNOWN


def is_unreadable(call: ToolCall) -> bool:
    """True if the agent sent something else than an arguments object, so that no tool could run."""
    return not isinstance(call.args, Mapping) and not are_arguments_unknown(call)


def mismatch(call: ToolCall) -> str | None:
    """Describe how a call violates the signature of its mock; None if it fits or has no arguments object."""
    return call.invalid_arguments if isinstance(call.args, Mapping) else None


def call_text(call: ToolCall) -> str:
    """Format a call as `name(key=value)`, or with the raw value that was sent in place of arguments."""
    if are_arguments_unknown(call):
        return f"{call.name}(arguments not told)"
    if not isinstance(call.args, Mapping):
        return f"{call.name}(invalid arguments: {safe_repr(call.args)})"
    return f"{call.name}({', '.join(f'{key}={safe_repr(value)}' for key, value in call.args.items())})"


@dataclass(frozen=True, slots=True)
class Remark:
    """Text that the agent, or one of its sub-agents, sent before its reply."""

    author: str
    text: str
    calls_before: int | None = field(default=None, compare=False)
    """The number of calls that the protocol had reported before the remark; None if unknown."""


CUT_OFF = "…"
"""The key of a stored object that stands for the omitted keys of an oversized object (`truncation`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChange:
    """The changes that one turn made to the state of the agent's session, by key."""

    added: Mapping[str, Any]
    changed: Mapping[str, tuple[Any, Any]]  # before and after
    removed: Mapping[str, Any]

    @classmethod
    def between(cls, before: Mapping[str, Any], after: Mapping[str, Any]) -> StateChange:
        """Compare two states as far as both are complete: an omitted key is not a removed key."""
        both = before.keys() & after.keys() - {CUT_OFF}
        return cls(
            added={} if CUT_OFF in before else _without(before, after),
            # Compared as JSON values: `true` differs from `1`, and the order of keys does not matter.
            changed={
                key: (before[key], after[key])
                for key in after
                if key in both and _form(before[key]) != _form(after[key])
            },
            removed={} if CUT_OFF in after else _without(after, before),
        )


def _without(known: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if key not in known and key != CUT_OFF}


def _form(value: Any) -> str:
    try:
        return json.dumps(value, sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        return safe_repr(value)


@dataclass(frozen=True, slots=True)
class AttachedFile:
    """A file that the user attached, without its contents."""

    mime_type: str
    name: str = ""
    bytes: int | None = None  # None if only the address was sent
    uri: str = ""


def with_mentions(text: str, files: Sequence[AttachedFile]) -> str:
    """Format a user's message for people and judges, with a line for each file after the text."""
    return "\n".join([*([text] if text else []), *map(_mention, files)])


def _mention(file: AttachedFile) -> str:
    size = f"{file.bytes:,} bytes" if file.bytes is not None else file.uri
    return "[attached: " + ", ".join(part for part in (file.name, file.mime_type, size) if part) + "]"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelBriefing:
    """The instructions and tools that an agent gives its model."""

    instructions: str = ""
    tools: tuple[ToolSpec, ...] = ()


NO_TEXT = "(no text; the agent called tools only)"  # shown and judged in place of an empty reply


SECRETS_HIDDEN = "secrets hidden"  # shown for a turn that is stored without its secrets


@dataclass(frozen=True, slots=True)
class PromptMessage:
    """A message in a request to a model, shortened."""

    role: str
    text: str  # its text, or JSON if it has other content


@dataclass(frozen=True, slots=True)
class ModelToolCall:
    """A tool call that a model's answer requests, shortened."""

    name: str
    args: str  # the arguments as JSON
    answered_inside: bool = False
    """True if the gateway answered it by a mock, so that the agent never received it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """One request to the agent's model that passed the model gateway. Texts are shortened and redacted."""

    begin_ms: float = field(compare=False)
    """From the turn's first request to the agent; negative if the model request began before that."""
    latency_ms: float = field(compare=False)  # the time until the model's answer was complete
    model: str | None = None  # the model that answered, or that was requested; None if neither names one
    round: int = 0
    """0 if the agent sent it; otherwise the gateway did, with results of calls of the previous round."""
    status: int | None = None  # the HTTP status of the answer; None without an answer
    error: str | None = None  # the reason why there is no usable answer
    usage: Usage = Usage()
    prompt: tuple[PromptMessage, ...] = ()
    """The messages that no earlier request of the conversation had, without the model's own."""
    prompt_more: int = 0  # the number of such messages that came before those in `prompt`
    answer: str = ""
    calls: tuple[ModelToolCall, ...] = ()


class SentRequest(NamedTuple):
    """An HTTP exchange with the agent, in bytes."""

    method: str
    url: str
    content: bytes | None
    status: int | None
    body: bytes  # the beginning of the response's body, as far as it was read


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentExchange:
    """A request to the agent and its response as they were sent, with their bodies as text."""

    method: str
    url: str
    request: str
    status: int | None  # None if no response began
    response: str


@dataclass(frozen=True, slots=True)
class Turn:
    """One user message and the agent's text reply to it, with the tool calls between them."""

    turn_index: int
    user_message: str  # the text, followed by a line for each of the `attachments`
    agent_message: str
    """Empty if the agent called tools and then sent no text, as when it hands the user over."""
    tool_calls: tuple[ToolCall, ...] = ()
    latency_ms: float = 0.0
    """Time spent waiting for the agent in all requests of the turn, without pauses between retries."""
    usage: Usage = field(default_factory=Usage)
    retries: int = 0
    requests: int = 1
    remarks: tuple[Remark, ...] = ()
    author: str | None = None  # the author of the reply; None if unknown, so that `remarks` may be incomplete
    state_after: Mapping[str, Any] | None = None
    """The state of the agent's session after the turn; None if it is not reported."""
    state_error: str | None = None
    """The reason why the state could not be read, if the agent should report it."""
    attachments: tuple[AttachedFile, ...] = ()
    model_calls: int | None = None
    """The number of calls that the agent made to its model; None if it does not report them."""
    first_token_ms: float | None = None
    """From the first request to the first piece of text, measured like `latency_ms`; None if not streamed."""
    tells_calls: bool = False
    """True if its answers showed that the agent reports all calls, if its type leaves that open."""
    calls_hidden: str | None = None  # the reason why its answers could not report calls; None if they could
    approvals: int = 0  # the number of requests for approval that the scenario's `approve` answered
    call_refused: str | None = None
    """The reason why a refused call, perhaps of this turn or an earlier one, is not among its calls."""
    started_at: str | None = None
    """The time of the user's message: ISO 8601 with the local offset; None if unknown."""
    user_ms: float | None = field(default=None, compare=False)
    """Time that the user took before the message; None if unknown. Measurements do not affect equality."""
    tools_ms: float | None = field(default=None, compare=False)
    """Time spent waiting for mocks between requests, which `latency_ms` excludes; None if unknown."""
    asked_calls: tuple[ToolCall, ...] = ()
    """Calls that requested approval in this turn; they are part of the later turn that decided them."""
    redacted: bool = False  # True if secrets were removed from the stored turn and replaced by `[redacted]`
    model_ms: float | None = field(default=None, compare=False)
    """The part of the turn in which the agent's model worked (`busy_ms`); None without a model gateway."""
    model_requests: tuple[ModelRequest, ...] = ()
    """The requests to the agent's model in order of their begin; empty without a model gateway."""
    briefing: ModelBriefing | None = field(default=None, compare=False)
    """What the agent told its model, if the model gateway saw it; None if that has not changed since the
    turn before."""
    faults: tuple[InjectedFault, ...] = ()
    """Faults that the scenario injected into requests to the agent's model."""
    model_cost: float | None = field(default=None, compare=False)
    """The cost of the agent's model in USD; None if it is unknown."""
    exchanges: tuple[AgentExchange, ...] = field(default=(), compare=False)
    """The last HTTP exchanges with the agent, in the stored form of a turn that did not pass."""

    @property
    def withholds_calls(self) -> bool:
        """True if a mock server answered calls in this turn, but no other source reported any."""
        sources = {source for call in self.tool_calls for source in (call.seen_by, *call.also_seen_by)}
        return SeenBy.MOCK_SERVER in sources and not sources & _REPORTING


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOutput:
    """The output during a turn of a server that the run started."""

    server: str
    lines: tuple[str, ...]  # the last lines, without secrets
    lines_before: int = 0  # the number of earlier lines during the turn
    exit_status: int | None = None  # set if the server had exited; negative for the signal that ended it


@dataclass(frozen=True, slots=True)
class UnfinishedTurn:
    """The content of a turn that has no reply."""

    turn_index: int
    user_message: str
    tool_calls: tuple[ToolCall, ...]
    retries: int = 0
    requests: int = 0
    server_output: tuple[ServerOutput, ...] = ()
    """Output of servers that the run started for the agent, if the agent's error ended the turn."""
    started_at: str | None = field(default=None, compare=False)  # same as in `Turn`, like the next two fields
    user_ms: float | None = field(default=None, compare=False)
    tools_ms: float | None = field(default=None, compare=False)
    agent_ms: float | None = field(default=None, compare=False)
    """Time spent waiting for the agent, including pauses between retries; None if unknown."""
    redacted: bool = False
    model_ms: float | None = field(default=None, compare=False)
    model_requests: tuple[ModelRequest, ...] = ()
    faults: tuple[InjectedFault, ...] = ()
    model_cost: float | None = field(default=None, compare=False)
    exchanges: tuple[AgentExchange, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class TimeSpent:
    """The time that a conversation took, in milliseconds. The rest of `total_ms` is our own overhead."""

    total_ms: float = 0.0  # from the first message to the end of judging
    agent_ms: float = 0.0  # time spent waiting for the agent, including pauses between retries
    user_ms: float = 0.0
    tools_ms: float = 0.0
    judges_ms: float = 0.0
    """Time spent waiting for judges after the last turn; judges also work during the conversation."""
    model_ms: float = 0.0
    """The time in which the agent's model worked, mostly a part of `agent_ms`; 0 without a model gateway."""

    @property
    def own_ms(self) -> float:
        return max(0.0, self.total_ms - self.agent_ms - self.user_ms - self.tools_ms - self.judges_ms)

    def __add__(self, other: TimeSpent) -> TimeSpent:
        return TimeSpent(
            self.total_ms + other.total_ms,
            self.agent_ms + other.agent_ms,
            self.user_ms + other.user_ms,
            self.tools_ms + other.tools_ms,
            self.judges_ms + other.judges_ms,
            self.model_ms + other.model_ms,
        )


class Blame(StrEnum):
    """The party that caused an early end. Only the agent's own errors fail a scenario."""

    AGENT = "agent"
    MOCK = "mock"
    MODEL = "model"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why a conversation ended early."""

    blame: Blame
    message: str
    bypassed: tuple[str, ...] = ()
    """The mocked tools that the agent ran itself. Known only during the run."""
    denied: bool = field(default=False, compare=False)
    """True if the agent refused the first request. Known only during the run."""


SESSION_ID = re.compile(r"\bagentest(?:-[a-z0-9]+)*-[0-9a-f]{16}\b")
"""The session ids that Agentest makes (`conversation.turn_loop.new_session_id`)."""


ATTACK_CHECK = "attack"  # the name of the check of an attack whose objective is in words


@dataclass(frozen=True, slots=True)
class DroppedExchange:
    """An exchange of an attack that the agent was made to forget."""

    user_message: str
    agent_message: str
    refused: bool = False


@dataclass(frozen=True, slots=True)
class AttackLog:
    """The attempts of an adversarial user. The conversation's turns are those the agent knew in the end."""

    strategy: str
    objective: str
    kind: str  # what the objective is about (`attacks.ObjectiveKind`)
    messages: int = 0  # all messages sent, including those of dropped exchanges
    dropped: tuple[DroppedExchange, ...] = ()
    reached: bool | None = None
    """For an objective in words: the judge's two answers; None: they differ, or there are none."""
    reason: str = ""
    note: str = ""  # why exchanges could not be dropped; "" if they could, or none had to be


@dataclass(frozen=True, slots=True)
class Conversation:
    """A finished conversation. `failure` is set when it was cut short."""

    conversation_id: str
    turns: tuple[Turn, ...]
    ending: Ending
    failure: Failure | None = None
    unfinished: UnfinishedTurn | None = None
    time: TimeSpent = field(default_factory=TimeSpent)
    session_id: str | None = None  # the id that the agent received; None in results of older versions
    shortened: bool = False  # True if oversized texts were cut (`truncation`)
    initial_state: Mapping[str, Any] | None = None
    """The initial state of the agent's session; None if it is not reported."""
    invalid: str | None = None
    """How the simulated user broke its role (`user.check`), so that the conversation proves nothing."""
    mock_state: Mapping[str, Any] | None = None
    """The state of the mocks at the end, in JSON types; None if no check needs it."""
    inexact_state: tuple[str, ...] = ()
    """The keys of `mock_state` whose values are incomplete or have no JSON equivalent."""
    live_state: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)
    """The state object itself until the evaluation ends; None if only its stored form is available."""
    user_calls: tuple[ToolCall, ...] = ()
    """The calls of the simulated user's tools, each with the turn whose message followed it."""
    sent: Mapping[int, Collection[SentRequest]] = field(default_factory=dict, compare=False, repr=False)
    """Turn → its last HTTP exchanges, until the conversation is stored."""
    attack: AttackLog | None = None  # set if the user was an adversarial one
    history: tuple[EarlierMessage, ...] = ()
    """What came before the first turn. Nothing counts its calls."""

    @property
    def replies(self) -> tuple[str, ...]:
        """The agent's reply texts, one for each turn."""
        return tuple(turn.agent_message for turn in self.turns)

    def calls(self, name: str) -> tuple[ToolCall, ...]:
        """Return all calls of the tool with this name, in order."""
        return tuple(call for call in self.tool_calls if call.name == name)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """All calls in order, including those of an unfinished turn."""
        closed = tuple(call for turn in self.turns for call in turn.tool_calls)
        return closed + (self.unfinished.tool_calls if self.unfinished else ())

    @property
    def tells_calls(self) -> bool:
        """True if every turn showed that the agent reports all calls."""
        return bool(self.turns) and not self.unfinished and all(turn.tells_calls for turn in self.turns)

    @property
    def calls_hidden(self) -> str | None:
        """The reason why a turn could not report its calls; None if every turn could."""
        return next((turn.calls_hidden for turn in self.turns if turn.calls_hidden), None)

    @property
    def call_refused(self) -> str | None:
        """The reason why a call that may belong to a turn was refused and is not among its calls."""
        return next((turn.call_refused for turn in self.turns if turn.call_refused), None)

    @property
    def withholds_calls(self) -> bool:
        """True if a mock server answered calls in a turn, but no other source reported any."""
        return any(turn.withholds_calls for turn in self.turns)

    @property
    def foreign_session(self) -> tuple[int, str] | None:
        """The turn of the first reply with another conversation's session, and that session; None without."""
        own, replies = self.session_id, ((turn.turn_index, turn.agent_message) for turn in self.turns)
        named = ((index, id) for index, reply in replies for id in SESSION_ID.findall(reply))
        return next((each for each in named if own and each[1] != own), None)

    @property
    def started_turns(self) -> tuple[Turn | UnfinishedTurn, ...]:
        """The turns in order, including an unfinished one."""
        return (*self.turns, self.unfinished) if self.unfinished else self.turns


def state_changes(conversation: Conversation) -> dict[int, StateChange]:
    """Map the index of each turn to the changes of the session's state, as far as they are known."""
    before = [conversation.initial_state, *(turn.state_after for turn in conversation.turns)]
    known = ((turn, old) for turn, old in zip(conversation.turns, before, strict=False) if old is not None)
    return {
        t.turn_index: StateChange.between(old, t.state_after) for t, old in known if t.state_after is not None
    }


def copy_conversation(conversation: Conversation) -> Conversation:
    """Copy a conversation with calls and stored state for users' code, without the live state."""
    last = conversation.unfinished
    return replace(
        conversation,
        turns=tuple(map(copy_turn, conversation.turns)),
        unfinished=last and replace(last, tool_calls=tuple(map(copy_call, last.tool_calls))),
        mock_state=fast_copy(conversation.mock_state),
        user_calls=tuple(map(copy_call, conversation.user_calls)),
        live_state=None,
    )


def copy_turn(turn: Turn) -> Turn:
    """Copy a turn with its calls."""
    return replace(turn, tool_calls=tuple(map(copy_call, turn.tool_calls))) if turn.tool_calls else turn


def copy_call(call: ToolCall) -> ToolCall:
    """Copy a call with its arguments and result."""
    return replace(call, args=copied(call.args), result=copied(call.result))
