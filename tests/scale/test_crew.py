"""The workers of a run in one event loop, in orders of events that real processes show once in a thousand runs."""

from __future__ import annotations

from random import Random
from typing import Any

import anyio
import pytest
from crew_lab import Fate, Lab, passed, running, unit
from hypothesis import given, settings
from hypothesis import strategies as st

from agentest.results import Status


def held(results: Any) -> dict[str, list[str]]:
    return {
        scope: [each.conversation.conversation_id for each in result.conversations]
        for scope, result in results.items()
    }


def test_all_conversations_are_held_once() -> None:
    """Without trouble, each conversation is held once, in order of its number."""
    units = [unit("a", 3), unit("b", 2, parallel=False), unit("c", line="l"), unit("d", 2, line="l")]
    lab, results = running(units)
    assert held(results) == {
        "a": ["a-1", "a-2", "a-3"],
        "b": ["b-1", "b-2"],
        "c": ["c-1"],
        "d": ["d-1", "d-2"],
    }
    assert passed(results)
    assert not lab.rules.broken
    assert not lab.said


@settings(max_examples=150)
@given(
    seed=st.integers(0, 10**9),
    deaths=st.integers(0, 8),
    concurrency=st.integers(1, 6),
    size=st.integers(1, 4),
    outside=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_whatever_dies_all_is_held_and_counted_once(
    seed: int, deaths: int, concurrency: int, size: int, outside: float
) -> None:
    """However workers die and messages are late: the run ends, each conversation counts once, and no more
    are under way than may be."""
    random = Random(seed)
    units = [
        unit(f"u{n}", random.randint(1, 4), line=random.choice([None, None, "l"]), parallel=random.random() < 0.6)
        for n in range(random.randint(1, 6))
    ]

    async def kill(lab: Lab) -> None:
        for _ in range(deaths):
            await anyio.sleep(random.random())
            if lab.alive:
                random.choice(lab.alive).die()

    fate = Fate(random, waits_outside=outside)
    lab, results = running(units, kill, concurrency=concurrency, size=size, fate=fate)
    assert list(results) and {each.scope: each.conversations for each in units} == {
        scope: len(result.conversations) for scope, result in results.items()
    }
    for scope, result in results.items():
        for number, each in enumerate(result.conversations, 1):
            assert each.conversation.conversation_id.removesuffix("-retry1").removesuffix("-retry2") == (
                f"{scope}-{number}"
            )
    assert not lab.rules.broken
