"""`agentest generate`: planted edges of rules are found, and a right agent fails nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from explore_lab import endpoint_of
from policy_agents import INSTRUCTIONS, TOOLS, shop

from agentest.cli.generate import generate
from agentest.scenarios.discovery import discover_file
from agentest.scenarios.model import Scenario
from agentest.support.importing import Imports


def configure(folder: Path, endpoint: str, instructions: str = INSTRUCTIONS, **agent: object) -> None:
    """Write a configuration for the shop's agent."""
    (folder / "prompt.md").write_text(instructions, encoding="utf-8")
    settings = {"endpoint": endpoint, "instructions_file": "prompt.md", "tools": TOOLS, **agent}
    (folder / "agentest.config.yaml").write_text(json.dumps({"agent": settings, "strict": True}))


def generated(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(generate, ["--cwd", str(folder), *arguments])


def scenarios_in(path: Path) -> dict[str, Scenario]:
    found = discover_file(path, Imports())
    assert not found.problems
    return {each.name: each for each in found.scenarios}


def failing(output: str) -> list[str]:
    """The names under the first title, if that is of scenarios that fail."""
    rest = output.partition("fails now: look at it\n")[2]
    shown = rest.partition("kept\n")[0] if rest else ""
    return [row.strip() for row in shown.splitlines() if row.startswith("  ") and not row.startswith("   ")]


@pytest.mark.parametrize(
    ("bug", "name"),
    [
        ("days", "return item at 31 days after delivery, not allowed"),
        ("items", "place order at 3 items, allowed"),
        ("window", "schedule delivery at 17:01, not allowed"),
        ("account", "never delete account"),
        ("cancel", "cancel order only after a yes"),
        ("", None),
    ],
)
def test_planted_bugs_at_edges_fail_first_and_nothing_else_does(
    bug: str, name: str | None, tmp_path: Path
) -> None:
    """Each bug is found by the scenario of its rule; the right agent fails none."""
    with endpoint_of(shop(bug)) as endpoint:
        configure(tmp_path, endpoint)
        done = generated(tmp_path)
    assert done.exit_code == 0, done.output
    assert failing(done.output) == ([name] if name else [])
    written = scenarios_in(tmp_path / "scenarios/generated.sim.py")
    assert len(written) >= 10
    assert all(each.tags == ("generated",) and each.criteria for each in written.values())
    if name:
        assert next(iter(written)) == name
