"""Texts that can be sent: well-formed at any depth, whatever an agent put there."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from agentest.support.json_text import well_formed, well_formed_value

TEXTS = st.text(st.characters() | st.sampled_from("\ud83d\ude00\udfff"), max_size=6)
VALUES = st.recursive(
    st.none() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@given(VALUES)
def test_any_value_can_be_sent_as_utf8(value: object) -> None:
    """A value that could be sent before is returned as the same object."""
    mended = well_formed_value(value)
    json.dumps(mended, ensure_ascii=False).encode()
    assert well_formed_value(mended) is mended
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return
    assert mended is value


def test_values_that_are_not_json_are_left_alone() -> None:
    """Foreign objects, keys that are not texts, and values that contain themselves are left as they are."""
    inside: list[object] = [object(), "\ud83d"]
    inside.append(inside)
    mended = well_formed_value({5: inside, None: "a"})
    assert mended[5][0] is inside[0]
    assert mended[5][1] == "\ufffd"


def test_split_surrogate_pairs_are_joined() -> None:
    """The two halves of a pair become their character; plain text costs nothing."""
    assert well_formed("\ud83d" + "\ude00") == "😀"
    text = "plain"
    assert well_formed(text) is text
