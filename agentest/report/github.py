"""The report for GitHub Actions: annotations in the log, and a Markdown summary of the step."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from agentest.events import Event, RunFinished, ScenarioFinished
from agentest.report import github_selection as select
from agentest.report.github_annotations import annotation_lines, repository_path
from agentest.report.github_criteria import TABLE_HEAD, badness, criterion_row, story_lines
from agentest.report.github_figures import AVERAGES_HEAD, average_rows, passed_cell, rates_paragraph
from agentest.report.github_markdown import cut, inline, table_row
from agentest.report.session_state import state_rows
from agentest.results import (
    ConversationResult,
    ErrorGroup,
    JudgeCalibration,
    Reason,
    RunResult,
    RunWarning,
    ScenarioResult,
    Status,
)
from agentest.support.json_text import plain, well_formed
from agentest.support.terminal import clean
from agentest.support.text import count
from agentest.transcript import NO_TEXT, Conversation, StateChange, ToolCall, Turn, call_text, state_changes
from agentest.verdict import conversation_passed, run_status

SUMMARY_LIMIT = 1024 * 1024
"""Bytes that GitHub takes as the summary of one step; it refuses a larger one whole."""

_ICONS = {Status.PASSED: "✅", Status.FAILED: "❌", Status.ERRORED: "⚠️", Status.SKIPPED: "⏭️"}

_MAX_MESSAGE_CHARS = 4_000
_MAX_TRANSCRIPT_CHARS = 40_000
_MAX_NOTE_BYTES = 160


class GitHubReporter:
    """Writes annotations through `write`, each as one line without its newline, and appends the summary.

    Args:
        root: the working directory, which files of scenarios are relative to.
        summary_path: the file that `$GITHUB_STEP_SUMMARY` names.
        workspace: the folder that `$GITHUB_WORKSPACE` names; for files outside of any git checkout.
    """

    name = "github-actions"

    def __init__(
        self,
        write: Callable[[str], None],
        root: Path,
        summary_path: Path | None = None,
        workspace: Path | None = None,
    ) -> None:
        self._write = write
        self._root = root
        self._summary_path = summary_path
        self._workspace = workspace
        self._transcripts = Transcripts()

    def on_event(self, event: Event) -> None:
        if isinstance(event, ScenarioFinished) and self._summary_path:
            self._transcripts.add(event.result)
        elif isinstance(event, RunFinished):
            for line in annotation_lines(event.result, self._locate):
                self._write(line)
            if self._summary_path:
                append_summary(event.result, self._transcripts, self._summary_path)

    def _locate(self, file: str) -> str:
        return repository_path(file, self._root, self._workspace)


@dataclass(frozen=True, slots=True)
class Story:
    """The transcript of a conversation that did not pass."""

    conversation_id: str
    text: str


class Transcripts:
    """The transcripts of conversations that did not pass, as many as any summary can have room for.

    Failed and errored scenarios have their own room: whichever comes first takes none from the others.
    """

    def __init__(self) -> None:
        self._stories: dict[tuple[str, str, str], list[Story]] = {}
        self._room = dict.fromkeys(select.UNDONE, SUMMARY_LIMIT)
        self.left_out = 0

    def add(self, scenario: ScenarioResult) -> None:
        """Write the transcripts of the scenario, whose conversations may be dropped afterwards."""
        status = scenario.verdict.status
        for conversation in _to_show(scenario):
            if self._room[status] <= 0:
                self.left_out += 1
                continue
            text = well_formed(_capped(_story(scenario, conversation)))
            self._room[status] -= _size(text)
            stories = self._stories.setdefault(_key(scenario), [])
            stories.append(Story(conversation.conversation.conversation_id, text))

    def of(self, scenario: ScenarioResult) -> Sequence[Story]:
        """The transcripts of the scenario."""
        return self._stories.get(_key(scenario), ())


def append_summary(result: RunResult, transcripts: Transcripts, path: Path) -> None:
    """Add the summary to the file, which stays within what GitHub takes."""
    before = path.stat().st_size if path.exists() else 0
    gap = "\n" if before else ""
    text = summary(result, transcripts, SUMMARY_LIMIT - before - len(gap))
    if text:
        with path.open("ab") as file:
            file.write((gap + text).encode())


def summary(result: RunResult, transcripts: Transcripts, room: int) -> str:
    """The Markdown summary in at most `room` bytes of UTF-8.

    Transcripts are left out first, then rows from the end of the lists, each time with a line that says so.
    Empty when not even the headline has room.
    """
    sections = [section for section in _sections(result, transcripts) if section.pieces]
    headline = _headline(result)
    left = room - _size(headline) - _MAX_NOTE_BYTES * len(sections)
    if left < 0:
        return ""
    parts = [headline]
    for section in sections:
        kept, left = _fitted(section, left)
        parts += kept
    return "".join(parts)


@dataclass(frozen=True, slots=True)
class _Section:
    """A part of the summary whose pieces can be left out one by one; they are written when asked for."""

    kind: str
    head: str
    pieces: Sequence[Callable[[], str]]
    left_out: int = 0
    """How many further pieces are not even here."""


def _fitted(section: _Section, room: int) -> tuple[list[str], int]:
    """The texts of a section that fit, and the bytes left: none after the first piece that did not fit."""
    kept: list[str] = []
    left = room - _size(section.head)
    for piece in section.pieces if left >= 0 else ():
        text = well_formed(piece())
        if _size(text) > left:
            break
        kept.append(text)
        left -= _size(text)
    total = len(section.pieces) + section.left_out
    missing = total - len(kept)
    if not missing:
        return [section.head, *kept], left
    note = f"\n_{missing} of {total} {section.kind} left out: GitHub takes at most 1 MiB._\n"
    return [*([section.head, *kept] if kept else []), note], 0


def _size(text: str) -> int:
    return len(text.encode())


def _sections(result: RunResult, transcripts: Transcripts) -> Iterator[_Section]:
    several = len(result.agents) > 1
    scenarios = sorted(result.scenarios, key=select.badness)
    yield _Section("scenarios", _table_head(several), [partial(_row, s, several) for s in scenarios])
    errors = sorted(select.errors(result), key=lambda error: -error[1].severity)
    yield _Section("errors", _ERRORS_HEAD, [partial(_error_row, s, e, several) for s, e in errors])
    examples = [partial(_example, s, e, several) for s, e in errors if e.examples]
    yield _Section("examples of errors", "\n### Examples of errors\n\n", examples)
    judged = [(s, each) for s in scenarios for each in s.totals.criteria]
    criteria = sorted(judged, key=lambda one: badness(one[1]))
    rows = [partial(criterion_row, s, each, several) for s, each in criteria]
    yield _Section("criteria", TABLE_HEAD, rows)
    violations = [partial(_violation, s, r, several) for s, r in select.violations(result)]
    yield _Section("threshold violations", "\n### Threshold violations\n\n", violations)
    warnings = [partial(_warning, s, text, several) for s, text in select.warnings(result)]
    warnings += [partial(_run_warning, warning) for warning in result.warnings]
    yield _Section("warnings", "\n### Warnings\n\n", warnings)
    stories = [partial(_details, s, story, several) for s in scenarios for story in transcripts.of(s)]
    yield _Section("transcripts", "\n### Transcripts of failures\n\n", stories, transcripts.left_out)
    averages = [row for s in scenarios for row in average_rows(s, several)]
    yield _Section("averages", AVERAGES_HEAD, [partial(str, row) for row in averages])


def _headline(result: RunResult) -> str:
    counts = ((len(result.with_status(status)), status) for status in select.WORST_FIRST)
    outcome = ", ".join(f"{count} {status}" for count, status in counts if count) or "no scenario ran"
    icon = _ICONS[run_status(result)]
    interrupted = "\n**Interrupted: only what had finished is here.**\n" if result.interrupted else ""
    return (
        f"## {icon} Agentest: {outcome}\n{interrupted}\nIn {_seconds(result.duration_ms)}.{_models(result)}\n"
        f"{rates_paragraph(result)}{_calibrations(result)}"
    )


def _calibrations(result: RunResult) -> str:
    """How far the judge has been right about each metric, where that was measured."""
    if not result.calibrations:
        return ""
    shown = "; ".join(f"{name}: {_calibrated(known)}" for name, known in result.calibrations.items())
    return f"\nThe judge against people's labels: {inline(shown)}.\n"


def _calibrated(known: JudgeCalibration) -> str:
    sure = "" if known.low is None or known.high is None else f" ({known.low:.2f} to {known.high:.2f})"
    return f"{known.shown}{sure}"


def _models(result: RunResult) -> str:
    used = result.usage
    if not used.calls:
        return ""
    cost = "cost unknown" if used.cost is None else f"{used.cost:.4f} USD"
    return f" {used.calls:,} model calls, {used.tokens.total_tokens:,} tokens, {cost}."


def _table_head(several: bool) -> str:
    columns = ["Status", "Scenario", *(["Agent"] if several else []), "Conversations passed", "Duration"]
    return f"\n{table_row(columns)}{table_row(['---'] * len(columns))}"


def _row(scenario: ScenarioResult, several: bool) -> str:
    status = scenario.verdict.status
    cells = [f"{_ICONS[status]} {status}", inline(scenario.name)]
    cells += [inline(scenario.agent)] if several else []
    cells += [passed_cell(scenario), _seconds(scenario.duration_ms)]
    return table_row(cells)


_ERRORS_HEAD = (
    "\n### Errors\n\n| Severity | Error | Scenario | Times | Explanation |\n| --- | --- | --- | --- | --- |\n"
)


def _error_row(scenario: ScenarioResult, group: ErrorGroup, several: bool) -> str:
    label = inline(select.label(scenario, several))
    times = str(len(group.occurrences))
    return table_row([group.severity.label, inline(group.label), label, times, inline(group.explanation)])


def _example(scenario: ScenarioResult, group: ErrorGroup, several: bool) -> str:
    """The first turn in which an error occurred, as a list below the error's name."""
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


def _details(scenario: ScenarioResult, story: Story, several: bool) -> str:
    title = f"{select.label(scenario, several)}: {story.conversation_id}"
    # Without the blank lines, a blank line of the transcript would end the HTML block and start Markdown.
    return (
        f"<details>\n<summary>{inline(title)}</summary>\n\n"
        f"<pre>\n{html.escape(story.text, quote=False)}\n</pre>\n\n</details>\n\n"
    )


def _story(scenario: ScenarioResult, result: ConversationResult) -> Iterator[str]:
    """A conversation in lines: first what is wrong with it, then what was said and called."""
    conversation = result.conversation
    for reason in scenario.verdict.reasons:
        if reason.conversation_id == conversation.conversation_id:
            yield _shown(f"{reason.status}: ", reason.message)
    for failure in result.failures:
        yield _shown(f"{failure.id} {failure.metric}: {failure.label}: ", failure.reason)
    for label, text in story_lines(scenario, result):
        yield _shown(label, text)
    yield ""
    yield from _dialogue(conversation)
    if conversation.failure:
        yield _shown(f"ended by an error ({conversation.failure.blame}): ", conversation.failure.message)


def _dialogue(conversation: Conversation) -> Iterator[str]:
    changes = state_changes(conversation)
    for turn in conversation.turns:
        yield _shown("user: ", turn.user_message)
        yield from _calls(turn.tool_calls)
        for remark in turn.remarks:
            yield _shown(f"  said {remark.author}: ", remark.text)
        yield _shown("agent: ", turn.agent_message or NO_TEXT)
        yield from _state(turn, changes)
    if conversation.unfinished:
        yield _shown("user: ", conversation.unfinished.user_message)
        yield from _calls(conversation.unfinished.tool_calls)


def _state(turn: Turn, changes: Mapping[int, StateChange]) -> Iterator[str]:
    if turn.state_error:
        yield _shown("  state: ", turn.state_error)
    if turn.turn_index in changes:
        yield from (_shown("  state: ", row) for row in state_rows(changes[turn.turn_index]))


def _calls(calls: Iterable[ToolCall]) -> Iterator[str]:
    for call in calls:
        yield _shown("  → ", call_text(replace(call, args=plain(call.args))))
        yield _shown("  ← ", json.dumps(plain(call.result), ensure_ascii=False))


def _shown(who: str, text: str) -> str:
    """What somebody said; indented from the second line on, so that it cannot pass for another speaker."""
    return "\n    ".join(map(clean, cut(who + text, _MAX_MESSAGE_CHARS).splitlines()))


def _capped(lines: Iterable[str]) -> str:
    kept, left = [], _MAX_TRANSCRIPT_CHARS
    for line in lines:
        left -= len(line) + 1
        if left < 0:
            kept.append("… (the rest is left out)")
            break
        kept.append(line)
    return "\n".join(kept)


def _seconds(milliseconds: float) -> str:
    return f"{milliseconds / 1000:.1f} s"


def _to_show(scenario: ScenarioResult) -> Iterator[ConversationResult]:
    """Conversations to look at where a scenario did not pass: those that failed or hold a failure."""
    if scenario.verdict.status in select.UNDONE:
        for conversation in scenario.conversations:
            if conversation.failures or not conversation_passed(conversation):
                yield conversation


def _key(scenario: ScenarioResult) -> tuple[str, str, str]:
    # A file may define a name that another file has taken.
    return scenario.name, scenario.agent, scenario.file
