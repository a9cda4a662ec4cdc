"""The report for GitHub Actions: annotations in the log, and a Markdown summary of the step."""

from __future__ import annotations

import html
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentest.domain.events import Event, RunFinished, ScenarioFinished
from agentest.domain.results import (
    CriterionOutcome,
    CriterionTotals,
    Reason,
    RootCause,
    RowStatus,
    RunResult,
    UniqueError,
)
from agentest.domain.transcript import NO_TEXT
from agentest.report.alignments import TextRow
from agentest.report.content import (
    ComparedRun,
    QuestionedVerdicts,
    RunReport,
    ScenarioReport,
    cause_badness,
    criterion_counts,
    criterion_example,
    criterion_name,
    decided,
    interval_text,
    more_conversations,
    passed_text,
)
from agentest.report.github_annotations import annotation_lines, reason_lines, repository_path
from agentest.report.markdown import ICONS, code, inline, table_head, table_row
from agentest.report.transcripts import TitledTable, Transcript, Transcripts, byte_size
from agentest.support.files import report_writer
from agentest.support.json_text import well_formed
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import count

SUMMARY_LIMIT = 1024 * 1024
"""The maximum bytes of a step's summary; GitHub rejects a larger one completely."""

_ROW_ICONS = {RowStatus.MATCHED: "✅", RowStatus.FREE: "➖", RowStatus.UNKNOWN: "⚠️"}
_CRITERION_ICONS = {
    CriterionOutcome.MET: "✅",
    CriterionOutcome.VIOLATED: "❌",
    CriterionOutcome.CANNOT_TELL: "⚠️",
}
_OPTIONAL = "➖"
_MAX_NOTE_BYTES = 160
_SHOWN_REASONS = 3
_SHOWN_QUESTIONS = 50
_MOST_CAUSES = 100


class GitHubActionsReporter:
    """Writes annotations, and appends a Markdown summary to the step's summary.

    Args:
        write: receives one annotation at a time, without a newline, and by default prints it; None writes
            only the summary, to a new file.
        root: the folder that scenario files are relative to, by default the working directory.
        summary_path: the file from `$GITHUB_STEP_SUMMARY`; None writes no summary.
        workspace: the folder from `$GITHUB_WORKSPACE`, for files outside any git checkout.
        files: the names of the run's other reports, for readers of the summary.
        next_step: the command that continues an interrupted run; "" if there is none.
        compared: the comparison of the run.
    """

    name = "github-actions"

    def __init__(
        self,
        write: Callable[[str], None] | None = print,
        root: Path = Path(),
        summary_path: Path | None = None,
        workspace: Path | None = None,
        files: Sequence[str] = (),
        next_step: str = "",
        compared: ComparedRun | None = None,
    ) -> None:
        self.repeats = write is None
        """The end of the run can be handled again: see `report.registry.Broadcast`."""
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
            report = RunReport(event.result, self._next_step)
            if self._write:
                worse = self._compared.regressions() if self._compared else ()
                for line in annotation_lines(report, self._locate, worse, self._transcripts):
                    self._write(line)
            if self._summary_path:
                compared = self._compared.markdown() if self._compared else ()
                summary = MarkdownSummary(report, self._transcripts, self._files, compared)
                write = _append_summary if self._write else _write_summary
                write(summary, self._summary_path)

    def _locate(self, file: str) -> str:
        return repository_path(file, self._root, self._workspace)


def _append_summary(summary: MarkdownSummary, path: Path) -> None:
    """Append the summary to the file within GitHub's size limit."""
    before = path.stat().st_size if path.exists() else 0
    gap = "\n" if before else ""
    if text := summary.text(SUMMARY_LIMIT - before - len(gap)):
        with path.open("ab") as file:
            file.write((gap + text).encode())


def _write_summary(summary: MarkdownSummary, path: Path) -> None:
    """Write the summary to a new file. Raises OutputError."""
    with report_writer(path) as file:
        file.write(summary.text().encode())


def summary(result: RunResult, transcripts: Transcripts, room: int, files: Sequence[str] = ()) -> str:
    """Return the Markdown summary of a run: `MarkdownSummary.text`."""
    return MarkdownSummary(RunReport(result), transcripts, files).text(room)


@dataclass(frozen=True, slots=True)
class _Section:
    """A part of the summary whose items can be omitted one by one; they are formatted on demand."""

    kind: str
    head: str
    items: Sequence[Any]
    text: Callable[[Any], str] = str
    left_out: int = 0
    """The number of further items that are not included here."""

    def fitting(self, room: int) -> tuple[list[str], int]:
        """Return the texts that fit, and the remaining bytes: 0 after the first text that did not fit."""
        texts: list[str] = []
        left = room - byte_size(self.head)
        for item in self.items if left >= 0 else ():
            text = well_formed(self.text(item))
            if byte_size(text) > left:
                break
            texts.append(text)
            left -= byte_size(text)
        total = len(self.items) + self.left_out
        missing = total - len(texts)
        if not missing:
            return [self.head, *texts], left
        note = f"\n_{missing} of {total} {self.kind} left out: GitHub takes at most 1 MiB._\n"
        return [*([self.head, *texts] if texts else []), note], 0


class MarkdownSummary:
    """The Markdown summary of a run.

    Args:
        transcripts: the transcripts of failed conversations.
        files: the names of the run's other reports.
        compared: comparisons, which follow the failures.
    """

    def __init__(
        self,
        report: RunReport,
        transcripts: Transcripts,
        files: Sequence[str] = (),
        compared: Sequence[str] = (),
    ) -> None:
        self._report = report
        self._transcripts = transcripts
        self._files = files
        self._compared = compared

    def text(self, room: int = SUMMARY_LIMIT) -> str:
        """Return at most `room` bytes of UTF-8.

        Transcripts are omitted first, then rows from the end of the lists, each time with a note. The result
        is empty if not even the headline fits.
        """
        sections = [section for section in self._sections() if section.items]
        headline = self._headline()
        left = room - byte_size(headline) - _MAX_NOTE_BYTES * len(sections)
        if left < 0:
            return ""
        parts = [headline]
        for section in sections:
            texts, left = section.fitting(left)
            parts += texts
        return "".join(parts)

    def _sections(self) -> Iterator[_Section]:
        report = self._report
        causes = [*map(_cause_row, report.causes[:_MOST_CAUSES])]
        if len(report.causes) > _MOST_CAUSES:
            causes.append(f"\n… and {len(report.causes) - _MOST_CAUSES:,} more root causes\n")
        head = table_head(["Severity", "Cause", "Scenarios", "Conversations", "First seen in"])
        yield _Section("root causes", f"\n### Root causes\n\n{head}", causes)
        yield _Section("failures", "\n### Failures\n\n", report.not_passed, self._failure)
        yield _Section("comparisons", "\n", self._compared)
        agent = ["Agent"] if report.several_agents else []
        head = table_head(["Status", "Scenario", *agent, "Conversations passed", "Duration"])
        title = "\n### Scenarios\n" if self._compared else ""
        yield _Section("scenarios", f"{title}\n{head}", report.finished, _scenario_row)
        head = table_head(["Severity", "Error", "Scenario", "Times", "Explanation"])
        yield _Section("errors", f"\n### Errors\n\n{head}", report.errors, _error_row)
        examples = [error for error in report.errors if error[1].examples]
        yield _Section("examples of errors", "\n### Examples of errors\n\n", examples, _example)
        criteria = [(s, each) for s in report.finished for each in s.result.totals.criteria]
        criteria.sort(key=lambda item: _criterion_badness(item[1]))
        head = table_head(["Status", "Scenario", "Criterion", "Conversations", "Example"])
        yield _Section("criteria", f"\n### Criteria\n\n{head}", criteria, _criterion_row)
        violations = report.violations
        yield _Section("threshold violations", "\n### Threshold violations\n\n", violations, _violation)
        warnings = [f"- {inline(s.label)}: {inline(text)}\n" for s, text in report.warnings]
        warnings += [f"- {inline(warning.message)}\n" for warning in report.result.warnings]
        warnings += map(_questions, report.questions)
        yield _Section("warnings", "\n### Warnings\n\n", warnings)
        stories = [(s, each) for s in report.finished for each in self._transcripts.of(s)]
        tables = [(s, each) for s in report.finished for each in distinct_tables(self._transcripts.of(s))]
        yield _Section("tables of calls", "\n### Expected and made calls\n\n", tables, _table)
        left_out, head = self._transcripts.left_out, "\n### Transcripts of failures\n\n"
        yield _Section("transcripts", head, stories, _details, left_out)
        averages = [row for scenario in report.finished for row in _average_rows(scenario)]
        head = table_head(["Scenario", "Metric", "Average", "n", "Threshold"])
        yield _Section("averages", f"\n### Averages\n\n{head}", averages)

    def _headline(self) -> str:
        report = self._report
        outcome = ", ".join(f"{n} {word}" for n, word, _ in report.counts) or "no scenario ran"
        paragraphs = (self._early_end(), self._rates(), self._calibrations(), self._other_reports())
        early, *others = (f"\n{text}\n" if text else "" for text in paragraphs)
        return (
            f"## {ICONS[report.status]} Agentest: {outcome}\n{early}\n"
            f"In {_seconds(report.result.duration_ms)}.{_models(report.result)}\n{''.join(others)}"
        )

    def _early_end(self) -> str:
        text, next_step = self._report.early_end, self._report.next_step
        how = f" `{next_step}` runs the rest." if next_step else ""
        return f"**{inline(text)}.**{how}" if text else ""

    def _rates(self) -> str:
        rates = [f"{each.agent and each.agent + ': '}{', '.join(each.facts)}" for each in self._report.rates]
        if not rates:
            return ""
        return f"Pass rate: {'; '.join(map(inline, rates))}. {inline(self._report.rates_note)}"

    def _calibrations(self) -> str:
        calibrations = self._report.result.calibrations.items()
        text = "; ".join(f"{name}: {agreement.shown}" for name, agreement in calibrations)
        return f"The judge against people's labels: {inline(text)}." if text else ""

    def _other_reports(self) -> str:
        names = ", ".join(map(code, self._files))
        results = next((file for file in self._files if file.endswith(".json")), None)
        if not names or not self._report.not_passed or results is None:
            return f"Reports: {names}" if names else ""
        scenario = "=" + self._report.not_passed[0].result.name
        command = f"agentest show {shlex.quote(results)} --scenario {shlex.quote(scenario)} --verbose"
        return f"Reports: {names}; to look at a failure: {code(command)}"

    def _failure(self, scenario: ScenarioReport) -> str:
        tables = {
            each.title: each.table
            for transcript in self._transcripts.of(scenario)
            for each in transcript.tables
        }
        reasons = reason_lines(scenario, tables)
        listed = reasons[:_SHOWN_REASONS]
        if more := len(reasons) - len(listed):
            listed.append(f"… {count(more, 'more reason')}")
        where = f" {inline(scenario.location)}" if scenario.location else ""
        return f"- {ICONS[scenario.status]} **{inline(scenario.label)}**{where}\n{_sublist(listed)}"


def _sublist(rows: Sequence[str]) -> str:
    return "".join(f"  - {inline(row)}\n" for row in rows)


def _seconds(milliseconds: float) -> str:
    return f"{milliseconds / 1000:.1f} s"


def _models(result: RunResult) -> str:
    used = result.usage
    models = ", ".join(dict.fromkeys(model for model in result.models.values() if model))
    text = f" Model: {inline(models)}." if models else ""
    if not used.calls:
        return text
    cost = "cost unknown" if used.cost is None else f"{used.cost:.4f} USD"
    return f"{text} {used.calls:,} model calls, {used.tokens.total_tokens:,} tokens, {cost}."


def _cause_row(cause: RootCause) -> str:
    example = cause.example
    agents = f" [{', '.join(cause.agents)}]" if len(cause.agents) > 1 else ""
    turn = "" if example.turn_index is None else f", turn {example.turn_index}"
    where = f"{example.conversation_id}{turn}" if example.conversation_id else example.scenario
    counts = (f"{cause.scenarios:,}{agents}", f"{cause.conversations:,}")
    return table_row([cause_badness(cause), *map(inline, (cause.title, *counts, where))])


def _scenario_row(scenario: ScenarioReport) -> str:
    result, totals = scenario.result, scenario.result.totals
    passed = f"{totals.passed} of {totals.conversations}"
    facts = ", ".join(filter(None, (passed, passed_text(result), "flaky" if result.flaky else "")))
    repeated = f", {text}" if (text := decided(result)) else ""
    agent = [inline(result.agent)] if scenario.several_agents else []
    cells = [f"{ICONS[scenario.status]} {scenario.status}", inline(result.name), *agent]
    return table_row([*cells, inline(facts) + repeated, _seconds(result.duration_ms)])


def _error_row(error: tuple[ScenarioReport, UniqueError]) -> str:
    scenario, group = error
    texts = (group.label, scenario.label, str(len(group.occurrences)), group.explanation)
    return table_row([group.severity.label, *map(inline, texts)])


def _example(error: tuple[ScenarioReport, UniqueError]) -> str:
    scenario, group = error
    example = group.examples[0]
    times = count(len(group.occurrences), "time")
    where = f"{times}, for example {example.conversation_id}, turn {example.turn_index}"
    messages = [f"user: {example.user_message}", *(f"tool: {call}" for call in example.tool_calls)]
    messages.append(f"agent: {example.agent_message or NO_TEXT}")
    return f"- {inline(group.label)} ({inline(scenario.label)}): {inline(where)}\n{_sublist(messages)}"


def _criterion_badness(criterion: CriterionTotals) -> tuple[bool, int]:
    """Sort key: unmet criteria first, required ones before optional ones."""
    met = criterion.worst is CriterionOutcome.MET
    return met or not criterion.required, list(CriterionOutcome).index(criterion.worst)


def _criterion_row(item: tuple[ScenarioReport, CriterionTotals]) -> str:
    scenario, criterion = item
    matters = criterion.worst is CriterionOutcome.MET or criterion.required
    icon = _CRITERION_ICONS[criterion.worst] if matters else _OPTIONAL
    texts = (criterion_name(criterion), criterion_counts(criterion), criterion_example(criterion))
    return table_row([icon, *map(inline, (scenario.label, *texts))])


def _violation(item: tuple[ScenarioReport, Reason]) -> str:
    scenario, reason = item
    message, *rows = reason.message.split("\n")
    return f"- {inline(scenario.label)}: {inline(message)}\n{_sublist(rows)}"


def _questions(each: QuestionedVerdicts) -> str:
    return f"- **{inline(each.head)}**\n{_sublist(each.rows(_SHOWN_QUESTIONS))}"


def distinct_tables(transcripts: Sequence[Transcript]) -> Iterator[TitledTable]:
    """Yield the tables of a scenario's conversations; identical ones once, with their count."""
    similar: dict[object, list[TitledTable]] = {}
    for transcript in transcripts:
        for each in transcript.tables:
            title = each.title.removeprefix(transcript.conversation_id)
            similar.setdefault((title, each.table), []).append(each)
    for first, *others in similar.values():
        yield replace(first, title=first.title + more_conversations(others))


def _table(item: tuple[ScenarioReport, TitledTable]) -> str:
    scenario, titled = item
    table = titled.table
    why = ["Why"] if any(row.words for row in table.rows) else []
    heads = ["", *(head[0].upper() + head[1:] for head in table.heads[not table.expects :]), *why]
    rows = [table_row(_cells(row, expects=table.expects)[: len(heads)]) for row in table.rows]
    more = f"\n{inline(table.more)}\n" if table.more else ""
    title = f"**{inline(scenario.label)}** {inline(titled.title)}"
    return f"{title}\n\n{table_head([*map(inline, heads)])}{''.join(rows)}{more}\n"


def _cells(row: TextRow, *, expects: bool) -> list[str]:
    expected = [code(row.expected)] if expects else []
    return [_ROW_ICONS.get(row.status, "❌"), *expected, code(row.made), inline(row.words) or "–"]


def _details(item: tuple[ScenarioReport, Transcript]) -> str:
    scenario, transcript = item
    title = f"{scenario.label}: {transcript.conversation_id}"
    # Without these blank lines, a blank line of the transcript would end the HTML block and start Markdown.
    return (
        f"<details>\n<summary>{inline(title)}</summary>\n\n"
        f"<pre>\n{html.escape(transcript.text, quote=False)}\n</pre>\n\n</details>\n\n"
    )


def _average_rows(scenario: ScenarioReport) -> Iterator[str]:
    for name, figure in scenario.result.intervals.items():
        least = scenario.result.thresholds.get(name)
        value = f"{figure.value:.2f}{interval_text(figure)}"
        number = "" if least is None else f"{least:g}"
        yield table_row([*map(inline, (scenario.label, name, value)), f"{figure.n:,}", number])
