"""Format the first and the last screen of a run for the console."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING

from agentest.domain.events import RunStarted
from agentest.domain.figures import Forecast, agent_effort, format_forecast
from agentest.domain.results import CauseKind, ReasonKind, RunResult, ScenarioResult, Status
from agentest.domain.tool_visibility import ToolVisibility
from agentest.domain.transcript import Usage
from agentest.report.console.scenario import averages_text, passed_conversations
from agentest.report.console.text import (
    BLANK,
    STYLES,
    Chunk,
    ConsoleLine,
    DisplayOptions,
    Part,
    line,
)
from agentest.report.content import NEWLY_FAILING, CauseBlock, RunReport, ScenarioReport, passed_text
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import count, cut_name, duration, quoted_names, turn_name

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from agentest.report.console.printer import Printer

_SLOWEST = 3
_SHOWN_CAUSES = 10
_SHOWN_NAMES = 6
_SHOWN_ALSO = 2
_SHOWN_MINOR = 3
_INDENT = "  "


@dataclass(frozen=True, slots=True)
class Example:
    """What shows why a scenario did not pass, with the scenario's key and its place in the plan."""

    key: tuple[str, str, str]
    rank: int
    lines: Mapping[str, Sequence[ConsoleLine]]  # id of each of its causes, or the headline → what shows it


_SHOWN_SHARE = 0.005
_SHORT_S = 5.0  # a forecast that is shorter, and free of charge, is not shown
_TAPES = {"record": "recorded", "replay": "replayed", "replay-or-record": "replayed, else recorded"}
_NOTHING_RAN = "No scenario ran, so the run did not pass."
_DOUBT = "Each of these warnings puts a verdict in doubt. In strict mode, its scenario is errored."
_STRICT = "Strict mode: a warning makes its scenario errored. --no-strict only shows it."


def header_lines(
    event: RunStarted, display: DisplayOptions, forecast: Forecast | None = None
) -> list[ConsoleLine]:
    """Show what is going to run, against which agents, and what to expect if that takes time or money."""
    conversations = "at most " * event.at_most + count(event.conversations, "conversation")
    run = f"  {count(event.scenarios, 'scenario')}, {conversations}"
    if event.concurrency and display.detailed:
        run += f", at most {event.concurrency:,} at once"
    lines = [line(0, ("agentest", "bold"), f" {event.version}", (run, "dim"))]
    widest = max((len(name) for name in event.agents), default=0)
    for i, (name, endpoint) in enumerate(event.agents.items()):
        label = "agent" if len(event.agents) == 1 else "agents"
        tape = _TAPES.get(event.model_tapes.get(name, ""), "")
        replayed = (f"  its model: {tape}" if tape else "", "dim")
        parts = ((name.ljust(widest), "bold"), f"  {endpoint}", _visibility(event, name), replayed)
        lines.append(_fact(label if i == 0 else "", *parts))
    lines.append(_fact("model", *_models(event.models)))
    if forecast and (forecast.seconds >= _SHORT_S or forecast.cost != 0):
        lines.append(_fact("expect", format_forecast(forecast, datetime.now().astimezone())))
    return [*lines, BLANK]


def _visibility(event: RunStarted, agent: str) -> Part:
    visibility = event.visibilities.get(agent)
    if servers := event.servers.get(agent):
        some = "partly " * (visibility is ToolVisibility.PARTIAL)
        return f"  tool calls: {some}seen by us ({', '.join(servers)})", "dim"
    return (f"  tool calls: {visibility.words}" if visibility else "", "dim")


def closing_lines(
    result: RunResult,
    display: DisplayOptions,
    examples: Collection[Example] = (),
    folded: Mapping[str, int] = MappingProxyType({}),
) -> list[ConsoleLine]:
    """Show the end of a run. Failures and totals come last, so that the last screen has them.

    Args:
        examples: a scenario of each set of causes.
        folded: the numbers of findings that were not shown.
    """
    report = RunReport(result, display.next_step)
    failures = [*_blocks(report, display, examples), *_early_end(report)]
    if display.verbosity < 0:
        return [*failures, *_warnings(report, display, folded), *_totals(report)]
    figures = [*_slowest(result, display), *_waiting(result), *_calls(result)] if display.detailed else []
    skipped = [*_skipped_metrics(result)] if display.detailed else []
    return [
        *skipped,
        *figures,
        *failures,
        *_minor_causes(report),
        *_warnings(report, display, folded),
        *_changes(report),
        *_rates(report, display),
        *_cost(result),
        *_totals(report, display.rerun),
    ]


def comparison_table(result: RunResult, display: DisplayOptions, printer: Printer) -> Table:
    """Build the table of scenarios and agents, with status and averages."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_footer=True, show_edge=False, pad_edge=False)
    table.add_column(printer.text(["scenario"]), printer.text(["passed"]), overflow="fold")
    for agent in result.agents:
        mine = [s for s in result.scenarios if s.agent == agent]
        passed = sum(s.verdict.passed for s in mine)
        footer = [f"{passed} of {len(mine)}"]
        if effort := agent_effort(mine):
            footer.append(f"\n{duration(effort.turn_ms)} a turn")
            footer += [] if effort.cost is None else [f"\n{effort.cost:.4f} USD"]
        table.add_column(printer.text([agent]), printer.text(footer), overflow="fold")
    by_place = {(s.name, s.agent): s for s in result.scenarios}
    for name in dict.fromkeys(s.name for s in result.scenarios if s.agent in result.agents):
        cells = [by_place.get((name, agent)) for agent in result.agents]
        table.add_row(printer.text([name]), *(_cell(cell, display, printer) for cell in cells))
    return table


def _cell(result: ScenarioResult | None, display: DisplayOptions, printer: Printer) -> Text:
    from rich.text import Text

    if result is None:
        return Text()
    status: Part = display.glyphs.badges[result.verdict.status], STYLES[result.verdict.status]
    if result.unfinished:
        status = "unfinished", STYLES[Status.ERRORED]
    passed = f"  {passed_conversations(result)}" if result.totals.conversations else ""
    passed += f" {rate}" if (rate := passed_text(result)) else ""
    passed += " flaky" if result.flaky else ""
    return Text("\n").join(printer.text(row) for row in [(status, passed), *averages_text(result)])


def _fact(label: str, *parts: Part) -> ConsoleLine:
    return line(0, *parts, lead=((f"{label:8}", "dim"),))


def _models(models: Mapping[str, str | None]) -> Iterator[Part]:
    roles: dict[str, list[str]] = {}
    for role, model in models.items():
        if model:
            roles.setdefault(model, []).append(role)
    if not roles:
        yield "offline (no model): LLM metrics are skipped", "yellow"
        return
    yield ", ".join(f"{model} ({', '.join(names)})" for model, names in roles.items())
    if "judge" in models and not models["judge"]:
        yield "; no judge: LLM metrics are skipped", "yellow"


def _skipped_metrics(result: RunResult) -> Iterator[ConsoleLine]:
    skipped: dict[str, dict[str, None]] = {}
    for scenario in result.scenarios:
        for name, why in scenario.skipped_metrics.items():
            skipped.setdefault(why, {})[name] = None
    for why, names in skipped.items():
        yield line(0, (f"{why} ({', '.join(names)})", "yellow"), lead=(("Metrics skipped: ", "yellow"),))
    if skipped:
        yield BLANK


def _slowest(result: RunResult, display: DisplayOptions) -> Iterator[ConsoleLine]:
    slowest = result.slowest_turns(_SLOWEST)
    if len(slowest) < 2:
        return
    yield line(0, ("Slowest agent turns", "bold"))
    for scenario, turn in slowest:
        parts = (("first token", turn.first_token_ms), ("model", turn.model_ms))
        known = ", ".join(f"{name} {ms:,.0f} ms" for name, ms in parts if ms is not None)
        within = f" ({known})" if known else ""
        where = [turn_name(turn.turn_index), turn.conversation_id]
        where += [f"[{scenario.agent}]"] if display.several_agents else []
        chunks: tuple[Chunk, ...] = (*((each,) for each in where), ((scenario.name, "dim"),))
        yield ConsoleLine((f"{turn.latency_ms:>9,.0f} ms{within}  ",), chunks, cut=True)
    yield BLANK


def _waiting(result: RunResult) -> Iterator[ConsoleLine]:
    time = result.time
    if time.total_ms <= 0:
        return
    parts = (
        ("agent", time.agent_ms),
        ("user", time.user_ms),
        ("tools", time.tools_ms),
        ("judges", time.judges_ms),
        ("Agentest itself", time.own_ms),
    )
    shares = [f"{who} {ms / time.total_ms:.0%}" for who, ms in parts if ms / time.total_ms >= _SHOWN_SHARE]
    if time.model_ms and time.agent_ms / time.total_ms >= _SHOWN_SHARE:
        shares[0] += f" (its model {time.model_ms / time.total_ms:.0%})"
    each = duration(time.total_ms / result.conversations)
    yield line(0, f"{each} a conversation: {', '.join(shares)}", lead=(("Time spent  ", "bold"),))
    yield BLANK


def _calls(result: RunResult) -> Iterator[ConsoleLine]:
    if not result.agent_calls:
        return
    totals = [scenario.totals for scenario in result.scenarios]
    retries = sum(each.agent_retries for each in totals)
    retried = f" ({count(retries, 'retry', 'retries')})" if retries else ""
    tokens = _tokens(sum((each.agent_tokens for each in totals), Usage()))
    yield _fact("agent", ", ".join([count(result.agent_calls, "call") + retried, *tokens]))
    for role, usage in result.usage_by_role.items():
        if usage.calls:
            again = f" ({usage.retries:,} asked again)" if usage.retries else ""
            cost = "cost unknown" if usage.cost is None else f"{usage.cost:.4f} USD" * (usage.cost > 0)
            calls = f"{count(usage.calls, 'model call')}{again}"
            yield _fact(role, ", ".join(filter(None, [calls, *_tokens(usage.tokens), cost])))
    yield BLANK


def _tokens(usage: Usage) -> Iterator[str]:
    if usage.total_tokens:
        cached = f" ({usage.cached_tokens:,} cached)" if usage.cached_tokens else ""
        yield f"{usage.prompt_tokens:,} prompt{cached} + {usage.completion_tokens:,} completion tokens"


def _rates(report: RunReport, display: DisplayOptions) -> Iterator[ConsoleLine]:
    for i, rates in enumerate(report.rates):
        agent: tuple[Chunk, ...] = (((rates.agent, "magenta"),),) if rates.agent else ()
        facts = rates.facts if display.detailed else rates.facts[:1]
        lead = _end_label("pass rate" if i == 0 else "")
        yield ConsoleLine(lead, (*agent, *((fact,) for fact in facts)))
    note = report.rates_note if display.detailed else report.close_note
    if report.rates and note:
        yield line(0, (note, "dim"))


def _cost(result: RunResult) -> Iterator[ConsoleLine]:
    used = result.usage
    if used.calls or used.cached:
        cost = ", cost unknown" if used.cost is None else f", {used.cost:.4f} USD" * (used.cost > 0)
        cached = f"; {used.cached:,} answered from the cache" if used.cached else ""
        saved = f", {used.saved:.4f} USD saved" if used.saved else ""
        text = f"{count(used.calls, 'model call')}{cost}{cached}{saved}"
        yield line(0, text, lead=_end_label("cost"))
    messages = filter(None, (quota.message for quota in result.quotas))
    yield from (line(0, each, lead=_end_label("quota")) for each in messages)


def _changes(report: RunReport) -> Iterator[ConsoleLine]:
    if text := report.changes_text:
        fixed = quoted_names(each.name for each in report.result.changes.newly_fixed)
        yield line(0, text, f"; fixed: {fixed}" * bool(fixed), lead=_end_label("changes"))


def _end_label(label: str) -> Chunk:
    return ((f"{label:11}", "dim"),)


def _warnings(report: RunReport, display: DisplayOptions, folded: Mapping[str, int]) -> Iterator[ConsoleLine]:
    result, lead = report.result, (("Warning: ", "bold yellow"),)
    for error in result.unclaimed:
        yield line(0, (error.message, "red"), lead=(("Error: ", "bold red"),))
    for warning in result.warnings[len(result.unclaimed) :]:
        yield line(0, (warning.message, "yellow"), lead=lead)
    if display.detailed:
        for each in report.questions:
            yield line(0, (each.head, "yellow"), lead=lead)
            yield from (line(2, (row, "yellow")) for row in each.rows())
        if report.questions:
            yield line(0, (_DOUBT, "dim"))
        for each in report.notes:
            yield line(0, (f"{each.head}: {each.rows(1)[0]}", "dim"), lead=(("Note: ", "dim"),))
    else:
        codes = (f"{each.scenarios:,} {each.code}" for each in (*report.questions, *report.notes))
        counts = [*codes, *(count(number, noun) for noun, number in folded.items() if number)]
        if counts:
            style = "yellow" if report.questions else "dim"
            texts = (", ".join(counts), style), (" (-v shows them)", "dim")
            yield line(0, *texts, lead=_end_label("warnings"))
    errored = (each.verdict.reasons for each in result.with_status(Status.ERRORED))
    if any({r.kind for r in each if r.status is Status.ERRORED} == {ReasonKind.WARNING} for each in errored):
        yield line(0, (_STRICT, "dim"))


def _blocks(
    report: RunReport, display: DisplayOptions, examples: Collection[Example]
) -> Iterator[ConsoleLine]:
    blocks = report.blocks if display.detailed else report.blocks[:_SHOWN_CAUSES]
    most = len(report.not_passed) if display.detailed else max(1, _SHOWN_NAMES // max(1, len(blocks)))
    room, shown = (display.width or 10_000) // 2, dict[str, str]()
    for block in blocks:
        example, mine = _example(block, examples)
        names = [cut_name(each.label, room, shown) for each in mine[: 1 + most]]
        mark, style = display.mark(block.status)
        several = block.cause.agents if block.cause and display.several_agents else ()
        facts = " · ".join([block.extent, *several])
        yield ConsoleLine(((f"{mark} ", style),), (((block.headline, f"bold {style}"),), ((facts, "dim"),)))
        where: list[Chunk] = [((mine[0].location, "cyan"),)]
        if mine[0].label != mine[0].location:
            where.append((names[0],))
        where[-1] += _mark(mine[0], report)
        yield ConsoleLine((_INDENT,), tuple(where))
        yield from example
        yield from islice(_other_titles(block, mine[0], example), _SHOWN_ALSO)
        if mine[0].status is Status.FAILED:  # perhaps because of the mock
            yield from (line(4, (f"also: {text}", "yellow")) for text in report.mistakes_in_mocks(mine[0]))
        others: list[Chunk] = [(n, *_mark(s, report)) for n, s in zip(names[1:], mine[1:], strict=False)]
        if left := len(mine[1 + most :]):
            others.append(((f"{left:,} more", "dim"),))
        yield from [ConsoleLine((_INDENT, ("also in  ", "dim")), tuple(others), gap=", ")] if others else []
        yield BLANK
    if left := sum(len(block.scenarios) for block in report.blocks[len(blocks) :]):
        causes = count(len(report.blocks) - len(blocks), "more cause")
        yield line(0, (f"and {causes} in {count(left, 'scenario')} (shown by -v)", "dim"))
        yield BLANK


def _example(
    block: CauseBlock, examples: Collection[Example]
) -> tuple[Sequence[ConsoleLine], Sequence[ScenarioReport]]:
    """Return what the example of a block shows, and the block's scenarios, the example first."""
    known = {each.key: each.lines for each in examples}
    first = next((each for each in block.scenarios if each.key in known), None)
    if first is None:
        return (), block.scenarios
    lines = known[first.key]
    shown = lines.get(block.cause.id if block.cause else "") or next(iter(lines.values()))
    return shown, [first, *(each for each in block.scenarios if each is not first)]


def _other_titles(
    block: CauseBlock, scenario: ScenarioReport, example: Sequence[ConsoleLine]
) -> Iterator[ConsoleLine]:
    """Yield what headline and example of a block leave out: values, and the scenario's other causes."""
    for id, title in scenario.causes:
        is_own = block.cause is not None and block.cause.id == id
        is_in_columns = any(title.removesuffix(" not called") in row.plain for row in example)
        if title != block.headline and not is_in_columns:
            yield line(4, (title if is_own else f"also: {title}", "dim"))


def _minor_causes(report: RunReport) -> Iterator[ConsoleLine]:
    """Name the judged causes that fail no scenario."""
    failing = {id for each in report.not_passed for id, _ in each.causes}
    minor = [each for each in report.causes if each.kind is CauseKind.JUDGED and each.id not in failing]
    texts = [f"{each.scenarios:,} × {each.title} ({each.severity.label})" for each in minor]
    if left := len(texts) - _SHOWN_MINOR:
        texts[_SHOWN_MINOR:] = [f"{left:,} more"] if left > 0 else []
    if texts:
        yield line(0, (", ".join(texts), "dim"), lead=_end_label("minor"))


def _mark(scenario: ScenarioReport, report: RunReport) -> Chunk:
    is_new = report.changed.get(scenario.key) == NEWLY_FAILING
    return ((f" ({NEWLY_FAILING})", "bold"),) if is_new else ()


def _early_end(report: RunReport) -> Iterator[ConsoleLine]:
    if report.early_end:
        yield line(0, (f"{report.early_end}.", "bold yellow"))
    if report.next_step:
        yield line(0, (f"{report.next_step} runs the rest.", "yellow"))


def _totals(report: RunReport, rerun: str = "") -> Iterator[ConsoleLine]:
    result = report.result
    if result.hidden:
        yield line(0, (f"{result.hidden}. `agentest show --credentials` shows them.", "dim"))
    if result.scenarios and len(result.with_status(Status.SKIPPED)) == len(result.scenarios):
        yield line(0, ("Every scenario was skipped, so the run did not pass.", "bold yellow"))
    if not result.scenarios:
        message = f"There is nothing to do in shard {result.shard}." if result.shard else _NOTHING_RAN
        yield line(0, (message, "bold yellow"))
    counts = [(f"{number:,} {word}", f"bold {STYLES[status]}") for number, word, status in report.counts]
    parts = [part for each in counts for part in (", ", each)][1:] or [("0 passed", STYLES[report.status])]
    flaky = sum(scenario.flaky for scenario in result.scenarios)
    extent = f"({_extent(result)}{f', {flaky:,} flaky' if flaky else ''}) in {duration(result.duration_ms)}"
    yield ConsoleLine((), (tuple(parts), (extent,)), gap=" ")
    if rerun and report.not_passed:
        yield line(0, rerun, lead=_end_label("rerun"))


def _extent(result: RunResult) -> str:
    conversations = count(result.conversations, "conversation")
    if not result.comparison:
        return f"{count(len(result.scenarios), 'scenario')}, {conversations}"
    names = len({s.name for s in result.scenarios})
    return f"{count(names, 'scenario')} × {count(len(result.agents), 'agent')}, {conversations}"
