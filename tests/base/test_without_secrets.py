"""Removing secrets from whole values: values without secrets are not copied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from agentest.domain.end_reason import Ending
from agentest.domain.transcript import Conversation, ToolCall, Turn
from agentest.support.redaction import Redactor, without_secrets

SECRET = "tok-1234-5678"
REDACT = Redactor([SECRET, "91191191"])


class Own:
    """A foreign object whose text contains a secret."""

    def __str__(self) -> str:
        return f"own {SECRET}"


class Text(str):
    """A text of another class."""


@dataclass
class Theirs:
    token: str


@pytest.mark.parametrize(
    ("value", "hidden"),
    [
        ({SECRET: {"a": [SECRET, 1, None]}}, {"[redacted]": {"a": ["[redacted]", 1, None]}}),
        ({f"{SECRET}": 1, f"{SECRET}{SECRET}": 2}, {"[redacted]": 1, "[redacted][redacted]": 2}),
        ({SECRET: 1, Text("91191191"): 2}, {"[redacted]": 1, "[redacted] (2)": 2}),
        ((91191191, 91191192, True, 1.5), ("[redacted]", 91191192, True, 1.5)),
        (Own(), "own [redacted]"),
        (Theirs(SECRET), "Theirs(token='[redacted]')"),
        (SECRET.encode(), "b'[redacted]'"),
    ],
)
def test_secrets_are_removed_anywhere_in_a_value(value: Any, hidden: Any) -> None:
    """Keys, numbers and foreign objects may be secrets; entries whose keys become equal stay separate."""
    assert without_secrets(value, REDACT) == hidden


def test_a_huge_number_is_not_a_secret() -> None:
    """Python does not print numbers of that length."""
    value = [10**6000, SECRET]
    assert without_secrets(value, REDACT) == [10**6000, "[redacted]"]


def test_cyclic_values_terminate() -> None:
    """A value that contains itself causes no endless recursion."""
    value: list[Any] = [SECRET]
    value += [value, {"a": value}]
    assert without_secrets(value, REDACT)[0] == "[redacted]"


def test_a_value_without_secrets_is_left_alone() -> None:
    """Nothing is copied: neither the value, nor a part of it that has none."""
    turns = tuple(Turn(n, "hi", said) for n, said in enumerate(["fine", f"it is {SECRET}"]))
    conversation = Conversation("c", turns, Ending.SCRIPT)
    assert without_secrets(conversation, Redactor()) is conversation
    assert without_secrets(turns[0], REDACT) is turns[0]
    found = without_secrets(conversation, REDACT)
    assert found.turns[0] is turns[0]
    assert found.turns[1].agent_message == "it is [redacted]"
    call = ToolCall("t", {"a": 1}, {"b": [SECRET]}, mocked=True, turn_index=0)
    hidden = without_secrets(call, REDACT)
    assert hidden.args is call.args
    assert hidden.result == {"b": ["[redacted]"]}
