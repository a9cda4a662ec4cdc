"""Which paths of which tasks have scenarios, and which tools were called and failed."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import builders
import pytest
from evalset_documents import case, eval_set, invocation, simulated
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from stored import to_json

from agentest.config.config import Config
from agentest.config.file import LoadedConfig
from agentest.domain.end_reason import Ending
from agentest.domain.results import CaseId, RunResult, Status
from agentest.domain.results.exploration import ExploredCoverage
from agentest.plugins.authoring.commands.coverage import coverage_status, show
from agentest.plugins.authoring.commands.coverage import measure_coverage as measured
from agentest.plugins.authoring.coverage import (
    Coverage,
    CoverageLevel,
    CoveredShare,
    PlacedScenario,
    ToolUsage,
    measure,
    print_text,
    worst,
)
from agentest.runner.plan import Options, Unit, make_plan
from agentest.runner.prepare import RunRequest
from agentest.scenarios.definition import scenario
from agentest.scenarios.discovery import DiscoveredScenarios
from agentest.scenarios.model import Scenario
from agentest.store.run_results import run_of
from agentest.support.errors import ExitCode, UsageError


def place(name: str, *tags: str, **more: Any) -> Scenario:
    return scenario(name, turns=["x"], tags=tags, **more)


def units(*scenarios: Scenario) -> Sequence[Unit]:
    config = Config.model_validate({"agent": {"endpoint": "http://127.0.0.1:9/"}})
    return make_plan(
        LoadedConfig(config, Path()), DiscoveredScenarios(scenarios), Options(), Path.cwd()
    ).units


def covered(scenarios: Sequence[Scenario], *results: RunResult, **more: Any) -> Coverage:
    documents = {f"r{i}.json": run_of(to_json(result)) for i, result in enumerate(results)}
    return measure(units(*scenarios), 0, documents, **{"only_units": False, **more})


def ran(name: str, status: Status = Status.PASSED, *calls: Any, agent: str = "booking") -> Any:
    held = builders.conversation(f"{name}@{agent}-1", [builders.turn(tool_calls=calls)])
    return builders.scenario_result(
        name, [builders.conversation_result(held=held)], verdict=builders.verdict(status), agent=agent
    )


MATRIX = [
    place("pays", "task:refund", "path:happy", tools={"pay": {}, "lookup": {}}),
    place("pays twice", "task:refund", "path:happy"),
    place("finds nothing", "task:lookup", "path:not-found"),
    place("all at once", "task: refund", "task:lookup", "path:down", "urgent"),
    place("a task alone", "task:refund"),
    place("no tags"),
]


def text_of(coverage: Coverage, form: Any = "text") -> str:
    written = io.BytesIO()
    out = io.TextIOWrapper(written, "utf-8")
    show(coverage, form, out, {})
    out.flush()
    return written.getvalue().decode()


def test_tags_make_the_matrix() -> None:
    """A scenario covers the cells of all its tasks and paths; cells without one are the gaps."""
    found = covered(MATRIX)
    assert found.tasks == ("refund", "lookup")
    assert found.paths == ("happy", "not-found", "down")
    names = {cell: [s.name for s in scenarios] for cell, scenarios in found.cells.items()}
    assert names["refund", "happy"] == ["pays", "pays twice"]
    assert names["refund", "down"] == names["lookup", "down"] == ["all at once"]
    assert found.gaps == {"refund": ("not-found",), "lookup": ("happy",)}
    assert found.cells_share == CoveredShare(4, 6)
    assert [s.name for s in found.outside] == ["a task alone", "no tags"]


def test_results_tell_whether_a_cell_passed() -> None:
    """The worst result of a scenario counts: of all agents, and of all files."""
    first = builders.run_result(
        ran("pays"), ran("pays", Status.FAILED, agent="other"), ran("all at once"), comparison=True
    )
    second = builders.run_result(ran("all at once", Status.ERRORED), ran("gone"))
    found = covered(MATRIX, first, second)
    status = {s.name: s.status for s in found.scenarios}
    assert status["pays"] is Status.FAILED
    assert status["all at once"] is Status.ERRORED
    assert status["pays twice"] is None
    assert found.conversations == 5


def test_unknown_is_not_passed() -> None:
    """A cell in which one scenario passed and another was never run does not look passed."""
    assert worst([Status.PASSED, None]) is None
    assert "? 1/2" in text_of(covered(MATRIX, builders.run_result(ran("pays"))))


def test_tools_called_and_failed() -> None:
    """An exception, invalid arguments and an answer with an error are failed calls; nothing else is."""
    result = builders.run_result(
        ran(
            "pays",
            Status.PASSED,
            builders.tool_call("pay", result={"error": "down"}, error="down"),
            builders.tool_call("pay", "x", invalid_arguments="no JSON", result={"error": "no JSON"}),
            builders.tool_call("pay", result={"error": {"code": 503}}),
            builders.tool_call("pay", result={"error": None, "id": 1}),
            builders.tool_call("pay", result="error"),
            builders.tool_call("secret", mocked=False),
        )
    )
    found = covered(MATRIX, result)
    assert found.tools == (ToolUsage("pay", 5, 3), ToolUsage("lookup", 0, 0), ToolUsage("secret", 1, 0))
    assert found.tools_share == CoveredShare(2, 3)


def test_calls_of_an_unfinished_turn_count() -> None:
    """Calls before a conversation broke off count as made."""
    broken = builders.conversation(
        "c", [], builders.failure(), builders.unfinished_turn(0, "x", builders.tool_call("pay"))
    )
    result = builders.run_result(
        builders.scenario_result("pays", [builders.conversation_result(held=broken)])
    )
    assert covered(MATRIX, result).tools[0] == ToolUsage("pay", 1, 0)


def test_filters_narrow_the_results_too() -> None:
    """With filters, only the selected scenarios' results count; without, those of other sources as well."""
    result = builders.run_result(
        ran("pays", Status.PASSED, builders.tool_call("pay")),
        ran("a case of a set", Status.PASSED, builders.tool_call("pay")),
        ran("pays", Status.PASSED, builders.tool_call("pay"), agent="other"),
        comparison=True,
    )
    calls = [
        covered(MATRIX, result, **only).tools[0].called
        for only in ({}, {"only_units": True}, {"agent": "other"})
    ]
    assert calls == [3, 2, 1]


def test_a_tag_needs_a_name() -> None:
    """The error about an empty `task:` has the scenario's place."""
    with pytest.raises(UsageError, match=r"test_coverage\.py:\d+: the tag 'task:' names nothing"):
        covered([place("s", "task: ")])


@pytest.mark.parametrize(
    ("least", "code"), [(None, ExitCode.PASSED), (66.6, ExitCode.PASSED), (66.7, ExitCode.FAILED)]
)
def test_a_share_can_be_demanded(
    least: float | None, code: ExitCode, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four of six cells are enough for 66.6 percent and too few for 66.7."""
    assert coverage_status(covered(MATRIX), least) is code
    told = capsys.readouterr().err
    assert ("cells with a scenario: 4 of 6 (66 %), less than the 66.7 %" in told) is (code is ExitCode.FAILED)


def test_each_share_counts() -> None:
    """All cells have a scenario, but no tool was called: that is below any share."""
    full = covered([place("s", "task:a", "path:b", tools={"pay": {}})], builders.run_result(ran("s")))
    assert full.cells_share == CoveredShare(1, 1)
    assert coverage_status(full, 1) is ExitCode.FAILED


def test_nothing_to_measure_is_no_pass() -> None:
    """A demanded share of nothing is refused: unknown is never pass."""
    with pytest.raises(UsageError, match="nothing to measure"):
        coverage_status(covered([place("s")]), 0)


def test_without_tags_and_results_the_text_says_what_to_do() -> None:
    """It says how to tag scenarios and how to get results."""
    text = text_of(covered([place("s", tools={"pay": {}})]))
    assert 'tags=["task:refund", "path:tool-error"]' in text
    assert "agentest run --reporter json" in text
    assert "1 tool: pay" in text


def test_the_text() -> None:
    """Off a terminal: plain, whole lines."""
    result = builders.run_result(
        ran("pays", Status.PASSED, builders.tool_call("lookup")), ran("finds nothing", Status.FAILED)
    )
    text = text_of(covered(MATRIX, result))
    for row in (
        "refund   ? 1/2   –           ? 0/1",
        "lookup   –       ✗ 0/1       ? 0/1",
        "4 of 6 cells have a scenario (66 %)",
        "  refund: not-found",
        "2 scenarios in no cell: they need a task: and a path: tag",
        "pay       never        –",
        "1 of 2 tools was called (50 %)",
        "Never seen failing: lookup",
    ):
        assert row in text, text


def test_a_narrow_terminal_gets_the_matrix_in_pieces() -> None:
    """Paths that do not fit are continued below, with full names."""
    found = covered([place("s", "task:refund", *(f"path:way-{n:02}-of-many" for n in range(12)))])
    out = io.StringIO()
    print_text(found, Console(file=out, force_terminal=True, width=60, color_system=None))
    rows = out.getvalue().splitlines()
    assert max(map(len, rows)) <= 60
    heads = [row for row in rows if row.startswith("task") and "Unit" not in row]
    assert len(heads) == 4
    assert all(f"way-{n:02}-of-many" in " ".join(heads) for n in range(12))


def test_the_json() -> None:
    """Everything is there for programs."""
    found = json.loads(text_of(covered(MATRIX, builders.run_result(ran("pays"))), "json"))
    assert found["shares"]["cells"] == {"covered": 4, "of": 6, "percent": 66}
    assert found["gaps"] == [{"task": "refund", "path": "not-found"}, {"task": "lookup", "path": "happy"}]
    assert found["cells"][0]["scenarios"][0] == {"name": "pays", "status": "passed"}
    assert found["neverCalled"] == ["pay", "lookup"]
    assert found["results"] == ["r0.json"]


def test_the_markdown() -> None:
    """Tables for a pull request, in which no name can break out of its cell."""
    text = text_of(covered([place("s", "task:a|b", "path:<c>")], builders.run_result(ran("s"))), "markdown")
    assert "| task | &#60;c&#62; |\n| --- | --- |\n| a&#124;b | ✅ 1/1 |\n" in text


@given(
    st.lists(
        st.builds(
            PlacedScenario,
            name=st.text(max_size=20),
            where=st.just("a.sim.py:1"),
            tasks=st.lists(st.text(min_size=1, max_size=5), max_size=3, unique=True).map(tuple),
            paths=st.lists(st.text(min_size=1, max_size=5), max_size=3, unique=True).map(tuple),
            status=st.sampled_from([*Status, None]),
            levels=st.lists(st.sampled_from(CoverageLevel), min_size=1, max_size=3, unique=True).map(tuple),
            own_path=st.text(max_size=3),
        ),
        max_size=6,
    ),
    st.lists(st.builds(ToolUsage, st.text(max_size=9), st.integers(0, 9), st.integers(0, 9)), max_size=3),
    st.booleans(),
)
def test_any_coverage_can_be_told(scenarios: Any, tools: Any, with_results: bool) -> None:
    """Every form shows every coverage, and a cell is either covered or a gap."""
    found = Coverage(tuple(scenarios), 1, tuple(tools), ("r.json",) if with_results else (), 3)
    for form in ("text", "json", "markdown"):
        text_of(found, form).encode("utf-8", "surrogatepass")
    gaps = sum(map(len, found.gaps.values()))
    share = found.cells_share
    assert (share.covered + gaps == share.of) if share else not gaps


# --- kinds of tests, cases of evaluation sets, several runs ----------------------------------------


def ran_case(set_id: str, eval_id: str, status: Status = Status.PASSED, *tags: str, said: str = "") -> Any:
    """A case in the results of `agentest eval`; `said` by a simulated user, else by a script."""
    held = replace(
        builders.conversation(f"{eval_id}-1"),
        ending=Ending.SATISFIED if said else Ending.SCRIPT,
    )
    return builders.scenario_result(
        eval_id,
        [builders.conversation_result(held=held)],
        verdict=builders.verdict(status),
        case=CaseId(set_id, eval_id),
        tags=tags,
    )


def at(started_at: str, *scenarios: Any) -> RunResult:
    return replace(builders.run_result(*scenarios), started_at=started_at)


def rows(coverage: Coverage) -> dict[tuple[str, str], list[list[str]]]:
    """Task and path → the names of the unit, integration and scenario tests."""
    return {
        cell: [[s.name for s in found] for found in row.values()] for cell, row in coverage.levels.items()
    }


def test_tags_or_kinds_make_the_columns() -> None:
    """A script is a unit test, a played user a scenario test; the tags unit, integration, scenario win."""
    tags = ("task:t", "path:p")
    found = covered(
        [
            place("script", *tags),
            scenario("played", goal="x", profile="y", tags=tags),
            place("tagged", *tags, "integration", "scenario"),
            place("nowhere", "unit"),
        ]
    )
    assert rows(found) == {("t", "p"): [["script"], ["tagged"], ["tagged", "played"]]}
    assert "t      p      1      1             2" in text_of(found)
    (row,) = json.loads(text_of(found, "json"))["levels"]
    assert row["integration"] == [{"name": "tagged", "status": None}]
    assert "| t | p | 1 | 1 | 2 |" in text_of(found, "markdown")
    assert "1 path: 1 has a unit test, 1 an integration test, 1 a scenario test" in text_of(found)


def test_cases_of_results_are_placed() -> None:
    """By tags, by an id that reads task/path, else in a row of their own under their set's id, which opens no
    gap in the matrix."""
    result = builders.run_result(
        ran_case("orders", "by_id"),
        ran_case("orders", "refund/not-found/by mail", Status.FAILED),
        ran_case("orders", "tagged", Status.PASSED, "task:refund", "path:happy", "unit"),
        ran_case("orders", "half/", Status.PASSED, "path:happy"),
        ran_case("orders", "refund/not-found/played", said="Hi"),
    )
    found = covered([place("pays", "task:refund", "path:happy")], result)
    assert rows(found) == {
        ("refund", "happy"): [["pays", "tagged"], [], []],
        ("refund", "not-found"): [[], ["refund/not-found/by mail"], ["refund/not-found/played"]],
        ("orders", "happy"): [[], ["half/"], []],
        ("orders", "by_id"): [[], ["by_id"], []],
    }
    assert found.tasks == ("refund", "orders")
    assert found.paths == ("happy", "not-found")
    assert found.outside == ()
    text = text_of(found)
    assert "orders   by_id       –       ✓ 1/1         –" in text
    assert "refund   ? 1/2   ✗ 1/2" in text


def test_the_latest_run_of_a_scenario_counts() -> None:
    """The latest run that has a scenario counts, in any order of results; calls are summed."""
    old = at(
        "2026-01-01T00:00:00+00:00", ran("pays", Status.FAILED, builders.tool_call("pay")), ran("all at once")
    )
    new = at(
        "2026-01-02T00:00:00+00:00", ran("pays", Status.PASSED, builders.tool_call("pay")), ran_case("s", "c")
    )
    for order in ((old, new), (new, old)):
        found = covered(MATRIX, *order)
        status = {s.name: s.status for s in found.scenarios}
        assert (status["pays"], status["all at once"], status["c"]) == (Status.PASSED,) * 3
        assert found.tools[0].called == 2


def test_cases_of_sets_are_counted_before_they_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--eval-set` needs no scenarios or configuration; filters apply."""
    monkeypatch.chdir(tmp_path)
    cases = [case("pay/happy", invocation("x", "y"), agentest={"tags": ["unit"]}), simulated("play")]
    (tmp_path / "a.test.json").write_text(json.dumps(eval_set("a", *cases)))
    request = RunRequest(tmp_path)
    assert rows(measured(request, (), ["a.test.json"])[0]) == {
        ("pay", "happy"): [["pay/happy"], [], []],
        ("a", "play"): [[], [], ["play"]],
    }
    assert [*rows(measured(request, (), ["a.test.json:play"])[0])] == [("a", "play")]
    only = replace(request, options=Options(scenarios=("PAY",)))
    assert [*rows(measured(only, (), ["."])[0])] == [("pay", "happy")]
    with pytest.raises(UsageError, match="no scenario and no case fits the filters"):
        measured(replace(request, options=Options(tags=("zz",))), (), ["."])
    with pytest.raises(UsageError, match="no configuration found"):
        measured(request)


def test_what_explorations_reached_is_shown_with_what_they_did_not() -> None:
    explored = ExploredCoverage(
        {"refund": {"ok": 12, "timeout": 0}, "search": {"ok": 3}}, {"no_claim": 4, "never refund()": 0}
    )
    coverage = covered([place("a", "task:refund", "path:happy")], explored=explored)
    text = text_of(coverage)
    assert "2 of 3 outcomes were reached (66 %)" in text
    assert "Rules never exercised: never refund()" in text
    assert ["refund", "ok", "12", "timeout"] in [line.split() for line in text.splitlines()]
    assert "| refund | ok 12 | timeout |" in text_of(coverage, "markdown")
    document = json.loads(text_of(coverage, "json"))["explored"]
    assert document["neverReached"] == [{"tool": "refund", "outcome": "timeout"}]
    assert document["neverExercised"] == ["never refund()"]
    assert "explored" not in json.loads(text_of(covered([]), "json"))
