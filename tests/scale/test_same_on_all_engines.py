"""One workload on every engine: the same results, lines of the journal, reports and words."""

from __future__ import annotations

from project import Project

PRINTING = """
import sys

sys.stdout.reconfigure(write_through=True)  # as PYTHONUNBUFFERED=1 does it

async def handler(messages, ctx):
    for _ in range(200):
        print("printed", "x" * 500, "y" * 500, "z")
    return "done"

config = {"agent": {"type": "custom", "name": "h", "handler": handler}}
"""


def test_what_workers_print_comes_in_whole_lines(project: Project) -> None:
    """Also where Python writes without a buffer, as in many containers."""
    project.write("agentest.config.py", PRINTING)
    project.scenario("for n in range(8):\n    scenario(f's{n}', turns=['go'])")
    done = project.run("--workers", "3")
    assert done.returncode == 0, done.stderr
    printed = [line for line in done.stdout.splitlines() if "xxx" in line or "yyy" in line]
    assert set(printed) == {f"printed {'x' * 500} {'y' * 500} z"}
    assert len(printed) == 8 * 200
