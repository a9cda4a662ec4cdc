"""A model that answers from a script."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentest.domain.metrics import BUILTIN, GOAL, NO_FAILURE, Kind
from agentest.domain.transcript import Usage
from agentest.models.port import ChatReply, ChatRequest

KEPT_ITS_ROLE = "kept its role"
"""What a judge answers of a simulated user that did nothing against its role (`user.check`)."""
STOP = "[[STOP]]"
"""As a line of a ScriptedModel's user: the user ends the conversation."""


class ScriptedModel:
    """A model that plays the user and judges, both from a script.

    Args:
        user: the simulated user's lines by turn; STOP, or the end of the lines, ends the conversation.
        scores: metric, or `criterion 1` and so on → value, or a function from the ChatRequest to a value. A
            value may be a dict: it is sent with a reason. What is not named gets the best value. Where
            several questions are asked at once, the request's key has turn and metric of each in its turn.
        groups: what deduplication answers: a list of groups; default: one group for all, severity `high`.
        answer: a function from the ChatRequest to the whole answer (a text, or a dict that is sent as JSON),
            in place of all the others. It may raise what a ChatModel raises.

    `requests` are the ChatRequests received, in order.
    """

    def __init__(
        self,
        user: Sequence[str] = ("Hello, please help me.",),
        scores: Mapping[str, Any] | None = None,
        groups: Sequence[Mapping[str, Any]] | None = None,
        answer: Callable[[ChatRequest], str | Mapping[str, Any]] | None = None,
        name: str = "scripted",
    ) -> None:
        self.name = name
        self.requests: list[ChatRequest] = []
        self._user = tuple(user)
        self._scores = dict(scores or {})
        self._groups = groups
        self._answer = answer

    async def complete(self, request: ChatRequest) -> ChatReply:
        """The scripted answer, with a usage of 100 and 20 tokens."""
        self.requests.append(request)
        answer = (self._answer or self._by_role)(request)
        text = answer if isinstance(answer, str) else json.dumps(answer)
        return ChatReply(text, Usage(100, 20), self.name)

    def _by_role(self, request: ChatRequest) -> dict[str, Any]:
        if request.key.role == "user":
            return self._line(request.key.turn or 0)
        if request.schema_name == "Causes":  # groups of different scenarios, each a cause of its own
            return {"causes": [{"title": id, "groups": [id]} for id in _ids(request)]}
        if request.key.role == "dedup":
            return {"groups": self._groups if self._groups is not None else [_one_group(request)]}
        if request.key.metric == "batch":
            return self._judged_together(request.schema, request)
        return self._judged(request.key.metric or "", request)

    def _judged_together(self, form: Mapping[str, Any], request: ChatRequest) -> dict[str, Any]:
        """An answer with an object for each question, those about a turn in an object of their own."""
        answer: dict[str, Any] = {}
        for name, inner in form["properties"].items():
            if name.startswith("turn_"):
                of_turn = replace(request, key=replace(request.key, turn=int(name.removeprefix("turn_"))))
                answer[name] = self._judged_together(_resolved(inner, request.schema), of_turn)
            else:
                metric = name.replace("criterion_", "criterion ")
                answer[name] = self._judged(metric, replace(request, key=replace(request.key, metric=metric)))
        return answer

    def _judged(self, metric: str, request: ChatRequest) -> dict[str, Any]:
        value = self._scores.get(metric, _best(metric))
        value = value(request) if callable(value) else value
        if isinstance(value, Mapping):
            return {"reason": "scripted", **value}
        if metric in BUILTIN and BUILTIN[metric].kind is Kind.LABEL:
            return {"reason": "scripted", "labels": [] if value == NO_FAILURE else [value]}
        return {"reason": "scripted", _key_of(metric, value): value}

    def _line(self, turn: int) -> dict[str, Any]:
        line = self._user[turn] if turn < len(self._user) else STOP
        return {"message": line.replace(STOP, ""), "should_stop": STOP in line}


def _resolved(form: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """A part of a schema, or what it refers to."""
    found: Mapping[str, Any] = schema["$defs"][form["$ref"].rpartition("/")[2]] if "$ref" in form else form
    return found


def _key_of(metric: str, value: Any) -> str:
    if metric.startswith("criterion "):
        return "result"
    return "outcome" if metric == GOAL and isinstance(value, str) else "value"


def _best(metric: str) -> Any:
    if metric == "user":
        return KEPT_ITS_ROLE
    if metric.startswith("criterion "):
        return "met"
    kind = BUILTIN[metric].kind if metric in BUILTIN else Kind.SCALE
    return {Kind.LABEL: NO_FAILURE, Kind.BINARY: 1}.get(kind, 5)


def _one_group(request: ChatRequest) -> dict[str, Any]:
    return {
        "label": "scripted group",
        "severity": "high",
        "occurrences": _ids(request),
        "explanation": "scripted",
    }


def _ids(request: ChatRequest) -> list[str]:
    """The ids of what is to be grouped."""
    lines = request.messages[-1]["content"].split("\n")
    return [json.loads(line)["id"] for line in lines if line.startswith('{"id"')]
