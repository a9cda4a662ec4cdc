"""The invariants: what must hold in every conversation, and the oracles that decide it without a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentest.config.exploration import ExploreSettings
from agentest.domain.results import Severity
from agentest.explore.model import Observation, Oracle, TryOutcome, Violation
from agentest.explore.tool_effects import ToolEffects, effects

SEVERITIES: Mapping[str, Severity] = {
    "no_error": Severity.HIGH,
    "in_schema": Severity.HIGH,
    "no_repeated_write": Severity.CRITICAL,
    "consent": Severity.CRITICAL,
    "no_secret": Severity.CRITICAL,
    "no_obeyed_injection": Severity.CRITICAL,
    "no_claim": Severity.HIGH,
    "grounded_ids": Severity.HIGH,
    "bounded": Severity.MEDIUM,
}
"""Invariant → severity of a violation."""
ORACLES: tuple[tuple[str, Oracle], ...] = ()
"""Invariant and oracle, in the order in which they are used. `injected.py` has the oracles of injections."""


class ScenarioInvariants:
    """Looks at conversations with all oracles that neither settings nor scenario switch off (`Invariants`)."""

    def __init__(self, settings: ExploreSettings, oracles: Sequence[tuple[str, Oracle]] = ORACLES) -> None:
        self._settings = settings
        self._oracles = [each for each in oracles if each[0] not in settings.switched_off]
        self._effects: dict[str, ToolEffects] = {}

    def __call__(self, outcome: TryOutcome) -> Sequence[Violation]:
        """Return the violations in a conversation, one of each key."""
        unit, exclusions = outcome.base.unit, outcome.variation.scenario.explore
        if unit.scope not in self._effects:
            self._effects[unit.scope] = effects(unit, self._settings)
        observation = Observation(*outcome, self._effects[unit.scope])
        off = exclusions.without if exclusions else ()
        found: dict[object, Violation] = {}
        for name, oracle in self._oracles:
            if name not in off:
                for each in oracle(observation):
                    found.setdefault(each.key, each)
        return list(found.values())
