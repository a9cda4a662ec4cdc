"""One workload in workers: the same results, journal, reports and words as in one process."""

from __future__ import annotations

from engine_workload import PRINTING, check_the_same
from project import Project


def test_the_same_workload_leaves_the_same(project: Project) -> None:
    check_the_same(project, "--workers", "3")


def test_what_workers_print_comes_in_whole_lines(project: Project) -> None:
    """Also where Python writes without a buffer, as in many containers."""
    project.write("agentest.config.py", PRINTING)
    project.scenario("for n in range(8):\n    scenario(f's{n}', turns=['go'])")
    done = project.run("--workers", "3")
    assert done.returncode == 0, done.stderr
    printed = [line for line in done.stdout.splitlines() if "xxx" in line or "yyy" in line]
    assert set(printed) == {f"printed {'x' * 500} {'y' * 500} z"}
    assert len(printed) == 8 * 200
