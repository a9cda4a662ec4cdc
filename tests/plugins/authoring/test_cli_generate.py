"""`agentest generate`: planted edges of rules are found, and a right agent fails nothing."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from click.testing import CliRunner, Result
from explore_lab import Act, Seen, endpoint_of
from model_server import Answer, ModelServer, Received, completion
from policy_agents import INSTRUCTIONS, TOOLS, shop

from agentest.cli.main import cli
from agentest.plugins.authoring.generated_wording import parts_of
from agentest.scenarios.discovery import discover_file
from agentest.scenarios.model import Scenario
from agentest.support.importing import Imports


def configure(
    folder: Path,
    endpoint: str,
    instructions: str = INSTRUCTIONS,
    tools: object = TOOLS,
    settings: Mapping[str, object] = MappingProxyType({}),
) -> None:
    """Write a configuration for the shop's agent."""
    (folder / "prompt.md").write_text(instructions, encoding="utf-8")
    agent = {"endpoint": endpoint, "instructions_file": "prompt.md", "tools": tools}
    written = json.dumps({"agent": agent, "strict": True, **settings})
    (folder / "agentest.config.yaml").write_text(written, encoding="utf-8")


def generated(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["generate", "--cwd", str(folder), *arguments], standalone_mode=False)


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
    assert done.return_value == 0, done.output
    assert failing(done.output) == ([name] if name else [])
    written = scenarios_in(tmp_path / "scenarios/generated.sim.py")
    assert len(written) >= 10
    assert all(each.tags == ("generated",) and each.criteria for each in written.values())
    if name:
        assert next(iter(written)) == name


def test_a_second_generation_writes_only_what_is_new(tmp_path: Path) -> None:
    """A file is never overwritten, and a scenario that exists is not written again."""
    with endpoint_of(shop()) as endpoint:
        configure(tmp_path, endpoint)
        assert generated(tmp_path, "--from", "instructions").return_value == 0
        again = generated(tmp_path, "--from", "instructions")
        more = generated(tmp_path)
    assert again.return_value == 2
    assert "like an existing scenario" in again.output
    assert more.return_value == 0
    first, second = (
        scenarios_in(tmp_path / "scenarios" / name) for name in ("generated.sim.py", "generated-2.sim.py")
    )
    assert first.keys().isdisjoint(second)


def test_documents_quote_file_and_line_and_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    """Rules of documents are used without instructions. `--no-run` needs no agent."""
    configure(tmp_path, "http://127.0.0.1:9/chat", "You help.")
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules/returns.md").write_text("# Returns\n\nNo returns after\n14 days.\n", encoding="utf-8")
    options = ("--from", "docs", "--docs", str(tmp_path / "rules"))
    planned = generated(tmp_path, *options, "--dry-run")
    assert planned.return_value == 0
    assert 'rules/returns.md:3: "No returns after 14 days."' in planned.output
    assert not (tmp_path / "scenarios").exists()
    written = generated(tmp_path, *options, "--no-run")
    assert written.return_value == 0, written.output
    source = (tmp_path / "scenarios/generated.sim.py").read_text(encoding="utf-8")
    assert source.count('# rules/returns.md:3: "No returns after 14 days."') == 3
    for value in (13, 14, 15):
        assert f"It has been {value} days." in source


@pytest.mark.parametrize(
    "instructions",
    [
        "up to " * 350_000,
        'Never refund more than $5""" + __import__("os").system("x") + """.\n\x07\\ \u202e' * 50,
        "\n".join(f"- At most {n} items." for n in range(20_000)),
    ],
    ids=["2-MB-line", "hostile", "too-many"],
)
def test_odd_instructions_yield_a_valid_file(instructions: str, tmp_path: Path) -> None:
    """Neither size nor content of instructions breaks a file or hangs the command."""
    configure(tmp_path, "http://127.0.0.1:9/chat", instructions)
    done = generated(tmp_path, "--no-run")
    assert done.return_value == 0, done.output
    assert scenarios_in(tmp_path / "scenarios/generated.sim.py")


def test_an_agent_without_rules_and_tools_is_told_what_to_give(tmp_path: Path) -> None:
    """Nothing can be generated, with or without rules that need a tool."""
    for instructions, missing in (
        ("You help.", "`agent.instructions`"),
        ("At most 3 items.", "`agent.tools`"),
    ):
        configure(tmp_path, "http://127.0.0.1:9/chat", instructions, tools=[])
        done = generated(tmp_path)
        assert done.return_value == 2
        assert missing in done.output


def test_dates_and_numbers_of_recorded_results_move_with_the_limit(tmp_path: Path) -> None:
    """A mock that says when an order was delivered agrees with what the user says, on any day."""
    configure(
        tmp_path, "http://127.0.0.1:9/chat", "Refunds are possible up to 30 days after delivery.", tools=None
    )
    (tmp_path / "a.sim.py").write_text(
        "from agentest import scenario\n"
        "scenario('refunds order 17', turns=['Please refund order 17, delivered 10 days ago.'], tools={\n"
        "    'get_order': {'id': '17', 'delivered_at': '2026-01-05', 'days_since_delivery': 10},\n"
        "    'refund_order': {'ok': True}}, trajectory={'expected': ['get_order', 'refund_order']})\n"
    )
    assert generated(tmp_path, "--no-run", "--from", "instructions").return_value == 0
    source = (tmp_path / "scenarios/generated.sim.py").read_text(encoding="utf-8")
    assert "Please refund order 17, delivered 31 days ago." in source
    assert '"days_since_delivery": 31' in source
    late = scenarios_in(tmp_path / "scenarios/generated.sim.py")[
        "refund order at 31 days after delivery, not allowed"
    ]
    day = datetime.date.fromisoformat(late.tools["get_order"]["delivered_at"])
    assert (datetime.date.today() - day).days in (31, 32)


def test_a_model_words_goals_and_finds_rules_in_other_words(tmp_path: Path) -> None:
    """A wrong quote and a wording without the value are asked for once more, then dropped and counted."""
    quote = "Gift cards are for adults."
    asked: list[str] = []

    def answer(request: Received) -> Answer:
        prompt = request.body["messages"][-1]["content"]
        asked.append(prompt)
        if "List the rules" in prompt:
            return completion({"rules": [quote, "An invented rule."]})
        numbers = [
            int(each) for each in re.findall(r"^(\d+)\. Situation: (?!.*31 days)", prompt, re.MULTILINE)
        ]
        values = dict(re.findall(r"^(\d+)\. Situation: .* at (\S+ ?\w*)", prompt, re.MULTILINE))
        cases = [
            {
                "number": number,
                "goal": "You want help.",
                "knowledge": [f"It is {values[str(number)]}."] if str(number) in values else [],
                "expected_outcome": "The assistant has kept to the rule.",
            }
            for number in numbers
        ]
        return completion({"cases": cases})

    with ModelServer(script=answer) as model:
        options = {
            "provider": "openai-compatible",
            "model": "m",
            "provider_options": {"base_url": model.base_url},
        }
        configure(tmp_path, "http://127.0.0.1:9/chat", f"{INSTRUCTIONS}\n{quote}\n", settings=options)
        done = generated(tmp_path, "--from", "instructions", "--no-run")
        offline = generated(tmp_path, "--from", "instructions", "--dry-run", "--offline")
        planned = generated(tmp_path, "--from", "instructions", "--dry-run")
    assert done.return_value == 0, done.output
    written = scenarios_in(tmp_path / "scenarios/generated.sim.py")
    assert all(each.goal and each.expected_outcome and each.criteria for each in written.values())
    assert any(quote.rstrip(".") in each.criteria[0].text for each in written.values())
    assert "2 rules" not in done.output
    assert "1 rule of the model dropped" in done.output
    assert "1  invalid proposals of the model, such as return item at 31 days" in done.output
    assert sum("31 days" in each and "Word each" in each for each in asked) == 2
    assert "model calls" in planned.output
    assert "no model is configured" in offline.output


def test_neighbours_of_a_failure_show_where_it_begins(tmp_path: Path) -> None:
    """With other numbers, the forbidden call is made up to the edge and not beyond it."""
    with endpoint_of(shop("days")) as endpoint:
        configure(tmp_path, endpoint)
        (tmp_path / "a.sim.py").write_text(
            "from agentest import scenario\n"
            "scenario('late return', turns=['Return order A-7, 31 days after delivery.'],\n"
            "    tools={'return_item': {'ok': True}}, trajectory={'forbidden': ['return_item']})\n"
        )
        failed = CliRunner().invoke(cli, ["run", "--cwd", str(tmp_path)], standalone_mode=False)
        done = generated(tmp_path, "--from", "failures")
    assert (failed.return_value, done.return_value) == (1, 0), done.output
    assert "late return: 30 instead of 31" in failing(done.output)
    assert "late return  31: fails up to 31, passes from 32 on" in done.output
    assert "late return: 32 instead of 31" not in failing(done.output)
    assert "late return: 32 instead of 31" in scenarios_in(tmp_path / "scenarios/generated.sim.py")


def look_up_first(seen: Seen) -> Act:
    """Refund an order up to 31 days after delivery, which is a day too late, as the order says."""
    if seen.results and seen.results[-1][0] == "get_order":
        days = seen.results[-1][1]["days_since_delivery"]
        return ("refund_order", {"order_id": "17"}) if days <= 31 else "Too late."
    return "Refunded." if seen.results or seen.calls else ("get_order", {"order_id": "17"})


def test_functions_are_replaced_by_recorded_results_with_the_value_of_the_limit(tmp_path: Path) -> None:
    """A function that keeps its own value proves nothing; a recorded result can be changed."""
    late = "refund order at 31 days after delivery, not allowed"
    with endpoint_of(look_up_first) as endpoint:
        configure(tmp_path, endpoint, "Refunds are possible up to 30 days after delivery.", tools=None)
        (tmp_path / "a.sim.py").write_text(
            "from agentest import scenario\n"
            "def get_order(order_id: str):\n    return {'id': order_id, 'days_since_delivery': 5}\n"
            "scenario('refunds order 17', turns=['Please refund order 17.'],\n"
            "    tools={'get_order': get_order, 'refund_order': {'ok': True}})\n"
        )
        before = generated(tmp_path, "--from", "instructions")
        CliRunner().invoke(cli, ["run", "--cwd", str(tmp_path), "--reporter", "json"], standalone_mode=False)
        after = generated(tmp_path, "--from", "instructions")
    assert before.return_value == 2
    assert "a mock function has another value" in before.output
    assert failing(after.output) == [late]


def test_a_text_is_split_between_paragraphs_for_the_model() -> None:
    """No part is longer than the limit, and nothing is lost."""
    text = "\n\n".join(f"Rule {n}. " + "word " * 300 for n in range(40)) + "\n\n" + "x" * 30_000
    parts = parts_of(text)
    assert max(map(len, parts)) <= 12_002
    assert "".join("".join(parts).split()) == "".join(text.split())
