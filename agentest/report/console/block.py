"""What the console says of one scenario, as plain text for a program that shows it elsewhere."""

from __future__ import annotations

from agentest.domain.results import ScenarioResult
from agentest.report.console.scenario import scenario_lines
from agentest.report.console.text import Look
from agentest.support.terminal import clean, in_log


def block(result: ScenarioResult, *, verbose: bool = False, several_agents: bool = False) -> str:
    """The lines of a scenario, without colours and without a blank row at the end.

    Args:
        verbose: with transcripts; the result must have kept its conversations.
    """
    look = Look(verbose=verbose, several_agents=several_agents)
    return in_log("\n".join(clean(line.plain) for line in scenario_lines(result, look)).rstrip())
