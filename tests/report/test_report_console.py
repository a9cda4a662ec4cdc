"""The console reporter, with and without a terminal."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import builders
import pytest
from rich.cells import cell_len
from rich.console import Console

import agentest
from agentest.domain.end_reason import Ending
from agentest.domain.events import (
    ConversationFinished,
    RunFinished,
    RunStarted,
    ScenarioAmended,
    ScenarioFinished,
    ScenarioStarted,
    TurnFinished,
)
from agentest.domain.figures import Forecast, totals_of
from agentest.domain.results import (
    AlignedRow,
    CheckResult,
    ConversationResult,
    Deduplication,
    LabelledFailure,
    MetricResult,
    ModelUsage,
    QuotaUse,
    Reason,
    ReasonKind,
    RowStatus,
    RunResult,
    ScenarioResult,
    Score,
    Severity,
    Skipped,
    Status,
    TrajectoryResult,
    TurnEvaluation,
    UniqueError,
    Unscored,
    Verdict,
)
from agentest.domain.transcript import (
    Blame,
    Conversation,
    Failure,
    TimeSpent,
    ToolCall,
    Turn,
    UnfinishedTurn,
    Usage,
)
from agentest.domain.verdict import averages, decide, skipped_metrics, with_failing_groups
from agentest.report import github
from agentest.report.console.printer import Printer, open_console
from agentest.report.console.reporter import ConsoleReporter
from agentest.report.console.scenario import scenario_lines
from agentest.report.console.summary import header_lines
from agentest.report.console.text import DisplayOptions
from agentest.report.transcripts import Transcripts
from agentest.support.terminal import clean
from agentest.support.text import cut_name, is_in, shortened
from agentest.testing import ScriptedAgent, run_scenarios, tool_call

ENDPOINT = "http://127.0.0.1:8080/v1/chat/completions"
CHECKED = ToolCall("check_availability", {"date": "2026-01-06"}, {"slots": ["09:00"]}, True, 0)
TOO_FEW = TrajectoryResult(
    matched=False,
    summary="expected calls are missing: create_booking",
    mode="contains",
    expected="check_availability, create_booking(service='haircut', …)",
    actual="check_availability(date='2026-01-06')",
    missing_calls=("create_booking",),
)


def turn(index: int = 0, reply: str = "At nine?", user: str = "A haircut, please", **more: object) -> Turn:
    return replace(Turn(index, user, reply, latency_ms=100.0 * (index + 1)), **more)


def conversation(
    id: str = "slot-1",
    *turns: Turn,
    metrics: Mapping[str, MetricResult] | None = None,
    checks: Sequence[CheckResult] = (),
    trajectory: TrajectoryResult | None = None,
    failure: Failure | None = None,
    unfinished: UnfinishedTurn | None = None,
    labels: Sequence[str] = (),
) -> ConversationResult:
    """A conversation whose last turn has these metrics and checks."""
    turns = turns or (turn(tool_calls=(CHECKED,)),)
    ending = Ending.ERROR if failure else Ending.SATISFIED
    last = turns[-1].turn_index
    return ConversationResult(
        Conversation(id, turns, ending, failure, unfinished),
        (TurnEvaluation(last, metrics or {}, None, tuple(checks)),),
        trajectory=trajectory,
        failures=tuple(
            LabelledFailure(f"{id}-F{n}", id, last, "agent_behavior_failure", label, "wrong")
            for n, label in enumerate(labels, 1)
        ),
    )


def scenario(
    *conversations: ConversationResult,
    name: str = "user books a slot",
    agent: str = "booking",
    line: int = 12,
    thresholds: Mapping[str, float] | None = None,
    severity: Severity = Severity.CRITICAL,
    usage: Mapping[str, ModelUsage] | None = None,
) -> ScenarioResult:
    failures = [f.id for c in conversations for f in c.failures]
    groups = (UniqueError("false information", severity, tuple(failures), "It invented a price."),)
    found = with_failing_groups(Deduplication(groups if failures else ()), Severity.CRITICAL)
    limits = thresholds or {}
    return ScenarioResult(
        name=name,
        agent=agent,
        file="scenarios/booking.sim.py",
        line=line,
        verdict=decide(conversations, found, limits, Severity.CRITICAL),
        conversations=conversations,
        averages=averages(conversations),
        thresholds=limits,
        errors=found.groups,
        skipped_metrics=skipped_metrics(conversations),
        duration_ms=1234.0,
        usage=usage or {},
        totals=totals_of(conversations),
    )


def skipped(name: str = "later") -> ScenarioResult:
    return replace(scenario(name=name), verdict=Verdict(Status.SKIPPED), duration_ms=0.0)


def failing(name: str = "user books a slot", count: int = 1) -> ScenarioResult:
    found = [conversation(f"slot-{n}", trajectory=TOO_FEW) for n in range(1, count + 1)]
    return scenario(*found, name=name)


def console(width: int = 80, **more: object) -> Console:
    return Console(file=io.StringIO(), width=width, **more)  # type: ignore[arg-type]


def written(to: Console) -> str:
    assert isinstance(to.file, io.StringIO)
    return to.file.getvalue()


def tell(
    to: Console,
    *scenarios: ScenarioResult,
    verbose: bool = False,
    verbosity: int = 0,
    live: bool | None = False,
    interrupted: bool = False,
    models: Mapping[str, str | None] | None = None,
    comparison: bool = False,
    agents: Sequence[str] = ("booking",),
) -> str:
    """Return the console output for a run with these results."""
    reporter = ConsoleReporter(to, DisplayOptions(verbosity=2 if verbose else verbosity), live=live)
    held = sum(len(s.conversations) for s in scenarios)
    endpoints = dict.fromkeys(agents, ENDPOINT)
    reporter.on_event(RunStarted("1.2.3", endpoints, len(scenarios), held, 20, models or {}, comparison))
    for result in scenarios:
        reporter.on_event(ScenarioStarted(result.name, result.agent, len(result.conversations)))
        for found in result.conversations:
            for each in found.conversation.turns:
                id = found.conversation.conversation_id
                reporter.on_event(TurnFinished(result.name, result.agent, id, each.turn_index))
            reporter.on_event(ConversationFinished(result.name, result.agent, found))
        reporter.on_event(ScenarioFinished(result))
    started_at = "2026-01-01T00:00:00.000Z"
    reporter.on_event(
        RunFinished(
            RunResult(
                scenarios, tuple(agents), comparison, started_at, 12_345.0, "1.2.3", models or {}, interrupted
            )
        )
    )
    return written(to)


def shown(result: ScenarioResult, *, verbose: bool = False) -> str:
    return "\n".join(each.plain for each in scenario_lines(result, DisplayOptions(verbosity=2 * verbose)))


def test_a_small_passing_run() -> None:
    """A passing scenario is one line with its averages; totals end the output."""
    scores = {"helpfulness": Score(4, "fine"), "goal_completion": Score(1, "done")}
    held = [conversation(f"slot-{n}", metrics=scores) for n in (1, 2)]
    tokens = {"judge": ModelUsage(4, Usage(1000, 50), 1)}
    result = scenario(*held, thresholds={"helpfulness": 3.5}, usage=tokens)
    models = {"user": "openai/gpt-5-mini", "judge": "openai/gpt-5-mini"}
    assert tell(console(200), result, models=models) == PASSING


PASSING = """\
agentest 1.2.3  1 scenario, 2 conversations
agent   booking  http://127.0.0.1:8080/v1/chat/completions
model   openai/gpt-5-mini (user, judge)

✓ passed   user books a slot  scenarios/booking.sim.py:12  2 conversations

cost       4 model calls
1 passed (1 scenario, 2 conversations) in 12.3 s
"""


@pytest.mark.parametrize(
    ("use", "shown"),
    [
        pytest.param(QuotaUse("m", 20, 900, 0, 999.0), "", id="no wait to speak of"),
        pytest.param(
            QuotaUse("m", 20, 900, 0, 4000.0), "m: requests waited 4.0 s for its limits", id="configured"
        ),
        pytest.param(
            QuotaUse("m", 1200, 900, 3, 4000.0, 299.6),
            "m: 3 of 1,200 requests refused; requests waited 4.0 s for its limits; "
            "about 300 requests a minute seem to be allowed",
            id="learnt",
        ),
    ],
)
def test_a_quota_that_held_up_the_run(use: QuotaUse, shown: str) -> None:
    """The end of a run says how much a quota held it up, and nothing if it did not."""
    to = console(200)
    ConsoleReporter(to, live=False).on_event(RunFinished(builders.run_result(scenario(), quotas=(use,))))
    assert [line for line in written(to).splitlines() if line.startswith("quota")] == (
        [f"quota      {shown}"] if shown else []
    )


def test_every_figure_of_a_small_run() -> None:
    """With -v, passing scenarios show conversations and averages, and the run its figures."""
    held = [conversation(f"slot-{n}", metrics={"helpfulness": Score(4, "fine")}) for n in (1, 2)]
    tokens = {"judge": ModelUsage(4, Usage(1000, 50), 1)}
    result = scenario(*held, thresholds={"helpfulness": 3.5}, usage=tokens)
    assert tell(console(200), result, models={"judge": "openai/gpt-5-mini"}, verbosity=1) == DETAILED


DETAILED = """\
agentest 1.2.3  1 scenario, 2 conversations, at most 20 at once
agent   booking  http://127.0.0.1:8080/v1/chat/completions
model   openai/gpt-5-mini (judge)

✓ passed   user books a slot  scenarios/booking.sim.py:12  \
2/2 conversations passed · 2 turns · 2 tool calls · 1.2 s
    ✓ #1  1 turn · 1 tool call · the user was done
    ✓ #2  1 turn · 1 tool call · the user was done
    helpfulness 4.00 (≥ 3.5)

Slowest agent turns
      100 ms  turn 1  slot-1  user books a slot
      100 ms  turn 1  slot-2  user books a slot

agent   2 calls
judge   4 model calls (1 asked again), 1,000 prompt + 50 completion tokens

cost       4 model calls
1 passed (1 scenario, 2 conversations) in 12.3 s
"""


def test_a_failing_run_on_a_terminal() -> None:
    """Each cause has one block with an example: its place, the turn, and its other causes."""
    wrong = CheckResult(
        check="contains", passed=False, summary="expected 'BK-' in the reply", reply="'At nine?'"
    )
    alike = [conversation(f"slot-{n}", trajectory=TOO_FEW) for n in (1, 2, 3)]
    held = [*alike, conversation("slot-4", turn(), turn(1), checks=[wrong]), conversation("slot-5")]
    ok = scenario(conversation("price-1"), name="user asks for the price", line=30)
    assert tell(console(80, force_terminal=True, color_system=None), scenario(*held), ok) == FAILING


FAILING = """\
agentest 1.2.3  2 scenarios, 6 conversations
agent   booking  http://127.0.0.1:8080/v1/chat/completions
model   offline (no model): LLM metrics are skipped

✗ failed   user books a slot  scenarios/booking.sim.py:12  1/5 conversations pa…
✓ passed   user asks for the price  scenarios/booking.sim.py:30  1 conversation

✗ create_booking not called as expected  1 scenario, 3 conversations
  scenarios/booking.sim.py:12  user books a slot
    turn 1  user   A haircut, please
            agent  At nine?
    trajectory: expected calls are missing: create_booking
    expected (contains): check_availability, create_booking(service='haircut',
    …)
    actual: check_availability(date='2026-01-06')
    also: contains: expected 'BK-' in the reply

1 failed, 1 passed (2 scenarios, 6 conversations) in 12.3 s
"""


@pytest.mark.parametrize(
    ("seconds", "cost", "is_shown"),
    [(4.9, 0.0, False), (5.0, 0.0, True), (1.0, 0.01, True), (1.0, None, True)],
)
def test_a_run_of_a_moment_that_costs_nothing_needs_no_forecast(
    seconds: float, cost: float | None, is_shown: bool
) -> None:
    told = Forecast(
        seconds=seconds, cost=cost, started_at="2026-01-02T14:03", scenarios=1, new=0, other_models=False
    )
    lines = header_lines(RunStarted("1.2.3", {"booking": ENDPOINT}, 1, 1, 20), DisplayOptions(), told)
    assert any(each.plain.startswith("expect  about ") for each in lines) is is_shown


def test_each_block_shows_its_own_cause() -> None:
    """The example of a block is about its headline, also if its scenario has a cause that comes first."""
    says, contains = (
        CheckResult(check=name, passed=False, summary="expected 'BK-' in the reply", reply="'At nine?'")
        for name in ("says", "contains")
    )
    checks = {"both": [says, contains], "one": [contains], "another": [contains], "last": [says]}
    results = [
        scenario(conversation(f"{name}-1", turn(0, f"This is {name}."), checks=found), name=name, line=at)
        for at, (name, found) in enumerate(checks.items(), 1)
    ]
    assert tell(console(80), *results).split("\n\n")[-3:-1] == [
        """\
✗ contains: expected 'BK-' in the reply  3 scenarios
  scenarios/booking.sim.py:1  both
    turn 1  user   A haircut, please
            agent  This is both.
    also: says: expected 'BK-' in the reply
  also in  one, another""",
        """\
✗ says: expected 'BK-' in the reply  1 scenario
  scenarios/booking.sim.py:4  last
    turn 1  user   A haircut, please
            agent  This is last.""",
    ]


def test_a_block_whose_scenarios_differ_in_values_shows_those_of_the_example() -> None:
    texts = ("'BK-1'", "'BK-2'")
    results = [
        scenario(
            conversation(
                f"slot-{at}",
                checks=[CheckResult(check="contains", passed=False, summary=f"expected {text} in the reply")],
            ),
            name=f"slot {at}",
        )
        for at, text in enumerate(texts)
    ]
    text = tell(console(80), *results)
    assert "✗ contains: expected … in the reply  2 scenarios\n" in text
    assert "            agent  At nine?\n    contains: expected 'BK-1' in the reply\n" in text


def test_a_comparison() -> None:
    """A comparison has the agent on every line and ends with a table of scenarios by agents."""
    scores = [{"helpfulness": Score(value, "")} for value in (2, 5)]
    limits = {"helpfulness": 4.0}
    old, new = (
        scenario(conversation("slot-1", metrics=metrics), agent=agent, thresholds=limits)
        for agent, metrics in zip(("old", "new"), scores, strict=True)
    )
    text = tell(console(80), old, new, comparison=True, agents=["old", "new"])
    assert COMPARED in re.sub(" +\n", "\n", text)
    assert "scenarios/booking.sim.py:12  [new]  1 conversation" in text
    assert "1 failed, 1 passed (1 scenario × 2 agents, 2 conversations) in 12.3 s" in text


COMPARED = """\
scenario            old                      new
───────────────────────────────────────────────────────────────────
user books a slot   ✗ failed  1/1            ✓ passed  1/1
                    helpfulness 2.00 (≥ 4)   helpfulness 5.00 (≥ 4)

passed              0 of 1                   1 of 1
"""


def test_a_comparison_off_a_terminal_is_never_squeezed() -> None:
    """Without a terminal, the comparison table is as wide as it needs."""
    agents = [f"agent-with-a-long-name-{n}" for n in range(6)]
    results = [scenario(conversation(), agent=agent) for agent in agents]
    text = tell(console(40), *results, comparison=True, agents=agents)
    assert any(all(agent in row for agent in agents) for row in text.splitlines())


@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    long = "w" * 300 + " 日本語のとても長いテキスト " * 20
    held = [
        conversation("a-very-long-slug-" * 8 + "1", turn(0, long, long), trajectory=TOO_FEW, labels=["x"]),
        conversation("slot-2", failure=Failure(Blame.AGENT, long), unfinished=UnfinishedTurn(1, long, ())),
    ]
    results = [scenario(*held, name=long, agent=agent, line=7) for agent in ("old", "new")]
    for verbose in (False, True):
        to = console(width, force_terminal=True, color_system=None)
        text = tell(to, *results, verbose=verbose, comparison=True, agents=["old", "new"])
        assert max(cell_len(row) for row in text.splitlines()) <= width


def test_off_a_terminal_lines_are_whole() -> None:
    """In a file every line is complete, whatever the console's width."""
    result = replace(failing(name="a name of many words " * 20))
    text = tell(console(30), result)
    assert f"✗ failed   {result.name}  scenarios/booking.sim.py:12\n" in text
    assert f"  scenarios/booking.sim.py:12  {result.name.rstrip()}\n" in text


def test_sixty_scenarios_end_with_what_failed() -> None:
    """After sixty scenarios the end lists the few that did not pass, with file and line."""
    results = [scenario(conversation(), name=f"number {n}", line=n) for n in range(1, 61)]
    results[20] = replace(failing("the bad one"), line=21)
    broken = conversation("x-1", failure=Failure(Blame.MODEL, "openai/x: 401"))
    results[40] = scenario(broken, name="the unjudged one", line=41)
    last_screen = "\n".join(tell(console(80), *results).splitlines()[-12:])
    assert "\n  scenarios/booking.sim.py:21  the bad one\n" in last_screen
    assert "! openai/x: 401  1 scenario\n  scenarios/booking.sim.py:41  the unjudged one\n" in last_screen
    assert "1 failed, 1 errored, 58 passed (60 scenarios, 60 conversations) in 12.3 s" in last_screen


def test_markup_is_text() -> None:
    """Rich markup in names, messages and tool results is printed literally."""
    call = ToolCall("[red]tool", {"[bold]": "[/]"}, "[link=x]y[/link]", True, 0)
    held = conversation(
        "[blink]id", turn(reply="[red]R[/red] :smile:", tool_calls=(call,)), trajectory=TOO_FEW
    )
    text = tell(
        console(200, force_terminal=True, color_system=None),
        scenario(held, name="[green]name[/green]"),
        verbose=True,
    )
    for expected in (
        "[green]name[/green]",
        "[blink]id",
        "[red]R[/red] :smile:",
        "[red]tool([bold]='[/]')",
        "[link=x]y[/link]",
    ):
        assert expected in text


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("live", [False, True])
def test_an_agent_cannot_control_the_terminal(verbose: bool, live: bool) -> None:
    """Foreign escapes, carriage returns, bells and bidi overrides are made visible everywhere."""
    evil = "a\x1b[2J\x1b]0;title\x07b\rc\x9bd\u202ee\x08\x00\ud800"
    call = ToolCall(evil, {evil: evil}, evil, True, 0, invalid_arguments=evil, error=evil)
    check = CheckResult(check=evil, passed=False, summary=evil, reply=evil)
    spec = TrajectoryResult(
        matched=False, summary=evil, mode="strict", expected=f"{evil}\n{evil}", actual=evil
    )
    metrics = {evil: Score(3, evil), "other": Unscored(evil), "third": Score(evil, evil)}
    held = conversation(
        evil,
        turn(0, evil, evil, tool_calls=(call,)),
        metrics=metrics,
        checks=[check],
        trajectory=spec,
        labels=["x"],
    )
    result = replace(
        scenario(held, name=evil, agent=evil), errors=(UniqueError(evil, Severity.HIGH, (evil,), evil),)
    )
    to = console(80, force_terminal=True, color_system=None)
    text = tell(
        to, result, verbose=verbose, live=live, agents=[evil, "b"], models={"judge": evil}, comparison=True
    )
    steering = set(re.findall(r"[\x00-\x1f\x7f-\x9f\u202e\ud800]", text)) - {"\n"}
    # The live area moves the cursor itself.
    assert steering <= ({"\x1b", "\r"} if live else set())
    assert "\x1b[2J" not in text
    assert "\x1b]0;" not in text


def test_a_reply_cannot_forge_a_line() -> None:
    """All rows of a reply are indented below its speaker."""
    held = conversation("slot-1", turn(reply="Hi\n✓ passed   forged\r\n\n1 passed"), trajectory=TOO_FEW)
    rows = tell(console(80), scenario(held, name="n\n✓ passed   forged"), verbose=True).splitlines()
    assert "                 ✓ passed   forged" in rows
    assert not any(row.startswith(("✓", "1 passed")) for row in rows)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
@pytest.mark.parametrize("terminal", [False, True])
def test_every_encoding_is_supported(encoding: str, terminal: bool) -> None:
    """Characters that the output cannot encode are replaced, without an exception."""
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="\n")
    to = Console(file=file, width=80, force_terminal=terminal, color_system=None)
    held = conversation(
        "slot-1", turn(reply="Grüße 日本 ✓"), trajectory=TOO_FEW, metrics={"m": Score(1, "…")}
    )
    results = [scenario(held, agent=agent, thresholds={"m": 2}) for agent in ("old", "new")]
    reporter = ConsoleReporter(to, live=terminal)
    reporter.on_event(RunStarted("1.2.3", {"old": ENDPOINT, "new": "http://ü"}, 2, 2, 20, {}, True))
    reporter.on_event(ScenarioStarted("日本", "old", 1))
    for result in results:
        reporter.on_event(ScenarioFinished(result))
    reporter.on_event(RunFinished(RunResult(tuple(results), ("old", "new"), True, "", 1.0, "1.2.3")))
    file.flush()
    text = file.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]
    assert ("✗ failed  " if encoding == "utf-8" else "FAIL ") in text


def test_ascii_output() -> None:
    """ASCII output has words for symbols and escapes for other characters."""
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    printer = Printer(Console(file=file, width=80))
    look = DisplayOptions(printer.glyphs)
    held = [conversation("slot-1", turn(reply="日"), trajectory=TOO_FEW), conversation("slot-2")]
    result = scenario(*held, thresholds={"pass_rate": 1})
    rows = [row.plain for each in scenario_lines(result, look) for row in printer.rows(each)]
    assert rows[0] == (
        "FAIL   user books a slot  scenarios/booking.sim.py:12  "
        "1/2 conversations passed (pass_rate >= 1) - 2 turns - 1 tool call - 1.2 s"
    )
    assert "              agent  \\u65e5" in rows
    assert "    FAIL create_booking not called as expected" in rows


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def made(environ: Mapping[str, str], file: io.StringIO) -> str:
    """Return what a reporter for this environment prints for a failing run."""
    reporter = ConsoleReporter(open_console(environ, file))
    result = failing()
    reporter.on_event(RunStarted("1.2.3", {"booking": ENDPOINT}, 1, 1, 20))
    reporter.on_event(ScenarioFinished(result))
    reporter.on_event(RunFinished(RunResult((result,), ("booking",), False, "", 1.0, "1.2.3")))
    return file.getvalue()


@pytest.mark.parametrize(
    ("environ", "file"),
    [
        ({}, io.StringIO()),
        ({"NO_COLOR": "1", "CI": "true"}, Tty()),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, io.StringIO()),
        ({"TERM": "dumb"}, Tty()),
        ({"FORCE_COLOR": "0", "CI": "1"}, Tty()),
    ],
)
def test_no_escape_codes_where_none_are_wanted(environ: Mapping[str, str], file: io.StringIO) -> None:
    """Files, `NO_COLOR` and dumb terminals get no escape codes."""
    assert "\x1b" not in made(environ, file)


def test_no_color_on_a_terminal_keeps_the_progress() -> None:
    """With `NO_COLOR` the progress display stays live, without styles."""
    text = made({"NO_COLOR": "1", "TERM": "xterm"}, Tty())
    assert "\x1b[?25l" in text
    assert not re.search(r"\x1b\[[\d;]*m", text)


def test_force_color_colours_a_pipe() -> None:
    """`FORCE_COLOR` gives colors without a terminal, but no live display and no wrapping."""
    text = made({"FORCE_COLOR": "1", "TERM": "xterm"}, io.StringIO())
    assert "\x1b[31m✗ failed" in text
    assert "\x1b[?25l" not in text
    assert max(map(len, text.splitlines())) > 80


def test_ci_has_no_live_display() -> None:
    """In CI a terminal gets plain lines, with colors."""
    text = made({"CI": "true", "TERM": "xterm"}, Tty())
    assert "\x1b[?25l" not in text
    assert "\x1b[31m" in text


def test_a_reader_that_leaves_does_not_stop_the_run() -> None:
    """If the reader is gone (`agentest run | head`), other reporters still get their events."""
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w", encoding="utf-8") as pipe:
        reporter = ConsoleReporter(open_console({}, pipe))
        for _ in range(3):
            reporter.on_event(ScenarioFinished(failing()))


def test_the_cursor_comes_back_when_reporting_fails() -> None:
    """A reporter that crashes restores the cursor first."""
    to = console(80, force_terminal=True)
    reporter = ConsoleReporter(to, live=True)
    reporter.on_event(RunStarted("1.2.3", {"booking": ENDPOINT}, 1, 1, 20))
    with pytest.raises(AttributeError):
        reporter.on_event(ScenarioFinished(None))  # type: ignore[arg-type]
    assert written(to).rindex("\x1b[?25h") > written(to).rindex("\x1b[?25l")


def test_off_a_terminal_only_finished_scenarios_are_printed() -> None:
    """Plain output has no line for work in progress."""
    to = console(80)
    reporter = ConsoleReporter(to)
    reporter.on_event(RunStarted("1.2.3", {"booking": ENDPOINT}, 1, 1, 20))
    before = written(to)
    reporter.on_event(ScenarioStarted("x", "booking", 1))
    reporter.on_event(TurnFinished("x", "booking", "x-1", 0))
    reporter.on_event(ConversationFinished("x", "booking", conversation()))
    assert written(to) == before


def test_an_agent_error_shows_the_turn_without_reply() -> None:
    """The unanswered message of an interrupted conversation is shown."""
    failure = Failure(Blame.AGENT, "the agent answered 500")
    held = [
        conversation(f"slot-{n}", turn(), failure=failure, unfinished=UnfinishedTurn(n, "Nine it is", ()))
        for n in (1, 2)
    ]
    text = shown(scenario(*held))
    assert (
        "    ✗ the agent answered 500  2 conversations\n"
        "      turn 2  user   Nine it is\n              agent  no reply\n"
    ) in text
    every = "\n".join(each.plain for each in scenario_lines(scenario(*held), DisplayOptions(verbosity=1)))
    assert "    ✗ #2  2 turns · 0 tool calls · ended by an error of the agent\n" in every


def test_different_reasons_are_not_lumped_together() -> None:
    """Each cause has its own lines."""
    extra = TrajectoryResult(
        matched=False, summary="unexpected calls were made: send_email", actual="send_email()"
    )
    held = [conversation("slot-1", trajectory=TOO_FEW), conversation("slot-2", trajectory=extra)]
    text = shown(scenario(*held))
    assert "create_booking not called" in text
    assert "unexpected calls were made: send_email" in text


def test_errors_have_severity_and_occurrences() -> None:
    """An error group is shown once, with severity, label, count, ids and explanation."""
    text = shown(scenario(conversation("slot-1", labels=["false information"] * 8)))
    assert ("    ✗ critical: false information, 8 times  #1\n        It invented a price.\n") in text
    assert text.count("It invented a price.") == 1


def test_errors_that_do_not_fail_a_scenario_are_one_line() -> None:
    """A passing scenario lists minor errors without explanation or failure mark."""
    text = shown(scenario(conversation("slot-1", labels=["repetition"]), severity=Severity.LOW))
    assert text.splitlines()[1:] == ["      low: false information, 1 time  #1"]


def test_a_missed_threshold_is_shown_in_red() -> None:
    """A low average is the reason of the failure, and red in the list of averages."""
    held = conversation(metrics={"helpfulness": Score(2, ""), "coherence": Score(5, "")})
    result = scenario(held, thresholds={"helpfulness": 4, "coherence": 4})
    (found,) = [each for each in scenario_lines(result, DisplayOptions()) if "coherence" in each.plain]
    assert found.plain == "    helpfulness 2.00 (≥ 4)  coherence 5.00 (≥ 4)"
    assert ("2.00", "red") in found.parts
    assert ("5.00", "green") in found.parts
    assert "    ✗ helpfulness below its threshold of 4\n      helpfulness: average 2.00 is" in shown(result)


def test_a_threshold_without_a_score_is_shown_as_such() -> None:
    """A threshold on an unscored metric is shown as not scored; a limit has no score."""
    held = conversation(metrics={"helpfulness": Skipped("no model configured")})
    text = shown(scenario(held, thresholds={"helpfulness": 4, "latency_p95_ms": 60_000}))
    assert "latency_p95_ms" not in text
    assert text.startswith("! errored")
    assert "helpfulness not scored (≥ 4)" in text


def test_skipped_metrics_are_shown_once() -> None:
    """Metrics without a model are listed once per run, not per scenario."""
    metrics = {"helpfulness": Skipped("no model configured"), "coherence": Skipped("no model configured")}
    results = [scenario(conversation(metrics=metrics), name=name) for name in "abc"]
    text = tell(console(80), *results, verbose=True)
    assert text.count("Metrics skipped: no model configured (helpfulness, coherence)") == 1
    assert "no model configured" not in tell(console(80), *results)


def test_a_row_of_data_that_is_wrong_is_named() -> None:
    """The headline has the problem; the row with its line stands below the scenario."""
    place = f"{scenario().file}:{scenario().line}"
    message = f"{place}: scenario {scenario().name!r}, rows.csv:3: date: found '2026-13-40'"
    reason = Reason(Status.ERRORED, ReasonKind.FILE, message)
    refused = replace(scenario(), verdict=Verdict(Status.ERRORED, (reason,)), conversations=())
    assert "\n    rows.csv:3\n" in tell(console(80), refused)


def test_a_file_that_does_not_load_shows_its_traceback() -> None:
    """A broken file is an errored scenario with the end of its traceback."""
    rows = "\n".join(f"  row {n}" for n in range(50))
    reason = Reason(Status.ERRORED, ReasonKind.FILE, f"could not be imported\n{rows}\nNameError: x")
    result = replace(scenario(name="a.sim.py"), file="a.sim.py", line=0, conversations=())
    text = shown(replace(result, verdict=Verdict(Status.ERRORED, (reason,)), duration_ms=0.0))
    assert text.startswith("! errored  a.sim.py\n    ! NameError: x\n        row 21\n")
    assert text.rstrip().endswith("        row 49")


def test_each_cause_is_shown_once() -> None:
    """Its block counts the scenarios; with -v each of them has its own lines."""
    kinds = [
        (Status.ERRORED, "answered 401: no"),
        (Status.ERRORED, "answered 404: no"),
        (Status.FAILED, "late"),
    ]
    results = [
        replace(scenario(name=f"{name} {n}"), verdict=Verdict(status, (Reason(status, kind, text),)))
        for name, (status, text) in zip("abc", kinds, strict=True)
        for n, kind in enumerate([ReasonKind.CONVERSATION] * 3)
    ]
    text = tell(console(120), *results)
    assert [text.count(each) for _, each in kinds] == [1, 1, 1]
    assert "! answered 401: no  3 scenarios\n  scenarios/booking.sim.py:12  a 0\n" in text
    assert tell(console(120), *results, verbose=True).count("answered 401: no") == 4


def test_only_skipped_is_not_a_pass() -> None:
    """A run with only skipped scenarios says that it is not a pass."""
    text = tell(console(80), skipped("a"), skipped("b"))
    assert text.endswith(
        "Every scenario was skipped, so the run did not pass.\n"
        "2 skipped (2 scenarios, 0 conversations) in 12.3 s\n"
    )


def test_no_scenario_is_not_a_pass() -> None:
    text = tell(console(80))
    assert "No scenario ran, so the run did not pass.\n0 passed (0 scenarios" in text


def test_verbose_shows_everything() -> None:
    """--verbose prints every conversation in full: messages, calls, answers, scores with reasons."""
    metrics = {"helpfulness": Score(4, "Quick.", (4, 4, 5)), "coherence": Unscored("judge is down")}
    call = ToolCall("book", {"at": "9"}, {"error": "full"}, True, 0, error="full")
    said = turn(0, "First\nsecond", tool_calls=(call,), retries=2, requests=3)
    text = shown(scenario(conversation("slot-1", said, metrics=metrics)), verbose=True)
    assert VERBOSE in text


VERBOSE = """\
    ! #1  1 turn · 1 tool call · the user was done
        turn 1  100 ms, 2 retries
          user   A haircut, please
          tool   book(at='9')
                 → {"error": "full"}  (the mock raised: full)
          agent  First
                 second
          helpfulness 4 [4, 4, 5]  Quick.
          coherence could not be scored: judge is down
"""


def test_invalid_arguments_are_explained_once() -> None:
    def find(q: str) -> str:
        return q

    made = agentest.scenario("s", turns=["Hi"], tools={"find": find})
    with ScriptedAgent([tool_call("find"), "Done."]) as agent:
        result = run_scenarios([made], agent=agent).scenarios[0]
    text = shown(result, verbose=True)
    assert "(invalid arguments: `q` is missing)" in text
    assert "invalid arguments: invalid arguments" not in text


def test_a_hand_over_is_described() -> None:
    """A turn without text is described as one with only tool calls, in short and in full."""
    said = turn(0, reply="", tool_calls=(ToolCall("hand_over", {}, None, True, 0),))
    assert "agent  (no text; the agent called tools only)" in shown(
        scenario(conversation("slot-1", said)), verbose=True
    )
    cut = conversation("slot-1", said, failure=Failure(Blame.AGENT, "boom"))
    assert "agent  (no text; the agent called tools only)" in shown(scenario(cut))


def test_verbose_explains_a_failure_that_the_pass_rate_forgave() -> None:
    """--verbose shows the failed conversation of a scenario that passes by its rate."""
    held = [conversation("slot-1", trajectory=TOO_FEW), conversation("slot-2")]
    result = scenario(*held, thresholds={"pass_rate": 0.5})
    assert result.verdict.passed
    assert "#1" not in shown(result)
    assert "✗ trajectory: expected calls are missing: create_booking" in shown(result, verbose=True)


def test_many_passing_conversations_are_not_listed_one_by_one() -> None:
    """In a failed scenario, passing conversations are summarized."""
    held = [conversation(f"slot-{n}") for n in range(1, 100)]
    text = shown(scenario(*held, conversation("slot-0", trajectory=TOO_FEW)))
    assert "99/100 conversations passed" in text
    assert "✓ #" not in text
    assert len(text.splitlines()) < 20


def test_the_slowest_turns_are_named() -> None:
    """The three slowest turns are listed, unless there is only one."""
    one = scenario(conversation("slot-1"))
    assert "Slowest" not in tell(console(80), one)
    turns = [turn(n, latency_ms=1000.0 * n) for n in range(5)]
    text = tell(console(80), scenario(conversation("slot-1", *turns)), verbosity=1)
    assert re.findall(r"([\d,]+) ms  turn (\d)", text) == [("4,000", "5"), ("3,000", "4"), ("2,000", "3")]
    streamed = [turn(n, latency_ms=1000.0 * n, first_token_ms=100.0 * n) for n in range(3)]
    text = tell(console(80), scenario(conversation("slot-1", *streamed)), verbose=True)
    assert "2,000 ms (first token 200 ms)  turn 3" in text
    assert re.search(r"turn 3  2\.0 s, first token after (200 ms|0\.2 s)", text)


def test_the_model_has_a_part_of_the_time_if_a_gateway_saw_it() -> None:
    """The model's time is shown within the agent's, for turns and for all conversations."""
    spent = TimeSpent(total_ms=2000.0, agent_ms=1000.0, judges_ms=1000.0, model_ms=800.0)
    turns = [turn(n, latency_ms=1000.0 * n, model_ms=900.0 * n) for n in range(3)]
    held = replace(conversation("slot-1", *turns), time=spent)
    text = tell(console(120), scenario(held), verbose=True)
    assert "a conversation: agent 50% (its model 40%), judges 50%\n" in text
    assert "2,000 ms (model 1,800 ms)  turn 3" in text
    assert "turn 3  2.0 s, model 1.8 s" in text


def test_time_spent() -> None:
    """The end shows a conversation's duration and its waits, without those that are zero."""
    spent = TimeSpent(total_ms=2000.0, agent_ms=1000.0, user_ms=500.0, tools_ms=1.0, judges_ms=300.0)
    held = [replace(conversation(f"slot-{n}"), time=spent) for n in (1, 2)]
    assert (
        "Time spent  2.0 s a conversation: agent 50%, user 25%, judges 15%, Agentest itself 10%\n"
    ) in tell(console(120), scenario(*held), verbosity=1)
    assert "Time spent" not in tell(console(120), skipped())


def test_calls_retries_and_tokens_are_totalled() -> None:
    """The end shows the agent's calls and retries, and calls and tokens of each role."""
    said = turn(0, retries=2, requests=4, usage=Usage(1000, 200))
    usage = {"user": ModelUsage(2, Usage(10, 5)), "judge": ModelUsage(3)}
    text = tell(
        console(80), scenario(conversation("slot-1", said), usage=usage), scenario(usage=usage), verbosity=1
    )
    assert "agent   4 calls (2 retries), 1,000 prompt + 200 completion tokens\n" in text
    assert "user    4 model calls, 20 prompt + 10 completion tokens\n" in text
    assert "judge   6 model calls\n" in text


def test_a_model_only_for_the_user_is_in_the_header() -> None:
    """The header has each model with its roles, and says if there is no judge."""
    text = tell(console(200), models={"user": "ollama/llama3.2", "judge": None})
    assert "model   ollama/llama3.2 (user); no judge: LLM metrics are skipped\n" in text


def test_cleaning_keeps_ordinary_text() -> None:
    """Accents, other scripts and emoji with joiners are unchanged."""
    assert clean("é 日本 👩‍💻 שלום ناس") == "é 日本 👩‍💻 שלום ناس"


def test_shortened_text_is_one_row() -> None:
    """Shortening collapses white space and marks the cut."""
    assert shortened("a\n\n b\tc") == "a b c"
    assert shortened("x" * 200, 10) == "xxxxxxxxx…"


def test_warnings_are_shown_whatever_the_status() -> None:
    """A scenario's warnings are shown even if it passed."""
    text = "find was called with arguments that its mock does not take"
    cut_short = conversation(failure=Failure(Blame.AGENT, "no"))
    for found in (scenario(conversation()), scenario(cut_short)):
        assert f"    warning: {text}" in shown(replace(found, warnings=(text,))).splitlines()


LONG = "a customer who bought the blue kettle last week and wants the money back for order"
DIFFERENT = AlignedRow(
    expected="refund_order(order_id='2000', amount=40.0, …)",
    call=0,
    status=RowStatus.DIFFERENT,
    difference="amount: expected 40.0, got 400.0",
    tool="refund_order",
)
WRONG_AMOUNT = replace(TOO_FEW, summary="not called as expected: refund_order", alignment=(DIFFERENT,))
TRACE = f'{ENDPOINT} answered 500: {{"error": {{"message": "query failed: {"x" * 60}: no table stock"}}}}'
CAUSES = (
    {"trajectory": WRONG_AMOUNT},
    {"failure": Failure(Blame.AGENT, TRACE), "unfinished": UnfinishedTurn(1, "Is it in stock?", ())},
    {"checks": [CheckResult(check="contains", passed=False, summary="expected '9:00'", reply="'no' " * 90)]},
    {"trajectory": replace(TOO_FEW, missing_calls=(), forbidden_calls=("ship",))},
    {
        "failure": Failure(
            Blame.MODEL, f"model m/x is down: {ENDPOINT} answered 503: busy (no answer for 3 s)"
        )
    },
)


def run_of(count: int, causes: int) -> list[ScenarioResult]:
    """A run in which a sixth of the scenarios, and at least one for each cause, does not pass."""
    failing = max(count // 6, causes) if causes else 0
    failed = [
        scenario(conversation(f"c-{n}", **CAUSES[n % causes]), name=f"{LONG} #{n}", line=n % 7 + 1)
        for n in range(min(failing, count))
    ]
    return [*failed, *(scenario(conversation(), name=f"{LONG} p{n}") for n in range(count - len(failed)))]


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize(
    ("count", "causes", "most"),
    [(3, 0, 9), (40, 0, 6), (1000, 0, 6), (3, 1, 17), (40, 1, 24), (1000, 1, 30), (3, 5, 42), (40, 5, 58),
     (1000, 5, 60), (2000, 4, 60)],
)  # fmt: skip
def test_the_number_of_lines_depends_on_causes(count: int, causes: int, most: int, width: int) -> None:
    """A run fits its measure, no row is wider than the terminal, and no two scenarios have one name."""
    to = console(width, force_terminal=True, color_system=None)
    reporter = ConsoleReporter(to, live=False)
    results = run_of(count, causes)
    reporter.on_event(RunStarted("1.2.3", {"booking": ENDPOINT}, count, count, 20))
    for result in results:
        reporter.on_event(ScenarioFinished(result))
    result = RunResult(tuple(results), ("booking",), False, "2026-01-01T00:00:00.000Z", 12_345.0, "1.2.3")
    reporter.on_event(RunFinished(result))
    rows = written(to).splitlines()
    assert len(rows) <= most, "\n".join(rows)
    assert max(map(cell_len, rows)) <= width
    heads = [
        row for row in rows if row.startswith(("✗ ", "! ")) and not row.startswith(("✗ failed", "! err"))
    ]
    assert len(heads) == min(causes, count)
    blocks = "\n".join(rows[rows.index(heads[0]) :]) if heads else ""
    names = re.findall(r"#\d+", blocks)
    assert len({*names}) == len(names)
    shown = sum(int(number) for number in re.findall(r" ([\d,]+) more$", blocks, re.M)) + len(names)
    assert shown == sum(not each.verdict.passed for each in results)


@pytest.mark.parametrize(("count", "causes"), [(43, 1), (43, 5), (2000, 4)])
def test_the_summary_on_github_depends_on_causes_too(count: int, causes: int) -> None:
    """It has the same blocks, with a folded transcript each."""
    results = run_of(count, causes)
    kept = Transcripts(1 << 20)
    for result in results:
        kept.add(result)
    run = RunResult(tuple(results), ("booking",), False, "2026-01-01T00:00:00.000Z", 12_345.0, "1.2.3")
    rows = github.summary(run, kept, 1 << 20, detailed=False).splitlines()
    assert len(rows) <= 120, "\n".join(rows)
    assert sum(row.startswith(("- ❌ **", "- ⚠️ **")) for row in rows) == causes


def test_a_block_has_the_turn_and_what_differs() -> None:
    """The diff does not repeat what the headline says, and an error has its reason without the address."""
    text = tell(console(80, force_terminal=True, color_system=None), *run_of(6, 5))
    assert (
        "✗ refund_order: amount: expected 40.0, got 400.0  1 scenario\n"
        "  scenarios/booking.sim.py:1  a customer who boug…ey back for order #0\n"
        "    turn 1  user   A haircut, please\n"
        "            agent  At nine?\n"
        "      expected (contains)                   made\n"
        "    ✗ refund_order(order_id='2000',         check_availability(date='2026-01-06'\n"
        "      amount=40.0, …)                       )\n\n"
    ) in text
    assert text.count("amount: expected 40.0, got 400.0") == 1
    assert re.search(r"✗ the agent answered 500: query failed:\s+x+: no table stock", text)
    assert "! model m/x answered 503: busy  1 scenario\n" in text


def test_warnings_of_an_amended_scenario_are_counted_once() -> None:
    """Warnings that question a verdict late amend a scenario that was shown; its other warnings stay."""
    amended = Verdict(Status.ERRORED, (Reason(Status.ERRORED, ReasonKind.WARNING, "unknown-tool"),))
    passed = replace(builders.scenario_result(), warnings=("one",))
    to = console(100)
    reporter = ConsoleReporter(to, DisplayOptions(verbosity=-1))
    reporter.on_event(ScenarioFinished(passed))
    late = replace(passed, verdict=amended)
    reporter.on_event(ScenarioAmended(late, Status.PASSED))
    reporter.on_event(RunFinished(builders.run_result(late)))
    assert "1 other warning " in written(to)


def test_strict_mode_is_explained_only_if_a_warning_decided() -> None:
    doubt = Reason(Status.ERRORED, ReasonKind.WARNING, "unknown-tool")
    failure = Reason(Status.FAILED, ReasonKind.CHECK, "no")
    for status, reasons, is_shown in (
        (Status.ERRORED, (doubt,), True),
        (Status.FAILED, (failure, doubt), False),
        (Status.ERRORED, (replace(doubt, kind=ReasonKind.MODEL), doubt), False),
    ):
        result = replace(builders.scenario_result(), verdict=Verdict(status, reasons))
        to = console(100)
        ConsoleReporter(to).on_event(RunFinished(builders.run_result(result)))
        assert ("Strict mode" in written(to)) is is_shown


def test_a_text_without_words_is_in_no_text() -> None:
    assert not is_in("…: {}", "a b")
    assert is_in("a, b", "(a b)")


def test_names_that_would_look_the_same_are_whole() -> None:
    """A cut name keeps its beginning and end; whoever reads it can rerun that scenario and no other."""
    names = [f"refund of an order {n} that arrived damaged" for n in (1, 2)]
    shown = dict[str, str]()
    assert cut_name(names[0], 16, shown) == "refund…damaged"
    assert cut_name(names[1], 16, shown) == names[1]
    assert cut_name(names[0], 16, shown) == "refund…damaged"
    assert cut_name("short", 16, shown) == "short"
