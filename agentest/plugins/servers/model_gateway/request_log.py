"""The requests to the model of one conversation, as they become part of its turns."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from functools import partial
from operator import eq, itemgetter
from time import perf_counter
from typing import Any, Self

from agentest.domain.changes import DueFaults, Fault, InjectedFault
from agentest.domain.messages import ToolSpec
from agentest.domain.transcript import ModelBriefing, ModelRequest, ModelToolCall, PromptMessage
from agentest.plugins.protocols.model_messages import (
    Json,
    messages_of,
    objects,
    texts_of,
)
from agentest.plugins.servers import port
from agentest.plugins.servers.model_gateway.responses import conversation_id
from agentest.plugins.servers.model_gateway.wire_form import ModelCall, WireAnswer, WireRequest, model_of
from agentest.support.http.bodies import BadBody
from agentest.support.http.retries import CONNECTION_ERRORS, describe
from agentest.support.json_text import json_or_repr, well_formed
from agentest.support.lazy_dataclasses import dataclass, replace
from agentest.support.redaction import Redactor

_INSTRUCTION_CHARS = 40_000
_DESCRIPTION_CHARS = 1_000
_SCHEMA_CHARS = 8_000
_MOST_TOOLS = 500
MOST_CHARS = 2_000
_shortened = partial(port.shortened_without_secrets, most=MOST_CHARS)
MOST_PROMPT_CHARS = 4_000
_MOST_CALLS = 20
_MOST_NAME = 200
_MESSAGE_CHARS = 20
_MOST_AGENTS = 4
_FOR_MODEL = ("system", "developer")
_FROM_MODEL = ("assistant", "model", "function_call", "reasoning")


@dataclass(slots=True)
class RequestRecord:
    """A request to the model while it is under way. Its `begin_ms` is that of the process's clock."""

    _log: RequestLog
    _facts: dict[str, Any]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, (*CONNECTION_ERRORS, BadBody)):
            self.failed(describe(error))
        elif error is not None:
            self.failed(str(error) or type(error).__name__)
        self._facts["latency_ms"] = _now_ms() - self._facts["begin_ms"]
        self._log.requests.append(self._facts)

    def responded(self, status: int) -> None:
        """Note that the head of a response came."""
        self._facts["status"] = status

    def answered(self, answer: WireAnswer) -> None:
        """Note the model's answer."""
        texts = [texts_of(each.get("content", each.get("parts"))) for each in answer.message]
        self._facts["usage"] = answer.usage
        self._facts["answer"] = _shortened("".join(texts), redact=self._log.redact.transcript)
        self._facts["model"] = _name(model_of(answer.body)) or self._facts["model"]
        if answer.calls:
            self.note_calls(answer.calls, [False] * len(answer.calls))

    def failed(self, error: str) -> None:
        """Note why there is no usable answer."""
        self._facts["error"] = _shortened(error, redact=self._log.redact)

    def note_calls(self, calls: Sequence[ModelCall], inside: Sequence[bool]) -> None:
        """Note the calls of the answer, and which of them the gateway answered."""
        hide = self._log.redact.transcript
        told = [(each.name, each.arguments) for each in calls[:_MOST_CALLS]]
        texts = [(name, args if isinstance(args, str) else json_or_repr(args)) for name, args in told]
        shown = [(_shortened(name, redact=hide), _shortened(args, redact=hide)) for name, args in texts]
        self._facts["calls"] = tuple(
            [ModelToolCall(*each, by) for each, by in zip(shown, inside, strict=False)]
        )


@dataclass(slots=True, kw_only=True)
class RequestLog:
    """Records the requests of one conversation."""

    redact: Redactor = field(default_factory=Redactor)
    _turn_began_ms: float | None = None
    requests: list[dict[str, Any]] = field(default_factory=list)
    """The fields of the requests that have ended since the last turn."""
    _sent: deque[tuple[list[Json], list[Json]]] = field(default_factory=lambda: deque(maxlen=_MOST_AGENTS))
    """The last request of each agent: the instructions with which its messages begin, and the others."""
    _briefing: ModelBriefing = ModelBriefing()
    """What the agent told its model, of all agents that belong to it."""
    _told: ModelBriefing = ModelBriefing()
    _read: tuple[Mapping[str, ToolSpec], str] | None = None

    def note_briefing(self, request: WireRequest, plain_name: Callable[[str], str | None]) -> None:
        """Add what a request tells the model.

        The instructions are those of the first request that offers tools, which is the main agent's. The
        tools are those of all requests, because agents list some late and have sub-agents.
        """
        if self._read == (request.tools, request.instructions):
            return
        self._read = request.tools, request.instructions
        known = {tool.name: tool for tool in self._briefing.tools}
        offered = {plain_name(name) or name: tool for name, tool in request.tools.items()}
        new = [_declared(name, tool) for name, tool in offered.items() if name not in known]
        instructions = self._briefing.instructions
        if request.instructions and (not instructions or (request.tools and not known)):
            instructions = request.instructions[:_INSTRUCTION_CHARS]
        tools = (*self._briefing.tools, *new)[:_MOST_TOOLS]
        self._briefing = ModelBriefing(instructions=instructions, tools=tools)

    def new_briefing(self) -> ModelBriefing | None:
        """Return what the model was told, unless nothing has been added since the turn before."""
        told, self._told = self._told, self._briefing
        return self._briefing if self._briefing != told else None

    def begin_turn(self) -> None:
        """Count times from now, unless the turn has begun already."""
        if self._turn_began_ms is None:
            self._turn_began_ms = _now_ms()

    def under_way(self, body: Json, round: int, request: WireRequest) -> RequestRecord:
        """Return the record of a request to a model, which is added when its `with` block ends.

        Args:
            request: the agent's, of which `body` is that of a round.
        """
        prompt, more = self._prompt(body, request.told)
        facts = {"model": _name(request.model), "round": round, "prompt": prompt, "prompt_more": more}
        return RequestRecord(self, {"begin_ms": _now_ms(), **facts})

    def end_turn(self) -> tuple[ModelRequest, ...]:
        """Return the requests that have ended since the last turn, in order of their begin."""
        requests = sorted(self.requests, key=itemgetter("begin_ms"))
        zero = self._turn_began_ms
        if zero is None:
            zero = requests[0]["begin_ms"] if requests else 0.0
        self.requests, self._turn_began_ms = [], None
        return tuple(ModelRequest(**{**each, "begin_ms": each["begin_ms"] - zero}) for each in requests)

    def _prompt(self, body: Json, instructions: str) -> tuple[tuple[PromptMessage, ...], int]:
        try:
            new = self._new_messages(body, instructions)
        except RecursionError:
            return (), 0
        prompt: list[PromptMessage] = []
        left = MOST_PROMPT_CHARS
        for item in reversed(new):
            message = PromptMessage(
                well_formed(_role(item)[:_MOST_NAME]), _shortened(_text(item), redact=self.redact.transcript)
            )
            left -= len(message.text) + _MESSAGE_CHARS
            if left < 0 and prompt:
                break
            prompt.append(message)
        return tuple(reversed(prompt)), len(new) - len(prompt)

    def _new_messages(self, body: Json, instructions: str) -> list[Json]:
        items = messages_of(body)
        if instructions:
            items = [{"role": "system", "content": instructions}, *items]
        if "previous_response_id" in body or "conversation" in body:  # the provider has the rest
            return items
        first = next((at for at, each in enumerate(items) if _role(each) not in _FOR_MODEL), len(items))
        told, said = items[:first], items[first:]
        same = [_common(said, each) for _, each in self._sent]
        known = max(same, default=0)
        earlier, new = list[Json](), said[known:]
        if known:  # the request goes on where one of this agent ended
            place = same.index(known)
            earlier, _ = self._sent[place]
            del self._sent[place]
            while new and _role(new[0]) in _FROM_MODEL:  # the answer to the request before
                del new[0]
        self._sent.append((told, said))
        return [*[each for each in told if each not in earlier], *new]


def _declared(name: str, tool: ToolSpec) -> ToolSpec:
    parameters = tool.parameters if len(json.dumps(tool.parameters)) <= _SCHEMA_CHARS else {}
    return replace(tool, name=name, description=tool.description[:_DESCRIPTION_CHARS], parameters=parameters)


def _now_ms() -> float:
    return perf_counter() * 1000


def _common(one: Sequence[Json], other: Sequence[Json]) -> int:
    if one[: len(other)] == other:  # lists compare the same objects, which most are, at once
        return len(other)
    return [*map(eq, one, other), False].index(False)


def _role(item: Json) -> str:
    return str(item.get("role") or item.get("type") or "user")


def _text(item: Json) -> str:
    content = item.get("content", item.get("parts"))
    parts = content if isinstance(content, list) else [{}]
    is_text = all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in parts)
    if not item.get("tool_calls") and (isinstance(content, str) or is_text):
        return texts_of(content)
    return json_or_repr({key: value for key, value in item.items() if key != "role" and value is not None})


def _name(model: str | None) -> str | None:
    return model and well_formed(model[:_MOST_NAME])


class ConversationFaults:
    """The faults of one conversation, and what the provider does not know because of them."""

    def __init__(self, settings: port.ModelFaults) -> None:
        self.hang_s = settings.hang_s
        self._due = DueFaults(settings.faults)
        self._requests = 0
        self._injected: list[InjectedFault] = []
        self._ids: set[str] = set()
        self._unknown: dict[str, tuple[str | None, list[Json]]] = {}
        """Id of an invented response, or of a stored conversation → the response before it, and the items
        that the provider never received."""

    def end_turn(self) -> tuple[InjectedFault, ...]:
        """Return the faults that were injected since the turn before."""
        injected, self._injected = tuple(self._injected), []
        return injected

    def take(self, request: WireRequest) -> tuple[int, Fault | None]:
        """Count a request. Returns its number and its fault."""
        self._requests += 1
        fault = self._due.take(self._requests, frozenset(request.tools))
        if fault is not None:
            self._injected.append(InjectedFault(fault.kind, self._requests))
        return self._requests, fault

    def invent(self, body: Json, answer: Json, ids: Collection[str]) -> None:
        """Remember a request that was answered in the provider's place. `ids`: those of the answer."""
        self._ids.update(ids)
        if "output" not in answer:
            return  # only responses have a history that the provider stores
        items = messages_of(body)
        items += [{key: value for key, value in item.items() if key != "id"} for item in answer["output"]]
        conversation = conversation_id(body)
        self._unknown[conversation or str(answer["id"])] = body.get("previous_response_id"), items

    def known_to_provider(self, body: Json) -> Json:
        """Return a request that refers only to what the provider has received, without invented calls.

        Some providers refuse a history in which arguments are broken, or thoughts are missing before a call.
        """
        body = self._resolved(body)
        key = "input" if isinstance(body.get("input"), list) else "messages"
        if not self._ids or not isinstance(body.get(key), list):
            return body
        kept = (self._without_calls(each) for each in objects(body[key]))
        return {**body, key: [each for each in kept if each is not None]}

    def _without_calls(self, message: Json) -> Json | None:
        if not self._ids.isdisjoint((message.get("call_id"), message.get("tool_call_id"))):
            return None
        if message.get("id") in self._ids:
            message = {key: value for key, value in message.items() if key != "id"}
        for key in ("tool_calls", "content"):
            parts = objects(message.get(key))
            left = [part for part in parts if self._ids.isdisjoint((part.get("id"), part.get("tool_use_id")))]
            if len(left) == len(parts):
                continue
            message = {name: value for name, value in message.items() if name != key}
            if left:
                message[key] = left
            elif not message.get("content"):
                return None
        return message

    def _resolved(self, body: Json) -> Json:
        conversation = conversation_id(body)
        if conversation in self._unknown:
            _, items = self._unknown.pop(conversation)
            return {**body, "input": [*items, *messages_of(body)]}
        while (before := body.get("previous_response_id")) in self._unknown:
            earlier, items = self._unknown[str(before)]
            body = {**body, "previous_response_id": earlier, "input": [*items, *messages_of(body)]}
            if earlier is None:
                del body["previous_response_id"]
        return body
