"""Calls that arrive after their turn closed: the verdict does not depend on the judge's speed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any, cast

import anyio
import pytest

from agentest.domain.end_reason import Ending
from agentest.domain.results import CheckResult, Score, TurnEvaluation
from agentest.domain.transcript import Conversation, ToolCall, Turn
from agentest.judging.evaluation import ConversationEvaluation
from agentest.judging.judgement import Judgement
from agentest.scenarios.model import Scenario

CALL = ToolCall("pay", {}, {"ok": True}, True, 0)
CLOSED = Turn(0, "Pay.", "Paid.")
LATE = Turn(0, "Pay.", "Paid.", (CALL,))


class SlowEvaluator:
    """An evaluator whose judge and first check finish only when the test releases them."""

    judges_at_end = False
    skip_decided = False
    judge = object()
    custom = graders = ()
    credited = information = ()
    metrics = ("helpfulness",)
    scenario = Scenario("s", "", 0)

    def __init__(self) -> None:
        self.judge_may_end = anyio.Event()
        self.checks_wait = anyio.Event()
        self.check_ends = [self.checks_wait]
        """One event for each check; the checks after these end at once."""
        self.checked = 0

    def redact(self, text: str) -> str:
        return text

    async def one_turn(self, turns: Sequence[Turn], _: int) -> Judgement:
        if not turns[-1].tool_calls:
            await self.judge_may_end.wait()
        return Judgement(turns={turns[-1].turn_index: {"helpfulness": Score(len(turns[-1].tool_calls), "r")}})

    async def judge_conversation(self, *_: object) -> Judgement:
        return Judgement()

    async def checked_turn(self, turns: Sequence[Turn]) -> TurnEvaluation:
        number, self.checked = self.checked, self.checked + 1
        if number < len(self.check_ends):
            await self.check_ends[number].wait()
        made = len(turns[-1].tool_calls)
        found = CheckResult(check="calls", passed=bool(made), summary=str(made))
        return TurnEvaluation(turn_index=turns[-1].turn_index, checks=(found,))

    async def trajectory(self, _: object) -> None:
        return None

    async def final_state(self, _: object) -> tuple[CheckResult, ...]:
        return ()

    async def check_conversation(self, _: object) -> tuple[CheckResult, ...]:
        return ()

    async def custom_of_turn(self, *_: object) -> dict[str, Any]:
        return {}

    async def grade(self, *_: object) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize("order", list(product(("check first", "conversation first"), ("judge", "no judge"))))
def test_a_late_call_is_checked_in_every_order(order: tuple[str, str]) -> None:
    """Check and judgement with the late call replace those of the closed turn, whichever finish first."""

    async def go() -> tuple[TurnEvaluation, ...]:
        evaluator = SlowEvaluator()
        evaluation = ConversationEvaluation(cast("Any", evaluator), 1)
        conversation = Conversation("c", (LATE,), Ending.SCRIPT)
        with anyio.fail_after(20):
            await run(evaluator, evaluation, conversation)
        return evaluation.result(conversation).turns

    async def run(
        evaluator: SlowEvaluator, evaluation: ConversationEvaluation, conversation: Conversation
    ) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(evaluation.add_turn, (CLOSED,))
            await anyio.wait_all_tasks_blocked()
            if order[0] == "check first":
                evaluator.checks_wait.set()
                await anyio.wait_all_tasks_blocked()
            if order[1] == "judge":
                evaluator.judge_may_end.set()
            await evaluation.add_conversation(conversation)
            evaluator.checks_wait.set()
            evaluator.judge_may_end.set()

    (turn,) = anyio.run(go)
    assert [check.passed for check in turn.checks] == [True]
    assert turn.metrics == {"helpfulness": Score(1, "r")}


def test_a_turn_without_late_calls_is_checked_once() -> None:
    """Ending the conversation does not repeat checks, which may run user code."""

    async def go() -> int:
        evaluator = SlowEvaluator()
        evaluator.check_ends.clear()
        evaluator.judge_may_end.set()
        evaluation = ConversationEvaluation(cast("Any", evaluator), 1)
        await evaluation.add_turn((CLOSED,))
        await evaluation.add_conversation(Conversation("c", (CLOSED,), Ending.SCRIPT))
        return evaluator.checked

    assert anyio.run(go) == 1
