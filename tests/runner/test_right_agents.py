"""Strict mode on right agents: of the scenarios that such an agent passes, at most 1 % are errored."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from project import Project, free_port

from agentest import Scenario, scenario
from agentest.domain.results import ReasonKind, ScenarioResult
from agentest.scenarios.definition import collect_scenarios
from agentest.scenarios.trajectory import AnyOf
from agentest.support.errors import UsageError
from agentest.testing import ScriptedAgent, run_scenarios, tool_call

ROOT = Path(__file__).parents[2]
CALLS = "Show that your calls are seen."
PROJECTS = ("agentest.config.yaml", "examples/support_agent/agentest.config.yaml")
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)


def documented() -> list[Scenario]:
    """The scenarios with a script in the documentation's blocks, except those for special agents."""
    found: list[Scenario] = []
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for match in _BLOCK.finditer(page.read_text(encoding="utf-8")):
            if "scenario(" not in match[1] or "run_scenarios" in match[1] or "Runner" in match[1]:
                continue
            with collect_scenarios() as made:
                try:
                    exec(
                        compile(match[1], str(page), "exec", dont_inherit=True), {"__name__": "documentation"}
                    )
                except ImportError:  # a module of the reader's project
                    continue
            found += filter(is_for_any_agent, made)
    return found


def is_for_any_agent(made: Scenario) -> bool:
    """True for a script that checks something and needs no agent that meets faults or asks for approval."""
    checks = made.trajectories or made.expect or made.checks or any(turn.expect for turn in made.turns)
    return bool(made.turns and checks) and not (made.changes or made.approve_keys)


def right_agent(made: Scenario) -> Any:
    """Make the calls that the scenario expects, then say what it wants to hear."""
    in_turns = any(turn.trajectory for turn in made.turns)

    def calls(at: int) -> list[Any]:
        expecting = made.turns[at].trajectory if in_turns else made.trajectory if at == 0 else ()
        steps = [step for each in expecting for step in each.expected or ()]
        singles = [step.paths[0][0] if isinstance(step, AnyOf) else step for step in steps]
        return [tool_call(str(each.name), **(each.args or {})) for each in singles]  # type: ignore[union-attr]

    def answer(body: dict[str, Any]) -> Any:
        said = body["messages"]
        if said[0]["content"] == CALLS:
            return "Found." if said[-1]["role"] == "tool" else tool_call("known")
        at = sum(message["role"] == "user" for message in said) - 1
        if said[-1]["role"] != "tool" and (made_now := calls(at)):
            return made_now
        wanted = made.turns[at].expect
        everywhere = [each.wanted for each in made.expect if not each.never]
        texts = [*(wanted.contains if wanted else ()), *(wanted.says if wanted else ()), *everywhere]
        return " ".join(["Done:", *(each for each in texts if isinstance(each, str))])

    return answer


def judged(made: Scenario) -> ScenarioResult | None:
    """The scenario's result in strict mode; None if the agent is not right, or not for such a scenario."""
    seen = scenario("seen", turns=[CALLS], tools={"known": 1}, trajectory={"expected": ["known"]})
    try:
        with ScriptedAgent(right_agent(made)) as agent:
            found = run_scenarios([made, seen], agent=agent, unmocked_tools="passthrough").scenarios[0]
    except UsageError:
        return None
    calls = [call for each in found.conversations for call in each.conversation.tool_calls]
    return None if any(call.invalid_arguments for call in calls) else found


def test_at_most_one_percent_of_right_scenarios_are_errored(tmp_path: Path) -> None:
    """The examples with their agents, and the documentation's scripts with an agent that does as they say."""
    right: list[tuple[str, list[str]]] = []
    for made in documented():
        found = judged(made)
        if found and all(reason.kind is ReasonKind.WARNING for reason in found.verdict.reasons):
            right.append((made.name, [reason.message for reason in found.verdict.reasons]))
    for number, config in enumerate(PROJECTS):
        text = re.sub("8717|8718|8727", str(free_port()), (ROOT / config).read_text(encoding="utf-8"))
        out = tmp_path / str(number)
        out.mkdir()
        (out / "agentest.config.yaml").write_text(
            f"{text}\noutput_dir: {json.dumps(str(out))}\n", encoding="utf-8"
        )
        folder = (ROOT / config).parent
        assert Project(folder).run("--config", str(out / "agentest.config.yaml")).returncode == 0
        for each in json.loads((out / "results.json").read_text(encoding="utf-8"))["scenarios"]:
            right.append((each["name"], each["failures"]))
    errored = [(name, why) for name, why in right if why]
    assert len(right) >= 60
    assert len(errored) * 100 <= len(right), errored
