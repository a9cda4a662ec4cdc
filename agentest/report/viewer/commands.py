"""The commands that the page shows, as they are typed into a shell."""

from __future__ import annotations

import shlex

from agentest.support.json_text import Json


def rerun(scenario: Json, several: bool) -> str:
    """The command that runs a scenario again, in the folder of its configuration; "": there is none.

    Args:
        scenario: as in results.json.
        several: whether the run had several agents.
    """
    file, agent = scenario["file"], scenario["agent"]
    if not file or not agent:  # it was no scenario: a file that did not load
        return shlex.join(["agentest", "run", _path(file)]) if file else ""
    words = ["agentest", "run", f"{_path(file)}:{scenario['line']}"]
    if "evalId" in scenario:
        words = ["agentest", "eval", f"{_path(file)}:{scenario['evalId']}"]
    return shlex.join([*words, *(("--agent", agent) if several else ())])


def shown(run: str, scenario: str = "") -> str:
    """The command that prints transcripts of a kept run: of all its scenarios, or of one.

    Args:
        run: its id; "": the latest.
    """
    only = ("--scenario", f"={scenario}") if scenario else ()
    return shlex.join(["agentest", "show", run or "latest", *only, "--verbose"])


def _path(file: str) -> str:
    """A path that no command takes for an option."""
    return f"./{file}" if file.startswith("-") else file
