"""What was said and done in a conversation: frozen values that simulation writes and evaluation reads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from operator import attrgetter
from typing import Any

from agentest.domain.end_reason import Ending
from agentest.domain.tool_visibility import Approval, SeenBy
from agentest.support.json_text import safe_repr


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the other side reported them; all 0 where it reported none."""

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
    """One tool call of the agent and what it was answered.

    `args` is the argument object; where the agent sent something else (invalid JSON, a list), it is that,
    and `invalid_arguments` says what was wrong. `result` is the answer as it was sent, before JSON.
    """

    name: str
    args: Any
    result: Any
    mocked: bool
    turn_index: int
    invalid_arguments: str | None = None
    error: str | None = None
    """Message of the exception that the mock raised, and that the agent saw as `{"error": …}`."""
    seen_by: SeenBy = SeenBy.CALLER
    """Who told of the call; of several the one who answered it, else the one who knows most."""
    call_id: str | None = field(default=None, compare=False)
    """Its id in the agent's protocol, by which sources tell of one call; None: it has none."""
    also_seen_by: tuple[SeenBy, ...] = ()
    """Who told of the same call besides."""
    duration_ms: float | None = field(default=None, compare=False)
    """How long its answer took, where we saw it asked for and answered; None: nobody measured it."""
    round: int | None = field(default=None, compare=False)
    """Which of the agent's messages of the turn asked for it, from 0; None: nobody tells."""
    raised: str | None = None
    """The exception that the mock's own code raised by mistake, and where: `KeyError at salon.sim.py:12`."""
    approval: Approval | None = field(default=None, compare=False)
    """What the user, or the configuration, decided about it; None: the agent did not ask."""
    by_real_tool: bool = field(default=False, compare=False)
    """Whether the real tool answered: behind a mock server, or one that the agent ran after asking us."""

    @property
    def ran(self) -> bool:
        """Whether a tool may have run: a call that waits for approval, or was denied, has none."""
        return self.approval not in (Approval.DENIED, Approval.PENDING)


_REPORTING = frozenset({SeenBy.AGENT, SeenBy.SPANS})
"""Who reports calls that the agent makes itself, wherever their tools are."""
WAITS_FOR_APPROVAL = "it waits for the user's approval"
"""The `error` of a call that the user has not approved yet."""
UNANSWERED = "cancelled before it answered"
"""The `error` of a call that has been made, and of which no answer came yet."""
NO_MOCK = "no mock"
"""The `error` of a call to a tool that has no mock."""
ARGUMENTS_UNTOLD = "the agent does not tell its arguments"
"""The `invalid_arguments` of a call of which the agent's protocol told the name and the result alone."""
besides_values = attrgetter(*(each.name for each in fields(ToolCall) if each.name not in ("args", "result")))
"""All that is known of a call but its arguments and result, in the order of its fields."""


def waiting(call: ToolCall) -> ToolCall:
    """A call that the agent wants to make, while its user is asked."""
    return replace(call, error=WAITS_FOR_APPROVAL, approval=Approval.PENDING)


def arguments_untold(call: ToolCall) -> bool:
    """Whether nobody knows with which arguments a call was made: what depends on them cannot be told."""
    return call.args is None and call.invalid_arguments == ARGUMENTS_UNTOLD


def failed(call: ToolCall) -> bool:
    """Whether the agent was answered with an error: the tool raised, or what it answered says so."""
    says_so = isinstance(call.result, Mapping) and bool(call.result.get("error"))
    return call.error is not None or call.invalid_arguments not in (None, ARGUMENTS_UNTOLD) or says_so


def mismatch(call: ToolCall) -> str | None:
    """What of a call the signature of its mock does not take; None where it fits, or was no object at all."""
    return call.invalid_arguments if isinstance(call.args, Mapping) else None


def unanswered(call: ToolCall) -> bool:
    """Whether we were asked for the call's answer and had none: it was answered with null."""
    at_our_server = call.seen_by is SeenBy.MOCK_SERVER and call.result is None
    asked = (call.seen_by is SeenBy.CALLER or at_our_server) and not (call.mocked or call.by_real_tool)
    return asked and call.error is None and call.invalid_arguments is None


def call_text(call: ToolCall) -> str:
    """A call as it is shown: `name(key=value)`, or what was sent in place of arguments."""
    if arguments_untold(call):
        return f"{call.name}(arguments not told)"
    if not isinstance(call.args, Mapping):
        return f"{call.name}(invalid arguments: {safe_repr(call.args)})"
    return f"{call.name}({', '.join(f'{key}={safe_repr(value)}' for key, value in call.args.items())})"


@dataclass(frozen=True, slots=True)
class Remark:
    """What the agent, or an agent that works for it, said on the way to its reply."""

    author: str
    text: str
    calls_before: int | None = field(default=None, compare=False)
    """How many calls of the turn its protocol had told of when it was said; None: it does not tell."""


CUT_OFF = "…"
"""The key of a stored object that stands for those that were cut off, as it was too long (`storing`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChange:
    """What one turn changed in the state of the agent's session, by key."""

    added: Mapping[str, Any]
    changed: Mapping[str, tuple[Any, Any]]
    """Before and after."""
    removed: Mapping[str, Any]

    @classmethod
    def between(cls, before: Mapping[str, Any], after: Mapping[str, Any]) -> StateChange:
        """The difference of two states, as far as both are there: what was cut off is not missing."""
        both = before.keys() & after.keys() - {CUT_OFF}
        return cls(
            added={} if CUT_OFF in before else _without(before, after),
            changed={
                key: (before[key], after[key]) for key in after if key in both and _differ(key, before, after)
            },
            removed={} if CUT_OFF in after else _without(after, before),
        )


def _without(known: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if key not in known and key != CUT_OFF}


def _differ(key: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether the JSON value of a key is another one: `true` is not `1`, and order of keys is no value."""
    return _form(before[key]) != _form(after[key])


def _form(value: Any) -> str:
    try:
        return json.dumps(value, sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        return safe_repr(value)


@dataclass(frozen=True, slots=True)
class Attached:
    """A file that the user sent along, without what is in it."""

    mime_type: str
    name: str = ""
    bytes: int | None = None
    """None where only its address was sent."""
    uri: str = ""


def with_mentions(text: str, files: Sequence[Attached]) -> str:
    """A user's message as people and judges see it: a line for each file after the text."""
    return "\n".join([*([text] if text else []), *map(_mention, files)])


def _mention(file: Attached) -> str:
    size = f"{file.bytes:,} bytes" if file.bytes is not None else file.uri
    return "[attached: " + ", ".join(part for part in (file.name, file.mime_type, size) if part) + "]"


NO_TEXT = "(no text; the agent called tools only)"
"""What is shown and judged in place of an empty reply."""


SECRETS_HIDDEN = "secrets hidden"
"""What is shown beside a turn that is stored without secrets."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One user message and the agent's text reply to it, with the tool calls in between."""

    turn_index: int
    user_message: str
    """The text, and a line for each of the `attachments`."""
    agent_message: str
    """Empty where the agent called tools and then said nothing: it handed over."""
    tool_calls: tuple[ToolCall, ...] = ()
    latency_ms: float = 0.0
    """Time spent waiting for the agent, all requests of the turn together, without pauses between retries."""
    usage: Usage = field(default_factory=Usage)
    retries: int = 0
    requests: int = 1
    remarks: tuple[Remark, ...] = ()
    author: str | None = None
    """Who gave the reply; None: the agent does not tell who says what, so `remarks` may lack some."""
    state_after: Mapping[str, Any] | None = None
    """The state of the agent's session after the turn; None: nobody tells of it."""
    state_error: str | None = None
    """Why the state could not be read, where the agent should tell of it."""
    attachments: tuple[Attached, ...] = ()
    """What the user sent along."""
    model_calls: int | None = None
    """How often the agent asked its model; None: it does not tell."""
    first_token_ms: float | None = None
    """From the first request to the first piece of text, counted as `latency_ms`; None: not streamed."""
    tells_calls: bool = False
    """Whether its answers showed that the agent tells of all its calls, where its type does not say so."""
    calls_hidden: str | None = None
    """Why its answers could not tell of calls, though those of such agents do; None: they could."""
    call_refused: str | None = None
    """Why a call that may have been of it, or of a turn before, is not among its calls: we refused it."""
    started_at: str | None = None
    """When the user spoke: ISO 8601 with the offset of the local time; None where that is not known."""
    user_ms: float | None = field(default=None, compare=False)
    """How long the user thought before; None: not known. What was measured makes no other turn of it."""
    tools_ms: float | None = field(default=None, compare=False)
    """Waiting for mocks between the requests: no part of `latency_ms`; None: not known."""
    asked_calls: tuple[ToolCall, ...] = ()
    """Calls for which the agent asked its user in this turn and that a later turn has, as it decided them."""
    redacted: bool = False
    """True if it is stored without secrets that were said in it: `[redacted]` is in their place."""

    @property
    def keeps_calls_back(self) -> bool:
        """Whether a mock server answered calls in it, and neither the agent nor its spans reported any."""
        sources = {source for call in self.tool_calls for source in (call.seen_by, *call.also_seen_by)}
        return SeenBy.MOCK_SERVER in sources and not sources & _REPORTING


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOutput:
    """What a server that the run had started printed while a turn lasted."""

    server: str
    """Its name."""
    lines: tuple[str, ...]
    """The last of them, without secrets."""
    lines_before: int = 0
    """How many it had printed meanwhile before these."""
    exit_status: int | None = None
    """Set where it had ended by then; negative: the signal that ended it."""


@dataclass(frozen=True, slots=True)
class UnfinishedTurn:
    """What had happened in a turn that was never closed by a reply."""

    turn_index: int
    user_message: str
    tool_calls: tuple[ToolCall, ...]
    retries: int = 0
    requests: int = 0
    server_output: tuple[ServerOutput, ...] = ()
    """Of the servers that the run had started for the agent, where the agent's error ended the turn."""
    started_at: str | None = field(default=None, compare=False)
    """As that of a `Turn`, and so are the next two."""
    user_ms: float | None = field(default=None, compare=False)
    tools_ms: float | None = field(default=None, compare=False)
    agent_ms: float | None = field(default=None, compare=False)
    """Waiting for the agent, pauses between retries included; None: not known."""
    redacted: bool = False
    """As that of a `Turn`."""


@dataclass(frozen=True, slots=True)
class TimeSpent:
    """Where the time of a conversation went, in milliseconds. What is left of `total_ms` is our own."""

    total_ms: float = 0.0
    """From the first message until everything is judged."""
    agent_ms: float = 0.0
    """Waiting for the agent, pauses between retries included."""
    user_ms: float = 0.0
    """Waiting for the simulated user."""
    tools_ms: float = 0.0
    """Waiting for mocks."""
    judges_ms: float = 0.0
    """Waiting for judges after the last turn; they work while the conversation goes on, too."""

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
        )


class Blame(StrEnum):
    """Who ended a conversation early. Only the agent's own doing makes a scenario fail."""

    AGENT = "agent"
    MOCK = "mock"
    MODEL = "model"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a conversation ended before its time."""

    blame: Blame
    message: str
    bypassed: tuple[str, ...] = ()
    """The mocked tools that the agent ran itself; known while the run lasts."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A finished conversation. `failure` is set when it was cut short."""

    conversation_id: str
    turns: tuple[Turn, ...]
    ending: Ending
    failure: Failure | None = None
    unfinished: UnfinishedTurn | None = None
    time: TimeSpent = field(default_factory=TimeSpent)
    session_id: str | None = None
    """What the agent was told; None where an older version held the conversation."""
    shortened: bool = False
    """Whether texts that were too long to be kept lack their ends (`storing`)."""
    initial_state: Mapping[str, Any] | None = None
    """The state with which the agent's session began; None: nobody tells of it."""
    invalid: str | None = None
    """Why it says nothing of the agent (`user.check`): the simulated user broke its role."""
    mock_state: Mapping[str, Any] | None = None
    """The state of the mocks at the end, in JSON types; None: it was not kept, as nothing asks for it."""
    inexact_state: tuple[str, ...] = ()
    """The keys of `mock_state` whose values were no JSON, or are not told whole."""
    live_state: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)
    """The state itself, until the conversation has been evaluated; None: only what is told of it is known."""
    user_calls: tuple[ToolCall, ...] = ()
    """The calls of the simulated user's own tools, each with the turn in which the user then spoke."""

    @property
    def replies(self) -> tuple[str, ...]:
        """What the agent said, a text for each turn."""
        return tuple(turn.agent_message for turn in self.turns)

    def calls(self, name: str) -> tuple[ToolCall, ...]:
        """All calls of the tool of this name, in order."""
        return tuple(call for call in self.tool_calls if call.name == name)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """All calls in order, those of a turn that never closed included."""
        closed = tuple(call for turn in self.turns for call in turn.tool_calls)
        return closed + (self.unfinished.tool_calls if self.unfinished else ())

    @property
    def tells_calls(self) -> bool:
        """Whether every turn showed that the agent tells of all its calls, though its type says otherwise."""
        return bool(self.turns) and not self.unfinished and all(turn.tells_calls for turn in self.turns)

    @property
    def calls_hidden(self) -> str | None:
        """Why a turn could not tell of its calls; None: each could."""
        return next((turn.calls_hidden for turn in self.turns if turn.calls_hidden), None)

    @property
    def call_refused(self) -> str | None:
        """Why a call that may have been of a turn is not among its calls: we refused it."""
        return next((turn.call_refused for turn in self.turns if turn.call_refused), None)

    @property
    def keeps_calls_back(self) -> bool:
        """Whether a mock server answered calls in a turn, and nothing else reported any."""
        return any(turn.keeps_calls_back for turn in self.turns)

    @property
    def started_turns(self) -> int:
        return len(self.turns) + (1 if self.unfinished else 0)


def state_changes(conversation: Conversation) -> dict[int, StateChange]:
    """Index of a turn → what it changed in the session's state, for each turn of which that is known."""
    changes, before = {}, conversation.initial_state
    for turn in conversation.turns:
        if before is not None and turn.state_after is not None:
            changes[turn.turn_index] = StateChange.between(before, turn.state_after)
        before = turn.state_after
    return changes
