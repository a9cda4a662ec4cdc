"""Conflicting engine options are refused at once, even if nothing would run."""

from __future__ import annotations

import pytest
from project import Project

CONFIG = """
async def handler(messages, ctx):
    return "fine"

config = {"agent": {"type": "custom", "name": "h", "handler": handler}}
"""
LOCAL = "agentest: --engine local uses only this process: remove --workers 4"
NOT_RAY = "agentest: --ray-address names a cluster for --engine ray: add --engine ray"
REFUSED = [
    (["--engine", "local", "--workers", "4"], LOCAL),
    (["--ray-address", "auto"], NOT_RAY),
    (["--ray-address", "auto", "--workers", "2"], NOT_RAY),
]
COMMANDS = [["run", *more] for more in ([], ["--list"], ["--dry-run"], ["--watch"], ["--record-tools"])]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize(("options", "message"), REFUSED, ids=["local-workers", "address", "address-workers"])
def test_conflicting_engine_options_are_refused(
    project: Project, command: list[str], options: list[str], message: str
) -> None:
    project.write("agentest.config.py", CONFIG)
    project.scenario("scenario('a', turns=['hello'], expect={'never_says': 'Traceback'})")
    done = project.agentest(*command, *options)
    assert done.returncode == 2, done.stdout
    assert done.stderr.splitlines() == [message]
    assert not (project.root / ".agentest").exists()


@pytest.mark.parametrize("options", [["--engine", "local", "--workers", "1"], ["--engine", "workers"]])
def test_valid_engine_options(project: Project, options: list[str]) -> None:
    project.write("agentest.config.py", CONFIG)
    project.scenario("scenario('a', turns=['hello'], expect={'never_says': 'Traceback'})")
    done = project.run(*options)
    assert done.returncode == 0, done.stdout + done.stderr
