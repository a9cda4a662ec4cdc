"""Every prompt about a conversation is bounded and keeps foreign text inside its blocks."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hostile_texts import LONG, long_turns, outside, texts, turns
from hypothesis import given, settings

from agentest.domain.end_reason import Ending
from agentest.domain.results import ConversationResult, CriterionOutcome, CriterionResult, LabelledFailure
from agentest.domain.transcript import Conversation
from agentest.judging.error_grouping import dedup_messages
from agentest.judging.judge_input import (
    JudgeBackground,
    JudgeQuestion,
    conversation_context,
    criterion_question,
    turn_context,
)
from agentest.judging.questions import joint_messages, prompt_of
from agentest.judging.role_check import check_messages
from agentest.models.port import Message
from agentest.runner.known_tools import KnownTool, tool_lines
from agentest.scenarios.model import Criterion, Scenario


def background(text: str) -> JudgeBackground:
    tools = "\n".join(tool_lines([KnownTool(name=text, description=text), KnownTool(name="other")]))
    return JudgeBackground(goal=text, profile=text, instructions=text, expected_outcome=text, tools=tools)


def held(text: str, number: int = 2) -> ConversationResult:
    broken = CriterionResult(
        text=text, required=True, result=CriterionOutcome.VIOLATED, turn_index=0, reason=text
    )
    return ConversationResult(Conversation("c-1", turns(text, number), Ending.GAVE_UP), criteria=(broken,))


def questions(text: str) -> Any:
    return [
        *(JudgeQuestion("faithfulness", turn) for turn in range(2)),
        JudgeQuestion("goal_completion"),
        *(criterion_question(n, Criterion(f"{n} {text}")) for n in (1, 2)),
    ]


PROMPTS: dict[str, Callable[[str], Sequence[Message]]] = {
    "batch turn": lambda text: joint_messages(
        questions(text)[:1], turn_context(background(text), turns(text))
    ),
    "batch conversation": lambda text: joint_messages(
        questions(text), conversation_context(background(text), turns(text)), by_turn=True
    ),
    "criterion": lambda text: [
        {"role": "user", "content": prompt_of(criterion_question(1, Criterion(text))).alone}
    ],
    "grouping": lambda text: dedup_messages(
        Scenario(text, "", 0, goal=text, expected_outcome=text),
        # What a judge, or a metric of the user's own, has written about hostile texts.
        [LabelledFailure("c-1-F1", "c-1", 0, text, text, text)],
        [held(text)],
        instructions=text,
    ),
    "user check": lambda text: check_messages(text, held(text).conversation),
}


@pytest.mark.parametrize("name", PROMPTS)
@settings(max_examples=25, deadline=None)
@given(text=texts)
def test_texts_of_others_stay_in_blocks(name: str, text: str) -> None:
    """The text outside of blocks does not depend on messages, calls, goals or earlier judgements."""
    assert outside(PROMPTS[name](text)) == outside(PROMPTS[name]("plain"))


@settings(max_examples=50, deadline=None)
@given(text=texts)
def test_a_record_is_one_line(text: str) -> None:
    """The grouping prompt has one line per failure, conversation and turn, whatever they contain."""
    content = PROMPTS["grouping"](text)[1]["content"]
    for name, lines in (("failures", 1), ("conversations", 1), ("turns", 1)):
        [inside] = re.findall(rf'<data name="{name}">\n(.*?)\n</data>', content, re.S)
        assert len(inside.splitlines()) == lines


@settings(max_examples=50, deadline=None)
@given(text=texts)
def test_a_tool_is_one_line(text: str) -> None:
    """The name, description and arguments of a tool cannot add another tool."""
    schema = {"properties": {text: {"type": text, "description": text, "enum": [text]}}}
    lines = tool_lines([KnownTool(name=f"a{text}", description=text, parameters=schema)] * 2)
    assert ["\n".join(lines).splitlines()[n][:1] for n in range(2)] == ["a", "a"]
    assert len("\n".join(lines).splitlines()) == 2


@pytest.mark.parametrize("name", PROMPTS)
def test_prompts_are_bounded(name: str) -> None:
    """Long texts everywhere, in hundreds of turns, calls and remarks, do not make huge prompts."""
    many = long_turns()
    conversation = Conversation("c-1", many, Ending.GAVE_UP)
    result = ConversationResult(conversation)
    failures = [LabelledFailure(f"c-1-F{n}", "c-1", n % 20, "m", LONG, LONG) for n in range(300)]
    asked: dict[str, Callable[[], Sequence[Message]]] = {
        "batch turn": lambda: joint_messages(questions("x"), turn_context(background(LONG), many)),
        "batch conversation": lambda: joint_messages(
            [criterion_question(n, Criterion(f"{n} is kept")) for n in range(100)],
            conversation_context(background(LONG), many),
        ),
        "criterion": lambda: [],
        "grouping": lambda: dedup_messages(
            Scenario("s", "", 0, goal=LONG), failures, [result], instructions=LONG
        ),
        "user check": lambda: check_messages("told", conversation),
    }
    # `&` and `<` take up to five times their place.
    assert sum(len(message["content"]) for message in asked[name]()) < 1_600_000
