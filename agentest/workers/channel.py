"""Messages between the processes of a run: each end of a socket pair receives what the other one sends.

Sending never blocks, so that two ends that both send much cannot wait for each other. The user's own values
(arguments of a Python agent, values of mocks) travel as JSON: reading a message neither needs nor runs the
user's code.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, reduce
from io import BytesIO
from operator import attrgetter
from types import FunctionType
from typing import Any, Self

import anyio

from agentest.domain.results import Status
from agentest.domain.transcript import ToolCall, besides_values
from agentest.mock_servers.port import Addresses, AskedTurn, Identity, ServedAnswer, ServedCall, TurnTraces
from agentest.models.tape import Page
from agentest.support.json_text import plain

_LENGTH_BYTES = 8
_WRAPPED_LEVELS = 20
"""More than a message adds to the levels of its values."""

Send = Callable[[object], None]


class Link(asyncio.Protocol):
    """One end. Messages arrive in the order in which they were sent.

    Args:
        on_message: receives every message of the other end.
        on_disconnect: is called once, when the other end is closed and all its messages have arrived; not
            after `close`.
    """

    def __init__(self, on_message: Callable[[Any], None], on_disconnect: Callable[[], None]) -> None:
        self._on_message = on_message
        self._on_disconnect = on_disconnect
        self._outgoing: list[object] = []
        self._buffer = bytearray()
        self._transport: asyncio.WriteTransport
        self._closing = False
        self._closed = anyio.Event()

    @classmethod
    async def over(
        cls, end: socket.socket, on_message: Callable[[Any], None], on_disconnect: Callable[[], None]
    ) -> Self:
        """A link over one end of a socket pair, which it closes with itself."""
        loop = asyncio.get_running_loop()
        _, link = await loop.create_unix_connection(lambda: cls(on_message, on_disconnect), sock=end)
        return link

    def send(self, message: object) -> None:
        """Send a message, with all others of this moment: one by one they cost several times as much.

        The message is lost if the other end is closed.
        """
        if not self._outgoing:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outgoing.append(message)

    def _flush(self) -> None:
        messages, self._outgoing = self._outgoing, []
        if messages and not self._closed.is_set():
            body = packed_together(messages)
            self._transport.write(len(body).to_bytes(_LENGTH_BYTES) + body)

    async def close(self) -> None:
        """Close this end when the other end has read everything."""
        self._closing = True
        self._flush()
        self._transport.close()
        await self._closed.wait()

    def end_reading(self) -> None:
        """Read what the other end has sent until now, and no more: it disconnects then."""
        end = self._transport.get_extra_info("socket")
        with suppress(OSError):  # it is closed
            end.shutdown(socket.SHUT_RD)

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def connection_lost(self, _: Exception | None) -> None:
        self._closed.set()
        if not self._closing:
            self._closing = True
            self._on_disconnect()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        start, received = 0, len(self._buffer)
        while received - start >= _LENGTH_BYTES:
            body = start + _LENGTH_BYTES
            end = body + int.from_bytes(self._buffer[start:body])
            if end > received:
                break
            for message in pickle.loads(self._buffer[body:end]):
                self._on_message(message)
            start = end
        del self._buffer[:start]


def packed_together(messages: list[object]) -> bytes:
    """The messages of one moment. One whose values cannot be shown as text must not keep back the others.

    It is an event of a turn that is left out: the whole conversation, which is packed before it is sent, has
    the same values, and ends the worker with a message that names it.
    """
    try:
        return packed(messages)
    except Exception:  # noqa: BLE001 - classes of the user raise what they like
        return packed([message for message in messages if _can_be_packed(message)])


def _can_be_packed(message: object) -> bool:
    try:
        packed(message)
    except Exception:  # noqa: BLE001 - as above
        return False
    return True


def can_be_sent(value: object) -> bool:
    """Whether a value can go to another process: one that is nested thousands of levels deep cannot."""
    message = reduce(lambda inner, _: [inner], range(_WRAPPED_LEVELS), value)
    try:
        packed(message)
    except RecursionError:
        return False
    return True


def packed(value: object) -> bytes:
    """A value of ours as bytes, for `pickle.loads`. Values of the user in it become JSON.

    Raises what the user's own classes raise where they are shown as text.
    """
    out = BytesIO()
    _Packer(out, pickle.HIGHEST_PROTOCOL).dump(value)
    return out.getvalue()


class _Packer(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if kind is ToolCall:
            return _tool_call, (_as_json([value.args, value.result]), *besides_values(value))
        named = value if isinstance(value, type | FunctionType) else kind
        ours = named.__module__.partition(".")[0] in ("agentest", "copyreg")
        if not ours:
            return _from_json, (_as_json(value),)
        values_of = _reader_of(kind)
        return NotImplemented if values_of is None else (kind, values_of(value))


def _values_of(kind: Any) -> Callable[[Any], tuple[object, ...]] | None:
    """Reads the values that make an instance of a plain dataclass; None where that is not all there is to it.

    The way in which dataclasses with slots are packed by themselves takes several times as long.
    """
    if not is_dataclass(kind) or "__slots__" not in vars(kind) or hasattr(kind, "__post_init__"):
        return None
    made_of = fields(kind)
    if not made_of or any(field.kw_only or not field.init for field in made_of):
        return None
    names = [field.name for field in made_of]
    if len(names) == 1:
        return lambda value: (getattr(value, names[0]),)
    return attrgetter(*names)


_reader_of: Callable[[Any], Callable[[Any], tuple[object, ...]] | None] = cache(_values_of)


def _as_json(value: object) -> str:
    return json.dumps(plain(value))


def _from_json(text: str) -> Any:
    return json.loads(text)


def _tool_call(values: str, name: str, *rest: Any) -> ToolCall:
    args, result = json.loads(values)
    return ToolCall(name, args, result, *rest)


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
