"""The GitHub action and the documented workflows: their steps run as on the CI sites."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from string import Template
from typing import Any

import pytest
import yaml
from project import Project, clean_environment

ROOT = Path(__file__).parent.parent
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
RUNNER = ["bash", "--noprofile", "--norc", "-eo", "pipefail"]
"""How GitHub's runner starts a step whose shell is bash."""
AGENT = """
async def handler(messages, context):
    return "We open at nine."

config = {"agent": {"type": "custom", "handler": handler}, "reporters": ["json"]}
"""
LEAKED = "sk-live-4fG7hJ2kL9mN1pQ3rS5tU8vW"
SCENARIOS = """
from agentest import scenario

scenario("nine", turns=[{"user_message": "When?", "expect": {"contains": "nine"}}], tags=["smoke"])
scenario("it's ten", turns=[{"user_message": "When?", "expect": {"contains": "ten"}}])
"""


@dataclass
class Job:
    """A GitHub job: folders and files that its steps share."""

    root: Path
    path: str
    """The PATH."""

    def step(self, id: str, /, outputs: dict[str, dict[str, str]] | None = None, **inputs: str) -> Any:
        """Run a step of the action, and return the process and its outputs."""
        [step] = [step for step in ACTION["runs"]["steps"] if step.get("id") == id]
        given = {name: str(known.get("default", "")) for name, known in ACTION["inputs"].items()} | inputs
        known = {"inputs": given, "outputs": outputs or {}}
        env = {key: filled(text, known) for key, text in step.get("env", {}).items()}
        folder = self.root / filled(step.get("working-directory", "."), known)
        return self.shell(step["run"], folder, env)

    def shell(self, script: str, folder: Path, env: dict[str, str]) -> Any:
        written, summary = self.root / "outputs.txt", self.root / "summary.md"
        written.write_text("")
        site = {
            "GITHUB_ACTIONS": "true",
            "CI": "true",
            "GITHUB_OUTPUT": str(written),
            "GITHUB_STEP_SUMMARY": str(summary),
            "GITHUB_WORKSPACE": str(self.root),
            "GITHUB_ACTION_PATH": str(ROOT),
            "RUNNER_TEMP": str(self.root / "temp"),
            "PATH": self.path,
        }
        file = self.root / "step.sh"
        file.write_text(script)
        done = subprocess.run(
            [*RUNNER, str(file)],
            cwd=folder,
            env=clean_environment({**site, **env}),
            capture_output=True,
            text=True,
            check=False,
        )
        return done, dict(outputs_in(written.read_text()))


def outputs_in(text: str) -> Iterator[tuple[str, str]]:
    """The outputs of a file in GitHub's format: `name=value`, or `name<<END`, lines and `END`."""
    lines = iter(text.splitlines())
    for line in lines:
        if form := re.fullmatch(r"([^=<]+)<<(.+)", line):
            yield form[1], "\n".join(iter(partial(next, lines), form[2]))
        else:
            name, _, value = line.partition("=")
            yield name, value


def filled(text: str, known: dict[str, Any]) -> str:
    """The text with the values of its expressions."""

    def value(match: re.Match[str]) -> str:
        words = match[1].split(".")
        if words[0] == "inputs":
            return str(known["inputs"][words[1]])
        assert (words[0], words[2]) == ("steps", "outputs")
        return str(known["outputs"].get(words[1], {}).get(words[3], ""))

    return re.sub(r"\$\{\{ ([\w.-]+) \}\}", value, text)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """A checked-out repository with an agent in a folder, and `agentest` on the PATH."""
    project = Project(tmp_path)
    project.write("bots/booking/agentest.config.py", AGENT)
    project.write("bots/booking/sims/hours.sim.py", SCENARIOS)
    executable(tmp_path / "bin" / "agentest", f'exec "{sys.executable}" -m agentest "$@"')
    return Job(tmp_path, f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")


def executable(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_the_action_is_what_github_takes() -> None:
    """Each step of the composite action has its shell; only GitHub's own actions are used."""
    assert ACTION["runs"]["using"] == "composite"
    used = [step["uses"] for step in ACTION["runs"]["steps"] if "uses" in step]
    assert [use.partition("@")[0] for use in used] == [
        "actions/setup-python",
        "actions/cache",
        "actions/upload-artifact",
    ]
    assert all(re.fullmatch("[0-9a-f]{40}", use.partition("@")[2]) for use in used)
    assert all(step["shell"] == "bash" for step in ACTION["runs"]["steps"] if "run" in step)
    assert all(known["description"] for known in (*ACTION["inputs"].values(), *ACTION["outputs"].values()))


def test_no_input_becomes_code() -> None:
    """Scripts contain no expression: text of a pull request's author reaches them as a variable."""
    assert not [step["run"] for step in ACTION["runs"]["steps"] if "${{" in step.get("run", "")]


@pytest.mark.slow
def test_no_value_becomes_another_output(job: Job) -> None:
    """Outputs have a random delimiter, which no text can contain."""
    given = {"working-directory": "bots/booking", "output-dir": "x\nstatus=passed\nstatus<<EOF\npassed\nEOF"}
    ends = set()
    for _ in range(2):
        done, outputs = job.step("run", **given)
        assert done.returncode == 1, done.stdout + done.stderr
        assert outputs["status"] == "failed"
        assert outputs["report"] == f"bots/booking/{given['output-dir']}/report.html"
        ends |= set(re.findall("^status<<([0-9a-f]{32})$", (job.root / "outputs.txt").read_text(), re.M))
    assert len(ends) == 2


def test_wheels_are_cached_by_what_is_installed(job: Job) -> None:
    """The cache is in pip's configured folder, with a key for each version."""
    [cache] = [step["with"] for step in ACTION["runs"]["steps"] if "actions/cache@" in step.get("uses", "")]
    keys = {job.step("wheels", version=version)[1]["key"] for version in ("", "1.2.0", "1.3.0")}
    assert len(keys) == 3
    assert all(re.fullmatch("[0-9-]+", key) for key in keys)
    assert cache["path"] == "${{ runner.temp }}/agentest-wheels"
    executable(job.root / "bin" / "python3", '[ "$1 $2" = "-m venv" ] && mv "$3-made" "$3"')
    executable(job.root / "temp" / "agentest-made" / "bin" / "python", 'echo "$PIP_CACHE_DIR"')
    done, _ = job.step("install")
    assert done.stdout == f"{job.root}/temp/agentest-wheels\n"


def test_every_input_is_documented() -> None:
    """The table of the page names the action's inputs and outputs."""
    page = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    assert not [name for name in (*ACTION["inputs"], *ACTION["outputs"]) if f"`{name}`" not in page]


def test_the_action_runs_and_reports(job: Job) -> None:
    """The run's step has the command's status, and its outputs have the existing reports."""
    done, outputs = job.step("run", **{"working-directory": "bots/booking", "arguments": " \n"})
    assert done.returncode == 1, done.stdout + done.stderr
    assert outputs == {
        "status": "failed",
        "results": "bots/booking/.agentest/results.json",
        "junit": "bots/booking/.agentest/junit.xml",
        "report": "bots/booking/.agentest/report.html",
    }
    assert "::error file=bots/booking/sims/hours.sim.py,line=5,title=it's ten failed::" in done.stdout
    cases = {case.get("name"): case for case in ET.parse(job.root / outputs["junit"]).iter("testcase")}
    assert cases["it's ten"].get("file") == "bots/booking/sims/hours.sim.py"
    assert json.loads((job.root / outputs["results"]).read_text())["summary"]["failedScenarios"] == 1
    summary = (job.root / "summary.md").read_text(encoding="utf-8")
    *files, command = re.findall("<code>(.*?)</code>", summary)
    assert [Path(file).name for file in files] == ["results.json", "junit.xml", "report.html"]
    results = files[0]
    assert command.startswith(f"agentest show {results} ")
    assert (job.root / "bots" / "booking" / results).exists()


def test_the_artifact_has_no_credential(job: Job) -> None:
    """Results and reports are copied for it, without values that look like credentials; journals are not."""
    leaking, folder = AGENT.replace("We open at nine.", f"nine, {LEAKED}"), job.root / "bots" / "booking"
    (folder / "agentest.config.py").write_text(leaking)
    given = {"working-directory": "bots/booking"}
    for _ in range(2):
        job.step("run", **given)
    (folder / ".agentest" / "runs" / "20200101-000000-000-abcd").mkdir()
    assert LEAKED in (folder / ".agentest" / "results.json").read_text()
    done, _ = job.step("copy", **given)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "runs/20200101-000000-000-abcd/ cannot be read, and is not uploaded" in done.stdout
    copy = job.root / "temp" / "agentest-artifact"
    files = [path for path in copy.rglob("*") if path.is_file()]
    names = ["junit.xml", "report.html", "results.json"]
    assert sorted(path.name for path in files) == sorted([*names, *["run.json", *names] * 2])
    assert not [path for path in files if LEAKED in path.read_text()]
    compared = agentest(folder, f"agentest compare {copy / 'results.json'} .agentest/results.json")
    assert (compared.returncode, "2 unchanged" in compared.stdout) == (0, True), compared
    [step] = [step for step in ACTION["runs"]["steps"] if "upload-artifact" in step.get("uses", "")]
    assert step["with"]["path"] == "${{ runner.temp }}/agentest-artifact"


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        ('--list\n--scenario "it\'s ten"', 0, "it's ten"),
        ("--list --scenario '$(touch hacked)' ; touch hacked", 2, ""),
        ("--scenario 'open", 2, "a quote is not closed"),
    ],
    ids=["words", "commands", "open quote"],
)
@pytest.mark.slow
def test_arguments(arguments: str, status: int, told: str, job: Job) -> None:
    """Arguments are split as in a shell, and nothing in them is executed."""
    done, _ = job.step("run", **{"working-directory": "bots/booking", "arguments": arguments})
    assert (done.returncode, told in done.stdout) == (status, True), done.stdout + done.stderr
    assert not [*job.root.rglob("hacked")]


@pytest.mark.parametrize(
    ("inputs", "installed"),
    [
        ({}, str(ROOT)),
        ({"version": "1.2.0"}, "agentest-sim==1.2.0"),
        ({"path": "./wheel.whl"}, "./wheel.whl"),
    ],
    ids=["its own", "version", "path"],
)
def test_installation(inputs: dict[str, str], installed: str, job: Job) -> None:
    """It is installed in a separate environment, which the next step uses."""
    home = job.root / "temp" / "agentest"
    executable(job.root / "bin" / "python3", '[ "$1 $2" = "-m venv" ] && mv "$3-made" "$3"')
    executable(job.root / "temp" / "agentest-made" / "bin" / "python", 'echo pip: "$@"')
    done, outputs = job.step("install", **inputs)
    assert done.stdout == f"pip: -m pip install --quiet --disable-pip-version-check {installed}\n"
    assert outputs == {"agentest": f"{home}/bin/agentest"}
    executable(home / "bin" / "agentest", 'echo "$@"')
    done, outputs = job.step("run", {"install": outputs}, config="x.yaml", model="openai/m")
    assert done.stdout.split()[-4:] == ["--config", "x.yaml", "--model", "openai/m"]
    assert outputs["status"] == "passed"


def test_two_installations_are_refused(job: Job) -> None:
    """Version and path exclude each other."""
    done, _ = job.step("install", version="1.2.0", path="x")
    assert (done.returncode, done.stdout) == (2, "::error title=agentest::give version or path, not both\n")


def commands() -> Iterator[Any]:
    """The shell lines of the workflows in the documentation that run Agentest."""
    for page in sorted((ROOT / "docs").glob("*.md")):
        for match in re.finditer(r"^```yaml\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S):
            for number, line in enumerate(_lines(yaml.safe_load(match[1]))):
                if line.startswith("agentest run") and "--shard" not in line:
                    yield pytest.param(line, id=f"{page.name}: {number}")


def _lines(document: Any) -> Iterator[str]:
    """All lines of `run` (GitHub) and `script` (GitLab)."""
    if isinstance(document, dict):
        for key in ("run", "script"):
            given = document.get(key, [])
            yield from (
                line.strip() for text in [given] if isinstance(text, str) for line in text.splitlines()
            )
            yield from (line for line in given if isinstance(given, list))
        for inner in document.values():
            yield from _lines(inner)
    elif isinstance(document, list):
        for inner in document:
            yield from _lines(inner)


@pytest.mark.parametrize("line", [*commands()])
@pytest.mark.slow
def test_commands_of_workflows_run(line: str, job: Job) -> None:
    """A documented workflow fails only because of its failing scenario."""
    done, _ = job.shell(line, job.root / "bots" / "booking", {})
    assert done.returncode == 1, done.stdout + done.stderr


@pytest.mark.slow
def test_the_gate_for_pull_requests(job: Job) -> None:
    """The main branch's results are fetched if they exist, and regressions are reported."""
    page = (ROOT / "docs" / "comparing.md").read_text(encoding="utf-8")
    [text] = re.findall(r"^```yaml\n(.*?)^```$", page, re.M | re.S)
    steps = yaml.safe_load(text)["jobs"]["compare"]["steps"]
    [fetch] = [step["run"] for step in steps if step.get("id") == "baseline"]
    [run] = [step["run"] for step in steps if step.get("run", "").startswith("agentest run")]
    assert "${{" not in fetch + run
    folder = job.root / "bots" / "booking"
    executable(job.root / "bin" / "gh", '[ "$2" = list ] && exit 0; exit 1')
    done, outputs = job.shell(fetch, folder, {"BRANCH": "main"})
    assert (outputs, done.stdout) == (
        {},
        "::notice title=agentest::no results of main to compare with yet\n",
    )
    done, _ = job.shell(run, folder, {"ARGUMENTS": ""})
    assert done.returncode == 1
    executable(
        job.root / "bin" / "gh",
        '[ "$2" = list ] && echo 7 && exit 0\n'
        '[ "$3" = 7 ] && mkdir baseline && cp .agentest/results.json baseline',
    )
    _, outputs = job.shell(fetch, folder, {"BRANCH": "main"})
    broken = AGENT.replace("We open at nine.", "We are closed.")
    (folder / "agentest.config.py").write_text(broken)
    done, _ = job.shell(run, folder, {"ARGUMENTS": outputs["arguments"]})
    assert done.returncode == 1
    assert done.stdout.rstrip().endswith("1 broke, 1 unchanged")
    assert "title=nine failed and broke::" in done.stdout


def workflow(key: str) -> dict[str, Any]:
    """The documented workflow on CI with several jobs that has this job."""
    page = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    found = (yaml.safe_load(match[1]) for match in re.finditer(r"^```yaml\n(.*?)^```$", page, re.M | re.S))
    return next(document for each in found for document in (each.get("jobs", each),) if key in document)


def own_steps(lines: Iterator[str]) -> list[str]:
    return [line for line in lines if not line.startswith("pip install")]


def agentest(folder: Path, line: str, **variables: str) -> Any:
    """Run a line of a workflow with Agentest, with the variables of the site."""
    words = shlex.split(Template(line).safe_substitute(variables))
    assert words[0] == "agentest"
    return Project(folder).agentest(*words[1:], env={"CI": "true", **variables})


def test_a_matrix_of_github_is_merged(job: Job) -> None:
    """Four jobs on clean checkouts upload their runs, and the last job reports the merged run."""
    jobs, last = workflow("shard"), job.root / "bots" / "booking"
    [upload] = [step["with"] for step in jobs["shard"]["steps"] if "upload" in step.get("uses", "")]
    [download] = [step["with"] for step in jobs["agent"]["steps"] if "download" in step.get("uses", "")]
    numbers = jobs["shard"]["strategy"]["matrix"]["shard"]
    statuses = []
    for number in numbers:
        checkout = job.root / "jobs" / str(number)
        shutil.copytree(last, checkout, ignore=shutil.ignore_patterns(download["path"]))
        known = {"matrix.shard": number, "strategy.job-total": len(numbers)}
        [line] = own_steps(_lines(jobs["shard"]["steps"]))
        statuses.append(agentest(checkout, expressed(line, known)).returncode)
        name = expressed(upload["name"], known)
        assert fnmatch(name, download["pattern"])
        shutil.copytree(checkout / upload["path"], last / download["path"] / name)
    assert statuses == [0, 1, 0, 0]
    [line] = own_steps(_lines(jobs["agent"]["steps"]))
    done = agentest(last, line, GITHUB_ACTIONS="true", GITHUB_WORKSPACE=str(job.root))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 1 passed (2 scenarios" in done.stdout
    assert "::error file=bots/booking/sims/hours.sim.py,line=5,title=it's ten failed::" in done.stdout
    assert len([*ET.parse(last / ".agentest" / "junit.xml").iter("testcase")]) == 2


def test_parallel_jobs_of_gitlab_are_merged(job: Job) -> None:
    """Runs of parallel jobs are unpacked in one folder, and the last job reports the merged run."""
    jobs, folder, together = workflow("report"), job.root / "bots" / "booking", job.root / "together"
    shutil.copytree(folder, together)
    [line] = own_steps(_lines(jobs["agentest"]))
    [path] = jobs["agentest"]["artifacts"]["paths"]
    total = jobs["agentest"]["parallel"]
    for number in range(1, total + 1):
        checkout = job.root / "jobs" / str(number)
        shutil.copytree(folder, checkout)
        agentest(checkout, line, CI_NODE_INDEX=str(number), CI_NODE_TOTAL=str(total))
        shutil.copytree(checkout / path, together / path, dirs_exist_ok=True)
    [line] = own_steps(_lines(jobs["report"]))
    done = agentest(together, line)
    assert done.returncode == 1, done.stdout + done.stderr
    junit = together / jobs["report"]["artifacts"]["reports"]["junit"]
    assert ET.parse(junit).getroot().get("failures") == "1"


def expressed(text: str, known: dict[str, Any]) -> str:
    """The text with the values of its expressions, by their names."""
    return re.sub(r"\$\{\{ ([\w.-]+) \}\}", lambda match: str(known[match[1]]), text)


def sessions_of_nox() -> Iterator[str]:
    """The names of the sessions in noxfile.py, without importing nox."""
    tree = ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8"))
    for function in (node for node in tree.body if isinstance(node, ast.FunctionDef)):
        for decorator in map(ast.unparse, function.decorator_list):
            versions = ("3.11", "3.14") if "python=PYTHONS" in decorator else ()
            yield from [f"{function.name}-{version}" for version in versions] or [function.name]


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=lambda path: path.stem
)
def test_the_workflows_of_this_repository(path: Path) -> None:
    """Their matrices have what their steps name, and the sessions of nox exist."""
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert {"name", True, "permissions", "jobs"} <= {*document}  # YAML reads the key `on` as a boolean
    for job in document["jobs"].values():
        matrix = job.get("strategy", {}).get("matrix", {})
        assert all(len({"uses", "run"} & {*step}) == 1 for step in job["steps"])
        assert {*re.findall(r"matrix\.(\w+)", str(job))} == {*matrix}
        assert {*matrix.get("session", [])} <= {*sessions_of_nox()}
    if path.stem == "weekly":
        sessions = document["jobs"]["by-hand"]["strategy"]["matrix"]["session"]
        assert {"oldest-3.11", "oldest-3.14", "newest-3.11", "newest-3.14"} <= {*sessions}
        assert document["jobs"]["by-hand"]["steps"][-1]["run"] == "nox -s ${{ matrix.session }}"
