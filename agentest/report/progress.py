"""How far a run has come, and how long the rest of it may take: counted from its events, with a clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import monotonic

from agentest.domain.events import (
    ConversationFinished,
    ConversationHeld,
    ConversationStarted,
    Event,
    RunStarted,
    ScenarioFinished,
    ScenarioStarted,
    TimePassed,
    TurnFinished,
)
from agentest.domain.results import ModelUsage, Status
from agentest.support.text import about, count, duration

_SEP = " · "
_LATE_S = 5.0
"""By so much the rest may be late before no time is told for it."""
_QUIET_S = 30.0
"""Without a turn or a conversation for so long, and for twice as long as ever before, a run stands still."""


_MOVES = (ConversationStarted, TurnFinished, ConversationHeld, ConversationFinished, ScenarioFinished)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How far a run is at one moment."""

    elapsed_s: float
    done: int
    """Conversations that were held and judged."""
    planned: int
    talking: int
    judging: int
    grouping: int
    """Scenarios whose errors are being grouped: all of their conversations are judged."""
    conversations_failed: int
    failed: int
    errored: int
    cost: float | None
    """USD so far; None where a price is not known."""
    asked: bool
    """Whether a model was asked at all."""
    left_s: float | None
    """Seconds that the rest may take; None where nothing is known of it."""


def standing_line(now: Standing) -> str:
    """How far the run is, in a line for a log."""
    done = f"{now.done:,} of {count(now.planned, 'conversation')} done"
    facts = [done, *phases(now), *(text for text, _ in troubles(now)), *cost(now), *time_left(now)]
    return f"{duration(now.elapsed_s * 1000)}: {_SEP.join(facts)}"


def phases(now: Standing) -> Iterator[str]:
    """What conversations are under way with, by name."""
    if now.talking:
        yield f"{now.talking:,} talking"
    if now.judging:
        yield f"{now.judging:,} judging"
    if now.grouping:
        yield f"{now.grouping:,} grouping errors"
    if not (now.talking or now.judging or now.grouping) and now.done < now.planned:
        yield "none under way"


def troubles(now: Standing) -> Iterator[tuple[str, Status]]:
    """What went wrong so far, and how badly: conversations, and the scenarios that have a verdict."""
    if now.conversations_failed:
        yield f"{count(now.conversations_failed, 'conversation')} failed", Status.FAILED
    if now.failed:
        yield f"{count(now.failed, 'scenario')} failed", Status.FAILED
    if now.errored:
        yield f"{count(now.errored, 'scenario')} errored", Status.ERRORED


def cost(now: Standing) -> Iterator[str]:
    """What models have cost so far, where any was asked."""
    if now.asked:
        yield "cost unknown" if now.cost is None else f"{now.cost:.4f} USD so far"


def time_left(now: Standing) -> Iterator[str]:
    if now.left_s is not None and now.done < now.planned:
        yield f"about {about(now.left_s)} left"


@dataclass(slots=True)
class Unit:
    """A scenario against an agent that is under way. Numbers of its conversations → when they began that."""

    planned: int
    done: int = 0
    talking: dict[int, float] = field(default_factory=dict)
    judging: dict[int, float] = field(default_factory=dict)

    @property
    def grouping(self) -> bool:
        """Whether its conversations are all judged, and only its verdict is missing."""
        return self.done >= self.planned

    @property
    def phase(self) -> str:
        """What it is doing, in a few words; "" where it waits for a place."""
        talking = f"{len(self.talking)} talking" if self.talking else ""
        judging = f"{len(self.judging)} judging" if self.judging else ""
        named = ", ".join(filter(None, (talking, judging)))
        return "grouping errors" if self.grouping else named


class Progress:
    """Counts what happens in a run. Whoever feeds it says what time it is, in seconds of any clock.

    Args:
        expected_s: how long the run may take, by an earlier one; it counts until a conversation has ended.
    """

    def __init__(self, expected_s: float | None = None) -> None:
        self.scenarios = 0
        self.planned = 0
        self.finished: dict[Status, int] = dict.fromkeys(Status, 0)
        self.done = 0
        self.conversations_failed = 0
        self.turns = 0
        self.running: dict[tuple[str, str], Unit] = {}
        self.several_agents = False
        self._expected_s = expected_s
        self._began = 0.0
        self._moved_at = 0.0
        """When something went on last."""
        self._longest_s = 0.0
        """The longest time in which nothing went on, and then did."""
        self._pace = Pace()
        self._used: dict[tuple[str, str], ModelUsage] = {}

    def on_event(self, event: Event, now: float) -> None:
        """Count what has happened."""
        if isinstance(event, _MOVES):
            self._longest_s = max(self._longest_s, now - self._moved_at)
            self._moved_at = now
        match event:
            case RunStarted():
                self.scenarios, self.planned = event.scenarios, event.conversations
                self.several_agents = len(event.agents) > 1
                self._began = self._moved_at = now
            case ScenarioStarted():
                self.running[event.name, event.agent] = Unit(event.conversations)
            case ConversationStarted():
                self._unit(event).talking[event.number] = now
            case TurnFinished():
                self.turns += 1
            case ConversationHeld():
                self._used[event.name, event.agent] = event.used
                self._held(self._unit(event), event.number, now)
            case ConversationFinished():
                self._used[event.name, event.agent] = event.used
                self._judged(event, now)
            case ScenarioFinished():
                self._end(event)

    def standing(self, now: float) -> Standing:
        """How far the run is now."""
        # Who draws the terminal may be another thread: it looks at a copy.
        running, used = list(self.running.values()), sum(list(self._used.values()), ModelUsage())
        return Standing(
            elapsed_s=now - self._began,
            done=self.done,
            planned=self.planned,
            talking=sum(len(unit.talking) for unit in running),
            judging=sum(len(unit.judging) for unit in running),
            grouping=sum(unit.grouping for unit in running),
            conversations_failed=self.conversations_failed,
            failed=self.finished[Status.FAILED],
            errored=self.finished[Status.ERRORED],
            cost=used.cost,
            asked=used.calls > 0,
            left_s=self._left_s(running, now),
        )

    def _unit(self, event: ConversationStarted | ConversationHeld | ConversationFinished) -> Unit:
        return self.running.setdefault((event.name, event.agent), Unit(1))

    def _held(self, unit: Unit, number: int, now: float) -> None:
        self._pace.talked(now - unit.talking.pop(number, now), now)
        unit.judging[number] = now

    def _judged(self, event: ConversationFinished, now: float) -> None:
        unit = self._unit(event)
        if event.number in unit.judging:
            self._pace.judged(now - unit.judging.pop(event.number), now)
        unit.talking.pop(event.number, None)
        unit.done += 1
        self.done += 1
        self.conversations_failed += event.failed

    def _end(self, event: ScenarioFinished) -> None:
        place = event.result.name, event.result.agent
        unit = self.running.pop(place, None)
        if unit and event.result.repeat:  # of at most so many, the others are not held any more
            self.planned -= unit.planned - event.result.totals.conversations
        self.finished[event.result.verdict.status] += 1
        if event.result.usage:
            self._used[place] = sum(event.result.usage.values(), ModelUsage())

    def _left_s(self, running: list[Unit], now: float) -> float | None:
        elapsed = now - self._began
        ages = [now - began for unit in running for began in list(unit.talking.values())]
        judging = [now - began for unit in running for began in list(unit.judging.values())]
        unbegun = max(0, self.planned - self.done - len(ages) - len(judging))
        left = self._pace.left_s(elapsed, ages, judging, unbegun, now)
        if left is None and self._expected_s is not None:
            left = max(0.0, self._expected_s - elapsed) or None
        return None if left is None or self._stands_still(left, now) else left

    def _stands_still(self, left_s: float, now: float) -> bool:
        """Whether nothing has gone on for longer than this estimate or all that was seen can explain."""
        return now - self._moved_at > min(left_s + _LATE_S, max(_QUIET_S, 2 * self._longest_s))


_ENOUGH = 10
"""Judgings before their rate counts: of the first few nobody knows how many more end in the same moment."""
_NO_JUDGING_S = 0.05
"""What takes no longer has asked no model."""


class Pace:
    """How long conversations took so far, talking and being judged; seconds of any clock."""

    def __init__(self) -> None:
        self._talks = 0
        self._talked_s = 0.0
        self._finished = 0
        self._judgings = 0
        self._judged_s = 0.0
        self._being_judged = 0
        self._since = 0.0
        self._busy_s = 0.0

    def talked(self, seconds: float, now: float) -> None:
        """A conversation has been held, and is judged from now on."""
        self._talks += 1
        self._talked_s += seconds
        if not self._being_judged:
            self._since = now
        self._being_judged += 1

    def judged(self, seconds: float, now: float) -> None:
        """A conversation is judged."""
        self._finished += 1
        self._being_judged -= 1
        self._judged_s += seconds
        self._judgings += seconds > _NO_JUDGING_S
        if not self._being_judged:
            self._busy_s += now - self._since

    def left_s(
        self, elapsed_s: float, ages_s: Sequence[float], judging_s: Sequence[float], unbegun: int, now: float
    ) -> float | None:
        """How long the rest takes if it goes on like this; None before any conversation has ended.

        Not the settings, but what was seen says how much goes on at once: agents may stand in a line, and
        judges may be the narrow place, behind which conversations wait longer and longer.

        Args:
            ages_s: for how long those have been talking that still do.
            judging_s: the same of those that are being judged.
            unbegun: how many conversations have not begun.
        """
        if not self._talks or elapsed_s <= 0:
            return None
        talking = self._talking_s(elapsed_s, ages_s, unbegun)
        mean = self._judged_s / self._finished if self._finished else 0.0
        youngest = 0.0 if unbegun or ages_s else min(judging_s, default=mean)
        to_come = unbegun + len(ages_s)
        return max(talking + max(0.0, mean - youngest), self._queue_s(len(judging_s), to_come, now))

    def _talking_s(self, elapsed_s: float, ages_s: Sequence[float], unbegun: int) -> float:
        mean = self._talked_s / self._talks
        at_once = max(1.0, (self._talked_s + sum(ages_s)) / elapsed_s)
        rests = [max(0.0, mean - age) for age in ages_s]
        longest = mean if unbegun else max(rests, default=0.0)
        return max((sum(rests) + unbegun * mean) / at_once, longest)

    def _queue_s(self, judging: int, to_come: int, now: float) -> float:
        """How long the judges take for all that is left, at the rate at which they have worked."""
        if self._judgings < _ENOUGH:
            return 0.0
        busy_s = self._busy_s + (now - self._since if self._being_judged else 0.0)
        left = judging + to_come * self._judgings / self._finished
        return left * busy_s / self._judgings


class PulseReporter:
    """Says how far the run is whenever some time has passed, through `say`.

    Args:
        say: receives each line.
        expected_s: how long the run may take, by an earlier one.
        clock: seconds of any clock.
    """

    name = "pulse"

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
            self._say(standing_line(self._progress.standing(now)))
