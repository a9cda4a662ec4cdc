"""Regular expressions on texts of others: no pattern of the package takes more than linear time."""

from __future__ import annotations

from contextlib import closing
from functools import cache

import pytest
from hostile_patterns import ROOT, Found, Matcher, hostile, patterns

OWN_TEXTS = {
    "config/file.py": "the configuration",
    "conversation/simulated_user.py": "a prompt of the user's",
    "plugins/authoring/commands/docs.py": "the documentation",
    "plugins/authoring/request_examples.py": "curl commands, and at most 2,000 characters of an answer",
    "plugins/page/viewer/page.py": "the modules of the page",
    "support/dates.py": "marks that only this process can write",
}
"""Modules whose patterns read only what we or the user wrote."""
WHOLE = ("plugins/servers/model_gateway/server.py", "plugins/servers/gateway_check.py")
"""Modules with tables of patterns, which match whole texts."""
SIZE, CPU_S = 60_000, 0.5
"""A linear pattern takes a hundredth of this time, and a quadratic one several times as much."""


def slow_texts(found: Found, matcher: Matcher) -> list[str]:
    methods = found.methods
    if found.in_table and found.module in WHOLE:
        methods = frozenset({"fullmatch"})
    return [
        f"{found.place}: {method} of {found.text!r} on {text[:40]!r}…"
        for text in hostile(found, SIZE)
        for method in sorted(methods)
        if not matcher.ends(found, method, text, CPU_S)
    ]


ROOMS = sorted({"/".join(path.relative_to(ROOT).parts[:2]) for path in ROOT.rglob("*.py")} - {"__init__.py"})
ROOMS = [room for room in ROOMS if not room.startswith("docs/")]  # an installed package contains docs, too
found_patterns = cache(patterns)


@pytest.mark.slow
@pytest.mark.parametrize("room", ROOMS)
def test_no_pattern_takes_long_on_a_hostile_text(room: str) -> None:
    checked = [
        each for each in found_patterns() if each.module.startswith(room) and each.module not in OWN_TEXTS
    ]
    with closing(Matcher()) as matcher:
        assert not [slow for found in checked for slow in slow_texts(found, matcher)]


@pytest.mark.slow
def test_patterns_are_found_and_slow_ones_are_noticed() -> None:
    """The list has patterns written in every way, and the texts find what took 26 s once."""
    texts = {found.text for found in found_patterns()}
    assert {r"[a-z]+", r"(?<!\d)abc(?!\d)", r"final_result(_\w+)?"} <= texts, (
        "a constant, an f-string, a table"
    )
    assert len(found_patterns()) > 400
    before = Found(r"[\w.+%'-]+@[\w-]+(?:\.[\w-]+)+", 0, frozenset({"sub"}), "personal_data.py:62")
    with closing(Matcher()) as matcher:
        assert len(slow_texts(before, matcher)) > 1
