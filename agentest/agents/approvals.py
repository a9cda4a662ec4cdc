"""What an agent is answered that has asked whether it may do something: by the user, or the configuration."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentest.agents.json_reader import shown
from agentest.domain.tool_visibility import Approval

MOST_APPROVALS = 50
"""How often an agent may ask in one turn without being ended."""
TOO_MANY_QUESTIONS = (
    f"the agent asked for approval more than {MOST_APPROVALS} times in one turn without replying to the user"
)
REFUSED, AGREED = "The user refused.", "The user agreed."

_YES = re.compile(
    r"(yes|yeah|yep|y|ok|okay|sure|certainly|of course|approved?|i approve|accept(ed)?|i accept|agreed|"
    r"i agree|confirm(ed)?|i confirm|go ahead|please do|do it|true)\b",
    re.IGNORECASE,
)
_TAKES_BACK = re.compile(r"\b(no|not|never|wait|stop|cancel|but|if|unless)\b|n't\b", re.IGNORECASE)


def is_approval(text: str) -> bool:
    """Whether a message agrees: it begins with a yes and takes nothing back.

    Everything else is no approval: it goes to the agent as the reason of a refusal, in the user's words.
    """
    said = text.strip()
    return bool(_YES.match(said)) and not _TAKES_BACK.search(said)


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer of the user, or of the configuration."""

    approved: bool
    words: str | None = None
    """What the user has said; None where `approvals` decides."""

    @property
    def reason(self) -> str:
        """Why it is so, for agents that want to be told."""
        return self.words or (AGREED if self.approved else REFUSED)


def decided_by_user(words: str) -> Decision:
    """What a message of the user decides."""
    return Decision(is_approval(words), words)


def decided_by(approvals: str) -> Decision | None:
    """What the configuration decides; None where the user is asked."""
    return None if approvals == "ask" else Decision(approvals == "approve")


Wire = Mapping[str, Any]
"""An interrupt as it is told: `id` and `value`."""
_QUESTIONS = ("question", "message", "description", "text", "prompt", "query", "instruction", "title")
_DECIDED = {
    "approve": Approval.GRANTED,
    "accept": Approval.GRANTED,
    "reject": Approval.DENIED,
    "response": Approval.DENIED,
    "ignore": Approval.DENIED,
}
"""Kinds of decision → what becomes of the call; what is not here runs no tool and refuses none."""
_ANY: Container[str] = ("approve", "reject")


def question(interrupts: Sequence[Wire]) -> str:
    """What the interrupts ask, as the reply of the agent."""
    return "\n\n".join(_asked(interrupt.get("value")) for interrupt in interrupts)


def _asked(value: Any) -> str:
    if isinstance(value, list):
        return "\n".join(map(_asked, value))
    if not isinstance(value, Mapping):
        return shown(value)
    requests = value.get("action_requests")
    if isinstance(requests, list) and requests:
        return "\n".join(map(_asked, requests))
    for key in _QUESTIONS:
        if isinstance(value.get(key), str) and value[key].strip():
            return str(value[key])
    action = value.get("action_request")
    return _action(action if isinstance(action, Mapping) else value)


def _action(value: Wire) -> str:
    name = value.get("name", value.get("action"))
    args = value.get("args", value.get("arguments", {}))
    return f"{name}({shown(args)})" if isinstance(name, str) else shown(value)


def approvals_of(values: Iterable[Any], decision: Decision) -> dict[str, Approval]:
    """Name of a tool → what the answer decides about its call; empty where no call is asked about."""
    found: dict[str, Approval] = {}
    for value in values:
        answer = _answer(value, decision)
        for request, decided in zip(_requests(value), _decisions(answer), strict=False):
            name = request.get("name", request.get("action")) if isinstance(request, Mapping) else None
            if isinstance(name, str) and decided in _DECIDED:
                found[name] = _DECIDED[decided]
    return found


def _requests(value: Any) -> list[Any]:
    """What an interrupt asks about: one entry for each decision."""
    if _is_one_call(value):
        return [value]
    if isinstance(value, Mapping) and isinstance(value.get("action_requests"), list):
        return list(value["action_requests"])
    items = value if isinstance(value, list) else [value]
    return [
        item["action_request"] for item in items if isinstance(item, Mapping) and "action_request" in item
    ]


def _decisions(answer: Any) -> list[Any]:
    """The kind of each decision of an answer."""
    if isinstance(answer, Mapping):
        answer = answer.get("decisions", [answer])
    return (
        [each.get("type") for each in answer if isinstance(each, Mapping)] if isinstance(answer, list) else []
    )


def resume(interrupts: Sequence[Wire], decision: Decision) -> Any:
    """The `resume` that answers: one answer alone stands for itself, several go by their interrupts' ids.

    A question of no known form is answered by the user's words, or by true or false of the configuration.
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
        return _decision(_ANY, decision)
    items = value if isinstance(value, list) else [value]
    if items and all(isinstance(item, Mapping) and "action_request" in item for item in items):
        return [_inbox(item, decision) for item in items]
    return decision.approved if decision.words is None else decision.words


def _is_one_call(value: Any) -> bool:
    """Whether an interrupt is about one call, as the middleware asks in its mode `per_call`."""
    return isinstance(value, Mapping) and value.get("type") == "tool_approval"


def _allowed(configs: Any, number: int) -> list[Container[str]]:
    """The kinds of decision that are allowed for each request."""
    found = configs if isinstance(configs, list) else []
    return [*map(_allowed_by, found), *[_ANY] * number][:number]


def _allowed_by(config: Any) -> Container[str]:
    allowed = config.get("allowed_decisions") if isinstance(config, Mapping) else None
    return allowed if isinstance(allowed, list) else _ANY


def _decision(allowed: Container[str], decision: Decision) -> dict[str, Any]:
    if decision.approved and "approve" in allowed:
        return {"type": "approve"}
    if "respond" in allowed and (decision.approved or "reject" not in allowed):
        return {"type": "respond", "message": decision.reason}  # a tool whose answer is what the user says
    return {"type": "reject", "message": decision.reason}


def _inbox(item: Wire, decision: Decision) -> dict[str, Any]:
    allowed = item.get("config")
    can_respond = not isinstance(allowed, Mapping) or allowed.get("allow_respond", True)
    if decision.approved:
        return {"type": "accept", "args": None}
    return {"type": "response", "args": decision.reason} if can_respond else {"type": "ignore", "args": None}
