"""The messages between a run's own process and its workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentest.domain.results import Status
from agentest.mock_servers.port import Addresses, AskedTurn, Identity, ServedAnswer, ServedCall, TurnTraces
from agentest.models.recording.tape import Page


@dataclass(frozen=True, slots=True)
class Ready:
    """From a worker: everything is open."""


@dataclass(frozen=True, slots=True)
class CannotStart:
    """From a worker: it cannot begin, and what the user has to change."""

    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """To a worker: hold a conversation, and have it judged."""

    hold: int
    """New for every time that a conversation is to be held."""
    scope: str
    """The unit's."""
    number: int
    ids_end: str = ""
    """What its id ends with: agents may know the one of the same number that was lost."""
    page: Page | None = None
    """What is recorded of it; None: nothing is recorded or replayed."""
    earlier: bytes | None = None
    """The conversation of an earlier run that is to be judged, packed; None: it is held now."""


class OfConversation:
    """From a worker: how a conversation goes that it holds."""

    __slots__ = ()

    hold: int
    """The order's number."""


@dataclass(frozen=True, slots=True)
class TurnClosed(OfConversation):
    """From a worker: a turn of a conversation has closed."""

    hold: int
    conversation_id: str
    turn_index: int
    handed_over: bool = False
    """Whether the agent handed a call over in it."""


@dataclass(frozen=True, slots=True)
class ConversationIsHeld(OfConversation):
    """From a worker: a conversation leaves its place; judges may still be at work."""

    hold: int


@dataclass(frozen=True, slots=True)
class PlaceLeft(OfConversation):
    """From a worker: a conversation waits for others, and leaves its place to them."""

    hold: int


@dataclass(frozen=True, slots=True)
class PlaceWanted(OfConversation):
    """From a worker: a conversation has waited, and would go on."""

    hold: int


@dataclass(frozen=True, slots=True)
class PlaceGiven:
    """To a worker: a conversation that has waited may go on."""

    hold: int


@dataclass(frozen=True, slots=True)
class ConversationDone(OfConversation):
    """From a worker: a conversation has been held and judged."""

    hold: int
    result: bytes
    """Packed, without what nobody asks for until its scenario ends."""
    json: bytes
    """Of the whole result, as in results.json."""
    held_again: str


@dataclass(frozen=True, slots=True)
class EndUnit:
    """To a worker: all conversations of a unit have finished."""

    scope: str


@dataclass(frozen=True, slots=True)
class Note:
    """From a worker: what the user should know."""

    text: str


@dataclass(frozen=True, slots=True)
class OfOwnAgent:
    """From a worker: what it hears of an agent that it has started itself."""


@dataclass(frozen=True, slots=True)
class ServerPrinted(OfOwnAgent):
    """From a worker: whole lines, without secrets, of a server that it has started."""

    log: str
    lines: str


@dataclass(frozen=True, slots=True)
class AgentDied:
    """From a worker: the server of an agent that it has started has ended by itself."""


@dataclass(frozen=True, slots=True)
class SpanReceived(OfOwnAgent):
    """From a worker: a span of an agent that it has started, a line of JSON."""

    line: bytes


@dataclass(frozen=True, slots=True)
class CallRefused(OfOwnAgent):
    """From a worker: a call at its servers was refused (`tool_servers.registry.Unclaimed`)."""

    agent: str
    tool: str
    why: str


@dataclass(frozen=True, slots=True)
class MockServerReached(OfOwnAgent):
    """From a worker: clients of these agents connected to the mock servers of these keys."""

    reached: frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Secrets:
    """From a worker: what must not be shown from now on."""

    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StopRun:
    """To a worker, or from one: why the run ends early."""

    reason: str
    status: Status
    interrupted: bool


@dataclass(frozen=True, slots=True)
class Idle:
    """From a worker: after a stop, what that has ended is over, and all is told that it has used."""


@dataclass(frozen=True, slots=True)
class Close:
    """To a worker: there is nothing left to do. It closes what it has opened."""


@dataclass(frozen=True, slots=True)
class Closed:
    """From a worker: everything is closed."""


@dataclass(frozen=True, slots=True)
class Failed:
    """From a worker: it cannot go on, and why."""

    problem: str


@dataclass(frozen=True, slots=True)
class Enter:
    """From a worker: a conversation would begin whose agent calls tools at our servers."""

    who: Identity


@dataclass(frozen=True, slots=True)
class Wait:
    """To a worker: the conversation with this key may not begin yet."""

    key: str


@dataclass(frozen=True, slots=True)
class Begin:
    """To a worker: the conversation with this key may begin, and finds the servers here."""

    key: str
    addresses: Addresses
    traces: bool = False
    """Whether its agent's spans are received."""


@dataclass(frozen=True, slots=True)
class SpansWanted:
    """From a worker: what do spans tell of a turn of its conversation?"""

    asked: AskedTurn


@dataclass(frozen=True, slots=True)
class SpansTold:
    """To a worker: what spans tell of the turn that its conversation with this key has asked for."""

    key: str
    told: TurnTraces


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """From a worker: the conversation with this key has ended, or will not begin."""

    key: str
    failed: bool
    at_work_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RealResult:
    """What the real tool answered to the call with this number, which was left to it."""

    number: int
    result: Any
    failed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A call was refused that may have been of the conversation."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """To a worker: a call of its conversation with this key, what the real tool answered to one, or that one
    which may have been of it was refused."""

    number: int
    """New for every question to this worker."""
    key: str
    about: ServedCall | RealResult | Refused


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """To a worker: nobody waits for the answer to this question any longer."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """From a worker: the answer to a question; None: it has been heard."""

    number: int
    answer: ServedAnswer | None
