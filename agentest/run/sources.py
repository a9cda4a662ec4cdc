"""Where a run's conversations come from: held with the agent now, or finished in an earlier run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from agentest.agents.port import Agent
from agentest.conversation.loop import OnTurn, TurnLoop
from agentest.conversation.plan_user import PlanUser
from agentest.conversation.users import OfflineUser, ScriptedUser, SimulatedUser, User
from agentest.llm.port import Model
from agentest.mocks.resolver import MockResolver
from agentest.run.plan import Unit
from agentest.support.redact import Redactor
from agentest.transcript import Conversation

PickUser = Callable[[Unit, int], User]
_LEAST_MOCK_S = 30.0
"""For which a mock may take its time, however short the agent's is: it is not the agent that waits for it."""


class Holder(Protocol):
    """Holds a unit's conversations."""

    async def hold(self, unit: Unit, number: int, conversation_id: str, on_turn: OnTurn) -> Conversation:
        """The conversation of this number (from 1). `on_turn` is told of every turn when it closes."""
        ...


@dataclass(frozen=True, slots=True)
class LiveHolder:
    """Holds conversations with the agents, now."""

    agents: Mapping[str, Agent]
    user_model: Model | None = None
    unmocked_tools: Literal["error", "passthrough"] = "error"
    request_timeout_s: float = 30.0
    redact: Redactor = Redactor()  # noqa: RUF009 - it holds nothing that could change
    pick_user: PickUser | None = None
    """Who talks to the agent, in place of the scenario's own user."""

    async def hold(self, unit: Unit, number: int, conversation_id: str, on_turn: OnTurn) -> Conversation:
        scenario = unit.scenario
        mocks = MockResolver(
            scenario.tools,
            scenario=scenario.name,
            conversation_id=conversation_id,
            unmocked_tools=self.unmocked_tools,
            recorded=scenario.recorded,
            timeout_s=max(_LEAST_MOCK_S, self.request_timeout_s),
            redact=self.redact,
        )
        loop = TurnLoop(
            conversation_id,
            scenario.name,
            self.agents[unit.agent],
            (self.pick_user or self._user)(unit, number),
            mocks,
            max_turns=unit.max_turns,
            session=scenario.session,
            on_turn=on_turn,
            redact=self.redact.error,
        )
        return await loop.run()

    def _user(self, unit: Unit, number: int) -> User:
        if unit.scenario.scripted:
            return ScriptedUser([turn.user_message for turn in unit.scenario.turns])
        if self.user_model is None:
            return OfflineUser(unit.scenario)
        if unit.scenario.plan:
            return PlanUser(self.user_model, unit.scenario.plan, unit.scope, number)
        return SimulatedUser(self.user_model, unit.scenario, unit.scope, number)


@dataclass(frozen=True, slots=True)
class FinishedHolder:
    """Gives the conversations of an earlier run, turn by turn, to be judged again. Talks to nobody."""

    conversations: Mapping[str, Sequence[Conversation]]
    """Scope of a unit → its conversations."""

    async def hold(self, unit: Unit, number: int, conversation_id: str, on_turn: OnTurn) -> Conversation:
        del conversation_id  # it has one
        conversation = self.conversations[unit.scope][number - 1]
        # What lacks its end cannot be judged: a check might hold, or fail, for that alone.
        closed_turns = 0 if conversation.shortened else len(conversation.turns)
        for closed in range(1, closed_turns + 1):
            on_turn(conversation.turns[:closed])
        return conversation
