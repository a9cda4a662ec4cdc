"""User files that are not regular files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from project import Project

ODD: dict[str, Callable[[Path], object]] = {
    "a named pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
}


def check_odd_file(
    project: Project, name: str, kind: str, command: tuple[str, ...], keys: dict[str, Any]
) -> None:
    """Check that a pipe or device is not read, and that the error names it and its kind."""
    project.write("fine.test.json", '[{"query": "x", "reference": "y"}]')
    project.scenario('scenario("s", turns=["x"])', "fine.sim.py")
    project.config("x", agent={"endpoint": "http://127.0.0.1:9/", "retries": 0, **keys})
    odd = project.root / name
    odd.parent.mkdir(exist_ok=True)
    odd.unlink(missing_ok=True)
    ODD[kind](odd)
    done = project.agentest(*command)
    said = done.stdout + done.stderr
    assert done.returncode == 2, said
    assert name in said or "/dev/zero: " in said
    link_out = kind == "a device" and name.endswith(".sim.py")
    assert ("it is a link to /dev/zero" if link_out else f"it is {kind}, not a file") in said, said
