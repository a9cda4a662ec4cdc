"""The deterministic metrics of evaluation sets: tool calls and words against what a case expects."""

from __future__ import annotations

import unicodedata
from typing import Any

import anyio
import pytest
from builders import tool_call, turn
from hypothesis import given
from hypothesis import strategies as st

from agentest.domain.end_reason import Ending
from agentest.domain.results import Score, Skipped, Unscored
from agentest.domain.transcript import Conversation, ToolCall, Turn, Usage
from agentest.judging.grader import Grader, GraderResult
from agentest.models.port import CallKey
from agentest.plugins.adk.formats.criteria import MatchType, MetricCriterion
from agentest.plugins.adk.formats.eval_set import (
    ConversationScenario,
    EvalCase,
    FunctionCall,
    IntermediateData,
    Invocation,
    content,
)
from agentest.plugins.adk.metrics.deterministic import Call, tool_names_f1, trajectory_matches
from agentest.plugins.adk.metrics.grader_factory import make_grader
from agentest.plugins.adk.metrics.rouge import rouge1, stem, words

A, B, C = ("a", {"x": 1}), ("b", {}), ("c", None)
EXACT, IN_ORDER, ANY_ORDER = MatchType.EXACT, MatchType.IN_ORDER, MatchType.ANY_ORDER

values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=2),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("xy"), inner, max_size=2),
    max_leaves=4,
)
calls = st.lists(
    st.tuples(st.sampled_from("ab"), st.none() | st.dictionaries(st.sampled_from("xy"), values, max_size=2)),
    max_size=5,
)


def expects(*wanted: tuple[str, Any], text: str | None = None) -> Invocation:
    uses = tuple(FunctionCall(name=name, args=args) for name, args in wanted)
    final = None if text is None else content(text, "model")
    return Invocation(content("?", "user"), "i", final, IntermediateData(uses) if uses else None)


def case(*invocations: Invocation) -> EvalCase:
    return EvalCase("case", invocations)


def graded(grader: Grader, *turns: Turn) -> GraderResult:
    conversation = Conversation("c", turns, Ending.SCRIPT)
    return anyio.run(grader.grade, conversation, None, CallKey("judge", "s"))


def scores(found: GraderResult) -> dict[int, float]:
    return {n: result.value for n, result in found.turns.items()}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("actual", "expected", "exact", "in_order", "any_order"),
    [
        ([], [], True, True, True),
        ([A], [], False, True, True),
        ([], [A], False, False, False),
        ([A, B], [A, B], True, True, True),
        ([A, C, B], [A, B], False, True, True),
        ([B, A], [A, B], False, False, True),
        ([A], [A, A], False, False, False),
        ([A, A], [A], False, True, True),
        ([A, B, A], [A, A], False, True, True),
        ([B, A, B], [A, B, B], False, False, True),
    ],
)
def test_match_types(
    actual: list[Call], expected: list[Call], exact: bool, in_order: bool, any_order: bool
) -> None:
    """EXACT wants the same calls, IN_ORDER a subsequence, ANY_ORDER that each is found once."""
    found = [trajectory_matches(actual, expected, how) for how in (EXACT, IN_ORDER, ANY_ORDER)]
    assert found == [exact, in_order, any_order]


@pytest.mark.parametrize(
    ("made", "wanted", "same"),
    [
        ({"x": 1}, {"x": 1.0}, True),
        ({"x": True}, {"x": 1}, True),
        ({"x": "1"}, {"x": 1}, False),
        ({"x": [1, 2]}, {"x": [2, 1]}, False),
        ({"x": 1, "y": 2}, {"y": 2, "x": 1}, True),
        ({"x": None}, {}, False),
        ({}, None, False),
        (None, None, True),
        ({"x": float("nan")}, {"x": float("nan")}, False),
    ],
)
@pytest.mark.parametrize("how", list(MatchType))
def test_arguments_are_compared_as_python_does(made: Any, wanted: Any, same: bool, how: MatchType) -> None:
    """Arguments are equal if Python's `==` says so, and absent ones differ from `{}`."""
    assert trajectory_matches([("f", made)], [("f", wanted)], how) is same
    assert trajectory_matches([("f", made)], [("f", wanted)], how, ignore_args=True)


@given(calls, calls)
def test_match_types_imply_one_another(actual: list[Call], expected: list[Call]) -> None:
    """Exact matches also match in order, those in any order; arguments only narrow a match."""
    exact, in_order, any_order = (trajectory_matches(actual, expected, how) for how in MatchType)
    assert exact <= in_order <= any_order
    for how in MatchType:
        named = trajectory_matches(actual, expected, how, ignore_args=True)
        assert trajectory_matches(actual, expected, how) <= named
        only_names = [(name, {}) for name, _ in actual], [(name, {}) for name, _ in expected]
        assert named == trajectory_matches(*only_names, how)


@given(st.permutations([("f", {"x": 1}), ("f", None), ("g", None)]))
def test_absent_arguments_can_match_any(expected: list[Call]) -> None:
    """With that criterion an expected call without arguments matches any, but only of its tool."""
    actual = [("f", {"x": 1}), ("g", {}), ("f", {"x": 2})]
    assert trajectory_matches(actual, expected, ANY_ORDER, any_args_where_absent=True)
    assert not trajectory_matches(actual, expected, ANY_ORDER)


@pytest.mark.parametrize(
    ("actual", "expected", "value"),
    [
        ("", "", 1.0),
        ("a", "", 0.0),
        ("", "a", 0.0),
        ("ab", "ba", 1.0),
        ("aab", "abb", 2 / 3),
        ("ab", "a", 2 / 3),
    ],
)
def test_f1_of_names(actual: str, expected: str, value: float) -> None:
    """Precision and recall count each name as often as both sides have it; no tool on either side is 1."""
    assert tool_names_f1(list(actual), list(expected)) == pytest.approx(value)


@pytest.mark.parametrize(
    ("response", "reference", "value"),
    [
        ("The cat sat", "the cats sat", 1.0),
        ("running quickly", "run quick", 0.5),
        ("a a a", "a", 0.5),
        ("café au lait", "cafe au lait", 2 / 3),
        ("今天天气", "今天", 2 / 3),
        ("", "", 0.0),
        ("", "a", 0.0),
        ("!?", "!?", 0.0),
    ],
)
def test_rouge_of_known_pairs(response: str, reference: str, value: float) -> None:
    """ROUGE-1 has the values that google-adk gives these pairs."""
    assert rouge1(response, reference).f == pytest.approx(value, abs=1e-15)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("snake_case don't 3.14", ["snake", "case", "don", "t", "3", "14"]),
        ("ＦＵＬＬ　ﬁt", ["full", "fit"]),
        ("東京2020年", ["東", "京", "2020", "年"]),
        ("ขอบคุณ", ["ข", "อ", "บ", "คุ", "ณ"]),
        ("ខ្មែរ", ["ខ្", "មែ", "រ"]),
        ("नमस्ते दुनिया", ["नमस्ते", "दुनिया"]),
        ("❤\ufe0f ok", ["\ufe0f", "ok"]),
        ("\u0301", ["\u0301"]),
        ("กab", ["กab"]),
    ],
)
def test_words_of_scripts(text: str, found: list[str]) -> None:
    """Words are split by script: characters, clusters, or whole; a lone mark is a word too."""
    assert words(text) == found


@given(st.text(), st.text())
def test_rouge_is_symmetric_and_bounded(left: str, right: str) -> None:
    """Two texts score from 0 to 1, the same in either direction; a text with words scores 1 with itself."""
    assert 0.0 <= rouge1(left, right).f <= 1.0
    assert rouge1(left, right).f == pytest.approx(rouge1(right, left).f, abs=1e-15)
    assert rouge1(left, left).f == (1.0 if words(left) else 0.0)


STEMS = """
caresses caress, ponies poni, ties tie, caress caress, cats cat, feed feed, agreed agre,
plastered plaster, motoring motor, sing sing, conflated conflat, troubled troubl, sized size,
hopping hop, tanned tan, falling fall, hissing hiss, fizzed fizz, failing fail, filing file,
happy happi, sky sky, enjoy enjoy, relational relat, conditional condit, rational ration,
digitizer digit, radically radic, analogously analog, vietnamization vietnam, hopefully hope,
theology theolog, archaeology archaeolog, triplicate triplic, formative form, goodness good,
revival reviv, allowance allow, replacement replac, adoption adopt, controller control, roll roll,
probate probat, cease ceas, dying die, skies sky, news news, innings inning, howe howe, died die,
tried tri, flies fli, spy spi, yyyy yyyi, s2s2s s2s2, ing ing, eed eed, being be, using use,
proceed proceed
"""


@pytest.mark.parametrize("pair", STEMS.split(","), ids=str.strip)
def test_stems(pair: str) -> None:
    """Words have the stems that NLTK gives them."""
    word, expected = pair.split()
    assert stem(word) == expected


def test_turns_are_paired_with_invocations() -> None:
    """Each turn is scored by its own invocation, and one without intermediate data expects no call."""
    expected = case(expects(("check_availability", {"date": "Tuesday"})), expects(), expects())
    turns = turn(0, tool_calls=(tool_call(),)), turn(1), turn(2, tool_calls=(tool_call(),))
    found = graded(make_grader(expected, MetricCriterion("tool_trajectory_avg_score", 1.0), {}), *turns)
    assert scores(found) == {0: 1.0, 1: 1.0, 2: 0.0}
    assert found.conversation is None


def test_reason_shows_both_sides() -> None:
    """The reason lists expected and actual calls, in order and with their arguments."""
    expected = case(expects(("get_weather", {"city": "London"}), ("book", None)))
    made = tool_call("get_weather", {"city": "Paris"}), tool_call("book", "{", invalid_arguments="no JSON")
    found = graded(
        make_grader(expected, MetricCriterion("tool_trajectory_avg_score", 1.0), {}), turn(tool_calls=made)
    )
    assert found.turns[0] == Score(
        0.0,
        "expected get_weather(city='London'), then book (arguments absent); "
        "called get_weather(city='Paris'), then book(invalid arguments: '{')",
    )


@pytest.mark.parametrize("raw", [None, "", "{", [], [1], 3, {"x": 1}])
@pytest.mark.parametrize("wanted", [None, {}, {"x": 1}])
def test_invalid_arguments_match_only_names(raw: Any, wanted: Any) -> None:
    """Invalid arguments never match, unless arguments are ignored."""
    made = turn(tool_calls=(ToolCall("f", raw, None, False, 0, invalid_arguments="not an object"),))
    expected = case(expects(("f", wanted)))
    assert scores(
        graded(make_grader(expected, MetricCriterion("tool_trajectory_avg_score", 1.0), {}), made)
    ) == {0: 0.0}
    assert scores(
        graded(
            make_grader(expected, MetricCriterion("tool_trajectory_avg_score", 1.0, ignore_args=True), {}),
            made,
        )
    ) == {0: 1.0}


@pytest.mark.slow
def test_deep_arguments_are_unscored() -> None:
    """Arguments too deep for Python to compare leave the turn without a score, not the run without an end."""
    deep: list[dict[str, Any]] = [{}, {}]
    for n in range(2):
        for _ in range(100_000):
            deep[n] = {"x": deep[n]}
    expected = EvalCase("c", (Invocation(content("?", "user"), intermediate_data=IntermediateData()),))
    uses = (FunctionCall(name="f"),)
    object.__setattr__(uses[0], "args", deep[0])  # read from a file, it could not be that deep
    object.__setattr__(expected.conversation[0].intermediate_data, "tool_uses", uses)  # type: ignore[index]
    made = turn(tool_calls=(tool_call("f", deep[1]),))
    found = graded(make_grader(expected, MetricCriterion("tool_trajectory_avg_score", 1.0), {}), made)
    assert isinstance(found.turns[0], Unscored)


def test_many_calls_are_told_in_part() -> None:
    """A reason names the first twenty calls of a side and counts the others."""
    made = turn(tool_calls=tuple(tool_call("f", {}) for _ in range(50)))
    reason = graded(
        make_grader(case(expects()), MetricCriterion("tool_trajectory_avg_score", 1.0), {}), made
    ).turns[0]
    assert isinstance(reason, Score)
    assert reason.reason.startswith("expected no tool; called f(), then")
    assert reason.reason.endswith("f() and 30 more")


def test_f1_grader_scores_names() -> None:
    """The F1 grader scores each turn by the names of its tools, whatever their arguments and order."""
    expected = case(expects(("f", {"x": 1}), ("g", None)), expects())
    turns = turn(0, tool_calls=(tool_call("g"), tool_call("h"))), turn(1)
    found = graded(make_grader(expected, MetricCriterion("tool_trajectory_f1", 1.0), {}), *turns)
    assert scores(found) == {0: 0.5, 1: 1.0}
    assert found.turns[0] == Score(0.5, "expected f, then g; called g, then h")


def test_turns_without_reference_are_left_out() -> None:
    """A turn whose invocation has no final response has no response score; an empty response scores 0."""
    expected = case(expects(text="Yes"), expects(), expects(text=""))
    turns = turn(0, agent="yes, yes"), turn(1, agent="no"), turn(2, agent="")
    found = graded(make_grader(expected, MetricCriterion("response_match_score", 0.8), {}), *turns)
    assert scores(found) == {0: pytest.approx(2 / 3), 2: 0.0}
    assert found.turns[0] == Score(2 / 3, "words in common: 1 of 1 expected and 2 answered")


def test_no_reference_at_all_is_skipped() -> None:
    """If a case has no final response, the response's metric is skipped with a reason."""
    found = graded(make_grader(case(expects()), MetricCriterion("response_match_score", 0.8), {}), turn())
    assert found == GraderResult(
        conversation=Skipped("no invocation of the case has a final_response to compare with")
    )


COMPARING = ["tool_trajectory_avg_score", "tool_trajectory_f1", "response_match_score"]


@pytest.mark.parametrize("metric", COMPARING)
def test_simulated_conversations_are_skipped(metric: str) -> None:
    """A simulated conversation has no reference, so that nothing is compared."""
    simulated = EvalCase("c", conversation_scenario=ConversationScenario("Hi", "Ask."))
    grader = make_grader(simulated, MetricCriterion(metric, 1.0), {})
    assert grader.name == metric
    assert graded(grader, turn()) == GraderResult(
        conversation=Skipped("a simulated conversation has no reference to compare with")
    )


@pytest.mark.parametrize("metric", COMPARING)
def test_unfinished_conversations_have_no_score(metric: str) -> None:
    """A conversation that ended in its first turn scores nothing; one that ended later scores what it has."""
    expected = case(expects(text="a"), expects(text="b"))
    grader = make_grader(expected, MetricCriterion(metric, 1.0), {})
    assert graded(grader) == GraderResult(conversation=Skipped("no turn of the conversation was finished"))
    assert graded(grader, turn(0)).turns.keys() == {0}


@pytest.mark.parametrize("marks", ["\u0300\u0315", "a\u0300\u0315", "\u0f73", "\uff9e\u0301"])
def test_words_with_marks_without_end(marks: str) -> None:
    """A character with ever more marks takes time in proportion: sorting them all would take an hour."""
    assert len(words(marks * (400_000 // len(marks)))) <= 400_000


@given(st.text(st.sampled_from("ae \u0300\u0315\u0323ｶﾞ한ﬁ")))
def test_words_are_those_of_the_normal_form(text: str) -> None:
    """As long as no character has more marks than a script puts on one, words are those of the form NFKC."""
    assert words(text) == words(unicodedata.normalize("NFKC", text)) or len(text) > 30


# What a turn cost


def amounts(metric: str, *turns: Turn) -> GraderResult:
    return graded(make_grader(case(expects()), MetricCriterion(metric, 0.0), {}), *turns)


def test_costs_of_turns() -> None:
    """Calls, tokens and seconds are counted by turn, with the unit in the reason; unreported tokens and model
    calls are unknown, not 0."""
    turns = (
        turn(0, tool_calls=(tool_call(), tool_call("book")), model_calls=3),
        turn(1, usage=Usage(), latency_ms=2500),
    )
    assert scores(amounts("tool_call_count_v1", *turns)) == {0: 2.0, 1: 0.0}
    assert scores(amounts("token_usage_v1", *turns)) == {0: 15.0}
    assert scores(amounts("invocation_duration_v1", *turns)) == {0: 0.1205, 1: 2.5}
    assert amounts("token_usage_v1", turns[0]).turns[0] == Score(15.0, "tokens: 15")
    unreported = amounts("token_usage_v1", turns[1])
    assert unreported == GraderResult(conversation=Skipped("the agent reports no tokens"))
    assert scores(amounts("inference_call_count_v1", *turns)) == {0: 3.0}
    unknown = amounts("inference_call_count_v1", turns[1])
    assert unknown == GraderResult(
        conversation=Skipped("the agent does not report how often it calls its model")
    )
