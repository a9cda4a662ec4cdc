"""Ctrl-C while Python makes an event loop."""

from __future__ import annotations

import subprocess
import sys

from project import DEADLINE_S, Project, clean_environment

HALF_A_LOOP = """
import os, runpy, signal, sys

def pressed(frame, event, arg):
    if event == "call" and frame.f_code.co_name == "_make_self_pipe":
        sys.setprofile(None)
        os.kill(os.getpid(), signal.SIGINT)

sys.setprofile(pressed)
runpy.run_module("agentest", run_name="__main__")
"""


def check_early_interrupt(project: Project, *command: str) -> None:
    project.config("http://127.0.0.1:1/v1")
    project.scenario('scenario("s", turns=["x"])')
    ended = subprocess.run(
        [sys.executable, "-c", HALF_A_LOOP, *command],
        cwd=project.root,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (130, "agentest: interrupted\n"), ended
