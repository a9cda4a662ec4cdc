"""Counts what an exploration reaches: outcomes of tools, and rules that conversations could have broken."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping

from agentest.config.config import INVARIANTS
from agentest.domain.faults import FAILING
from agentest.domain.results import CriterionOutcome
from agentest.domain.results.exploration import ExploredCoverage, ExploredPart
from agentest.domain.transcript import failed
from agentest.judging.safety_checks import CONSENT, NO_OBEYED_INJECTION, NO_SECRET
from agentest.plugins.explore.corpus import CorpusEntry, outcome_of, reached_outcomes
from agentest.plugins.explore.faults import met_faults
from agentest.plugins.explore.injected import took_effect
from agentest.plugins.explore.model import Base, Observation, TryOutcome, Variation
from agentest.plugins.explore.tool_effects import ToolEffects
from agentest.runner.plan import Unit
from agentest.scenarios.calls import ExpectedCall, name_matches, name_text
from agentest.scenarios.matchers.display import brief
from agentest.scenarios.model import Scenario
from agentest.scenarios.variations import base_mocks

_ERROR = "error"


class CoverageCounter:
    """Counts calls by tool and outcome, and conversations by the rules that they could have broken.

    Args:
        without: invariants that are switched off.
    """

    def __init__(self, effects_of: Callable[[Unit], ToolEffects], without: Iterable[str] = ()) -> None:
        self._effects_of = effects_of
        self._tools: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._rules: Counter[str] = Counter(
            dict.fromkeys((each for each in INVARIANTS if each not in without), 0)
        )

    def expect(self, bases: Iterable[Base], variations: Iterable[Variation]) -> None:
        """Add what can be reached, as not reached yet."""
        for base in bases:
            for tool in base_mocks(base.unit.scenario):
                self._tools[tool]["ok"] += 0
            for rule, _ in _bans(base.unit.scenario):
                self._rules[rule] += 0
            self._rules.update({_criterion(each.text): 0 for each in base.unit.scenario.criteria})
        for variation in variations:
            for fault in variation.scenario.faults:
                self._tools[fault.tool or ""][fault.kind] += 0

    def add(self, outcome: TryOutcome) -> None:
        """Count one conversation."""
        seen = Observation(*outcome, self._effects_of(outcome.base.unit))
        met = {each.position: each.fault for each in met_faults(seen.scenario, seen.conversation)}
        for position, call in enumerate(seen.conversation.tool_calls):
            kind = outcome_of(call, met.get(position))
            self._tools[call.name][_ERROR if kind.startswith(_ERROR) else kind] += 1
        for name, could_break in _EXERCISED.items():
            if name in self._rules and could_break(seen):
                self._rules[name] += 1
        names = {call.name for call in seen.conversation.tool_calls}
        wanted = {each.tool for each in seen.scenario.injections if each.place in names}
        tempted = names | {each for each in wanted if each}
        for rule, banned in _bans(seen.base.unit.scenario):
            self._rules[rule] += banned is None or any(name_matches(banned.name, each) for each in tempted)
        for criterion in outcome.result.criteria:
            self._rules[_criterion(criterion.text)] += criterion.result is not CriterionOutcome.CANNOT_TELL

    def coverage(self) -> ExploredCoverage:
        """Return what was reached so far."""
        return ExploredCoverage({name: dict(each) for name, each in self._tools.items()}, dict(self._rules))


def with_entries(coverage: ExploredCoverage, entries: Iterable[CorpusEntry]) -> ExploredCoverage:
    """Return the coverage with what only other explorations of the corpus reached, each counted once."""
    tools = {name: dict(outcomes) for name, outcomes in coverage.tools.items()}
    for name, kind in sorted({each for entry in entries for each in reached_outcomes(entry.elements)}):
        if name in tools:
            outcome = (
                _ERROR if kind.startswith(_ERROR) else kind.partition(" ")[0] if kind != "no mock" else kind
            )
            tools[name][outcome] = tools[name].get(outcome) or 1
    return ExploredCoverage(tools, coverage.rules)


def _criterion(text: str) -> str:
    return f"criterion: {text}"


def _bans(scenario: Scenario) -> Iterator[tuple[str, ExpectedCall | None]]:
    """Yield each ban of a scenario as text, with the call if it bans one."""
    for trajectory in scenario.trajectories:
        for call in trajectory.forbidden:
            yield f"never {name_text(call.name)}({brief(call.args) if call.args else ''})", call
    for saying in scenario.expect:
        if saying.never:
            yield f"never says {brief(saying.wanted)}", None


_EXERCISED: Mapping[str, Callable[[Observation], bool]] = {
    "no_error": lambda _: True,
    "in_schema": lambda seen: any(seen.effects.schema(call.name) for call in seen.conversation.tool_calls),
    "no_repeated_write": lambda seen: any(
        took_effect(call, seen.effects) for call in seen.conversation.tool_calls
    ),
    CONSENT: lambda seen: any(call.name in seen.scenario.consent for call in seen.conversation.tool_calls),
    NO_SECRET: lambda seen: bool(seen.scenario.secrets),
    NO_OBEYED_INJECTION: lambda seen: bool(seen.scenario.injections),
    "no_claim": lambda seen: any(
        each.fault.kind in FAILING and seen.effects.is_write(each.call.name)
        for each in met_faults(seen.scenario, seen.conversation)
    ),
    "grounded_ids": lambda seen: any(call.args for call in seen.conversation.tool_calls),
    "bounded": lambda seen: any(map(failed, seen.conversation.tool_calls)),
    "relation": lambda seen: seen.variation.part is ExploredPart.MUTATIONS,
}
"""Invariant → whether a conversation could have broken it."""
