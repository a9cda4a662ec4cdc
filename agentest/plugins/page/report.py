"""The html reporter: a self-contained `report.html`, written when the run has ended."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, field
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, ClassVar, cast

from agentest.domain.events import Event, ReportRequest, RunFinished
from agentest.domain.results import ModelUsage, RunResult, ScenarioResult, Status
from agentest.domain.transcript import Conversation, TimeSpent
from agentest.domain.verdict import run_status
from agentest.history.compared_runs import MeasuredRun
from agentest.history.comparison import (
    BETTER,
    PASS_RATE,
    WORSE,
    Change,
    ComparedFigure,
    Comparison,
    ScenarioChange,
)
from agentest.history.comparison_report import (
    as_document,
    cells,
    conclusion,
    describe_change,
    footnotes,
    headline,
    points,
    resource_lines,
)
from agentest.plugins.page.viewer.overview import (
    ConversationNumbers,
    brief,
    overview,
    scenario_row,
    show_command,
)
from agentest.plugins.page.viewer.page import Chunks, PageVariant, Place, data_element, packed, page
from agentest.report.agent import rerun
from agentest.report.content import WORST_FIRST
from agentest.scenarios.source_code import (
    export_script,
    exported_name,
    has_nameless_call,
    missing,
    scripted_scenario,
)
from agentest.store.codec import CODECS
from agentest.store.reader import usable
from agentest.store.run_results import Conversations, completed_by, conversations_in_memory, head_json
from agentest.store.runs.folder import read_record, with_end
from agentest.store.runs.past_runs import about, resume_command, trend
from agentest.store.spans import SpanIndex
from agentest.support.files import report_writer, shown_path
from agentest.support.json_text import Json, encoded
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.redaction import CredentialFilter
from agentest.support.terminal import tell
from agentest.support.text import count, duration, shortened

if TYPE_CHECKING:
    from agentest.cli.comparison import RunComparison
    from agentest.report.registry import ReporterContext

MOST_BYTES = 25_000_000  # the maximum bytes of transcripts in the file


def page_of_run(results: Path, root: Path, scenarios: tuple[str, ...] = ()) -> Path:
    """Return the page of a stored run, which is written if it is not there, or one of some of its scenarios.

    Raises UsageError.
    """
    from agentest.cli.stored_runs import report_again

    is_stored = not scenarios and read_record(results.parent) is not None
    page = (results.parent if is_stored else Path(mkdtemp(prefix="agentest-"))).resolve() / "report.html"
    if page.is_file():
        tell(f"agentest: the page of this run: {shown_path(page, Path.cwd())}")
    else:
        report_again(results, root, [ReportRequest("html", page)], scenarios)
    return page


def make_reporter(context: ReporterContext, path: Path) -> HtmlReporter:
    """Create the reporter of a run."""
    record, folder = context.record, context.folder

    def trend_of(result: RunResult) -> Sequence[Json]:
        if record is None:
            return ()
        return trend(folder.parent.parent, record if record.ended else with_end(record, result))

    return HtmlReporter(
        path,
        context.journal.conversations if context.journal else conversations_in_memory,
        context.run_id,
        about=about(record) if record else {},
        trend=trend_of,
        spans=SpanIndex(folder).of,
        compared=cast("RunComparison | None", context.compared),
        next_step=(resume_command(record) if record and context.run_id else "") or context.next_step,
        tell=lambda text: context.tell(f"agentest: {text}"),
    )


@dataclass(frozen=True)
class HtmlReporter:
    """Writes `report.html` when the run has ended.

    Args:
        path: the file, whose folder is created if it does not exist.
        conversations: reads those of a scenario; `Journal.conversations` if results drop them.
        run_id: the id of a stored run.
        about: the description of a stored run, from its record.
        trend: returns the trend of earlier runs when the run ends.
        spans: returns the spans of a conversation, given scenario name, agent name and conversation id.
        compared: the comparison with another run, or between agents.
        next_step: the command that continues a run that ended early; "" if there is none.
        tell: receives one line about omitted transcripts.
        most: the maximum bytes of transcripts in the file.
    """

    name: ClassVar = "html"
    events: ClassVar = (RunFinished,)
    receives_credentials: ClassVar = True

    path: Path
    conversations: Conversations = conversations_in_memory
    run_id: str = ""
    _: KW_ONLY
    about: Json = field(default_factory=dict)
    trend: Callable[[RunResult], Sequence[Json]] = lambda _: ()
    spans: Callable[[str, str, str], Sequence[Json]] = lambda *_: ()
    compared: RunComparison | None = None
    next_step: str = ""
    tell: Callable[[str], object] = lambda _: None
    most: int = MOST_BYTES

    def on_event(self, event: Event) -> None:
        if not isinstance(event, RunFinished):
            return
        result = event.result
        packed_run = _PackedRun(
            conversations=completed_by(result, self.conversations),
            spans=self.spans,
            run_id=self.run_id,
            several=len(result.agents) > 1,
            transcripts=Chunks(self.most),
            hide=CredentialFilter(),
        )
        state = "interrupted" if result.interrupted else str(run_status(result))
        run = {"startedAt": result.started_at, **self.about, "id": self.run_id, "state": state}
        if result.unfinished and self.next_step:
            run["resume"] = self.next_step
        first = packed_run.overview(result, run, self.trend(result))
        with report_writer(self.path) as file:
            file.writelines(piece.encode() for piece in self._document(packed_run, first, result, state))
        self.tell(f"the page of this run: {shown_path(self.path, Path.cwd())}")
        if left_out := packed_run.transcripts.left_out:
            total = count(result.conversations, "conversation")
            self.tell(
                f"{self.path.name}: left out the transcripts of {left_out:,} of {total}, "
                f"as it holds {self.most / 1_000_000:g} MB of them, failing ones first; "
                f"`{show_command(self.run_id)}` prints all"
            )

    def _document(self, run: _PackedRun, first: Json, result: RunResult, state: str) -> Iterator[str]:
        """Yield the file in pieces, the script first, so that the page can show those that have arrived."""
        passed = sum(each.verdict.status is Status.PASSED for each in result.scenarios)
        total = count(len(result.scenarios), "scenario")
        shell = page(
            PageVariant.FILE,
            f"Run {self.run_id} · agentest" if self.run_id else "agentest",
            plain=f"Run {self.run_id}: {state}. {passed:,} of {total} passed. "
            f"`{show_command(self.run_id)}` prints it.",
        )
        yield shell.head
        yield data_element("overview", packed(first))
        if self.compared and (found := self.compared.comparisons):
            between = "runs" if self.compared.baseline else "agents"
            yield data_element("comparison", packed([comparison_for_page(each, between) for each in found]))
        for name, texts in (("details", run.details.packed), ("chunk", run.transcripts.packed)):
            for number, text in enumerate(texts):
                if text is not None:
                    yield data_element(f"{name}-{number}", text)
        yield data_element("end", "")  # a file without it was cut
        yield shell.tail


@dataclass(frozen=True, slots=True, kw_only=True)
class _PackedRun:
    conversations: Conversations
    spans: Callable[[str, str, str], Sequence[Json]]
    run_id: str
    several: bool
    transcripts: Chunks
    hide: CredentialFilter
    details: Chunks = field(default_factory=Chunks)

    def overview(self, result: RunResult, run: Json, trend: Sequence[Json]) -> Json:
        by_number: dict[int, tuple[Json, Place | None]] = {}
        in_order = enumerate(result.scenarios)
        for number, scenario in sorted(in_order, key=lambda each: WORST_FIRST.index(each[1].verdict.status)):
            by_number[number] = self._pack(scenario)
        self.details.close()
        self.transcripts.close()
        head: Json = self.hide(head_json(result))
        run["hidden"] = self.hide.note
        rows = [by_number[number] for number in sorted(by_number)]
        return overview(
            run=run,
            head=head,
            scenarios=[row for row, _ in rows],
            root_causes=head["rootCauses"],
            trend=self.hide(trend),
            left_out=self.transcripts.left_out,
            packed=[place for _, place in rows],
            chunks=len(self.transcripts.packed),
            absent=self.transcripts.absent,
            show=show_command(self.run_id),
        )

    def _pack(self, scenario: ScenarioResult) -> tuple[Json, Place | None]:
        # First, because a reason may quote a credential without the words by which it is known.
        rows, passed, numbers = list[bytes](), list[bool](), ConversationNumbers()
        for piece in self.conversations(scenario):
            conversation = self.hide(json.loads(piece))
            row = brief(conversation)
            rows.append(encoded(row))  # takes a tenth of the memory
            passed.append(row["passed"])
            numbers.add(conversation)
        stored: Json = self.hide(CODECS.write(scenario))
        rest = {
            "places": self._places(scenario, stored["name"], passed),
            "command": rerun(stored, self.several),
            "show": show_command(self.run_id, stored["name"]),
        }
        of_all = b", ".join(rows), encoded(rest)[1:]
        detail = encoded({"scenario": stored})[:-1] + b', "conversations": [%s], %s' % of_all
        return scenario_row(stored, numbers), self.details.add(detail)

    def _places(self, scenario: ScenarioResult, name: str, passed: Sequence[bool]) -> list[Place | None]:
        places: list[Place | None] = [None] * len(passed)
        for wanted in (False, True):
            if self.transcripts.full:
                self.transcripts.left_out += passed.count(wanted)
                continue
            for number, piece in enumerate(self.conversations(scenario) if wanted in passed else ()):
                if passed[number] is not wanted:
                    continue
                if self.transcripts.full:  # since the last one
                    self.transcripts.left_out += 1
                else:
                    places[number] = self.transcripts.add(encoded(self._opened(scenario, name, piece)))
        return places

    def _opened(self, scenario: ScenarioResult, name: str, piece: bytes) -> Json:
        stored = json.loads(piece)
        if self.hide.has_hidden:  # else all conversations of the scenario were found without credentials
            stored = self.hide(stored)
        return {
            "name": name,
            "agent": scenario.agent,
            **copyable_scripts(name, stored, len(piece)),
            "spans": self.hide(self.spans(scenario.name, scenario.agent, stored["conversationId"])),
            "conversation": stored,
        }


_MOST_BYTES = 1_000_000
"""The size limit of a conversation for this; laying out the source of a longer one is too slow."""


def copyable_scripts(scenario: str, conversation: Json, size: int) -> Json:
    """Return `script` and `noScript`; one of them is ""."""
    script, why_not = "", f"which has more than {_MOST_BYTES // 1_000_000} MB; `agentest export` writes it"
    if size <= _MOST_BYTES:
        read = usable(CODECS.read(Conversation, conversation))
        nameless = "in which the agent called a tool without a name" if has_nameless_call(read) else ""
        why_not = missing(read) or nameless
        try:
            script = (
                "" if why_not else export_script([scripted_scenario(exported_name(scenario, read), read)])
            )
        except (ValueError, RecursionError) as error:
            why_not = f"which contains a value that has no source: {shortened(str(error))}"
    return {"script": script, "noScript": why_not}


def comparison_for_page(comparison: Comparison, between: str) -> Json:
    """Return a comparison for the page: the fields of `comparison.schema.json`, with formatted figures.

    `figures` and `overall` are replaced by rows `{change, cells}` of those that differ. Each scenario
    has its `story` and the agents of both `sides`, null if a run lacks it. The worst scenarios come
    first.

    Args:
        between: `runs` or `agents`.
    """
    document = as_document(comparison)
    ordered = [*comparison.worst_first, *comparison.of(Change.UNCHANGED)]
    return {
        **{key: document[key] for key in ("regressed", "base", "new", "notes", "counts")},
        "between": between,
        "verdict": _verdict(comparison),
        "headline": headline(comparison),
        "besides": [conclusion(comparison), *resource_lines(comparison), *footnotes(comparison)],
        "overall": list(map(_page_row, comparison.overall)),
        "differences": list(_differences(comparison, ordered)),
        "totals": list(_totals(comparison.base, comparison.new)),
        "scenarios": [_page_scenario(each) for each in ordered],
    }


def _verdict(comparison: Comparison) -> Json:
    if comparison.regressed:
        return {"status": "failed", "text": next(str(each) for each in WORSE if each in comparison.changes)}
    if not any(each.decided for each in comparison.scenarios):
        return {"status": "errored", "text": "nothing could be compared"}
    if better := next((str(each) for each in BETTER if each in comparison.changes), ""):
        return {"status": "passed", "text": better}
    return {"status": "skipped", "text": "no difference that this many conversations can show"}


_MOST_DRAWN = 20


def _differences(comparison: Comparison, ordered: Sequence[ScenarioChange]) -> Iterator[Json]:
    named = [("over all", row) for row in comparison.overall if row.name == PASS_RATE]
    named += [
        (each.pair.latest.name, row)
        for each in ordered
        for row in each.rows
        if row.name == PASS_RATE and row.value
    ]
    for name, row in named[:_MOST_DRAWN]:
        if row.low is not None and row.high is not None:
            figures = {"value": row.value, "low": row.low, "high": row.high}
            yield {"label": name, **figures, "words": f"{row.base:.0%} → {row.new:.0%} ({points(row)})"}


def _page_row(row: ComparedFigure) -> Json:
    return {"change": str(row.change), "cells": list(cells(row)[:-1])}


def _page_scenario(each: ScenarioChange) -> Json:
    sides = (each.pair.base, each.pair.new)
    return {
        "name": each.pair.latest.name,
        "agent": each.pair.latest.agent,
        "change": str(each.change),
        "story": describe_change(each),
        "sides": [side and side.agent for side in sides],
        "figures": [_page_row(row) for row in each.rows if row.value],
    }


def _totals(base: MeasuredRun, new: MeasuredRun) -> Iterator[list[str]]:
    runs = base, new
    passed = (f"{sum(each.passed for each in run.scenarios):,} of {run.conversations:,}" for run in runs)
    yield ["conversations passed", *passed, ""]
    models = [sum((each.usage for each in run.scenarios), ModelUsage()) for run in runs]
    yield ["cost of user and judge", *_both([each.cost for each in models], lambda usd: f"${usd:.4f}")]
    tokens = [each.tokens.total_tokens for each in models]
    yield ["tokens of user and judge", *_both(tokens, lambda number: f"{number:,.0f}")]
    times = [sum((each.totals.time for each in run.scenarios), TimeSpent()) for run in runs]
    turns = [sum(each.totals.turns for each in run.scenarios) for run in runs]
    per_turn = [time.agent_ms / n if n else None for time, n in zip(times, turns, strict=True)]
    yield ["agent's time for a turn", *_both(per_turn, duration)]
    yield ["time of all conversations", *_both([each.total_ms for each in times], duration)]


def _both(sides: Sequence[float | None], text: Callable[[float], str]) -> list[str]:
    base, new = sides
    known = ["unknown" if each is None else text(each) for each in sides]
    if base is None or new is None:
        return [*known, ""]
    sign = "+" if new > base else "−" if new < base else ""
    return [*known, f"{sign}{text(abs(new - base))}"]
