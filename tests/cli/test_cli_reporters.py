"""`--reporter NAME=PATH` and the junit reporter, for every kind of run and path."""

from __future__ import annotations

import json
import threading
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from project import DEADLINE_S, Project, interrupt

from agentest.testing import ScriptedAgent


def cases(path: Path) -> dict[str, str]:
    """Map each case to the outcome that a consumer of the report sees."""
    found = {}
    for node in ET.parse(path).iter("testcase"):
        kinds = [child.tag for child in node if child.tag in ("failure", "error", "skipped")]
        found[str(node.get("name"))] = kinds[0] if kinds else "passed"
    return found


def test_reports_are_written_to_their_paths(project: Project) -> None:
    """A comparison is written to all paths; judging again keeps the run's own report."""
    project.scenario(
        'scenario("nine", turns=[{"user_message": "When?", "expect": {"contains": "nine"}}])\n'
        'scenario("ten", turns=[{"user_message": "When?", "expect": {"contains": "ten"}}])\n'
        'scenario("later", turns=["When?"], skip="not yet")\n'
    )
    names = ["console=out/run.txt", "junit", "junit=out/a.xml", "github-actions=out/s.md", "json=out/r.json"]
    with ScriptedAgent(lambda body: "We open at nine.") as agent:
        project.config(agent.endpoint, compare=[{"name": "b"}], reporters=names)
        done = project.run(env={"FORCE_COLOR": "1"})
        assert done.returncode == 1, done.stderr
        assert done.stdout == ""
        line = "out/run.txt, .agentest/junit.xml, out/a.xml, out/s.md, out/r.json"
        assert done.stderr == f"agentest: failed: 2 passed, 2 failed, 1 skipped; {line}\n"
        again = project.agentest("judge", "out/r.json", "--agent", "agent", "--reporter", "junit")
    expected = {
        "nine [agent]": "passed",
        "nine [b]": "passed",
        "ten [agent]": "failure",
        "ten [b]": "failure",
        "later [agent]": "skipped",
    }
    kept = project.root / ".agentest"
    assert cases(kept / "junit.xml") == cases(project.root / "out" / "a.xml") == expected
    console = (project.root / "out" / "run.txt").read_text(encoding="utf-8")
    assert "✗ failed   ten  a.sim.py:3" in console
    assert "\x1b" not in console
    assert (project.root / "out" / "s.md").read_text(encoding="utf-8").startswith("## ❌ Agentest: 2 failed")
    assert json.loads((project.root / "out" / "r.json").read_text())["mode"] == "comparison"
    assert again.returncode == 1, again.stderr
    assert cases(kept / "judged.xml")["ten"] == "failure"
    assert cases(kept / "junit.xml") == expected


def test_report_paths_are_relative(project: Project) -> None:
    """On the command line they are relative to the working directory, in the configuration to its folder."""
    project.write(".git", "")
    project.scenario('scenario("s", turns=["hi"])')
    (project.root / "sub").mkdir()
    here = Project(project.root / "sub")
    with ScriptedAgent(lambda body: "Hello.") as agent:
        project.config(agent.endpoint, reporters=["junit=reports/x.xml"])
        first = here.run()
        second = here.run("--reporter", "junit=reports/x.xml", "--reporter", "json=../r.json")
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert first.stderr.endswith("agentest: passed: 1 passed; ../reports/x.xml\n")
    assert second.stderr.endswith("agentest: passed: 1 passed; reports/x.xml, ../r.json\n")
    assert (
        cases(project.root / "reports" / "x.xml") == cases(here.root / "reports" / "x.xml") == {"s": "passed"}
    )
    assert (project.root / "r.json").exists()


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (
            "junit=",
            "--reporter: 'junit=' names no file; write junit=PATH, or junit alone for the usual place",
        ),
        ("=x.xml", "--reporter: found '=x.xml'; expected NAME=PATH, such as junit=x.xml"),
        ("junti=x.xml", "--reporter: there is no reporter 'junti'; did you mean `junit`?"),
        (
            "junit=-",
            ("--reporter: 'junit=-': '-' is not a file; write junit=/dev/stdout for the standard output"),
        ),
        ("junit=a.sim.py/x", "reporter junit: HERE/a.sim.py/x cannot be written (a.sim.py is not a folder)"),
        (
            "junit=a.sim.py",
            "reporter junit: HERE/a.sim.py already exists and looks like a source file",
        ),
        ("json=.", "reporter json: HERE cannot be written (it is a folder)"),
        ("console=/proc/x", "reporter console: /proc/x cannot be written (No such file or directory)"),
    ],
    ids=[
        "no path",
        "no name",
        "unknown",
        "stream",
        "a file is a folder",
        "a source",
        "a folder",
        "no device",
    ],
)
def test_an_unwritable_report_path_is_an_error(wanted: str, message: str, project: Project) -> None:
    """An invalid or unwritable path is an error before the first conversation."""
    project.scenario('scenario("s", turns=["hi"])')
    with ScriptedAgent(lambda body: "Hello.") as agent:
        project.config(agent.endpoint)
        done = project.run("--reporter", "json=fine.json", "--reporter", wanted)
        assert not agent.requests
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("agentest: " + message.replace("HERE", str(project.root)))
    assert not (project.root / "fine.json").exists()


def test_two_reporters_cannot_share_a_file(project: Project) -> None:
    """This holds for any spelling of the path; the same reporter given twice writes once."""
    project.scenario('scenario("s", turns=["hi"])')
    project.config("http://127.0.0.1:1/", reporters=["junit=x", "json=./sub/../x", "junit=x"])
    done = project.run()
    assert done.returncode == 2
    assert "junit and json are both to be written to" in done.stderr


def test_a_report_can_be_written_to_a_device(project: Project) -> None:
    """/dev/stdout receives a report and stays a device."""
    project.scenario('scenario("s", turns=["hi"])')
    with ScriptedAgent(lambda body: "Hello.") as agent:
        project.config(agent.endpoint)
        done = project.run("--reporter", "junit=/dev/stdout")
    assert [case.get("name") for case in ET.fromstring(done.stdout.encode()).iter("testcase")] == ["s"]
    assert Path("/dev/stdout").is_symlink()


def test_an_interrupted_run_is_an_error_in_junit(project: Project) -> None:
    """After Ctrl-C the report has what had finished, and an error for the run as a whole."""
    hanging = threading.Event()

    def answer(body: dict) -> str:
        if body["messages"][-1]["content"] == "wait":
            hanging.set()
            threading.Event().wait(DEADLINE_S)
        return "done"

    project.scenario('scenario("quick", turns=["go"])\nscenario("slow", turns=["wait"])')
    with ScriptedAgent(answer) as agent:
        project.config(agent.endpoint, reporters=["console", "junit"])
        process = project.start()
        assert hanging.wait(DEADLINE_S)
        assert process.stdout is not None
        while "quick" not in process.stdout.readline():
            pass
        code, _, err = interrupt(process)
    assert code == 130, err
    found = cases(project.root / ".agentest" / "junit.xml")
    assert (found["quick"], found["the run as a whole"]) == ("passed", "error")
