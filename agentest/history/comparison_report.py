"""Reports of a comparison: for the console, as Markdown and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from agentest.domain.results import Status
from agentest.history.compared_runs import MeasuredRun, MeasuredScenario, counts_failures
from agentest.history.comparison import (
    BETTER,
    ENOUGH_TO_BREAK,
    LATENCY,
    PASS_RATE,
    TESTED,
    WORSE,
    Change,
    ComparedFigure,
    Comparison,
    ScenarioChange,
)
from agentest.report.console.printer import Printer
from agentest.report.console.text import BLANK, ConsoleLine, Part, line
from agentest.report.markdown_text import inline, table_row
from agentest.support.json_text import json_document
from agentest.support.text import count

HEAD = ("", "base", "new", "difference", "95 % interval", "p", "")
_MIN_P_SHOWN = 0.001
_BROKE_TEXTS = {
    Change.BROKE: "always passed before, never passes now",
    Change.FIXED: "never passed before, always passes now",
}
_MAX_SCENARIOS, _MAX_WORSE = 10, 100
"""Maximum number of scenarios listed for each change; the others are counted."""
_LOOKS = {
    Change.BROKE: ("red", "❌"),
    Change.REGRESSED: ("red", "❌"),
    Change.NOT_COMPARED: ("yellow", "⚠️"),
    Change.FIXED: ("green", "✅"),
    Change.IMPROVED: ("green", "✅"),
    Change.WITHIN_NOISE: ("dim", "〰️"),
    Change.GONE: ("", "➖"),
    Change.NEW: ("", "➕"),
    Change.UNCHANGED: ("", ""),
}
_MAX_MARKDOWN_SCENARIOS = 50
"""Maximum number of scenarios in the table, because a GitHub job summary is limited to 1 MiB."""


def headline(comparison: Comparison) -> str:
    """Return the number of scenarios for each change, worst first."""
    counts = ((len(comparison.of(change)), change) for change in Change)
    return ", ".join(f"{number:,} {change}" for number, change in counts if number)


def conclusion(comparison: Comparison) -> str:
    """Answer in one sentence whether the new run is better or worse, with at most one p-value."""
    is_worse, overall = comparison.regressed, comparison.overall
    changes = WORSE if is_worse else BETTER
    rate = next((row for row in overall if row.name == PASS_RATE), None)
    row = next((row for row in overall if row.change in changes), rate)
    head, answer = "", "Worse" if is_worse else "Better"
    if row and row.change in changes:
        head = f"{answer} overall: "
    elif scenarios := comparison.of(*changes):
        head = f"{answer} in {count(len(scenarios), 'scenario')}; "
    others = [f"{each.name} {each.change}" for each in overall if each.change in TESTED and each is not row]
    text = "; ".join([head + _moved(row, comparison, "" if head.endswith(": ") else "overall, "), *others])
    return text[0].upper() + text[1:]


def _moved(row: ComparedFigure | None, comparison: Comparison, overall: str) -> str:
    if row is None:
        return "no pass rate could be compared"
    is_rate = row.name == PASS_RATE
    name = "the pass rate" if is_rate else cells(row)[0]
    if row.change is Change.UNCHANGED:
        return f"{name} is the same in both runs, {100 * row.new:.3g}%"
    base, new = (f"{100 * value:.3g}%" if is_rate else f"{value:.2f}" for value in (row.base, row.new))
    moved = f"{overall}{name} {'fell' if row.value < 0 else 'rose'} from {base} to {new}"
    sure = points(row) if is_rate else f"95 % interval {interval(row)}"
    if row.change in TESTED:
        return f"{moved} ({sure}, p {p_value_text(row.adjusted)})"
    if row.change is Change.WITHIN_NOISE:
        return f"{moved}, within noise ({sure}{_why_wide(row, comparison)})"
    return moved


def resource_lines(comparison: Comparison) -> Iterator[str]:
    """Yield the agent's latency and the cost of its models if they differ."""
    for row in comparison.resources:
        if row.change is not Change.UNCHANGED:
            form, unit = ("{:,.0f} ms", "turn") if row.name == LATENCY else ("{:.4g} USD", "conversation")
            moved = f"{row.name} {form.format(row.base)} → {form.format(row.new)} per {unit}"
            yield f"{moved} (not tested: one run per side cannot show variation)"


_WIDE = 0.2  # from this width on, an interval of a pass rate's difference gets an explanation


def points(rate: ComparedFigure) -> str:
    """Return the interval of a pass rate's difference in percentage points."""
    if rate.low is None or rate.high is None:
        return "interval unknown"
    return f"95 % interval {_signed(100 * rate.low, 0)} to {_signed(100 * rate.high, 0)} points"


def _why_wide(rate: ComparedFigure, comparison: Comparison) -> str:
    if rate.low is not None and rate.high is not None and rate.high - rate.low < _WIDE:
        return ""
    compared = sum(each.decided for each in comparison.scenarios)
    return f", as only {count(compared, 'scenario')} {'was' if compared == 1 else 'were'} compared"


def run_line(run: MeasuredRun) -> str:
    """Return a line that identifies a run and its size."""
    size = f"{count(len(run.scenarios), 'scenario')}, {count(run.conversations, 'conversation')}"
    begun = run.started_at[:16].replace("T", " ")
    return f"{run.label}  {size}{f', begun {begun} UTC' if begun else ''}"


def cells(row: ComparedFigure) -> tuple[str, ...]:
    """Return the cells of a figure, for the columns of `HEAD`."""
    return (
        f"{row.name} (failures)" if counts_failures(row.name) else row.name,
        f"{row.base:.2f}",
        f"{row.new:.2f}",
        _signed(row.value),
        interval(row),
        p_value_text(row.adjusted),
        ""
        if row.change is Change.UNCHANGED
        else ("within noise" if row.change is Change.WITHIN_NOISE else str(row.change)),
    )


def interval(row: ComparedFigure) -> str:
    if row.low is None or row.high is None:
        return "unknown" if row.value else ""
    return f"{_signed(row.low)} to {_signed(row.high)}"


def _signed(value: float, digits: int = 2) -> str:
    """Format a difference so that rounding does not hide its sign."""
    text = f"{value:+.{digits}f}"
    return text if float(text) or not value else f"{value:+.1g}"


def p_value_text(p: float | None) -> str:
    if p is None:
        return ""
    return f"< {_MIN_P_SHOWN}" if p < _MIN_P_SHOWN else f"{p:.3g}" if p < 0.1 else f"{p:.2f}"


def describe_change(change: ScenarioChange) -> str:
    """Describe the change of a scenario in one line."""
    pair = change.pair
    if change.why or pair.base is None or pair.new is None:
        known = f", {_passed(pair.latest)} conversations passed" if pair.latest.known else ""
        return change.why or f"{pair.latest.state}{known}"
    base, new = pair.base, pair.new
    if change.change in _BROKE_TEXTS:
        counts = " → ".join(f"{side.passed} of {side.known}" for side in (base, new))
        return f"{_BROKE_TEXTS[change.change]} ({counts})"
    status = f"{base.status} → {new.status}" if base.status is not new.status else str(new.status)
    passed = _passed(base), _passed(new)
    # If only scores changed, the number of passed conversations is the same in both runs.
    passed_text = passed[0] if passed[0] == passed[1] else " → ".join(passed)
    return f"{status}, {passed_text} conversations passed"


def footnotes(comparison: Comparison) -> Iterator[str]:
    """Yield the notes that readers need to interpret the comparison."""
    unknown = len(comparison.of(Change.NOT_COMPARED))
    if unknown:
        verb = "was" if unknown == 1 else "were"
        yield f"{count(unknown, 'scenario')} {verb} not compared, because their results are unknown"
    broke = [each.pair.both for each in comparison.of(*_BROKE_TEXTS)]
    once = sum(base.known <= 1 and new.known <= 1 for base, new in broke)
    if once:
        verb = "was" if once == 1 else "were"
        yield (
            f"{count(once, 'script')} that changed {verb} played once in each run; if the agent's answers "
            f"vary, that may be chance (`--conversations {ENOUGH_TO_BREAK}` shows it)"
        )
    noisy = [each.pair.both for each in comparison.of(Change.WITHIN_NOISE)]
    if any(min(base.known, new.known) < ENOUGH_TO_BREAK for base, new in noisy):
        yield (
            "within noise is not unchanged: to show that a scenario broke takes at least "
            f"{ENOUGH_TO_BREAK} conversations in each run (`--conversations {ENOUGH_TO_BREAK}`)"
        )


def print_text(comparison: Comparison, console: Console) -> None:
    """Print the comparison to the console."""
    printer = Printer(console)
    printer.write(list(_head(comparison)))
    if comparison.overall:
        printer.write_table(_table(comparison.overall, printer))
        printer.write([BLANK])
    several = len(comparison.new.agents) > 1
    for change in reversed(Change):
        printer.write(list(_group(change, comparison, several)))
    printer.write(list(_foot(comparison)))


def as_markdown(comparison: Comparison, heading: str = "##") -> str:
    """Return the comparison as Markdown: headline, changed scenarios, overall figures and notes."""
    return "".join(_markdown_parts(comparison, heading))


def _passed(scenario: MeasuredScenario) -> str:
    unknown = scenario.conversations - scenario.known
    errored = f" ({unknown} errored)" if unknown and scenario.status is not Status.SKIPPED else ""
    return f"{scenario.passed}/{scenario.known}{errored}"


def _head(comparison: Comparison) -> Iterator[ConsoleLine]:
    yield line(0, ("Compared", "bold"))
    yield line(0, run_line(comparison.base), lead=(("base  ", "dim"),))
    yield line(0, run_line(comparison.new), lead=(("new   ", "dim"),))
    yield from (line(0, (note, "yellow"), lead=(("note  ", "dim"),)) for note in comparison.notes)
    yield BLANK


def _table(rows: Sequence[ComparedFigure], printer: Printer) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for i, name in enumerate(HEAD):
        justify = "right" if 0 < i < len(HEAD) - 1 else "left"
        table.add_column(name or ("over all" if i == 0 else ""), justify=justify, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        *figures, change = cells(row)
        parts: list[Part] = [*figures, (change, _LOOKS[row.change][0])]
        table.add_row(*(printer.text([part]) for part in parts))
    return table


def _group(change: Change, comparison: Comparison, several: bool) -> Iterator[ConsoleLine]:
    if change is Change.UNCHANGED or not comparison.of(change):
        return
    changes = [each for each in comparison.worst_first if each.change is change]
    listed = changes[: _MAX_WORSE if change in WORSE else _MAX_SCENARIOS]
    yield line(0, (str(change).capitalize(), f"bold {_LOOKS[change][0]}".strip()))
    for each in listed:
        yield from _scenario(each, several)
    if len(changes) > len(listed):
        yield line(2, (f"and {count(len(changes) - len(listed), 'more', 'more')}", "dim"))
    yield BLANK


def _scenario(each: ScenarioChange, several: bool) -> Iterator[ConsoleLine]:
    scenario = each.pair.latest
    agent = f"  [{scenario.agent}]" if several else ""
    yield ConsoleLine(
        ("  ",),
        ((scenario.name + agent,), ((f"{scenario.file}:{scenario.line}", "dim"),), (describe_change(each),)),
        gap="  ",
    )
    for row in each.tested:
        what, before, after, *_ = cells(row)
        sure = interval(row)
        between = f" (95 % {sure})" if sure not in ("", "unknown") else ""
        yield line(6, f"{what} {before} → {after}{between}, p {p_value_text(row.adjusted)}")


def _foot(comparison: Comparison) -> Iterator[ConsoleLine]:
    yield from (line(0, (text, "dim")) for text in footnotes(comparison))
    style = "red" if comparison.regressed else "yellow" if comparison.of(Change.NOT_COMPARED) else "green"
    yield from (line(0, text) for text in resource_lines(comparison))
    yield line(0, (conclusion(comparison), style))
    yield line(0, (headline(comparison), f"bold {style}"))


def _markdown_parts(comparison: Comparison, heading: str) -> Iterator[str]:
    icon = "❌" if comparison.regressed else "⚠️" if comparison.of(Change.NOT_COMPARED) else "✅"
    yield f"{heading} {icon} Agentest, compared: {inline(headline(comparison))}\n\n"
    yield f"**{inline(conclusion(comparison))}**\n\n"
    yield from (f"{inline(text)}\n\n" for text in resource_lines(comparison))
    yield f"Base: {inline(run_line(comparison.base))}\\\nNew: {inline(run_line(comparison.new))}\n"
    yield from _markdown_list(comparison.notes)
    yield from _markdown_table(comparison.worst_first, several=len(comparison.new.agents) > 1)
    if comparison.overall:
        yield f"\n{table_row(name or 'over all' if not i else name for i, name in enumerate(HEAD))}"
        yield table_row(["---", *["---:"] * (len(HEAD) - 2), "---"])
        yield from (table_row(map(inline, cells(row))) for row in comparison.overall)
    yield from _markdown_list(tuple(footnotes(comparison)))


def _markdown_list(texts: Sequence[str]) -> Iterator[str]:
    if texts:
        yield "\n" + "".join(f"- {inline(text)}\n" for text in texts)


def _markdown_table(changes: Sequence[ScenarioChange], several: bool) -> Iterator[str]:
    if not changes:
        return
    yield "\n" + table_row(["", "scenario", *(["agent"] if several else []), "change"])
    yield table_row(["---"] * (4 if several else 3))
    for each in changes[:_MAX_MARKDOWN_SCENARIOS]:
        scenario = each.pair.latest
        figures = (
            f"{name} {base} → {new} (95 % {interval or 'unknown'}), p {p}"
            for name, base, new, _, interval, p, _ in map(cells, each.tested)
        )
        details = "".join(f"<br>{inline(figure)}" for figure in figures)
        agent = [inline(scenario.agent)] if several else []
        yield table_row(
            [
                f"{_LOOKS[each.change][1]} {each.change}",
                inline(scenario.name),
                *agent,
                inline(describe_change(each)) + details,
            ]
        )
    if len(changes) > _MAX_MARKDOWN_SCENARIOS:
        yield f"\n_{len(changes) - _MAX_MARKDOWN_SCENARIOS} of {len(changes)} scenarios left out._\n"


SCHEMA_VERSION = 1
_KEYS = {Change.NOT_COMPARED: "notCompared", Change.WITHIN_NOISE: "changedWithinNoise"}


def as_json(comparison: Comparison) -> str:
    """Return the whole comparison as JSON text, including unchanged scenarios."""
    return json_document(as_document(comparison))


def as_document(comparison: Comparison) -> dict[str, Any]:
    """Return the whole comparison as JSON values with camelCase keys."""
    return {
        "schemaVersion": SCHEMA_VERSION,
        "regressed": comparison.regressed,
        "base": _run_document(comparison.base),
        "new": _run_document(comparison.new),
        "notes": list(comparison.notes),
        "counts": {_KEYS.get(change, str(change)): len(comparison.of(change)) for change in Change},
        "overall": [_row_document(row) for row in comparison.overall],
        "resources": [_row_document(row) for row in comparison.resources],
        "scenarios": [_scenario_document(each) for each in comparison.scenarios],
    }


def _run_document(run: MeasuredRun) -> dict[str, Any]:
    return {
        "run": run.label,
        "startedAt": run.started_at,
        "version": run.version,
        "agents": list(run.agents),
        "models": dict(run.models),
        "stopped": run.stopped,
        "scenarios": len(run.scenarios),
        "conversations": run.conversations,
    }


def _scenario_document(each: ScenarioChange) -> dict[str, Any]:
    scenario = each.pair.latest
    return {
        "name": scenario.name,
        "agent": scenario.agent,
        "file": scenario.file,
        "line": scenario.line,
        "change": str(each.change),
        "why": each.why,
        "base": _side_document(each.pair.base),
        "new": _side_document(each.pair.new),
        "figures": [_row_document(row) for row in each.rows],
    }


def _side_document(side: MeasuredScenario | None) -> dict[str, Any] | None:
    if side is None:
        return None
    return {
        "status": str(side.status),
        "conversations": side.conversations,
        "passed": side.passed,
        "failed": side.known - side.passed,
    }


def _row_document(row: ComparedFigure) -> dict[str, Any]:
    return {
        "name": row.name,
        "base": row.base,
        "new": row.new,
        "nBase": row.n_base,
        "nNew": row.n_new,
        "difference": row.value,
        "low": row.low,
        "high": row.high,
        "p": row.p,
        "adjustedP": row.adjusted,
        "change": str(row.change),
    }
