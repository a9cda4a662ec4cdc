"""What a case says about a turn, and what of a turn is judged."""

from __future__ import annotations

from dataclasses import replace

from agentest.adk.formats.criteria import Criterion
from agentest.adk.formats.model import EvalCase, Invocation, InvocationEvents, text_of
from agentest.adk.metrics.facts import AgentFacts
from agentest.adk.metrics.prompts import turn_messages
from agentest.domain.results import Skipped
from agentest.domain.transcript import Conversation, Turn
from agentest.models.port import Message

SIMULATED = Skipped("a simulated user leads the case, so there is nothing written out to compare with")
NO_REFERENCE = Skipped(
    "no turn has a `final_response` (in the `data` form: `reference_answer`) in the evaluation set "
    "to compare with"
)


def invocation_at(case: EvalCase, turn_index: int) -> Invocation | None:
    """What the case says about a turn; None for a turn that it does not write out."""
    written = case.conversation or ()
    return written[turn_index] if turn_index < len(written) else None


def reply_of(turn: Turn, criterion: Criterion) -> str:
    """What counts as the reply: with `include_intermediate_responses_in_final` all that the agent said."""
    if not criterion.include_intermediate_responses_in_final:
        return turn.agent_message
    said = [*(remark.text for remark in turn.remarks), turn.agent_message]
    return "\n".join(text for text in said if text)


def as_judged(turn: Turn, criterion: Criterion) -> Turn:
    """The turn as its judges see it: what counts as the reply stands there, and nowhere else again."""
    if not criterion.include_intermediate_responses_in_final:
        return turn
    return replace(turn, agent_message=reply_of(turn, criterion), remarks=())


def reference_of(case: EvalCase, turn_index: int, criterion: Criterion) -> str | None:
    """What the reply is compared with; None where the case gives none, or one without any text."""
    invocation = invocation_at(case, turn_index)
    text = text_of(invocation.final_response) if invocation else ""
    if invocation is None or not text.strip():
        return None
    if not criterion.include_intermediate_responses_in_final:
        return text
    return "\n".join([*_intermediate_texts(invocation), text])


def reply_messages(
    case: EvalCase,
    criterion: Criterion,
    conversation: Conversation,
    turn: Turn,
    question: str,
    facts: AgentFacts,
) -> list[Message]:
    """The messages that ask a judge about a turn's reply, in the light of the turns before it."""
    goal = case.conversation_scenario.conversation_plan if case.conversation_scenario else ""
    before = [earlier for earlier in conversation.turns if earlier.turn_index < turn.turn_index]
    return turn_messages(goal, [*before, as_judged(turn, criterion)], facts, question)


def _intermediate_texts(invocation: Invocation) -> list[str]:
    data = invocation.intermediate_data
    if data is None:
        return []
    if isinstance(data, InvocationEvents):
        texts = [text_of(event.content) for event in data.invocation_events]
    else:
        texts = ["\n".join(p.text for p in parts if p.text) for _, parts in data.intermediate_responses]
    return [text for text in texts if text]
