"""Approval requests: answers to an agent that asks for permission to act.

The scenario's `approve`, the `approvals` setting or the user decides (`Approver`). The second half of the
module reads LangGraph interrupts and writes the `resume` values that answer them.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, Literal

from agentest.agents.json_reader import excerpt, mapping_at
from agentest.domain.tool_visibility import Approval, Approve
from agentest.support.errors import AgentError, MockError
from agentest.support.lazy_dataclasses import dataclass

Approvals = Literal["approve", "deny", "ask"]
"""How an agent's questions before it continues are answered. With `ask`, each question becomes the reply, and
the user's next message is the answer."""
_MOST_REQUESTS = 50  # the approval request in one turn at which the conversation fails

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
    words: str | None = None  # the user's message. None if the scenario or the configuration decided.
    by_tool: Mapping[str, bool] = field(default_factory=dict)
    """Tool → the scenario's decision, which precedes the others."""

    def about(self, tool: Any) -> Decision:
        """Return the decision about a call of this tool."""
        return Decision(self.by_tool[tool]) if isinstance(tool, str) and tool in self.by_tool else self

    @property
    def reason(self) -> str:
        """The reason to send to the agent."""
        return self.words or ("The user agreed." if self.approved else "The user refused.")


@dataclass(slots=True)
class Approver:
    """Answers the requests for approval in one turn."""

    approve: Approve | None  # the scenario's answer, which precedes the others
    setting: str = "ask"  # the agent's setting `approvals`
    answered: int = 0  # number of requests that `approve` has answered
    _requests: int = 0  # number of requests in this turn

    def decision(self, tools: Sequence[str | None], words: str | None = None) -> Decision | None:
        """Return the decision about a request, or None if the user has to decide.

        Args:
            tools: the tools that the agent asks about; None for a question about something else.
            words: the user's message, if the user was asked.

        Raises AgentError if an agent asks again and again, which would never end.
        """
        self._requests += 1
        if self._requests >= _MOST_REQUESTS:
            raise AgentError(
                f"the agent asked for approval more than {_MOST_REQUESTS} times in one turn without replying "
                "to the user"
            )
        if isinstance(self.approve, bool):
            self.answered += 1
            return Decision(self.approve)
        by_tool = self.approve or {}
        is_complete = bool(tools) and all(tool in by_tool for tool in tools)
        if words is not None:
            decision = Decision(is_approval(words), words, by_tool)
        elif is_complete or self.setting != "ask":
            decision = Decision(self.setting == "approve", None, by_tool)
        else:
            return None
        self.answered += any(tool in by_tool for tool in tools)
        return decision


Wire = Mapping[str, Any]  # an interrupt as the protocol sends it: `id` and `value`
_QUESTIONS = ("question", "message", "description", "text", "prompt", "query", "instruction", "title")
_APPROVAL_BY_KIND = {
    "approve": Approval.GRANTED,
    "accept": Approval.GRANTED,
    "reject": Approval.DENIED,
    "response": Approval.DENIED,
    "ignore": Approval.DENIED,
}
"""Kind of decision → approval of the call. Any other kind neither runs nor refuses a tool."""
_NO_DECISION = "none"  # the agent allows neither what was decided nor words in its place
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


def asked_tools(interrupts: Iterable[Wire]) -> list[str | None]:
    """Return the tools that interrupts ask about, with None for an interrupt about something else."""
    requests = [_answer(interrupt.get("value"), Decision(True))[1] for interrupt in interrupts]
    tools = [tool for each in requests for tool in ([_tool_of(one) for one, _ in each] or [None])]
    return [tool if isinstance(tool, str) else None for tool in tools]


def approvals_of(interrupts: Iterable[Wire], decision: Decision) -> dict[str, Approval]:
    """Return tool name → approval. Empty if the interrupts are not about tool calls."""
    approvals: dict[str, Approval] = {}
    for interrupt in interrupts:
        for request, decided in _answer(interrupt.get("value"), decision)[1]:
            name, kind = _tool_of(request), decided["type"]
            if isinstance(name, str) and kind in _APPROVAL_BY_KIND:
                approvals[name] = _APPROVAL_BY_KIND[kind]
    return approvals


def resume(interrupts: Sequence[Wire], decision: Decision) -> Any:
    """Return the `resume` value that answers the interrupts.

    A single answer is returned as it is; several are keyed by interrupt id. A question in an unknown form is
    answered with the user's message, or with the boolean that the configuration decides.
    """
    found = [_answer(interrupt.get("value"), decision) for interrupt in interrupts]
    if any(one["type"] == _NO_DECISION for _, each in found for _, one in each):
        raise MockError(
            f"a call was {'approved' if decision.approved else 'denied'}, and the agent's "
            "`allowed_decisions` rule that out: allow it there, or change `approve`"
        )
    answers = [answer for answer, _ in found]
    ids = [interrupt.get("id", interrupt.get("interrupt_id")) for interrupt in interrupts]
    by_id = len(answers) > 1 or _is_one_call(interrupts[0].get("value"))
    if not by_id or not all(ids):
        return answers[0]
    return dict(zip(ids, answers, strict=True))


def _answer(value: Any, decision: Decision) -> tuple[Any, list[tuple[Any, Wire]]]:
    if isinstance(value, Mapping) and isinstance(requests := value.get("action_requests"), list):
        configs = value.get("review_configs")
        listed = [*configs][: len(requests)] if isinstance(configs, list) else []
        allowed = [*map(_allowed_by, listed), *[_ALL_DECISIONS] * (len(requests) - len(listed))]
        pairs = zip(requests, allowed, strict=True)
        decisions = [_decision(kinds, decision.about(_tool_of(one))) for one, kinds in pairs]
        return {"decisions": decisions}, [*zip(requests, decisions, strict=True)]
    if _is_one_call(value):
        answer = _decision(_ALL_DECISIONS, decision.about(_tool_of(value)))
        return answer, [(value, answer)]
    items = value if isinstance(value, list) else [value]
    if items and all(isinstance(item, Mapping) and "action_request" in item for item in items):
        answers = [_inbox_answer(item, decision.about(_tool_of(item["action_request"]))) for item in items]
        return answers, [(item["action_request"], one) for item, one in zip(items, answers, strict=True)]
    return decision.approved if decision.words is None else decision.words, []


def _is_one_call(value: Any) -> bool:
    return isinstance(value, Mapping) and value.get("type") == "tool_approval"


def _allowed_by(config: Any) -> Container[str]:
    allowed = config.get("allowed_decisions") if isinstance(config, Mapping) else None
    return allowed if isinstance(allowed, list) else _ALL_DECISIONS


def _decision(allowed: Container[str], decision: Decision) -> dict[str, Any]:
    if decision.approved and "approve" in allowed:
        return {"type": "approve"}
    if "respond" in allowed and (decision.approved or "reject" not in allowed):
        return {"type": "respond", "message": decision.reason}  # for tools whose result is the user's answer
    return {"type": "reject" if "reject" in allowed else _NO_DECISION, "message": decision.reason}


def _inbox_answer(item: Wire, decision: Decision) -> dict[str, Any]:
    if decision.approved:
        return {"type": "accept", "args": None}
    can_respond = mapping_at(item, "config").get("allow_respond", True)
    return {"type": "response", "args": decision.reason} if can_respond else {"type": "ignore", "args": None}
