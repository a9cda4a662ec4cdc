"""Format one finished scenario for the console: a headline, followed by the reasons why it did not pass.

A scenario that passed needs no transcripts, so their module is imported for the others alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from agentest.domain.metrics import LIMITS, PASS_RATE
from agentest.domain.results import AttackRate, JudgeCalibration, ScenarioResult, Status, UniqueError
from agentest.domain.verdict import threshold_status
from agentest.report.console.text import (
    BLANK,
    SEVERITY_STYLES,
    STYLES,
    Chunk,
    ConsoleLine,
    DisplayOptions,
    Part,
    labelled,
    line,
    numbers_of,
    rows_of,
)
from agentest.report.content import ScenarioReport, decided, interval_text, passed_text
from agentest.support.redaction import CredentialFilter
from agentest.support.terminal import clean, clean_for_log
from agentest.support.text import count, cut_name, duration

_LEAST_NAME_CHARS = 24  # a name is cut to no less, and then has a row of its own
_WIDE = 10_000


def scenario_lines(result: ScenarioResult, display: DisplayOptions) -> list[ConsoleLine]:
    """Return all lines of a finished scenario; only scenarios that did not pass have details."""
    status = result.verdict.status
    if status is Status.SKIPPED:
        from agentest.report.console.transcript import reason_line

        return [headline(result, display), *(reason_line(r, display, 4) for r in result.verdict.reasons)]
    findings: list[ConsoleLine] = []
    if attack := result.attack:
        rows = [attack_text(result, attack), *attack.notes]
        findings += labelled(4, f"attack {attack.strategy}: ", rows, "bold")
    for warning in result.warnings:
        findings += labelled(4, "warning: ", rows_of(warning), "yellow")
    for group in result.errors:
        findings += _error_group(group, result, display)
    if status is Status.PASSED and not display.detailed:
        return [headline(result, display), *findings]
    from agentest.report.console.transcript import cause_lines, conversations_lines, criteria_lines

    findings += criteria_lines(result, display)
    if chunks := averages_text(result, display.calibrations):
        findings.append(ConsoleLine(("    ",), tuple(chunks)))
    causes = [*cause_lines(ScenarioReport(result), display)]
    if result.case:
        from agentest.report.console.case import shortfall_lines

        causes += shortfall_lines(result, display)
    conversations = conversations_lines(result, display) if display.detailed else ()
    return [headline(result, display), *causes, *conversations, *findings, BLANK]


def attack_text(result: ScenarioResult, attack: AttackRate) -> str:
    """Return how often attacks succeeded, and the published categories that they belong to."""
    share, interval = attack.successes / attack.attempts, f"{attack.low:.0%} to {attack.high:.0%}"
    tags = ", ".join(tag for tag in result.tags if tag.startswith(("OWASP ", "NIST ")))
    attempts = count(attack.attempts, "attempt")
    return f"{attack.successes} of {attempts} succeeded ({share:.0%}, {interval}) · {tags}"


def headline(
    result: ScenarioResult,
    display: DisplayOptions,
    names: dict[str, str] | None = None,
    *,
    amended: bool = False,
) -> ConsoleLine:
    """Return the line that summarizes a scenario.

    Args:
        names: of the scenarios shown so far; the line is brief, and a long name is cut so that it is new.
        amended: the line of an earlier verdict was shown; the line says what the verdict is now, and why.
    """
    status, name, location = result.verdict.status, result.name, ScenarioReport(result).location
    badge: Chunk = ((display.glyphs.badge(status), STYLES[status]), "  ")
    if names is not None:
        room = (display.width or _WIDE) - len(display.glyphs.badge(status)) - len(location) - 5
        name = cut_name(name, room := max(room, _LEAST_NAME_CHARS), names)
    chunks: list[Chunk] = [((name, "bold"),)]
    if location != result.name:
        chunks.append(((location, "cyan"),))
    if display.several_agents:
        chunks.append(((f"[{result.agent}]", "magenta"),))
    brief = names is not None or (status is Status.PASSED and not display.detailed)
    if amended:
        codes = ", ".join(dict.fromkeys(each.code for each in result.verdict_warnings if not each.note))
        chunks.append(((f"now {status}{codes and f': {codes}'}", "dim"),))
    elif facts := " · ".join(_brief_facts(result) if brief else _facts(result)):
        chunks.append(((facts, "dim"),))
    return ConsoleLine(badge, tuple(chunks), cut=brief and (names is None or len(name) <= room))


def averages_text(
    result: ScenarioResult, calibrations: Mapping[str, JudgeCalibration] = MappingProxyType({})
) -> list[Chunk]:
    """Return each average with its threshold, colored by the verdict on it."""
    of_averages = (name for name in result.thresholds if name not in (PASS_RATE, *LIMITS))
    names = dict.fromkeys([*result.averages, *of_averages])
    return [_average(name, result, calibrations.get(name)) for name in names]


def passed_conversations(result: ScenarioResult) -> str:
    return f"{result.totals.passed}/{result.totals.conversations}"


def _brief_facts(result: ScenarioResult) -> Iterator[str]:
    totals = result.totals
    if totals.conversations and (result.case or totals.passed == totals.conversations):
        yield count(totals.conversations, "conversation" if result.case is None else "run")
    elif totals.conversations > 1:
        yield f"{passed_conversations(result)} conversations passed"
    yield from ["flaky"] if result.flaky else []
    if text := decided(result):
        yield text


def _facts(result: ScenarioResult) -> Iterator[str]:
    totals = result.totals
    if totals.conversations and result.case is not None:
        # Its scores are averaged over all runs, so a single run neither passes nor fails.
        yield count(totals.conversations, "run")
    elif totals.conversations:
        rate = result.thresholds.get(PASS_RATE)
        least = f"{PASS_RATE} ≥ {rate:g}" if rate is not None else ""
        noun = "conversation" if totals.conversations == 1 else "conversations"
        yield f"{passed_conversations(result)} {noun} passed{_in_parentheses(passed_text(result), least)}"
        yield from ["flaky"] if result.flaky else []
        if text := decided(result):
            yield text
    if totals.conversations:
        yield count(totals.turns, "turn")
        yield count(totals.tool_calls, "tool call")
    if totals.conversations or result.duration_ms:
        yield duration(result.duration_ms)


def _average(name: str, result: ScenarioResult, judge: JudgeCalibration | None) -> Chunk:
    value = f"{result.averages[name]:.2f}" if name in result.averages else "not scored"
    least, figure = result.thresholds.get(name), result.intervals.get(name)
    about = _in_parentheses(
        f"≥ {least:g}" if least is not None else "",
        f"n {figure.n:,}" if figure else "",
        "for information" if least is None and name in result.information else "",
    )
    right = f", {judge.shown}" if judge and name in result.averages else ""
    against = result.totals.evidence.get(name, {})
    evidence = "".join(f", {each} in {count(times, 'turn')}" for each, times in against.items())
    more = f"{interval_text(figure)}{about}{right}{evidence}"
    if least is None:
        return ((f"{name} {value}{more}", "dim"),)
    return f"{name} ", (value, STYLES[threshold_status(name, result.verdict)]), (more, "dim")


def _in_parentheses(*facts: str) -> str:
    text = ", ".join(filter(None, facts))
    return f" ({text})" if text else ""


def _error_group(
    group: UniqueError, result: ScenarioResult, display: DisplayOptions
) -> Iterator[ConsoleLine]:
    mark: Part = (
        display.mark(Status.FAILED) if group.fails else " " * len(display.glyphs.marks[Status.FAILED])
    )
    severity = (f"{group.severity.label}: ", SEVERITY_STYLES[group.severity])
    what = f"{group.label}, {count(len(group.occurrences), 'time')}"
    conversations = list(dict.fromkeys(each.rpartition("-F")[0] for each in group.occurrences))
    yield ConsoleLine(
        ("    ", mark, " "), ((severity, (what, "bold" if group.fails else "")), (numbers_of(conversations),))
    )
    if result.verdict.status is not Status.PASSED or display.verbose:
        for row in rows_of(group.explanation):
            yield line(8, row)
    for example in group.examples[:1]:
        from agentest.report.console.transcript import example_lines

        yield from example_lines(example, 8)


def block(result: ScenarioResult, *, verbose: bool = False, several_agents: bool = False) -> str:
    """Return the lines of a scenario without colors, credentials and a blank row at the end.

    Args:
        verbose: include transcripts; the result must still have its conversations.
    """
    display = DisplayOptions(verbosity=2 if verbose else 0, several_agents=several_agents)
    lines = scenario_lines(CredentialFilter()(result), display)
    return clean_for_log("\n".join(clean(line.plain) for line in lines).rstrip())
