"""Recording and replaying with workers: cassettes and results equal those of one process."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest
from model_server import ModelServer, best, model_keys
from project import Project
from timeless import timeless

HANDLER = """
import os
from pathlib import Path

async def handler(messages, ctx):
    turn = len(messages) // 2
    if DIES and turn == 1:
        try:
            os.close(os.open("died", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            pass
        else:
            os.kill(os.getpid(), 9)
    return f"answer {turn}"
"""


def configured(project: Project, model: ModelServer | None = None, *, dies: bool = False) -> None:
    """Configure an agent that runs in the workers and can kill one in a second turn."""
    config = {"reporters": ["console", "json"], **(model_keys(model) if model else {})}
    agent = '{"type": "custom", "name": "h", "handler": handler}'
    text = f"{HANDLER}\nDIES = {dies}\nconfig = {{'agent': {agent}, **{config!r}}}\n"
    project.write("agentest.config.py", text)


def one_scenario(project: Project, conversations: int = 20) -> None:
    project.scenario(f"scenario('huge', goal='Get help.', conversations_per_scenario={conversations})")


def cassettes(project: Project) -> dict[str, bytes]:
    folder = project.root / ".agentest" / "cassettes"
    return {path.name: path.read_bytes() for path in folder.glob("*")}


def ran(project: Project, *arguments: str) -> Any:
    """Run, check that it passes, and return the results."""
    done = project.run(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return timeless(project.results)


@pytest.mark.slow
def test_one_huge_scenario(project: Project) -> None:
    """Two workers record, replay and extend with the same bytes and results as one."""
    one_scenario(project)
    found: dict[str, list[Any]] = {}
    with ModelServer(script=best) as model:
        for more in ("--workers=2", "--workers=1"):
            shutil.rmtree(project.root / ".agentest", ignore_errors=True)
            one_scenario(project)
            configured(project, model)
            found[more] = [ran(project, more, "--record"), cassettes(project)]
            asked = len(model.received)
            configured(project)
            found[more] += [ran(project, more, "--replay"), cassettes(project)]
            one_scenario(project, 24)
            configured(project, model)
            assert len(model.received) == asked
            found[more] += [ran(project, more, "--replay-or-record"), cassettes(project)]
            # Four conversations of some questions each, and what sorts the failures of all.
            assert 0 < len(model.received) - asked < asked / 3
    assert found["--workers=2"] == found["--workers=1"]
    recorded, recording, replayed, same, *_ = found["--workers=2"]
    assert replayed == recorded
    assert list(recording) == list(same)
    assert recording == same


@pytest.mark.parametrize("mode", ["--record", "--replay-or-record"])
def test_a_worker_that_is_killed_while_it_records(project: Project, mode: str) -> None:
    """Its conversations are recorded again, and the file shows no trace of it."""
    one_scenario(project, 8)
    with ModelServer(script=best) as model:
        configured(project, model)
        ran(project, "--workers=2", mode)
        whole = cassettes(project)
        shutil.rmtree(project.root / ".agentest")
        configured(project, model, dies=True)
        ran(project, "--workers=2", mode)
    assert (project.root / "died").exists()
    assert any("retry" in each["conversationId"] for each in project.results["scenarios"][0]["conversations"])
    assert cassettes(project) == whole


def test_a_worker_that_is_killed_while_it_replays(project: Project) -> None:
    """Usage equals that of the recording; only ids differ."""
    one_scenario(project, 8)
    with ModelServer(script=best) as model:
        configured(project, model)
        recorded = ran(project, "--workers=2", "--record")
    configured(project, dies=True)
    replayed = ran(project, "--workers=2", "--replay")
    assert (project.root / "died").exists()
    text = json.dumps(replayed)
    assert "-retry1" in text
    assert json.loads(text.replace("-retry1", "")) == recorded


def test_a_recording_that_cannot_be_written_stops_the_run(project: Project) -> None:
    """The message is that of a single process, and printed once."""
    one_scenario(project, 6)
    with ModelServer(script=best) as model:
        configured(project, model)
        ran(project, "--record")
        (name,) = cassettes(project)
        (project.root / ".agentest" / "cassettes" / f"{name}.partial").mkdir()
        one = project.run("--record")
        two = project.run("--workers=2", "--record")
    assert one.returncode == two.returncode == 2
    told = "the recording cannot be written"
    lines = [line for line in one.stderr.splitlines() if told in line]
    assert len(lines) == 1, one.stdout + one.stderr
    assert [line for line in two.stderr.splitlines() if told in line] == lines


def test_a_missing_recording_stops_the_run(project: Project) -> None:
    """The message is that of a single process."""
    one_scenario(project, 1)
    with ModelServer(script=best) as model:
        configured(project, model)
        ran(project, "--record")
    one_scenario(project, 2)
    configured(project)
    one = project.run("--replay")
    two = project.run("--workers=2", "--replay")
    assert one.returncode == two.returncode == 2
    assert "nothing to replay for user, conversation 2" in one.stderr
    assert two.stderr == one.stderr
