"""Format rates and averages with their intervals, and explain what a run of this size can detect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from agentest.domain.confidence import run_pass_hat_k, run_pass_rate
from agentest.domain.results import Figure, RunResult, ScenarioResult
from agentest.support.statistics.power import detectable_rate, draws_needed

BRACKETS = "In brackets: 95% intervals."
_EXPECTED_RATE = 0.9
"""The pass rate that others are compared with."""
_LOWER_RATES = (0.6, 0.7, 0.8, 0.85)
"""The pass rates to distinguish from it, in the order of the search for the first undetectable one."""
_ENOUGH_CONVERSATIONS = 2_000
"""This many conversations distinguish all of these rates, so larger numbers are not calculated."""
_SHOWN_K = (2, 3, 5, 10, 20, 50, 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The number of passed conversations in a number of scenarios; `agent` is "" if there is only one."""

    agent: str
    rate: Figure
    scenarios: int
    all_pass: Mapping[int, float]
    """k → pass^k, for selected k."""

    @property
    def facts(self) -> list[str]:
        """Return the pass rate with n, and each pass^k."""
        where = f" in {self.scenarios:,} scenarios" if self.scenarios > 1 else ""
        shown = f"{rate_text(self.rate)} (n {self.rate.n:,}{where})"
        return [shown, *(f"pass^{k} {percent(value)}" for k, value in self.all_pass.items())]


def percent(share: float) -> str:
    """Format a share as a percentage. Only exact values appear as 0 % and 100 %."""
    if share <= 0 or share >= 1 or 0.01 <= share < 0.995:
        return f"{share:.0%}"
    return "<0.1%" if share < 0.001 else ">99.9%" if share >= 0.9995 else f"{share:.1%}"


def rate_text(rate: Figure) -> str:
    """Format a share with its interval."""
    if rate.low is None or rate.high is None:
        return percent(rate.value)
    low, high = percent(rate.low), percent(rate.high)
    return f"{percent(rate.value)} [{low.removesuffix('%')}–{high}]"


def passed_text(result: ScenarioResult) -> str:
    """Format the pass rate of a scenario; "" for at most one decided conversation."""
    rate = result.pass_rate
    if rate is None or rate.n < 2:
        return ""
    known = "" if rate.n == result.totals.conversations else f" of the {rate.n:,} that passed or failed"
    return f"{rate_text(rate)}{known}"


def interval_text(figure: Figure | None) -> str:
    """Format the interval of an average, with a leading space; "" if unknown."""
    if figure is None or figure.low is None or figure.high is None:
        return ""
    return f" [{figure.low:.2f}, {figure.high:.2f}]"


def run_rates(result: RunResult) -> list[Rates]:
    """Return the rates of the run, or of each agent in a comparison; none for single conversations."""
    by_agent = {name: [s for s in result.scenarios if s.agent == name] for name in result.agents}
    parts = by_agent if result.comparison else {"": result.scenarios}
    found = [rates for agent, scenarios in parts.items() for rates in _rates(agent, scenarios)]
    return found if sum(each.rate.n for each in found) > 1 else []


def detection_limits(result: RunResult) -> str | None:
    """Explain which drops this number of conversations can detect; None for at most one per scenario."""
    several = [s for s in result.scenarios if s.pass_rate and s.pass_rate.n > 1]
    if not several:
        return None
    sizes = {_conversations_per_scenario(s) for s in several}
    least, most = min(sizes), max(sizes)
    if least == most:
        up_to = "Up to " if all(s.repeat for s in several) else ""
        return f"{up_to}{least:,} conversations a scenario {_detectable_text(least)}."
    return f"Of {least:,} to {most:,} conversations a scenario, {least:,} {_detectable_text(least)}."


def _rates(agent: str, scenarios: Sequence[ScenarioResult]) -> Iterator[Rates]:
    if rate := run_pass_rate(scenarios):
        all_pass = run_pass_hat_k(scenarios)
        yield Rates(
            agent=agent,
            rate=rate,
            scenarios=len({(s.file, s.name) for s in scenarios if s.pass_rate}),
            all_pass={k: all_pass[k] for k in _SHOWN_K if k in all_pass},
        )


def _conversations_per_scenario(scenario: ScenarioResult) -> int:
    """Return the number of conversations that counts for detection; `repeat` may need few to decide."""
    held = scenario.pass_rate.n if scenario.pass_rate else 0
    return scenario.repeat.max if scenario.repeat else held


def _detectable_text(size: int) -> str:
    told = detectable_rate(min(size, _ENOUGH_CONVERSATIONS), _EXPECTED_RATE) or 0.0
    can = f"can tell a pass rate of {percent(_EXPECTED_RATE)} from {int(told * 100)}%"
    missed = next((other for other in _LOWER_RATES if other > told), None)
    if missed is None:
        return can
    return f"{can}, not from {percent(missed)}: that takes {draws_needed(missed, _EXPECTED_RATE):,}"
