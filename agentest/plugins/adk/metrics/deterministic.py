"""Metrics without a judge: compare tool calls, words, and states with the expected ones, and count usage.

The comparison rules reproduce google-adk's results exactly and know nothing of conversations. The graders
pair each turn with its invocation in the case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from agentest.config.agent_types import remarks_reported_by, state_reported_by
from agentest.domain.metrics import ADK_METRICS, require_entry_for_each
from agentest.domain.results import MetricResult, Score, Skipped, Unscored
from agentest.domain.transcript import (
    ARGUMENTS_UNKNOWN,
    Conversation,
    ToolCall,
    Turn,
    are_arguments_unknown,
    call_text,
)
from agentest.judging.grader import GraderResult
from agentest.models.port import CallKey, Model
from agentest.plugins.adk.formats import eval_set
from agentest.plugins.adk.formats.criteria import MatchType, MetricCriterion
from agentest.plugins.adk.metrics.grader import CriterionGrader
from agentest.plugins.adk.metrics.rouge import Overlap, rouge1
from agentest.scenarios.matchers.comparison import MISSING, argument, equal
from agentest.support.json_text import safe_repr
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import on_one_line, shortened

Call = tuple[str | None, Any]
"""A tool call for comparison: name and arguments. The arguments are a dict, or None if absent."""

_INVALID = object()
_SHOWN_CALLS = 20
_HOW = {MatchType.EXACT: "", MatchType.IN_ORDER: " in this order", MatchType.ANY_ORDER: " in any order"}


def trajectory_matches(
    actual: Sequence[Call],
    expected: Sequence[Call],
    match_type: MatchType = MatchType.EXACT,
    ignore_args: bool = False,
    any_args_where_absent: bool = False,
) -> bool:
    """Return True if the actual calls are the expected ones. Only EXACT forbids other calls in between.

    Names and arguments are compared with `==`. Raises RecursionError for deeply nested arguments.
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
    # Match calls that accept any arguments last, so that they do not take a call from another one.
    for wanted in sorted(expected, key=lambda call: call[1] is None):
        at = next((n for n, made in enumerate(left) if same(made, wanted)), None)
        if at is None:
            return False
        del left[at]
    return True


def tool_names_f1(actual: Sequence[str | None], expected: Sequence[str | None]) -> float:
    """Return the F1 score (precision and recall) of the tools' names; 1 if both sides are empty."""
    return Overlap.of(actual, expected).f if actual or expected else 1.0


@dataclass(frozen=True, slots=True)
class TurnRule:
    """How a metric scores a turn without a judge.

    Attributes:
        score: scores a turn, given its invocation in the case if it is compared with one; None if there is
            nothing to compare with, or if the turn is left out.
        nothing: why no turn has a score.
        compares: True if turns are compared with the invocations of the case.
        last: True if only the last turn is scored.
    """

    score: Callable[[CriterionGrader, Turn, Any], MetricResult | None]
    nothing: str = "the case has no invocation for any turn"
    compares: bool = True
    last: bool = False


class DeterministicGrader(CriterionGrader):
    """Grade each turn by the rule of the metric. No model is called."""

    __slots__ = ()

    async def grade(self, conversation: Conversation, _model: Model | None, _key: CallKey) -> GraderResult:
        rule, expected = RULES[self.name], self.case.conversation
        if rule.compares and expected is None:
            return GraderResult(
                conversation=Skipped("a simulated conversation has no reference to compare with")
            )
        if not conversation.turns:
            return GraderResult(conversation=Skipped("no turn of the conversation was finished"))
        turns = conversation.turns[-1:] if rule.last else conversation.turns
        invocations = expected or () if rule.compares else (None,) * len(turns)
        scores = {
            turn.turn_index: score
            # A failed agent may leave out turns.
            for turn, invocation in zip(turns, invocations, strict=False)
            if (score := rule.score(self, turn, invocation)) is not None
        }
        return GraderResult(scores, None if scores else Skipped(rule.nothing))


def _tool_trajectory(grader: CriterionGrader, turn: Turn, expected: eval_set.Invocation) -> MetricResult:
    wanted = eval_set.tool_calls(expected.intermediate_data)
    criterion = grader.criterion
    if not criterion.ignore_args and any(map(are_arguments_unknown, turn.tool_calls)):
        return Unscored(f"{ARGUMENTS_UNKNOWN}: set ignore_args to compare the names alone")
    try:
        matched = trajectory_matches(
            [(c.name, c.args if c.invalid_arguments is None else _INVALID) for c in turn.tool_calls],
            [(call.name, call.args) for call in wanted],
            criterion.match_type,
            criterion.ignore_args,
            criterion.any_args_where_absent,
        )
    except RecursionError:
        return Unscored("the arguments of a tool call are nested too deeply to be compared")
    return Score(1.0 if matched else 0.0, _side_by_side(wanted, turn.tool_calls, criterion))


def _tool_trajectory_f1(_: CriterionGrader, turn: Turn, expected: eval_set.Invocation) -> MetricResult:
    wanted = [call.name for call in eval_set.tool_calls(expected.intermediate_data)]
    made = [call.name for call in turn.tool_calls]
    return Score(
        tool_names_f1(made, wanted),
        f"expected {_call_list_text(wanted, len(wanted))}; called {_call_list_text(made, len(made))}",
    )


def _response_match(_: CriterionGrader, turn: Turn, expected: eval_set.Invocation) -> MetricResult | None:
    if expected.final_response is None:
        return None
    overlap = rouge1(turn.agent_message, eval_set.text_of(expected.final_response))
    return Score(
        overlap.f,
        f"words in common: {overlap.shared} of {overlap.expected} expected and {overlap.actual} answered",
    )


def _side_by_side(
    wanted: Sequence[eval_set.FunctionCall], made: Sequence[ToolCall], criterion: MetricCriterion
) -> str:
    how = _HOW[criterion.match_type] + (" whatever the arguments" if criterion.ignore_args else "")
    absent = "(…)" if criterion.any_args_where_absent else " (arguments absent)"
    expected = [_call_text(call.name or "", call.args, absent) for call in wanted[:_SHOWN_CALLS]]
    called = [
        call_text(call) if call.invalid_arguments else _call_text(call.name, call.args, " (arguments absent)")
        for call in made[:_SHOWN_CALLS]
    ]
    return (
        f"expected{how} {_call_list_text(expected, len(wanted))}; called {_call_list_text(called, len(made))}"
    )


def _call_text(name: str, args: Any, absent: str) -> str:
    if args is None:
        return name + absent
    return call_text(ToolCall(name, args, result=None, mocked=False, turn_index=0))


def _call_list_text(calls: Sequence[str | None], count: int) -> str:
    if not calls:
        return "no tool"
    text = ", then ".join(call or "" for call in calls[:_SHOWN_CALLS])
    return text if count <= _SHOWN_CALLS else f"{text} and {count - _SHOWN_CALLS} more"


def _amount(unit: str, of: Callable[[Turn], float | None], nothing: str = "") -> TurnRule:

    def score(_grader: CriterionGrader, turn: Turn, _expected: None) -> MetricResult | None:
        amount = of(turn)
        return None if amount is None else Score(float(amount), f"{unit}: {amount:.6g}")

    return TurnRule(score, nothing, compares=False)


_VALUE_CHARS = 200
_SHOWN_REMARKS = 10

AuthoredText = tuple[str, str]  # an author and their text


def expects_state(case: eval_set.EvalCase) -> bool:
    """Return True if the case expects a final session state."""
    return bool(case.final_session_state)


def expects_responses(case: eval_set.EvalCase) -> bool:
    """Return True if the case expects messages before a reply."""
    return any(expected_responses(invocation) for invocation in case.conversation or ())


def expected_responses(invocation: eval_set.Invocation) -> list[AuthoredText]:
    """Return the expected messages before the final response, with normalized white space."""
    spoken = messages_before_reply(invocation.intermediate_data)
    return [(author, on_one_line(text)) for author, text in spoken]


def messages_before_reply(data: eval_set.IntermediateForm) -> list[AuthoredText]:
    """Return the messages before the final response, in order, without thoughts and user messages."""
    if data is None:
        return []
    if isinstance(data, eval_set.InvocationEvents):
        messages = [(e.author, (e.content and e.content.parts) or ()) for e in data.invocation_events]
    else:
        messages = list(data.intermediate_responses)
    spoken = [
        (author, eval_set.text_of(eval_set.Content(None, tuple(part for part in parts if not part.thought))))
        for author, parts in messages
        if author.lower() != "user"
    ]
    return [(author, text) for author, text in spoken if text.strip()]


def _final_session_state(grader: CriterionGrader, last: Turn, _: None) -> MetricResult:
    """Return 1 if each key of the expected final state has that value after the last turn, else 0."""
    if last.state_after is None:
        unknown = f"the agent does not report its session's state: {state_reported_by()}"
        return Unscored(last.state_error or unknown)
    wrong = list(_differences(grader.case.final_session_state or {}, last.state_after))
    return Score(0.0 if wrong else 1.0, "; ".join(wrong) or "the final state is as expected")


def _differences(expected: Mapping[str, Any], actual: Mapping[str, Any]) -> Iterator[str]:
    for key, wanted in expected.items():
        value = argument(actual, key)
        if value is MISSING:
            yield f"{key}: expected {_short_value(wanted)}, found no such key"
        elif not equal(wanted, value):
            yield f"{key}: expected {_short_value(wanted)}, found {_short_value(value)}"


def _short_value(value: Any) -> str:
    return shortened(safe_repr(value), _VALUE_CHARS)


def _intermediate_responses(
    _: CriterionGrader, turn: Turn, expected: eval_set.Invocation
) -> MetricResult | None:
    """Return 1 for a turn with all expected messages in order, each by the expected author, else 0."""
    wanted = expected_responses(expected)
    if not wanted:
        return None
    said = [(remark.author, on_one_line(remark.text)) for remark in turn.remarks]
    left = iter(said)
    missing = next((message for message in wanted if message not in left), None)
    if missing is None:
        return Score(1.0, "all was said that is expected before the reply")
    if turn.author is None:
        return Unscored(f"the agent does not report who says what before its reply: {remarks_reported_by()}")
    at = wanted.index(missing)
    after = f" after {_shortened_message(wanted[at - 1])}" if at else ""
    shown = [_shortened_message(message) for message in said[:_SHOWN_REMARKS]]
    more = [f"… {len(said) - len(shown)} more"] if len(said) > len(shown) else []
    found = ", ".join([*shown, *more]) or "nothing before the reply"
    return Score(0.0, f"expected {_shortened_message(missing)}{after}; said was {found}")


def _shortened_message(message: AuthoredText) -> str:
    return f"{shortened(message[0], _VALUE_CHARS)}: {_short_value(message[1])}"


RULES: Mapping[str, TurnRule] = require_entry_for_each(
    (metric for metric in ADK_METRICS.values() if not metric.judged),
    {
        "tool_trajectory_avg_score": TurnRule(_tool_trajectory),
        "tool_trajectory_f1": TurnRule(_tool_trajectory_f1),
        "response_match_score": TurnRule(
            _response_match, "no invocation of the case has a final_response to compare with"
        ),
        "final_session_state_match": TurnRule(_final_session_state, compares=False, last=True),
        "intermediate_responses_match": TurnRule(
            _intermediate_responses, "no invocation of the case has intermediate responses to compare with"
        ),
        "tool_call_count_v1": _amount("tool calls", lambda turn: len(turn.tool_calls)),
        "inference_call_count_v1": _amount(
            "model calls",
            lambda turn: turn.model_calls,
            "the agent does not report how often it calls its model",
        ),
        "token_usage_v1": _amount(
            "tokens", lambda turn: turn.usage.total_tokens or None, "the agent reports no tokens"
        ),
        "invocation_duration_v1": _amount("seconds", lambda turn: turn.latency_ms / 1000),
    },
)
