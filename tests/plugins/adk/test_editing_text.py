"""The text of an evaluation set that is written again: its values, and the way it is indented."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from evalset_strategy import json_values
from hypothesis import given
from hypothesis import strategies as st

from agentest.plugins.adk.set_files import SetContent, SetFile, open_set

INDENTS = st.sampled_from([None, 1, 2, 4, "\t"])
LAYOUTS = st.tuples(INDENTS, st.sampled_from(["\n", "\r\n"]), st.sampled_from(["", "\n", "\n\n"]))


def opened(text: str) -> SetFile:
    return open_set(SetContent(Path("a.test.json"), "a.test.json", text.encode()))


def written(value: Any, layout: tuple[Any, str, str]) -> str:
    indent, newline, end = layout
    return (
        json.dumps({"eval_cases": [{"eval_id": "a", "x": value}], "mine": [1]}, indent=indent).replace(
            "\n", newline
        )
        + end
    )


@given(json_values, LAYOUTS)
def test_an_unchanged_case_keeps_every_byte(value: Any, layout: Any) -> None:
    text = written(value, layout)
    file = opened(text)
    assert file.with_value(0, file.value(0)) == text


@given(json_values, json_values, LAYOUTS)
def test_a_changed_case_is_what_is_read(old: Any, new: Any, layout: Any) -> None:
    """The new value and the rest of the document are read from the text."""
    text = opened(written(old, layout)).with_value(0, {"eval_id": "a", "x": new})
    assert json.loads(text) == {"eval_cases": [{"eval_id": "a", "x": new}], "mine": [1]}


@given(st.integers() | st.text(), LAYOUTS)
def test_a_file_keeps_its_indentation_and_line_ends(value: Any, layout: Any) -> None:
    """A file as `json.dumps` writes it is written in the same way again."""
    other = [value, "another"]
    assert opened(written(value, layout)).with_value(0, {"eval_id": "a", "x": other}) == written(
        other, layout
    )


def test_numbers_that_browsers_round_are_kept() -> None:
    """A number that a browser rounded counts as unchanged, so the file keeps its digits."""
    text = '{"eval_id": "a", "id": 12345678901234567891, "zero": -0.0, "one": 1.0, "text": "a"}'
    value = {"eval_id": "a", "id": 12345678901234567000, "zero": 0, "one": 1, "text": "b"}
    assert opened(text).with_value(0, value) == text.replace('"a"}', '"b"}')
    assert opened(text).with_value(0, {**value, "text": "a"}) == text


def test_true_is_not_one_and_keys_stay_in_order() -> None:
    """A value of another type is a change; a new key comes last."""
    text = '{"eval_id": "a", "z": 1, "a": 2}'
    value = {"a": 2, "new": None, "z": True, "eval_id": "a"}
    assert opened(text).with_value(0, value) == '{"eval_id": "a", "z": true, "a": 2, "new": null}'


@pytest.mark.parametrize(
    ("text", "added"),
    [
        ('{"eval_id": "é", "x": 1}', '{"eval_id": "é\\ud800ü", "x": 1}'),
        ('{"eval_id": "\\u00e9", "x": 1}', '{"eval_id": "\\u00e9\\ud800\\u00fc", "x": 1}'),
    ],
    ids=["plain", "escaped"],
)
def test_escapes_are_as_in_the_file(text: str, added: str) -> None:
    """Letters are escaped as in the file, and lone surrogates always."""
    assert opened(text).with_value(0, {"eval_id": "é\ud800ü", "x": 1}) == added
