"""Format what an exploration found for the console: findings by severity, and what was not tried."""

from __future__ import annotations

from collections.abc import Iterator

from agentest.domain.results import RunResult, Severity
from agentest.domain.results.exploration import Explored, Finding, FindingStatus
from agentest.report.console.text import BLANK, ConsoleLine, DisplayOptions, line
from agentest.report.console.transcript import transcript_lines
from agentest.support.text import count

_STYLES = {
    Severity.CRITICAL: "bold red",
    Severity.HIGH: "red",
    Severity.MEDIUM: "yellow",
    Severity.LOW: "dim",
}
_SHOWN = 20
_SHOWN_NOT_TRIED = 8
_LABEL = 10


def exploration_lines(result: RunResult, display: DisplayOptions) -> Iterator[ConsoleLine]:
    """Show the findings, the worst first, then what was tried and what was not."""
    explored = result.explored
    if explored is None:
        return
    for finding in explored.findings[:_SHOWN]:
        yield from _finding(finding, display)
    if len(explored.findings) > _SHOWN:
        yield line(0, (f"and {len(explored.findings) - _SHOWN} more findings (results.json has all)", "dim"))
        yield BLANK
    yield from _not_tried(explored, display)
    yield from _totals(explored)


def _finding(finding: Finding, display: DisplayOptions) -> Iterator[ConsoleLine]:
    style = _STYLES[finding.severity]
    status = "" if finding.status is FindingStatus.NEW else f" ({finding.status})"
    yield line(0, (finding.severity.label, style), f"  {finding.title}", (status, "dim"))
    yield _row("id", finding.id)
    if text := rate_text(finding):
        yield _row("fails", text)
    if finding.change:
        yield _row(str(finding.part).removesuffix("s"), finding.change)
    yield _row("scenario", f"{finding.scenario}  {finding.source}:{finding.line}")
    yield _row("seen", finding.text)
    if finding.transcript and finding.status is not FindingStatus.KNOWN and display.verbosity >= 0:
        yield from transcript_lines(finding.transcript, display, 4, faults=False)
    if finding.hint:
        yield _row("hint", finding.hint)
    if finding.file:
        yield _row("saved", finding.file)
        yield _row("replay", f"agentest explore --replay {finding.id}")
    yield BLANK


def rate_text(finding: Finding) -> str:
    """Return how often a finding occurs, with its interval; "" if that is unknown."""
    if finding.rate is None:
        return ""
    rate, form = finding.rate, "minimal" if finding.minimal else "reduced"
    return f"in {rate.k} of {rate.n} conversations ({rate.low:.0%} to {rate.high:.0%}) of the {form} scenario"


def _row(label: str, text: str) -> ConsoleLine:
    return line(2, text, lead=((f"{label:{_LABEL}}", "dim"),))


def _not_tried(explored: Explored, display: DisplayOptions) -> Iterator[ConsoleLine]:
    shown = explored.not_tried if display.detailed else explored.not_tried[:_SHOWN_NOT_TRIED]
    if not shown:
        return
    yield line(0, ("Not tried or not judged", "bold"))
    for each in shown:
        yield line(2, each.what, (f": {each.why}", "dim"))
    if len(explored.not_tried) > len(shown):
        yield line(2, (f"and {len(explored.not_tried) - len(shown)} more (all of them with -v)", "dim"))
    yield BLANK


def _totals(explored: Explored) -> Iterator[ConsoleLine]:
    parts = ", ".join(f"{number:,} {part}" for part, number in explored.by_part.items())
    tried = f"{count(explored.tries, 'variation')} tried" + (f" ({parts})" if parts else "")
    conversations = count(explored.conversations, "conversation")
    found = count(len(explored.findings), "finding") if explored.findings else "no finding"
    style = "bold red" if explored.findings else "bold green"
    yield line(0, (found, style), f"; {tried}, {conversations}")
