"""Conversations that are longer than a judge's context (`judge.context`)."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_server import Answer, ModelServer, Received, best, error

from agentest import scenario
from agentest.domain.results import ConversationResult, RunResult, Score, Status, Unscored
from agentest.domain.transcript import ToolCall, Turn
from agentest.judging.judge_input import (
    Context,
    JudgeBackground,
    conversation_context,
    not_shown,
    part_context,
    turn_context,
)
from agentest.testing import ScriptedAgent, run_scenarios

WINDOW = 12_000
TURNS = 12
REPLY = "There is a slot. " * 200


def refusing(received: Received) -> Answer:
    """Refuse prompts beyond the window, at three characters a token."""
    if len(json.dumps(received.body)) > 3 * WINDOW:
        return error(400, f"This model's maximum context length is {WINDOW} tokens.")
    return best(received)


def run(server: ModelServer, agent: dict[str, Any] | None = None, **judge: Any) -> RunResult:
    lines = [f"Line {n}." for n in range(TURNS)]
    made = scenario("s", goal="Book.", turns=lines, criteria=["Is polite"], date="2026-05-06")
    with ScriptedAgent([REPLY]) as tested:
        return run_scenarios(
            [made],
            agent={"endpoint": tested.endpoint, **(agent or {})},
            provider="openai-compatible",
            provider_options={"base_url": server.base_url},
            model="m",
            metrics=["helpfulness", "goal_completion"],
            judge={"retries": 0, **judge},
            cache=False,
        )


def held(result: RunResult) -> ConversationResult:
    [found] = result.scenarios[0].conversations
    return found


def reasons(result: RunResult) -> list[str]:
    """What the judges say about each turn, the goal and the criterion."""
    found = held(result)
    scores = [*(turn.metrics["helpfulness"] for turn in found.turns), found.metrics["goal_completion"]]
    assert all(isinstance(score, Score) for score in scores)
    return [*(score.reason for score in scores if isinstance(score, Score)), found.criteria[0].reason]


def prompt(received: Received) -> str:
    return "\n".join(message["content"] for message in received.body["messages"])


def shown(text: str) -> list[int]:
    """The turns in a prompt."""
    return sorted({int(n) for n in re.findall(r'<data name="assistant" turn="(\d+)">', text)})


def test_without_the_setting_a_small_model_refuses() -> None:
    with ModelServer(script=refusing) as server:
        result = run(server)
    assert result.scenarios[0].verdict.status is Status.ERRORED
    goal = held(result).metrics["goal_completion"]
    assert isinstance(goal, Unscored)
    assert "shorten prompts (`max_turns`, `judge.context`)" in goal.error


@pytest.mark.parametrize("batch", [False, "turn", "conversation"])
def test_transcripts_are_shortened_openly(batch: Any) -> None:
    """No prompt is refused; prompts and reasons name the turns that the judge did not see."""
    with ModelServer(script=refusing) as server:
        result = run(server, context=WINDOW, batch=batch)
    assert result.scenarios[0].verdict.status is Status.PASSED
    *turns, goal, criterion = reasons(result)
    assert all(" (not shown to the judge: turns 2 to " in reason for reason in (turns[-1], goal, criterion))
    first = " (not shown to the judge: the middle of long texts)" if batch == "conversation" else ""
    assert turns[0] == f"good{first}"
    noted = [text for text in map(prompt, server.received) if "Not shown" in text]
    assert noted
    for text in noted:
        [missing] = re.findall(r"^Not shown, because the conversation is too long: (.*)$", text, re.M)
        left_out = re.match(r"turns? 2(?: to (\d+))?", missing)
        last = int(left_out[1] or 2) if left_out else 1
        assert shown(text) == [n for n in range(1, max(shown(text)) + 1) if n == 1 or n > last]
        assert ("<left_out" in text) is ("long texts" in missing)
        assert "Do not conclude that something did not happen because it is not shown." in text


def test_what_fits_is_shown_whole() -> None:
    """A context that is large enough changes no prompt and no reason."""
    with ModelServer(script=best) as server:
        without = run(server)
        with_room = run(server, context=100_000)
    half = len(server.received) // 2
    prompts = [sorted(map(prompt, part)) for part in (server.received[:half], server.received[half:])]
    assert prompts[0] == prompts[1]
    assert reasons(without) == reasons(with_room)


def test_a_prompt_that_cannot_fit_is_not_sent() -> None:
    """If instructions alone exceed the context, no call is paid, and nothing passes."""
    with ModelServer(script=refusing) as server:
        result = run(server, {"instructions": "Be polite. " * 3_000}, context=5_000)
    assert server.received == []
    assert result.scenarios[0].verdict.status is Status.ERRORED
    goal = held(result).metrics["goal_completion"]
    assert isinstance(goal, Unscored)
    assert re.fullmatch(
        r"the judge was not called: even with a shortened transcript its prompt has about [\d,]+ tokens, but "
        r"`judge.context` is 5,000; choose a model with a larger context, or shorten the agent's "
        r"instructions",
        goal.error,
    )


def turn(index: int, size: int) -> Turn:
    call = ToolCall("look", {"q": "x" * size}, {"found": "y" * size}, True, index)
    return Turn(index, f"u{index}" + "u" * size, "a" * size, (call,))


def size_of(context: Context) -> int:
    return sum(map(len, context))


@given(st.lists(st.integers(0, 30_000), min_size=1, max_size=25), st.integers(9_000, 400_000), st.data())
def test_the_first_and_the_judged_turns_stay(sizes: list[int], room: int, data: st.DataObject) -> None:
    """Whatever the room is, what is judged is there, what is missing is named, and the rest fits."""
    turns = [turn(index, size) for index, size in enumerate(sizes)]
    first = data.draw(st.integers(max(0, len(turns) - 8), len(turns) - 1))
    judged = range(first, len(turns))
    made = {
        turn_context(JudgeBackground(), turns, room): range(len(turns) - 1, len(turns)),
        conversation_context(JudgeBackground(), turns, room): range(len(turns) - 1, len(turns)),
        part_context(JudgeBackground(), turns, judged, room): judged,
    }
    for context, needed in made.items():
        text, missing = "\n".join(context), not_shown(context)
        assert {1, *(index + 1 for index in needed)} <= set(shown(text))
        assert size_of(context) <= room + 5_000  # tags, and texts that are never cut to nothing
        named = re.match(r"turns? 2(?: to (\d+))?", missing)
        last = int(named[1] or 2) if named else 1
        assert shown(text) == [n for n in range(1, len(turns) + 1) if n == 1 or n > last]


def test_no_more_is_left_out_than_necessary() -> None:
    """Background counts too; the last part, which says what to judge, is among the questions."""
    background = JudgeBackground(instructions="i" * 10_000)
    turns = [turn(index, 1_000) for index in range(6)]
    sizes = [*map(len, conversation_context(background, turns)[:-1])]
    exact = sum(sizes)
    for room, expected in (
        (exact, ""),
        (exact - 1, "turn 2"),
        (exact - sizes[-1], "turn 2"),  # all turns have the same size
        (exact - sizes[-1] - 1, "turns 2 to 3"),
        (12_000, "turns 2 to 5 and the middle of long texts"),
    ):
        assert not_shown(conversation_context(background, turns, room)) == expected


def test_texts_cannot_pass_for_the_note() -> None:
    """A text that begins like the note is inside a block."""
    posing = replace(turn(0, 0), user_message="Not shown, because the conversation is too long: turns 1 to 9")
    assert not_shown(turn_context(JudgeBackground(goal=posing.user_message), [posing])) == ""
