"""Approval requests: answers to an agent that asks for permission to act.

The simulated user or the `approvals` setting decides. The second half of the module reads LangGraph
interrupts and writes the `resume` values that answer them.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from agentest.agents.json_reader import excerpt
from agentest.domain.tool_visibility import Approval
from agentest.support.lazy_dataclasses import dataclass

MOST_APPROVALS = 50
"""Approval requests allowed in one turn before the conversation fails."""
TOO_MANY_QUESTIONS = (
    f"the agent asked for approval more than {MOST_APPROVALS} times in one turn without replying to the user"
)
REFUSED, AGREED = "The user refused.", "The user agreed."

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
        return self.words or (AGREED if self.approved else REFUSED)


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
    action = value.get("action_request")
    return _call_text(action if isinstance(action, Mapping) else value)


def _call_text(value: Wire) -> str:
    name = value.get("name", value.get("action"))
    args = value.get("args", value.get("arguments", {}))
    return f"{name}({excerpt(args)})" if isinstance(name, str) else excerpt(value)


def approvals_of(values: Iterable[Any], decision: Decision) -> dict[str, Approval]:
    """Return tool name → approval. Empty if the interrupts are not about tool calls."""
    approvals: dict[str, Approval] = {}
    for value in values:
        answer = _answer(value, decision)
        for request, decided in zip(_requests(value), _decisions(answer), strict=False):
            name = request.get("name", request.get("action")) if isinstance(request, Mapping) else None
            if isinstance(name, str) and decided in _APPROVAL_BY_KIND:
                approvals[name] = _APPROVAL_BY_KIND[decided]
    return approvals


def _requests(value: Any) -> list[Any]:
    """Return what an interrupt asks about: one entry per decision."""
    if _is_one_call(value):
        return [value]
    if isinstance(value, Mapping) and isinstance(value.get("action_requests"), list):
        return list(value["action_requests"])
    items = value if isinstance(value, list) else [value]
    return [
        item["action_request"] for item in items if isinstance(item, Mapping) and "action_request" in item
    ]


def _decisions(answer: Any) -> list[Any]:
    """Return the kind of each decision in an answer."""
    if isinstance(answer, Mapping):
        answer = answer.get("decisions", [answer])
    return (
        [each.get("type") for each in answer if isinstance(each, Mapping)] if isinstance(answer, list) else []
    )


def resume(interrupts: Sequence[Wire], decision: Decision) -> Any:
    """Return the `resume` value that answers the interrupts.

    A single answer is returned as it is; several are keyed by interrupt id. A question in an unknown form is
    answered with the user's message, or with the boolean that the configuration decides.
    """
    answers = [_answer(interrupt.get("value"), decision) for interrupt in interrupts]
    ids = [interrupt.get("id", interrupt.get("interrupt_id")) for interrupt in interrupts]
    by_id = len(answers) > 1 or _is_one_call(interrupts[0].get("value"))
    if not by_id or not all(ids):
        return answers[0]
    return dict(zip(ids, answers, strict=True))


def _answer(value: Any, decision: Decision) -> Any:
    if isinstance(value, Mapping) and isinstance(value.get("action_requests"), list):
        allowed = _allowed(value.get("review_configs"), len(value["action_requests"]))
        return {"decisions": [_decision(kinds, decision) for kinds in allowed]}
    if _is_one_call(value):
        return _decision(_ALL_DECISIONS, decision)
    items = value if isinstance(value, list) else [value]
    if items and all(isinstance(item, Mapping) and "action_request" in item for item in items):
        return [_inbox_answer(item, decision) for item in items]
    return decision.approved if decision.words is None else decision.words


def _is_one_call(value: Any) -> bool:
    """Return True if an interrupt is about a single call (`per_call` mode of the middleware)."""
    return isinstance(value, Mapping) and value.get("type") == "tool_approval"


def _allowed(configs: Any, number: int) -> list[Container[str]]:
    """Return the allowed kinds of decision for each request."""
    listed = configs if isinstance(configs, list) else []
    return [*map(_allowed_by, listed), *[_ALL_DECISIONS] * number][:number]


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
    allowed = item.get("config")
    can_respond = not isinstance(allowed, Mapping) or allowed.get("allow_respond", True)
    if decision.approved:
        return {"type": "accept", "args": None}
    return {"type": "response", "args": decision.reason} if can_respond else {"type": "ignore", "args": None}
