"""Request templates for agents: filled once, typed, and checked before anything is sent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentest.support.templates import Template, check_names

VALUES = {"message": 'Say "hi"\n{{session_id}}', "turn_index": 2, "state.user": {"id": 7}, "none": None}


@pytest.mark.parametrize(
    ("template", "filled"),
    [
        ("{{message}}", VALUES["message"]),
        ("{{ turn_index }}", 2),
        ("turn {{turn_index}}: {{message}}", f"turn 2: {VALUES['message']}"),
        ({"a": ["{{state.user}}", "u={{state.user}}", 1, None]}, {"a": [{"id": 7}, 'u={"id": 7}', 1, None]}),
        ({"{{message}}": "{{none}}"}, {"{{message}}": None}),
        ("{{}} {{not a name}} {message}", "{{}} {{not a name}} {message}"),
    ],
)
def test_placeholders_are_filled(template: object, filled: object) -> None:
    """A single placeholder becomes the value itself, several become text; values are not filled again."""
    assert Template(template).filled(VALUES) == filled


@given(st.text())
def test_any_user_text_is_sent_unchanged(said: str) -> None:
    """Quotes, line breaks and placeholders in user text are kept."""
    assert Template({"text": "{{message}}"}).filled({"message": said}) == {"text": said}
    assert Template("<{{message}}>").filled({"message": said}) == f"<{said}>"


def test_a_template_without_placeholders_is_not_copied() -> None:
    """The same object is returned."""
    tree = {"a": [1, "two"]}
    assert Template(tree).filled({}) is tree


def test_unknown_placeholders_are_explained() -> None:
    """The error names the placeholder and the nearest valid name."""
    check_names({"a": ["{{message}} {{state.x.y}}"]}, ["message"], ["state"])
    with pytest.raises(ValueError, match=r"\{\{mesage\}\}, which stands for nothing; did you mean `message`"):
        check_names({"a": ["{{mesage}}"]}, ["message"], ["state"])
