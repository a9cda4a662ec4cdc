"""The criteria of a scenario: sentences of its author, each judged over the whole conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentest.scenarios.matchers.showing import brief
from agentest.scenarios.parsing import known_keys


@dataclass(frozen=True, slots=True)
class Criterion:
    """A sentence that must hold of the whole conversation, as "Never asks for the full card number".

    Attributes:
        required: whether the scenario fails where it is violated; else it is only shown.
    """

    text: str
    required: bool = True


def parse_criteria(value: Any, key: str = "criteria") -> tuple[Criterion, ...]:
    """Texts, `Criterion` values and `{"text": …, "required": …}`, in their order. Raises ValueError."""
    if isinstance(value, str | Mapping) or not isinstance(value, Sequence):
        raise ValueError(f"{key}: expected a list of texts and Criterion values, found {brief(value)}")
    criteria = tuple(_criterion(item, f"{key}[{n}]") for n, item in enumerate(value))
    texts = [criterion.text for criterion in criteria]
    for n, text in enumerate(texts):
        if text in texts[:n]:
            raise ValueError(f"{key}[{n}]: {brief(text)} is there twice; reports name each by its text")
    return criteria


def _criterion(item: Any, key: str) -> Criterion:
    if isinstance(item, Mapping):
        known = known_keys(item, ("text", "required"), key)
        if "text" not in known:
            raise ValueError(f"{key}.text: is missing; write what must hold")
        item = Criterion(known["text"], known.get("required", True))
    criterion = item if isinstance(item, Criterion) else Criterion(item)
    if not isinstance(criterion.text, str) or not criterion.text.strip():
        raise ValueError(f"{key}: expected a sentence that must hold, found {brief(criterion.text)}")
    if not isinstance(criterion.required, bool):
        raise ValueError(f"{key}.required: expected True or False, found {brief(criterion.required)}")
    return Criterion(criterion.text.strip(), criterion.required)
