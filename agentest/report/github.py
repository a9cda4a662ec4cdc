"""The report for GitHub Actions: annotations in the log, and a Markdown summary of the step."""

from __future__ import annotations

import html
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentest.domain.events import Event, RunFinished, ScenarioFinished
from agentest.domain.results import (
    CauseKind,
    CriterionOutcome,
    CriterionTotals,
    Reason,
    RunResult,
    RunWarning,
    ScenarioResult,
    Severity,
    Status,
    UniqueError,
)
from agentest.report.alignments import AlignmentTable, TextRow, plain_rows
from agentest.report.console.scenario import attack_text
from agentest.report.content import (
    NEWLY_FAILING,
    NOT_PASSED,
    CauseBlock,
    ComparedRun,
    QuestionedVerdicts,
    Regression,
    RunReport,
    ScenarioReport,
    criterion_counts,
    criterion_example,
    criterion_name,
    decided,
    interval_text,
    passed_text,
)
from agentest.report.markdown_text import ICONS, code, cut, inline, table_head, table_row
from agentest.report.transcripts import TitledTable, Transcript, Transcripts, byte_size
from agentest.support.files import report_writer
from agentest.support.json_text import well_formed
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.terminal import Output, clean_for_command
from agentest.support.text import count, is_in, shortened

if TYPE_CHECKING:
    from agentest.report.console.exploration import FindingPlace
    from agentest.report.registry import ReporterContext

SUMMARY_LIMIT = 1024 * 1024  # the maximum bytes of a step's summary; GitHub rejects a larger one completely
SHORT_LIMIT = 100_000  # the maximum bytes of a run's summary, unless more detail is requested

_ROW_ICONS = {**ICONS, Status.SKIPPED: "➖"}
_CRITERION_ICONS = {
    CriterionOutcome.MET: "✅",
    CriterionOutcome.VIOLATED: "❌",
    CriterionOutcome.CANNOT_TELL: "⚠️",
}
_MAX_NOTE_BYTES = 160
_SHOWN_REASONS = 3
_SHOWN_QUESTIONS = 50
_SHORT_ITEMS = 10  # the items of each section, and the names of each block, unless more detail is requested
_SHORT_LINES = 6
_COUNTED = (CauseKind.THRESHOLD, CauseKind.PASS_RATE)
_SHORT_CHARS = 300


def make_reporter(context: ReporterContext, path: Path | None) -> GitHubActionsReporter:
    """Create the reporter of a run. With a path, it writes only the summary, to a new file."""
    write = context.command or Output(sys.stdout, context.environ).command
    summary = context.environ.get("GITHUB_STEP_SUMMARY")
    return GitHubActionsReporter(
        None if path else write,
        context.root,
        path or (Path(summary) if summary else None),
        workspace=context.github_workspace,
        files=context.other_files,
        next_step=context.next_step,
        compared=context.compared,
        detailed=context.verbosity > 0,
    )


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
        detailed: fill the 1 MiB that GitHub accepts with transcripts, instead of 100 kB.
    """

    name = "github-actions"
    shows_comparison = True
    events = (ScenarioFinished, RunFinished)

    def __init__(
        self,
        write: Callable[[str], None] | None = print,
        root: Path = Path(),
        summary_path: Path | None = None,
        workspace: Path | None = None,
        files: Sequence[str] = (),
        next_step: str = "",
        compared: ComparedRun | None = None,
        detailed: bool = False,
    ) -> None:
        self.prints_outcome = write is not None
        self._write = write
        self._locate = partial(repository_path, root=root, workspace=workspace)
        self._summary_path = summary_path
        self._files = files
        self._next_step = next_step
        self._compared = compared
        self._limit = SUMMARY_LIMIT if detailed else SHORT_LIMIT
        self._transcripts = Transcripts(self._limit)

    def on_event(self, event: Event) -> None:
        if isinstance(event, ScenarioFinished):
            self._transcripts.add(event.result)
        elif isinstance(event, RunFinished):
            report, compared = RunReport(event.result, self._next_step), self._compared
            if self._write:
                worse = compared.regressions() if compared else ()
                for line in annotation_lines(report, self._locate, worse, self._transcripts):
                    self._write(line)
            if self._summary_path:
                self._write_summary(report, compared.markdown() if compared else (), self._summary_path)

    def _write_summary(self, report: RunReport, compared: Sequence[str], path: Path) -> None:
        before = path.stat().st_size if self._write and path.exists() else 0
        gap = "\n" if before else ""
        room = min(self._limit, SUMMARY_LIMIT - before - len(gap))
        detailed = self._limit == SUMMARY_LIMIT
        text = summary(report, self._transcripts, room, self._files, compared, detailed=detailed)
        if self._write is None:
            with report_writer(path) as file:
                file.write(text.encode())
        elif text:
            with path.open("ab") as file:
                file.write((gap + text).encode())


def summary(
    result: RunResult | RunReport,
    transcripts: Transcripts,
    room: int,
    files: Sequence[str] = (),
    compared: Sequence[str] = (),
    *,
    detailed: bool = True,
) -> str:
    """Return the Markdown summary of a run, at most `room` bytes of UTF-8.

    Transcripts are omitted first, then rows from the end of the lists, each time with a note. The result is
    empty if not even the headline fits.

    Args:
        transcripts: the transcripts of failed conversations.
        files: the names of the run's other reports.
        compared: comparisons, which follow the failures.
        detailed: include everything that there is room for, instead of the first items of each list.
    """
    report = result if isinstance(result, RunReport) else RunReport(result)
    contents = _sections(report, transcripts, compared, detailed=detailed)
    sections = [section if detailed else section.first() for section in contents if section.items]
    headline = _headline(report, files)
    left = room - byte_size(headline) - _MAX_NOTE_BYTES * len(sections)
    if left < 0:
        return ""
    parts = [headline]
    for section in sections:
        texts, left = section.fitting(left)
        parts += texts
    return "".join(parts)


@dataclass(frozen=True, slots=True)
class _Section:
    """A part of the summary whose items can be omitted one by one; they are formatted on demand."""

    kind: str
    head: str
    items: Sequence[Any]
    text: Callable[[Any], str] = str
    left_out: int = 0  # the number of further items that are not included here
    foot: str = ""

    def first(self) -> _Section:
        """Return the section with only its first items."""
        left = max(0, len(self.items) - _SHORT_ITEMS)
        return replace(self, items=self.items[:_SHORT_ITEMS], left_out=self.left_out + left)

    def fitting(self, room: int) -> tuple[list[str], int]:
        """Return the texts that fit, and the remaining bytes: 0 after the first text that did not fit."""
        texts: list[str] = []
        left = room - byte_size(self.head) - byte_size(self.foot)
        for item in self.items if left >= 0 else ():
            text = well_formed(self.text(item))
            if byte_size(text) > left:
                break
            texts.append(text)
            left -= byte_size(text)
        total = len(self.items) + self.left_out
        missing = total - len(texts)
        if not missing:
            return [self.head, *texts, self.foot], left
        note = f"\n_{missing:,} of {total:,} {self.kind} left out: {_LEFT_OUT}_\n"
        left = left if len(texts) == len(self.items) else 0
        return [*([self.head, *texts, self.foot] if texts else []), note], left


_LEFT_OUT = "the summary stays short, with --verbose below 1 MiB."


def _sections(
    report: RunReport, transcripts: Transcripts, compared: Sequence[str], *, detailed: bool
) -> Iterator[_Section]:
    block = partial(_block, transcripts, report.changed, detailed)
    yield _Section("causes", "\n### Not passed\n\n", report.blocks, block)
    yield _Section("comparisons", "\n", compared)
    yield _others(report)
    head = table_head(["Severity", "Error", "Scenario", "Times", "Explanation"])
    yield _Section("errors", f"\n### Errors\n\n{head}", report.errors, _error_row)
    criteria = [(s, each) for s in report.finished for each in s.result.totals.criteria]
    criteria = [each for each in criteria if detailed or each[1].example]
    criteria.sort(key=lambda item: _criterion_badness(item[1]))
    head = table_head(["Status", "Scenario", "Criterion", "Conversations", "Example"])
    yield _Section("criteria", f"\n### Criteria\n\n{head}", criteria, _criterion_row)
    violations = report.violations
    yield _Section("threshold violations", "\n### Threshold violations\n\n", violations, _violation)
    warnings = [f"- {inline(s.label)}: {inline(text)}\n" for s, text in report.warnings]
    warnings += [f"- {inline(warning.message)}\n" for warning in report.result.warnings]
    warnings += map(_questions, report.questions)
    yield _Section("warnings", "\n### Warnings\n\n", warnings)
    fold = "\n<details>\n<summary>Notes</summary>\n\n"
    yield _Section("notes", fold, [*map(_questions, report.notes)], foot="\n</details>\n")
    stories = [(s, each) for s in report.finished for each in transcripts.of(s)]
    left_out, head = transcripts.left_out, "\n### Transcripts of what did not pass\n\n"
    yield _Section("transcripts", head, stories if detailed else (), _details, left_out)
    averages = [row for scenario in report.finished if detailed for row in _average_rows(scenario)]
    head = table_head(["Scenario", "Metric", "Average", "n", "Threshold"])
    fold = f"\n<details>\n<summary>Averages</summary>\n\n{head}"
    yield _Section("averages", fold, averages, foot="\n</details>\n")


def _others(report: RunReport) -> _Section:
    others = [each for each in report.finished if each.status not in NOT_PASSED]
    counts = ", ".join(f"{n} {word}" for n, word, status in report.counts if status not in NOT_PASSED)
    agent = ["Agent"] if report.several_agents else []
    head = table_head(["Status", "Scenario", *agent, "Conversations passed", "Duration"])
    fold = f"\n<details>\n<summary>{counts}</summary>\n\n{head}"
    return _Section("scenarios", fold, others, _scenario_row, foot="\n</details>\n")


def _headline(report: RunReport, files: Sequence[str]) -> str:
    result = report.result
    outcome = ", ".join(f"{n} {word}" for n, word, _ in report.counts) or "no scenario ran"
    next_step = f" `{report.next_step}` runs the rest." if report.next_step else ""
    early = f"\n**{inline(report.early_end)}.**{next_step}\n" if report.early_end else ""
    rates = [f"{each.agent and each.agent + ': '}{', '.join(each.facts)}" for each in report.rates]
    calibrations = "; ".join(f"{name}: {agreement.shown}" for name, agreement in result.calibrations.items())
    paragraphs = (
        f"Pass rate: {'; '.join(map(inline, rates))}. {inline(report.rates_note)}" if rates else "",
        f"The judge against people's labels: {inline(calibrations)}." if calibrations else "",
        *(f"Quota of {inline(each.message)}." for each in result.quotas if each.message),
        result.hidden and f"{result.hidden}.",
        _other_reports(report, files),
    )
    return (
        f"## {ICONS[report.status]} Agentest: {outcome}\n{early}\n"
        f"In {_seconds(result.duration_ms)}.{_models(result)}\n"
        + "".join(f"\n{text}\n" for text in paragraphs if text)
    )


def _other_reports(report: RunReport, files: Sequence[str]) -> str:
    names = ", ".join(map(code, files))
    results = next((file for file in files if file.endswith(".json")), None)
    if not names or not report.not_passed or results is None:
        return f"Reports: {names}" if names else ""
    scenario = "=" + report.not_passed[0].result.name
    command = f"agentest show {shlex.quote(results)} --scenario {shlex.quote(scenario)} --verbose"
    return f"Reports: {names}; to look at a failure: {code(command)}"


def _block(
    transcripts: Transcripts, changed: Mapping[tuple[str, str, str], str], detailed: bool, block: CauseBlock
) -> str:
    """Return a cause: its headline, one scenario with its calls and its transcript, and the other names."""
    several = block.cause.agents if block.cause and block.scenarios[0].several_agents else ()
    facts = " · ".join([block.extent, *(map(inline, several))])
    example = next((each for each in block.scenarios if transcripts.of(each)), block.scenarios[0])
    stories = transcripts.of(example)
    shown = [each for story in stories[:1] for each in story.tables]
    listed = [row for row in cause_texts(example) if row != block.headline][
        : None if detailed else _SHOWN_REASONS
    ]
    parts = [
        f"- {ICONS[block.status]} **{inline(block.headline)}** · {facts}\n",
        f"  - {_place(example, changed)}{_passed_of(example)}\n",
        *(f"    - {inline(row)}\n" for row in (() if shown and not listed[1:] else listed)),
        *(_call_table(each, is_named=len(shown) > 1) for each in shown),
        _details((example, stories[0]), short=True) if stories and not detailed else "",
    ]
    others = [_place(each, changed) for each in block.scenarios if each is not example]
    if detailed:
        parts += [f"  - {name}\n" for name in others]
    elif others:
        left = others[_SHORT_ITEMS:]
        more_names = [f"and {len(left):,} more"] if left else []
        parts.append(f"  - {' · '.join([*others[:_SHORT_ITEMS], *more_names])}\n")
    return "".join(parts)


def _place(scenario: ScenarioReport, changed: Mapping[tuple[str, str, str], str]) -> str:
    names = [scenario.label] if scenario.label != scenario.result.file else []
    new = [f"({NEWLY_FAILING})"] if changed.get(scenario.key) == NEWLY_FAILING else []
    return inline(" ".join([*names, scenario.location, *new]))


def _passed_of(scenario: ScenarioReport) -> str:
    has_more = scenario.result.totals.conversations > 1 or scenario.result.attack
    return f" · passed {_facts(scenario)}" if has_more else ""


def _facts(scenario: ScenarioReport) -> str:
    result, totals = scenario.result, scenario.result.totals
    passed = f"{totals.passed} of {totals.conversations}"
    facts = ", ".join(filter(None, (passed, passed_text(result), "flaky" if result.flaky else "")))
    text = inline(facts) + (f", {text}" if (text := decided(result)) else "")
    if result.attack:
        text += f" · {inline(f'attack {result.attack.strategy}: {attack_text(result, result.attack)}')}"
    return text


def _sublist(rows: Sequence[str]) -> str:
    return "".join(f"  - {inline(row)}\n" for row in rows)


def _seconds(milliseconds: float) -> str:
    return f"{milliseconds / 1000:.1f} s"


def _models(result: RunResult) -> str:
    used, models = result.usage, ", ".join(dict.fromkeys(filter(None, result.models.values())))
    text = f" Model: {inline(models)}." if models else ""
    if not used.calls:
        return text
    cost = "cost unknown" if used.cost is None else f"{used.cost:.4f} USD"
    return f"{text} {used.calls:,} model calls, {used.tokens.total_tokens:,} tokens, {cost}."


def _scenario_row(scenario: ScenarioReport) -> str:
    result = scenario.result
    agent = [inline(result.agent)] if scenario.several_agents else []
    cells = [f"{ICONS[scenario.status]} {scenario.status}", inline(result.name), *agent]
    return table_row([*cells, _facts(scenario), _seconds(result.duration_ms)])


def _error_row(error: tuple[ScenarioReport, UniqueError]) -> str:
    scenario, group = error
    texts = (group.label, scenario.label, str(len(group.occurrences)), group.explanation)
    return table_row([group.severity.label, *map(inline, texts)])


def _criterion_badness(criterion: CriterionTotals) -> tuple[bool, int]:
    met = criterion.worst is CriterionOutcome.MET
    return met or not criterion.required, list(CriterionOutcome).index(criterion.worst)


def _criterion_row(item: tuple[ScenarioReport, CriterionTotals]) -> str:
    scenario, criterion = item
    matters = criterion.worst is CriterionOutcome.MET or criterion.required
    icon = _CRITERION_ICONS[criterion.worst] if matters else "➖"
    texts = (criterion_name(criterion), criterion_counts(criterion), criterion_example(criterion))
    return table_row([icon, *map(inline, (scenario.label, *texts))])


def _violation(item: tuple[ScenarioReport, Reason]) -> str:
    scenario, reason = item
    message, *rows = reason.message.split("\n")
    return f"- {inline(scenario.label)}: {inline(message)}\n{_sublist(rows)}"


def _questions(each: QuestionedVerdicts) -> str:
    return f"- **{inline(each.head)}**\n{_sublist(each.rows(_SHOWN_QUESTIONS))}"


def _call_table(titled: TitledTable, *, is_named: bool) -> str:
    """Return the expected and actual calls of a failure, as a table inside its item of the list.

    Args:
        is_named: put the title above it, because the failure has other reasons, too.
    """
    table, title = titled.table, f"{inline(titled.title)}\n\n" if is_named else ""
    why = ["Why"] if any(row.words for row in table.rows) else []
    heads = ["", *(head[0].upper() + head[1:] for head in table.heads[not table.expects :]), *why]
    rows = [table_row(_cells(row, expects=table.expects)[: len(heads)]) for row in table.rows]
    more = f"\n{inline(table.more)}\n" if table.more else ""
    lines = f"{title}{table_head([*map(inline, heads)])}{''.join(rows)}{more}".splitlines()
    return "\n" + "".join(f"  {line}\n" if line else "\n" for line in lines) + "\n"


def _cells(row: TextRow, *, expects: bool) -> list[str]:
    expected = [code(row.expected)] if expects else []
    return [_ROW_ICONS[row.outcome], *expected, code(row.made), inline(row.words) or "–"]


def _details(item: tuple[ScenarioReport, Transcript], *, short: bool = False) -> str:
    """Return a folded transcript; if `short`, only its last messages, inside an item of a list."""
    scenario, transcript = item
    rows = transcript.text.split("\n")
    if short:
        rows = (transcript.text.partition("\n\n")[2] or transcript.text).split("\n")
        rows = ["…", *rows[-_SHORT_LINES:]] if len(rows) > _SHORT_LINES else rows
    title = inline(f"{scenario.label}: {transcript.conversation_id}")
    # Without this blank line, a blank line of the transcript would end the HTML block and start Markdown.
    text = html.escape("\n".join(rows), quote=False)
    lines = f"<details><summary>{title}</summary>\n\n<pre>{text}</pre></details>\n".split("\n")
    return "".join(f"{'    ' * short}{row}\n" for row in lines)


def _average_rows(scenario: ScenarioReport) -> Iterator[str]:
    for name, figure in scenario.result.intervals.items():
        least = scenario.result.thresholds.get(name)
        value = f"{figure.value:.2f}{interval_text(figure)}"
        number = "" if least is None else f"{least:g}"
        yield table_row([*map(inline, (scenario.label, name, value)), f"{figure.n:,}", number])


_LEVELS = {
    Severity.CRITICAL: "error",
    Severity.HIGH: "error",
    Severity.MEDIUM: "warning",
    Severity.LOW: "notice",
}
_SHOWN_ANNOTATIONS = 10
_TITLE_CHARS, _MESSAGE_CHARS = 250, 10_000  # GitHub shows little more, and a judge may write pages
_MESSAGE_ESCAPES = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_IN_MESSAGE = str.maketrans(_MESSAGE_ESCAPES)
_IN_PROPERTY = str.maketrans({**_MESSAGE_ESCAPES, ":": "%3A", ",": "%2C"})


def repository_path(file: str, root: Path, workspace: Path | None) -> str:
    """Return the file's path from the root of its repository, with forward slashes, or absolute."""
    path = (root / file).resolve()
    checkouts = (each for each in path.parents if (each / ".git").exists())  # a file in a worktree
    for base in (*checkouts, *([workspace.resolve()] if workspace else []), root.resolve()):
        if path.is_relative_to(base):
            return path.relative_to(base).as_posix()
    return path.as_posix()


def annotation(level: str, file: str | None, line: int, title: str, message: str) -> str:
    """Format one workflow command on one line. Line breaks and commands inside the texts are escaped."""
    where = "" if file is None else f"file={_property(file)},line={max(line, 1)},"
    text = clean_for_command(cut(message, _MESSAGE_CHARS)).translate(_IN_MESSAGE)
    return f"::{level} {where}title={_property(cut(title, _TITLE_CHARS))}::{text}"


def _property(text: str) -> str:
    return clean_for_command(text).translate(_IN_PROPERTY)


@dataclass(frozen=True, slots=True)
class _Annotation:
    level: str
    where: ScenarioResult | RunWarning | Regression | FindingPlace | None  # None if it is about the whole run
    title: str
    message: str


def annotation_lines(
    result: RunResult | RunReport,
    locate: Callable[[str], str],
    regressions: Sequence[Regression] = (),
    transcripts: Transcripts | None = None,
) -> Iterator[str]:
    """Return the annotations of a run: the most severe ones of each level, and the number of omitted ones.

    GitHub shows only the first ten of each level in a step.
    """
    report = result if isinstance(result, RunReport) else RunReport(result)
    annotations = [*_not_passed(report, regressions, transcripts or Transcripts(0)), *_annotations(report)]
    if report.result.explored:
        from agentest.report.console.exploration import finding_annotations

        annotations += [_Annotation(*each) for each in finding_annotations(report.result.explored)]
    for level in ("error", "warning", "notice"):
        of_level = [each for each in annotations if each.level == level]
        listed = of_level if len(of_level) <= _SHOWN_ANNOTATIONS else of_level[: _SHOWN_ANNOTATIONS - 1]
        for each in listed:
            file, line = (locate(each.where.file), each.where.line) if each.where else (None, 1)
            yield annotation(level, file, line, each.title, each.message)
        if more := len(of_level) - len(listed):
            counted = count(more, f"more {level}")
            yield annotation(
                level, None, 1, counted, f"and {counted}: see the summary of the job, or the log"
            )


def _not_passed(
    report: RunReport, regressions: Sequence[Regression], transcripts: Transcripts
) -> Iterator[_Annotation]:
    left = {each.place: each for each in regressions}
    if len(report.not_passed) > _SHOWN_ANNOTATIONS:
        for block in report.blocks:
            names = [f"{each.label} ({each.location})" for each in block.scenarios]
            text = f"{block.extent}: {'; '.join(names)}\n{_text(block.scenarios[0], transcripts)}"
            yield _Annotation("error", block.scenarios[0].result, block.headline, text)
    else:
        for scenario in sorted(report.not_passed, key=lambda s: (s.status != "failed", s.key not in left)):
            title, text = f"{scenario.label} {scenario.status}", _text(scenario, transcripts)
            if worse := left.pop(scenario.key, None):
                title, text = f"{title} and {worse.change}", f"{text}\n{worse.change}: {worse.message}"
            yield _Annotation("error", scenario.result, title, text)
    for worse in left.values():
        name = f"{worse.name} ({worse.agent})" if report.several_agents else worse.name
        yield _Annotation("error", worse, f"{name} {worse.change}", worse.message)


def _text(scenario: ScenarioReport, transcripts: Transcripts) -> str:
    tables = {each.title: each.table for story in transcripts.of(scenario)[:1] for each in story.tables}
    rows = (row for table in tables.values() if table.expects for row in _rows(table))
    return "\n".join([*cause_texts(scenario), *rows])


def cause_texts(scenario: ScenarioReport) -> list[str]:
    """Return a row for each cause that needs no judge: its text, after its title if only that has it."""
    rows = []
    for cause in scenario.unjudged_causes:
        more = f" ({count(cause.conversations, 'conversation')})" if cause.conversations > 1 else ""
        title, text = cause.title, cause.text
        if cause.kind in _COUNTED or is_in(text, title):  # thresholds have annotations of their own
            text = title
        elif not is_in(title.partition("…")[0], text):
            text = f"{title}: {text}"
        rows.append(text + more)
    reasons = (shortened(reason.message, _SHORT_CHARS) for reason in scenario.reasons)
    return rows or [*reasons] or [scenario.headline]


def _rows(table: AlignmentTable) -> list[str]:
    return [f"{' | '.join(table.heads)}:", *plain_rows(table)]


def _annotations(report: RunReport) -> Iterator[_Annotation]:
    if report.result.unfinished:
        yield _Annotation("error", None, "Agentest did not finish", report.early_end)
    for stray in report.result.unclaimed:
        yield _Annotation("error", stray, "tool calls belonged to no conversation", stray.message)
    for scenario, group in report.errors:
        title = f"{group.severity.label} error: {group.label}"
        message = f"{scenario.label}: {group.explanation} ({', '.join(group.occurrences)})"
        yield _Annotation(_LEVELS[group.severity], scenario.result, title, message)
    for scenario in report.scenarios:
        for level, message in _violated_criteria(scenario.result):
            yield _Annotation(level, scenario.result, f"{scenario.label}: criterion", message)
    for scenario, reason in report.violations:
        yield _Annotation("warning", scenario.result, f"{scenario.label}: threshold", reason.message)
    for scenario, warning in report.warnings:
        yield _Annotation("warning", scenario.result, f"{scenario.label}: warning", warning)
    for questions in report.questions:
        for text, first in questions.each:
            where = RunWarning(text, first.agent, first.file, first.line)
            yield _Annotation("warning", where, str(questions.code), text)
    for null in report.result.unanswered:
        yield _Annotation("warning", null, "tool calls were answered with null", null.message)


def _violated_criteria(scenario: ScenarioResult) -> Iterator[tuple[str, str]]:
    failing = {reason.criterion.text for reason in scenario.verdict.reasons if reason.criterion}
    for each in scenario.totals.criteria:
        if each.violated:
            level = "error" if each.required and each.text in failing else "warning"
            counts = f"{criterion_counts(each)}; " if each.judged > 1 else ""
            yield level, f"{criterion_name(each)}: {counts}{criterion_example(each)}"
