"""`agentest generate`: a model proposes, and what is invalid, wrong, known or useless is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from explore_lab import endpoint_of
from model_server import Answer, ModelServer, Received, completion
from policy_agents import INSTRUCTIONS, TOOLS, shop

from agentest.cli.main import cli
from agentest.plugins.authoring.generation import parts_of
from agentest.scenarios.discovery import discover_file
from agentest.scenarios.model import Scenario
from agentest.support.importing import Imports

RETURNS = "Customers may return items up to 30 days after delivery."
NOWHERE = "http://127.0.0.1:9/chat"


def proposal(name: str, *messages: str, **fields: Any) -> dict[str, Any]:
    """A proposal as a model sends it; `expected` and `results` map tools to objects."""
    expected, results = fields.pop("expected", {}), fields.pop("results", {})
    return {
        "quote": RETURNS,
        "reasoning": "The rule decides.",
        "name": name,
        "messages": list(messages),
        "results": [{"tool": each, "result_json": json.dumps(results[each])} for each in results],
        "expected": [{"tool": each, "arguments_json": json.dumps(expected[each])} for each in expected],
        "forbidden": [],
        "criterion": "The assistant keeps to the rule.",
        **fields,
    }


AT_30 = proposal("return after 30 days", "Return order A-7 after 30 days.", expected={"return_item": {}})
AT_31 = proposal("return after 31 days", "Return order A-7 after 31 days.", forbidden=["return_item"])


def proposing(*proposals: Mapping[str, Any], refuse: str = "never") -> Callable[[Received], Answer]:
    """A model that proposes these once, and finds a contradiction in scenarios whose name has `refuse`."""
    left = list(proposals)

    def answer(request: Received) -> Answer:
        prompt = request.body["messages"][-1]["content"]
        if "test scenarios for it" in prompt:
            listed = re.findall(r"^(\d+)\. (.*)$", prompt.partition("Scenarios:\n")[2], re.MULTILINE)
            reviews = [
                {"number": int(number), "reasoning": "The rule says so.", "contradicts": refuse in name}
                for number, name in listed
            ]
            return completion({"reviews": reviews})
        if "Propose" in prompt:
            made, left[:] = left[:], []
            return completion({"scenarios": made})
        return completion({"criteria": [], "reason": "x", "value": 5})  # a judge that is of no use

    return answer


def generated(
    folder: Path,
    model: Callable[[Received], Answer] | None,
    *arguments: str,
    endpoint: str = NOWHERE,
    instructions: str = INSTRUCTIONS,
    tools: object = TOOLS,
) -> Result:
    """Run the command in a project of the shop's agent."""
    (folder / "prompt.md").write_text(instructions, encoding="utf-8")
    config: dict[str, Any] = {
        "agent": {"endpoint": endpoint, "instructions_file": "prompt.md", "tools": tools},
        "metrics": [],
    }
    with ModelServer(script=model or (lambda _: completion({}))) as server:
        if model:
            options = {"base_url": server.base_url}
            config |= {"provider": "openai-compatible", "model": "m", "provider_options": options}
        (folder / "agentest.config.yaml").write_text(json.dumps(config))
        return CliRunner().invoke(cli, ["generate", "--cwd", str(folder), *arguments], standalone_mode=False)


def written(folder: Path, name: str = "generated.sim.py") -> dict[str, Scenario]:
    found = discover_file(folder / "scenarios" / name, Imports())
    assert not found.problems
    return {each.name: each for each in found.scenarios}


@pytest.mark.parametrize(("bug", "is_found"), [("days", True), ("", False)])
def test_a_proposal_that_fails_is_shown_first_and_kept(bug: str, is_found: bool, tmp_path: Path) -> None:
    """The edge of a rule convicts the agent with the bug, and nothing of the right agent fails."""
    with endpoint_of(shop(bug)) as endpoint:
        done = generated(tmp_path, proposing(AT_30, AT_31), endpoint=endpoint)
    assert done.return_value == 0, done.output
    assert ("fails now: look at it\n  return after 31 days" in done.output) == is_found
    assert f'from prompt.md:3: "{RETURNS}"' in done.output or not is_found
    scenarios = written(tmp_path)
    assert set(scenarios) == {"return after 30 days", "return after 31 days"}
    assert all(each.tags == ("generated",) for each in scenarios.values())
    assert set(scenarios["return after 30 days"].tools) == {"return_item"}


def test_without_a_model_the_command_names_the_skill(tmp_path: Path) -> None:
    """Nothing is guessed from English: exit status 2, and the way for a coding agent."""
    done = generated(tmp_path, None)
    assert done.return_value == 2
    assert "takes a model" in done.output
    assert "agentest skill install" in done.output
    assert not (tmp_path / "scenarios").exists()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"quote": "Refunds are forbidden."}, "its rule is not in the material word for word"),
        ({"forbidden": ["drop_tables"]}, "names an unknown tool"),
        ({"messages": [" "]}, "without a name, or without messages"),
        ({"messages": ["x"] * 9}, "without a name, or without messages"),
        (
            {"forbidden": ["return_item"], "expected": {"return_item": {}}},
            "expects and forbids the same tool",
        ),
        ({"expected": {"return_item": [1]}}, "its JSON cannot be read"),
        ({"results": {"return_item": float("inf")}}, "its JSON cannot be read"),
        ({"expected": {}, "forbidden": [], "criterion": " "}, "checks nothing"),
        ({"name": "return after 30 days"}, "proposed twice"),
    ],
    ids=str,
)
def test_invalid_proposals_are_dropped_and_counted(wrong: dict[str, Any], why: str, tmp_path: Path) -> None:
    """Each is refused for its own reason, and the valid one is kept."""
    fields = {"name": "wrong", "messages": ["Hi."], "forbidden": ["delete_account"], **wrong}
    bad = proposal(fields.pop("name"), *fields.pop("messages"), **fields)
    done = generated(tmp_path, proposing(AT_30, bad), "--no-run")
    assert done.return_value == 0, done.output
    assert f"1  {why}" in done.output
    assert set(written(tmp_path)) == {"return after 30 days"}


def test_a_proposal_that_contradicts_the_rules_is_refused(tmp_path: Path) -> None:
    """The second question decides; what the model does not review is not used either."""
    wrong = proposal("expects a late return", "Return A-7 after 40 days.", expected={"return_item": {}})
    done = generated(tmp_path, proposing(AT_30, wrong, refuse="late"), "--no-run")
    assert "1  contradicts the rules, such as expects a late return: The rule says so." in done.output
    assert set(written(tmp_path)) == {"return after 30 days"}


def test_a_second_generation_writes_only_what_is_new(tmp_path: Path) -> None:
    """A file is never overwritten, and a scenario that exists is not written again."""
    assert generated(tmp_path, proposing(AT_30), "--no-run").return_value == 0
    again = generated(tmp_path, proposing(AT_30), "--no-run")
    assert again.return_value == 2
    assert "like an existing scenario" in again.output
    assert generated(tmp_path, proposing(AT_30, AT_31), "--no-run").return_value == 0
    assert set(written(tmp_path, "generated-2.sim.py")) == {"return after 31 days"}


def test_documents_are_read_and_a_dry_run_calls_nobody(tmp_path: Path) -> None:
    """Rules of documents are quoted with file and line. A dry run writes nothing."""
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules/returns.md").write_text("# Returns\n\nNo returns after\n14 days.\n", encoding="utf-8")
    options = ("--from", "docs", "--docs", str(tmp_path / "rules"))
    planned = generated(tmp_path, proposing(), *options, "--dry-run", instructions="You help.")
    assert planned.return_value == 0, planned.output
    assert "rules/returns.md: 37 characters" in planned.output
    assert "at most 12 model calls" in planned.output
    assert not (tmp_path / "scenarios").exists()
    rule = {**AT_31, "quote": "No returns after 14 days."}
    done = generated(tmp_path, proposing(rule), *options, "--no-run", instructions="You help.")
    assert done.return_value == 0, done.output
    source = (tmp_path / "scenarios/generated.sim.py").read_text(encoding="utf-8")
    assert '# rules/returns.md:3: "No returns after 14 days."' in source


@pytest.mark.parametrize("content", ["nonsense", {"scenarios": "x"}, {"scenarios": []}], ids=str)
def test_a_model_that_answers_nonsense_writes_nothing(content: object, tmp_path: Path) -> None:
    """The exit status is 2."""
    done = generated(tmp_path, lambda _: completion(content))
    assert done.return_value == 2
    assert "no scenario was written" in done.output
    assert not (tmp_path / "scenarios").exists()


def test_hostile_texts_become_text(tmp_path: Path) -> None:
    """Neither instructions nor proposals can add code to the written file."""
    hostile = 'x""" + __import__("os").system("x") + """\x07\\ \u202e'
    bad = proposal("hostile", hostile, forbidden=["delete_account"], criterion=hostile)
    done = generated(tmp_path, proposing(bad), "--no-run", instructions=f"{RETURNS}\n{hostile}" * 50)
    assert done.return_value == 0, done.output
    (scenario,) = written(tmp_path).values()
    assert scenario.turns[0].user_message == hostile.strip()


def test_an_agent_without_rules_and_tools_is_told_what_to_give(tmp_path: Path) -> None:
    """There is nothing to read for the model."""
    done = generated(tmp_path, proposing(), "--from", "docs", tools=[])
    assert done.return_value == 2
    assert "`agent.instructions`" in done.output


def test_a_script_that_failed_is_shown_to_the_model(tmp_path: Path) -> None:
    """`--from failures` has variants of the failed scripts of the latest run proposed."""
    asked: list[str] = []
    answers = proposing({**AT_31, "quote": ""})

    def model(request: Received) -> Answer:
        asked.append(request.body["messages"][-1]["content"])
        return answers(request)

    with endpoint_of(shop("days")) as endpoint:
        (tmp_path / "a.sim.py").write_text(
            "from agentest import scenario\n"
            "scenario('late return', turns=['Return order A-7, 31 days after delivery.'],\n"
            "    tools={'return_item': {'ok': True}}, trajectory={'forbidden': ['return_item']})\n"
        )
        (tmp_path / "agentest.config.yaml").write_text(json.dumps({"agent": {"endpoint": endpoint}}))
        failed = CliRunner().invoke(cli, ["run", "--cwd", str(tmp_path)], standalone_mode=False)
        done = generated(tmp_path, model, "--from", "failures,tools", "--no-run", endpoint=endpoint)
    assert (failed.return_value, done.return_value) == (1, 0), done.output
    assert "late return: Return order A-7, 31 days after delivery." in asked[0]


def test_a_text_is_split_between_paragraphs_for_the_model() -> None:
    """No part is longer than the limit, and nothing is lost."""
    text = "\n\n".join(f"Rule {n}. " + "word " * 300 for n in range(40)) + "\n\n" + "x" * 30_000
    parts = parts_of(text)
    assert max(map(len, parts)) <= 12_002
    assert "".join("".join(parts).split()) == "".join(text.split())
