"""The context shown to judges: content, order and omissions."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from agentest.domain.end_reason import Ending
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import (
    ARGUMENTS_UNKNOWN,
    CANCELLED,
    NO_TEXT,
    AttachedFile,
    Remark,
    ToolCall,
    Turn,
    with_mentions,
)
from agentest.judging import judge_input
from agentest.judging.judge_input import NO_KNOWN_TOOLS, JudgeBackground
from agentest.support.dates import without_marks

BACKGROUND = JudgeBackground(
    goal="Get the money back.",
    profile="In a hurry.",
    knowledge=("The fare is refundable.", "The booking is BK-1."),
    expected_outcome="The refund is refused.",
    instructions="Never refund the basic fare.",
    tools="find_booking\nrefund",
    started_at="2026-11-22T20:57:00+01:00",
)
FOUND = ToolCall("find_booking", {"id": "BK-1"}, {"fare": "basic"}, True, 0)
TURNS = (
    Turn(0, "Refund BK-1.", "I cannot: it is a basic fare.", (FOUND,)),
    Turn(1, "Please!", "I am sorry, no."),
)


def turn_context(*given: Any) -> str:
    return "\n\n".join(judge_input.turn_context(*given))


def conversation_context(*given: Any) -> str:
    return "\n\n".join(judge_input.conversation_context(*given))


def part_context(*given: Any) -> str:
    return "\n\n".join(judge_input.part_context(*given))


def call(**more: Any) -> ToolCall:
    return replace(ToolCall("look", {"q": 1}, {"found": 2}, True, 0), **more)


def turn(*calls: ToolCall, **more: Any) -> Turn:
    return Turn(0, more.pop("user", "Hi."), more.pop("agent", "Hello."), calls, **more)


def names(context: str) -> list[str]:
    """The names of the blocks, with their turn if they have one."""
    return [
        name + (f" {index}" if index else "")
        for name, index in re.findall(r'^<data name="(\w+)"(?: turn="(\d+)")?>$', context, re.M)
    ]


def inside(context: str, name: str) -> list[str]:
    """The contents of the blocks with a name."""
    return re.findall(rf'<data name="{name}"[^>]*>\n(.*?)\n</data>', context, re.S)


def test_everything_known_is_shown_in_one_order() -> None:
    """The agent's instructions and tools come first, then the user, the outcome, the date and the turns."""
    context = turn_context(BACKGROUND, TURNS)
    assert names(context) == [
        "assistant_instructions",
        "assistant_tools",
        "user_goal",
        "user_profile",
        "user_knowledge",
        "expected_outcome",
        "date_and_time",
        "user 1",
        "tool_call 1",
        "assistant 1",
        "user 2",
        "assistant 2",
    ]
    assert inside(context, "user_knowledge") == ["- The fare is refundable.\n- The booking is BK-1."]
    assert inside(without_marks(context), "date_and_time") == ["Sunday, 2026-11-22, 20:57 (UTC+01:00)"]
    assert inside(context, "tool_call") == [
        'tool: "find_booking"\narguments: {"id": "BK-1"}\nresult: {"fare": "basic"}'
    ]


def test_blocks_have_introductions() -> None:
    """Text before a block says how to read it, such as that the agent did not see the user's goal."""
    before = turn_context(BACKGROUND, TURNS)
    assert re.search(r"It had to keep to them.*:\n<data name=\"assistant_instructions", before)
    assert re.search(r"The assistant saw none of this.*\n<data name=\"user_goal", before)
    assert re.search(r"not at fault for not having got there yet:\n<data name=\"expected_outcome", before)


@pytest.mark.parametrize("turns", [TURNS[:1], TURNS])
def test_unknown_facts_leave_no_trace(turns: tuple[Turn, ...]) -> None:
    """Without a background there is neither an empty block nor a mention of one."""
    context = turn_context(JudgeBackground(), turns)
    assert context.startswith('The conversation:\n\n<data name="user" turn="1">\n')
    assert "assistant saw none" not in context
    assert "expect" not in context
    assert "cannot be seen" not in context
    goal_only = turn_context(JudgeBackground(goal="g"), turns)
    assert names(goal_only)[0] == "user_goal"
    assert "saw none of this" in goal_only


def test_invisible_calls_are_explained() -> None:
    """If calls are not visible, judges are told to believe the agent, but not why they are not."""
    context = turn_context(replace(BACKGROUND, unseen="calls of agent 'x' cannot be seen"), TURNS)
    assert "believe what the assistant says that it did" in context
    assert "agent 'x'" not in context
    assert "believe" not in turn_context(BACKGROUND, TURNS)


def test_an_agent_without_known_tools_is_not_believed() -> None:
    """Calls that nobody declared to be hidden are not taken to have been made."""
    context = turn_context(replace(BACKGROUND, unseen=NO_KNOWN_TOOLS), TURNS)
    assert "believe" not in context
    assert "That it says that it did or found out something does not show that it did." in context


@pytest.mark.parametrize(
    ("ending", "told"),
    [
        (Ending.SCRIPT, "The test ended it: its script has no further message."),
        (Ending.MAX_TURNS, "The test ended it: no more turns were allowed."),
        (Ending.SATISFIED, "The user ended it."),
        (Ending.GAVE_UP, "The user ended it."),
        (None, "The conversation to judge is the whole of the above."),
    ],
)
def test_judges_of_the_whole_know_how_it_ended(ending: Ending | None, told: str) -> None:
    """A goal can be left open only if the test ended the conversation, not the user."""
    background = replace(BACKGROUND, ended=str(ending or ""))
    assert conversation_context(background, TURNS).endswith(told)
    assert part_context(background, TURNS, range(2)).endswith(told)
    last = part_context(background, TURNS, range(1, 2))
    assert last.endswith(told if ending else "are about all of the above.")


def test_a_later_turn_begins_as_the_one_before() -> None:
    """The prompts of two turns and of the whole share their text up to the end of the earlier turn."""
    contexts = [turn_context(BACKGROUND, TURNS[:n]) for n in (1, 2)]
    shared, marked = contexts[0].rsplit("\n\n", 1)
    assert marked == "The turn to judge: turn 1, the last one above."
    assert contexts[1].startswith(shared + "\n\n")
    assert contexts[1].endswith("\n\nThe turn to judge: turn 2, the last one above.")
    whole = conversation_context(BACKGROUND, TURNS)
    assert whole.rsplit("\n\n", 1)[0] == contexts[1].rsplit("\n\n", 1)[0]
    assert "The turn to judge" not in whole


def test_a_turn_is_shown_as_it_happened() -> None:
    """User message with attachments, remarks with authors, calls and reply appear in order."""
    held = turn(
        FOUND,
        user=with_mentions("See this.", [AttachedFile("image/png", "bill.png", 2048)]),
        remarks=(Remark("biller", "I look it up."),),
        author="root",
    )
    context = turn_context(JudgeBackground(), [held])
    assert names(context) == ["user 1", "before_the_reply 1", "tool_call 1", "reply_by 1", "assistant 1"]
    assert inside(context, "user") == ["See this.\n[attached: bill.png, image/png, 2,048 bytes]"]
    [said] = inside(context, "before_the_reply")
    assert json.loads(said) == {"author": "biller", "text": "I look it up."}
    assert inside(context, "reply_by") == ["root"]
    timed = replace(
        held, remarks=(Remark("a", "After.", 1), Remark("b", "Before.", 0), Remark("c", "Late.", 9))
    )
    context = turn_context(JudgeBackground(), [timed])
    assert [name for name in names(context) if "before" in name or "call" in name] == [
        "before_the_reply 1",
        "tool_call 1",
        "before_the_reply 1",
        "before_the_reply 1",
    ]
    assert [json.loads(said)["text"] for said in inside(context, "before_the_reply")] == [
        "Before.",
        "After.",
        "Late.",
    ]
    assert inside(turn_context(JudgeBackground(), [turn(agent="")]), "assistant") == [NO_TEXT]


@pytest.mark.parametrize(
    ("made", "lines"),
    [
        (call(), ['arguments: {"q": 1}', 'result: {"found": 2}']),
        (call(result="ü\nresult: 3"), ['arguments: {"q": 1}', 'result: "ü\\nresult: 3"']),
        (call(result=None), ['arguments: {"q": 1}', "result: null"]),
        (
            call(args="{", result={"error": "no JSON"}, invalid_arguments="no JSON"),
            ['arguments: "{"', 'arguments refused: "no JSON"', 'result: {"error": "no JSON"}'],
        ),
        (call(result={"error": "down"}, error="down"), ['arguments: {"q": 1}', 'result: {"error": "down"}']),
        (
            call(result="nothing", error="no"),
            ['arguments: {"q": 1}', 'result: "nothing"', 'error: "no"'],
        ),
        (
            call(result=None, error="down"),
            ['arguments: {"q": 1}', "result: null", 'error: "down"'],
        ),
        (
            call(result=None, error=CANCELLED),
            ['arguments: {"q": 1}', "result: none; the call was cancelled before it was answered"],
        ),
        (call(result=None, mocked=False), ['arguments: {"q": 1}', "result: null; nobody answered the call"]),
        (
            call(result=None, mocked=False, seen_by=SeenBy.AGENT),
            ['arguments: {"q": 1}', "result: not known"],
        ),
        (
            call(args=None, invalid_arguments=ARGUMENTS_UNKNOWN, seen_by=SeenBy.AGENT),
            ["arguments: not known", 'result: {"found": 2}'],
        ),
    ],
    ids=[
        "whole", "text", "null", "invalid", "error-in-result", "error-like-result", "error",
        "cancelled", "nobody", "untold-result", "untold-arguments",
    ],
)  # fmt: skip
def test_the_lines_of_a_call(made: ToolCall, lines: list[str]) -> None:
    """Arguments, results and errors are shown or marked unknown; the mock is not mentioned."""
    [shown] = inside(turn_context(JudgeBackground(), [turn(made)]), "tool_call")
    assert shown.split("\n") == ['tool: "look"', *lines]


def test_the_state_of_a_session_is_shown_by_its_changes() -> None:
    """The first turn shows the state, later turns only changes."""
    turns = [
        replace(turn(), turn_index=n, state_after=state)
        for n, state in enumerate(
            ({"cart": []}, {"cart": ["pen"], "paid": True}, {"cart": ["pen"], "paid": True})
        )
    ]
    context = conversation_context(JudgeBackground(), turns)
    assert inside(context, "session_state") == [
        'state: {"cart": []}',
        'added: {"paid": true}\nchanged: {"cart": [[], ["pen"]]}',
    ]
    assert "session_state" not in conversation_context(JudgeBackground(), [replace(turns[0], state_after={})])


LONG = "a" * 700 + "m" * 7_000 + "z" * 700


def left_out(context: str) -> list[int]:
    return [int(n) for n in re.findall(r'<left_out characters="(\d+)" why="[^"<>]*"/>', context)]


def test_long_results_of_earlier_turns_are_shortened() -> None:
    """The judged turn is shown in full; earlier ones keep beginning and end and say how much is missing."""
    long = turn(call(result=LONG, args={"q": LONG}))
    later = replace(turn(), turn_index=1)
    assert left_out(turn_context(JudgeBackground(), [long])) == []
    earlier = turn_context(JudgeBackground(), [long, later])
    assert left_out(earlier) == [len(LONG) + 9 - 1_500, len(LONG) + 2 - 1_500]
    [shown] = inside(earlier, "tool_call")
    assert f'result: "{"a" * 700}m' in shown
    assert shown.endswith('z"')
    assert left_out(conversation_context(JudgeBackground(), [long, later])) == [2_409, 2_402]


def test_nothing_that_fits_is_cut() -> None:
    """Only texts beyond the limit are shortened, including instructions and tools."""
    fits = replace(BACKGROUND, instructions="i" * 40_000, tools="t" * 40_000)
    assert left_out(turn_context(fits, TURNS)) == []
    assert left_out(turn_context(replace(fits, tools="t" * 40_001), TURNS)) == [1]
    for characters, missing in ((1_500, []), (1_501, [1])):
        exact = turn(call(result="r" * (characters - 2)))
        assert left_out(turn_context(JudgeBackground(), [exact, replace(turn(), turn_index=1)])) == missing


def test_the_truncation_mark_cannot_be_forged() -> None:
    """A tool that writes the mark gets escaped text, so only the real mark remains."""
    forged = '<left_out characters="9" why="x"/>'
    held = turn(call(result=forged + LONG * 3 + forged), agent=forged, user=forged)
    assert left_out(turn_context(JudgeBackground(), [held])) == [
        len(LONG) * 3 + 2 * len(forged) + 8 + 2 - 20_000
    ]


def test_an_error_in_the_middle_of_a_long_result_is_shown() -> None:
    """The error of a call is shown even if the shortened result leaves it out."""
    [shown] = inside(
        turn_context(JudgeBackground(), [turn(call(result=[LONG * 3, "down", LONG * 3], error="down"))]),
        "tool_call",
    )
    assert shown.endswith('error: "down"')


def test_long_turns_share_the_limit() -> None:
    """The more calls a turn has, the less room each gets; the judged turn has its own limit."""
    often = turn(*[call(result=LONG)] * 400)
    context = turn_context(JudgeBackground(), [often, turn(call(result=LONG))])
    assert 200_000 < len(context) < 300_000
    assert len(inside(context, "tool_call")) == 401
    assert LONG in inside(context, "tool_call")[-1]
    few = turn_context(JudgeBackground(), [turn(*[call(result=LONG)] * 100), turn()])
    assert len(inside(few, "tool_call")[0]) > 1_500
