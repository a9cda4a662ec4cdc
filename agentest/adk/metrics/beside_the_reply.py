"""The metrics of what an agent keeps and says beside its reply: the session's state, intermediate responses.

They are ours: google-adk keeps both in its files and compares neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentest.adk.formats.model import (
    Content,
    EvalCase,
    IntermediateData,
    Invocation,
    InvocationEvents,
    Part,
    text_of,
)
from agentest.adk.metrics.base import CriterionGrader
from agentest.adk.metrics.deterministic import ByReference
from agentest.domain.results import MetricResult, Score, Skipped, Unscored
from agentest.domain.tool_visibility import REMARKS_TOLD_BY, STATE_TOLD_BY
from agentest.domain.transcript import Conversation, Remark, Turn
from agentest.judging.grading import Graded
from agentest.models.port import CallKey, Model
from agentest.scenarios.matchers.comparison import equal
from agentest.scenarios.matchers.paths import MISSING, argument
from agentest.support.json_text import safe_repr
from agentest.support.text import shortened

_VALUE_CHARS = 200
_SHOWN_REMARKS = 10
_STATE_UNKNOWN = f"the agent does not tell of its session's state: {STATE_TOLD_BY}"
_REMARKS_UNKNOWN = f"the agent does not tell who says what on the way to its reply: {REMARKS_TOLD_BY}"
_USER = "user"

Said = tuple[str, str]
"""An author, and what they said."""


def expects_state(case: EvalCase) -> bool:
    """Whether the case says what the session's state must hold in the end."""
    return bool(case.final_session_state)


def expects_responses(case: EvalCase) -> bool:
    """Whether the case says what must be said on the way to a reply."""
    return any(expected_responses(invocation) for invocation in case.conversation or ())


def expected_responses(invocation: Invocation) -> list[Said]:
    """What is said on the way to the invocation's final response, white space being all the same."""
    return [(author, _one_row(text)) for author, text in said_before(invocation.intermediate_data)]


def said_before(data: IntermediateData | InvocationEvents | None) -> list[Said]:
    """What is said on the way to a final response, in order; thoughts and the user's words are left out."""
    if data is None:
        return []
    if isinstance(data, InvocationEvents):
        said = [(event.author, _parts(event.content)) for event in data.invocation_events]
    else:
        said = [(author, parts) for author, parts in data.intermediate_responses]
    spoken = [(author, _spoken(parts)) for author, parts in said if author.lower() != _USER]
    return [(author, text) for author, text in spoken if text.strip()]


def _parts(content: Content | None) -> tuple[Part, ...]:
    return content.parts or () if content else ()


def _spoken(parts: Sequence[Part]) -> str:
    return text_of(Content(None, tuple(part for part in parts if not part.thought)))


def _one_row(text: str) -> str:
    return " ".join(text.split())


class FinalSessionState(CriterionGrader):
    """1 where each key of the case's `final_session_state` has that value after the last turn, else 0.

    A key may be a path into the state: `order.status`.
    """

    __slots__ = ()

    async def grade(self, conversation: Conversation, model: Model | None, key: CallKey) -> Graded:  # noqa: ARG002 - the protocol asks
        """The score, which stands with the last turn. No model is asked."""
        if not conversation.turns:
            return Graded(whole=Skipped("no turn of the conversation was finished"))
        last = conversation.turns[-1]
        return Graded({last.turn_index: self._score(last)})

    def _score(self, last: Turn) -> MetricResult:
        if last.state_after is None:
            return Unscored(last.state_error or _STATE_UNKNOWN)
        wrong = list(_differences(self.case.final_session_state or {}, last.state_after))
        return Score(0.0 if wrong else 1.0, "; ".join(wrong) or "the final state is as expected")


def _differences(expected: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    for key, wanted in expected.items():
        value = argument(found, key)
        if value is MISSING:
            yield f"{key}: expected {_shown(wanted)}, found no such key"
        elif not equal(wanted, value):
            yield f"{key}: expected {_shown(wanted)}, found {_shown(value)}"


def _shown(value: Any) -> str:
    return shortened(safe_repr(value), _VALUE_CHARS)


class IntermediateResponses(ByReference):
    """1 for a turn in which all was said that the case expects, by whom and in which order it does, else 0.

    More may be said in between. White space is all the same; every other character counts.
    """

    __slots__ = ()

    def _score(self, turn: Turn, expected: Invocation) -> MetricResult | None:
        wanted = expected_responses(expected)
        if not wanted:
            return None
        missing = _first_missing(wanted, turn.remarks)
        if missing is None:
            return Score(1.0, "all was said that is expected before the reply")
        if turn.author is None:
            return Unscored(_REMARKS_UNKNOWN)
        return Score(
            0.0, f"expected {_told(missing)}{_where(missing, wanted)}; said was {_all(turn.remarks)}"
        )

    def _nothing(self) -> str:
        return "no invocation of the case has intermediate responses to compare with"


def _first_missing(wanted: Sequence[Said], remarks: Sequence[Remark]) -> Said | None:
    left = iter([(remark.author, _one_row(remark.text)) for remark in remarks])
    return next((said for said in wanted if said not in left), None)


def _where(missing: Said, wanted: Sequence[Said]) -> str:
    at = wanted.index(missing)
    return f" after {_told(wanted[at - 1])}" if at else ""


def _told(said: Said) -> str:
    return f"{shortened(said[0], _VALUE_CHARS)}: {_shown(said[1])}"


def _all(remarks: Sequence[Remark]) -> str:
    said = [_told((r.author, _one_row(r.text))) for r in remarks[:_SHOWN_REMARKS]]
    if len(remarks) > len(said):
        said.append(f"… {len(remarks) - len(said)} more")
    return ", ".join(said) or "nothing before the reply"
