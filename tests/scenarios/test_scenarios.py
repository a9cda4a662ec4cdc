"""Scenario files: options in both spellings, and errors with their location."""

from __future__ import annotations

import asyncio
import re
import threading
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from agentest import call, scenario, sequence
from agentest.domain.metrics import BUILTIN
from agentest.mocks.binding import BoundFunction, MockSequence
from agentest.scenarios.definition import collect_scenarios
from agentest.scenarios.discovery import discover
from agentest.scenarios.trajectory import ExpectedCall, Trajectory
from agentest.support.errors import ScenarioError

HERE = str(Path(__file__).resolve())


def problem(*arguments: Any, **options: Any) -> str:
    """The error of a wrong scenario, without its place."""
    with pytest.raises(ScenarioError) as caught:
        scenario(*(arguments or ("s",)), **options)
    place, _, said = str(caught.value).partition(": scenario ")
    assert re.fullmatch(re.escape(HERE) + r":\d+", place)
    return said


def said(role: Any, **more: Any) -> dict[str, Any]:
    """A message of a history."""
    return {"role": role, "content": "Hello.", **more}


# Options


def test_a_goal_is_enough() -> None:
    """A scenario with only a goal leaves everything else to the configuration."""
    made = scenario("s", goal="g")
    assert (made.name, made.goal, made.profile, made.knowledge) == ("s", "g", "", ())
    assert (made.conversations_per_scenario, made.max_turns, made.agent, made.metrics) == (None,) * 4
    assert (made.turns, made.tools, made.trajectory, made.thresholds) == ((), {}, (), {})
    assert (made.tags, made.skip, made.scripted, made.user_prompt_template) == ((), None, False, None)


def test_both_spellings() -> None:
    """Every option means the same in camelCase."""
    snake = scenario(
        "s",
        goal="g",
        user_prompt_template="You are {{profile}}.",
        conversations_per_scenario=2,
        max_turns=4,
        thresholds={"goal_completion": 1},
        metrics=["goal_completion"],
    )
    camel = scenario(
        "s",
        goal="g",
        userPromptTemplate="You are {{profile}}.",
        conversationsPerScenario=2,
        maxTurns=4,
        thresholds={"goalCompletion": 1},
        metrics=["goalCompletion"],
    )
    options = {"userPromptTemplate": "You are {{profile}}.", "conversations_per_scenario": 2, "maxTurns": 9}
    judged = {"thresholds": {"goalCompletion": 1}, "metrics": ["goalCompletion"]}
    mapping = scenario("s", {**options, **judged, "goal": "other"}, goal="g", maxTurns=4)
    for name in type(snake).__slots__:
        assert name == "line" or getattr(snake, name) == getattr(camel, name) == getattr(mapping, name)
    with pytest.raises(TypeError, match="or a mapping of options, not 'g'"):
        scenario("s", "g")  # type: ignore[arg-type]


def test_mocks_and_assertions_are_aliases() -> None:
    """`mocks` and `assertions` mean the same as `tools` and `trajectory`."""
    ours = scenario("s", goal="g", tools={"t": 1}, trajectory={"match_mode": "contains", "expected": ["t"]})
    original = scenario(
        "s",
        goal="g",
        mocks={"tools": {"t": 1}},
        assertions={"toolCalls": {"matchMode": "contains", "expected": ["t"]}},
    )
    assert (original.tools, original.trajectory) == (ours.tools, ours.trajectory)
    assert ours.trajectory == (Trajectory("contains", (ExpectedCall("t"),)),)


def test_knowledge_is_texts_or_objects() -> None:
    """Knowledge may be given as texts or as objects."""
    assert scenario("s", goal="g", knowledge=["a", {"content": "b"}]).knowledge == ("a", "b")


def test_turns_make_a_scenario_scripted() -> None:
    """With `turns`, profile and goal are optional."""
    made = scenario(
        "s",
        turns=[
            "hello",
            {"user_message": "book", "trajectory": {"max_calls": 1}, "expect": {"contains": "ok"}},
            {"userMessage": "bye", "assertions": {"toolCalls": {"maxCalls": 1}}},
        ],
    )
    assert made.scripted
    assert [turn.user_message for turn in made.turns] == ["hello", "book", "bye"]
    assert made.turns[1].trajectory == made.turns[2].trajectory == (Trajectory(max_calls=1),)
    assert made.turns[1].expect is not None
    assert made.turns[1].expect.contains == ("ok",)


@pytest.mark.parametrize(
    ("given", "skip"), [(None, None), (False, None), (True, "skip=True"), ("later", "later")]
)
def test_skip_is_true_or_a_reason(given: Any, skip: str | None) -> None:
    """`skip` is true, or the reason."""
    assert scenario("s", goal="g", skip=given).skip == skip


def test_none_means_unset() -> None:
    """An option that is None counts as unset, in either spelling."""
    names = ("profile", "turns", "tools", "max_turns", "maxTurns", "userPromptTemplate", "tags", "agent")
    for name in names:
        assert scenario("s", goal="g", **{name: None}).goal == "g"


def test_a_scenario_is_immutable() -> None:
    """No attribute of a scenario can be set."""
    made: Any = scenario("s", goal="g")
    with pytest.raises(FrozenInstanceError):
        made.goal = "other"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "'s': has neither `goal` nor `turns`; give a goal for a simulated user, or turns for a script"),
        ({"goal": "  "}, "`goal` is empty; give a goal"),
        ({"goal": 5}, "goal: expected a text, found 5"),
        ({"goal": "g", "golas": "g"}, "unknown option `golas`; did you mean `goal`?"),
        ({"turns": ["a"], "says": ["b"]}, "unknown option `says`; did you mean `expect`?"),
        ({"turns": ["a"], "forbidden": ["b"]}, "unknown option `forbidden`; did you mean `trajectory`?"),
        ({"goal": "g", "maxTurn": 3}, "unknown option `maxTurn`; did you mean `max_turns`?"),
        ({"goal": "g", "max_turns": 1, "maxTurns": 1}, "`max_turns` is given twice, in both spellings"),
        ({"goal": "g", "max_turns": 0}, "max_turns: expected a whole number of at least 1, found 0"),
        ({"goal": "g", "maxTurns": 1.5}, "max_turns: expected a whole number of at least 1, found 1.5"),
        ({"goal": "g", "conversations_per_scenario": True}, "conversations_per_scenario: expected a whole"),
        ({"goal": "g", "profile": ["p"]}, "profile: expected a text or persona(…), found list"),
        ({"goal": "g", "knowledge": "fact"}, "knowledge: expected a list of texts, found 'fact'"),
        ({"goal": "g", "knowledge": ["a", ""]}, "knowledge[1]: is empty"),
        (
            {"goal": "g", "knowledge": [{"contents": "a"}]},
            "knowledge[0]: unknown key `contents`; did you mean",
        ),
        ({"goal": "g", "knowledge": [5]}, "knowledge[0]: expected a text, found 5"),
        ({"goal": "g", "user_prompt_template": ""}, "user_prompt_template: is empty"),
        (
            {"goal": "g", "user_prompt_template": "{{gaol}}"},
            "unknown placeholder {{gaol}}; did you mean `goal`?",
        ),
        ({"goal": "g", "agent": ""}, "agent: is empty"),
        ({"goal": "g", "agent": 5}, "agent: expected a text, found 5"),
        ({"turns": []}, "turns: is empty; give at least one user message"),
        ({"turns": "hello"}, "turns: expected a list of user messages, found 'hello'"),
        ({"turns": [5]}, "turns[0]: expected a text in quotes, or a dict, found 5"),
        ({"turns": [{"message": "x"}]}, "turns[0]: unknown key `message`; did you mean `user_message`?"),
        ({"turns": [{}]}, "turns[0].user_message: is missing"),
        ({"turns": [{"user_message": 5}]}, "turns[0].user_message: expected a text, found 5"),
        (
            {"turns": ["a", {"user_message": "b", "expect": {"regx": "x"}}]},
            "turns[1].expect: unknown key `regx`",
        ),
        (
            {"turns": [{"user_message": "b", "expect": {}}]},
            "turns[0].expect: is empty, so it would check noth",
        ),
        ({"turns": ["a", "b"], "max_turns": 1}, "max_turns: is 1, but the script has 2 turns"),
        ({"turns": ["a"], "patience": 2}, "patience: is for a simulated user"),
        ({"first_message": "a"}, "has neither `goal` nor `turns`; give a goal"),
        ({"goal": "g", "first_message": 5}, "first_message: expected a text, found 5"),
        ({"goal": "g", "first_message": " "}, "first_message: is empty"),
        ({"goal": "g", "first_message": "a", "turns": ["b"]}, "first_message: excludes `turns`; put the"),
        ({"goal": "g", "first_message": "a", "then": "simulate"}, "first_message: excludes `then`"),
        ({"goal": "g", "first_message": "a", "user": "goat"}, "first_message: an adversarial `user` writes"),
        (
            {"goal": "g", "decides": "goal"},
            "decides: expected a list of goal, criteria, metrics, found 'goal'",
        ),
        ({"goal": "g", "decides": ["goals"]}, "decides: found 'goals'; did you mean `goal`?"),
        ({"goal": "g", "decides": [1]}, "decides: found 1; valid are: `criteria`, `goal`, `metrics`"),
        ({"goal": "g", "decides": []}, "decides: is empty, and the scenario has no check, so nothing would"),
        (
            {"goal": "g", "decides": ["criteria"]},
            "decides: names `criteria`, but the scenario has no criteria",
        ),
        (
            {"goal": "g", "decides": ["criteria"], "criteria": [{"text": "a", "required": False}]},
            "decides: names `criteria`, but the scenario has no criteria that could decide",
        ),
        ({"turns": ["a"], "decides": ["goal"]}, "decides: names `goal`, but the scenario has no goal"),
        (
            {"goal": "g", "metrics": [], "decides": ["metrics"]},
            "decides: names `metrics`, but the scenario has",
        ),
        (
            {"goal": "g", "decides": ["goal"], "thresholds": {"helpfulness": 4}},
            "thresholds: helpfulness decides nothing, as `decides` leaves `metrics` out",
        ),
        (
            {"goal": "g", "decides": ["metrics"], "thresholds": {"goal_completion": 1}},
            "thresholds: goal_completion decides nothing, as `decides` leaves `goal` out",
        ),
        (
            {"goal": "g", "decides": ["metrics"], "metrics": ["goal_completion"]},
            "metrics: goal_completion decides nothing, as `decides` leaves `goal` out",
        ),
        (
            {"goal": "g", "headers": {"X-A": 1}},
            "headers: expected a dict from header to text, found {'X",
        ),
        ({"goal": "g", "body": [1]}, "body: expected a dict of fields, found [1]"),
        ({"goal": "g", "body": {"x": b"1"}}, "body: is not JSON: a bytes is not"),
        ({"goal": "g", "attachments": "a.png"}, "attachments: expected a list of files, found 'a.png'"),
        ({"goal": "g", "attachments": [1]}, "attachments[0]: expected a dict, found an int"),
        ({"goal": "g", "attachments": ["nowhere.png"]}, "nowhere.png cannot be read: No such file"),
        ({"goal": "g", "attachments": [{"name": "x"}]}, "attachments[0]: needs either `path`, the place"),
        (
            {"goal": "g", "attachments": [{"url": "https://a/b.png", "path": "b.png"}]},
            "attachments[0]: needs either `path`, the place of a file, or `url`, its address",
        ),
        (
            {"goal": "g", "attachments": [{"url": "https://a/b"}]},
            "is unknown; write it as `mime_type`",
        ),
        ({"goal": "g", "history": "x"}, "history: expected a list of messages, found 'x'"),
        ({"goal": "g", "history": []}, "history: must end with a message of the assistant"),
        ({"goal": "g", "history": ["x"]}, "history[0]: expected a dict, found a str"),
        ({"goal": "g", "history": [said("user")]}, "history: must end with a message of the assistant"),
        ({"goal": "g", "history": [{"role": "user"}]}, "history[0].content: expected a text, found None"),
        (
            {"goal": "g", "history": [said("system")]},
            "history[0].role: expected user, assistant or tool (instructions belong to the agent's own "
            "settings), found 'system'",
        ),
        ({"goal": "g", "history": [said(["user"])]}, "history[0].role: expected user, assistant or tool"),
        ({"goal": "g", "history": [said("user", text="x")]}, "history[0]: unknown key `text`; did you mean"),
        ({"goal": "g", "history": [{"role": "assistant"}]}, "history[0].content: is empty"),
        (
            {"goal": "g", "history": [said("assistant", tool_calls="find")]},
            "history[0].tool_calls: expected a list of calls, found 'find'",
        ),
        (
            {"goal": "g", "history": [said("assistant", tool_calls=[{"nam": "find"}])]},
            "history[0].tool_calls[0]: unknown key `nam`; did you mean `name`?",
        ),
        (
            {"goal": "g", "history": [said("assistant", tool_calls=[{"name": "find", "args": [1]}])]},
            "history[0].tool_calls[0].args: expected a dict of arguments, found [1]",
        ),
        (
            {"goal": "g", "history": [said("assistant", tool_calls=[{"name": "find"}])]},
            "history: ends without the result of find; write `result` into the call, or a message with `role",
        ),
        (
            {"goal": "g", "history": [said("assistant", tool_calls=[{"name": "find"}]), said("user")]},
            "history[1]: comes before the result of find; write",
        ),
        (
            {"goal": "g", "history": [said("tool", tool_call_id="c1")]},
            "history[0].tool_call_id: expected the id of a call that has no result yet, found 'c1'",
        ),
        ({"goal": "g", "then": "simulate"}, "then: goes on after a script; write its `turns`, or"),
        ({"goal": "g", "turns": ["a"], "then": "go on"}, "then: expected 'simulate', found 'go on'"),
        ({"goal": "g", "turns": ["a"], "then": True}, "then: expected 'simulate', found True"),
        ({"turns": ["a"], "then": "simulate"}, "has `then`, but no `goal`; give a goal"),
        (
            {"goal": "g", "turns": ["a", "b"], "then": "simulate", "max_turns": 2},
            "max_turns: is 2, but the script has 2 turns, after which the simulated user goes on",
        ),
        (
            {"turns": [{"user_message": "a", "trajectory": {"max_turns": 1}}]},
            "turns[0].trajectory.max_turns: belongs to the scenario, not to one turn",
        ),
        (
            {
                "turns": [
                    {"user_message": "a", "trajectory": {"max_calls": 1}, "assertions": {"toolCalls": {}}}
                ]
            },
            "turns[0].trajectory: is given twice, as `trajectory` and as `assertions`",
        ),
        ({"goal": "g", "tools": [1]}, "tools: expected a dict from tool name to mock, found a list"),
        ({"goal": "g", "tools": ["pay"]}, "found a list; write {'pay': {'status': 'sent'}}"),
        ({"goal": "g", "tools": [len]}, "found a list; write {'len': len}"),
        ({"turns": [{"role": "user", "content": "x"}]}, "unknown key `role`; did you mean `user_message`?"),
        ({"goal": "g", "trajectory": {"expected": [{"tool": "x"}]}}, "did you mean `name`?"),
        ({"goal": "g", "tags": "smoke"}, "tags: expected a list of texts, found 'smoke'; write ['smoke']"),
        ({"goal": "g", "tools": {5: 1}}, "tools: expected a text, found 5"),
        ({"goal": "g", "tools": {"": 1}}, "tools: is empty"),
        ({"goal": "g", "tools": {}, "mocks": {}}, "tools: is given twice, as `tools` and as `mocks`"),
        ({"goal": "g", "mocks": {"tool": {}}}, "mocks: unknown key `tool`; did you mean `tools`?"),
        (
            {"goal": "g", "tools": {"t": b"x"}},
            "tools['t']: the answer is not JSON-serialisable: a bytes is not",
        ),
        ({"goal": "g", "tools": {"t": float("nan")}}, "tools['t']: the answer is not JSON-serialisable"),
        ({"goal": "g", "tools": {"t": sequence(1, object())}}, "tools['t'], step 1: the answer is not JSON"),
        (
            {"goal": "g", "tools": {"t": ValueError}},
            "tools['t']: is a class; write ValueError(\"…\") to make the tool fail",
        ),
        (
            {"goal": "g", "tools": {"t": lambda a, /: a}},
            "tools['t']: the function cannot be called with a tool's",
        ),
        (
            {"goal": "g", "tools": {"t": lambda args, ctx, more: args}},
            "it takes all arguments in `args`, so nothing is left for `more`",
        ),
        ({"goal": "g", "trajectory": {}}, "trajectory: is empty, so it would check nothing"),
        (
            {"goal": "g", "trajectory": {"expected": ["a"], "match_mod": 1}},
            "unknown key `match_mod`; did you mean",
        ),
        (
            {"goal": "g", "trajectory": {"match_mode": "exact", "expected": []}},
            "trajectory.match_mode: found 'ex",
        ),
        (
            {"goal": "g", "assertions": {"toolCall": {}}},
            "assertions: unknown key `toolCall`; did you mean `tool_",
        ),
        ({"goal": "g", "assertions": {}}, "assertions.tool_calls: is missing"),
        ({"goal": "g", "thresholds": [1]}, "thresholds: expected a dict from metric to number, found [1]"),
        (
            {"goal": "g", "thresholds": {"a": "4"}},
            "thresholds: the threshold of `a` must be a number, but is '4'",
        ),
        ({"goal": "g", "thresholds": {5: 1}}, "thresholds: expected the name of a metric, found 5"),
        (
            {"goal": "g", "metrics": "helpfulness"},
            "metrics: expected a list of metric names, found 'helpfulness'",
        ),
        ({"goal": "g", "metrics": [5]}, "metrics: expected a text, found 5"),
        ({"goal": "g", "tags": "a"}, "tags: expected a list of texts, found 'a'"),
        ({"goal": "g", "tags": [""]}, "tags: is empty"),
        ({"goal": "g", "skip": 0}, "skip: expected a text, found 0"),
        ({"goal": "g", "skip": "no"}, "skip: expected True, False or a reason, found 'no'"),
    ],
)
def test_wrong_options_are_explained(options: dict[str, Any], message: str) -> None:
    """The error has file, line, scenario, option, the value, and the nearest valid name."""
    assert message in problem(**options)


def test_a_script_that_a_simulated_user_continues() -> None:
    """It has what a simulated user has, and `first_message` is the shortest such script."""
    user: dict[str, Any] = {"goal": "g", "patience": 2, "max_turns": 2, "user_tools": {"look": 1}}
    first = scenario("s", firstMessage="Hello.", **user)
    then = scenario("s", turns=["Hello."], then="simulate", **user)
    assert (first.turns, first.is_continued, first.scripted) == (then.turns, True, False)
    assert (then.is_continued, then.scripted, then.patience) == (True, False, 2)


def test_calls_of_a_history_in_both_forms() -> None:
    """Those of chat completions mean the same as calls with their results."""
    call = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"id": 17}'}}
    copied = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": '{"at": null}'},
        said("assistant"),
    ]
    own = {"id": "c1", "name": "find", "args": {"id": 17}, "result": {"at": None}}
    one, two = (
        scenario("s", goal="g", history=copied),
        scenario("s", goal="g", history=[said("assistant", toolCalls=[own])]),
    )
    assert one.history == two.history
    assert [type(each).__name__ for each in one.history] == ["AgentMessage", "ToolResult", "AgentMessage"]


@pytest.mark.parametrize(
    ("name", "said"), [("", "name: is empty"), (None, "name: expected a text"), (5, "found 5")]
)
def test_a_name_must_be_a_non_empty_text(name: Any, said: str) -> None:
    """A scenario's name is a text that is not empty."""
    assert said in problem(name, goal="g")


# Where a scenario stands


def line_of(text: str, mark: str) -> int:
    return next(n for n, line in enumerate(text.splitlines(), 1) if mark in line)


PLACES = """\
import functools
import agentest
from agentest import scenario
from wrapper import booking

scenario("one line", goal="g")  # one line
scenario(  # several lines
    "several lines",
    profile=(
        "p"
    ),
    goal="g",
)
for i in range(2):
    scenario(f"loop {i}", goal="g")  # loop
named = agentest.scenario("attribute", goal="g")  # attribute
functools.partial(scenario, goal="g")("partial")  # partial
booking("helper")


def local(name):
    scenario(name, goal="g")  # local


local("local")
"""
WRAPPER = """\
from agentest import scenario


def booking(name):
    return scenario(
        name,
        goal="g",
    )
"""


def test_a_scenario_knows_its_line(tmp_path: Path) -> None:
    """A scenario's place is the line of `scenario(`, however it is called."""
    (tmp_path / "a.sim.py").write_text(PLACES)
    (tmp_path / "wrapper.py").write_text(WRAPPER)
    found = discover(tmp_path, ["**/*.sim.py"], [])
    assert found.broken == ()
    places = {s.name: (Path(s.file).name, s.line) for s in found.scenarios}
    marks = {name: name.split()[0] if name.startswith("loop") else name for name in places}
    expected = {
        name: ("a.sim.py", line_of(PLACES, f"# {mark}")) for name, mark in marks.items() if name != "helper"
    }
    assert places == {**expected, "helper": ("wrapper.py", line_of(WRAPPER, "return scenario("))}


def test_an_error_points_at_the_scenario_call(tmp_path: Path) -> None:
    """An error points at `scenario(`, even if a helper function calls it."""
    (tmp_path / "wrapper.py").write_text(WRAPPER.replace('"g"', "5"))
    (tmp_path / "a.sim.py").write_text(
        "from agentest import scenario\n\nscenario(\n    's',\n    goal=5,\n)\n"
    )
    (tmp_path / "b.sim.py").write_text("from wrapper import booking\n\n\nbooking('s')\n")
    first, second = discover(tmp_path, ["*.sim.py"], []).scenarios
    assert (first.line, second.line) == (3, 5)
    assert str(first.refused).startswith(
        f"{tmp_path / 'a.sim.py'}:3: scenario 's': goal: expected a text, found 5"
    )
    assert str(second.refused).startswith(f"{tmp_path / 'wrapper.py'}:5: scenario 's': goal: ")


# Registering


def test_a_scenario_outside_discovery_is_not_registered() -> None:
    """A scenario made outside a discovery is just a value."""
    scenario("outside", goal="g")
    with collect_scenarios() as found:
        inside = scenario("inside", goal="g")
    scenario("after", goal="g")
    assert found == [inside]


def test_nested_collections_are_separate() -> None:
    """A collection inside another one keeps its scenarios to itself."""
    with collect_scenarios() as outer:
        first = scenario("first", goal="g")
        with collect_scenarios() as inner:
            second = scenario("second", goal="g")
        third = scenario("third", goal="g")
    assert (outer, inner) == ([first, third], [second])


def test_a_wrong_scenario_is_collected_as_refused() -> None:
    """During collection a refused scenario raises nothing; the collection has it."""
    with collect_scenarios() as found:
        returned = scenario("s", goal=5)  # type: ignore[arg-type]
    assert found == [returned]
    assert "goal: expected a text, found 5" in str(returned.refused)
    assert (returned.name, returned.goal, returned.file) == ("s", "", __file__)


def test_concurrent_collections_are_separate() -> None:
    """Threads and tasks that collect at the same time do not see each other's scenarios."""
    together = threading.Barrier(4)
    found: dict[str, list[str]] = {}

    def collect(name: str) -> None:
        with collect_scenarios() as scenarios:
            together.wait(10)
            scenario(name, goal="g")
            together.wait(10)
            found[name] = [s.name for s in scenarios]

    threads = [threading.Thread(target=collect, args=(str(n),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {str(n): [str(n)] for n in range(4)}

    async def task(name: str) -> list[str]:
        with collect_scenarios() as scenarios:
            await asyncio.sleep(0)
            scenario(name, goal="g")
            await asyncio.sleep(0)
            return [s.name for s in scenarios]

    async def tasks() -> list[list[str]]:
        return list(await asyncio.gather(*(task(str(n)) for n in range(4))))

    assert asyncio.run(tasks()) == [[str(n)] for n in range(4)]


# sequence() and call()


def test_sequence_takes_a_list_or_arguments() -> None:
    """`sequence([a, b])` is `sequence(a, b)`; a tuple is one value."""
    assert sequence([1, 2]) == sequence(1, 2) == MockSequence((1, 2))
    assert sequence((1, 2)).steps == ((1, 2),)
    assert sequence([1], [2]).steps == ([1], [2])
    assert sequence([[1, 2]]).steps == ([1, 2],)


@pytest.mark.parametrize("values", [(), ([],)])
def test_an_empty_sequence_is_refused(values: tuple[Any, ...]) -> None:
    """A sequence without a value raises ValueError."""
    with pytest.raises(ValueError, match="at least one value"):
        sequence(*values)


def test_a_nested_sequence_is_refused() -> None:
    """A sequence cannot contain another one."""
    with pytest.raises(ValueError, match="cannot hold another"):
        sequence(1, sequence(2))


def test_a_sequence_step_may_be_an_exception() -> None:
    """A step may be a value, a function, an exception or an exception class."""
    steps = (1, lambda args: args, ValueError("no"), KeyError)
    made = scenario("s", goal="g", tools={"t": sequence(*steps)}).tools["t"]
    value, function, error, kind = made.steps
    assert (value, error, kind) == (1, steps[2], KeyError)
    assert isinstance(function, BoundFunction)


def test_a_sequence_can_be_shared() -> None:
    """A sequence stores no position: two scenarios may use the same one."""
    shared = sequence(1, 2)
    first = scenario("a", goal="g", tools={"t": shared}).tools["t"]
    second = scenario("b", goal="g", tools={"t": shared}).tools["t"]
    assert first == second == shared


def test_a_mock_is_a_json_value_or_a_function() -> None:
    """Dataclasses and pydantic models count as JSON values."""

    class Slot(BaseModel):
        time: str

    async def find(date: str) -> str:
        return date

    tools = {"a": {"b": [1, None]}, "c": "text", "d": None, "e": Slot(time="9:00"), "f": find}
    made = scenario("s", goal="g", tools=tools).tools
    assert {name: made[name] for name in "acde"} == {name: tools[name] for name in "acde"}
    assert isinstance(made["f"], BoundFunction)


def test_call_compares_named_arguments() -> None:
    """`call` compares the arguments that it names; their names may be any, even `tool` and `name`."""
    assert call("t", tool=1, name=2) == ExpectedCall("t", {"tool": 1, "name": 2}, "partial")
    assert call("t") == ExpectedCall("t", {}, "partial")


@pytest.mark.parametrize(
    ("options", "judged"),
    [
        ({"goal": "to book"}, tuple(BUILTIN)),
        ({"turns": ["Hi"], "expected_outcome": "It is booked."}, ("goal_completion",)),
        ({"turns": ["Hi"]}, ()),
    ],
    ids=["goal", "expected outcome", "neither"],
)
def test_goal_and_outcome_decide_what_is_judged(options: dict[str, Any], judged: tuple[str, ...]) -> None:
    """A goal lets turns be judged; an expected outcome alone lets the whole conversation be judged."""
    assert scenario("s", **options).judged_by(BUILTIN) == judged
