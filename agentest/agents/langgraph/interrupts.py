"""What a graph asks while it is interrupted, and how it is answered.

Three forms are known: langchain's `HumanInTheLoopMiddleware` (`action_requests`, answered by `decisions`; or
`tool_approval`, answered by one decision),
the older agent inbox (`action_request`, answered by `{type, args}`), and a plain `interrupt(value)`, which
gets true or false, or the user's words.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

from agentest.agents.approvals import is_approval
from agentest.agents.langgraph.messages import Wire
from agentest.agents.reading import shown

_QUESTIONS = ("question", "message", "description", "text", "prompt", "query", "instruction", "title")
_REFUSED, _AGREED = "The user refused.", "The user agreed."
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


def decided(interrupts: Sequence[Wire], approved: bool) -> Any:
    """The `resume` that approves or refuses everything without asking anybody."""
    return _resume(interrupts, approved, None)


def answered(interrupts: Sequence[Wire], words: str) -> Any:
    """The `resume` that the user's words are."""
    return _resume(interrupts, is_approval(words), words)


def _resume(interrupts: Sequence[Wire], approved: bool, words: str | None) -> Any:
    """One answer alone stands for itself, several go by the ids of what they answer."""
    answers = [_answer(interrupt.get("value"), approved, words) for interrupt in interrupts]
    ids = [interrupt.get("id", interrupt.get("interrupt_id")) for interrupt in interrupts]
    by_id = len(answers) > 1 or _is_one_call(interrupts[0].get("value"))
    if not by_id or not all(ids):
        return answers[0]
    return dict(zip(ids, answers, strict=True))


def _answer(value: Any, approved: bool, words: str | None) -> Any:
    if isinstance(value, Mapping) and isinstance(value.get("action_requests"), list):
        allowed = _allowed(value.get("review_configs"), len(value["action_requests"]))
        return {"decisions": [_decision(kinds, approved, words) for kinds in allowed]}
    if _is_one_call(value):
        return _decision(_ANY, approved, words)
    items = value if isinstance(value, list) else [value]
    if items and all(isinstance(item, Mapping) and "action_request" in item for item in items):
        return [_inbox(item, approved, words) for item in items]
    return approved if words is None else words


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


def _decision(allowed: Container[str], approved: bool, words: str | None) -> dict[str, Any]:
    if approved and "approve" in allowed:
        return {"type": "approve"}
    said = words or (_AGREED if approved else _REFUSED)
    if "respond" in allowed and (approved or "reject" not in allowed):
        return {"type": "respond", "message": said}  # a tool whose answer is what the user says
    return {"type": "reject", "message": said}


def _inbox(item: Wire, approved: bool, words: str | None) -> dict[str, Any]:
    allowed = item.get("config")
    can_respond = not isinstance(allowed, Mapping) or allowed.get("allow_respond", True)
    if approved:
        return {"type": "accept", "args": None}
    return (
        {"type": "response", "args": words or _REFUSED} if can_respond else {"type": "ignore", "args": None}
    )
