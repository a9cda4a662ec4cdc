"""Personas: built-in descriptions of simulated users, mixed and changed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentest import persona
from agentest.conversation.user_prompts import user_prompt
from agentest.scenarios.definition import build_scenario
from agentest.scenarios.options import COUNTS, PERSONAS
from agentest.support.errors import ScenarioError


def built(**options: Any) -> Any:
    return build_scenario({"name": "s", "goal": "Move it.", **options}, "a.sim.py", 1)


def test_a_persona_is_the_profile_that_the_model_reads() -> None:
    """The prompt has its sentences, and the scenario its patience unless it sets one."""
    mixed = persona("vague", "impatient", text="You are Ann, a baker.", words=12)
    scenario = built(profile=mixed)
    assert scenario.profile.startswith("You are Ann, a baker. ")
    assert "at most 12 words" in user_prompt(scenario)
    assert "at most 15 words" not in user_prompt(scenario)
    assert (scenario.patience, built(profile=mixed, patience=5).patience) == (1, 5)


def test_yaml_has_the_same_personas() -> None:
    """A mapping has the arguments of `persona`."""
    given_as_data = {"persona": ["vague", "non-native"], "patience": 2, "words": 9}
    assert built(profile=given_as_data).profile == persona("vague", "non_native", words=9).text
    assert built(profile={"persona": "polite"}).profile == persona("polite").text


def test_there_are_twelve_and_each_has_numbers() -> None:
    """A trait that only a reader could judge would not be measurable."""
    assert len(PERSONAS) == 12
    assert all(persona(name).traits or persona(name).patience for name in PERSONAS)


@given(names=st.lists(st.sampled_from(sorted(PERSONAS)), min_size=1, max_size=4))
def test_a_later_persona_replaces_the_traits_of_an_earlier_one(names: list[str]) -> None:
    """The mix has each trait once, from the last persona that has it."""
    expected: dict[str, Any] = {}
    for name in names:
        expected |= {trait: value for trait, value in PERSONAS[name].items() if trait in COUNTS}
    assert persona(*names).traits == expected


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: persona("vage"), "persona: unknown persona 'vage'; did you mean `vague`?"),
        (lambda: persona("vague", wrods=3), "persona: unknown trait `wrods`; did you mean `words`?"),
        (
            lambda: persona("vague", words=0),
            "persona: `words`: expected a whole number of at least 1, found 0",
        ),
        (lambda: persona(), "persona: name at least one of impatient, "),
        (lambda: built(profile=7), "profile: expected a text or persona(…), found int"),
        (lambda: built(profile={"persona": ["vage"]}), "profile: persona: unknown persona 'vage'"),
    ],
)
def test_wrong_personas_are_explained(make: Any, message: str) -> None:
    """The message names the persona or trait and the nearest one."""
    with pytest.raises((ValueError, ScenarioError)) as refused:
        make()
    assert message in str(refused.value) + "".join(getattr(refused.value, "problems", ()))
