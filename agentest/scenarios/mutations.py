"""Mutations of scripted user messages, without a model."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from agentest.support.lazy_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutation:
    """One way to change a script."""

    relation: str
    """How the agent's writes relate to those without it: `same`, `fewer` (a subset) or `new`."""
    change: Callable[[Sequence[str], random.Random], list[str] | None]
    """Returns the changed messages; None if it cannot change them."""


def _duplicate(texts: Sequence[str], rng: random.Random) -> list[str] | None:
    at = rng.randrange(len(texts))
    return [*texts[: at + 1], texts[at], *texts[at + 1 :]]


MUTATIONS: Mapping[str, Mutation] = {
    "duplicate": Mutation("same", _duplicate),
}
"""Name → mutation."""
