"""Approval requests: answers to an agent that asks for permission to act.

The simulated user or the `approvals` setting decides. The second half of the module reads LangGraph
interrupts and writes the `resume` values that answer them.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from agentest.agents.json_reader import excerpt, mapping_at
from agentest.domain.tool_visibility import Approval
from agentest.support.lazy_dataclasses import dataclass

MOST_APPROVALS = 50
"""Approval requests allowed in one turn before the conversation fails."""
TOO_MANY_QUESTIONS = (
    f"the agent asked for approval more than {MOST_APPROVALS} times in one turn without replying to the user"
)

_YES = re.compile(
    r"(yes|yeah|yep|y|ok|okay|sure|certainly|of course|approved?|i approve|accept(ed)?|i accept|agreed|"
    r"i agree|confirm(ed)?|i confirm|go ahead|please do|do it|true)\b",
    re.IGNORECASE,
)
_RETRACTION = re.compile(r"\b(no|not|never|wait|stop|cancel|but|if|unless)\b|n't\b", re.IGNORECASE)


def is_approval(text: str) -> bool:
    """Return True if a message agrees: it starts with a yes and does not take it back.

    Any other message is a refusal, and the agent receives it as the reason.
    """
    message = text.strip()
    return bool(_YES.match(message)) and not _RETRACTION.search(message)


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision of the user or of the configuration."""

    approved: bool
    words: str | None = None
    """The user's message. None if the `approvals` setting decided."""

    @property
    def reason(self) -> str:
        """The reason to send to the agent."""
        return self.words or ("The user agreed." if self.approved else "The user refused.")


def decision_of_user(words: str) -> Decision:
    """Return the decision that a user's message makes."""
    return Decision(is_approval(words), words)


def decision_of_setting(approvals: str) -> Decision | None:
    """Return the decision that the `approvals` setting makes, or None if the user has to decide."""
    return None if approvals == "ask" else Decision(approvals == "approve")


Wire = Mapping[str, Any]
"""An interrupt as the protocol sends it: `id` and `value`."""
_QUESTIONS = ("question", "message", "description", "text", "prompt", "query", "instruction", "title")
_APPROVAL_BY_KIND = {
    "approve": Approval.GRANTED,
    "accept": Approval.GRANTED,
    "reject": Approval.DENIED,
    "response": Approval.DENIED,
    "ignore": Approval.DENIED,
}
"""Kind of decision → approval of the call. Any other kind neither runs nor refuses a tool."""
_ALL_DECISIONS: Container[str] = ("approve", "reject")


def question_text(interrupts: Sequence[Wire]) -> str:
    """Return the interrupts' questions as one text, which becomes the agent's reply."""
    return "\n\n".join(_question_of(interrupt.get("value")) for interrupt in interrupts)


def _question_of(value: Any) -> str:
    if isinstance(value, list):
        return "\n".join(map(_question_of, value))
    if not isinstance(value, Mapping):
        return excerpt(value)
    requests = value.get("action_requests")
    if isinstance(requests, list) and requests:
        return "\n".join(map(_question_of, requests))
    for key in _QUESTIONS:
        if isinstance(value.get(key), str) and value[key].strip():
            return str(value[key])
    action = mapping_at(value, "action_request") or value
    name, args = _tool_of(action), action.get("args", action.get("arguments", {}))
    return f"{name}({excerpt(args)})" if isinstance(name, str) else excerpt(action)


def _tool_of(request: Any) -> Any:
    return request.get("name", request.get("action")) if isinstance(request, Mapping) else None


def approvals_of(values: Iterable[Any], decision: Decision) -> dict[str, Approval]:
    """Return tool name → approval. Empty if the interrupts are not about tool calls."""
    approvals: dict[str, Approval] = {}
    for value in values:
        for request, decided in _answer(value, decision)[1]:
            name, kind = _tool_of(request), decided["type"]
            if isinstance(name, str) and kind in _APPROVAL_BY_KIND:
                approvals[name] = _APPROVAL_BY_KIND[kind]
    return approvals


def resume(interrupts: Sequence[Wire], decision: Decision) -> Any:
    """Return the `resume` value that answers the interrupts.

    A single answer is returned as it is; several are keyed by interrupt id. A question in an unknown form is
    answered with the user's message, or with the boolean that the configuration decides.
    """
    answers = [_answer(interrupt.get("value"), decision)[0] for interrupt in interrupts]
    ids = [interrupt.get("id", interrupt.get("interrupt_id")) for interrupt in interrupts]
    by_id = len(answers) > 1 or _is_one_call(interrupts[0].get("value"))
    if not by_id or not all(ids):
        return answers[0]
    return dict(zip(ids, answers, strict=True))


def _answer(value: Any, decision: Decision) -> tuple[Any, list[tuple[Any, Wire]]]:
    """Return the answer to an interrupt, and the requests that it asks about, each with its decision."""
    if isinstance(value, Mapping) and isinstance(requests := value.get("action_requests"), list):
        configs = value.get("review_configs")
        listed = [*configs][: len(requests)] if isinstance(configs, list) else []
        allowed = [*map(_allowed_by, listed), *[_ALL_DECISIONS] * (len(requests) - len(listed))]
        decisions = [_decision(kinds, decision) for kinds in allowed]
        return {"decisions": decisions}, [*zip(requests, decisions, strict=True)]
    if _is_one_call(value):
        answer = _decision(_ALL_DECISIONS, decision)
        return answer, [(value, answer)]
    items = value if isinstance(value, list) else [value]
    if items and all(isinstance(item, Mapping) and "action_request" in item for item in items):
        answers = [_inbox_answer(item, decision) for item in items]
        return answers, [(item["action_request"], one) for item, one in zip(items, answers, strict=True)]
    return decision.approved if decision.words is None else decision.words, []


def _is_one_call(value: Any) -> bool:
    """Return True if an interrupt is about a single call (`per_call` mode of the middleware)."""
    return isinstance(value, Mapping) and value.get("type") == "tool_approval"


def _allowed_by(config: Any) -> Container[str]:
    allowed = config.get("allowed_decisions") if isinstance(config, Mapping) else None
    return allowed if isinstance(allowed, list) else _ALL_DECISIONS


def _decision(allowed: Container[str], decision: Decision) -> dict[str, Any]:
    if decision.approved and "approve" in allowed:
        return {"type": "approve"}
    if "respond" in allowed and (decision.approved or "reject" not in allowed):
        return {"type": "respond", "message": decision.reason}  # for tools whose result is the user's answer
    return {"type": "reject", "message": decision.reason}


def _inbox_answer(item: Wire, decision: Decision) -> dict[str, Any]:
    if decision.approved:
        return {"type": "accept", "args": None}
    can_respond = mapping_at(item, "config").get("allow_respond", True)
    return {"type": "response", "args": decision.reason} if can_respond else {"type": "ignore", "args": None}
