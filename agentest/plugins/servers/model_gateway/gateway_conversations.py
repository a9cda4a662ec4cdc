"""The conversations of one gateway that are under way."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import field

import anyio
import anyio.to_thread
from yarl import URL

from agentest.config.agents.companion_servers import Override
from agentest.plugins.servers import port
from agentest.plugins.servers.agent_tape import agent_tape
from agentest.plugins.servers.gateway_check import OFTEN_SHARED, WAY_TO_RUN_ALIKE, BypassWatch
from agentest.plugins.servers.model_gateway.conversation import GatewayConversation, GatewayState
from agentest.plugins.servers.model_gateway.placement import Unplaced, is_part
from agentest.plugins.servers.model_gateway.request_log import ConversationFaults, RequestLog
from agentest.runner.call_sources import WaitingBlock
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.redaction import Redactor
from agentest.support.text import on_one_line

_REMEMBERED = 200
_LOOK_S = 0.1


@dataclass(slots=True, kw_only=True)
class GatewayTraffic:
    """The traffic of one gateway: the running conversations whose agents call their model there."""

    agent: str
    mocks: bool
    allows_real: bool
    on_note: Callable[[str], None]
    on_request: Callable[[], None]
    replays: bool = False  # True if no request may reach the network
    redact: Redactor = field(default_factory=Redactor)  # removes secrets from what is recorded of requests
    overrides: Mapping[str, Override | None] = field(default_factory=dict)
    """Agent → the settings that replace its own in requests to the model."""
    lanes: int = 1  # number of copies of the agent's server. Each copy has one conversation at a time.
    names_conversations: bool = False
    """True if the agent receives {{model_url}}, an address that names the conversation."""
    state: GatewayState = field(default_factory=GatewayState)
    ended: deque[GatewayConversation] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    _active: dict[str, GatewayConversation] = field(default_factory=dict)
    _openings: list[str] = field(default_factory=list)  # those of conversations under way without copies
    _left: anyio.Event = field(default_factory=anyio.Event)
    _free_lanes: deque[int] = field(init=False)
    _closed_lanes: set[int | None] = field(default_factory=set)
    _rests_until: dict[int | str, float] = field(default_factory=dict)
    """Lane or, without copies, opening → when the agent of its last conversation is idle."""

    def __post_init__(self) -> None:
        self.overrides = {
            agent: each if each and each.settings else None for agent, each in self.overrides.items()
        }
        self._free_lanes = deque(range(1, self.lanes + 1))
        self.state.on_note = self.on_note

    @property
    def active(self) -> Collection[GatewayConversation]:
        return self._active.values()

    def override_of(self, agent: str) -> Override | None:
        """Return an agent's override, or that which all agents share for a request of none of them."""
        if agent in self.overrides:
            return self.overrides[agent]
        first, *others = self.overrides.values() or (None,)
        return first if all(each == first for each in others) else None

    def named(self, key: str | None) -> GatewayConversation | None:
        return self._active.get(key or "")

    def learn(self, keys: Sequence[str]) -> None:
        """Let keys with which agents call their models be redacted in everything that is shown or stored."""
        if not self.state.keys.issuperset(keys):
            self.state.keys.update(keys)
            self.redact.learn(keys)

    async def watch(self, watch: BypassWatch) -> None:
        """Note what connects to the APIs behind the gateway while conversations are under way."""
        one_at_a_time = anyio.Lock()  # so that a turn does not end while what was found is not noted yet
        begun = 0

        async def look() -> None:
            nonlocal begun
            before = begun
            async with one_at_a_time:
                if begun > before:  # another turn's, which began later
                    return
                begun += 1
                for who, api in await anyio.to_thread.run_sync(watch.found):
                    what = f"{who} of the agent called a model at {api} past the gateway: let it use the "
                    what += "address in AGENTEST_MODEL_URL, or, if it calls no tools there, write "
                    what += f'model_gateway.direct_hosts: ["{URL(api).host_subcomponent}"]'
                    if api.endswith(OFTEN_SHARED):
                        self.state.note(f"perhaps {what}. Other services may have the same address")
                        continue
                    for each in self.active:
                        each.bypass = f"in turn {each.turn + 1} {what}"

        await anyio.to_thread.run_sync(watch.found)  # takes note of what was before
        self.state.look = look
        while True:
            await anyio.sleep(_LOOK_S)
            if self.active:
                await look()

    def close_lane(self, lane: int) -> None:
        """Give no further conversation to this copy of the agent's server, unless it is the last one."""
        if len(self._closed_lanes) + 1 >= self.lanes:
            return
        self._closed_lanes.add(lane)
        if lane in self._free_lanes:
            self._free_lanes.remove(lane)

    def rest(self, key: str, seconds: float) -> None:
        """Let the next conversation in this one's place wait, because its agent may still be at work."""
        conversation = self._active[key]
        conversation.given_up = True
        conversation.idle_at = self._rests_until[conversation.place] = anyio.current_time() + seconds

    def note_refused(self, problem: str, conversation: str | None, lane: int | None) -> None:
        """Report a request that the gateway does not take, and that the agent is not to blame for its error.

        Args:
            conversation: the key that its address names.
            lane: the copy of the agent's server that its address names.
        """
        self.state.note(f"a request of agent {self.agent!r} to its model was refused: {problem}")
        for each in self._active.values():
            if conversation in (None, each.who.key) and lane in (None, each.lane):
                each.note_fault(problem)

    def last_id(self, known: str) -> str:
        """Return the provider's id of the last answer behind an id that an agent received."""
        owner = self.state.owners.get(known)
        answers = owner.answers if owner else ()
        return next((each.answer_id for each in answers if each.answer_id and known in each.shown.ids), known)

    @asynccontextmanager
    async def under_way(
        self,
        who: port.Identity,
        serving: port.ActiveConversation,
        access: port.ModelAccess,
        outside: WaitingBlock = nullcontext,
    ) -> AsyncIterator[GatewayConversation]:
        """Take requests of a conversation until the block ends.

        Each copy of the agent's server has one conversation at a time. Without copies or addresses that name
        the conversation, conversations run one after the other if one begins with the text, or a part of the
        text, with which the other begins, because their requests cannot be told apart.
        """
        async with self._place(access.opening, outside) as lane:
            if not self.active:  # what the agent did before, such as at its start, is of no conversation
                await self.state.look()
            self.state.begun += 1
            conversation = GatewayConversation(
                gateway=self.state,
                number=self.state.begun,
                who=who,
                serving=serving,
                mocked=access.mocked if self.mocks else frozenset(),
                allows_real=self.allows_real,
                log=RequestLog(redact=self.redact),
                lane=lane,
                place=lane or on_one_line(access.opening),
                recorded=access.recorded if self.mocks else frozenset(),
                named=access.named,
                faults=ConversationFaults(access.faults) if access.faults else None,
                timeout_s=access.timeout_s,
            )
            if access.recordings:
                conversation.tape = agent_tape(
                    access.recordings, access.tape_key, lambda: conversation.said_in
                )
            self._active[who.key] = conversation
            try:
                yield conversation
            finally:
                del self._active[who.key]
                conversation.end()
                conversation.idle_at = min(conversation.idle_at, anyio.current_time() + access.timeout_s)
                if len(self.ended) == _REMEMBERED:
                    self.ended[0].forget()
                conversation.log = RequestLog()
                self.ended.append(conversation)

    @asynccontextmanager
    async def _place(self, opening: str, outside: WaitingBlock) -> AsyncIterator[int | None]:
        if self.names_conversations and self.lanes == 1:
            yield None
            return
        opening = on_one_line(opening)
        lane, entered = None, False
        try:
            if (waits := self._must_wait(opening)) and self.lanes == 1:
                self.state.note(
                    f"conversations of agent {self.agent!r} that begin alike run one after the other, as its "
                    f"requests to the model do not name them: {WAY_TO_RUN_ALIKE}"
                )
            async with outside() if waits else nullcontext():
                while self._must_wait(opening):
                    await self._left.wait()
                lane, entered = self._enter(opening), True
            idle_at = self._rests_until.get(lane or opening, 0.0)
            if idle_at > anyio.current_time():
                async with outside():
                    await anyio.sleep_until(idle_at)
            yield lane
        finally:
            if lane is None and entered:
                self._openings.remove(opening)
            elif lane and lane not in self._closed_lanes:
                self._free_lanes.append(lane)
            self._left.set()
            self._left = anyio.Event()

    def _must_wait(self, opening: str) -> bool:
        if self.lanes > 1:
            return not self._free_lanes
        return any(is_part(opening, each) or is_part(each, opening) for each in self._openings)

    def _enter(self, opening: str) -> int | None:
        if self.lanes == 1:
            self._openings.append(opening)
            return None
        now = anyio.current_time()
        lane = min(self._free_lanes, key=lambda each: max(now, self._rests_until.get(each, now)))
        self._free_lanes.remove(lane)
        return lane

    def nobody(self, why: str) -> GatewayConversation:
        """Return what stands for the conversation of a request that belongs to none."""
        known = [*self.active, *self.ended]
        return GatewayConversation(
            gateway=GatewayState(output_tools=self.state.output_tools, on_note=self.state.note),
            who=port.Identity(key="", session_id=None, conversation_id="", scenario="", agent=""),
            serving=_Nobody(self, why),
            mocked=frozenset().union(*(each.mocked for each in known)),
            recorded=frozenset().union(*(each.recorded for each in known)),
            allows_real=self.allows_real or not known,
        )

    async def note_unplaced(self, unplaced: Unplaced, *, offers_tools: bool) -> None:
        """Tell of a request that belongs to no certain conversation, and doubt the calls of all under way."""
        self.state.note(
            f"a request of agent {self.agent!r} to its model could not be placed: {unplaced.why}. To run "
            "many conversations at once, let `server` start several copies of the agent (`copies`), or "
            "send the agent {{model_url}}, which names the conversation; or write exclusive: true"
        )
        if offers_tools:
            await _Nobody(self, unplaced.why).refused("could not be placed")


@dataclass(frozen=True, slots=True)
class _Nobody:
    traffic: GatewayTraffic
    why: str

    async def answer(self, call: port.ServedCall) -> port.ServedAnswer:
        await self.refused(f"was answered with a call of {call.tool!r}, but could not be placed")
        known = [*self.traffic.active, *self.traffic.ended]
        if not any(each.guards(call.tool) for each in known):
            return port.ServedAnswer(how=port.CallOutcome.REAL)
        message = (
            f"Agentest refuses a call of {call.tool!r}, because its request could not be placed: {self.why}"
        )
        self.traffic.state.note(message)
        return port.ServedAnswer(how=port.CallOutcome.REFUSED, message=message)

    async def answered(self, number: int, answer: port.RealAnswer) -> None:
        """Do nothing: its result is of no conversation."""

    async def refused(self, why: str, *, ours: bool = False) -> None:
        for each in list(self.traffic.active):
            text = f"a request to the model that it may have made {why}: {self.why}"
            await each.serving.refused(text, ours=ours)
