"""Format the first and the last screen of a run for the console."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

from rich import box
from rich.table import Table
from rich.text import Text

from agentest.domain.events import RunStarted
from agentest.domain.forecast import Forecast, format_forecast
from agentest.domain.results import RunResult, ScenarioResult, SlowTurn, Status
from agentest.domain.root_causes import root_causes
from agentest.domain.tool_visibility import Sight
from agentest.domain.transcript import Usage
from agentest.domain.verdict import run_status
from agentest.report.console.scenario import averages_text, location, passed_conversations
from agentest.report.console.text import (
    BLANK,
    STYLES,
    Chunk,
    ConsoleLine,
    DisplayOptions,
    Part,
    Printer,
    line,
)
from agentest.report.content import (
    BRACKETS,
    cause_facts,
    detection_limits,
    ended_early_text,
    passed_text,
    questioned_verdicts,
    run_rates,
)
from agentest.support.text import count, duration

_SLOWEST = 3
_SHOWN_CAUSES = 10
_SHOWN_SHARE = 0.005
_NOTHING_RAN = "No scenario was run: this run is not a pass."
_STRICT = "Each of these questions a verdict. In strict mode (--strict) its scenario is errored."
_ORDER = (Status.FAILED, Status.ERRORED, Status.PASSED, Status.SKIPPED)


def header_lines(event: RunStarted, forecast: Forecast | None = None) -> list[ConsoleLine]:
    """Show what is going to run, against which agents, and the forecast."""
    lines = [line(0, ("agentest", "bold"), f" {event.version}")]
    widest = max((len(name) for name in event.agents), default=0)
    for i, (name, endpoint) in enumerate(event.agents.items()):
        label = "agent" if len(event.agents) == 1 else "agents"
        lines.append(
            _fact(
                label if i == 0 else "",
                (name.ljust(widest), "bold"),
                f"  {endpoint}",
                _visibility(event, name),
            )
        )
    lines.append(_fact("model", *_models(event.models)))
    conversations = "at most " * event.at_most + count(event.conversations, "conversation")
    run = f"{count(event.scenarios, 'scenario')}, {conversations}"
    if event.concurrency:
        run += f", at most {event.concurrency:,} at once"
    lines.append(_fact("run", run))
    if forecast:
        lines.append(_fact("expect", format_forecast(forecast, datetime.now().astimezone())))
    return [*lines, BLANK]


def _visibility(event: RunStarted, agent: str) -> Part:
    """Show how the agent's tool calls become visible, because invisible calls are not judged."""
    sight = event.sights.get(agent)
    if servers := event.servers.get(agent):
        some = "partly " * (sight is Sight.PARTIAL)
        return f"  tool calls: {some}seen by us ({', '.join(servers)})", "dim"
    return (f"  tool calls: {sight.words}" if sight else "", "dim")


def closing_lines(result: RunResult, look: DisplayOptions) -> list[ConsoleLine]:
    """Show the end of a run. Failures and totals come last, so that the last screen has them."""
    return [
        *_skipped_metrics(result),
        *_slowest(result, look),
        *_waiting(result),
        *_calls(result),
        *_rates(result),
        *_warnings(result),
        *_questions(result),
        *_early_end(result, look),
        *_recap(result, look),
        *_causes(result, look),
        *_totals(result),
    ]


def comparison_table(result: RunResult, look: DisplayOptions, printer: Printer) -> Table:
    """Build the table of scenarios and agents, with status and averages."""
    table = Table(box=box.SIMPLE_HEAD, show_footer=True, show_edge=False, pad_edge=False)
    table.add_column(printer.text(["scenario"]), printer.text(["passed"]), overflow="fold")
    for agent in result.agents:
        mine = [s for s in result.scenarios if s.agent == agent]
        passed = sum(s.verdict.passed for s in mine)
        table.add_column(printer.text([agent]), printer.text([f"{passed} of {len(mine)}"]), overflow="fold")
    by_place = {(s.name, s.agent): s for s in result.scenarios}
    for name in dict.fromkeys(s.name for s in result.scenarios if s.agent in result.agents):
        cells = [by_place.get((name, agent)) for agent in result.agents]
        table.add_row(printer.text([name]), *(_cell(cell, look, printer) for cell in cells))
    return table


def _cell(result: ScenarioResult | None, look: DisplayOptions, printer: Printer) -> Text:
    if result is None:
        return Text()
    status: Part = look.glyphs.badges[result.verdict.status], STYLES[result.verdict.status]
    if result.unfinished:
        status = "unfinished", STYLES[Status.ERRORED]
    held = f"  {passed_conversations(result)}" if result.totals.conversations else ""
    held += f" {rate}" if (rate := passed_text(result)) else ""
    held += " flaky" if result.flaky else ""
    return Text("\n").join(printer.text(row) for row in [(status, held), *averages_text(result)])


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
    names: dict[str, list[str]] = {}
    for scenario in result.scenarios:
        for name, why in scenario.skipped_metrics.items():
            metrics = names.setdefault(why, [])
            if name not in metrics:
                metrics.append(name)
    for why, metrics in names.items():
        yield line(0, (f"{why} ({', '.join(metrics)})", "yellow"), lead=(("Metrics skipped: ", "yellow"),))
    if names:
        yield BLANK


def _slowest(result: RunResult, look: DisplayOptions) -> Iterator[ConsoleLine]:
    slowest = result.slowest_turns(_SLOWEST)
    if len(slowest) < 2:
        return
    yield line(0, ("Slowest agent turns", "bold"))
    for scenario, turn in slowest:
        where = (
            f"turn {turn.turn_index}",
            turn.conversation_id,
            *([f"[{scenario.agent}]"] if look.several_agents else []),
        )
        chunks: tuple[tuple[Part, ...], ...] = (*((each,) for each in where), ((scenario.name, "dim"),))
        yield ConsoleLine((f"{turn.latency_ms:>9,.0f} ms{_first_token(turn)}  ",), chunks, cut=True)
    yield BLANK


def _first_token(turn: SlowTurn) -> str:
    return "" if turn.first_token_ms is None else f" (first token {turn.first_token_ms:,.0f} ms)"


def _waiting(result: RunResult) -> Iterator[ConsoleLine]:
    """Show the waits of conversations as shares of their time."""
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
    shown = [f"{who} {ms / time.total_ms:.0%}" for who, ms in parts if ms / time.total_ms >= _SHOWN_SHARE]
    each = duration(time.total_ms / result.conversations)
    yield line(0, f"{each} a conversation: {', '.join(shown)}", lead=(("Time spent  ", "bold"),))
    yield BLANK


def _calls(result: RunResult) -> Iterator[ConsoleLine]:
    """Show calls and tokens of the agent, and of the models in each role."""
    if not result.agent_calls:
        return
    yield _fact("agent", ", ".join(_agent_calls(result)))
    for role, usage in result.usage_by_role.items():
        if usage.calls:
            again = f" ({usage.retries:,} asked again)" if usage.retries else ""
            yield _fact(
                role,
                ", ".join(
                    [f"{count(usage.calls, 'model call')}{again}", *_tokens(usage.tokens), *_cost(usage.cost)]
                ),
            )
    yield BLANK


def _cost(cost: float | None) -> Iterator[str]:
    if cost is None:
        yield "cost unknown"
    elif cost > 0:
        yield f"{cost:.4f} USD"


def _agent_calls(result: RunResult) -> Iterator[str]:
    totals = [scenario.totals for scenario in result.scenarios]
    retries = sum(each.agent_retries for each in totals)
    yield count(result.agent_calls, "call") + (f" ({count(retries, 'retry', 'retries')})" if retries else "")
    yield from _tokens(sum((each.agent_tokens for each in totals), Usage()))


def _tokens(usage: Usage) -> Iterator[str]:
    if usage.total_tokens:
        yield f"{usage.prompt_tokens:,} prompt + {usage.completion_tokens:,} completion tokens"


def _rates(result: RunResult) -> Iterator[ConsoleLine]:
    """Show how many conversations passed, with an interval and the limits of the sample size."""
    found = run_rates(result)
    if not found:
        return
    for i, rates in enumerate(found):
        agent: tuple[Chunk, ...] = (((rates.agent, "magenta"),),) if rates.agent else ()
        lead = ("Pass rate  " if i == 0 else " " * 11, "bold")
        yield ConsoleLine((lead,), (*agent, *((fact,) for fact in rates.facts)))
    yield line(0, (" ".join(filter(None, (BRACKETS, detection_limits(result)))), "dim"))
    yield BLANK


def _questions(result: RunResult) -> Iterator[ConsoleLine]:
    """Show the warnings that question verdicts, a few lines for each code."""
    found = questioned_verdicts(result)
    for each in found:
        yield line(0, (each.head, "yellow"), lead=(("Warning: ", "bold yellow"),))
        yield from (line(2, (row, "yellow")) for row in each.rows())
    if found:
        yield line(0, (_STRICT, "dim"))
        yield BLANK


def _warnings(result: RunResult) -> Iterator[ConsoleLine]:
    for error in result.unclaimed:
        yield line(0, (error.message, "red"), lead=(("Error: ", "bold red"),))
    for warning in result.warnings[len(result.unclaimed) :]:
        yield line(0, (warning.message, "yellow"), lead=(("Warning: ", "bold yellow"),))
    if result.warnings:
        yield BLANK


def _recap(result: RunResult, look: DisplayOptions) -> Iterator[ConsoleLine]:
    by_status = {status: [s for s in result.finished if s.verdict.status is status] for status in Status}
    not_passed = [*by_status[Status.FAILED], *by_status[Status.ERRORED]]
    if not not_passed:
        return
    yield line(0, ("Not passed", "bold"))
    for scenario in not_passed:
        status = scenario.verdict.status
        agent: tuple[Chunk, ...] = (((f"[{scenario.agent}]", "magenta"),),) if look.several_agents else ()
        lead: Chunk = ("  ", (look.glyphs.badge(status), STYLES[status]), "  ")
        name: tuple[Chunk, ...] = ((scenario.name,),) if scenario.name != location(scenario) else ()
        yield ConsoleLine(lead, (((location(scenario), "cyan"),), *agent, *name), cut=True)
    yield BLANK


def _causes(result: RunResult, look: DisplayOptions) -> Iterator[ConsoleLine]:
    """List the root causes of all scenarios that did not pass."""
    causes = root_causes(result)
    if not causes:
        return
    yield line(0, (f"{count(len(causes), 'cause')}:", "bold"))
    shown = causes[:_SHOWN_CAUSES]
    width = max(len(f"{cause.scenarios:,}") for cause in shown)
    for cause in shown:
        facts = " · ".join(cause_facts(cause, several_agents=look.several_agents))
        lead: Chunk = (f"  {cause.scenarios:>{width},} × ",)
        yield ConsoleLine(lead, (((cause.title, "bold"),), ((facts, "dim"),)))
    if len(causes) > len(shown):
        yield line(2, (f"and {len(causes) - len(shown):,} more", "dim"))
    yield BLANK


def _early_end(result: RunResult, look: DisplayOptions) -> Iterator[ConsoleLine]:
    """Show the number of unfinished scenarios and the command that continues the run."""
    if text := ended_early_text(result):
        yield line(0, (f"{text}.", "bold yellow"))
    if result.unfinished and look.next_step:
        yield line(0, (f"{look.next_step} runs the rest.", "yellow"))


def _totals(result: RunResult) -> Iterator[ConsoleLine]:
    if result.finished and not result.with_status(Status.PASSED):
        all_skipped = len(result.with_status(Status.SKIPPED)) == len(result.scenarios)
        why = "Every scenario was skipped" if all_skipped else "No scenario passed"
        yield line(0, (f"{why}: this run is not a pass.", "bold yellow"))
    if not result.scenarios:
        here = f"There is nothing to do in shard {result.shard}." if result.shard else _NOTHING_RAN
        yield line(0, (here, "bold yellow"))
    counts = [(sum(s.verdict.status is status for s in result.finished), status) for status in _ORDER]
    shown = [(f"{number:,} {status}", f"bold {STYLES[status]}") for number, status in counts if number]
    if result.unfinished:
        shown.append((f"{len(result.unfinished):,} unfinished", "bold yellow"))
    parts = [part for each in shown for part in (", ", each)][1:] or [
        ("0 passed", STYLES[run_status(result)])
    ]
    flaky = sum(scenario.flaky for scenario in result.scenarios)
    extent = f"({_extent(result)}{f', {flaky:,} flaky' if flaky else ''}) in {duration(result.duration_ms)}"
    yield ConsoleLine((), (tuple(parts), (extent,)), gap=" ")


def _extent(result: RunResult) -> str:
    conversations = count(result.conversations, "conversation")
    if not result.comparison:
        return f"{count(len(result.scenarios), 'scenario')}, {conversations}"
    names = len({s.name for s in result.scenarios})
    return f"{count(names, 'scenario')} × {count(len(result.agents), 'agent')}, {conversations}"
