"""Examples of a deduplicated error: selection, shortening, and where reports show them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from builders import conversation, conversation_result, labelled_failure, tool_call, turn
from project import Project

from agentest.domain.results import ConversationResult, ErrorExample, LabelledFailure
from agentest.judging.error_grouping import add_examples, group_by_label
from agentest.support.redaction import Redactor
from agentest.testing import ScriptedAgent
from agentest.testing import tool_call as called


def talk(id: str, *failures: LabelledFailure, turns: int = 2, **more: Any) -> ConversationResult:
    said = [turn(n, user=f"{id} asks {n}", agent=f"{id} says {n}", **more) for n in range(turns)]
    return conversation_result(id, held=conversation(id, said), failures=failures)


def examples(*talks: ConversationResult, secrets: tuple[str, ...] = ()) -> tuple[ErrorExample, ...]:
    found = group_by_label([failure for talk in talks for failure in talk.failures])
    (group,) = add_examples(found, talks, Redactor(secrets)).groups
    return group.examples


def test_the_first_turns_in_which_it_occurred() -> None:
    """At most three distinct turns, in the order of the occurrences."""
    twice = talk("a", labelled_failure("a-F1", turn_index=1), labelled_failure("a-F2", turn_index=1))
    others = [talk(name, labelled_failure(f"{name}-F1")) for name in "bcd"]
    found = examples(twice, *others)
    assert [(e.conversation_id, e.turn_index, e.user_message, e.agent_message) for e in found] == [
        ("a", 1, "a asks 1", "a says 1"),
        ("b", 0, "b asks 0", "b says 0"),
        ("c", 0, "c asks 0", "c says 0"),
    ]


def test_an_error_in_a_turn_that_is_not_stored() -> None:
    """It is counted, and has no example."""
    assert examples(talk("a", labelled_failure("a-F1"), turns=0)) == ()


def test_calls_are_shown_with_their_results() -> None:
    """The first five calls of a turn are shown as texts and the rest are counted."""
    calls = tuple(tool_call("look", {"n": n}, {"at": n}) for n in range(7))
    (example,) = examples(talk("a", labelled_failure("a-F1"), turns=1, tool_calls=calls))
    assert example.tool_calls[0] == "look(n=0) → {'at': 0}"
    assert len(example.tool_calls) == 6
    assert example.tool_calls[-1] == "… 2 more"


def test_examples_are_short_and_harmless() -> None:
    """Texts are one line of at most 300 characters, without secrets or control characters."""
    secret = "swordfish-and-more"
    nasty = f"\x1b[31mred\n::error::{secret} Bearer abcdefgh12345678 {'x' * 2_000_000}"
    call = tool_call("send", {"key": secret, "long": "y" * 100_000}, nasty)
    held = conversation("a", [turn(0, user=nasty, agent=nasty, tool_calls=(call,))])
    result = conversation_result("a", held=held, failures=[labelled_failure("a-F1")])
    (example,) = examples(result, secrets=(secret,))
    for text in (example.user_message, example.agent_message, *example.tool_calls):
        assert len(text) <= 303
        assert text.endswith("…")
        assert not any(hidden in text for hidden in ("\x1b", "\n", secret, "abcdefgh12345678"))
    assert example.agent_message.startswith("\\x1b[31mred ::error::[redacted] Bearer [redacted] xxx")


REPORTERS = ["console", "json", "github-actions"]
METRIC = """
from agentest import QualitativeMetric


class Vague(QualitativeMetric):
    def evaluate(self, input):
        return "vague", "The reply names no time."
"""


def test_every_report_has_them(tmp_path: Path) -> None:
    """Console, results.json and job summary show messages and calls, from workers and after judging again."""
    project = Project(tmp_path)
    project.write("own.py", METRIC)
    project.scenario(
        "for n in 'ab':\n    scenario(n, turns=['When are you open?'], tools={'hours': {'from': 9}},"
        " conversations_per_scenario=2)"
    )
    summary = tmp_path / "summary.md"
    script = [called("hours", day="friday"), "In the morning."]
    with ScriptedAgent(script) as agent:
        project.config(agent.endpoint, custom_metrics=["own:Vague"], reporters=REPORTERS)
        done = project.run(
            *(
                "--workers",
                "2",
                "--reporter",
                "console",
                "--reporter",
                "json",
                "--reporter",
                "github-actions",
            ),
            env={"GITHUB_STEP_SUMMARY": str(summary)},
        )
    assert done.returncode == 0, done.stdout + done.stderr
    example = {
        "conversationId": "a-1",
        "turnIndex": 0,
        "userMessage": "When are you open?",
        "agentMessage": "In the morning.",
        "toolCalls": ["hours(day='friday') → {'from': 9}"],
    }
    (error,) = project.scenario_result("a")["errors"]
    assert error["occurrences"] == ["a-1-F1", "a-2-F1"]
    assert error["examples"] == [example, {**example, "conversationId": "a-2"}]
    assert (
        "medium: vague, 2 times  #1, #2\n"
        "        for example #1, turn 1\n"
        "          user   When are you open?\n"
        "          tool   hours(day='friday') → {'from': 9}\n"
        "          agent  In the morning.\n"
    ) in done.stdout
    assert "| medium | vague | a | 2 | vague: The reply names no time. |" in summary.read_text()
    again = project.agentest("judge", ".agentest/journal.jsonl", "--reporter", "json")
    assert again.returncode == 0, again.stdout + again.stderr
    judged = json.loads((tmp_path / ".agentest" / "judged.json").read_text())
    shown = [scenario["errors"][0]["examples"][0] for scenario in judged["scenarios"]]
    assert shown == [example, {**example, "conversationId": "b-1"}]
