"""Warnings that question a verdict: conditions, reports and strict mode."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from jsonschema import validate
from project import Project
from stand_ins import Asked, Given, standing_in
from stored import read_json, to_json
from timeless import timeless

from agentest import (
    Criterion,
    QuantitativeMetric,
    ToolError,
    absent,
    any_of,
    call,
    never_after,
    scenario,
    sequence,
)
from agentest.domain.results import (
    Reason,
    ReasonKind,
    RunResult,
    ScenarioResult,
    Status,
    Verdict,
    VerdictWarning,
    WarningCode,
)
from agentest.runner.verdict_warnings import RUN_WARNINGS, UNIT_WARNINGS, questioned
from agentest.store.reader import read_results
from agentest.testing import ScriptedAgent, ScriptedModel, run_scenarios, tool_call

SCHEMA = json.loads(
    (Path(__file__).parent.parent.parent / "agentest" / "schemas" / "results.schema.json").read_text()
)
BOTH = {"look": {"found": 1}, "book": {"id": "B-1"}}


def looking(body: dict[str, Any]) -> Any:
    """Call `look` if the message requests it, and otherwise reply."""
    return tool_call("look", at="12") if body["messages"][-1]["content"] == "Look." else "Done."


@pytest.fixture
def agent() -> Iterator[ScriptedAgent]:
    with ScriptedAgent(looking) as opened:
        yield opened


def ran(agent: ScriptedAgent, *options: dict[str, Any], **more: Any) -> RunResult:
    made = [scenario(f"s{n}", **{"turns": ["Look."], **each}) for n, each in enumerate(options)]
    return run_scenarios(made, agent={"endpoint": agent.endpoint}, **{"strict": False, **more})


def test_a_reply_with_the_session_of_another_conversation_is_reported() -> None:
    """An agent that always uses the latest session should be exclusive; a single mix-up is no warning."""
    latest: list[str] = []

    def answer(request: Asked) -> Given:
        latest.append(request.json["session"])
        return Given(
            {"reply": f"Session {latest[0] if request.json['message'] == 'Mixed.' else latest[-1]}."}
        )

    with standing_in(answer) as url:
        body = {"message": "{{message}}", "session": "{{session_id}}"}
        settings = {"type": "http", "endpoint": f"{url}/chat", "body": body, "reply": "reply"}
        made = [scenario("own", turns=["Own."]), scenario("mixed", turns=["Mixed."])]
        own, mixed = run_scenarios(made, agent=settings, config={"concurrency": 1}).scenarios
    assert WarningCode.SHARED_SESSION not in {each.code for each in own.verdict_warnings}
    [warning] = [each for each in mixed.verdict_warnings if each.code is WarningCode.SHARED_SESSION]
    assert latest[0] in warning.message
    assert "exclusive: true" in warning.message


def one(agent: ScriptedAgent, options: dict[str, Any], **more: Any) -> ScenarioResult:
    [found] = ran(agent, options, **more).scenarios
    return found


def codes(found: ScenarioResult) -> list[str]:
    return [str(each.code) for each in found.verdict_warnings]


def test_every_code_is_found_by_a_function_and_documented() -> None:
    """Every warning has a function that detects it and a section in docs/warnings.md."""
    page = (Path(__file__).parent.parent.parent / "docs" / "warnings.md").read_text(encoding="utf-8")
    assert {*UNIT_WARNINGS, *RUN_WARNINGS} == {*WarningCode}
    assert [code for code in WarningCode if f"`{code}`" not in page] == []


# Only replies


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        ({}, True),
        ({"thresholds": {"pass_rate": 1}}, True),
        ({"goal": "Look."}, True),
        ({"turns": [{"user_message": "Hi.", "expect": {"contains": "Done"}}]}, False),
        ({"expect": {"says": "Done"}}, False),
        ({"check": lambda conversation: bool(conversation.turns)}, False),
        ({"criteria": [Criterion("Is kind", required=False)]}, True),
    ],
)
def test_a_scenario_that_checks_nothing_but_a_reply(
    agent: ScriptedAgent, options: dict[str, Any], warned: bool
) -> None:
    """It is errored unless it checks anything else; skipped metrics do not count."""
    [found] = run_scenarios([scenario("s", **{"turns": ["Hi."], **options})], agent=agent).scenarios
    assert found.verdict.passed is not warned
    assert codes(found) == ["only-replies"] * warned
    if warned:
        assert found.verdict_warnings[0].message.endswith(
            'must contain to the scenario: expect={"says": "…"}'
        )
    if "goal" in options:
        assert "the judged metrics need a `model`" in found.verdict_warnings[0].message


def test_judges_that_decide(agent: ScriptedAgent) -> None:
    """A judged goal is a check; a score without a threshold is not."""
    options = {"turns": ["Hi."], "goal": "Be greeted."}
    assert codes(one(agent, options, model=ScriptedModel())) == []
    scored = {**options, "metrics": ["helpfulness"]}
    assert codes(one(agent, scored, model=ScriptedModel())) == ["only-replies"]
    with_threshold = {**scored, "thresholds": {"helpfulness": 4}}
    assert codes(one(agent, with_threshold, model=ScriptedModel())) == []


class Length(QuantitativeMetric):
    """A metric without a threshold, which decides nothing."""

    name = "length"

    def score(self, input: Any) -> float:
        return len(input.agent_message)


def test_a_custom_score_without_a_threshold_is_not_a_check(agent: ScriptedAgent) -> None:
    scored = {"turns": ["Hi."]}
    assert codes(one(agent, scored, custom_metrics=[Length()])) == ["only-replies"]
    with_threshold = {**scored, "thresholds": {"length": 3}}
    assert codes(one(agent, with_threshold, custom_metrics=[Length()])) == []


# Checks that hold whatever the agent does


def book(service: str) -> str:
    return "BK-1"


def paid(args: Any, ctx: Any) -> None:
    ctx.state["paid"] = 1


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"thresholds": {"pass_rate": 0}, "expect": {"says": "Done"}}, "thresholds.pass_rate"),
        ({"goal": "g", "thresholds": {"goal_completion": 0}}, "thresholds.goal_completion"),
        ({"goal": "g", "thresholds": {"helpfulness": 1}}, "thresholds.helpfulness"),
        ({"trajectory": {"forbidden": []}}, "trajectory"),
        ({"trajectory": {"match_mode": "contains", "expected": []}}, "trajectory"),
        ({"trajectory": {"max_calls_per_tool": {}}}, "trajectory"),
        ({"trajectory": {"max_turns": 1}}, "trajectory"),
        ({"turns": [{"user_message": "Hi.", "trajectory": {"min_calls": 0}}]}, "turns[0].trajectory"),
        ({"turns": [{"user_message": "Hi.", "expect": {"regex": ".*"}}]}, "turns[0].expect.regex"),
        ({"state": {"paid": 0}, "final_state": {"paid": 0}}, "final_state"),
        ({"tools": {"look": sequence(1, book)}, "final_state": {"paid": absent}}, "final_state"),
        (
            {"tools": {"book": book}, "trajectory": {"forbidden": [call("book", servce="cut"), "book"]}},
            "trajectory.forbidden",
        ),
    ],
)
def test_a_check_that_cannot_fail(agent: ScriptedAgent, options: dict[str, Any], key: str) -> None:
    """The warning has the key; in strict mode the scenario is errored."""
    found = one(agent, {"turns": ["Hi."], **options}, model=ScriptedModel())
    [warning] = [each for each in found.verdict_warnings if each.code == "vacuous-check"]
    assert warning.message.startswith((f"{key}: ", f"{key} "))
    strict = one(agent, {"turns": ["Hi."], **options}, model=ScriptedModel(), strict=True)
    assert strict.verdict.status is Status.ERRORED


@pytest.mark.parametrize(
    "options",
    [
        {"expect": {"says": "Done"}, "thresholds": {"pass_rate": 0.1}},
        {"goal": "g", "thresholds": {"helpfulness": 1.5}},
        {"trajectory": {"match_mode": "within", "expected": []}},
        {"trajectory": {"max_turns": 1}, "turns": ["Hi.", "Hi."]},
        {"turns": [{"user_message": "Hi.", "expect": {"regex": "(?s)^(?!.*secret)"}}]},
        {"turns": [{"user_message": "Hi.", "expect": {"regex": r"\S"}}]},
        {"tools": {"paid": paid}, "final_state": {"paid": absent}},
        {"tools": {"book": book}, "trajectory": {"forbidden": [call("book", {"service.kind": "cut"})]}},
        {"tools": {"book": 1}, "trajectory": {"forbidden": [call("book", servce="cut")]}},
    ],
)
def test_a_check_that_can_fail(agent: ScriptedAgent, options: dict[str, Any]) -> None:
    found = one(agent, {"turns": ["Hi."], **options}, model=ScriptedModel())
    assert "vacuous-check" not in codes(found)


# Replies that read like errors


@pytest.mark.parametrize(
    ("reply", "options", "warned"),
    [
        ("Error: 500 Internal Server Error", {}, True),
        ("httpx.ConnectError: refused", {}, True),
        ('{"error": "no such user"}', {}, True),
        ("503 Service Unavailable", {}, True),
        ("Oh.\nTraceback (most recent call last):\n  …", {}, True),
        ("Sorry, there was an error: try again.", {}, False),
        ("The error code 404 means that nothing is there.", {}, False),
        ("Error: no slot", {"expect": {"says": "no slot"}}, False),
        ("Error: no slot", {"check": lambda conversation: bool(conversation.turns)}, False),
        ("Error: no slot", {"turns": [{"user_message": "Hi.", "expect": {"contains": "slot"}}]}, False),
        ("Error: no slot", {"turns": [{"user_message": "Hi.", "expect": {"max_words": 9}}]}, True),
        ("Error: no slot", {"turns": [{"user_message": "Hi.", "expect": {"regex": r"\S"}}]}, True),
        ("Error: no slot", {"turns": [{"user_message": "Hi.", "expect": {"regex": r"\bslot"}}]}, False),
        ("Error: no slot", {"goal": "g", "model": ScriptedModel()}, False),
    ],
)
def test_a_reply_that_reads_like_an_error(reply: str, options: dict[str, Any], warned: bool) -> None:
    """An agent sends its own error with status 200, and only a ban checks the reply."""
    given = {"turns": ["Hi."], "expect": {"never_says": "refund"}, **options}
    models = {"model": given.pop("model")} if "model" in given else {}
    with ScriptedAgent([reply]) as agent:
        found = one(agent, given, **models)
    assert found.verdict.passed
    assert codes(found) == ["error-reply"] * warned


# Mocks that fit no call


def test_a_mock_that_takes_no_call_of_its_tool(agent: ScriptedAgent) -> None:
    """Its parameter is misspelled, so every call is an error."""
    found = one(agent, {"tools": {"look": lambda att: 1}, "expect": {"says": "Done"}})
    assert (found.verdict.passed, codes(found)) == (True, ["mock-misfit"])
    assert "`att` is missing" in found.verdict_warnings[0].message
    calls = [tool_call("look", att="12"), tool_call("look", at="12"), "Done."]
    with ScriptedAgent(calls) as corrected:
        found = one(corrected, {"tools": {"look": lambda att: 1}, "expect": {"says": "Done"}})
    assert [(each.code, each.note) for each in found.verdict_warnings] == [("mock-misfit", True)]


def test_an_agent_that_only_fails_is_not_questioned() -> None:
    """Without any reply there are no warnings about checks and mocks."""
    with ScriptedAgent([500]) as agent:
        found = one(agent, {"tools": BOTH}, request_timeout_ms=5000)
    assert (found.verdict.status, codes(found)) == (Status.FAILED, [])


# Tools that nothing knows


@pytest.mark.parametrize(
    ("trajectory", "key"),
    [
        ({"forbidden": ["cancel_everything"]}, "trajectory.forbidden"),
        ({"max_calls_per_tool": {"cancel_everything": 1}}, "trajectory.max_calls_per_tool"),
        ({"expected_writes": ["look"], "reads": ["cancel_everything"]}, "trajectory.reads"),
        ({"never_after": [never_after("cancel_everything", "look")]}, "trajectory.never_after"),
        (
            {"match_mode": "contains", "expected": [any_of("cancel_everything", "look")]},
            "trajectory.expected",
        ),
        ({"forbidden": ["cancel_*"]}, "trajectory.forbidden"),
    ],
)
def test_an_unknown_tool(agent: ScriptedAgent, trajectory: dict[str, Any], key: str) -> None:
    """A ban, limit, order or expectation on it passes for the wrong reason, so there is a warning."""
    options = {"tools": {"look": 1}, "trajectory": trajectory}
    found = one(agent, options)
    assert found.verdict.passed
    [warning] = found.verdict_warnings
    assert (warning.code, warning.scenario) == ("unknown-tool", "s0")
    assert warning.message.startswith(f"{key} names tool 'cancel_")
    of_turn = one(
        agent, {**options, "trajectory": None, "turns": [{"user_message": "Look.", "trajectory": trajectory}]}
    )
    assert of_turn.verdict_warnings[0].message.startswith(f"turns[0].{key} ")


def test_tools_that_are_known(agent: ScriptedAgent) -> None:
    """Tools are known from any scenario's mocks, the agent's tools or schemas, or a call in the run."""
    ban = {"trajectory": {"forbidden": ["cancel_everything"]}, "tools": {"look": 1}}
    mocked = ran(agent, ban, {"skip": True, "tools": {"cancel_everything": 1}})
    assert codes(mocked.scenarios[0]) == []
    sent = {"type": "function", "function": {"name": "cancel_everything", "parameters": {}}}
    for settings in ({"tools": ["cancel_everything"]}, {"body": {"tools": [sent]}}):
        config = {"agent": {"endpoint": agent.endpoint, **settings}}
        [found] = run_scenarios([scenario("s", turns=["Look."], **ban)], config=config).scenarios
        assert codes(found) == []
    called = ran(
        agent,
        {"trajectory": {"forbidden": ["lo*"]}, "turns": ["Hi."]},
        {"tools": {}, "trajectory": {"max_calls": 9}},
        unmocked_tools="passthrough",
    )
    assert [codes(each) for each in called.scenarios] == [[], []]


@pytest.mark.parametrize(
    ("trajectory", "key"),
    [
        ({"forbidden": ["create_bookings"]}, "trajectory.forbidden"),
        ({"max_calls_per_tool": {"create_bookng": 1}}, "trajectory.max_calls_per_tool"),
        ({"expected": ["look"], "reads": ["creat_booking"]}, "trajectory.reads"),
        ({"expected_writes": ["look", "craete_booking"]}, "trajectory.expected_writes"),
        ({"before": ["look", "create_booking_"]}, "trajectory.before"),
    ],
)
def test_a_misspelt_tool_is_refused(agent: ScriptedAgent, trajectory: dict[str, Any], key: str) -> None:
    """A name within two letters of a mock is an error before the run; other scenarios run."""
    if "before" in trajectory:
        from agentest import before

        trajectory = {"before": [before(*trajectory["before"])]}
    tools = {"create_booking": 1, "look": 1}
    wrong, right = ran(
        agent, {"trajectory": trajectory, "tools": tools}, {"check": print, "tools": {"look": 1}}
    ).scenarios
    assert (wrong.verdict.status, right.verdict.status) == (Status.ERRORED, Status.PASSED)
    [reason] = wrong.verdict.reasons
    assert reason.kind is ReasonKind.FILE
    assert f"scenario 's0': {key} names tool " in reason.message
    assert f"{Path(__file__).name}:" in reason.message
    assert "did you mean 'create_booking'?" in reason.message
    assert len(agent.requests) == 2


@pytest.mark.parametrize(
    ("tools", "banned"),
    [
        ({"get_user": 1, "get_users": 1}, ["get_users"]),  # both are known
        ({"ls": 1}, ["rm"]),  # short names that share nothing
        ({"get_user": 1}, ["get_us*"]),  # a glob is no misspelling
        ({"get_price": 1, "lock_door": 1}, ["set_price", "unlock_door"]),  # two tools
        ({"get_user": 1}, ["get_orders"]),
    ],
)
def test_other_names_are_not_misspellings(
    agent: ScriptedAgent, tools: dict[str, Any], banned: list[str]
) -> None:
    """A known name, or that of a different tool, is accepted."""
    found = one(agent, {"turns": ["Hi."], "tools": tools, "trajectory": {"forbidden": banned}})
    assert found.verdict.passed


# Mocks


def test_mocks_that_were_never_called(agent: ScriptedAgent) -> None:
    """One warning per scenario lists them all, even with several conversations."""
    options = {"tools": {**BOTH, "pay": 1}, "conversations_per_scenario": 2, "check": print}
    found = one(agent, options, strict=True)
    [warning] = found.verdict_warnings
    assert (warning.code, warning.note, found.verdict.passed) == ("mock-never-called", True, True)
    assert warning.message.startswith("2 of 3 mocks were never called (book, pay)")
    assert warning.tools == ("book", "pay")
    strict = {"match_mode": "strict", "expected": ["look"]}
    assert codes(one(agent, {"tools": BOTH, "trajectory": strict})) == ["mock-never-called"]


@pytest.mark.parametrize(
    ("options", "note"),
    [
        ({}, False),
        ({"turns": ["Look."]}, True),
        ({"expect": {"says": "Done"}}, True),
        ({"goal": "g", "model": ScriptedModel()}, True),
    ],
)
def test_an_idle_mock_questions_a_verdict_that_nothing_else_decides(
    agent: ScriptedAgent, options: dict[str, Any], note: bool
) -> None:
    """It is a note if another mock was called, or if a check or a judge decides."""
    models = {"model": options["model"]} if "model" in options else {}
    given = {"turns": ["Hi."], "tools": BOTH, **options}
    given.pop("model", None)
    other = {"tools": {"look": 1}, "expect": {"says": "Done"}}  # shows that calls are seen
    found = ran(agent, given, other, **models).scenarios[0]
    [idle] = [each for each in found.verdict_warnings if each.code == "mock-never-called"]
    assert idle.note is note


SAYS = {"expect": {"says": "Done"}}
LOOKS = {"turns": ["Look."], "tools": {"look": 1}, **SAYS}
GREETS = {"turns": ["Hi."], "tools": {"look": 1}, **SAYS}


def write_scenarios(project: Project, **files: dict[str, Any]) -> None:
    """Write a file for each scenario."""
    for name, options in files.items():
        project.scenario(f"scenario({name!r}, **{options!r})", f"{name}.sim.py")


@pytest.mark.parametrize(
    ("changes", "passes"),
    [
        ({}, True),
        ({"expect": None}, False),
        ({"trajectory": {"expected": []}}, False),
        ({"trajectory": {"forbidden": ["look"]}}, False),
        ({"consent": {"look": "yes"}}, False),
        ({"state": {"n": 1}, "final_state": {"n": 1}}, False),
    ],
)
def test_a_picked_scenario_without_calls(project: Project, changes: dict[str, Any], passes: bool) -> None:
    """Others may show the agent's calls, so only a verdict that may rest on calls is questioned."""
    with ScriptedAgent(looking) as agent:
        project.config(agent.endpoint, strict=True)
        write_scenarios(project, quiet={**GREETS, **changes}, other=GREETS)
        done = project.run("--scenario", "quiet")
        assert done.returncode == (0 if passes else 2), done.stdout + done.stderr
    [warning] = [each for each in project.results["summary"]["warnings"] if each["code"] == "no-call-seen"]
    assert warning.get("note", False) == passes


def test_a_name_that_only_a_scenario_left_out_may_prove(project: Project, agent: ScriptedAgent) -> None:
    """An unknown tool is a note in a selection; else the scenario's second line says what it is now."""
    project.config(agent.endpoint, strict=True)
    write_scenarios(project, bans={**LOOKS, "trajectory": {"forbidden": ["nowhere"]}}, other=LOOKS)
    picked = project.run("--scenario", "bans")
    assert picked.returncode == 0, picked.stdout + picked.stderr
    assert "Strict mode" not in picked.stdout
    done = project.run()
    assert done.returncode == 2, done.stdout + done.stderr
    assert "now errored: unknown-tool" in done.stdout
    assert "Strict mode" in done.stdout


@pytest.mark.parametrize(
    ("selection", "passes"),
    [
        (("--scenario", "greets"), True),
        (("--file", "greets"), True),
        (("--tag", "a"), True),
        (("greets.sim.py",), True),
        (("greets.sim.py::greets",), True),
        (("--file", "sim"), False),
        (("--scenario", "e"), False),
        ((".",), False),
        (("--scenario", "greets", "--scenario", "other"), False),
        (("--file", "greets", "--shard", "1/2", "--shard-by", "counts"), False),
    ],
)
def test_what_counts_as_picked(
    project: Project, agent: ScriptedAgent, selection: tuple[str, ...], passes: bool
) -> None:
    """All selections count alike, if they leave out a scenario that could run."""
    project.config(agent.endpoint, strict=True)
    write_scenarios(project, greets={**GREETS, "tags": ["a"]}, other=GREETS)
    project.scenario('scenario("none", turns=["Hi."], skip="later", tools={"look": 1})', "greets_none.sim.py")
    assert project.run(*selection).returncode == (0 if passes else 2)


def test_a_rerun_of_failed_scenarios_picks_nothing(project: Project, agent: ScriptedAgent) -> None:
    """Otherwise the warning would vanish with the second run."""
    project.config(agent.endpoint, strict=True)
    write_scenarios(project, greets=GREETS, other=GREETS, plain={"turns": ["Hi."], **SAYS})
    assert project.run().returncode == 2
    for options in (["--last-failed"], ["--failed-first"], ["--last-failed", "--scenario", "greets"]):
        assert project.run(*options).returncode == 2, options


@pytest.mark.parametrize(
    "trajectory",
    [
        {"forbidden": ["book"]},
        {"forbidden": [call("b*", id=1)]},
        {"max_calls_per_tool": {"book": 0}},
        {"never_after": [never_after("book", "look")]},
        {"max_calls": 0},
        {"expected": []},
        {"match_mode": "contains", "expected": [any_of("look", "book")]},
    ],
)
def test_mocks_that_need_not_be_called(agent: ScriptedAgent, trajectory: dict[str, Any]) -> None:
    """A mock of a banned tool, or one with an alternative, may stay unused."""
    found = one(agent, {"tools": BOTH, "trajectory": trajectory})
    assert "mock-never-called" not in codes(found)


@pytest.mark.parametrize(("last", "warned"), [({"trajectory": {"expected": []}}, False), ({}, True)])
def test_mocks_of_turns_without_calls(last: dict[str, Any], warned: bool) -> None:
    """A mock may stay unused if no turn may call a tool, but not if one turn may."""
    first = {"user_message": "Hi.", "trajectory": {"expected": []}}
    with ScriptedAgent(["Hello."]) as quiet:
        found = one(quiet, {"turns": [first, {"user_message": "Bye.", **last}], "tools": {"book": 1}})
    assert ("mock-never-called" in codes(found)) is warned


def test_a_call_without_readable_arguments_is_a_warning() -> None:
    """It meets no expectation, even one of only the tool's name."""
    broken = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{broken"}}
    with ScriptedAgent([{"tool_calls": [broken]}, "Done.", {"tool_calls": [broken]}, "Done."]) as agent:
        found = one(agent, {"tools": {"look": {}}, "trajectory": {"expected": ["look"]}})
        reply = one(agent, {"tools": {"look": {}}, "expect": {"says": "Done"}}, strict=True)
    assert (found.verdict.status, reply.verdict.status) == (Status.FAILED, Status.ERRORED)
    assert codes(found)[0] == codes(reply)[0] == "invalid-arguments"
    for each in (found, reply):
        assert "'{broken'. Fix the arguments" in each.verdict_warnings[0].message


def test_mocks_that_raised(agent: ScriptedAgent) -> None:
    """A bug in a mock is a warning with its place; a ToolError is not a bug."""

    def broken(args: dict[str, Any]) -> Any:
        return args["id"]

    def closed(args: dict[str, Any]) -> Any:
        raise ToolError("closed")

    line = broken.__code__.co_firstlineno + 1
    found = one(agent, {"tools": {"look": broken}, "turns": ["Look.", "Look."], "check": print})
    assert found.conversations[0].conversation.tool_calls[0].result == {"error": "'id'"}
    [warning] = found.verdict_warnings
    assert (warning.code, warning.tools) == ("mock-raised", ("look",))
    assert warning.message.startswith(
        f"the mock of tool 'look' raised KeyError at {Path(__file__).name}:{line} (2 times): 'id'"
    )
    for deliberate in (closed, ToolError("closed"), sequence(ValueError("closed"))):
        assert codes(one(agent, {"tools": {"look": deliberate}, "check": print})) == []


# Reports


def check_journal(project: Project) -> None:
    """Check that the journal equals results.json, also in the order of scenarios."""
    folder = project.root / ".agentest"
    journal, results = read_json(folder / "journal.jsonl"), to_json(read_results(folder / "results.json"))
    assert timeless(journal) == timeless(results)  # times are rounded before or after they are summed up


SCENARIOS = """
for n in range(5):
    scenario(f"looks {n}", turns=["Look."], tools={"look": 1, "pay": 1}, check=lambda c: bool(c.turns))
scenario("bans", turns=["Hi."], trajectory={"forbidden": ["cancel_everything"]})
scenario("fine", turns=["Look."], tools={"look": 1}, check=lambda c: bool(c.turns))
scenario("replies", turns=["Hi."])
"""


def test_every_report_shows_them(project: Project, agent: ScriptedAgent) -> None:
    """Reports summarize warnings of many scenarios; results.json and journal have each of them."""
    summary = project.root / "summary.md"
    project.config(agent.endpoint, reporters=["console", "json", "junit", "github-actions"])
    project.scenario(SCENARIOS)
    done = project.run(env={"GITHUB_STEP_SUMMARY": str(summary)})
    assert done.returncode == 0, done.stdout + done.stderr
    validate(project.results, SCHEMA)
    found = project.results["summary"]["warnings"]
    assert [(each["code"], each["scenario"], each.get("note")) for each in found] == [
        *(("mock-never-called", f"looks {n}", True) for n in range(5)),
        ("unknown-tool", "bans", None),
        ("only-replies", "replies", None),
    ]
    assert all("message" in each for each in found)
    check_journal(project)
    [line] = [row for row in done.stdout.splitlines() if row.startswith("warnings   ")]
    assert "1 unknown-tool" in line
    assert "5 mock-never-called (-v shows them)" in line
    for text in (project.run("-v").stdout, project.agentest("show", "-v").stdout):
        assert text.count("mock of tool 'pay' was never called") >= 1
        assert "Warning: unknown-tool (1 scenario)\n  'bans': trajectory.forbidden names tool" in text
        assert "In strict mode, its scenario is errored." in text
        assert "Note: mock-never-called (5 scenarios): 'looks 0', 'looks 1', 'looks 2' and 2 more: " in text
    annotations = [line for line in done.stdout.splitlines() if line.startswith("::warning")]
    assert not [line for line in annotations if "title=mock-never-called" in line]
    assert "file=a.sim.py,line=5,title=unknown-tool" in "\n".join(annotations)
    _, folded = summary.read_text().split("<summary>Notes</summary>")
    assert "- **mock-never-called (5 scenarios)**" in folded
    junit = ElementTree.parse(project.root / ".agentest" / "junit.xml")
    properties = [(str(each.get("name")), str(each.get("value"))) for each in junit.iter("property")]
    [value] = [value for name, value in properties if name == "warning.unknown-tool"]
    assert "cancel_everything" in value
    assert [name for name, _ in properties].count("note.mock-never-called") == 5
    output = "".join(each.text or "" for each in junit.iter("system-out"))
    assert "warning: unknown-tool: " in output
    assert "mock-never-called" not in output


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_strict_mode(project: Project, agent: ScriptedAgent, workers: str) -> None:
    """By default each warning makes its scenario errored, even one found for the whole run; notes do not."""
    project.write(
        "agentest.config.yaml",
        f"agent: {{endpoint: '{agent.endpoint}'}}\nreporters: [console, json, junit]\n",
    )
    project.scenario(SCENARIOS)
    done = project.run("--workers", workers)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "a warning makes its scenario errored. --no-strict only shows it." in done.stdout
    statuses = {each["name"]: each["status"] for each in project.results["scenarios"]}
    assert [name for name, status in statuses.items() if status == "errored"] == ["bans", "replies"]
    assert [*statuses.values()].count("passed") == 6
    [reason] = project.scenario_result("bans")["reasons"]
    assert (reason["status"], reason["kind"]) == ("errored", "warning")
    assert reason["message"].startswith("unknown-tool: trajectory.forbidden names tool 'cancel_everything'")
    check_journal(project)
    assert done.stdout.count("passed   fine") == 1
    assert "2 errored, 6 passed" in done.stdout
    junit = ElementTree.parse(project.root / ".agentest" / "junit.xml")
    assert len(list(junit.iter("error"))) == 2
    assert project.agentest("show").returncode == 0
    again = project.run("--last-failed", "--no-strict")
    assert again.returncode == 0
    assert len(project.results["scenarios"]) == 2
    again_found = {each["code"] for each in project.results["summary"]["warnings"]}
    assert again_found == {"unknown-tool", "no-call-seen", "only-replies"}


def test_strict_mode_and_failures(project: Project, agent: ScriptedAgent) -> None:
    """A failure outranks warnings; a silent agent's vacuous passes are errored."""
    project.config(agent.endpoint, strict=False)
    project.scenario(
        'scenario("fails", turns=["Hi."], trajectory={"expected": ["look"]}, tools={"look": 1})\n'
        'scenario("silent", turns=["Hi."], trajectory={"forbidden": ["look"]})\n'
    )
    done = project.run("--strict")
    assert done.returncode == 1
    failed, silent = project.results["scenarios"]
    assert (failed["status"], silent["status"]) == ("failed", "errored")
    assert silent["reasons"][0]["message"].startswith("no-call-seen: not one tool call of agent 'agent'")
    assert silent["conversations"][0]["trajectory"]["vacuous"] is True
    assert [each["code"] for each in silent["verdictWarnings"]] == ["no-call-seen"]


def test_a_resumed_run_knows_more(project: Project, agent: ScriptedAgent) -> None:
    """Warnings of an interrupted run are checked again when the rest has run."""
    project.config(agent.endpoint, strict=True, unmocked_tools="passthrough")
    project.scenario(
        'scenario("bans", turns=["Hi."], trajectory={"forbidden": ["look"]})\n'
        'scenario("fails", turns=[{"user_message": "Hi.", "expect": {"contains": "Hello"}}])\n'
        'scenario("looks", turns=["Look."], check=lambda c: bool(c.turns))\n'
    )
    assert project.run("--fail-fast", "--concurrency", "1").returncode == 1
    statuses = [each["status"] for each in project.results["scenarios"]]
    assert statuses == ["errored", "failed", "skipped"]
    assert "no-call-seen" in project.scenario_result("bans")["failures"][1]
    resumed = project.run("--resume")
    assert resumed.returncode == 1, resumed.stdout + resumed.stderr
    statuses = [each["status"] for each in project.results["scenarios"]]
    assert statuses == ["passed", "failed", "passed"]
    assert project.results["summary"]["warnings"] == []
    assert "1 failed, 2 passed" in resumed.stdout
    check_journal(project)


def test_shards_that_know_more_together(project: Project, agent: ScriptedAgent) -> None:
    """A shard is errored if it cannot see a call; merged with the shard that did, it passes."""
    project.config(agent.endpoint, strict=True, unmocked_tools="passthrough")
    project.scenario(
        'scenario("bans", turns=["Hi."], trajectory={"forbidden": ["look"]})\n'
        'scenario("looks", turns=["Look."], check=lambda c: bool(c.turns))\n'
    )
    done = [project.run("--shard", f"{k}/2", "--shard-by", "counts") for k in (1, 2)]
    assert sorted(each.returncode for each in done) == [0, 2], [each.stdout for each in done]
    merged = project.agentest("merge", ".agentest/runs", "--reporter", "console", "--reporter", "junit")
    assert merged.returncode == 0, merged.stdout + merged.stderr
    assert [each["status"] for each in project.results["scenarios"]] == ["passed", "passed"]
    assert project.results["summary"]["warnings"] == []
    check_journal(project)


def test_strict_mode_ignores_scenarios_without_a_verdict() -> None:
    interrupted = Reason(Status.ERRORED, ReasonKind.INTERRUPTED, "interrupted")
    result = ScenarioResult(
        agent="agent", name="s", file="a", line=1, tags=(), verdict=Verdict(Status.ERRORED, (interrupted,))
    )
    warning = VerdictWarning(code=WarningCode.MOCK_RAISED, scenario="s", message="m")
    found = questioned(result, [warning], strict=True)
    assert (found.verdict_warnings, found.verdict.reasons) == ((warning,), (interrupted,))
