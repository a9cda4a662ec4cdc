"""JSON edited as a text: what is not edited stays byte for byte."""

from __future__ import annotations

import json
from typing import Any

import pytest
from evalset_strategy import json_values
from hypothesis import given
from hypothesis import strategies as st

from agentest.plugins.adk.set_text import JsonRewriter, entries, root, same, style_of

INDENTS = st.sampled_from([None, 1, 2, 4, "\t"])
LAYOUTS = st.tuples(INDENTS, st.booleans(), st.sampled_from([", ", ","]), st.sampled_from(["\n", "\r\n"]))
SPACE = st.sampled_from(["", " ", "\n", "\n\n  "])


def edited(text: str, new: Any) -> str:
    span = root(text)
    return text[: span.start] + JsonRewriter(text, style_of(text)).rewritten(span, new) + text[span.end :]


def written(value: Any, layout: tuple[Any, bool, str, str]) -> str:
    indent, ascii_only, comma, newline = layout
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only, separators=(comma.strip(), ": "))
    return text.replace("\n", newline) if "\r" not in text else text


@given(json_values, LAYOUTS, SPACE, SPACE)
def test_an_edit_of_nothing_is_the_identity(value: Any, layout: Any, before: str, after: str) -> None:
    """A value that is put over itself leaves every byte, however the file is written."""
    text = before + written(value, layout) + after
    assert edited(text, value) == text


@given(json_values, json_values, LAYOUTS)
def test_what_is_written_is_the_value(old: Any, new: Any, layout: Any) -> None:
    """Whatever becomes of a value, the text holds the new one."""
    text = edited(written(old, layout), new)
    assert same(json.loads(text), new)


@given(st.lists(json_values, min_size=2, max_size=4), st.data(), LAYOUTS)
def test_one_changed_entry_leaves_the_others(values: list[Any], data: Any, layout: Any) -> None:
    """Of a list, only the text of the entry that has changed is another one."""
    place = data.draw(st.integers(0, len(values) - 1))
    text = written({"list": values, "after": 1}, layout)
    new = [*values[:place], "something else\n", *values[place + 1 :]]
    changed = edited(text, {"list": new, "after": 1})
    assert json.loads(changed)["list"] == new
    listed = next(entries(text, root(text)))
    span = list(entries(text, listed.span))[place].span
    assert changed.startswith(text[: span.start])
    assert changed.endswith(text[span.end :])


PRETTY = """{
    "a": 1.0,
    "b": {"x": [1, 2], "y": {}},
    "c": [
        {"k": "caf\\u00e9"},
        3
    ]
}
"""


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        ({"a": 2}, [('"a": 1.0', '"a": 2')]),
        ({"a": 1}, []),
        ({"a": True}, [('"a": 1.0', '"a": true')]),
        ({"b": {"x": [1, 9, 2], "y": {}}}, [("[1, 2]", "[1, 9, 2]")]),
        ({"b": {"x": [2], "y": {}}}, [("[1, 2]", "[2]")]),
        ({"b": {"x": [1, 2], "y": {"z": [1]}}}, [('"y": {}', '"y": {"z": [1]}')]),
        ({"c": [3]}, [('\n        {"k": "caf\\u00e9"},', "")]),
        ({"c": [3, {"k": "café"}]}, [('{"k": "caf\\u00e9"},\n        3', '3,\n        {"k": "caf\\u00e9"}')]),
        ({"c": [{"k": "thé"}, 3]}, [("caf\\u00e9", "th\\u00e9")]),
        (
            {"c": [{"k": "café"}, {"n": [1]}, 3]},
            [("        3",
              '        {\n            "n": [\n                1\n'
              "            ]\n        },\n        3")],
        ),
    ],
    ids=["number", "same number", "truth", "in", "out", "empty", "first", "moved", "ascii", "object"],
)  # fmt: skip
def test_only_what_changed_is_another_text(new: Any, expected: list[tuple[str, str]]) -> None:
    """A change is written where it was, as the file is written: indentation, escapes, lines."""
    text = PRETTY
    for old, other in expected:
        assert old in text
        text = text.replace(old, other, 1)
    assert edited(PRETTY, {**json.loads(PRETTY), **new}) == text


def test_new_keys_stand_behind_their_neighbour() -> None:
    """A key that is new comes after the key that it follows in the value, and the others stay in order."""
    text = '{"z": 1, "unknown": [ 1 ,2], "a": 2}'
    value = {"z": 1, "new": None, "a": 2, "unknown": [1, 2]}
    assert edited(text, value) == '{"z": 1, "new": null, "unknown": [ 1 ,2], "a": 2}'


def test_a_key_that_is_given_twice_is_changed_where_it_is_read() -> None:
    """Of two values of one key, the last one is read, and so it is the one that changes."""
    assert edited('{"a": 1, "a": 2, "b": 3}', {"a": 5, "b": 3}) == '{"a": 1, "a": 5, "b": 3}'
    assert edited('{"a": 1, "a": 2, "b": 3}', {"b": 3}) == '{"b": 3}'


def test_numbers_that_browsers_cannot_hold_stay() -> None:
    """A value that went through a browser has other digits, and the same number: the file keeps its own."""
    text = '{"id": 12345678901234567891, "zero": -0.0, "one": 1e0, "text": "a"}'
    value = {"id": 12345678901234567000, "zero": 0, "one": 1, "text": "b"}
    assert edited(text, value) == text.replace('"a"', '"b"')


@pytest.mark.parametrize(
    ("text", "new", "expected"),
    [
        ('[{"a":1},{"b":2}]', [{"b": 2}, {"c": [1, 2]}, {"a": 1, "z": "feel, no"}],
         '[{"b":2},{"c":[1,2]},{"a":1,"z":"feel, no"}]'),
        ('[{\n "a": 1\n}, {\n "b": 2\n}]', [{"a": 1}, {"b": 2}, {"c": 3}],
         '[{\n "a": 1\n}, {\n "b": 2\n}, {\n "c": 3\n}]'),
        ('{\r\n\t"a": []\r\n}', {"a": [1]}, '{\r\n\t"a": [\r\n\t\t1\r\n\t]\r\n}'),
        ('{"a": "é"}', {"a": "é\ud800ü"}, '{"a": "é\\ud800ü"}'),
    ],
    ids=["compact", "cuddled", "crlf and tabs", "half of a character"],
)  # fmt: skip
def test_each_file_is_written_in_its_own_way(text: str, new: Any, expected: str) -> None:
    """What is added looks like what is there."""
    assert edited(text, new) == expected
