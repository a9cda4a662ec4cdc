"""One conversation of a unit: run, checked and judged in the process that talks to the agent.

A turn is judged as soon as it closes, without occupying one of the slots of running conversations. A slow
judge therefore delays no conversation, until very many conversations wait for judges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, Protocol

import anyio

from agentest.conversation.turn_loop import OnTurn
from agentest.domain.end_reason import Ending
from agentest.domain.results import ConversationResult
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import Blame, Conversation, Failure, TimeSpent, Turn
from agentest.domain.truncation import stored
from agentest.models.port import CallKey
from agentest.runner.plan import Unit
from agentest.runner.session import Settings, UnitConnections
from agentest.runner.sources import ConversationRequest, ConversationSource
from agentest.runner.units import UnitEvaluation
from agentest.support.lazy_dataclasses import dataclass, replace

if TYPE_CHECKING:
    from agentest.judging.custom_metrics import Metric
    from agentest.judging.evaluation import ConversationEvaluation
    from agentest.judging.role_check import RoleFinding, UserCheck

_JUDGED_PER_SLOT = 10
"""How many finished conversations may wait for judges, per slot. More would fill the memory."""


class RunningConversation(Protocol):
    """One running conversation, as the executor sees it."""

    def on_turn(self, conversation_id: str, turn_index: int, *, handed_over: bool) -> None:
        """Report a closed turn. `handed_over`: the agent handed over a call in it."""

    def on_ended(self) -> None:
        """Report that the conversation has ended, and release its slot; judges may still be running."""

    def slot_released(self) -> AbstractAsyncContextManager[None]:
        """Release the slot for a block in which the conversation waits for others."""

    async def reacquire_slot(self) -> None:
        """Wait for a slot to run the conversation once more, because its outcome was lost."""


@dataclass(frozen=True, slots=True)
class JudgedConversation:
    """A conversation that was run and judged."""

    result: ConversationResult
    """Incomplete if a worker wrote the JSON: it lacks fields that nothing reads before the scenario ends."""
    json: bytes | None = None  # the entry of results.json, if a worker wrote it
    rerun_reason: str = ""  # why it was run a second time: its simulated user broke its role
    measured: bytes = b""  # the JSON of its measurements, if a worker wrote it


class ConversationRunner(Protocol):
    """Runs conversations and has them judged, in this process or in others."""

    async def run(self, unit: Unit, number: int, ongoing: RunningConversation) -> JudgedConversation:
        """Run the conversation of this number (from 1). Never raises for what happens inside it."""

    def end(self, unit: Unit) -> None:
        """Release a unit whose conversations have all finished."""

    async def settle(self) -> None:
        """After a stop: wait until the model usage of the interrupted conversations is known."""


class _TimedConversation(NamedTuple):
    """A conversation that has ended, with its times by `perf_counter`, without waits for others."""

    conversation: Conversation
    began: float
    ended: float


class LocalConversationRunner:
    """Runs conversations in this process."""

    def __init__(
        self,
        source: ConversationSource,
        custom: Sequence[Metric],
        settings: Settings,
        connections: UnitConnections,
    ) -> None:
        self._source = source
        self._evaluation = UnitEvaluation(custom, settings, connections)
        self._user_check: UserCheck | None = None
        self._may_repeat = settings.user_checks > 1
        if settings.user_checks and connections.models.judge:
            from agentest.judging.role_check import UserCheck

            self._user_check = UserCheck(connections.models.judge, settings.judge.samples, self._may_repeat)
        self._redact = connections.redact
        self._judging_slots = anyio.Semaphore(_JUDGED_PER_SLOT * settings.concurrency, fast_acquire=True)

    async def run(
        self, unit: Unit, number: int, ongoing: RunningConversation, ids_end: str = ""
    ) -> JudgedConversation:
        """Run the conversation of this number and have it judged.

        Args:
            ids_end: suffix of its id, because the agent may know a lost conversation of the same number.
        """
        instructions = self._source.user_instructions(unit) if self._user_check else None
        repeatable = self._may_repeat and instructions is not None
        request = _AssignedRun(unit, number, ongoing, ids_end, instructions, repeatable)
        # Judges wait for the check of the user, because a discarded conversation need not be judged.
        # An attack makes the agent forget turns, which are then no part of the conversation.
        at_end = repeatable or unit.scenario.attack is not None
        evaluation = self._evaluation.begin(unit, number, at_end=at_end)
        timed, rerun_reason = await self._run_and_judge(request, evaluation)
        await evaluation.settle(timed.conversation)
        result = self._result(timed, evaluation)
        return JudgedConversation(stored(result, self._redact), rerun_reason=rerun_reason)

    async def _run_and_judge(
        self, request: _AssignedRun, evaluation: ConversationEvaluation
    ) -> tuple[_TimedConversation, str]:
        closed: list[tuple[Turn, ...]] = []
        async with AsyncExitStack() as until_judged, anyio.create_task_group() as judging:

            def judge(turns: tuple[Turn, ...]) -> None:
                judging.start_soon(evaluation.add_turn, turns)

            # A task for each turn would cost more than an evaluation that does not wait.
            on_turn = judge if self._evaluation.may_wait(request.unit) else closed.append
            timed, rerun_reason = await self._run_checked(request, on_turn)
            for turns in closed:
                await evaluation.add_turn(turns)
            await until_judged.enter_async_context(self._judging_slots)
            request.ongoing.on_ended()
            if not request.repeatable:
                timed = _invalidated(timed, await self._check_user(timed, request))
            if timed.conversation.invalid is None:
                await evaluation.add_conversation(timed.conversation)
        return timed, rerun_reason

    def _result(self, timed: _TimedConversation, evaluation: ConversationEvaluation) -> ConversationResult:
        conversation, now = timed.conversation, perf_counter()
        judges_ms = (now - timed.ended) * 1000 if self._evaluation.needs_judge else 0.0
        waits = conversation.time
        total_ms = (now - timed.began) * 1000
        time = TimeSpent(total_ms, waits.agent_ms, waits.user_ms, waits.tools_ms, judges_ms, waits.model_ms)
        if conversation.invalid is not None:
            return ConversationResult(conversation, time=time, invalid=conversation.invalid)
        return replace(evaluation.result(conversation), time=time)

    def end(self, unit: Unit) -> None:
        self._evaluation.end(unit)

    async def settle(self) -> None:
        """Return at once: cancelled conversations have already ended."""

    async def _run_checked(self, request: _AssignedRun, judge: OnTurn) -> tuple[_TimedConversation, str]:
        first = await self._run(request, judge)
        finding = await self._check_user(first, request) if request.repeatable else None
        if finding is None or not finding.broken:
            return _invalidated(first, finding), ""
        second = await self._run(request, judge, attempt=1)
        checked = await self._check_user(second, request, attempt=1)
        return _invalidated(second, checked), finding.text

    async def _check_user(
        self, timed: _TimedConversation, request: _AssignedRun, attempt: int = 0
    ) -> RoleFinding | None:
        conversation, instructions = timed.conversation, request.instructions
        is_over = conversation.turns and not conversation.failure
        if self._user_check is None or instructions is None or not is_over:
            return None
        key = CallKey("judge", request.unit.scope, request.number)
        has_tools = bool(request.unit.scenario.user_tools)
        finding = await self._user_check.check(instructions, conversation, key, attempt, has_tools=has_tools)
        return finding and replace(finding, text=self._redact.error(finding.text))

    async def _run(self, request: _AssignedRun, judge: OnTurn, attempt: int = 0) -> _TimedConversation:
        unit, number, ongoing, ids_end, *_ = request
        conversation_id = f"{unit.slug}-{number}{'-again' * attempt}{ids_end}"
        waited_s = 0.0

        @asynccontextmanager
        async def slot_released() -> AsyncIterator[None]:
            nonlocal waited_s
            since = perf_counter()
            try:
                async with ongoing.slot_released():
                    yield
            finally:
                waited_s += perf_counter() - since

        def on_turn(turns: tuple[Turn, ...]) -> None:
            received = (call.mocked or call.seen_by in _HANDED_OVER for call in turns[-1].tool_calls)
            handed_over = unit.traits.tools_on_either_side and any(received)
            ongoing.on_turn(conversation_id, turns[-1].turn_index, handed_over=handed_over)
            judge(turns)

        began = perf_counter()
        wanted = ConversationRequest(unit, number, conversation_id, on_turn, slot_released, attempt)
        conversation = await self._source.converse(wanted)
        return _TimedConversation(conversation, began + waited_s, perf_counter())


class _AssignedRun(NamedTuple):
    unit: Unit
    number: int
    ongoing: RunningConversation
    ids_end: str
    instructions: str | None  # those of its simulated user, if it is checked
    repeatable: bool


def lost_conversation_result(unit: Unit, number: int, problem: str) -> ConversationResult:
    """Return the result of a conversation that was lost to a problem the agent did not cause."""
    failure = Failure(Blame.INTERNAL, problem)
    return ConversationResult(Conversation(f"{unit.slug}-{number}", (), Ending.ERROR, failure))


def blamed_on_agent(finished: JudgedConversation) -> JudgedConversation:
    """Return the conversation with its failure as the agent's own."""
    conversation = finished.result.conversation
    failure = conversation.failure and replace(conversation.failure, blame=Blame.AGENT)
    result = replace(finished.result, conversation=replace(conversation, failure=failure))
    return replace(finished, result=result, json=None)  # a failed result is complete


def _invalidated(timed: _TimedConversation, finding: RoleFinding | None) -> _TimedConversation:
    if finding is None:
        return timed
    return timed._replace(conversation=replace(timed.conversation, invalid=finding.text))


MOST_TRIALS = 5  # maximum number of trials per agent, so that a suite without tool calls does not stay slow
_HANDED_OVER = (SeenBy.CALLER, SeenBy.MOCK_SERVER)


def bypass_reason(unit: Unit, failure: Failure) -> str:
    """Return why the run must stop after a conversation in which the agent ran a mocked tool itself."""
    from agentest.agents.bypassed_tools import quote_tool_names

    return (
        f"agent {unit.agent!r} ran {quote_tool_names(failure.bypassed)} itself, which scenario "
        f"{unit.scenario.name!r} mocks: the real tool ran, so the run was stopped"
    )


class Trial:
    """One conversation that runs alone."""

    def __init__(self) -> None:
        self.decided = anyio.Event()  # set when the next one may begin
        self.ended = anyio.Event()  # set when it has ended and no real tool ran in it


class Trials:
    """Tracks which agents have yet to show that they hand over their calls."""

    def __init__(self, *, live: bool = True) -> None:
        self._live = live
        self._settled: set[str] = set()
        self._ended: Counter[str] = Counter()
        self._under_way: dict[str, Trial] = {}

    def are_needed(self, unit: Unit) -> bool:
        """Return True if this unit's conversations must run alone, as far as known now."""
        wanted = self._live and unit.traits.tools_on_either_side and unit.scenario.is_mocked
        return bool(wanted) and unit.agent not in self._settled

    def begin(self, agent: str) -> Trial:
        trial = self._under_way[agent] = Trial()
        return trial

    def hand_over(self, agent: str) -> None:
        """Note that the agent handed over a call, so that all others may begin."""
        self._settled.add(agent)
        if trial := self._under_way.get(agent):
            trial.decided.set()

    def end(self, agent: str, trial: Trial) -> None:
        """Note that a trial has ended and no real tool ran in it."""
        self._ended[agent] += 1
        if self._ended[agent] >= MOST_TRIALS:
            self._settled.add(agent)
        trial.decided.set()
        trial.ended.set()
