"""One workload on every engine: the same results, journal, reports and output, but for times and ids."""

from __future__ import annotations

from engine_workload import PRINTING, check_the_same
from project import Project


def test_all_engines_give_the_same_results(project: Project) -> None:
    check_the_same(project, "--workers", "3")


def test_workers_print_whole_lines(project: Project) -> None:
    """This holds even with unbuffered Python, as in many containers."""
    project.write("agentest.config.py", PRINTING)
    project.scenario("for n in range(8):\n    scenario(f's{n}', turns=['go'])")
    done = project.run("--workers", "3")
    assert done.returncode == 0, done.stderr
    printed = [line for line in done.stdout.splitlines() if "xxx" in line or "yyy" in line]
    assert set(printed) == {f"printed {'x' * 500} {'y' * 500} z"}
    assert len(printed) == 8 * 200
