"""How many model calls a run can make at most, before anything is spent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil

from agentest.config.models import Batch
from agentest.conversation.user_prompts import MAX_ROUNDS
from agentest.domain.metrics import BUILTIN, Kind, MetricLevel
from agentest.judging.joining import GROUPS_PER_CALL, MOST_GROUPS
from agentest.judging.judge import TURNS_AT_ONCE
from agentest.runner.plan import Unit
from agentest.runner.prepare import Prepared

_ACROSS = "(root causes of the whole run)"


@dataclass(frozen=True, slots=True)
class Estimate:
    """The most calls of each role for one scenario, when every call is answered at the first attempt.

    Retries, repairs and custom metrics that ask a model come on top.
    """

    name: str
    agent: str
    user: int
    judge: int
    dedup: int

    @property
    def total(self) -> int:
        return self.user + self.judge + self.dedup


def estimate_of(prepared: Prepared, units: Sequence[Unit]) -> list[Estimate]:
    """The most calls of units of a prepared run."""
    judge = prepared.loaded.config.judge
    return estimate(
        units,
        user=prepared.asks("user"),
        judge=prepared.asks("judge"),
        samples=judge.samples,
        batch=judge.batch,
        check=prepared.loaded.config.user.check,
        confirm=prepared.confirm is not None,
    )


def estimate(
    units: Sequence[Unit],
    *,
    user: bool,
    judge: bool,
    samples: int = 1,
    batch: Batch = Batch.TURN,
    check: bool = False,
    confirm: bool = False,
) -> list[Estimate]:
    """The most calls of every unit, and of the whole run where scenarios may share root causes.

    Args:
        user, judge: whether a model plays that role.
        check: whether users are checked: each conversation may be held, and looked at, twice.
        confirm: whether a second model confirms what judges answer.
    """
    found = [_of(unit, user, judge, samples, batch) for unit in units]
    if judge and confirm:
        found = [_confirmed(*each, batch) for each in zip(found, units, strict=True)]
    if check:
        found = [_checked(*each, samples) for each in zip(found, units, strict=True)]
    return [*found, *_joining(units, found)]


def _joining(units: Sequence[Unit], estimates: Sequence[Estimate]) -> Iterator[Estimate]:
    """The calls that join the root causes of several scenarios."""
    grouped = [unit for unit, each in zip(units, estimates, strict=True) if each.dedup and unit.conversations]
    if len(grouped) < 2:
        return
    groups = min(MOST_GROUPS, sum(map(_most_labels, grouped)))
    yield Estimate(_ACROSS, "", user=0, judge=0, dedup=ceil(groups / GROUPS_PER_CALL))


def _most_labels(unit: Unit) -> int:
    """How many failures judges can label."""
    labels = [BUILTIN[metric] for metric in unit.metrics if BUILTIN[metric].kind is Kind.LABEL]
    turns = len(unit.scenario.turns) or unit.max_turns
    places = sum(len(each.labels) * (turns if each.level is MetricLevel.TURN else 1) for each in labels)
    return unit.conversations * places


def _checked(found: Estimate, unit: Unit, samples: int) -> Estimate:
    looks = 2 * samples * unit.conversations if found.user else 0
    return replace(found, user=2 * found.user, judge=found.judge + looks)


def _confirmed(found: Estimate, unit: Unit, batch: Batch) -> Estimate:
    """With a call for each turn, and one for the whole, of which some answer may fail the scenario."""
    scenario = unit.scenario
    can_fail = [m for m in unit.metrics if m in unit.thresholds or BUILTIN[m].kind is not Kind.SCALE]
    of_turn = sum(BUILTIN[metric].level is MetricLevel.TURN for metric in can_fail)
    of_whole = len(can_fail) - of_turn + sum(criterion.required for criterion in scenario.criteria)
    together = Batch.TURN if batch is Batch.OFF else batch
    calls = _calls(len(scenario.turns) or unit.max_turns, of_turn, of_whole, together)
    return replace(found, judge=found.judge + unit.conversations * calls)


def _of(unit: Unit, user: bool, judge: bool, samples: int, batch: Batch) -> Estimate:
    scenario = unit.scenario
    turns = len(scenario.turns) or unit.max_turns
    # A user who follows a plan opens with words of the plan.
    spoken = max(0, turns - 1) if scenario.plan else turns
    if scenario.user_tools:  # before each message it may use them, and is asked again each time
        spoken *= 1 + MAX_ROUNDS
    of_turn = _asked(unit, MetricLevel.TURN)
    of_whole = _asked(unit, MetricLevel.CONVERSATION) + len(scenario.criteria)
    per_conversation = _calls(turns, of_turn, of_whole, batch) if judge else 0
    graded = sum(grader.most_calls(turns) for grader in unit.graders)
    return Estimate(
        scenario.name,
        unit.agent,
        0 if scenario.scripted or not user else unit.conversations * spoken,
        unit.conversations * (per_conversation * samples + (graded if judge else 0)),
        # Custom metrics with labels may need it too, so it is counted wherever there is a judge.
        int(judge and any(BUILTIN[m].kind is Kind.LABEL for m in unit.metrics)),
    )


def _asked(unit: Unit, level: MetricLevel) -> int:
    return sum(BUILTIN[metric].level is level for metric in unit.metrics)


def _calls(turns: int, of_turn: int, of_whole: int, batch: Batch) -> int:
    """The calls for one conversation.

    Args:
        of_turn, of_whole: how many questions there are about each turn, and about the whole.
    """
    if batch is Batch.CONVERSATION:
        return ceil(turns / TURNS_AT_ONCE) if of_turn else int(of_whole > 0)
    if batch is Batch.TURN:
        return turns * int(of_turn > 0) + int(of_whole > 0)
    return turns * of_turn + of_whole


def shown(estimates: Sequence[Estimate], several_agents: bool) -> Iterable[str]:
    """The estimates as lines of a table."""
    yield f"{'user':>8} {'judge':>8} {'dedup':>8} {'total':>8}  scenario"
    for e in estimates:
        agent = f"  [{e.agent}]" if several_agents and e.agent else ""
        yield f"{e.user:8,} {e.judge:8,} {e.dedup:8,} {e.total:8,}  {e.name}{agent}"
    user, judge, dedup = (sum(getattr(e, role) for e in estimates) for role in ("user", "judge", "dedup"))
    yield f"{user:8,} {judge:8,} {dedup:8,} {user + judge + dedup:8,}  in all, at most"
    yield "Retries, repairs of unusable answers and custom metrics that ask a model come on top."
