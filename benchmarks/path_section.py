"""What one message passes: functions and files of Agentest, and the modules that a run of it imports.

Counted, not timed, so the figures are the same on every machine. A profiler watches all threads while three
scripted conversations of one message run one after another with a chat completions agent on loopback, and
counts during the second, so what happens once in a process is left out. Comprehensions and lambdas are
parts of their functions.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from benchmarks.fakes import fakes
from benchmarks.process import Failed, environment, printed_json
from benchmarks.results import Found, Target, table
from benchmarks.workload import Options, endpoint, plain_question, write_config

_CONVERSATIONS, _COUNTED = 3, 2
_CONVERSED = "from the call of `converse` to its result"
_CHECKED = "from the call of `run`, which has it checked against a trajectory, to its result"
_REPORTED = "from one call of `converse` to the next, with journal and console"
_MOST = {"functions": 200, "files": 35, "modules": 120}
_COUNT_MODULES = """
import atexit, sys
def count():
    names = [name for name, module in sys.modules.items() if getattr(module, "__file__", None)]
    print(sum(name.partition(".")[0] == "agentest" for name in names), file=sys.stderr)
atexit.register(count)
from agentest.cli.main import main
main()
"""
_CHECK = ', tools={"look_up": lambda args, ctx: 1}, trajectory={"match_mode": "contains", "expected": []}'


def section(options: Options) -> Found:  # noqa: ARG001 - the work is one message
    """Count, and tell it."""
    passed: dict[str, dict[str, int]] = printed_json("benchmarks.path_section")
    rows = [[title, str(found["functions"]), str(found["files"])] for title, found in passed.items()]
    text = table(("what one message passes", "functions", "files"), rows)
    figures = {**passed[_REPORTED], "modules": _imported()}
    titles = {name: f"{name} of Agentest that one message passes" for name in figures}
    titles["modules"] = "modules of Agentest that a run of one message imports"
    return Found(text, tuple(Target(titles[name], figures[name], _MOST[name], "") for name in figures))


def _imported() -> int:
    """Return how many modules of Agentest, each a file, a run of one message has imported at its end."""
    with tempfile.TemporaryDirectory(prefix="agentest-bench-") as made, fakes(0.0, 0.0) as servers:
        _write(Path(made), servers.agent_port, 1, "")
        command = [sys.executable, "-c", _COUNT_MODULES, "run"]
        done = subprocess.run(command, cwd=made, env=environment(), capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"{' '.join(command[1:])} ended with {done.returncode}:\n{done.stdout}")
    return int(done.stderr.splitlines()[-1])


def _write(folder: Path, port: int, conversations: int, more: str) -> None:
    write_config(folder, {"agent": {"name": "fake", "endpoint": endpoint(port)}})
    text = f"from agentest import scenario\n\nscenario('one', turns=[{plain_question(1)!r}], "
    text += f"conversations_per_scenario={conversations}{more})\n"
    (folder / "one.sim.py").write_text(text, encoding="utf-8")


class _Passed:
    """The functions that were called while it was told to count, in all threads."""

    def __init__(self, package: str) -> None:
        self._package = package
        self._titles: set[str] = set()
        self._found: dict[str, set[CodeType]] = {_CONVERSED: set(), _CHECKED: set(), _REPORTED: set()}

    def see(self, frame: FrameType, event: str, argument: object) -> None:  # noqa: ARG002
        """Note a call: the profiler."""
        code = frame.f_code
        if event == "call" and self._titles and code.co_filename.startswith(self._package):
            for title in self._titles:
                self._found[title].add(code)

    def watch(self, owner: type, method: str, during: str, until_next: str = "") -> None:
        """Count during the second call of a coroutine method, and from there to the third."""
        inner, calls = getattr(owner, method), 0

        async def watched(*arguments: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            counts = {during, until_next} - {""} if calls == _COUNTED else set()
            self._titles -= {until_next}
            self._titles |= counts
            try:
                return await inner(*arguments, **named)
            finally:
                self._titles -= {during}

        setattr(owner, method, watched)

    def counted(self) -> dict[str, dict[str, int]]:
        named = {title: [c for c in found if c.co_name[0] != "<"] for title, found in self._found.items()}
        return {
            title: {"functions": len(found), "files": len({code.co_filename for code in found})}
            for title, found in named.items()
        }


def main() -> None:
    """Run the conversations in this process and print what one of them passed, as JSON."""
    import agentest
    from agentest.cli.main import main as run
    from agentest.runner.conversation_run import LocalConversationRunner
    from agentest.runner.sources import LiveConversations

    passed = _Passed(str(Path(agentest.__file__).parent) + os.sep)
    passed.watch(LocalConversationRunner, "run", _CHECKED)
    passed.watch(LiveConversations, "converse", _CONVERSED, _REPORTED)
    output = StringIO()
    with tempfile.TemporaryDirectory(prefix="agentest-bench-") as made, fakes(0.0, 0.0) as servers:
        _write(Path(made), servers.agent_port, _CONVERSATIONS, _CHECK)
        sys.argv = ["agentest", "run", "--concurrency", "1"]
        threading.setprofile(passed.see)
        sys.setprofile(passed.see)
        try:
            with chdir(made), redirect_stdout(output):
                run()
        except SystemExit as error:
            if error.code:
                raise Failed(f"agentest run ended with {error.code}:\n{output.getvalue()}") from error
        finally:
            sys.setprofile(None)
    print(json.dumps(passed.counted()))


if __name__ == "__main__":
    main()
