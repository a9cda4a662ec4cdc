"""Who a simulated user of an evaluation set is: a persona of the file, or one of three that ADK names."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ConfigDict
from pydantic.alias_generators import to_camel
from pydantic.dataclasses import dataclass

from agentest.spelling import did_you_mean

_OPEN = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore")


@dataclass(slots=True, frozen=True, config=_OPEN)
class UserBehavior:
    """One habit of a persona, and how a judge sees that it was broken."""

    name: str
    description: str
    behavior_instructions: tuple[str, ...]
    violation_rubrics: tuple[str, ...]


@dataclass(slots=True, frozen=True, config=_OPEN)
class UserPersona:
    """Who a simulated user is."""

    id: str
    description: str
    behaviors: tuple[UserBehavior, ...]


PERSONAS: Mapping[str, UserPersona] = {}


def persona(given: object) -> object:
    """A persona from its name; anything else as it is. Raises ValueError for a name that nobody has."""
    if not isinstance(given, str):
        return given
    if given not in PERSONAS:
        raise ValueError(f"there is no persona {given!r}; {did_you_mean(given, PERSONAS)}")
    return PERSONAS[given]
