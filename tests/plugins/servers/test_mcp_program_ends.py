"""The real MCP server as a program: it is gone when we are, also when we are killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from project import wait_until

DEAF = """
import json, os, sys, time
message = json.loads(sys.stdin.readline())
print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": {}}), flush=True)
open("pid", "w").write(f"{os.getpid()} ")
time.sleep(600)  # and never looks at its input again
"""
RUN = """
import sys
from pathlib import Path
import anyio
from agentest.plugins.servers.mcp.upstream import StdioTransport

async def main():
    program = StdioTransport([sys.executable, "deaf.py"], Path("."))
    await program.request({"jsonrpc": "2.0", "id": 1, "method": "ping"})
    await anyio.sleep_forever()

anyio.run(main)
"""


def test_a_killed_run_leaves_no_program(tmp_path: Path) -> None:
    """Even one that takes no notice of the end of its input."""
    (tmp_path / "deaf.py").write_text(DEAF)
    (tmp_path / "run.py").write_text(RUN)
    pid = tmp_path / "pid"
    run = subprocess.Popen([sys.executable, "run.py"], cwd=tmp_path)
    try:
        wait_until(lambda: pid.exists() and pid.read_text().endswith(" "))
    finally:
        run.kill()
        run.wait()
    wait_until(lambda: not _runs(int(pid.read_text())))


def _runs(pid: int) -> bool:
    """Return whether a process still runs; an unreaped one stays as a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        return not Path("/proc/self/stat").exists()
    return state not in ("Z", "X")
