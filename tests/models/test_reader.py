"""Parsing model answers: valid answers are found, and nothing else is accepted."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from agentest.judging.answers import BinaryAnswer, ScaleAnswer
from agentest.models.structured_output import Unreadable, _objects, read


class Line(BaseModel):
    """A simulated user's message."""

    message: str
    should_stop: bool


class Label(BaseModel):
    reason: str
    value: Literal["no failure", "false information"]


class Deep(BaseModel):
    """Numbers, lists and objects inside the answer."""

    name: str
    ratio: Annotated[float, Field(ge=0, le=1)]
    tags: list[str]
    inner: ScaleAnswer
    extra: dict[str, Any] | None


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
scale = st.builds(ScaleAnswer, reason=texts, value=st.sampled_from([1, 2, 3, 4, 5]))
binary = st.builds(BinaryAnswer, reason=texts, value=st.sampled_from([0, 1]))
lines = st.builds(Line, message=texts, should_stop=st.booleans())
labels = st.builds(Label, reason=texts, value=st.sampled_from(["no failure", "false information"]))
deep = st.builds(
    Deep,
    name=texts,
    ratio=st.floats(0, 1),
    tags=st.lists(texts, max_size=3),
    inner=scale,
    extra=st.none() | st.dictionaries(texts, texts | st.integers() | st.none(), max_size=3),
)
answers = scale | binary | lines | labels | deep

no_braces = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="{}"), max_size=40)
prose = no_braces.filter(lambda text: "<think" not in text)
asides = st.sampled_from(["", "In the set {a, b}: ", "\\frac{1}{2} ", "{} ", "f(x) { … ", "} ", ":-{ … "])
thoughts = st.sampled_from(["", "<think>", "<thinking>", "\n<think>"])


@st.composite
def wrapped(draw: st.DrawFn) -> tuple[str, BaseModel]:
    """An answer, and text around it as models write it."""
    answer: BaseModel = draw(answers)
    indent = draw(st.sampled_from([None, 2, "\t"]))
    text = json.dumps(answer.model_dump(), indent=indent, ensure_ascii=draw(st.booleans()))
    if draw(st.booleans()):
        text = f"```{draw(st.sampled_from(['json', '', 'JSON']))}\n{text}\n```"
    text = draw(asides) + draw(prose) + text + draw(prose)
    tag = draw(thoughts)
    if tag:
        draft = draw(st.sampled_from(["Hm.", '{"value": 1, "reason": "draft"}', "{"]))
        text = f"{tag}{draft}{draw(no_braces)}</{tag.strip()[1:]}{text}"
    return text, answer


@given(wrapped())
def test_an_answer_is_read_back(case: tuple[str, BaseModel]) -> None:
    """An answer is parsed exactly despite prose, code fences, reasoning and other braces around it."""
    text, answer = case
    assert read(text, type(answer)) == answer


@given(scale, st.integers(2, 4), st.lists(prose, min_size=5, max_size=5))
def test_an_answer_given_again(answer: ScaleAnswer, times: int, between: list[str]) -> None:
    """Several copies of one answer are that answer."""
    text = "".join(gap + answer.model_dump_json() for gap in between[:times])
    assert read(text, ScaleAnswer) == answer


@given(scale, scale, prose)
def test_two_answers(first: ScaleAnswer, second: ScaleAnswer, between: str) -> None:
    """Two different answers are unreadable."""
    text = f"{first.model_dump_json()}{between}{second.model_dump_json()}"
    if first == second:
        assert read(text, ScaleAnswer) == first
    else:
        with pytest.raises(Unreadable, match="several different"):
            read(text, ScaleAnswer)


wrong_values = st.one_of(
    st.integers().filter(lambda n: n not in range(1, 6)),
    st.booleans(),
    st.none(),
    st.floats(allow_nan=False, allow_infinity=False).filter(lambda x: x not in (1, 2, 3, 4, 5)),
    st.sampled_from(["1", "2", "3", "4", "5", "five", "", "4/5"]),
    st.lists(st.integers(1, 5), max_size=2),
    st.dictionaries(st.just("value"), st.integers(1, 5), max_size=1),
).filter(lambda value: not (type(value) is int and 1 <= value <= 5))


@given(wrong_values, prose, prose)
def test_wrong_values(value: Any, before: str, after: str) -> None:
    """A quoted number, boolean, fraction or number off the scale is never a score."""
    text = before + json.dumps({"reason": "because", "value": value}) + after
    with pytest.raises(Unreadable):
        read(text, ScaleAnswer)


GOOD = '{"reason": "r", "value": 4}'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "4",
        "The score is 4.",
        "null",
        "[]",
        "{}",
        '{"reason": "r"}',
        '{"value": 4}',
        '{"reason": "r", "value": "4"}',
        '{"reason": "r", "value": 4.5}',
        '{"reason": "r", "value": true}',
        '{"reason": "r", "value": 0}',
        '{"reason": "r", "value": 6}',
        '{"reason": "r", "value": NaN}',
        '{"reason": "r", "value": Infinity}',
        '{"reason": "r", "value": -Infinity}',
        '{"reason": "r", "value": 4, "sure": NaN}',
        '{"reason": "r", "value": 4, "sure": 1e999}',
        '{"reason": "r", "value": 4, "value": 5}',
        '{"reason": "r", "value": 4, "value": 4}',
        '{"reason": "r", "value": 4, "x": {"a": 1, "a": 2}}',
        "{'reason': 'r', 'value': 4}",
        '{"reason": "r", "value": 4',
        '{"reason": "r", "value": 4,}',
        '{"reason": "r" "value": 4}',
        '{"reason": "r", "value": ' + "1" * 5000 + "}",
        '{"reason": "r\nr", "value": 4}',
        '{"reason": "\\ud800", "value": 4}',
        f'{{"answer": {GOOD}}}',
        f'{{"answer": {GOOD}',
        f'{{"answer": {GOOD}, "answer": 2}}',
        f'{{"answer": {GOOD}, "sure": NaN}}',
        f"{{'answer': {GOOD}}}",
        f"{{answer: {GOOD}}}",
        f'{{"reason": "they said {GOOD} there", "value": 2}}',
        f'{{"reason": "use }} here" "value": 2, "x": {GOOD}}}',
        f'{{"reason": "5" of {{them", "x": {GOOD}',
        f"<think>{GOOD}</think>",
        f"<think>first {GOOD} but then",
        f"<think>a</think><think>{GOOD}",
        f'{GOOD} or {{"reason": "r", "value": 7}}',
        f'{{"reason": "r", "value": "high"}} so {GOOD}',
        f'{{"reason": "r", "value": 1, "value": 2}} so {GOOD}',
        "{" * 100_000,
        '{"a":' * 100_000 + "1" + "}" * 100_000,
        '{"a": {' * 3000 + GOOD,
        "[" * 100_000 + GOOD[:-1],
    ],
    ids=lambda text: re.sub(r"\W+", "-", text[:50]).strip("-") or "nothing",
)
def test_unreadable_answers(text: str) -> None:
    """Wrong types, duplicate keys, nested answers and drafts give no value."""
    with pytest.raises(Unreadable) as caught:
        read(text, ScaleAnswer)
    assert 0 < len(str(caught.value)) < 500


@given(st.text(max_size=200) | st.text('{}[]":,value reason0123456789.', max_size=60))
def test_any_text(text: str) -> None:
    """Any text is a valid answer or Unreadable, and never raises another exception."""
    with suppress(Unreadable):
        assert read(text, ScaleAnswer).value in (1, 2, 3, 4, 5)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it is empty"),
        ("Four.", "it contains no JSON object"),
        ('{"reason": "r", "value": "4"}', "value: Input should be 1, 2, 3, 4 or 5"),
        ('{"reason": "r"}', "value: Field required"),
        ('{"reason": "r", "value": 4, "value": 5}', "a key is given twice"),
        ('{"reason": "r", "value": NaN}', "NaN is not JSON"),
        ('{"reason": "r", "value": 4', "it is not valid JSON"),
    ],
)
def test_errors_help_the_model(text: str, said: str) -> None:
    """The error says what was wrong, so that a model can correct it."""
    with pytest.raises(Unreadable, match=re.escape(said)):
        read(text, ScaleAnswer)


@given(scale)
def test_an_example_of_the_schema(answer: ScaleAnswer) -> None:
    """A placeholder example of the schema, or an unrelated object, is skipped."""
    shown = 'Of the form {"reason": <text>, "value": <number>}; the call was {"date": "friday"}. '
    assert read(shown + answer.model_dump_json(), ScaleAnswer) == answer


def test_a_label_outside_the_set() -> None:
    """A misspelled label is not corrected."""
    with pytest.raises(Unreadable):
        read('{"reason": "r", "value": "No failure"}', Label)


def test_a_binary_value() -> None:
    """Only the number 1, in any JSON spelling, completes a goal."""
    for right in ("1", "1.0"):
        assert repr(read(f'{{"reason": "r", "value": {right}}}', BinaryAnswer).value) == "1"
    for wrong in ("true", "0.9999", '"1"', "2"):
        with pytest.raises(Unreadable):
            read(f'{{"reason": "r", "value": {wrong}}}', BinaryAnswer)


def objects_slowly(text: str) -> list[str]:
    """Find the outermost objects the plain way, searching for each brace's end separately."""
    found = []
    at = text.find("{")
    while at >= 0:
        end = at + 1
        if re.compile(r"""\{\s*(?:["'}]|\w+\s*:)""").match(text, at):
            try:
                end = json.JSONDecoder(parse_int=str, parse_float=str).raw_decode(text, at)[1]
            except ValueError:
                end = max(closing(text, at, r"[{}]"), closing(text, at, r'"(?:[^"\\]|\\.)*"|[{}]'))
            found.append(text[at:end])
        at = text.find("{", end)
    return [source for source in found if source]


def closing(text: str, at: int, tokens: str) -> int:
    """Return the position after the brace that closes the one at `at`, or the text's end."""
    depth = 0
    for match in re.finditer(tokens, text[at:], re.S):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if not depth:
            return at + match.end()
    return len(text)


pieces = st.sampled_from(
    ["{", "}", '"', "\\", "a", ":", ",", " ", '{"a":', '"b"', "1", "{a:", "\n", "{}", '\\"']
)


@settings(max_examples=500)
@given(st.lists(pieces, max_size=25).map("".join))
def test_objects_are_found_in_one_pass(text: str) -> None:
    """Parsing in one pass finds the same objects as the plain search."""
    slowly = objects_slowly(text)
    quickly = list(_objects(text))
    assert [o for o in slowly if is_json(o)] == [o for o in quickly if is_json(o)]
    assert set(quickly) <= set(slowly)


def is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


@pytest.mark.parametrize(
    "piece",
    ['{a:\\"', '{a:\\"}', "{a:}", '{"a"}', '{"a":"x{', '{"a":', '{a:"\\\\', '"{', "{ ", "<think>", "{a "],
)
@pytest.mark.slow
def test_megabytes_without_an_answer(piece: str) -> None:
    """Megabytes are parsed in one pass, even if crafted to force repeated parsing."""
    with pytest.raises(Unreadable):
        read(piece * (300_000 // len(piece)), ScaleAnswer)
