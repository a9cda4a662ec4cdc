"""Mutations of scripts: pure, seeded, and careful with facts."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentest.plugin import Plugin, PluginError, PluginRegistry
from agentest.scenarios.definition import build_scenario
from agentest.scenarios.mutations import CORRECTION, DENIAL, MUTATIONS, OURS, Mutation, is_agreement
from agentest.scenarios.variations import acted

SCRIPT = (
    "Hello, please book a table for 4 people. My name is Anna Berg, my number is A-1001.",
    "It should be Tuesday, near the window.",
    "Yes, please.",
    "Thanks. Send the confirmation to anna@mail.example, too.",
)
CHANGING = ("drop", "stop_early", "deny", "correct", "contradict", "id_case")
KEEPING = sorted(set(OURS) - {*CHANGING})
_WORDS = st.sampled_from(
    [
        "Hello",
        "please",
        "book",
        "table",
        "4",
        "A-17",
        "Tuesday,",
        "and",
        "window.",
        "Yes",
        "no",
        "thanks?",
        "it",
    ]
)
SCRIPTS = st.lists(
    st.one_of(
        st.lists(_WORDS, min_size=1, max_size=14).map(" ".join),
        st.sampled_from([*SCRIPT, "Yes", "ok", "", "Ж…", "?!"]),
        st.text(max_size=40),
    ),
    min_size=1,
    max_size=6,
)


def facts(texts: list[str]) -> Counter[str]:
    return Counter(each.strip(".,;!?") for text in texts for each in re.findall(r"\S*[\d@]\S*", text))


@pytest.mark.parametrize("name", OURS)
@given(texts=SCRIPTS, seed=st.integers(0, 50))
@settings(max_examples=60, deadline=None)
def test_every_result_is_another_script_and_the_same_for_a_seed(
    name: str, texts: list[str], seed: int
) -> None:
    mutation = MUTATIONS[name]
    changed = mutation.change(texts, random.Random(seed))
    assert changed == mutation.change(tuple(texts), random.Random(seed))
    if changed is None:
        return
    assert changed
    assert all(isinstance(text, str) for text in changed)
    more = {"again": len(texts), "far_constraint": 7}
    assert len(changed) <= len(texts) + more.get(name, 1)
    if name in KEEPING:
        assert facts(changed).keys() == facts(texts).keys()
    if mutation.relation == "fewer" and name in ("drop", "stop_early"):
        assert facts(changed) <= facts(texts)


@pytest.mark.parametrize("name", OURS)
def test_every_mutation_changes_a_usual_script(name: str) -> None:
    scripts = {tuple(MUTATIONS[name].change(SCRIPT, random.Random(seed)) or ()) for seed in range(8)}
    assert () not in scripts
    assert scripts - {SCRIPT}
    built = [
        build_scenario({"name": f"s{n}", "turns": [*script]}, "/a.sim.py", 1)
        for n, script in enumerate(scripts)
    ]
    assert {tuple(turn.user_message for turn in each.turns) for each in built} == scripts


def changed(name: str, texts: tuple[str, ...] = SCRIPT) -> list[list[str]]:
    return [MUTATIONS[name].change(texts, random.Random(seed)) or [] for seed in range(30)]


def test_a_correction_names_the_wrong_value_and_the_right_one() -> None:
    found = {
        match.groups() for texts in changed("correct") for text in texts if (match := CORRECTION.search(text))
    }
    assert found == {("4", "5"), ("Tuesday", "Wednesday")}


def test_a_denial_replaces_the_yes_and_is_the_last_word() -> None:
    assert changed("deny")[0] == [*SCRIPT[:2], DENIAL]
    assert MUTATIONS["deny"].change(SCRIPT[:2], random.Random(0)) is None


def test_a_yes_still_follows_what_it_answers() -> None:
    for name in ("split", "merge", "reorder", "empty", "off_topic", "typos", "long"):
        for texts in changed(name):
            at = texts.index("Yes, please.")
            assert texts[at - 1].endswith(SCRIPT[1][-7:]) or name in ("reorder", "typos"), (name, texts)
            assert at >= 1
    assert is_agreement("Yes, please.")
    assert not is_agreement("Yes, but is it near the window?")


def test_repeated_requests_spelled_ids_and_far_facts() -> None:
    assert changed("again")[0] == [*SCRIPT, *(text for text in SCRIPT if text != "Yes, please.")]
    assert {re.search(r"a[ -]?1001", texts[0], re.I)[0] for texts in changed("id_case")} == {  # type: ignore[index]
        *("a 1001", "a1001", "A 1001", "a-1001")
    }
    far = changed("far_constraint")[0]
    assert [far[0], far[7]] == [*SCRIPT[:2]]
    one = MUTATIONS["far_constraint"].change(["At most 200 euros. Find a flight."], random.Random(0)) or []
    assert [one[0], len(one), one[-1]] == ["At most 200 euros.", 8, "Find a flight."]
    split = MUTATIONS["split"].change(['Write "see you at 5" to Ann at noon'], random.Random(0))
    assert split == ['Write "see you at 5" to Ann', "at noon"]


def test_the_request_comes_last_in_a_long_message() -> None:
    for texts in changed("long"):
        [long] = [text for text in texts if len(text) > 1000]
        assert 4_000 < len(long) < 31_000
        assert long.endswith(tuple(SCRIPT))


SHOUT = Mutation("same", lambda texts, _: [text.upper() for text in texts])
plugin = Plugin("tests")
plugin.change("shout", f"{__name__}:SHOUT")
plugin.change("wrong", f"{__name__}:SCRIPT")


def test_a_plugin_adds_a_mutation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenarios name it, and explorations try it after ours."""
    registry = PluginRegistry([lambda: iter([(__name__, "a test")])])
    monkeypatch.setattr("agentest.scenarios.mutations.PLUGINS", registry)
    shouted = build_scenario({"name": "s", "turns": ["Hello.", "Bye."], "mutate": ["shout"]}, "a.sim.py", 1)
    assert [turn.user_message for turn in acted(shouted).turns] == ["HELLO.", "BYE."]
    assert [*MUTATIONS] == [*OURS, "shout", "wrong"]
    with pytest.raises(
        PluginError, match=r"change 'wrong' of plug-in 'tests' .* is not of the class \S+\.Mutation"
    ):
        MUTATIONS["wrong"]
