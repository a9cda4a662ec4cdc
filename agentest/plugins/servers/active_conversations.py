"""Assign calls at mock servers to the active conversations.

A call that belongs to none of them is refused, which makes the run errored. It is never assigned by guessing.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
from aiohttp import web

from agentest.agents.bypassed_tools import REFUSED
from agentest.agents.call_source_addresses import Addresses
from agentest.agents.listener import headers_of
from agentest.domain.messages import ToolSpec
from agentest.plugins.servers import port
from agentest.support.errors import AgentestError
from agentest.support.http.client import Client
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.redaction import Redactor
from agentest.support.trace_context import named_in_baggage, named_in_trace

if TYPE_CHECKING:
    from agentest.plugins.servers.model_gateway.gateway_conversations import GatewayTraffic
    from agentest.plugins.servers.traces.collector import Collector
    from agentest.runner.call_sources import UnclaimedCall, WaitingBlock

WAYS_TO_NAME = (
    "have the agent pass on the `baggage` or `traceparent` header of our requests (in Python: "
    "opentelemetry-instrument before its command), or send it the address {{mcp_url}} or {{rest_url}} in its "
    "`body`"
)
"""The ways in which an agent's calls can name their conversation."""


_SHOWN_TOOL_CHARS = 100
_MOST_KINDS = 20


@dataclass(slots=True, eq=False)
class ServerGroup:
    """Agents that share servers. Statements about calls without a name apply to all of them."""

    agents: tuple[str, ...]
    addresses: Addresses
    exclusive: bool
    called: bool = True  # True if tool calls can arrive; else there are only spans, and nothing has to wait
    places: Mapping[str, str] = field(default_factory=dict)
    """Agent → its address. Agents with the same address share one process and one client."""
    admission: Admission = field(init=False)
    traces: Collector | None = None
    model_traffic: GatewayTraffic | None = None
    tools: set[str] = field(default_factory=set)  # the possible names of calls at the mock servers
    reached: frozenset[tuple[str, str]] = frozenset()
    """Each agent whose client connected to a mock server, with the server's key."""
    given_up: _Ended | None = None
    """The conversation that ended last, if it failed, because its agent may continue with it."""

    def __post_init__(self) -> None:
        self.admission = Admission(exclusive=self.exclusive, open_at_once=not self.called)


@dataclass(slots=True)
class _Active:
    who: port.Identity
    group: ServerGroup
    serving: port.ActiveConversation
    called: bool = False


@dataclass(frozen=True, slots=True)
class _Ended:
    who: port.Identity
    failed: bool


@asynccontextmanager
async def _at_gateway(
    active: _Active, period: port.ActivePeriod, access: port.ModelAccess | None, outside: WaitingBlock
) -> AsyncIterator[None]:
    traffic = active.group.model_traffic
    if traffic is None or access is None:
        yield
        return
    async with traffic.under_way(active.who, active.serving, access, outside) as period.model:
        yield
        if period.at_work_s:
            traffic.rest(active.who.key, period.at_work_s)
            period.at_work_s = 0.0


@dataclass(slots=True)
class Registry:
    """The active conversations of a run whose agents have mock servers."""

    groups: tuple[ServerGroup, ...]
    on_note: Callable[[str], None]  # receives notes for the user, for the end of the run
    unclaimed: dict[UnclaimedCall, int] = field(default_factory=dict)
    on_refused: Callable[[UnclaimedCall], None] = lambda _: None  # receives each refused call at once
    on_reached: Callable[[ServerGroup], None] = lambda _: None
    """Receives a group when further clients of its agents connect to mock servers."""
    _active: dict[str, _Active] = field(default_factory=dict)
    _ended: dict[str, _Ended] = field(default_factory=dict)

    def reach(self, group: ServerGroup, key: str, names: Names) -> None:
        """Record that a client connected to the mock server with this key."""
        if all((agent, key) in group.reached for agent in group.agents):
            return
        reached = group.reached | {(agent, key) for agent in self._clients(group, names)}
        if reached != group.reached:
            group.reached = reached
            self.on_reached(group)

    def _clients(self, group: ServerGroup, names: Names) -> list[str]:
        named = [active for name in names if (active := self._active.get(name.text))]
        known = {active.who.agent for active in named[:1] or self._of_group(group) if active.group is group}
        if len(known) != 1:
            return list(group.agents)
        path = group.places.get(*known)
        return [agent for agent in group.agents if agent in known or group.places.get(agent, "") == path]

    def group_of(self, agent: str) -> ServerGroup | None:
        """Return the group of an agent; None if it has no servers."""
        return next((group for group in self.groups if agent in group.agents), None)

    @asynccontextmanager
    async def under_way(
        self,
        who: port.Identity,
        serving: port.ActiveConversation,
        outside: WaitingBlock = nullcontext,
        access: port.ModelAccess | None = None,
    ) -> AsyncIterator[port.ActivePeriod]:
        """Wait until the conversation may begin, and answer its calls until the block ends."""
        group = self.group_of(who.agent)
        if group is None:
            yield port.ActivePeriod(Addresses())
            return
        await group.admission.enter(outside)
        active = _Active(who, group, serving)
        self._active |= dict.fromkeys(_names(who), active)
        if group.traces:
            group.traces.begin(who)
        period = port.ActivePeriod(group.addresses.of(who.key), traces=group.traces)
        try:
            async with _at_gateway(active, period, access, outside):
                yield period
        except BaseException:  # the run is being stopped, without notice to the agent
            period.failed = True
            raise
        finally:
            self._leave(active, period)

    def _leave(self, active: _Active, period: port.ActivePeriod) -> None:
        """Deactivate the conversation, so that its calls are refused."""
        who, at_work_s = active.who, period.at_work_s
        ended = _Ended(who, period.failed)
        for name in _names(who):
            del self._active[name]
            self._ended[name] = ended
        if active.group.traces:
            active.group.traces.end(who.key)
        active.group.given_up = ended if period.failed else None
        if active.group.admission.leave(called=active.called, at_work_s=at_work_s):
            self.on_note(
                f"{who} ended before its agent had answered, and calls of this agent have not named their "
                f"conversation so far: the next one waits {at_work_s:g} s, so that it does not receive late "
                f"calls. To avoid the wait, {WAYS_TO_NAME}"
            )

    def claims(self, group: ServerGroup, names: Names) -> bool:
        """True if a request belongs to an active conversation, by name or because there is only one."""
        named = (self._active.get(name.text) for name in names)
        return len(self._of_group(group)) == 1 or any(
            active is not None and active.group is group for active in named
        )

    async def answer(
        self, group: ServerGroup, names: Names, call: port.ServedCall, real: port.CallReal | None = None
    ) -> port.ServedAnswer:
        """Answer a call that a server of the group received.

        Args:
            real: calls the real tool, if there is no mock and it may run; None if it is unreachable, so that
                the answer is null. A caller that runs the tool itself reports its answer to `answered`.
        """
        owner = self._owner_of(group, names)
        if isinstance(owner, str):
            return await self._refused(group, call, owner, self.candidates(group, names))
        if isinstance(owner, _Ended):
            return await self._too_late(group, call, owner)
        owner.called = True
        answer = await owner.serving.answer(call)
        if answer.how is port.CallOutcome.REFUSED:  # it has just ended
            ended = self._ended.get(owner.who.key) or _Ended(owner.who, failed=True)
            return await self._too_late(group, call, ended)
        if answer.how is not port.CallOutcome.REAL or call.caller_runs:
            return answer
        if real is None:
            await owner.serving.answered(answer.number, port.RealAnswer(result=None))
            return replace(answer, how=port.CallOutcome.ANSWERED, result=None)
        asked = port.Elicitation(answer.approve)
        token = port.ELICITATION.set(asked)
        try:
            reply = await real()
        except AgentestError as error:
            unreached = port.RealAnswer(result={"error": str(error)}, failed=True)
            await owner.serving.answered(answer.number, unreached)
            return replace(answer, how=port.CallOutcome.FAILED, message=str(error))
        finally:
            port.ELICITATION.reset(token)
        await owner.serving.answered(answer.number, replace(reply, approval=asked.approval))
        how = port.CallOutcome.FAILED if reply.failed else port.CallOutcome.ANSWERED
        return replace(answer, how=how, result=reply.result, real=reply.raw)

    def planted(
        self, group: ServerGroup, names: Names, tools: Sequence[Mapping[str, Any]]
    ) -> Sequence[Mapping[str, Any]]:
        """Return tools with what is injected into their descriptions in the conversation that lists them."""
        owners = self.candidates(group, names)
        plant = getattr(owners[0].serving, "planted", None) if len(owners) == 1 else None
        return [plant(each) for each in tools] if plant else tools

    async def answered(self, group: ServerGroup, names: Names, number: int, answer: port.RealAnswer) -> None:
        """Record the real tool's answer to a call that its caller ran (`CallOutcome.REAL`)."""
        owner = self._owner_of(group, names)
        if isinstance(owner, _Active):
            await owner.serving.answered(number, answer)

    def _owner_of(self, group: ServerGroup, names: Names) -> _Active | _Ended | str:
        for name in names:
            active = self._active.get(name.text)
            if active is not None and active.group is group:
                group.admission.note_named(active.who.key)
                return active
            if active is not None:
                return f"{name.location} names {active.who}, whose servers are others"
            ended = self._ended.get(name.text)
            # A client may reuse the trace of its first conversation, which then names nothing.
            is_reused = group.admission.promised and not name.certain
            if ended is not None and (ended.failed or not is_reused):
                return ended
            if name.certain:
                return f"{name.location} names {name.text[:60]!r}, which is not a conversation of this run"
        candidates = self._of_group(group)
        if not candidates and group.given_up:
            return group.given_up
        if candidates and group.admission.note_unnamed():
            self.on_note(
                f"calls to tools of agent {group.agents[0]!r} do not name their conversation, so its "
                f"conversations ran one at a time (exclusive: true does so from the start). "
                f"To run many at once, {WAYS_TO_NAME}"
            )
        if len(candidates) != 1:
            number = f"{len(candidates)} conversations are" if candidates else "no conversation is"
            return f"it names no conversation, and {number} under way"
        return candidates[0]

    def _of_group(self, group: ServerGroup) -> list[_Active]:
        return list(
            {active.who.key: active for active in self._active.values() if active.group is group}.values()
        )

    async def _too_late(self, group: ServerGroup, call: port.ServedCall, ended: _Ended) -> port.ServedAnswer:
        why = f"it belongs to {ended.who}, which has ended"
        # After an error, an agent that timed out may still be working. But if conversations run one at
        # a time, the call may belong to the active one, whose client still has an old name.
        # If calls have named their conversations before, this call belongs to the one that it names.
        doubtful = [] if group.admission.names_are_right else self.candidates(group)
        if ended.failed and not (group.admission.exclusive and self._of_group(group)):
            await _report_doubt(doubtful, call, why)
            return port.ServedAnswer(how=port.CallOutcome.REFUSED, message=_refusal(call, why))
        return await self._refused(group, call, why, doubtful)

    async def _refused(
        self, group: ServerGroup, call: port.ServedCall, why: str, doubtful: Sequence[_Active]
    ) -> port.ServedAnswer:
        from agentest.runner.call_sources import UnclaimedCall

        tool, remedy = call.tool[:_SHOWN_TOOL_CHARS], _remedy(group)
        kind = UnclaimedCall(agent=group.agents[0], tool=tool, why=why, remedy=remedy)
        if kind not in self.unclaimed and len(self.unclaimed) >= _MOST_KINDS:
            kind = replace(kind, tool="(others)", why="for the same reasons as earlier calls")
        self.unclaimed[kind] = self.unclaimed.get(kind, 0) + 1
        self.on_refused(kind)
        await _report_doubt(doubtful, call, why)
        return port.ServedAnswer(
            how=port.CallOutcome.REFUSED,
            message=_refusal(call, f"{why}; {WAYS_TO_NAME}, or write exclusive: true"),
        )

    def candidates(self, group: ServerGroup, names: Iterable[Name] = ()) -> list[_Active]:
        """Return the conversations that may have made a call: the named one, or else all of the group."""
        named = [active for name in names if (active := self._active.get(name.text))]
        return named[:1] or self._of_group(group)


def _remedy(group: ServerGroup) -> str:
    exclusive = "set exclusive: true (one conversation at a time); or, to run many at once, "
    return (
        "If the agent makes such calls after its reply, have it reply after them; if they do not name their "
        f"conversation, or name an earlier one, {'' if group.admission.promised else exclusive}{WAYS_TO_NAME}"
    )


async def _report_doubt(doubtful: Iterable[_Active], call: port.ServedCall, why: str) -> None:
    for each in doubtful:
        await each.serving.refused(
            f"a call of {call.tool[:_SHOWN_TOOL_CHARS]!r} that it may have made was refused: {why}"
        )


def _names(who: port.Identity) -> list[str]:
    return [name for name in (who.key, who.session_id) if name]


def _refusal(call: port.ServedCall, why: str) -> str:
    return f"{REFUSED} of {call.tool[:_SHOWN_TOOL_CHARS]!r}: {why}"


_REQUIRED_NAMED = 2
"""The number of conversations that calls must have named.

One is not enough, because an MCP session from the first conversation may use its name for ever.
"""
_SILENT_LIMIT = 3  # the number of conversations without calls after which no calls are expected


class Admission:
    """Controls when conversations of agents with shared servers may begin."""

    def __init__(self, *, exclusive: bool, open_at_once: bool = False) -> None:
        """Create the admission of a group. `open_at_once` needs no proof that calls name conversations."""
        self.promised = exclusive  # True if the configuration allows only one conversation at a time
        self.exclusive = exclusive
        """True if only one conversation may run at a time, by configuration or by observation."""
        self._open = open_at_once
        self._active = 0
        self._named: set[str] = set()
        self._silent = 0
        self._waiting: deque[anyio.Event] = deque()
        self._quiet_from = -math.inf

    async def enter(self, outside: WaitingBlock = nullcontext) -> None:
        """Wait until a conversation may begin, inside the block that `outside` opens."""
        if self._may_begin() and not self._waiting and not self.resting:
            self._active += 1
            return
        begin = anyio.Event()
        self._waiting.append(begin)
        self._admit()
        try:
            async with outside():
                await begin.wait()
                if self.resting:
                    await anyio.sleep_until(self._quiet_from)
        except BaseException:
            if begin.is_set():
                self._active -= 1
            else:
                self._waiting.remove(begin)
            self._admit()
            raise

    def leave(self, *, called: bool, at_work_s: float = 0.0) -> bool:
        """End a conversation. Returns True if the next one waits for its agent to become idle.

        Its agent may continue for `at_work_s` seconds, so that unnamed calls may belong to it.
        """
        self._active -= 1
        if not called:
            self._silent += 1
        rests = at_work_s > 0 and not self._named
        if rests:
            self._quiet_from = anyio.current_time() + at_work_s
        self._admit()
        return rests

    @property
    def names_are_right(self) -> bool:
        """True if calls of two conversations have named them, and no call was unnamed."""
        return len(self._named) >= _REQUIRED_NAMED and not self.exclusive

    @property
    def resting(self) -> bool:
        """True if unnamed calls may belong to a conversation that has ended."""
        return self._quiet_from > -math.inf and anyio.current_time() < self._quiet_from

    def note_named(self, key: str) -> None:
        """Record a call that named its conversation."""
        self._named.add(key)
        self._admit()

    def note_unnamed(self) -> bool:
        """Record a call without a name. Returns True for the first one."""
        is_first = not self.exclusive
        self.exclusive = True
        return is_first

    def _may_begin(self) -> bool:
        if self.exclusive:
            return self._active == 0
        self._open = self._open or len(self._named) >= _REQUIRED_NAMED or self._silent >= _SILENT_LIMIT
        return self._open or self._active == 0

    def _admit(self) -> None:
        while self._waiting and self._may_begin():
            self._active += 1
            self._waiting.popleft().set()


_PATH_KEY = re.compile(r"^/(?:[\w-]{16,}/)?(?:c|mcp|sse|mcp/sse)/([^/]+)")
HEADER = "x-agentest-conversation"
META = "agentest/conversation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    """A possible name of a conversation."""

    text: str
    location: str
    certain: bool
    """True if it can be nothing else; a trace may come from another source and then proves nothing."""


Names = Sequence[Name]  # all possible names of a conversation; the most certain comes first


def names_of(
    headers: Mapping[str, str], path: str | None = None, meta: Mapping[str, Any] | None = None
) -> Names:
    """Return the names in a request: its headers (by lower-case name), its path, and the `_meta` of MCP."""
    meta = meta or {}

    def text(values: Mapping[str, Any], key: str) -> str | None:
        value = values.get(key)
        return value if isinstance(value, str) else None

    found = [
        (path, "the path", True),
        (headers.get(HEADER), f"the header {HEADER}", True),
        (text(meta, META), f"_meta[{META!r}]", True),
    ]
    for where, carrier in (("_meta", meta), ("the header", headers)):
        found.append((named_in_baggage(text(carrier, "baggage")), f"{where} baggage", False))
        found.append((named_in_trace(text(carrier, "traceparent")), f"{where} traceparent", False))
    return [Name(text=name, location=where, certain=certain) for name, where, certain in found if name]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInputs:
    """The inputs for opening the servers of one group."""

    registry: Registry
    group: ServerGroup
    tools: tuple[ToolSpec, ...]
    """The mocks of all scenarios with these agents, because clients list tools only once, at their start."""
    only_way: bool
    """True if one mock server is the only way of mocks to these agents' tools, so it has all of them."""
    passthrough: bool  # True if tools without a mock may run
    root: Path
    outputs: Path  # the folder of the stored runs
    client: Client
    stack: AsyncExitStack  # closes all opened resources at the end of the run
    on_note: Callable[[str], None]  # receives notes for the user, for the end of the run
    redact: Redactor
    alone: bool = True  # False if the run has other processes, which may call models, too
    mocked_in: Mapping[str, str] = field(default_factory=dict)
    """Tool → the location of its mock, which follows the tool's name in errors."""
    spoken: frozenset[str] = frozenset()  # the tools that trajectories name
    left_out: frozenset[str] | None = frozenset()
    """Names of mocks to omit while real tools are recorded; None if no tool has been named yet."""
    replays: bool = False  # True if no request of the agents to a model may reach the network
    keep_span: Callable[[bytes], object] | None = None
    """Receives each span of a conversation as a line of JSON; None to discard spans."""

    async def report_fault(self, request: web.Request, problem: str) -> None:
        """End the conversations that a request of which our server failed may belong to."""
        at = _PATH_KEY.search(request.path)
        for each in self.registry.candidates(self.group, names_of(headers_of(request), at and at[1])):
            await each.serving.refused(problem, ours=True)

    def key_location(self, key: str) -> str:
        """Return the location of a key, for errors."""
        return f"{key} of agent {self.group.agents[0]!r}"
