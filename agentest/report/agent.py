"""The agent reporter: what a coding agent needs to repair a failure, in at most 2,000 tokens.

Each scenario that did not pass has one block: its place, what was expected, what happened, the turn, the
likely cause, and the command that repeats it. A run that passed is one line.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from agentest.domain.events import Event, RunFinished, ScenarioAmended, ScenarioFinished
from agentest.domain.results import (
    CauseKind,
    Reason,
    ReasonKind,
    RootCause,
    ScenarioResult,
    Status,
    WarningCode,
)
from agentest.domain.transcript import NO_TEXT, Conversation, UnfinishedTurn, call_text
from agentest.report.content import NOT_PASSED, VIOLATIONS, RunReport, ScenarioReport
from agentest.support.files import report_writer
from agentest.support.json_text import Json, plain, well_formed
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.terminal import Output, clean_rows, encodable
from agentest.support.text import count, shortened, turn_name

if TYPE_CHECKING:
    from agentest.report.registry import ReporterContext

MOST_CHARS = 8_000  # about 2,000 tokens
_ROOM_FOR_REST = 400  # characters for the first line and for the line that counts what is left out
_SIDE_CHARS = 400
_TEXT_CHARS = 300
_NAME_CHARS = 120
_MOST_REASONS = 3
_MOST_CALLS = 4
_MOST_BLOCKS = 100  # turns are stored for this many scenarios; the report has room for fewer
_NOT_THE_AGENT = {
    ReasonKind.FILE: "in the scenario file",
    ReasonKind.MODEL: "the model of user or judge, not the agent",
    ReasonKind.CRITERION: "no judge could decide it, which says nothing about the agent",
    ReasonKind.UNSCORED: "no judge could score it, which says nothing about the agent",
    ReasonKind.DEDUPLICATION: "the judge, not the agent",
    ReasonKind.THRESHOLD: "no judge could score it, which says nothing about the agent",
    ReasonKind.WARNING: "the test does not prove what it claims (strict)",
    ReasonKind.INTERRUPTED: "the run ended early",
}
_SETUP = "the test's setup: a mock, the configuration or Agentest"

Place = tuple[str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenTurn:
    """The turn that decided a scenario, in short texts."""

    conversation_id: str
    turn_index: int | None
    rows: tuple[str, ...]
    """User, calls and agent, one row each; those of the last turn if no single turn decided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureBlock:
    """Everything about one scenario that did not pass."""

    scenario: str
    agent: str
    status: Status
    location: str
    expected: tuple[str, ...]
    """One row for each of the first reasons; "" if a reason has no expectation of its own."""
    happened: tuple[str, ...]
    more: int  # the number of further reasons
    turn: BrokenTurn | None
    cause: str
    command: str

    @property
    def text(self) -> str:
        """The block as rows of text."""
        rows = [f"{self.status.upper()} {self.location}  {self.scenario}"]
        for expected, happened in zip(self.expected, self.happened, strict=True):
            rows += [f"  expected: {expected.removeprefix('expected ')}"] if expected else []
            rows.append(f"  happened: {happened}")
        rows += [f"  … {count(self.more, 'more reason')}"] if self.more else []
        if self.turn:
            at = "" if self.turn.turn_index is None else f"{turn_name(self.turn.turn_index)} of "
            rows.append(f"  {at}conversation {self.turn.conversation_id}:")
            rows += [f"    {row}" for row in self.turn.rows]
        rows += [f"  likely cause: {self.cause}"] if self.cause else []
        rows += [f"  repeat: {self.command}"] if self.command else []
        return "\n".join(rows)


class Failures:
    """The failures of a run. Add scenarios while they have their conversations."""

    def __init__(self) -> None:
        self._turns: dict[Place, BrokenTurn] = {}

    def add(self, scenario: ScenarioResult) -> None:
        """Store the turn that decided a scenario."""
        report = ScenarioReport(scenario)
        if report.status not in NOT_PASSED or not scenario.conversations:
            return
        if len(self._turns) < _MOST_BLOCKS and (turn := _broken_turn(report)) and turn.rows:
            self._turns[report.key] = turn

    def blocks(self, report: RunReport, most: int = MOST_CHARS) -> list[FailureBlock]:
        """Return a block for each scenario that did not pass: one of each cause first, then repeats.

        Repeats have no turn if all blocks together would exceed `most` characters.
        """
        ranked: list[tuple[bool, bool, FailureBlock]] = []
        for each in report.blocks:
            cause = each.cause
            if cause and cause.kind is CauseKind.CHECK and "…" in cause.title:
                cause = None  # The scenarios demand different things of their replies.
            first = self._block(each.scenarios[0], cause)
            is_errored = each.status is Status.ERRORED
            ranked.append((False, is_errored, first))
            for scenario in each.scenarios[1:]:
                block = self._block(scenario, cause)
                if cause:
                    block = replace(block, cause=f"as in {first.location}")
                if cause and is_errored:
                    block = replace(block, expected=(), happened=(), more=0)
                ranked.append((cause is not None, is_errored, block))
        ranked.sort(key=lambda each: each[:2])
        is_full = sum(len(block.text) + 2 for _, _, block in ranked) <= most - _ROOM_FOR_REST
        return [
            block if is_full or not repeats else replace(block, turn=None) for repeats, _, block in ranked
        ]

    def _block(self, scenario: ScenarioReport, cause: RootCause | None) -> FailureBlock:
        result = scenario.result
        distinct: dict[object, Reason] = {}
        for reason in sorted(scenario.reasons, key=lambda each: each.kind in VIOLATIONS):
            text = reason.criterion.text if reason.criterion else reason.message
            is_goal = reason.kind is ReasonKind.GOAL  # the judge words each reason differently
            distinct.setdefault(reason.kind if is_goal else (text, reason.turn_index), reason)
        reasons = [*distinct.values()]
        sides = [_sides(reason, result) for reason in reasons[:_MOST_REASONS]]
        indices = [reason.turn_index for reason in reasons[:_MOST_REASONS]]
        if len(set(indices)) > 1:
            sides = [
                (expected, happened if index is None else f"{turn_name(index)}: {happened}")
                for index, (expected, happened) in zip(indices, sides, strict=True)
            ]
        expected, happened = (tuple(shortened(each[at], _SIDE_CHARS) for each in sides) for at in (0, 1))
        place = {"file": result.file, "line": result.line, "agent": result.agent, "name": result.name}
        place |= {"evalId": result.case.eval_id} if result.case else {}
        return FailureBlock(
            scenario=shortened(scenario.label, _NAME_CHARS),
            agent=result.agent,
            status=scenario.status,
            location=shortened(scenario.location, _TEXT_CHARS),
            expected=expected,
            happened=happened,
            more=len(reasons) - len(sides),
            turn=self._turns.get(scenario.key),
            cause=_likely_cause(scenario, reasons, cause, (*expected, *happened)),
            command=rerun(place, scenario.several_agents),
        )


def make_reporter(context: ReporterContext, path: Path | None) -> AgentReporter:
    """Create the reporter of a run."""
    return AgentReporter(path, context.run_id, context.next_step)


class AgentReporter:
    """Writes the failures of a run when it has ended.

    Args:
        path: the file; None for standard output.
        run: id of the stored run, for the command that shows all failures; "" for the latest.
        next_step: the command that continues an interrupted run; "" if there is none.
        write: receives the report if there is no path, by default standard output.
    """

    name = "agent"
    events = (ScenarioFinished, ScenarioAmended, RunFinished)

    def __init__(
        self,
        path: Path | None = None,
        run: str = "",
        next_step: str = "",
        write: Callable[[str], object] | None = None,
    ) -> None:
        self.prints_outcome = self.replaces_progress_log = path is None  # a coding agent pays for each line
        self._path = path
        self._run = run
        self._next_step = next_step
        self._write = write or _print
        self._failures = Failures()

    def on_event(self, event: Event) -> None:
        if isinstance(event, ScenarioFinished | ScenarioAmended):
            self._failures.add(event.result)
        elif isinstance(event, RunFinished):
            report = RunReport(event.result, self._next_step)
            text = report_text(report, self._failures.blocks(report), self._run)[0] + "\n"
            if self._path is None:
                self._write(text)
                return
            with report_writer(self._path) as file:
                file.write(well_formed(text).encode())


def report_text(
    report: RunReport, blocks: Sequence[FailureBlock], run: str = "", most: int = MOST_CHARS
) -> tuple[str, int]:
    """Return the report in at most `most` characters, and how many blocks it has. A pass is one line."""
    counts = ", ".join(f"{number:,} {words}" for number, words, _ in report.counts) or "no scenario ran"
    head = f"{report.status}: {counts}"
    simulated = (each for each in report.result.verdict_warnings if each.code is WarningCode.SIMULATED_TOOLS)
    if tools := sorted({tool for each in simulated for tool in each.tools}):
        head += f"; simulated by a model: {shortened(clean_rows(', '.join(tools)), _SIDE_CHARS)}"
    if report.result.explored:
        from agentest.report.console.exploration import finding_texts

        head = "\n\n".join((head, *finding_texts(report.result.explored)))
    if report.status is Status.PASSED:
        return head, 0
    rows = [head, *_about_run(report)]
    left = most - sum(len(row) + 1 for row in rows) - _ROOM_FOR_REST
    texts: list[str] = []
    for block in blocks:
        text = clean_rows(block.text)
        left -= len(text) + 2
        if left < 0:
            break
        texts.append(text)
    parts = ["\n".join(rows), *texts]
    if more := len(blocks) - len(texts):
        parts.append(f"… {count(more, 'more scenario')} did not pass: agentest show {run or 'latest'}")
    return "\n\n".join(parts), len(texts)


def _about_run(report: RunReport) -> Iterator[str]:
    if report.early_end:
        yield shortened(report.early_end, _SIDE_CHARS)
        if report.next_step:
            yield f"continue: {shortened(report.next_step, _SIDE_CHARS)}"
    if report.result.hidden:
        yield report.result.hidden
    unclaimed = report.result.unclaimed
    for warning in unclaimed[:_MOST_REASONS]:
        yield shortened(warning.message, _SIDE_CHARS)
    if (more := len(unclaimed) - _MOST_REASONS) > 0:
        yield f"… {count(more, 'more tool')} with such calls"


def _sides(reason: Reason, scenario: ScenarioResult) -> tuple[str, str]:
    trajectory, check, criterion, group = reason.trajectory, reason.check, reason.criterion, reason.group
    if trajectory:
        sides = [(label.removeprefix("expected "), text) for label, text in trajectory.sides]
        wanted = [f"{label} {text}" for label, text in sides if label != "actual"]
        calls = f"; calls made: {trajectory.actual}" if trajectory.actual else ""
        return "; ".join(wanted), f"{trajectory.summary}{calls}"
    if check and not check.error:
        return check.summary, check.reply or "the reply does not fulfill this check"
    if criterion:
        return criterion.text, f"{criterion.result}: {criterion.reason}"
    if reason.kind is ReasonKind.GOAL:
        return f"the goal is reached: {scenario.goal}" if scenario.goal else "", reason.message
    if group:
        return f"no failure of severity {group.severity.label}", f"{group.label}: {group.explanation}"
    if reason.expected is not None and reason.metric:
        actual = "no score" if reason.actual is None else f"{reason.actual:g}"
        bound = "at most" if reason.is_of_limit else "at least"
        return f"{reason.metric} of {bound} {reason.expected:g}", f"{actual}; {reason.message}"
    return "", reason.message


def _likely_cause(
    scenario: ScenarioReport, reasons: Sequence[Reason], cause: RootCause | None, rows: Sequence[str]
) -> str:
    if not reasons:
        return ""
    first = reasons[0]
    where = "the agent" if first.status is Status.FAILED else _NOT_THE_AGENT.get(first.kind, _SETUP)
    titles = [title for _, title in scenario.causes if not any(title in row for row in rows)][:_MOST_REASONS]
    others = cause.scenarios - 1 if cause else 0
    also = f" (also in {count(others, 'other scenario')})" if others else ""
    return f"{'; '.join((where, *titles[:1]))}{also}{''.join(f'; {title}' for title in titles[1:])}"


def rerun(scenario: Json, several: bool) -> str:
    """Return the command that runs a scenario again in its configuration's folder; "" if there is none."""
    file, agent = scenario["file"], scenario["agent"]
    if not file or not agent:  # not a scenario, but a file that did not load
        return shlex.join(["agentest", "run", _path(file)]) if file else ""
    words = ["agentest", "run", f"{_path(file)}::{scenario['name']}"]
    if "evalId" in scenario:
        words = ["agentest", "eval", f"{_path(file)}:{scenario['evalId']}"]
    elif not scenario["line"]:  # no file defines it, as for recorded sessions
        return ""
    return shlex.join([*words, *(("--agent", agent) if several else ())])


def _path(file: str) -> str:
    return f"./{file}" if file.startswith("-") else file


def _broken_turn(scenario: ScenarioReport) -> BrokenTurn | None:
    every = scenario.result.conversations
    # A slim conversation has no texts and no id.
    whole = {each.conversation.conversation_id: each.conversation for each in every if not each.slim}
    places = [(each.conversation_id, each.turn_index) for each in scenario.unjudged_causes]
    judged = (each for group in scenario.result.errors if group.fails for each in group.examples)
    places += ((each.conversation_id, each.turn_index) for each in judged)
    places += ((id, None) for id in whole if len(every) == 1)
    for id, index in places:
        if id in whole:
            rows = tuple(_turn_rows(whole[id], index))
            return BrokenTurn(conversation_id=id, turn_index=index, rows=rows)
    return None


def _turn_rows(conversation: Conversation, index: int | None) -> Iterator[str]:
    every = conversation.started_turns
    turn = next((each for each in every if each.turn_index == index), every[-1] if every else None)
    if turn is None:
        return
    yield f"user: {shortened(turn.user_message, _TEXT_CHARS)}"
    for call in turn.tool_calls[:_MOST_CALLS]:
        result = json.dumps(plain(call.result), ensure_ascii=False)
        yield f"call: {shortened(call_text(call), _TEXT_CHARS)} → {shortened(result, _TEXT_CHARS // 2)}"
    if more := len(turn.tool_calls[_MOST_CALLS:]):
        yield f"… {count(more, 'more call')}"
    if not isinstance(turn, UnfinishedTurn):
        yield f"agent: {shortened(turn.agent_message or NO_TEXT, _TEXT_CHARS)}"


def _print(text: str) -> None:
    output = Output(sys.stdout)
    output.write(encodable(text, output.encoding or "utf-8"))
    output.flush()
