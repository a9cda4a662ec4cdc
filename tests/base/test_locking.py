"""Locks: one process at a time uses a locked folder, and each run has its own folder."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from project import DEADLINE_S, Project, interrupt, wait_until

from agentest.store.runs.folder import list_stored_runs
from agentest.support.locking import LOCK, FolderLocked, is_locked, locked
from agentest.testing import ScriptedAgent


def test_a_lock_is_exclusive(tmp_path: Path) -> None:
    """A locked folder cannot be locked again until it is released; then nothing is left in it."""
    with locked(tmp_path, "2026-01-02T03:04:05"):
        with pytest.raises(FolderLocked) as raised, locked(tmp_path, "later", pytest.fail):
            pass
        assert f"{tmp_path}: process {os.getpid()}, started at 2026-01-02T03:04:05" in str(raised.value)
    with locked(tmp_path, "again"):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_lock_that_is_removed_before_it_is_taken_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_replaced: bool
) -> None:
    """A run that opened the file of an earlier run, which then removed it, still has a lock to be seen."""
    opened: list[int] = []

    def open_before_removal(path: Path, *arguments: int) -> int:
        opened.append(end := os_open(path, *arguments))
        if len(opened) == 1:
            path.unlink()
            if is_replaced:
                path.touch()
        return end

    os_open = os.open
    monkeypatch.setattr(os, "open", open_before_removal)
    with locked(tmp_path, "now"):
        assert is_locked(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff", b'{"process": "x"}'])
def test_a_lock_with_any_content(tmp_path: Path, content: bytes) -> None:
    """The lock does not depend on the content of its file."""
    (tmp_path / LOCK).write_bytes(content)
    with locked(tmp_path, "now"):
        (tmp_path / LOCK).write_bytes(content)
        with pytest.raises(FolderLocked, match="another run writes to"), locked(tmp_path, "later"):
            pass


def test_a_run_waits_for_processes_that_only_look(tmp_path: Path) -> None:
    """Processes that check the lock share it for a while, which is not another run."""
    (tmp_path / LOCK).write_text("{}")
    looking = (tmp_path / LOCK).open("r+")
    fcntl.flock(looking, fcntl.LOCK_SH)
    paused: list[float] = []

    def pause(seconds: float) -> None:
        paused.append(seconds)
        if len(paused) == 50:
            looking.close()

    with locked(tmp_path, "now", pause):
        assert is_locked(tmp_path)
    assert len(paused) == 50


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    """A symlink in place of the lock is an error, and its target is unchanged."""
    (tmp_path / "mine").write_text("mine")
    (tmp_path / LOCK).symlink_to(tmp_path / "mine")
    with pytest.raises(OSError), locked(tmp_path, "now"):
        pass
    assert (tmp_path / "mine").read_text() == "mine"


def test_checking_a_lock_does_not_look_like_a_run(tmp_path: Path) -> None:
    """Threads that check a stale lock at once all find it free; a real lock is seen by all."""
    (tmp_path / LOCK).write_text("{}")
    seen: list[bool] = []

    def look() -> None:
        seen.extend(is_locked(tmp_path) for _ in range(500))

    looking = [threading.Thread(target=look) for _ in range(4)]
    for each in looking:
        each.start()
    for each in looking:
        each.join()
    assert (len(seen), any(seen)) == (2000, False)
    with locked(tmp_path, "now"):
        assert is_locked(tmp_path)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked here")
def test_a_forked_process_does_not_keep_the_lock(tmp_path: Path) -> None:
    """A worker that briefly outlives its run does not block the next run."""
    ours, theirs = os.pipe()
    with locked(tmp_path, "now"):
        child = os.fork()
        if not child:
            os.close(theirs)
            os.read(ours, 1)  # until the parent closes its end
            os._exit(0)
    with locked(tmp_path, "again"):
        pass
    os.close(theirs)
    os.close(ours)
    assert os.waitpid(child, 0)[1] == 0


@contextmanager
def running(project: Project, *arguments: str, **config: Any) -> Iterator[Any]:
    """A run whose first scenario has finished and whose second never ends."""
    stuck, over = threading.Event(), threading.Event()

    def answer(body: dict[str, Any]) -> str:
        if body["messages"][-1]["content"] == "wait":
            stuck.set()
            over.wait(DEADLINE_S)
        return "done"

    project.scenario('scenario("quick", turns=["go"])\nscenario("slow", turns=["wait"])')
    with ScriptedAgent(answer) as agent:
        project.config(agent.endpoint, request_timeout_ms=DEADLINE_S * 1000, **config)
        process = project.start(*arguments)
        try:
            assert stuck.wait(DEADLINE_S)
            wait_until(lambda: project.finished == ["quick"])
            yield process
        finally:
            over.set()
            process.kill()
            process.communicate(timeout=DEADLINE_S)


@pytest.mark.parametrize("arguments", [("run",), ("run", "--workers", "2"), ("judge", "old.json")])
def test_two_concurrent_runs(project: Project, arguments: tuple[str, ...]) -> None:
    """Each has its own folder, neither loses anything, and the fixed names are those of the first."""
    folder = project.root / ".agentest"
    with running(project) as process:
        if arguments[0] == "judge":
            (project.root / "old.json").write_text((folder / "journal.jsonl").read_text())
        done = project.agentest(*arguments, "--scenario", "quick")
        assert done.returncode == 0, done.stdout + done.stderr
        first, other = sorted(list_stored_runs(folder), key=lambda run: not run.under_way)
        second = folder / "judged.json" if arguments[0] == "judge" else other.path / "results.json"
        assert [s["name"] for s in json.loads(second.read_text())["scenarios"]] == ["quick"]
        said = f"another run writes to {folder}: process {process.pid}, started at {first.id}; "
        said += f"{folder / 'results.json'} will be that run's, and this run writes to {other.path}\n"
        assert done.stderr.count(said) == (arguments[0] == "run")
        assert not (folder / "results.json").exists()
        assert (first.under_way, other.under_way) == (True, False)
        code, out, err = interrupt(process)
    assert code == 130, out + err
    assert not first.under_way
    statuses = {"quick": "passed", "slow": "errored"}
    assert {s["name"]: s["status"] for s in project.results["scenarios"]} == statuses
    assert sorted(path.name for path in first.path.iterdir()) == ["journal.jsonl", "results.json", "run.json"]
    assert first.record is not None
    assert first.record.ended is not None
    assert first.record.ended.interrupted


def test_two_runs_do_not_record_to_one_folder(project: Project) -> None:
    """The second exits with status 2, and names the other run and what to do."""
    folder = project.root / ".agentest" / "cassettes"
    folder.mkdir(parents=True)
    project.scenario('scenario("s", turns=["x"])')
    with ScriptedAgent(["y"]) as agent, locked(folder, "2026-01-02T03:04:05"):
        project.config(agent.endpoint, model="openai/gpt-5-mini")
        done = project.run("--record", env={"OPENAI_API_KEY": "k"})
    assert done.returncode == 2
    assert f"another run writes to {folder}: process {os.getpid()}, started at 2026-01-02" in done.stderr
    assert "wait for its end, or record to another folder (--cassettes)" in done.stderr


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_killed_run_does_not_block_the_next(project: Project, workers: str) -> None:
    """After kill -9 the next run starts at once."""
    with running(project, "--workers", workers) as process:
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=DEADLINE_S)
        done = project.run("--scenario", "quick")
    assert done.returncode == 0, done.stdout + done.stderr
