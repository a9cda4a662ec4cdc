"""What the servers and the conversations know of each other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Protocol

from agentest.domain.transcript import ToolCall, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where the servers of an agent are; None: it has no such server."""

    mcp: str | None = None
    rest: str | None = None
    otlp: str | None = None

    def of(self, conversation: str) -> Addresses:
        """Those at which every call belongs to the conversation with this key."""
        return replace(
            self,
            mcp=self.mcp and f"{self.mcp}/{conversation}",
            rest=self.rest and f"{self.rest}/c/{conversation}",
        )

    @property
    def by_placeholder(self) -> dict[str, str]:
        """The addresses that there are, by the name of their placeholder."""
        known = {"mcp_url": self.mcp, "rest_url": self.rest, "otlp_url": self.otlp}
        return {name: url for name, url in known.items() if url}

    @property
    def by_variable(self) -> dict[str, str]:
        """The environment of a program that is to find mock servers, and to send its traces here."""
        known = {"AGENTEST_MCP_URL": self.mcp, "AGENTEST_REST_URL": self.rest}
        told = {name: url for name, url in known.items() if url}
        return {**told, **(variables(self.otlp) if self.otlp else {})}


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A conversation, as servers tell it from others."""

    key: str
    """New for every conversation of every run: 24 hex digits, with which its traces begin."""
    session_id: str | None
    """The id of its session, where no other conversation has the same one."""
    conversation_id: str
    scenario: str
    agent: str

    def __str__(self) -> str:
        return f"conversation {self.conversation_id} of agent {self.agent!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedCall:
    """A tool call that came to a mock server."""

    tool: str
    arguments: Any
    """The argument object; whatever else came in its place."""
    call_id: str | None = None
    problem: str | None = None
    """Why the arguments do not fit, where the server knows: then no mock is asked."""
    check: Callable[[Any], str | None] | None = None
    """Says why a mock's answer is none of the real tool's, where the server knows; None: it is one."""
    caller_runs: bool = False
    """Whether the caller itself runs the real tool, where nobody mocks it and it may run."""
    would_run: bool = False
    """Whether the server can reach the real tool, which runs where nobody mocks it and it may run."""


REFUSED = "Agentest did not answer this call"
"""How the message of each call that is refused begins: agents may tell of it."""


class How(StrEnum):
    """What became of a call."""

    ANSWERED = "answered"
    """By a mock, or by the real tool where nobody mocks it and it may run."""
    FAILED = "failed"
    """The mock raised: a tool that fails."""
    INVALID = "invalid"
    """The arguments do not fit."""
    UNMOCKED = "unmocked"
    """Nothing answers it, and that ends the conversation."""
    REAL = "real"
    """Nothing mocks it, and the real tool may run: `number` says which call to tell of."""
    REFUSED = "refused"
    """It belongs to no conversation that is under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedAnswer:
    """The answer to a call, in no protocol's form."""

    how: How
    result: Any = None
    """What the mock answered, a JSON value."""
    message: str = ""
    """What is wrong, for whoever called: all but ANSWERED have one."""
    number: int = -1
    real: Any = None
    """The real tool's answer as its server gave it."""
    status: int | None = None
    """The status that the mock wishes, where the answer goes over HTTP; `result` is then the body, whatever
    became of the call."""
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RealAnswer:
    """What a real tool answered."""

    result: Any
    """As it is recorded, a JSON value."""
    raw: Any
    """As its server gave it, to be passed on."""
    failed: bool = False
    status: int | None = None
    """Of HTTP, where it is a request."""


CallReal = Callable[[], Awaitable[RealAnswer]]
"""Calls the real tool. Raises AgentestError where it cannot be reached."""


class Serving(Protocol):
    """A conversation under way, which answers calls."""

    async def answer(self, call: ServedCall) -> ServedAnswer:
        """Record the call and answer it. Never raises but for cancellation."""
        ...

    async def answered(self, number: int, result: Any, *, failed: bool, status: int | None = None) -> None:
        """Note what the real tool answered to a call that was left to it (`How.REAL`).

        Args:
            status: of HTTP, where the call was a request.
        """
        ...

    async def refused(self, why: str) -> None:
        """Note that a call was refused which may have been of this conversation: it cannot be judged by what
        it lacks."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedTurn:
    """A turn whose spans are asked for. It can be sent to another process."""

    key: str
    """Of the conversation."""
    turn_index: int
    began_ns: int
    """When the agent was first asked, since 1970."""
    asks: int
    """How often it was asked and has answered."""
    requests: int
    """How many requests that named the turn were answered; 0: what was open already was used."""
    stays_open: bool = False
    """Whether one of them opened what later turns use."""
    wait: bool = True
    """Whether to wait for spans that are missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanCall:
    """A tool call that spans tell of."""

    spans: frozenset[str]
    """Their ids: what is told again has one of them."""
    call: ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTraces:
    """What is known of a turn by its spans. It can be sent to another process."""

    calls: tuple[SpanCall, ...] = ()
    usage: Usage = Usage()  # noqa: RUF009 - it holds nothing that could change
    model_calls: int | None = None
    missing: str | None = None
    """Why there may be more than these; None: the turn is complete."""


class TellsSpans(Protocol):
    """Whom a conversation asks what spans tell of it."""

    async def spans_of(self, asked: AskedTurn) -> TurnTraces:
        """What the spans of a turn tell, once they are complete or no more are waited for. Never raises."""
        ...


class ReceivesSpans(TellsSpans, Protocol):
    """Who receives the traces of agents, and knows which conversations are under way."""

    def begin(self, who: Identity) -> None: ...

    def end(self, key: str) -> None: ...


@dataclass(slots=True)
class Stay:
    """A conversation's time among those under way."""

    addresses: Addresses
    failed: bool = False
    """Whether it has ended with an error: then the agent may go on with it for a while."""
    at_work_s: float = 0.0
    """For how long that is likely: its agent was given up before it had answered."""
    traces: TellsSpans | None = None
    """Who knows its spans; None: nobody receives any."""


Outside = Callable[[], AbstractAsyncContextManager[None]]
"""Opens a block in which a conversation waits until it may begin: its place in the run is free for others
meanwhile, and the time is not its own."""


class Conversations(Protocol):
    """The conversations under way, to which servers give calls."""

    def under_way(
        self, who: Identity, serving: Serving, outside: Outside = nullcontext
    ) -> AbstractAsyncContextManager[Stay]:
        """Wait until the conversation may begin; its calls are answered until the block ends."""
        ...


_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"
_OVERRIDING = {
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": _ENDPOINT,
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": _PROTOCOL,
}
"""Variables for traces alone → the one for everything, over which they win."""


def variables(otlp: str) -> dict[str, str]:
    """The variables of OpenTelemetry's SDKs; whatever the machine has set for other backends is overridden.

    Args:
        otlp: where the receiver is, like `http://127.0.0.1:4318`.
    """
    return {
        _ENDPOINT: otlp,
        _PROTOCOL: "http/protobuf",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{otlp}/v1/traces",
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        "OTEL_SDK_DISABLED": "false",
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_LOGS_EXPORTER": "none",
        "OTEL_TRACES_SAMPLER": "parentbased_always_on",
        "OTEL_PROPAGATORS": "tracecontext,baggage",
        # Five seconds by default: a reply would be there long before its spans.
        "OTEL_BSP_SCHEDULE_DELAY": "200",
        # Without these two, many tell names of tools and no arguments.
        "OTEL_SEMCONV_STABILITY_OPT_IN": "gen_ai_latest_experimental",
        "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "SPAN_ONLY",
    }


def with_own(told: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """The variables that a program is told, and those that the user wrote, which win: also an address for
    everything over ours for traces alone."""
    kept = {name: value for name, value in told.items() if _OVERRIDING.get(name) not in own}
    return {**kept, **own}
