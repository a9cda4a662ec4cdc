"""What did not come to its end because the run was ended early: one count, whatever the reporter."""

from __future__ import annotations

from agentest.domain.results import RunResult
from agentest.support.text import count


def unfinished_text(result: RunResult) -> str:
    """The count in words; "" where all finished.

    "12 of 40 scenarios did not run; 3 ran in part (7 of their 15 conversations)".
    """
    left = result.unfinished
    of = f" of {count(len(result.scenarios), 'scenario')}"
    if len(result.agents) > 1:
        of += ", with each agent,"
    begun = [scenario for scenario in left if scenario.totals.conversations or scenario.duration_ms]
    parts = []
    if untouched := len(left) - len(begun):
        parts.append(f"{untouched:,}{of} did not run")
        of = ""
    if begun:
        held = sum(scenario.totals.conversations for scenario in begun)
        planned = sum(max(scenario.planned, scenario.totals.conversations) for scenario in begun)
        its = "its" if len(begun) == 1 else "their"
        parts.append(f"{len(begun):,}{of} ran in part ({held:,} of {its} {planned:,} conversations)")
    return "; ".join(parts)


def ended_early_text(result: RunResult) -> str:
    """Why the run ended early, and what did not finish; "" where it came to its end."""
    if not result.interrupted and not result.stopped:
        return ""
    why = "Interrupted" if result.interrupted else f"Ended before its end ({result.stopped})"
    return f"{why}: {unfinished_text(result) or 'all scenarios had finished'}"
