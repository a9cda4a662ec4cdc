"""Comparisons over the wire, and in the file: the figures of `agentest compare`, and whose they are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import builders
import httpx
import page_at
import pytest
import sample_run
from project import DEADLINE_S
from report_file import read_report

from agentest.cli.comparison import RunComparison
from agentest.domain.events import RunFinished
from agentest.domain.results import RunResult
from agentest.history.compared_runs import MeasuredRun, measure_run, measure_scenario
from agentest.history.comparison import compare_measured_runs
from agentest.history.comparison_report import as_json, cells
from agentest.plugins.page.report import HtmlReporter, comparison_for_page
from agentest.plugins.page.server.json_routes import WebProject
from agentest.plugins.page.server.runs import comparison_response
from agentest.store.runs.folder import RunKind, RunRecord, with_end, write_record


def one(*scenarios: Any) -> RunResult:
    made: RunResult = builders.run_result(*scenarios)
    return made


def measured(run: RunResult) -> MeasuredRun:
    return measure_run(run, "r", map(measure_scenario, run.scenarios))


def before() -> RunResult:
    """Passes what fails later, and has a scenario that is gone later."""
    return one(sample_run.passing("asks for opening hours"), sample_run.passing("only before"))


def after() -> RunResult:
    return one(sample_run.judged_low(), sample_run.errored())


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A project with three runs, the second of which has two agents."""
    root = tmp_path_factory.mktemp("project")
    return root, page_at.keep_runs(root, [before(), sample_run.compared_run(), after()])


def asked(kept: tuple[Path, list[str]], **query: str) -> Any:
    project = WebProject(root=kept[0], config=None, output_dir=kept[0] / ".agentest")
    return json.loads(json.dumps(comparison_response(project, **{"of": "", "base": "", "new": "", **query})))


def chosen(found: Any) -> tuple[str, str, str]:
    return found["between"], found["base"], found["new"]


def test_the_page_has_the_figures_of_the_command(kept: tuple[Path, list[str]]) -> None:
    """Two runs are compared as in `agentest compare`; a scenario in only one is marked."""
    first, _, last = kept[1]
    found = asked(kept, base=first, new=last)
    wanted = compare_measured_runs(measured(before()), measured(after()))
    told = json.loads(as_json(wanted))
    shown = {row["name"]: row for row in found["comparison"]["scenarios"]}
    assert found["comparison"]["counts"] == told["counts"]
    assert {name: row["change"] for name, row in shown.items()} == {
        row["name"]: row["change"] for row in told["scenarios"]
    }
    assert [row["cells"] for row in found["comparison"]["overall"]] == [
        list(cells(row)[:-1]) for row in wanted.overall
    ]
    assert shown["only before"]["sides"] == ["booking", None]
    assert shown["pays by card"]["sides"] == [None, "booking"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        pytest.param({}, ("runs", 1, 2), id="nothing"),
        pytest.param({"new": 1}, ("runs", 0, 1), id="new-alone"),
        pytest.param({"base": 1}, ("runs", 1, 2), id="base-alone"),
        pytest.param({"of": 1}, ("agents", "booking", "candidate"), id="agents"),
        pytest.param(
            {"of": 1, "base": "candidate"}, ("agents", "candidate", "booking"), id="one-agent-named"
        ),
    ],
)
def test_an_address_need_not_name_both_sides(
    kept: tuple[Path, list[str]], query: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    """The defaults are the run before, the latest run, or the other agent."""
    name = dict(enumerate(kept[1]))
    found = asked(kept, **{key: name.get(value, value) for key, value in query.items()})
    assert chosen(found) == tuple(name.get(each, each) for each in expected)
    assert found["problem"] == "" or found["comparison"] is None


@pytest.mark.parametrize(
    ("query", "words"),
    [
        pytest.param({"base": "../../secret", "new": "x"}, "neither a stored run nor an agent", id="no-run"),
        pytest.param({"base": "A", "new": "A"}, "both are the same", id="same"),
        pytest.param({"of": "B", "base": "booking", "new": "A"}, "neither a stored run", id="mixed"),
    ],
)
def test_runs_that_cannot_be_compared(
    kept: tuple[Path, list[str]], query: dict[str, str], words: str
) -> None:
    """There is a reason instead of a comparison, and all choices are still available."""
    names = {"A": kept[1][0], "B": kept[1][1]}
    found = asked(kept, **{key: names.get(value, value) for key, value in query.items()})
    assert words in found["problem"]
    assert found["comparison"] is None
    assert [each[0] for each in found["choices"]["new"]][-3:] == [*reversed(kept[1])]


def test_runs_without_a_common_scenario_are_not_offered(tmp_path: Path) -> None:
    """Nothing could be compared with them."""
    runs = [one(builders.scenario_result(name)) for name in ("books", "cancels", "books")]
    ids = page_at.keep_runs(tmp_path, runs)
    for id, run in zip(ids, runs, strict=True):
        record = RunRecord(id=id, kind=RunKind.RUN, started_at=run.started_at, version=run.version)
        write_record(tmp_path / ".agentest" / "runs" / id, with_end(record, run))
    found = asked((tmp_path, ids), of=ids[2])
    assert [each[0] for each in found["choices"]["base"]] == [ids[2], ids[0]]
    assert chosen(found)[1:] == (ids[0], ids[2])


def test_without_runs_there_is_a_next_step(tmp_path: Path) -> None:
    """An empty folder is not a server error; one run is not enough."""
    assert "start one" in asked((tmp_path, []))["problem"]
    ids = page_at.keep_runs(tmp_path, [before()])
    assert "a comparison needs two" in asked((tmp_path, ids))["problem"]


def test_the_route_is_guarded_and_answers(kept: tuple[Path, list[str]]) -> None:
    """With the token it returns JSON; without it nothing."""
    with page_at.served(kept[0]) as first:
        parts = urlsplit(first)
        url = f"{parts.scheme}://{parts.netloc}/api/compare"
        token = parse_qs(parts.query)["token"][0]
        assert httpx.get(url, timeout=DEADLINE_S).status_code == 403
        right = {"Authorization": f"Bearer {token}"}
        found = httpx.get(url, params={"of": kept[1][1]}, headers=right, timeout=DEADLINE_S)
    assert found.json()["comparison"]["verdict"]["status"] == "skipped"


@pytest.mark.parametrize(
    ("base", "new", "status"),
    [
        pytest.param(True, False, "failed", id="regressed"),
        pytest.param(False, True, "passed", id="improved"),
        pytest.param(True, True, "skipped", id="alike"),
        pytest.param(None, True, "errored", id="unknown"),
    ],
)
def test_unknown_comparisons_are_never_good(base: bool | None, new: bool | None, status: str) -> None:
    """A scenario that was not compared is never good, and equal ones are only indistinguishable."""
    found = comparison_for_page(compare_measured_runs(measured(times(base)), measured(times(new))), "runs")
    assert found["verdict"]["status"] == status


def times(passed: bool | None) -> RunResult:
    """A scenario whose conversations all pass, all fail, or all err."""
    if passed is None:
        return one(replace(sample_run.errored(), name="books"))
    made = sample_run.passing("books") if passed else replace(sample_run.wrong_calls(), name="books")
    held = made.conversations[0]
    named = [replace(held.conversation, conversation_id=f"c{n}") for n in range(8)]
    again = [replace(held, conversation=each) for each in named]
    return one(builders.scenario_result("books", again))


def reports(path: Path, run: RunResult, against: RunComparison) -> Iterator[Any]:
    against.on_event(RunFinished(run))
    HtmlReporter(path, run_id="R", compared=against).on_event(RunFinished(run))
    yield from read_report(path).data.get("comparison", ())


def test_the_file_holds_its_comparison(tmp_path: Path) -> None:
    """Agents with each other, or the run with its baseline; a run of one agent has none."""
    path = tmp_path / "report.html"
    run = sample_run.compared_run()
    [agents] = reports(path, run, RunComparison())
    assert (agents["between"], agents["base"]["run"], agents["new"]["run"]) == (
        "agents",
        "booking",
        "candidate",
    )
    base = measured(before())
    [baseline] = reports(path, after(), RunComparison(base))
    assert (baseline["between"], baseline["base"]["run"]) == ("runs", "r")
    HtmlReporter(path).on_event(RunFinished(after()))
    assert "comparison" not in read_report(path).data
