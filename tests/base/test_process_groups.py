"""Programs that we start: all of them by one function, and none outlives this process or its cancellation."""

from __future__ import annotations

import ast
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from project import DEADLINE_S, Project, clean_environment, wait_until

import agentest
from agentest.support import reaper
from agentest.testing import ScriptedAgent

PACKAGE = Path(agentest.__file__).parent
STARTERS = {
    "plugins/page/commands/chat.py": {"Popen"},
    "support/interrupts.py": {"Popen"},
    "support/process_groups.py": {"create_subprocess_exec", "create_subprocess_shell"},
    "workers/processes.py": {"get_context"},
    "support/terminal.py": {"webbrowser"},
}
"""Module → what it starts processes with: a conversation that goes on between two commands and ends itself,
programs, helpers that exit with their input, workers, browsers.
"""
STARTING = {
    *("Popen", "popen", "posix_spawn", "posix_spawnp", "fork", "forkpty", "startfile", "pty", "webbrowser"),
    *("create_subprocess_exec", "create_subprocess_shell", "subprocess_exec", "subprocess_shell"),
    *("open_process", "run_process", "to_process", "ProcessPoolExecutor", "get_context", "launch", "edit"),
    *("stdio_client", "StdioServerParameters"),
}


def test_all_programs_are_started_by_one_function() -> None:
    """Whoever starts a process by other means must end it however this process ends: see STARTERS."""
    found: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        names = _called(ast.parse(path.read_text()))
        if names & STARTING and not {"templates", "docs"} & {*path.relative_to(PACKAGE).parts}:
            found[path.relative_to(PACKAGE).as_posix()] = names & STARTING
    assert found == {name: STARTERS[name] for name in STARTERS if (PACKAGE / name).exists()}


def _called(tree: ast.Module) -> set[str]:
    """Return imported names, and names and attributes in expressions, except in annotations."""
    annotations = {
        id(inner)
        for node in ast.walk(tree)
        for field in ("annotation", "returns")
        if (annotation := getattr(node, field, None))
        for inner in ast.walk(annotation)
    }
    used = [node for node in ast.walk(tree) if id(node) not in annotations]
    calls = {f for node in used if isinstance(node, ast.Call) for f in [node.func]}
    names = {f.id for f in calls if isinstance(f, ast.Name)} | {
        f.attr for f in calls if isinstance(f, ast.Attribute)
    }
    whole = {ast.unparse(each) for each in calls}
    by_module = {"Popen" for name in whole if name.startswith(("subprocess.", "os.system", "os.spawn"))}
    passed = {f.attr for f in used if isinstance(f, ast.Attribute) and f.attr.startswith("create_subprocess")}
    modules = {alias.name for node in used if isinstance(node, ast.Import) for alias in node.names}
    return names | by_module | passed | modules


STUBBORN = """
import os, pathlib, signal, subprocess, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
depth = int(sys.argv[1])
if depth:
    code = pathlib.Path(__file__)
    subprocess.Popen([sys.executable, code, str(depth - 1)], process_group=0 if depth == 1 else None)
else:
    pathlib.Path("up").touch()
time.sleep(600)
"""
OWNER = """
import contextlib, os, pathlib, subprocess, sys, anyio
from agentest.support.deadlines import TimeLimit
from agentest.support.process_groups import start_process

async def up():
    while not pathlib.Path("up").exists():
        await anyio.sleep(0.02)

async def program():
    process = await start_process([sys.executable, "stubborn.py", "2"])
    try:
        await up()
        pathlib.Path("ready").touch()
        await anyio.sleep_forever()
    finally:
        await process.end(1.5)

async def main(how):
    if how == "limit":
        with contextlib.suppress(TimeoutError), TimeLimit(1.0):
            await program()
    elif how == "exit":
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(program)
            await up()
            os._exit(0)
    elif how == "begin":
        begin = subprocess.Popen._execute_child

        def interrupted(popen, words, *options):
            begin(popen, words, *options)
            if "stubborn.py" in words:
                raise KeyboardInterrupt

        subprocess.Popen._execute_child = interrupted
        await program()
    elif how == "leave":
        await start_process([sys.executable, "stubborn.py", "2"])
        await up()
    else:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(program)
            await up()
            if how == "cancel":
                tasks.cancel_scope.cancel()

anyio.run(main, sys.argv[1])
"""
MARK = "MARK_OF_THE_TEST"


def marked(mark: str) -> Iterator[int]:
    """Yield the running processes whose environment has the mark."""
    for process, _, _ in reaper._processes():
        try:
            if f"{MARK}={mark}".encode() in Path(f"/proc/{process}/environ").read_bytes():
                yield process
        except OSError:
            continue


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("how", ["cancel", "limit", "exit", "begin", "leave", "INT", "TERM", "HUP", "KILL"])
def test_nothing_is_left(tmp_path: Path, how: str) -> None:
    """A program that ignores signals, its child and a grandchild in another group are ended in any case."""
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    (tmp_path / "owner.py").write_text(OWNER)
    env = clean_environment({MARK: str(tmp_path)})
    owner = subprocess.Popen(
        [sys.executable, "owner.py", how], cwd=tmp_path, env=env, stderr=subprocess.DEVNULL
    )
    if number := getattr(signal, f"SIG{how}", None):
        wait_until((tmp_path / "ready").exists)
        assert len(list(marked(str(tmp_path)))) == 5  # with the owner and the reaper
        owner.send_signal(number)
    owner.wait()
    wait_until(lambda: not list(marked(str(tmp_path))))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_killed_while_a_program_starts() -> None:
    """A program of which the reaper could not be told is found by its mark; others are left alone."""
    words = [sys.executable, "-I", "-S", reaper.__file__, "mine"]
    watching = subprocess.Popen(words, stdin=subprocess.PIPE, text=True)
    started = [
        subprocess.Popen(["sleep", "600"], env={reaper.MARK: mark}, start_new_session=True)
        for mark in ("mine", "other")
    ]
    watching.communicate("?\n")
    assert [each.poll() for each in started] == [-signal.SIGTERM, None]
    started[1].kill()
    started[1].wait()


IGNORES = "trap '' TERM; touch here; while true; do sleep 1; done"


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("signals", ["INT", "INT INT", "TERM", "TERM TERM", "HUP", "KILL"])
def test_no_command_of_a_header_is_left(project: Project, signals: str) -> None:
    """A command that ignores SIGTERM ends with the run, however the run ends."""
    mark = str(project.root)
    project.scenario('scenario("s", turns=["x"])')
    with ScriptedAgent(["hi"]) as agent:
        headers = {"Authorization": {"command": IGNORES}}
        project.config("", agent={"endpoint": agent.endpoint, "headers": headers})
        process = project.start(env={MARK: mark})
        wait_until((project.root / "here").exists)
        for number in signals.split():
            process.send_signal(getattr(signal, f"SIG{number}"))
        process.communicate(timeout=DEADLINE_S)
    assert process.returncode == (-signal.SIGKILL if signals == "KILL" else 130)
    wait_until(lambda: not list(marked(mark)))
