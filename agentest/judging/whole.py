"""What a whole conversation must hold: what is said in it, the mocks' state at its end, a check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentest.domain.results import CheckResult
from agentest.domain.transcript import CUT_OFF, Conversation
from agentest.judging.end_check import asked_at_end, takes_state, undecided
from agentest.judging.sayings import checked_sayings
from agentest.judging.session_checks import compared_keys
from agentest.scenarios.matchers.paths import steps_of
from agentest.scenarios.model import Scenario
from agentest.support.json_text import copied

FINAL_STATE = "final_state"
_TIMEOUT_S = 60.0
_AGAIN = "run the scenario again"

Checks = tuple[CheckResult, ...]


async def checked_whole(
    scenario: Scenario, conversation: Conversation, timeout_s: float = _TIMEOUT_S
) -> Checks:
    """The results of `expect`, `final_state` and `check`, in this order.

    Of a conversation that broke off, only what must never be said and was said is certain: its failure says
    why nothing else is.
    """
    if conversation.shortened or conversation.invalid is not None:
        return ()
    if conversation.failure:
        return await _said_all_the_same(scenario, conversation, timeout_s)
    end = _End.of(conversation)
    return (
        *await checked_sayings(scenario.expect, conversation.turns, conversation, timeout_s),
        *await _final_state(scenario, end, timeout_s),
        *await _check(scenario, conversation, end, timeout_s),
    )


async def _said_all_the_same(scenario: Scenario, conversation: Conversation, timeout_s: float) -> Checks:
    never = [each for each in scenario.expect if each.never and (each.in_turn is None or each.in_turn >= 0)]
    results = await checked_sayings(never, conversation.turns, conversation, timeout_s)
    return tuple(result for result in results if not result.passed and not result.error)


@dataclass(frozen=True, slots=True)
class _End:
    """The mocks' state as it is known."""

    state: Mapping[str, Any] | None
    """None: nothing is."""
    inexact: frozenset[str] = frozenset()
    """The keys of which only a form is known."""

    @classmethod
    def of(cls, conversation: Conversation) -> _End:
        """The state itself where the conversation was just held, else what was told of it."""
        if conversation.live_state is not None:
            return cls(conversation.live_state)
        return cls(copied(conversation.mock_state), frozenset(conversation.inexact_state))

    @property
    def cut(self) -> bool:
        return bool(self.inexact) and CUT_OFF in (self.state or {})

    def lacks(self, key: str) -> bool:
        """Whether the value of a key, or that it is not there, is not exactly known.

        The key may be a path: what is known of it is what is known of the key that leads into it.
        """
        state = self.state or {}
        if key in state:
            return key in self.inexact
        leading = steps_of(key)
        return not self.inexact.isdisjoint(leading) or (self.cut and state.keys().isdisjoint(leading))


async def _final_state(scenario: Scenario, end: _End, timeout_s: float) -> Checks:
    expected = scenario.final_state
    if expected is None:
        return ()
    if end.state is None:
        return (_unknown(_not_kept()),)
    told = {key: value for key, value in expected.items() if not end.lacks(key)}
    untold = [key for key in expected if end.lacks(key)]
    results = await compared_keys(FINAL_STATE, told, end.state, timeout_s)
    return (*results, *((_unknown(_inexact(untold)),) if untold else ()))


async def _check(scenario: Scenario, conversation: Conversation, end: _End, timeout_s: float) -> Checks:
    if scenario.check is None:
        return ()
    if takes_state(scenario.check):
        if end.state is None:
            return (undecided(_not_kept()),)
        if end.inexact:
            return (undecided(_inexact(sorted(end.inexact))),)
    return (await asked_at_end(scenario.check, conversation, end.state, timeout_s),)


def _unknown(why: str) -> CheckResult:
    return CheckResult(check=FINAL_STATE, passed=False, summary=f"could not be told: {why}", error=why)


def _not_kept() -> str:
    return f"the state of the mocks was not kept when the conversation was held; {_AGAIN}"


def _inexact(keys: list[str]) -> str:
    return f"of {', '.join(keys)} in the mocks' state no more than a form in JSON was kept; {_AGAIN}"
