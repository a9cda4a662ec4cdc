"""The report for GitHub Actions: annotations in the log, and a Markdown summary of the step."""

from __future__ import annotations

import html
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from agentest.domain.events import Event, RunFinished, ScenarioFinished
from agentest.domain.results import (
    Reason,
    RootCause,
    RunResult,
    RunWarning,
    ScenarioResult,
    Status,
    UniqueError,
)
from agentest.domain.root_causes import root_causes
from agentest.domain.transcript import NO_TEXT
from agentest.domain.verdict import run_status
from agentest.report import github_selection as select
from agentest.report.comparison import ComparedRun
from agentest.report.github_annotations import (
    annotation_lines,
    distinct_tables,
    repository_path,
    short_reason_lines,
    table_text,
)
from agentest.report.github_markdown import TABLE_HEAD, criterion_badness, criterion_row, inline, table_row
from agentest.report.phrases import (
    BRACKETS,
    QuestionedVerdicts,
    cause_badness,
    decided,
    detection_limits,
    ended_early_text,
    interval_text,
    passed_text,
    questioned_verdicts,
    run_rates,
)
from agentest.report.transcripts import Story, Transcripts, byte_size
from agentest.support.files import report_writer
from agentest.support.json_text import well_formed
from agentest.support.text import count

SUMMARY_LIMIT = 1024 * 1024
"""The maximum bytes of a step's summary; GitHub rejects a larger one completely."""

_ICONS = {Status.PASSED: "✅", Status.FAILED: "❌", Status.ERRORED: "⚠️", Status.SKIPPED: "⏭️"}

_MAX_MESSAGE_CHARS = 4_000
_MAX_TRANSCRIPT_CHARS = 40_000
_MAX_NOTE_BYTES = 160
_SHOWN_REASONS = 3
_SHOWN_QUESTIONS = 50
_MOST_CAUSES = 100


class GitHubReporter:
    """Writes annotations through `write`, one line each without a newline, and appends the summary.

    Args:
        root: the working directory, which scenario files are relative to.
        summary_path: the file from `$GITHUB_STEP_SUMMARY`.
        workspace: the folder from `$GITHUB_WORKSPACE`, for files outside any git checkout.
        files: the names of the run's other reports, for readers of the summary.
        next_step: the command that continues an interrupted run; "" if there is none.
        compared: the comparison of the run.
    """

    name = "github-actions"

    def __init__(
        self,
        write: Callable[[str], None],
        root: Path,
        summary_path: Path | None = None,
        workspace: Path | None = None,
        files: Sequence[str] = (),
        next_step: str = "",
        compared: ComparedRun | None = None,
    ) -> None:
        self._write = write
        self._root = root
        self._summary_path = summary_path
        self._workspace = workspace
        self._files = files
        self._next_step = next_step
        self._compared = compared
        self._transcripts = Transcripts(SUMMARY_LIMIT)

    def on_event(self, event: Event) -> None:
        if isinstance(event, ScenarioFinished):
            self._transcripts.add(event.result)
        elif isinstance(event, RunFinished):
            worse = self._compared.regressions() if self._compared else ()
            for line in annotation_lines(event.result, self._locate, worse, self._transcripts):
                self._write(line)
            if self._summary_path:
                append_summary(
                    event.result,
                    self._transcripts,
                    self._summary_path,
                    self._files,
                    self._next_step,
                    self._compared.markdown() if self._compared else (),
                )

    def _locate(self, file: str) -> str:
        return repository_path(file, self._root, self._workspace)


class SummaryReporter:
    """Writes the Markdown summary to a separate file."""

    name = "github-actions"
    repeats = True

    def __init__(
        self,
        path: Path,
        files: Sequence[str] = (),
        next_step: str = "",
        compared: ComparedRun | None = None,
    ) -> None:
        self._path = path
        self._files = files
        self._next_step = next_step
        self._compared = compared
        self._transcripts = Transcripts(SUMMARY_LIMIT)

    def on_event(self, event: Event) -> None:
        if isinstance(event, ScenarioFinished):
            self._transcripts.add(event.result)
        elif isinstance(event, RunFinished):
            compared = self._compared.markdown() if self._compared else ()
            with report_writer(self._path) as file:
                text = summary(
                    event.result, self._transcripts, SUMMARY_LIMIT, self._files, self._next_step, compared
                )
                file.write(text.encode())


def append_summary(
    result: RunResult,
    transcripts: Transcripts,
    path: Path,
    files: Sequence[str] = (),
    next_step: str = "",
    compared: Sequence[str] = (),
) -> None:
    """Append the summary to the file within GitHub's size limit."""
    before = path.stat().st_size if path.exists() else 0
    gap = "\n" if before else ""
    text = summary(result, transcripts, SUMMARY_LIMIT - before - len(gap), files, next_step, compared)
    if text:
        with path.open("ab") as file:
            file.write((gap + text).encode())


def summary(
    result: RunResult,
    transcripts: Transcripts,
    room: int,
    files: Sequence[str] = (),
    next_step: str = "",
    compared: Sequence[str] = (),
) -> str:
    """Return the Markdown summary in at most `room` bytes of UTF-8; comparisons follow the failures.

    Transcripts are omitted first, then rows from the end of the lists, each time with a note. The result is
    empty if not even the headline fits.
    """
    sections = [section for section in _sections(result, transcripts, compared) if section.pieces]
    headline = _headline(result, files, next_step)
    left = room - byte_size(headline) - _MAX_NOTE_BYTES * len(sections)
    if left < 0:
        return ""
    parts = [headline]
    for section in sections:
        kept, left = _fitting_texts(section, left)
        parts += kept
    return "".join(parts)


@dataclass(frozen=True, slots=True)
class _Section:
    """A part of the summary whose pieces can be omitted one by one; they are formatted on demand."""

    kind: str
    head: str
    pieces: Sequence[Callable[[], str]]
    left_out: int = 0
    """The number of further pieces that are not included here."""


def _fitting_texts(section: _Section, room: int) -> tuple[list[str], int]:
    """Return the texts that fit, and the remaining bytes: 0 after the first piece that did not fit."""
    kept: list[str] = []
    left = room - byte_size(section.head)
    for piece in section.pieces if left >= 0 else ():
        text = well_formed(piece())
        if byte_size(text) > left:
            break
        kept.append(text)
        left -= byte_size(text)
    total = len(section.pieces) + section.left_out
    missing = total - len(kept)
    if not missing:
        return [section.head, *kept], left
    note = f"\n_{missing} of {total} {section.kind} left out: GitHub takes at most 1 MiB._\n"
    return [*([section.head, *kept] if kept else []), note], 0


def _sections(
    result: RunResult, transcripts: Transcripts, compared: Sequence[str] = ()
) -> Iterator[_Section]:
    several = len(result.agents) > 1
    scenarios = sorted(result.finished, key=select.scenario_badness)
    undone = [
        partial(_failure, s, transcripts, several) for s in scenarios if s.verdict.status in select.UNDONE
    ]
    causes = root_causes(result)
    rows = [partial(_cause_row, cause) for cause in causes[:_MOST_CAUSES]]
    if len(causes) > _MOST_CAUSES:
        rows.append(partial(str, f"\n… and {len(causes) - _MOST_CAUSES:,} more root causes\n"))
    yield _Section("root causes", _CAUSES_HEAD, rows)
    yield _Section("failures", "\n### Failures\n\n", undone)
    yield _Section("comparisons", "\n", [partial(str, text) for text in compared])
    table = ("\n### Scenarios\n" if compared else "") + _table_head(several)
    yield _Section("scenarios", table, [partial(_row, s, several) for s in scenarios])
    errors = sorted(select.errors(result), key=lambda error: -error[1].severity)
    yield _Section("errors", _ERRORS_HEAD, [partial(_error_row, s, e, several) for s, e in errors])
    examples = [partial(_example, s, e, several) for s, e in errors if e.examples]
    yield _Section("examples of errors", "\n### Examples of errors\n\n", examples)
    judged = [(s, each) for s in scenarios for each in s.totals.criteria]
    criteria = sorted(judged, key=lambda one: criterion_badness(one[1]))
    rows = [partial(criterion_row, s, each, several) for s, each in criteria]
    yield _Section("criteria", TABLE_HEAD, rows)
    violations = [partial(_violation, s, r, several) for s, r in select.violations(result)]
    yield _Section("threshold violations", "\n### Threshold violations\n\n", violations)
    warnings = [partial(_warning, s, text, several) for s, text in select.warnings(result)]
    warnings += [partial(_run_warning, warning) for warning in result.warnings]
    warnings += [partial(_questions, each) for each in questioned_verdicts(result)]
    yield _Section("warnings", "\n### Warnings\n\n", warnings)
    told = [(s, each) for s in scenarios for each in distinct_tables(transcripts.of(s))]
    tables = [partial(table_text, s, each, several) for s, each in told]
    yield _Section("tables of calls", "\n### Expected and made calls\n\n", tables)
    stories = [partial(_details, s, story, several) for s in scenarios for story in transcripts.of(s)]
    yield _Section("transcripts", "\n### Transcripts of failures\n\n", stories, transcripts.left_out)
    averages = [row for s in scenarios for row in average_rows(s, several)]
    yield _Section("averages", AVERAGES_HEAD, [partial(str, row) for row in averages])


def _headline(result: RunResult, files: Sequence[str], next_step: str) -> str:
    counts = [(select.with_status(result, status), str(status)) for status in select.WORST_FIRST]
    counts.append((len(result.unfinished), "unfinished"))
    outcome = ", ".join(f"{count} {status}" for count, status in counts if count) or "no scenario ran"
    icon = _ICONS[run_status(result)]
    return (
        f"## {icon} Agentest: {outcome}\n{_early_end(result, next_step)}\n"
        f"In {_seconds(result.duration_ms)}.{_models(result)}\n"
        f"{rates_paragraph(result)}{_calibrations(result)}{_files(result, files)}"
    )


def _early_end(result: RunResult, next_step: str) -> str:
    """Describe the number of unfinished scenarios and how to continue."""
    text = ended_early_text(result)
    if not text:
        return ""
    how = f" `{next_step}` runs the rest." if result.unfinished and next_step else ""
    return f"\n**{inline(text)}.**{how}\n"


def _files(result: RunResult, files: Sequence[str]) -> str:
    """List the written reports and how to inspect a failure in them."""
    if not files:
        return ""
    named = ", ".join(f"<code>{inline(file)}</code>" for file in files)
    undone = [scenario for scenario in result.finished if scenario.verdict.status in select.UNDONE]
    results = next((file for file in files if file.endswith(".json")), None)
    if not undone or results is None:
        return f"\nReports: {named}\n"
    command = f"agentest show {shlex.quote(results)} --scenario {shlex.quote('=' + undone[0].name)} --verbose"
    return f"\nReports: {named}; to look at a failure: <code>{inline(command)}</code>\n"


def _calibrations(result: RunResult) -> str:
    """Show the measured agreement of the judge for each metric."""
    if not result.calibrations:
        return ""
    shown = "; ".join(f"{name}: {known.shown}" for name, known in result.calibrations.items())
    return f"\nThe judge against people's labels: {inline(shown)}.\n"


def _models(result: RunResult) -> str:
    used = result.usage
    asked = ", ".join(dict.fromkeys(model for model in result.models.values() if model))
    named = f" Model: {inline(asked)}." if asked else ""
    if not used.calls:
        return named
    cost = "cost unknown" if used.cost is None else f"{used.cost:.4f} USD"
    return f"{named} {used.calls:,} model calls, {used.tokens.total_tokens:,} tokens, {cost}."


def _failure(scenario: ScenarioResult, transcripts: Transcripts, several: bool) -> str:
    """Describe a scenario that did not pass, with its first reasons."""
    reasons = short_reason_lines(scenario, transcripts.of(scenario))
    where = f"{scenario.file}:{scenario.line}" if scenario.line else scenario.file
    named = inline(select.label(scenario, several))
    head = f"- {_ICONS[scenario.verdict.status]} **{named}**" + (f" {inline(where)}" if where else "")
    shown = reasons[:_SHOWN_REASONS]
    if more := len(reasons) - len(shown):
        shown.append(f"… {count(more, 'more reason')}")
    return f"{head}\n" + "".join(f"  - {inline(reason)}\n" for reason in shown)


_CAUSES_HEAD = (
    "\n### Root causes\n\n| Severity | Cause | Scenarios | Conversations | First seen in |\n"
    "| --- | --- | --- | --- | --- |\n"
)


def _cause_row(cause: RootCause) -> str:
    example = cause.example
    agents = f" [{', '.join(cause.agents)}]" if len(cause.agents) > 1 else ""
    turn = "" if example.turn_index is None else f", turn {example.turn_index}"
    where = f"{example.conversation_id}{turn}" if example.conversation_id else example.scenario
    counts = (f"{cause.scenarios:,}{agents}", f"{cause.conversations:,}")
    return table_row([cause_badness(cause), *map(inline, (cause.title, *counts, where))])


def _table_head(several: bool) -> str:
    columns = ["Status", "Scenario", *(["Agent"] if several else []), "Conversations passed", "Duration"]
    return f"\n{table_row(columns)}{table_row(['---'] * len(columns))}"


def _row(scenario: ScenarioResult, several: bool) -> str:
    status = scenario.verdict.status
    cells = [f"{_ICONS[status]} {status}", inline(scenario.name)]
    cells += [inline(scenario.agent)] if several else []
    text = decided(scenario)
    passed = passed_cell(scenario) + (f", {text}" if text else "")
    cells += [passed, _seconds(scenario.duration_ms)]
    return table_row(cells)


_ERRORS_HEAD = (
    "\n### Errors\n\n| Severity | Error | Scenario | Times | Explanation |\n| --- | --- | --- | --- | --- |\n"
)


def _error_row(scenario: ScenarioResult, group: UniqueError, several: bool) -> str:
    label = inline(select.label(scenario, several))
    times = str(len(group.occurrences))
    return table_row([group.severity.label, inline(group.label), label, times, inline(group.explanation)])


def _example(scenario: ScenarioResult, group: UniqueError, several: bool) -> str:
    """Show the first turn in which an error occurred, as a list below the error's name."""
    example = group.examples[0]
    times = count(len(group.occurrences), "time")
    where = f"{times}, for example {example.conversation_id}, turn {example.turn_index}"
    head = f"- {inline(group.label)} ({inline(select.label(scenario, several))}): {inline(where)}\n"
    said = [f"user: {example.user_message}", *(f"tool: {call}" for call in example.tool_calls)]
    said.append(f"agent: {example.agent_message or NO_TEXT}")
    return head + "".join(f"  - {inline(text)}\n" for text in said)


def _violation(scenario: ScenarioResult, reason: Reason, several: bool) -> str:
    message, *rows = reason.message.split("\n")
    below = "".join(f"  - {inline(row)}\n" for row in rows)
    return f"- {inline(select.label(scenario, several))}: {inline(message)}\n{below}"


def _warning(scenario: ScenarioResult, text: str, several: bool) -> str:
    return f"- {inline(select.label(scenario, several))}: {inline(text)}\n"


def _run_warning(warning: RunWarning) -> str:
    return f"- {inline(warning.message)}\n"


def _questions(each: QuestionedVerdicts) -> str:
    rows = "".join(f"  - {inline(row)}\n" for row in each.rows(_SHOWN_QUESTIONS))
    return f"- **{inline(each.head)}**\n{rows}"


def _details(scenario: ScenarioResult, story: Story, several: bool) -> str:
    title = f"{select.label(scenario, several)}: {story.conversation_id}"
    # Without these blank lines, a blank line of the transcript would end the HTML block and start Markdown.
    return (
        f"<details>\n<summary>{inline(title)}</summary>\n\n"
        f"<pre>\n{html.escape(story.text, quote=False)}\n</pre>\n\n</details>\n\n"
    )


def _seconds(milliseconds: float) -> str:
    return f"{milliseconds / 1000:.1f} s"


AVERAGES_HEAD = (
    "\n### Averages\n\n| Scenario | Metric | Average | n | Threshold |\n| --- | --- | --- | --- | --- |\n"
)


def passed_cell(scenario: ScenarioResult) -> str:
    """Return the number of passed conversations with the interval of the rate and a note on flakiness."""
    held = f"{scenario.totals.passed} of {scenario.totals.conversations}"
    facts = filter(None, (held, passed_text(scenario), "flaky" if scenario.flaky else ""))
    return inline(", ".join(facts))


def rates_paragraph(result: RunResult) -> str:
    """Return the run's pass rates and what this number of conversations can detect."""
    found = run_rates(result)
    if not found:
        return ""
    shown = "; ".join(inline(f"{each.agent and each.agent + ': '}{', '.join(each.facts)}") for each in found)
    told = " ".join(filter(None, (BRACKETS, detection_limits(result))))
    return f"\nPass rate: {shown}. {inline(told)}\n"


def average_rows(scenario: ScenarioResult, several: bool) -> Iterator[str]:
    """Yield a row for each average of a scenario."""
    for name, figure in scenario.intervals.items():
        least = scenario.thresholds.get(name)
        cells = [
            inline(select.label(scenario, several)),
            inline(name),
            inline(f"{figure.value:.2f}{interval_text(figure)}"),
            f"{figure.n:,}",
            "" if least is None else f"{least:g}",
        ]
        yield table_row(cells)
