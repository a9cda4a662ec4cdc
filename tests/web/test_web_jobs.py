"""What is started from the page: which words it becomes, that it ends, and which run it was."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from project import Project as Folder
from ui_server import Client, with_server

from agentest.errors import UsageError
from agentest.web.looking import Runs
from agentest.web.project import Project
from agentest.web.starting import wanted

SCENARIO = 'scenario("greets", turns=["Hello."])\n'
AGENT = "def handler(messages):\n    return {'content': 'Hi.'}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.sim.py").write_text("")
    (tmp_path / "-x.sim.py").write_text("")
    (tmp_path / "s.evalset.json").write_text("{}")
    (tmp_path / "out.sim.py").symlink_to("/etc/hostname")
    return tmp_path


def words(folder: Path, **given: Any) -> list[str]:
    project = Project(root=folder, config=None, output_dir=folder / ".agentest")
    return wanted(given, project, Runs(project)).words()


def test_what_is_wanted_becomes_words(folder: Path) -> None:
    """Options are written with =, and files stand behind --: nothing that is named becomes an option."""
    assert words(folder, kind="run", paths=["a.sim.py::--offline"]) == ["run", "--", "a.sim.py::--offline"]
    assert words(folder, kind="run", paths=["-x.sim.py"], names=["--x"], conversations=3, offline=True) == [
        "run",
        "--conversations=3",
        "--offline",
        "--scenario==--x",
        "--",
        "-x.sim.py",
    ]
    assert words(folder, kind="eval", file="s.evalset.json", cases=["a", "b"], agent="one") == [
        "eval",
        "--agent=one",
        "--",
        "s.evalset.json:a,b",
    ]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "`kind` must be"),
        ({"kind": "run", "env": {}}, "'env' is no key"),
        ({"kind": "run", "paths": ["../a.sim.py"]}, "not in the project"),
        ({"kind": "run", "paths": ["/etc/passwd"]}, "not in the project"),
        ({"kind": "run", "paths": ["out.sim.py"]}, "not in the project"),
        ({"kind": "run", "paths": ["--config=x.py"]}, "no file of the project"),
        ({"kind": "run", "paths": "a.sim.py"}, "`paths` must be a list"),
        ({"kind": "run", "paths": ["a.sim.py"] * 501}, "too much"),
        ({"kind": "run", "conversations": True}, "`conversations` must be"),
        ({"kind": "run", "conversations": 0}, "`conversations` must be"),
        ({"kind": "run", "offline": "yes"}, "`offline` must be"),
        ({"kind": "eval", "file": "s.evalset.json", "agent": "http://evil"}, "`agent` must be"),
        ({"kind": "eval", "file": "s.evalset.json", "cases": ["a,b"]}, "run its file"),
        ({"kind": "eval"}, "`file` must name"),
        ({"kind": "rerun"}, "`run` must be"),
        ({"kind": "rerun", "run": "../x"}, "is no run"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_started_is_said(folder: Path, given: dict[str, Any], says: str) -> None:
    """Each mistake names its key or file."""
    with pytest.raises(UsageError, match=says):
        words(folder, **given)


async def ended(client: Client, job: str) -> Any:
    while True:
        _, found = await client.ask("GET", f"/api/jobs/{job}")
        if found["state"] == "ended":
            return found
        await asyncio.sleep(0.05)


def hanging(root: Path) -> Folder:
    """A project whose agent answers `Wait.` never, and whatever else at once."""
    project = Folder(root)
    project.write(
        "agent.py",
        "import asyncio\n\n\nasync def handler(request):\n"
        "    if 'Wait' in str(request): await asyncio.sleep(3600)\n    return 'Hi.'\n",
    )
    project.write(
        "agentest.config.yaml",
        'agent:\n  type: custom\n  handler: "agent:handler"\nreporters: [json]\n',
    )
    project.scenario(
        'scenario("fails", turns=["Hello."], expect={"says": ["Bye"]})\nscenario("greets", turns=["Hello."])\n'
        'scenario("waits", turns=["Wait."])\n'
    )
    return project
