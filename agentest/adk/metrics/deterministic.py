"""The metrics that no judge is asked for: tool calls and words against what a case expects.

The rules are google-adk's, to the last digit, and know nothing of conversations; the graders pair each turn
with the invocation of the case that it answers.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from agentest.adk.formats.criteria import Criterion
from agentest.adk.formats.match_type import MatchType
from agentest.adk.formats.model import FunctionCall, Invocation, text_of, tool_calls
from agentest.adk.metrics.base import CriterionGrader
from agentest.adk.metrics.rouge import Overlap, rouge1
from agentest.domain.results import MetricResult, Score, Skipped, Unscored
from agentest.domain.transcript import (
    ARGUMENTS_UNTOLD,
    Conversation,
    ToolCall,
    Turn,
    arguments_untold,
    call_text,
)
from agentest.judging.grading import Graded
from agentest.models.port import CallKey, Model

Call = tuple[str | None, Any]
"""A tool call as it is compared: name and arguments, a dict, or None where they are absent."""

_INVALID = object()
"""Arguments that are none: equal to nothing that a case can expect."""
_SHOWN_CALLS = 20
_HOW = {MatchType.EXACT: "", MatchType.IN_ORDER: " in this order", MatchType.ANY_ORDER: " in any order"}


def trajectory_matches(
    actual: Sequence[Call],
    expected: Sequence[Call],
    match_type: MatchType = MatchType.EXACT,
    ignore_args: bool = False,
    any_args_where_absent: bool = False,
) -> bool:
    """Whether the calls made are the calls expected; other calls in between count only against EXACT.

    Names and arguments are compared by Python's `==`. Raises RecursionError for arguments nested too deeply.
    """

    def same(made: Call, wanted: Call) -> bool:
        if made[0] != wanted[0]:
            return False
        any_args = ignore_args or (any_args_where_absent and wanted[1] is None)
        return any_args or bool(made[1] == wanted[1])

    if match_type is MatchType.EXACT:
        return len(actual) == len(expected) and all(map(same, actual, expected))
    if match_type is MatchType.IN_ORDER:
        left = iter(actual)
        return all(any(same(made, wanted) for made in left) for wanted in expected)
    return _contains_all(actual, expected, same)


def _contains_all(
    actual: Sequence[Call], expected: Sequence[Call], same: Callable[[Call, Call], bool]
) -> bool:
    left = list(actual)
    # Calls that match any arguments come last, so that they leave the others theirs.
    for wanted in sorted(expected, key=lambda call: call[1] is None):
        at = next((n for n, made in enumerate(left) if same(made, wanted)), None)
        if at is None:
            return False
        del left[at]
    return True


def tool_names_f1(actual: Sequence[str | None], expected: Sequence[str | None]) -> float:
    """Precision and recall of the tools' names, in one number; 1 where there are none on either side."""
    return Overlap.of(actual, expected).f if actual or expected else 1.0


class ByReference(CriterionGrader):
    """Grades each turn by the invocation of the case that it answers."""

    __slots__ = ()

    async def grade(self, conversation: Conversation, model: Model | None, key: CallKey) -> Graded:  # noqa: ARG002 - the protocol asks
        """The score of each turn that the case has a reference for. No model is asked."""
        if self.case.conversation is None:
            return Graded(whole=Skipped("a simulated conversation has no reference to compare with"))
        if not conversation.turns:
            return Graded(whole=Skipped("no turn of the conversation was finished"))
        turns = dict(self._results(conversation.turns, self.case.conversation))
        return Graded(turns, None if turns else Skipped(self._nothing()))

    def _results(
        self, turns: Sequence[Turn], invocations: Sequence[Invocation]
    ) -> Iterator[tuple[int, MetricResult]]:
        for turn, invocation in zip(turns, invocations, strict=False):  # a failed agent leaves turns out
            result = self._score(turn, invocation)
            if result is not None:
                yield turn.turn_index, result

    @abstractmethod
    def _score(self, turn: Turn, expected: Invocation) -> MetricResult | None:
        """The turn's score; None where the invocation has nothing to compare with."""

    def _nothing(self) -> str:
        """Why no turn has a score."""
        return "the case has no invocation for any turn"


class ToolTrajectory(ByReference):
    """1 for a turn whose tool calls are as expected, else 0. No intermediate data expects no call."""

    __slots__ = ()

    def _score(self, turn: Turn, expected: Invocation) -> MetricResult:
        wanted = tool_calls(expected.intermediate_data)
        criterion = self.criterion
        if not criterion.ignore_args and any(map(arguments_untold, turn.tool_calls)):
            return Unscored(f"{ARGUMENTS_UNTOLD}: set ignore_args to compare the names alone")
        try:
            matched = trajectory_matches(
                [_made(call) for call in turn.tool_calls],
                [(call.name, call.args) for call in wanted],
                criterion.match_type,
                criterion.ignore_args,
                criterion.any_args_where_absent,
            )
        except RecursionError:
            return Unscored("the arguments of a tool call are nested too deeply to be compared")
        return Score(1.0 if matched else 0.0, _side_by_side(wanted, turn.tool_calls, criterion))


class ToolTrajectoryF1(ByReference):
    """Precision and recall of the called tools' names, in one number. Arguments and order do not count."""

    __slots__ = ()

    def _score(self, turn: Turn, expected: Invocation) -> MetricResult:
        wanted = [call.name for call in tool_calls(expected.intermediate_data)]
        made = [call.name for call in turn.tool_calls]
        return Score(
            tool_names_f1(made, wanted),
            f"expected {_listed(wanted, len(wanted))}; called {_listed(made, len(made))}",
        )


class ResponseMatch(ByReference):
    """ROUGE-1 of the response. A turn without a final response to compare with is left out."""

    __slots__ = ()

    def _score(self, turn: Turn, expected: Invocation) -> MetricResult | None:
        if expected.final_response is None:
            return None
        overlap = rouge1(turn.agent_message, text_of(expected.final_response))
        return Score(
            overlap.f,
            f"words in common: {overlap.shared} of {overlap.expected} expected and {overlap.actual} answered",
        )

    def _nothing(self) -> str:
        return "no invocation of the case has a final_response to compare with"


def _made(call: ToolCall) -> Call:
    return call.name, call.args if call.invalid_arguments is None else _INVALID


def _side_by_side(wanted: Sequence[FunctionCall], made: Sequence[ToolCall], criterion: Criterion) -> str:
    how = _HOW[criterion.match_type] + (" whatever the arguments" if criterion.ignore_args else "")
    absent = "(…)" if criterion.any_args_where_absent else " (arguments absent)"
    expected = [_call_text(call.name or "", call.args, absent) for call in wanted[:_SHOWN_CALLS]]
    called = [
        call_text(call) if call.invalid_arguments else _call_text(call.name, call.args, " (arguments absent)")
        for call in made[:_SHOWN_CALLS]
    ]
    return f"expected{how} {_listed(expected, len(wanted))}; called {_listed(called, len(made))}"


def _call_text(name: str, args: Any, absent: str) -> str:
    if args is None:
        return name + absent
    return call_text(ToolCall(name, args, result=None, mocked=False, turn_index=0))


def _listed(calls: Sequence[str | None], count: int) -> str:
    """The calls in order, the first ones alone where they are many. `count` says how many there are."""
    if not calls:
        return "no tool"
    text = ", then ".join(call or "" for call in calls[:_SHOWN_CALLS])
    return text if count <= _SHOWN_CALLS else f"{text} and {count - _SHOWN_CALLS} more"
