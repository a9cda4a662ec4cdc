"""Scenarios written as data: the same scenarios as in Python, and errors with file, line and key."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agentest.scenarios.discovery import DiscoveredScenarios, discover, parse_path_choice, select_by_path
from agentest.scenarios.trajectory import ExpectedCall

INCLUDE = ["**/*.sim.py", "**/*.sim.yaml", "**/*.sim.yml"]


def found_in(root: Path, text: str, name: str = "a.sim.yaml") -> DiscoveredScenarios:
    (root / name).write_text(text, encoding="utf-8")
    return discover(root, INCLUDE, [])


PYTHON = """\
import re
from agentest import HttpResponse, ToolError, approx, call, exactly, fault, optional, scenario, sequence

scenario(
    "everything",
    turns=[
        "Refund order 17.",
        {"user_message": "Now.", "expect": {"says": "done", "regex": re.compile("ok")}},
    ],
    tools={
        "get_order": {"status": "delivered"},
        "find": sequence({"n": 1}, ToolError("down"), HttpResponse(404, {"why": "gone"})),
        "card": ToolError("refused"),
        "log": {"error": "none"},
    },
    trajectory={
        "match_mode": "contains",
        "expected": [
            "get_order",
            {"name": "refund", "args": {"amount": approx(5, abs=0.1), "note": optional("x")}},
        ],
        "forbidden": [{"name": "delete_*"}],
        "before": ["get_order", "refund"],
    },
    expect={"never_says": re.compile("credit card", re.IGNORECASE)},
    state={"orders": {"17": {"status": "delivered"}}},
    final_state={"orders.17.status": "refunded"},
    criteria=["Is polite.", {"text": "Says the amount.", "required": False}],
    expected_outcome="The order is refunded.",
    thresholds={"pass_rate": 0.9},
    tags=["refund"],
    model_faults=[fault("rate_limit", at=2)],
    date="2024-05-15",
    session={"state": {"tier": "gold"}},
    agent="desk",
)
scenario(
    "a user",
    profile="Short.",
    goal="A refund.",
    knowledge=["Order 17."],
    user_tools={"look": sequence(True, False)},
    repeat="3..5",
    max_turns=4,
)
"""
YAML = """\
scenarios:
  - name: everything
    turns:
      - Refund order 17.
      - userMessage: Now.
        expect: {says: done, regex: ok}
    tools:
      get_order: {status: delivered}
      find:
        sequence:
          - {n: 1}
          - error: down
          - httpResponse: {status: 404, body: {why: gone}}
      card: {error: refused}
      log: {exactly: {error: none}}
    trajectory:
      matchMode: contains
      expected:
        - get_order
        - {name: refund, args: {amount: {approx: 5, abs: 0.1}, note: {optional: x}}}
      forbidden: [{name: delete_*}]
      before: [get_order, refund]
    expect: {neverSays: {regex: credit card, ignoreCase: true}}
    state: {orders: {"17": {status: delivered}}}
    finalState: {orders.17.status: refunded}
    criteria:
      - Is polite.
      - {text: Says the amount., required: false}
    expectedOutcome: The order is refunded.
    thresholds: {passRate: 0.9}
    tags: [refund]
    modelFaults: [{kind: rate_limit, at: 2}]
    date: 2024-05-15
    session: {state: {tier: gold}}
    agent: desk
  - name: a user
    profile: Short.
    goal: A refund.
    knowledge: [Order 17.]
    user_tools: {look: {sequence: [true, false]}}
    repeat: 3..5
    max_turns: 4
"""


def test_data_defines_the_same_scenarios_as_python(tmp_path: Path) -> None:
    """Every option with a form in data gives the same value as in Python."""
    (tmp_path / "python").mkdir()
    (tmp_path / "data").mkdir()
    python = found_in(tmp_path / "python", PYTHON, "a.sim.py")
    data = found_in(tmp_path / "data", YAML, "a.sim.yml")
    assert python.problems == data.problems == []
    for left, right in zip(python.scenarios, data.scenarios, strict=True):
        same_place = replace(right, file=left.file, line=left.line)
        assert repr(left) == repr(same_place)  # errors are equal only to themselves
    assert [each.line for each in data.scenarios] == [2, 36]


BAD = """\
defaults:
  tools: {find: {ok: true}}
  maxTurns: many
scenarios:
  - name: good
    goal: g
    maxTurns: 2
  - name: bad
    turns:
      - Hello
      - userMessage: And?
        expect:
          contain: x
    tools:
      get: {a: 1}
      pay:
        sequence:
          - http_response: {statu: 500}
    trajectory:
      expected:
        - find
        - name: get
          argz: {a: 1}
    tags: one
    gaol: g
  - turns: [x]
  - 5
  - name: code
    goal: g
    check: my_check
    maxTurns: 2
  - {name: by default, goal: g}
"""


def test_all_mistakes_are_reported_at_once_each_with_its_line(tmp_path: Path) -> None:
    """Each names the line of its key; the other scenarios of the file still run."""
    found = found_in(tmp_path, BAD)
    assert [each.name for each in found.scenarios if not each.refused] == ["good"]
    assert found.broken == ()
    assert {(line, message.split(": ", 1)[1].partition(";")[0]) for _, line, message in found.problems} == {
        (3, "max_turns: expected a whole number of at least 1, found 'many'"),
        (13, "turns[1].expect: unknown key `contain`"),
        (18, "tools['pay'].sequence[0].http_response: unknown key `statu`"),
        (23, "trajectory.expected[1]: unknown key `argz`"),
        (24, "tags: expected a list of texts, found 'one'"),
        (25, "unknown option `gaol`"),
        (26, "name: is missing"),
        (27, "expected options of a scenario, found an int"),
        (30, "check: is a function"),
    }
    assert all(message.count("did you mean") == 1 for _, _, message in found.problems if "unknown" in message)


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("", 1, "write the list of scenarios below a key `scenarios:`; the file is empty"),
        ("- name: x\n", 1, "write the list of scenarios below a key `scenarios:`; found a list"),
        ("\nscenario:\n  - name: x\n", 2, "the file: unknown key `scenario`; did you mean `scenarios`?"),
        (
            "name: x\nturns: [Hi]\n",
            1,
            "valid are: `defaults`, `scenarios`\n  # for example\n  scenarios:\n    - name: ",
        ),
        ("scenarios: []\n", 1, "scenarios: expected a list of scenarios that is not empty"),
        ("scenarios:\n  - name: x\n    goal: [\n", 4, "the YAML does not parse"),
        ("scenarios:\n  - name: x\n    name: y\n", 3, "the key `scenarios[0].name` is given twice"),
        ("scenarios:\n  - name: x\n    state: {17: a}\n", 3, "is not a text for YAML; put it in quotes"),
        ("defaults:\n  toolz: {}\nscenarios:\n  - name: x\n", 2, "defaults: unknown key `toolz`"),
        ("defaults:\n  name: x\nscenarios:\n  - name: x\n", 2, "defaults: `name` belongs to each scenario"),
    ],
)
def test_a_file_that_cannot_be_read_is_a_broken_file(tmp_path: Path, text: str, line: int, said: str) -> None:
    """It is reported with its line, and other files still run."""
    (tmp_path / "ok.sim.py").write_text("from agentest import scenario\nscenario('ok', goal='g')\n")
    found = found_in(tmp_path, text)
    assert [each.name for each in found.scenarios] == ["ok"]
    [broken] = found.broken
    assert (broken.file, broken.line) == (str(tmp_path / "a.sim.yaml"), line)
    assert said in broken.message


def test_each_makes_a_scenario_of_every_row(tmp_path: Path) -> None:
    """Rows are in the file or in another one; tools are filled before their forms are read."""
    (tmp_path / "orders.csv").write_text("id,status\n17,sent\n18,lost\n", encoding="utf-8")
    text = (
        "scenarios:\n"
        "  - name: order {id}\n    each: orders.csv\n    turns: ['Where is {id}?']\n"
        "    tools: {get: {error: 'order {id} is {status}'}}\n"
        "  - name: row {n}\n    each: [{n: 1}, {n: 2, max_turns: 0}]\n    goal: g\n"
    )
    found = found_in(tmp_path, text)
    assert [(each.name, each.line) for each in found.scenarios] == [
        *(("order 17", 2), ("order 18", 2)),
        *(("row 1", 6), ("row 2", 6)),
    ]
    assert str(found.scenarios[1].tools["get"]) == "order 18 is lost"
    assert tmp_path / "orders.csv" in found.files
    [(_, line, message)] = found.problems
    assert (line, message[:40]) == (6, "scenario 'row 2', row 2: max_turns: expe")


def test_unquoted_dates_are_texts(tmp_path: Path) -> None:
    """They match the dates of calls, which are texts in JSON, and may be answers of mocks."""
    found = found_in(
        tmp_path,
        "scenarios:\n- name: s\n  turns: [x]\n  date: 2024-05-15\n  tools: {find: {day: 2024-05-15}}\n"
        "  trajectory: {expected: [{name: book, args: {day: 2024-05-15, at: 2024-05-15T10:00:00Z}}]}\n",
    )
    [made] = found.scenarios
    assert made.refused is None
    assert (made.date, made.tools["find"]) == ("2024-05-15", {"day": "2024-05-15"})
    [expected] = made.trajectory[0].expected or ()
    assert isinstance(expected, ExpectedCall)
    assert expected.args == {"day": "2024-05-15", "at": "2024-05-15T10:00:00Z"}


def test_a_line_selects_the_scenario_around_it(tmp_path: Path) -> None:
    """`PATH:LINE` selects a scenario by any of its lines."""
    found = found_in(tmp_path, YAML)
    selected = {
        line: [
            each.name
            for each in select_by_path(found.scenarios, parse_path_choice(f"a.sim.yaml:{line}", tmp_path))
        ]
        for line in (1, 2, 20, 35, 36, 40)
    }
    first, second = ["everything"], ["a user"]
    assert selected == {1: [], 2: first, 20: first, 35: first, 36: second, 40: second}


def test_only_sim_yaml_is_a_scenario_file(tmp_path: Path) -> None:
    """A broad `include` does not make other YAML files scenarios."""
    for name in ("data.yaml", "agentest.config.yaml", "b.sim.yaml.txt"):
        (tmp_path / name).write_text("scenarios: 5\n")
    assert discover(tmp_path, ["**/*"], []).broken == ()
