"""docs/tutorial.md: following it step by step gives the output that it shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from project import Project

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text("utf-8")
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
_FOUND_IN_FILES = "NUMBERS = "
_NEEDS_A_MODEL = "--model"


@pytest.mark.slow
def test_the_tutorial_shows_what_happens(project: Project) -> None:
    """Every scenario and command of the page runs, and each line it shows is printed or in the agent."""
    agent = project.root / "demo_agent.py"
    printed = ""
    for language, text in _BLOCK.findall(PAGE.partition("## Your own agent")[0]):
        if language == "python":
            project.write(text.splitlines()[0].removeprefix("# "), text)
        elif language == "console":
            printed = "".join(run(project, line) for line in text.splitlines())
        elif text.startswith(_FOUND_IN_FILES):
            code = agent.read_text("utf-8")
            assert text.strip() in code
            agent.write_text(code.replace('"six": 6}', '"six": 6, "seven": 7}'), "utf-8")
        else:
            for line in text.splitlines():
                assert line.strip() in printed, f"not {line!r}, but:\n{printed}"


def run(project: Project, line: str) -> str:
    """Return the output of a command, in the project's folder and without a model."""
    words = shlex.split(line)
    if words[0] != "agentest" or _NEEDS_A_MODEL in words:
        return ""
    arguments = [word for word in words[1:] if word != "demo"]
    done = project.agentest(*arguments, env={"COLUMNS": "200"})
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout
