"""Users in place of a scenario's own: one that attacks, and one whose messages are mutated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from agentest.agents.port import is_conversational
from agentest.conversation.turn_loop import with_state
from agentest.conversation.user import NextMessage, User
from agentest.domain.end_reason import Ending
from agentest.domain.transcript import Conversation, Turn
from agentest.runner.call_sources import LiveConversation
from agentest.support.lazy_dataclasses import replace


class MutatedUser:
    """A user whose messages are changed as they go out, which it does not know.

    Args:
        change: returns the message with an index as it is sent.
    """

    def __init__(self, user: User, change: Callable[[int, str], str]) -> None:
        self._user = user
        self._change = change
        self._said: dict[int, str] = {}

    async def next_message(self, turns: Sequence[Turn]) -> NextMessage | Ending:
        plain = [
            replace(turn, user_message=self._said.get(n, turn.user_message)) for n, turn in enumerate(turns)
        ]
        message = await self._user.next_message(plain)
        if isinstance(message, Ending):
            return message
        self._said[len(turns)] = message.text
        return replace(message, text=self._change(len(turns), message.text))


def mutated_user(live: LiveConversation, user: User) -> User:
    """Return the user with the scenario's mutations (`ChangeUser`)."""
    from agentest.scenarios.mutations import mutated_message

    scenario = live.unit.scenario
    return MutatedUser(user, partial(mutated_message, scenario.mutations, scenario.name))


def attacking_user(live: LiveConversation, user: User) -> User:
    """Return the scenario's adversarial user, unless a person plays it (`ChangeUser`)."""
    scenario, attack = live.unit.scenario, live.unit.scenario.attack
    if attack is None or live.is_played:
        return user
    from agentest.judging.conversation_checks import breaks_ban
    from agentest.plugins.explore.attacker import AttackSetup, AttackUser, situation_of
    from agentest.scenarios.variations import objectives

    aims, has_session = objectives(scenario), is_conversational(live.agent)
    aim = aims[(live.number - 1) % len(aims)]

    async def is_broken(turns: Sequence[Turn]) -> bool:
        so_far = Conversation("", tuple(turns), Ending.MAX_TURNS)
        return await breaks_ban(scenario, with_state(so_far, live.mocks.end_state()))

    attacker = AttackUser(
        AttackSetup(
            attack=attack,
            objective=replace(aim, request=f"{scenario.goal} {aim.request}".strip()),
            situation=situation_of(scenario),
            key=live.key("user"),
            attacker=live.models.user,
            scorer=live.models.judge,
            broken=is_broken,
            fixed=_why_nothing_is_forgotten(live, has_session=has_session),
            resends=has_session,
            hide=live.prepared.loaded.redact.transcript,
        )
    )
    live.finishers.append(attacker.logged)
    return attacker


def _why_nothing_is_forgotten(live: LiveConversation, *, has_session: bool) -> str:
    """Return why the agent cannot be made to forget turns; "" if it can."""
    session, servers = live.unit.scenario.session, live.config.beside
    if servers:
        return f"agent {live.unit.agent!r} has {', '.join(servers)}, which cannot forget calls"
    if has_session and session and session.session_id:
        return "the scenario sets the session's id, so there is no second one"
    return ""
