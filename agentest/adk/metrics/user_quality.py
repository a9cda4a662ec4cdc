"""`per_turn_user_simulator_quality_v1`: whether the simulated user did what its plan and persona say."""

from __future__ import annotations

from collections.abc import Sequence

from agentest.adk.formats.model import ConversationScenario
from agentest.adk.formats.personas import persona_violations
from agentest.adk.metrics.base import CriterionGrader
from agentest.adk.metrics.prompts import user_messages
from agentest.adk.metrics.sampling import Panel, concurrently, no_model, voted
from agentest.domain.results import MetricResult, Score, Skipped, Unscored
from agentest.domain.transcript import Conversation, Turn
from agentest.judging.answers import BinaryAnswer
from agentest.judging.grading import Graded
from agentest.models.port import CallKey, Message, Model

WRITTEN = Skipped(
    "the case's conversation is written out, so no user is simulated; "
    "hold sets for simulated users alone to this metric"
)


class UserSimulatorQuality(CriterionGrader):
    """1 or 0 for every message of the user.

    The first must be the case's starting prompt, the others are judged against plan and persona. A last
    question asks whether the stop signal would now be right: if it would not, or if no judge can tell, that
    takes the place of the last turn's result. It is asked however the conversation ended, as google-adk does.
    """

    __slots__ = ()

    async def grade(self, conversation: Conversation, model: Model | None, key: CallKey) -> Graded:
        scenario = self.case.conversation_scenario
        if scenario is None or model is None:
            return Graded(whole=WRITTEN if scenario is None else no_model(self.criterion))
        turns = conversation.turns
        panel = Panel.of(self.criterion, model, key)
        said = [*(turn.user_message for turn in turns), self.criterion.stop_signal]

        async def judged(at: int) -> MetricResult:
            if at == 0:
                return _opening(said[0], scenario)
            messages = self._messages(scenario, turns[:at], said[at])
            return voted(await panel.ask(messages, BinaryAnswer, at), panel.samples)

        *results, stop = await concurrently(judged, range(len(said)))
        if results:
            results[-1] = _last(results[-1], stop)
        return Graded({turn.turn_index: result for turn, result in zip(turns, results, strict=True)})

    def _messages(self, scenario: ConversationScenario, before: Sequence[Turn], said: str) -> list[Message]:
        persona, signal = scenario.user_persona, self.criterion.stop_signal
        return user_messages(
            scenario.conversation_plan,
            persona.description if persona else "",
            persona_violations(persona, signal) if persona else "",
            before,
            said,
            signal,
        )


def _opening(said: str, scenario: ConversationScenario) -> Score:
    if said.strip() == scenario.starting_prompt.strip():
        return Score(1, "the first message is the starting prompt")
    return Score(0, f"the first message is not the starting prompt {scenario.starting_prompt!r}")


def _last(result: MetricResult, stop: MetricResult) -> MetricResult:
    """The last turn's result, in the light of the stop check."""
    if isinstance(stop, Score) and stop.value == 0:
        return Score(0, f"the conversation's end is not right: {stop.reason}", stop.samples)
    failed = isinstance(result, Score) and result.value == 0
    if isinstance(stop, Unscored) and not failed:
        return Unscored(f"whether the conversation's end is right: {stop.error}")
    return result
