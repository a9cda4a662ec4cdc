"""Prepare judged conversations for storage: remove secrets, cut oversized texts, drop what nobody needs.

Mocks, checks, metrics and the agent itself have used the complete texts. The stored form states how long a
text was and where a secret was. The conversation and its turns are marked, so that they are not judged again
as if they were complete.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping
from operator import is_
from typing import Any, TypeVar

from agentest.domain.reasons import (
    conversation_passed,
    conversation_reasons,
    goal_outcome,
    threshold_counted_trajectories,
)
from agentest.domain.results import (
    DECIDED,
    NO_MODEL,
    CheckResult,
    ConversationResult,
    CriterionOutcome,
    CriterionResult,
    Score,
    TrajectoryResult,
    TurnEvaluation,
)
from agentest.domain.transcript import (
    CUT_OFF,
    AgentExchange,
    Conversation,
    Failure,
    Remark,
    SentRequest,
    TimeSpent,
    ToolCall,
    Turn,
    UnfinishedTurn,
    Usage,
)
from agentest.support.lazy_dataclasses import replace as replaced
from agentest.support.redaction import Redactor, without_secrets
from agentest.support.text import shortened as excerpt

MAX_CHARS = 1_000_000  # the limit for one text, and for the arguments or the result of one call
_MAX_DEPTH = 100
_ERROR_CHARS = 1_000
_ERROR_TEXT = re.compile(
    r"""\s*+(?:
        [\w.]*(?:error|exception)\s*:\s
        | \{\s*"error"
        | (?:http(?:/[\d.]+)?|error|status)\s+(?:code\s+)?[45]\d\d\b
        | (?:[45]\d\d(?:\s*[:-])?\s++)?
          (?:internal\s+server\s+error|bad\s+gateway|service\s+unavailable|gateway\s+time-?out)
        | .*traceback\s\(most\ recent\ call\ last\)
    )""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
_EXCHANGE_CHARS = 4000
"""The limit of a request and of a response of an HTTP exchange. The end has the last message."""
_KNOWS_NO_SECRET = Redactor()
_T = TypeVar("_T")
_AnyTurn = TypeVar("_AnyTurn", Turn, UnfinishedTurn)


def shortened(text: str, limit: int = MAX_CHARS) -> str:
    """Return the text, or its beginning with a note of its full length."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters, shortened)"


def shortened_value(value: Any) -> Any:
    """Cut a JSON value whose texts exceed MAX_CHARS in total; return a small value itself."""
    return value if value is None or _is_small(value) else _Cut().value(value, 0)


def stored(result: ConversationResult, redact: Redactor = _KNOWS_NO_SECRET) -> ConversationResult:
    """Return a judged conversation in its stored form; the same object if nothing is oversized or secret."""
    result = _shortened(_with_exchanges(result, redact))
    hidden = without_secrets(result, redact)
    return result if hidden is result else _marked(hidden, result.conversation)


def _with_exchanges(result: ConversationResult, redact: Redactor) -> ConversationResult:
    conversation = result.conversation
    if not conversation.sent:
        return result
    reasons = conversation_reasons(result)
    changed: dict[str, Any] = {"sent": {}}
    if reasons or result.failures:
        indices = {each.turn_index for each in (*reasons, *result.failures)}  # type: ignore[attr-defined]
        if None in indices:
            indices.add(max(conversation.sent))

        def change(turn: _AnyTurn) -> _AnyTurn:
            sent = conversation.sent.get(turn.turn_index, ()) if turn.turn_index in indices else ()
            return replaced(turn, exchanges=tuple(_exchange(each, redact) for each in sent)) if sent else turn

        changed["turns"] = _each(change, conversation.turns)
        changed["unfinished"] = conversation.unfinished and change(conversation.unfinished)
    return replaced(result, conversation=replaced(conversation, **changed))


def _exchange(sent: SentRequest, redact: Redactor) -> AgentExchange:
    def text(data: bytes) -> str:
        text, half = redact(data.decode(errors="replace")), _EXCHANGE_CHARS // 2
        return text if len(text) <= _EXCHANGE_CHARS else f"{text[:half]} … {text[-half:]}"

    return AgentExchange(
        method=sent.method,
        url=redact(sent.url),
        request=text(sent.content or b""),
        status=sent.status,
        response=text(sent.body),
    )


def _marked(hidden: ConversationResult, true: Conversation) -> ConversationResult:
    conversation = hidden.conversation
    of_user = {
        call.turn_index
        for call, was in zip(conversation.user_calls, true.user_calls, strict=True)
        if call is not was
    }
    turns = tuple(
        replaced(turn, redacted=True) if turn is not was or turn.turn_index in of_user else turn
        for turn, was in zip(conversation.turns, true.turns, strict=True)
    )
    unfinished = conversation.unfinished
    if unfinished and (unfinished is not true.unfinished or unfinished.turn_index in of_user):
        unfinished = replaced(unfinished, redacted=True)
    return replaced(hidden, conversation=replaced(conversation, turns=turns, unfinished=unfinished))


_PARTS: Mapping[type, tuple[str, ...]] = {
    ConversationResult: ("conversation", "trajectory", "turns"),
    Conversation: ("turns", "unfinished", "initial_state", "user_calls"),
    Turn: ("user_message", "agent_message", "tool_calls", "remarks", "state_after"),
    UnfinishedTurn: ("user_message", "tool_calls"),
    Remark: ("author", "text"),
    ToolCall: ("args", "result", "invalid_arguments", "error", "call_id"),
    TurnEvaluation: ("trajectory",),
}
"""Class → the fields that others wrote, which may be oversized."""
_TRAJECTORY_TEXTS = ("summary", "expected", "forbidden", "actual")


def _shortened(value: _T) -> _T:
    changed: dict[str, Any] = {}
    for name in _PARTS[type(value)]:
        part: Any = getattr(value, name)
        if not part or (isinstance(part, str) and len(part) <= MAX_CHARS):
            continue
        new = _shortened_part(part)
        if new is not part:
            changed[name] = new
    if isinstance(value, Conversation):
        changed |= {"shortened": True} if changed else {}
        state = shortened_value(value.mock_state)
        if state is not value.mock_state:
            changed |= {"mock_state": state, "inexact_state": tuple(state)}
        if value.live_state is not None:
            changed["live_state"] = None
    return replaced(value, **changed) if changed else value


def _each(change: Callable[[_T], _T], parts: tuple[_T, ...]) -> tuple[_T, ...]:
    new = tuple(map(change, parts))
    return parts if all(map(is_, parts, new)) else new


def _shortened_part(part: Any) -> Any:
    if isinstance(part, TrajectoryResult):
        return _stored_trajectory(part)
    if isinstance(part, tuple) and type(part[0]) in _PARTS:
        return _each(_shortened, part)
    return _shortened(part) if type(part) in _PARTS else shortened_value(part)


def _stored_trajectory(result: TrajectoryResult) -> TrajectoryResult:
    parts = _each(_stored_trajectory, result.parts)
    result = result if parts is result.parts else replaced(result, parts=parts)
    texts: dict[str, Any] = {name: getattr(result, name) or "" for name in _TRAJECTORY_TEXTS}
    if sum(map(len, texts.values())) <= MAX_CHARS:
        return result
    left = MAX_CHARS
    for name, text in texts.items():
        texts[name] = shortened(text, max(left, 0)) if text else getattr(result, name)
        left -= len(text)
    return replaced(result, **texts)


def _is_small(value: Any) -> bool:
    left, waiting = MAX_CHARS, [value]
    while waiting:
        item = waiting.pop()
        left -= 1
        if isinstance(item, str):
            left -= len(item)
        elif isinstance(item, dict):
            waiting += [*item, *item.values()]
        elif isinstance(item, list | tuple):
            waiting += item
        if left < 0:
            return False
    return True


class _Cut:
    def __init__(self) -> None:
        self._left = MAX_CHARS

    def value(self, value: Any, depth: int) -> Any:
        self._left -= 1
        if isinstance(value, str):
            text = shortened(value, max(self._left, 0))
            self._left -= len(value)
            return text
        if depth >= _MAX_DEPTH:
            return "…"
        if isinstance(value, dict):
            return self._dict(value, depth)
        return self._list(value, depth) if isinstance(value, list | tuple) else value

    def _dict(self, value: dict[Any, Any], depth: int) -> dict[Any, Any]:
        items: dict[Any, Any] = {}
        for key, item in value.items():
            if self._left <= 0:
                items[CUT_OFF] = f"({len(value) - len(items)} more, shortened)"
                break
            # The key comes first, because its value may use up all room.
            name = self.value(key, depth) if isinstance(key, str) else key
            items[name] = self.value(item, depth + 1)
        return items

    def _list(self, value: list[Any] | tuple[Any, ...], depth: int) -> list[Any]:
        items: list[Any] = []
        for item in value:
            if self._left <= 0:
                return [*items, f"… ({len(value) - len(items)} more, shortened)"]
            items.append(self.value(item, depth + 1))
        return items


def without_unneeded(result: ConversationResult) -> ConversationResult:
    """Drop what decides and counts nothing later from a passed conversation, unless a report may show it."""
    is_shown = bool(result.failures or result.conversation.foreign_session)
    is_shown = is_shown or any(each.result is not CriterionOutcome.MET for each in result.criteria)
    if result.slim or is_shown or not conversation_passed(result) or threshold_counted_trajectories(result):
        return result
    slim: ConversationResult = _slim(result)
    return slim


def kind_of(result: ConversationResult) -> Hashable:
    """Return what verdicts, warnings and reports tell apart when they look for a first example."""
    from agentest.domain.root_causes import cause_patterns

    checks = (*result.checks, *(check for turn in result.turns for check in turn.checks))
    return (
        cause_patterns(result),
        tuple((each.metric, each.label, each.severity) for each in result.failures),
        bool(result.conversation.foreign_session),
        goal_outcome(result),
        tuple((each.text, each.result) for each in result.criteria),
        tuple((each.check, each.passed) for each in checks),
        result.trajectory and (result.trajectory.matched, bool(result.trajectory.missing_calls)),
        bool(threshold_counted_trajectories(result)),
    )


def without_texts(result: ConversationResult) -> ConversationResult:
    """Drop the texts of a conversation that reports may show, which are then only in its reasons."""
    return replaced(without_measurements(_slim(result)), reasons=tuple(conversation_reasons(result)))


def _slim(value: Any) -> Any:
    if found := _SLIM.get(type(value)):
        constants, functions = found
        parts = {name: to(part) for name, to in functions.items() if (part := getattr(value, name))}
        return replaced(value, **constants, **parts)
    if type(value) is tuple:
        return tuple(map(_slim, value)) if value else value
    return {key: _slim(part) for key, part in value.items()} if type(value) is dict else value


def _slim_arguments(args: Any) -> Any:
    return {} if isinstance(args, Mapping) else excerpt(str(args))  # a warning is about unreadable ones


_SLIM: Mapping[type, tuple[Mapping[str, Any], Mapping[str, Callable[[Any], Any]]]] = {
    ConversationResult: (
        {"slim": True},
        dict.fromkeys(("conversation", "turns", "metrics", "trajectory", "criteria", "checks"), _slim),
    ),
    Conversation: (
        {"initial_state": None, "mock_state": None, "history": ()},
        dict.fromkeys(("turns", "failure", "unfinished", "user_calls"), _slim),
    ),
    Failure: ({"message": ""}, {}),
    UnfinishedTurn: (
        {"user_message": "", "server_output": (), "model_requests": (), "exchanges": ()},
        {"tool_calls": _slim},
    ),
    Turn: (
        {"user_message": "", "asked_calls": (), "remarks": (), "state_after": None}
        | {"started_at": None, "model_requests": ()},
        # A warning is about replies that read like errors.
        {"agent_message": lambda text: excerpt(text) if reads_like_error(text) else "", "tool_calls": _slim},
    ),
    ToolCall: ({"result": None, "call_id": None, "duration_ms": None}, {"args": _slim_arguments}),
    TurnEvaluation: ({"judged_ms": None}, dict.fromkeys(("metrics", "trajectory", "checks"), _slim)),
    TrajectoryResult: (
        dict.fromkeys(("expected", "forbidden", "actual"))
        | {"summary": "", "alignment": (), "alignment_more": 0},
        {"parts": _slim},
    ),
    CheckResult: ({"summary": "", "reply": None, "turn_index": None}, {}),
    CriterionResult: ({"turn_index": None}, {"reason": lambda why: why * (why in (DECIDED, NO_MODEL))}),
    Score: ({"reason": "", "samples": ()}, {}),
}
"""Class → fields of which a slim conversation needs nothing, and their values from now on; fields of which it
needs a part, and what makes it."""
MEASURED_OF_TURN: Mapping[str, Any] = {"latency_ms": 0.0, "usage": Usage()} | dict.fromkeys(
    ("first_token_ms", "user_ms", "tools_ms", "briefing", "model_ms", "model_cost")
)
_NO_TIME = TimeSpent()


def without_measurements(result: ConversationResult) -> ConversationResult:
    """Drop from a slim conversation what `figures.Measurements` has of it, so that it may equal others."""
    turns = tuple(replaced(turn, **MEASURED_OF_TURN) for turn in result.conversation.turns)
    talk = replaced(result.conversation, conversation_id="", session_id=None, turns=turns, time=_NO_TIME)
    return replaced(result, conversation=talk, time=_NO_TIME)


def reads_like_error(text: str) -> bool:
    """Return True if a text begins as an exception or a server's error page does, or has a traceback."""
    return _ERROR_TEXT.match(text[:_ERROR_CHARS]) is not None
