"""Format the first and the last screen of a run for the console."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from agentest.domain.events import RunStarted
from agentest.domain.figures import Forecast, agent_effort, format_forecast
from agentest.domain.results import ReasonKind, RunResult, ScenarioResult, Status
from agentest.domain.tool_visibility import ToolVisibility
from agentest.domain.transcript import Usage
from agentest.plugin import if_command
from agentest.report.console.scenario import averages_text, passed_conversations
from agentest.report.console.text import BLANK, STYLES, Chunk, ConsoleLine, DisplayOptions, Part, line
from agentest.report.content import NEWLY_FAILING, RunReport, cause_facts, passed_text
from agentest.support.text import count, duration, quoted_names, turn_name

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from agentest.report.console.printer import Printer

_SLOWEST = 3
_SHOWN_CAUSES = 10
_SHOWN_NOT_PASSED = 15
_SHOWN_SHARE = 0.005
_TAPES = {"record": "recorded", "replay": "replayed", "replay-or-record": "replayed, else recorded"}
_NOTHING_RAN = "No scenario was run: this run is not a pass."
_DOUBT = "Each of these warnings puts a verdict in doubt. In strict mode, its scenario is errored."
_STRICT = "Strict mode: a warning makes its scenario errored. --no-strict only shows it."
_WARNINGS = " `agentest docs warnings` explains each."


def header_lines(
    event: RunStarted, display: DisplayOptions, forecast: Forecast | None = None
) -> list[ConsoleLine]:
    """Show what is going to run, against which agents, and the forecast."""
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
    if forecast:
        lines.append(_fact("expect", format_forecast(forecast, datetime.now().astimezone())))
    return [*lines, BLANK]


def _visibility(event: RunStarted, agent: str) -> Part:
    visibility = event.visibilities.get(agent)
    if servers := event.servers.get(agent):
        some = "partly " * (visibility is ToolVisibility.PARTIAL)
        return f"  tool calls: {some}seen by us ({', '.join(servers)})", "dim"
    return (f"  tool calls: {visibility.words}" if visibility else "", "dim")


def closing_lines(result: RunResult, display: DisplayOptions) -> list[ConsoleLine]:
    """Show the end of a run. Failures and totals come last, so that the last screen has them."""
    report = RunReport(result, display.next_step)
    if display.verbosity < 0:
        return [*_warnings(report), *_not_passed(report, display), *_early_end(report), *_totals(report)]
    figures = [*_slowest(result, display), *_waiting(result), *_calls(result)] if display.detailed else []
    skipped = [*_skipped_metrics(result)] if display.detailed else []
    return [
        *skipped,
        *figures,
        *_warnings(report),
        *_early_end(report),
        *_causes(report, display),
        *_not_passed(report, display),
        *_newly_fixed(result),
        *_changes(report),
        *_rates(report, display),
        *_cost(result),
        *_totals(report),
        *_next_commands(report, display),
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


def _changes(report: RunReport) -> Iterator[ConsoleLine]:
    if text := report.changes_text:
        yield line(0, text, lead=_end_label("changes"))


def _end_label(label: str) -> Chunk:
    return ((f"{label:11}", "dim"),)


def _warnings(report: RunReport) -> Iterator[ConsoleLine]:
    result, lead = report.result, (("Warning: ", "bold yellow"),)
    for error in result.unclaimed:
        yield line(0, (error.message, "red"), lead=(("Error: ", "bold red"),))
    for warning in result.warnings[len(result.unclaimed) :]:
        yield line(0, (warning.message, "yellow"), lead=lead)
    if result.warnings:
        yield BLANK
    for each in report.questions:
        yield line(0, (each.head, "yellow"), lead=lead)
        yield from (line(2, (row, "yellow")) for row in each.rows())
    if report.questions:
        yield line(0, (_DOUBT, "dim"))
    strict = any(r.kind is ReasonKind.WARNING for each in result.scenarios for r in each.verdict.reasons)
    if strict:
        yield line(0, (f"{_STRICT}{if_command('docs', _WARNINGS)}", "dim"))
    for each in report.notes:
        yield line(0, (f"{each.head}: {each.rows(1)[0]}", "dim"), lead=(("Note: ", "dim"),))
    if report.questions or report.notes or strict:
        yield BLANK


def _not_passed(report: RunReport, display: DisplayOptions) -> Iterator[ConsoleLine]:
    if not report.not_passed:
        return
    yield line(0, ("Not passed", "bold"))
    listed = report.not_passed if display.detailed else report.not_passed[:_SHOWN_NOT_PASSED]
    for scenario in listed:
        badge: Part = (display.glyphs.badge(scenario.status), STYLES[scenario.status])
        chunks: list[Chunk] = [((scenario.location, "cyan"),)]
        if display.several_agents:
            chunks.append(((f"[{scenario.result.agent}]", "magenta"),))
        if change := report.changed.get(scenario.key):
            chunks.append(((change, "bold" if change == NEWLY_FAILING else "dim"),))
        if scenario.result.name != scenario.location:
            chunks.append((scenario.result.name,))
        yield ConsoleLine(("  ", badge, "  "), tuple(chunks), cut=True)
    if left := len(report.not_passed) - len(listed):
        yield line(2, (f"and {left:,} more (all of them with -v)", "dim"))
    yield BLANK


def _newly_fixed(result: RunResult) -> Iterator[ConsoleLine]:
    if fixed := result.changes.newly_fixed:
        names = quoted_names(each.name for each in fixed)
        yield line(0, names, lead=(("Newly fixed  ", "bold green"),))
        yield BLANK


def _causes(report: RunReport, display: DisplayOptions) -> Iterator[ConsoleLine]:
    causes = report.causes
    if not causes:
        return
    yield line(0, (f"{count(len(causes), 'cause')}:", "bold"))
    listed = causes[:_SHOWN_CAUSES]
    width = max(len(f"{cause.scenarios:,}") for cause in listed)
    for cause in listed:
        facts = " · ".join(
            cause_facts(cause, several_agents=display.several_agents, example=display.detailed)
        )
        lead: Chunk = (f"  {cause.scenarios:>{width},} × ",)
        yield ConsoleLine(lead, (((cause.title, "bold"),), ((facts, "dim"),)))
    if len(causes) > len(listed):
        yield line(2, (f"and {len(causes) - len(listed):,} more", "dim"))
    yield BLANK


def _early_end(report: RunReport) -> Iterator[ConsoleLine]:
    if report.early_end:
        yield line(0, (f"{report.early_end}.", "bold yellow"))
    if report.next_step:
        yield line(0, (f"{report.next_step} runs the rest.", "yellow"))


def _next_commands(report: RunReport, display: DisplayOptions) -> Iterator[ConsoleLine]:
    if display.rerun and report.not_passed:
        yield line(0, display.rerun, lead=_end_label("rerun"))


def _totals(report: RunReport) -> Iterator[ConsoleLine]:
    result = report.result
    if result.hidden:
        yield line(0, (f"{result.hidden}. `agentest show --credentials` shows them.", "dim"))
    if result.finished and not result.with_status(Status.PASSED):
        all_skipped = len(result.with_status(Status.SKIPPED)) == len(result.scenarios)
        why = "Every scenario was skipped" if all_skipped else "No scenario passed"
        yield line(0, (f"{why}: this run is not a pass.", "bold yellow"))
    if not result.scenarios:
        message = f"There is nothing to do in shard {result.shard}." if result.shard else _NOTHING_RAN
        yield line(0, (message, "bold yellow"))
    counts = [(f"{number:,} {word}", f"bold {STYLES[status]}") for number, word, status in report.counts]
    parts = [part for each in counts for part in (", ", each)][1:] or [("0 passed", STYLES[report.status])]
    flaky = sum(scenario.flaky for scenario in result.scenarios)
    extent = f"({_extent(result)}{f', {flaky:,} flaky' if flaky else ''}) in {duration(result.duration_ms)}"
    yield ConsoleLine((), (tuple(parts), (extent,)), gap=" ")


def _extent(result: RunResult) -> str:
    conversations = count(result.conversations, "conversation")
    if not result.comparison:
        return f"{count(len(result.scenarios), 'scenario')}, {conversations}"
    names = len({s.name for s in result.scenarios})
    return f"{count(names, 'scenario')} × {count(len(result.agents), 'agent')}, {conversations}"
