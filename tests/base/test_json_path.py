"""JMESPath expressions: errors are reported at once, with their position."""

from __future__ import annotations

import re
from typing import Any

import pytest

from agentest.support.jmespath_expressions import JsonPath, path_to

BROKEN = {
    "": "is empty; write a JMESPath expression",
    "a[": "'a[', which is not JMESPath: it breaks off at its end",
    "a.b c": "'c' is not expected at character 5",
    "'x": "an unclosed quote at character 1",
    "session-id": 'at character 8; a key with a hyphen stands in double quotes: "session-id"',
    "$.a": "at character 1; it begins with a key, without `$`",
    "lenght(a)": "has the function lenght(), which JMESPath lacks; did you mean `length`",
    "length()": "gives length() 0 arguments, and it takes 1",
    'type == "token" && text': "compares with the key \"token\"; a text stands in single quotes: 'token'",
    "(" * 5000 + "a": "nested too deeply",
}


@pytest.mark.parametrize("text", BROKEN, ids=lambda text: text[:12])
def test_wrong_expressions_are_explained(text: str) -> None:
    """The message says what is wrong, where, and what may have been meant."""
    with pytest.raises(ValueError, match=re.escape(BROKEN[text])):
        JsonPath(text)


@pytest.mark.parametrize(
    ("path", "value", "found"),
    [
        ("data.reply", {"data": {"reply": "x"}}, "x"),
        ("reply", {"reply": False}, False),
        ("reply", {"reply": 0}, 0),
        ("reply", {}, None),
        ("type=='token' && text", {"type": "end", "text": "x"}, None),
        ("type=='token' && text", {"type": "token", "text": "x"}, "x"),
        ("parts[].text", {"parts": [{"text": "a"}, {"text": "b"}]}, ["a", "b"]),
        ("join('', parts)", {"parts": None}, None),
        ("@", "x", "x"),
        ("a == '\"b\" == c'", {"a": '"b" == c'}, True),
    ],
)
def test_values_that_expressions_find(path: str, value: Any, found: Any) -> None:
    """A `false` value is found; false conditions and functions of nothing find nothing."""
    assert JsonPath(path).find(value) == found
    assert type(JsonPath(path).find(value)) is type(found)


def test_truthiness() -> None:
    """Nothing, false, zero and empty values are false; texts are true."""
    values = [None, False, "", [], {}, 0, "no", [0]]
    assert [JsonPath("a").holds({"a": value}) for value in values] == [False] * 6 + [True] * 2


def test_a_path_to_a_value_finds_it() -> None:
    """Keys of any spelling are written so that the expression finds what they lead to."""
    parts = ("a", 0, "my-key", 'q"\\')
    assert path_to(parts) == 'a[0]."my-key"."q\\"\\\\"'
    assert JsonPath(path_to(parts)).find({"a": [{"my-key": {'q"\\': 1}}]}) == 1
    assert path_to(()) == "@"
