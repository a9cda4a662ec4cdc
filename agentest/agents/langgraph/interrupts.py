"""What a graph asks while it is interrupted, and how it is answered.

Three forms are known: langchain's `HumanInTheLoopMiddleware` (`action_requests`, answered by `decisions`),
the older agent inbox (`action_request`, answered by `{type, args}`), and a plain `interrupt(value)`, which
gets true or false, or the user's words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentest.agents.approvals import is_approval
from agentest.agents.langgraph.messages import Wire
from agentest.agents.reading import shown

_QUESTIONS = ("question", "message", "description", "text", "prompt", "query", "instruction", "title")
_REFUSED = "The user refused."


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
    if len(answers) == 1 or not all(ids):
        return answers[0]
    return dict(zip(ids, answers, strict=True))


def _answer(value: Any, approved: bool, words: str | None) -> Any:
    if isinstance(value, Mapping) and isinstance(value.get("action_requests"), list):
        return {"decisions": [_decision(approved, words) for _ in value["action_requests"]]}
    items = value if isinstance(value, list) else [value]
    if items and all(isinstance(item, Mapping) and "action_request" in item for item in items):
        return [_inbox(item, approved, words) for item in items]
    return approved if words is None else words


def _decision(approved: bool, words: str | None) -> dict[str, Any]:
    return {"type": "approve"} if approved else {"type": "reject", "message": words or _REFUSED}


def _inbox(item: Wire, approved: bool, words: str | None) -> dict[str, Any]:
    allowed = item.get("config")
    can_respond = not isinstance(allowed, Mapping) or allowed.get("allow_respond", True)
    if approved:
        return {"type": "accept", "args": None}
    return (
        {"type": "response", "args": words or _REFUSED} if can_respond else {"type": "ignore", "args": None}
    )
