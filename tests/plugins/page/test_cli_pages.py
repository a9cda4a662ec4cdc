"""The page as a report of commands."""

from __future__ import annotations

import json

from project import Project
from report_file import read_report

from agentest.testing import ScriptedAgent, tool_call


def test_every_command_with_reports_writes_a_page(project: Project) -> None:
    """A run, its conversations judged again and the run shown have each a page, under its own name; a
    page has the run's record, every conversation and the runs before."""
    project.scenario(
        'scenario("nine", turns=[{"user_message": "When?", "expect": {"contains": "nine"}}])\n'
        'scenario("ten", turns=[{"user_message": "When?", "expect": {"contains": "ten"}}])\n'
    )
    with ScriptedAgent(lambda body: "We open at nine.") as agent:
        project.config(agent.endpoint, reporters=["html"])
        for _ in range(2):
            done = project.run(env={"GITHUB_SHA": "abc123"})
    assert done.stderr.splitlines()[-1].endswith("1 passed, 1 failed; .agentest/report.html")
    kept = project.root / ".agentest"
    first, last = sorted(path.name for path in (kept / "runs").iterdir())
    page = read_report(kept / "report.html")
    assert (page.overview["run"]["id"], page.overview["run"]["commit"]) == (last, "abc123")
    assert [(point["id"], point["passed"]) for point in page.overview["trend"]] == [(first, 1), (last, 1)]
    assert page.scenario("ten", "agent")["command"] == "agentest run a.sim.py::ten"
    for arguments in (
        ("show", last, "--reporter", "html=shown.html"),
        ("show", last, "--scenario", "=ten", "--reporter", "html=one.html"),
        ("judge", "latest"),
    ):
        done = project.agentest(*arguments)
        assert "Traceback" not in done.stderr, done.stderr
    shown = read_report(project.root / "shown.html")
    assert shown.overview["run"] == page.overview["run"]
    assert shown.transcripts() == page.transcripts()
    assert [row["name"] for row in read_report(project.root / "one.html").overview["scenarios"]] == ["ten"]
    assert read_report(kept / "judged.html").overview["run"]["kind"] == "judge"
    assert str(project.root) not in json.dumps(page.data)


def test_a_page_has_the_root_causes(project: Project) -> None:
    project.scenario(
        "\n".join(
            f'scenario("books {n}", turns=["x"], tools={{"book": 1}}, trajectory={{"forbidden": ["book"]}})'
            for n in range(3)
        )
    )
    with ScriptedAgent([tool_call("book"), "Done."]) as agent:
        project.config(agent.endpoint, reporters=["json", "html"])
        assert project.run().returncode == 1
    causes = project.results["rootCauses"]
    assert [each["scenarios"] for each in causes] == [3]
    assert read_report(project.root / ".agentest" / "report.html").overview["causes"] == causes


def test_a_page_of_merged_shards(project: Project) -> None:
    project.scenario('scenario("a", turns=["a"])\nscenario("b", turns=["b"])')
    with ScriptedAgent(["yes"]) as agent:
        project.config(agent.endpoint, compare=[{"name": "other"}])
        for n in (1, 2):
            assert project.run("--shard", f"{n}/2").returncode == 0
    merged = project.agentest("merge", ".agentest/runs", "--output-dir", "merged", "--reporter", "html")
    assert merged.returncode == 0, merged.stderr
    page = read_report(project.root / "merged" / "report.html")
    assert (page.overview["run"]["kind"], page.overview["leftOut"]) == ("merge", 0)
    assert len(page.overview["scenarios"]) == 4
