"""Format what an exploration found for the console: findings by severity, and what was not tried."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from agentest.domain.results import RunResult, Severity, Status
from agentest.domain.results.exploration import Explored, ExploredPart, Finding, FindingStatus
from agentest.plugin import if_command
from agentest.report.console.text import BLANK, SEVERITY_STYLES, ConsoleLine, DisplayOptions, line
from agentest.report.console.transcript import transcript_lines
from agentest.support.text import count, first_names

_COUNTED = (FindingStatus.NEW, FindingStatus.KNOWN)
_SHOWN = 20
_SHOWN_NOT_TRIED = 8
_LABEL = 10


def exploration_lines(result: RunResult, display: DisplayOptions) -> Iterator[ConsoleLine]:
    """Show the findings, the worst first, then what was tried and what was not."""
    explored = result.explored
    if explored is None:
        return
    for finding in explored.findings[:_SHOWN]:
        yield from finding_lines(finding, display)
    if len(explored.findings) > _SHOWN:
        yield line(0, (f"and {len(explored.findings) - _SHOWN} more findings (results.json has all)", "dim"))
        yield BLANK
    yield from _not_tried(explored, display)
    yield from _coverage(explored, display)
    yield from _totals(explored)
    spent = any("was spent" in each.why for each in explored.not_tried)
    if display.next_step and (result.interrupted or spent):
        yield line(0, (f"{display.next_step} goes on.", "yellow"))


def finding_lines(finding: Finding, display: DisplayOptions) -> Iterator[ConsoleLine]:
    """Show one finding: what is wrong, how often, where, and the smallest conversation that shows it."""
    style = SEVERITY_STYLES[finding.severity]
    status = "" if finding.status is FindingStatus.NEW else f" ({finding.status})"
    yield line(0, (finding.severity.label, style), f"  {finding.title}", (status, "dim"))
    yield _row("id", finding.id)
    if text := rate_text(finding):
        yield _row("fails", text)
    if finding.change:
        yield _row(str(finding.part).removesuffix("s"), finding.change)
    yield _row("scenario", f"{finding.scenario}  {finding.source}:{finding.line}")
    yield _row("seen", finding.text)
    if finding.also:
        yield _row("also", "; ".join(finding.also))
    if finding.transcript and finding.status is not FindingStatus.KNOWN and display.verbosity >= 0:
        yield from transcript_lines(finding.transcript, display, 4, faults=False)
    if finding.hint:
        yield _row("hint", finding.hint)
    if finding.part is ExploredPart.ATTACKS:
        yield _row("tags", ", ".join(finding.tags))
    if finding.file:
        yield _row("saved", finding.file)
        if replay := if_command("explore", f"agentest explore --replay {finding.id}"):
            yield _row("replay", replay)
    yield BLANK


def rate_text(finding: Finding) -> str:
    """Return how often a finding occurs, with its interval; "" if a saved scenario shows it."""
    if finding.rate is None:
        is_new = finding.status is FindingStatus.NEW
        return "in one conversation; it was neither confirmed nor reduced" if is_new else ""
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


def _coverage(explored: Explored, display: DisplayOptions) -> Iterator[ConsoleLine]:
    coverage = explored.coverage
    if coverage is None or not coverage.rules:
        return
    yield line(0, ("Covered", "bold"), ("  tries that reached the agent", "dim"))
    faults = coverage.cells.get(ExploredPart.FAULTS, {})
    classes = list(dict.fromkeys(each for row in faults.values() for each in row))
    width = max(map(len, ("mutations", *faults)))
    if faults:
        yield line(2, (f"{'faults':{width}}  {'  '.join(classes)}", "dim"))
    for tool, row in faults.items():
        numbers = "  ".join(f"{row.get(each, '-'):>{len(each)}}" for each in classes)
        yield line(2, f"{tool:{width}}  {numbers}", (_uncovered(row), "yellow"))
    most = None if display.detailed else _SHOWN_NOT_TRIED
    for part, rows in coverage.cells.items():
        for name, row in rows.items() if part != ExploredPart.FAULTS else ():
            if missing := _uncovered(row, most):
                done = f"{sum(map(bool, row.values()))} of {len(row)}"
                yield line(2, f"{part} × {name}  {done}", (missing, "yellow"))
    if unused := coverage.never_exercised:
        yield line(2, "Never exercised: ", (first_names(unused, most or len(unused)), "dim"))
    yield BLANK


def _uncovered(row: Mapping[str, int], most: int | None = None) -> str:
    names = [each for each, number in row.items() if not number]
    return f"  not covered: {first_names(names, most or len(names))}" if names else ""


def _totals(explored: Explored) -> Iterator[ConsoleLine]:
    parts = ", ".join(f"{number:,} {part}" for part, number in explored.by_part.items())
    tried = f"{count(explored.tries, 'variation')} tried" + (f" ({parts})" if parts else "")
    conversations = count(explored.conversations, "conversation")
    counts = Counter(each.status for each in explored.findings)
    found = ", ".join(f"{counts[status]} {status}" for status in FindingStatus if counts[status])
    bad = counts[FindingStatus.NEW] or counts[FindingStatus.KNOWN]
    heading, style = f"findings: {found}" if found else "no finding", "bold red" if bad else "bold green"
    if explored.untried:
        heading += f" in what was tried: {count(explored.untried, 'variation')} never ran"
        style = style if bad else "bold yellow"
    yield line(0, (heading, style), f"; {tried}, {conversations}")


class FindingPlace(NamedTuple):
    """The scenario that was changed."""

    file: str
    line: int


def finding_annotations(explored: Explored) -> Iterator[tuple[str, FindingPlace, str, str]]:
    """Yield level, place, title and message of an annotation for each new or known finding."""
    for each in explored.findings:
        if each.status in _COUNTED:
            level = "error" if each.severity >= Severity.HIGH else "warning"
            parts = (each.text, rate_text(each), each.change and f"{each.part}: {each.change}", each.hint)
            message = "\n".join(part for part in parts if part)
            yield level, FindingPlace(each.source, each.line), each.title, message


def finding_texts(explored: Explored) -> Iterator[str]:
    """Yield each new or known finding as text, the worst first."""
    for each in explored.findings:
        if each.status in _COUNTED:
            yield "\n".join(row.plain for row in finding_lines(each, DisplayOptions(verbosity=-1))).rstrip()


class FindingCase(NamedTuple):
    """A finding as the case of a test report."""

    name: str
    status: Status
    kind: str
    message: str
    text: str


def finding_cases(explored: Explored) -> Iterator[FindingCase]:
    """Yield a case for each finding: failed if it is new or known, skipped if it was seen once."""
    for each in explored.findings:
        status = Status.FAILED if each.status in _COUNTED else Status.PASSED
        if each.status is FindingStatus.SEEN_ONCE:
            status = Status.SKIPPED
        text = "\n".join(row.plain for row in finding_lines(each, DisplayOptions()))
        message = f"{each.severity.label}: {each.text}"
        yield FindingCase(f"{each.title} [{each.id}]", status, f"agentest.{each.oracle}", message, text)
