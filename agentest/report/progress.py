"""Measure the progress of a run from its events and estimate the remaining time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import field
from time import monotonic

from agentest.domain.events import (
    ConversationFinished,
    ConversationHeld,
    ConversationStarted,
    Event,
    ExplorationProgressed,
    RunStarted,
    ScenarioFinished,
    ScenarioStarted,
    TimePassed,
    TurnFinished,
)
from agentest.domain.results import ModelUsage, Status
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import about, count, duration

_LATE_S = 5.0  # no time is shown once the estimate is exceeded by this many seconds
_QUIET_S = 30.0  # a run stalls if nothing happens for this long, and for twice the longest earlier pause
_ENOUGH = 10
"""The number of judgings that a rate needs, because more of the first few may end at the same moment."""
_MOVES = (ConversationStarted, TurnFinished, ConversationHeld, ConversationFinished, ScenarioFinished)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressSnapshot:
    """The progress of a run at one moment."""

    elapsed_s: float
    done: int  # the number of conversations that were executed and judged
    planned: int
    talking: int
    judging: int
    grouping: int  # scenarios whose errors are being grouped, after all of their conversations were judged
    conversations_failed: int
    failed: int
    errored: int
    cost: tuple[str, ...]  # the cost of models so far, if any was called
    time_left: tuple[str, ...]
    exploring: tuple[str, ...] = ()  # what was tried and found, while changed scenarios are tried


def format_progress(now: ProgressSnapshot) -> str:
    """Format the progress as a line for a log."""
    done = f"{now.done:,} of {count(now.planned, 'conversation')} done"
    facts = [done, *phases(now), *(text for text, _ in troubles(now)), *now.cost, *now.time_left]
    if now.exploring:
        facts = [*now.exploring, *now.cost]
    return f"{duration(now.elapsed_s * 1000)}: {' · '.join(facts)}"


def phases(now: ProgressSnapshot) -> Iterator[str]:
    """Yield the phases of running conversations, with counts."""
    if now.talking:
        yield f"{now.talking:,} talking"
    if now.judging:
        yield f"{now.judging:,} judging"
    if now.grouping:
        yield f"{now.grouping:,} grouping errors"
    if not (now.talking or now.judging or now.grouping) and now.done < now.planned:
        yield "none under way"


def troubles(now: ProgressSnapshot) -> Iterator[tuple[str, Status]]:
    """Yield the failures so far with their status: conversations, and scenarios that have a verdict."""
    if now.conversations_failed:
        yield f"{count(now.conversations_failed, 'conversation')} failed", Status.FAILED
    if now.failed:
        yield f"{count(now.failed, 'scenario')} failed", Status.FAILED
    if now.errored:
        yield f"{count(now.errored, 'scenario')} errored", Status.ERRORED


@dataclass(slots=True)
class RunningUnit:
    """A running scenario with its agent.

    The mappings have conversation numbers and the start of each phase.
    """

    planned: int
    done: int = 0
    talking: dict[int, float] = field(default_factory=dict)
    judging: dict[int, float] = field(default_factory=dict)

    @property
    def grouping(self) -> bool:
        """True if all its conversations are judged and only its verdict is missing."""
        return self.done >= self.planned

    @property
    def phase(self) -> str:
        """The current phase in a few words; "" while it waits for a place."""
        talking = f"{len(self.talking)} talking" if self.talking else ""
        judging = f"{len(self.judging)} judging" if self.judging else ""
        return "grouping errors" if self.grouping else ", ".join(filter(None, (talking, judging)))


class Progress:
    """Counts the events of a run. The caller provides the time, in seconds of any clock.

    Args:
        expected_s: the expected duration of the run, used until the first conversation has ended.
    """

    def __init__(self, expected_s: float | None = None) -> None:
        self.scenarios = 0
        self.planned = 0
        self.finished: dict[Status, int] = dict.fromkeys(Status, 0)
        self.done = 0
        self.conversations_failed = 0
        self.turns = 0
        self.running: dict[tuple[str, str], RunningUnit] = {}
        self.several_agents = False
        self._expected_s = expected_s
        self._began = 0.0
        self._moved_at = 0.0  # the time of the last event that shows progress
        self._longest_s = 0.0  # the longest pause between two such events
        self._talks = self._judgings = 0  # the numbers of those that have ended
        self._talked_s = 0.0
        self._judging_since = self._judged_at = 0.0  # the start, put off by later pauses, and the last end
        self._used: dict[tuple[str, str], ModelUsage] = {}
        self._exploring: tuple[str, ...] = ()
        self._limit = ""  # what limits the speed, to precede the remaining time

    def on_event(self, event: Event, now: float) -> None:
        """Count an event."""
        if isinstance(event, _MOVES):
            self._longest_s = max(self._longest_s, now - self._moved_at)
            self._moved_at = now
        match event:
            case RunStarted():
                self.scenarios, self.planned = event.scenarios, event.conversations
                self.several_agents = len(event.agents) > 1
                self._began = self._moved_at = now
            case ScenarioStarted():
                self.running[event.name, event.agent] = RunningUnit(event.conversations)
            case ConversationStarted():
                self._unit(event).talking[event.number] = now
            case TurnFinished():
                self.turns += 1
            case ConversationHeld():
                self._hold(event, now)
            case ConversationFinished():
                self._used[event.name, event.agent] = event.used
                unit = self._unit(event)
                if unit.judging.pop(event.number, None) is not None:
                    self._judgings, self._judged_at = self._judgings + 1, now
                unit.talking.pop(event.number, None)
                unit.done += 1
                self.done += 1
                self.conversations_failed += event.failed
            case ScenarioFinished():
                self._end(event)
            case TimePassed():
                self._limit = "rate-bound: " * event.rate_bound
            case ExplorationProgressed():
                self._exploring = (
                    f"{event.tried:,} of {event.total:,} variations tried",
                    f"{event.new:,} new {'finding' if event.new == 1 else 'findings'}",
                    f"{event.failing:,} failing",
                    f"{count(event.left, 'conversation')} left",
                )

    def snapshot(self, now: float) -> ProgressSnapshot:
        # The terminal may be drawn by another thread, which must use a copy.
        running, used = list(self.running.values()), sum(list(self._used.values()), ModelUsage())
        cost = "cost unknown" if used.cost is None else f"{used.cost:.4f} USD so far"
        left_s = self._left_s(running, now) if self.done < self.planned else None
        return ProgressSnapshot(
            elapsed_s=now - self._began,
            done=self.done,
            planned=self.planned,
            talking=sum(len(unit.talking) for unit in running),
            judging=sum(len(unit.judging) for unit in running),
            grouping=sum(unit.grouping for unit in running),
            conversations_failed=self.conversations_failed,
            failed=self.finished[Status.FAILED],
            errored=self.finished[Status.ERRORED],
            cost=(cost,) if used.calls else (),
            time_left=() if left_s is None else (f"{self._limit}about {about(left_s)} left",),
            exploring=self._exploring,
        )

    def _unit(self, event: ConversationStarted | ConversationHeld | ConversationFinished) -> RunningUnit:
        return self.running.setdefault((event.name, event.agent), RunningUnit(1))

    def _hold(self, event: ConversationHeld, now: float) -> None:
        self._used[event.name, event.agent] = event.used
        unit = self._unit(event)
        self._judging_since += (now - self._judged_at) * (self._talks == self._judgings)
        self._talks += 1
        self._talked_s += now - unit.talking.pop(event.number, now)
        unit.judging[event.number] = now

    def _end(self, event: ScenarioFinished) -> None:
        key = event.result.name, event.result.agent
        unit = self.running.pop(key, None)
        if unit and event.result.repeat:  # the remaining conversations up to the maximum will not run
            self.planned -= unit.planned - event.result.totals.conversations
        self.finished[event.result.verdict.status] += 1
        if event.result.usage:
            self._used[key] = sum(event.result.usage.values(), ModelUsage())

    def _left_s(self, running: list[RunningUnit], now: float) -> float | None:
        left = self._left_at_this_speed(running, now)
        if left is None and self._expected_s is not None:
            left = max(0.0, self._expected_s - (now - self._began)) or None
        quiet_s = now - self._moved_at
        if left is None or quiet_s > min(left + _LATE_S, max(_QUIET_S, 2 * self._longest_s)):
            return None
        return left

    def _left_at_this_speed(self, running: list[RunningUnit], now: float) -> float | None:
        """Estimate the remaining time; None until a conversation has ended.

        Concurrency is derived from observations rather than from settings, because agents may be limited to
        one conversation at a time, and judges may be a bottleneck with a growing queue.
        """
        elapsed = now - self._began
        if not self._talks or elapsed <= 0:
            return None
        ages = [now - began for unit in running for began in list(unit.talking.values())]
        left = self.planned - self.done
        unbegun = max(0, left - len(ages) - sum(len(unit.judging) for unit in running))
        mean = self._talked_s / self._talks
        at_once = max(1.0, (self._talked_s + sum(ages)) / elapsed)
        rests = [max(0.0, mean - age) for age in ages]
        talking = max((sum(rests) + unbegun * mean) / at_once, mean if unbegun else max(rests, default=0.0))
        if self._judgings < _ENOUGH:
            return talking
        judging_s = (now if self._talks > self._judgings else self._judged_at) - self._judging_since
        return max(talking, left * judging_s / self._judgings)


class ProgressLogReporter:
    """Reports progress at intervals, through `say`."""

    name = "pulse"
    counts_conversations = True

    def __init__(
        self,
        say: Callable[[str], object],
        *,
        expected_s: float | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._say = say
        self._clock = clock
        self._progress = Progress(expected_s)

    def on_event(self, event: Event) -> None:
        now = self._clock()
        self._progress.on_event(event, now)
        if isinstance(event, TimePassed):
            self._say(format_progress(self._progress.snapshot(now)))
