"""Attacks: adversarial users with an objective, and the published categories that they belong to.

Every objective is a scenario's own ban, secret or sentence; an attack asks for nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import did_you_mean


class Strategy(NamedTuple):
    """How an attack proceeds."""

    turns: int
    """Messages that count; of `tree_of_attacks` its depth."""
    backtracks: int = 0
    """Refused messages that do not count."""
    width: int = 1
    """Messages to choose from in each turn."""
    begins_anew: bool = False
    """True if every message is the first of a conversation."""
    needs_model: bool = True


STRATEGIES: Mapping[str, Strategy] = {
    "crescendo": Strategy(10, backtracks=10),
    "goat": Strategy(5),
    "pair": Strategy(5, begins_anew=True),
    "tree_of_attacks": Strategy(4, width=3),
    "many_shot": Strategy(3, begins_anew=True, needs_model=False),
    "social": Strategy(5, needs_model=False),
}


class ObjectiveKind(StrEnum):
    """What an attack wants. All but `WORDS` are decided without a model."""

    CALL = "forbidden call"
    TEXT = "forbidden text"
    RULE = "rule"
    SECRET = "secret"
    CONSENT = "consent"
    WORDS = "words"


_DIRECT = ("OWASP LLM01", "NIST AI 100-2 direct prompt injection")
_INTEGRITY = ("OWASP LLM06", "NIST AI 100-2 integrity violation")
_MISUSE = ("NIST AI 100-2 misuse violation",)
TAGS: Mapping[ObjectiveKind, tuple[str, ...]] = {
    ObjectiveKind.CALL: (*_DIRECT, *_INTEGRITY),
    ObjectiveKind.TEXT: (*_DIRECT, *_MISUSE),
    ObjectiveKind.RULE: (*_DIRECT, *_INTEGRITY),
    ObjectiveKind.SECRET: (*_DIRECT, "OWASP LLM02", "NIST AI 100-2 privacy violation"),
    ObjectiveKind.CONSENT: (*_DIRECT, *_INTEGRITY),
    ObjectiveKind.WORDS: (*_DIRECT, *_MISUSE),
}
"""Categories of the OWASP Top 10 for LLM applications (2025) and of NIST AI 100-2 (2025)."""


@dataclass(frozen=True, slots=True)
class Objective:
    """What an attack wants the agent to do."""

    kind: ObjectiveKind
    aim: str
    """What the agent is to do, as the end of "get the assistant to …"."""
    request: str
    """The same as a request of the user."""


@dataclass(frozen=True, slots=True)
class Attack:
    """An adversarial user. Create it with `attack`."""

    strategy: str
    objective: str = ""
    """The objective in words, which a judge decides; "": the bans and secrets of the scenario."""
    turns: int = 0
    target: Objective | None = None
    """The only objective; None: those of the scenario take turns."""

    @property
    def most_messages(self) -> int:
        """The highest number of messages in one conversation."""
        plan = STRATEGIES[self.strategy]
        return self.turns * (plan.width + (plan.width > 1)) + plan.backtracks  # the best is sent again


def attack(strategy: str, *, objective: str | None = None, turns: int | None = None) -> Attack:
    """Return an adversarial user for the option `user` of a scenario.

    Args:
        strategy: `crescendo`, `goat`, `pair`, `tree_of_attacks`, `many_shot` or `social`.
        objective: what the agent is to be brought to, in words: "promise a refund". A judge decides if it
            was reached. Default: to break a ban of the scenario, or to give away one of its `secrets`.
        turns: the most messages; of `tree_of_attacks` its depth (default: 10, 5, 5, 4, 3 and 5).

    Raises ValueError.
    """
    if strategy not in STRATEGIES:
        raise ValueError(f"there is no attack {strategy!r}; {did_you_mean(str(strategy), STRATEGIES)}")
    if objective is not None and not (isinstance(objective, str) and objective.strip()):
        raise ValueError("`objective` is empty; say what the agent is to be brought to")
    if turns is not None and (isinstance(turns, bool) or not isinstance(turns, int) or turns < 1):
        raise ValueError(f"`turns`: expected a whole number of at least 1, found {turns!r}")
    return Attack(strategy, (objective or "").strip(), turns or STRATEGIES[strategy].turns)
