"""Personas of simulated users: defined in an evaluation set, or one of three that ADK predefines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib.resources import files
from tomllib import loads

from pydantic import ConfigDict
from pydantic.alias_generators import to_camel
from pydantic.dataclasses import dataclass

from agentest.support.templates import fill, placeholders
from agentest.support.text import did_you_mean

_OPEN = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore")


@dataclass(slots=True, frozen=True, config=_OPEN)
class UserBehavior:
    """One habit of a persona, with the violations that a judge looks for."""

    name: str
    description: str
    behavior_instructions: tuple[str, ...]
    violation_rubrics: tuple[str, ...]


@dataclass(slots=True, frozen=True, config=_OPEN)
class UserPersona:
    """The persona of a simulated user."""

    id: str
    description: str
    behaviors: tuple[UserBehavior, ...]


def _predefined() -> Mapping[str, UserPersona]:
    tables = loads(files(__package__).joinpath("personas.toml").read_text("utf-8"))
    behaviors = {key: UserBehavior(**each) for key, each in tables["behaviors"].items()}
    return {
        id: UserPersona(id, each["description"], tuple(behaviors[key] for key in each["behaviors"]))
        for id, each in tables["personas"].items()
    }


PERSONAS = _predefined()
"""The predefined personas by name, which is case-sensitive."""


def persona(value: object) -> object:
    """Look up a persona's name; return any other value unchanged. Raises ValueError for an unknown name."""
    if not isinstance(value, str):
        return value
    if value not in PERSONAS:
        raise ValueError(f"there is no persona {value!r}; {did_you_mean(value, PERSONAS)}")
    return PERSONAS[value]


def persona_text(persona: UserPersona, stop_signal: str = "</finished>") -> str:
    """Describe the user and their behavior, for the model that plays the user."""
    habits = [(behavior, behavior.behavior_instructions) for behavior in persona.behaviors]
    return _with_signal("\n\n".join([persona.description.strip(), *_habit_texts(habits)]), stop_signal)


def persona_violations(persona: UserPersona, stop_signal: str = "</finished>") -> str:
    """List what a user of this persona must not do, for the model that judges the user."""
    habits = [(behavior, behavior.violation_rubrics) for behavior in persona.behaviors]
    return _with_signal("\n\n".join(_habit_texts(habits)), stop_signal)


def _habit_texts(habits: Iterable[tuple[UserBehavior, Iterable[str]]]) -> Iterator[str]:
    for behavior, rows in habits:
        listed = "\n".join(f"- {row}" for row in rows)
        yield f"{behavior.name}: {behavior.description}\n{listed}".strip()


def _with_signal(text: str, stop_signal: str) -> str:
    as_they_are = {name: "{{ " + name + " }}" for name in placeholders(text)}
    return fill(text, {**as_they_are, "stop_signal": stop_signal})
