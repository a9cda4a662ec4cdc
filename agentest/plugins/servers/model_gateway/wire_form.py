"""What the gateway reads in, and changes of, the requests and answers of a model API.

`WireForm` has what is the same for each API, and a subclass the rest. Requests and answers stay JSON objects
of that API, because whatever the gateway does not understand must pass through unchanged. Nothing changes
requests and answers once they are read. They are not frozen only because that took a tenth of a call.
"""

from __future__ import annotations

import json
import marshal
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import lru_cache, partial
from typing import Any, NamedTuple

from agentest.agents.json_reader import read_arguments
from agentest.config.agents.companion_servers import Override
from agentest.domain.messages import ToolSpec
from agentest.domain.transcript import ToolCall, Usage
from agentest.plugins.protocols.model_messages import (
    CLIENT_TOOLS,
    Json,
    MessageHistory,
    MessagePart,
    ReadRequest,
    count,
    entry,
    inner,
    instructions_of,
    messages_of,
    objects,
    read_history,
    read_message,
    repeats_key,
    texts_of,
    usage_of,
)
from agentest.support.http.sse import Event
from agentest.support.json_text import encoded, json_or
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import on_one_line

ANY_TOOL = "*"
CUT = "the model's stream ended before its last event"
provider_call = partial(ToolCall, mocked=False, turn_index=0)  # makes a call that the provider made
_SHORT_ID = 5
_VERSION = re.compile(r"^\w++:|(_use)?_preview.*|_?20\d\d.*|^(function|custom)$")
"""What the types of the provider's tools have around their names, and the types of the agent's."""
_CUT = {"finish_reason": "length", "status": "incomplete"}
_CUT |= {"stop_reason": "max_tokens", "finishReason": "MAX_TOKENS"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """A tool call that the model asks for."""

    name: str
    arguments: Any  # the arguments object, or what the model wrote in its place
    call_id: str | None = None
    problem: str | None = None  # why the arguments cannot be read; None if they are an object
    place: int = 0  # its place among the parts of the answer
    kind: str = ""  # the type of its part


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult:
    """The result of a tool call, either read in a request of the agent or written into one."""

    name: str
    result: Any
    call_id: str | None = None
    failed: bool = False
    kind: str = ""  # the type of the call's part


@dataclass(slots=True, kw_only=True)
class WireRequest:
    """A request of an agent to its model."""

    body: Json
    streams: bool
    model: str | None = None
    history: MessageHistory = MessageHistory()
    told: str = ""  # the instructions beside its messages
    tools: Mapping[str, ToolSpec] = field(default_factory=dict)
    named: tuple[str, ...] = ()  # ids of an earlier answer and a conversation that stand beside its messages
    written: Callable[[Json], Sequence[CallResult]] = lambda _: ()  # reads results that are written as text
    forced: str | None = None
    """The tool that the model has to call, `ANY_TOOL` for any; None if it may answer with text."""
    chained: bool = False  # True if the provider has the history
    unmockable: str | None = None  # why calls of this request cannot be mocked; None if they can
    stored_tools: bool = False  # True if the provider may add tools, of a stored prompt or a thread

    @property
    def may_call(self) -> bool:
        """True if the answer may contain calls."""
        return bool(self.tools) or self.stored_tools

    @property
    def instructions(self) -> str:
        return "\n\n".join(filter(None, (self.told, *self.history.instructions)))

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the model's earlier answers and calls, newest first."""
        return (*self.named, *reversed(self.history.ids))

    @property
    def user_texts(self) -> tuple[str, ...]:
        """The texts of the user, oldest first."""
        return self.history.user_texts

    @property
    def results(self) -> Sequence[CallResult]:
        """All results of tools in the request, oldest first."""
        return self.written(self.body) or [_result(each, self.history.names) for each in self.history.results]


@dataclass(slots=True, kw_only=True)
class WireAnswer:
    """One complete answer of the model, streamed or not."""

    body: Json  # the whole response as it comes without streaming
    text: str = ""  # what identifies the answer if it has no ids: its text, and its calls if they have none
    calls: tuple[ModelCall, ...] = ()
    names: Sequence[str] = ()  # the tools of all calls that `called_in` finds
    made: Sequence[ToolCall] = ()
    """Calls that the provider made itself, or wants approval for."""
    ids: tuple[str, ...] = ()  # ids by which a later request may refer to the answer or to parts of it
    usage: Usage = Usage()
    message: list[Json] = field(default_factory=list)
    """The answer as messages of the API's history, unchanged."""

    @property
    def is_cut(self) -> bool:
        """True if the model ran into a limit of length."""
        parts = self.body, *objects(self.body.get("choices"))[:1], *objects(self.body.get("candidates"))[:1]
        return any(part.get(key) == value for part in parts for key, value in _CUT.items())


@dataclass(slots=True, kw_only=True)
class PassedAnswer:
    """An answer that the agent received, and what it did not receive of it.

    Messages are items of the API's history (`messages`, `input`, `contents`).
    """

    before: list[Json]
    """Hidden rounds: the model's messages with their results, which precede its last message."""
    message: list[Json]
    owed: list[Json]  # results of hidden calls in `message`, as the API's history has them
    hidden_calls: tuple[ModelCall, ...]
    shown: WireAnswer
    user_text: str
    tools: Mapping[str, ToolSpec] = field(default_factory=dict)  # those that the request offered
    turn: int = 0
    answer_id: str | None = None
    """The provider's id of its last answer, to which a later request may have to refer."""
    forgotten: bool = False  # True if the model is not to be given what the agent did not receive

    @property
    def hides(self) -> bool:
        """True if the agent did not receive everything, and the model is to be given the rest."""
        return not self.forgotten and bool(self.before or self.hidden_calls)

    @property
    def all_hidden(self) -> list[tuple[str, str | None]]:
        """Name and id of each hidden call."""
        before = [(call.name, call.id) for each in self.before for call in read_message(each).calls]
        return [*before, *((call.name, call.call_id) for call in self.hidden_calls)]

    def has_calls_in(self, texts: Sequence[str]) -> bool:
        """Return True if a text contains the id of a call that the agent received."""
        known = [call.call_id for call in self.shown.calls if call.call_id and len(call.call_id) > _SHORT_ID]
        return any(call_id in text for call_id in known for text in texts)


class SeenMessage(NamedTuple):
    """A message of the model in a history that the agent sends."""

    ids: tuple[str, ...]
    text: str
    user_text: str
    calls: bool = False  # True if it has calls that ids identify


class AnswerStream(ABC):
    """Passes one streamed answer on to the agent, which may take several rounds with the model."""

    def __init__(self) -> None:
        self.text = ""  # what identifies the answer as the agent has received it, like `WireAnswer.text`
        self.ids: list[str] = []  # ids of what it has received, but for those of the last round
        self.told = False  # True if an event told the agent of an error of the model
        self.called = False  # True if an event of the round has a call, wherever

    def feed(self, event: Event) -> bytes:
        """Take an event of the model. Returns what the agent receives at once."""
        data = json_or(event.data)
        if not self.called and any(map(event.data.__contains__, ("unction", "ool", "_call", "\\u00"))):
            self.called = any(called_in(data))
        return self.take(data, event) if isinstance(data, dict) else sse(event.data, event.name)

    @abstractmethod
    def take(self, data: Json, event: Event) -> bytes:
        """Take an event with its data, as `feed`."""

    @abstractmethod
    def round(self) -> Json:
        """Return the whole answer of the current round, and begin the next.

        Raises CutStream if the model's stream has not ended.
        """

    @abstractmethod
    def end(self, shown: Json, hidden: Sequence[ModelCall]) -> bytes:
        """Return the events that complete the agent's stream after the last round.

        Args:
            shown: the last round's answer without hidden calls.
            hidden: calls that the gateway answered.
        """

    @abstractmethod
    def error(self, message: str) -> bytes:
        """Return an event that tells the agent's client of an error."""


def released(
    held: Iterable[tuple[int, Json]], hidden: Collection[int], first: int, key: str
) -> tuple[list[Json], int]:
    """Return events that were held back, but for those at hidden places, and the next index.

    Args:
        held: places with their events.
        first: the index of the first place that is shown, under `key` of its events.
    """
    shown = [(place, data) for place, data in held if place not in hidden]
    indexes = {place: at for at, place in enumerate(sorted({place for place, _ in shown}), first)}
    return [{**data, key: indexes[place]} for place, data in shown], first + len(indexes)


class CutStream(Exception):
    """A model's stream ended before its last event."""


class WireForm(ABC):
    """The requests and answers of one model API."""

    name: str
    history_key = "messages"
    identifies_calls = False  # True if calls need not have ids, so that an answer is identified by them, too
    finds_calls_in_text = False  # True if frameworks that use this API write calls with their ids as text
    schema_keys: tuple[str, ...] = ("parameters",)
    """The keys of a declared tool that may have the schema of its arguments."""
    token_keys = ("prompt_tokens", "completion_tokens", "total_tokens")
    """The numbers of tokens in an answer's usage: of the prompt, the output, and both, if it has that."""
    previous_at: tuple[str, ...] = ("",)
    """The keys of the id of an answer after which the provider continues a history that it has."""
    effort_key = ""  # the object with the `effort` of reasoning, in APIs without `reasoning_effort`

    def request(self, body: Json, path: str, read: ReadRequest | None = None) -> WireRequest:
        history, known = read or (read_history(messages_of(body), self.text_of), {})
        if path not in known:
            known[path] = {
                "model": model_of(body),
                "streams": body.get("stream") is True,
                "told": instructions_of(body),
                "tools": self._offered(marshal.dumps((body.get("tools"), body.get("functions")), 2)),
                **self.facts(body, path),
            }
        return WireRequest(body=body, history=history, **known[path])

    @lru_cache(8)  # noqa: B019 - forms are few. Agents send the same tools with each request.
    def _offered(self, written: bytes) -> Mapping[str, ToolSpec]:
        # The key is bytes because the order of their keys tells output tools from others.
        return {
            name: ToolSpec(
                name=name,
                description=str(each.get("description") or ""),
                parameters=next((schema for key in self.schema_keys if (schema := entry(each, key))), {}),
            )
            for each in self.declared(dict(zip(("tools", "functions"), marshal.loads(written), strict=True)))
            # Tools of the provider have a type in place of a name, such as `web_search_preview`.
            if (name := str(each.get("name") or _VERSION.sub("", str(each.get("type", "")))))
        }

    def declared(self, body: Json) -> Iterable[Json]:
        """Return the declarations of the tools that a request offers."""
        # Some stand in a group, such as a namespace of Responses.
        return [each for tool in objects(body.get("tools")) for each in objects(tool.get("tools")) or [tool]]

    @abstractmethod
    def facts(self, body: Json, path: str) -> Json:
        """Return the fields of `WireRequest` beside the messages that this API writes in its own way."""

    def answer(self, body: Json) -> WireAnswer:
        written = self.message(body)
        messages = [read_message(each, place) for place, each in enumerate(written)]
        parts = [part for each in messages for part in each.parts]
        calls = tuple([_model_call(part) for part in parts if part.kind == "call"])
        answer = WireAnswer(
            body=body,
            text=self.text_of(parts),
            calls=calls,
            names=[call.name for call in calls],
            ids=(*self.ids_of(body), *[known for each in messages for known in each.ids]),
            usage=usage_of(body),
            message=written,
        )
        if made := self.made(body):
            ids = {each.call_id for each in made if each.call_id}
            answer.made, answer.calls = made, tuple(each for each in calls if each.call_id not in ids)
        return answer

    @abstractmethod
    def made(self, body: Json) -> Sequence[ToolCall]:
        """Return the calls in an answer that the provider made itself, as `WireAnswer.made`."""

    def ids_of(self, _: Json) -> Iterable[str]:
        """Return further ids by which a later request may refer to an answer, or refers to one."""
        return ()

    def is_of_model(self, message: Json) -> bool:
        """Return True for a message that the model wrote."""
        return read_message(message).role == "assistant"

    def seen(
        self, groups: Iterable[Sequence[Json]], answers: Sequence[PassedAnswer]
    ) -> list[SeenMessage | None]:
        """Return what identifies each message of a history, which may be several items or contents.

        None stands for messages that the model did not write.
        """
        seen: list[SeenMessage | None] = []
        user_text = ""
        for group in groups:
            if not group or not self.is_of_model(group[0]):
                said = "".join(each.text for each in map(read_message, group) if each.role == "user")
                user_text = said or user_text
                seen.append(None)
                continue
            messages = [read_message(each) for each in group if self.is_of_model(each)]
            parts = [part for each in messages for part in each.parts]
            text, ids = self.text_of(parts), [known for each in messages for known in each.ids]
            calls = any(part.kind == "call" and part.id for part in parts)
            if self.finds_calls_in_text and not ids:
                ids = [known for each in answers for known in each.shown.ids if known in text]
            seen.append(SeenMessage(tuple(ids), text, user_text, calls=calls))
        return seen

    def text_of(self, parts: Iterable[MessagePart]) -> str:
        """Return what identifies an answer, as `WireAnswer.text`."""
        texts = "".join([part.value for part in parts if part.kind == "text"])
        if not self.identifies_calls:
            return texts
        calls = [part for part in parts if part.kind == "call"]
        made = [f"{call.name}({json.dumps(call.value or {}, sort_keys=True)})" for call in calls]
        return " ".join([texts, *made])

    def overridden(self, body: Json, override: Override) -> Json:
        """Return a request with the user's settings in place of the agent's, where the API has them."""
        settings = override.settings
        if self.effort_key:
            settings.pop("seed", None)
            if effort := settings.pop("reasoning_effort", None):
                settings[self.effort_key] = {**entry(body, self.effort_key), "effort": effort}
        return {**body, **settings}

    def completed(self, request: WireRequest, answers: Sequence[PassedAnswer]) -> Json:
        """Return the request with everything that the agent did not receive of earlier answers.

        Returns the request's own body if nothing is missing.
        """
        if not any(answer.hides or answer.forgotten for answer in answers):
            return request.body
        if request.chained:
            return self._continued(request, answers)
        groups = self.grouped(objects(request.body.get(self.history_key)), answers)
        was = zip(groups, matched(answers, self.seen(groups, answers)), strict=True)
        return {**request.body, self.history_key: [*self.put_back(was)]}

    def _continued(self, request: WireRequest, answers: Sequence[PassedAnswer]) -> Json:
        body, owed = request.body, list[Json]()
        before = entry(body, *self.previous_at[:-1]).get(self.previous_at[-1])
        called = (before, *(part.id for part in request.history.results))
        named = {known for known in called if isinstance(known, str)}
        for each in answers:
            if named.isdisjoint(each.shown.ids):
                continue
            owed += each.owed
            if before in each.shown.ids and each.answer_id:
                body = self.following(body, each.answer_id) or body
        messages = messages_of(body)
        return {**body, self.history_key: self.in_messages(owed, messages)} if owed else body

    def following(self, body: Json, answer_id: Any) -> Json | None:
        """Return a request that continues the provider's history after an answer; None if it has none."""
        *within, key = self.previous_at
        if not (held := entry(body, *within)).get(key):
            return None
        return {**body, within[0]: {**held, key: answer_id}} if within else {**held, key: answer_id}

    def grouped(self, messages: Sequence[Json], _: Sequence[PassedAnswer]) -> list[list[Json]]:
        """Return the messages of a history, those together that may be one answer."""
        return [[each] for each in messages]

    @abstractmethod
    def put_back(self, groups: Iterable[tuple[list[Json], PassedAnswer | None]]) -> Iterator[Json]:
        """Yield the messages of a history with what the agent did not receive of those answers."""

    def next_round(
        self, body: Json, answer: WireAnswer, results: Sequence[CallResult], *, lift: bool
    ) -> tuple[Json, list[Json]]:
        """Return the request that gives the model the results of its calls, and the messages that are new.

        Args:
            lift: True if the request must no longer force the model to call a tool.
        """
        owed = self.in_messages(self.owed(results))
        new = [*answer.message, *owed]
        following = self.following(body, answer.body.get("id"))
        history = owed if following else [*messages_of(body), *new]
        changed = {**(following or body), self.history_key: history}
        return {**changed, **self.lifted(body)} if lift else changed, new

    def in_messages(self, owed: list[Json], after: Sequence[Json] = ()) -> list[Json]:
        """Return results as messages of the history, before the messages that come after them."""
        return [*owed, *after]

    def lifted(self, body: Json) -> Json:
        """Return the fields of a request that no longer forces the model to call a tool."""
        del body
        return {"tool_choice": "auto"}

    @abstractmethod
    def owed(self, results: Sequence[CallResult]) -> list[Json]:
        """Return results as parts of the API's history, to be added beside those of the agent."""

    @abstractmethod
    def message(self, body: Json) -> list[Json]:
        """Return an answer as messages of the API's history, unchanged."""

    def shown(
        self, request: WireRequest, answer: WireAnswer, hidden: Iterable[ModelCall], output_tokens: int
    ) -> Json:
        """Return the answer without hidden calls, as the agent receives it.

        Args:
            output_tokens: the model's tokens in all rounds.
        """
        del request
        body, left_out = answer.body, {call.place for call in hidden}
        shown = {**body, **self.without(body, left_out)} if left_out else dict(body)
        prompt, output, total = self.token_keys
        for key in ("usage", "usageMetadata"):
            if isinstance(usage := body.get(key), dict):
                counted = {output: output_tokens - count(usage.get("thoughtsTokenCount"))}
                if total:
                    counted[total] = count(usage.get(prompt)) + output_tokens
                shown[key] = {**usage, **counted}
        return shown

    @abstractmethod
    def without(self, body: Json, places: Collection[int]) -> Json:
        """Return the fields of an answer that have the calls at these places, without them."""

    @abstractmethod
    def stream(self, request: WireRequest) -> AnswerStream:
        """Begin to pass a streamed answer on, with calls, and what follows them, held back until its end."""

    def error(self, status: int, message: str) -> Json:
        """Return the body of an error response: as of OpenAI's APIs, if the API has no other form."""
        kind = "invalid_request_error" if status < 500 else "server_error"
        return {"error": {"message": message, "type": kind, "param": None, "code": "agentest_gateway"}}


def _model_call(part: MessagePart) -> ModelCall:
    arguments, problem = read_arguments(part.value)
    if isinstance(part.value, str) and repeats_key(part.value):
        arguments, problem = part.value, "the arguments have a key twice"
    return ModelCall(
        name=part.name,
        arguments=arguments,
        call_id=part.id,
        problem=problem,
        place=part.place,
        kind=str(part.raw.get("type", "")),
    )


def _result(part: MessagePart, names: Mapping[str, str]) -> CallResult:
    response = inner(part.raw, "functionResponse").get("response")
    value = part.value
    if isinstance(value, list):  # parts with texts and pictures, or what a shell wrote
        value = texts_of(value) or [each for each in objects(value) if "type" not in each] or ""
    return CallResult(
        name=part.name or names.get(str(part.id), ""),
        result=json_or(value, value) if isinstance(value, str) else value,
        call_id=part.id,
        failed=part.raw.get("is_error") is True or (isinstance(response, dict) and "error" in response),
    )


def model_of(body: Json) -> str | None:
    """Return the model that a request or an answer names."""
    model = body.get("model") or body.get("modelVersion")
    return model if isinstance(model, str) else None


def result_text(result: CallResult) -> str:
    """Return a result as the text that most APIs expect."""
    return result.result if isinstance(result.result, str) else json.dumps(result.result, ensure_ascii=False)


def same_text(one: str, other: str) -> bool:
    """Return True if texts differ in white space alone, or one contains the other."""
    one, other = on_one_line(one), on_one_line(other)
    return one == other or bool(one and other and (one in other or other in one))


def named_in(text: str, names: Iterable[str]) -> str | None:
    """Return the last name of a tool in a text, as in `api.find()`. Letters of other scripts may be its."""
    alike = {each: "".join(rf"(?:{re.escape(one)}|[^\W\d_a-zA-Z])" for one in each) for each in names}
    letters = set(text.casefold())
    written = ((rf"(?<!\w){alike[each]}(?!\w)", each) for each in alike if letters & {*each.casefold()})
    found = ((at.end(), each) for of, each in written for at in re.finditer(of, text, re.IGNORECASE))
    return max(found, default=(0, None))[1]


def sse(data: Json | str, name: str | None = None) -> bytes:
    """Return an event of a stream; a text of several lines has a `data` line for each."""
    written = data.replace("\n", "\ndata: ").encode() if isinstance(data, str) else encoded(data)
    return b"%bdata: %b\n\n" % (f"event: {name}\n".encode() if name else b"", written)


def matched(answers: Sequence[PassedAnswer], seen: Sequence[SeenMessage | None]) -> list[PassedAnswer | None]:
    """Return the answer that each message of a history was.

    An id decides. Without ids it is an answer with this text after this text of the user, and the last
    messages are the last answers: the same text may occur in several turns, and agents forget the oldest
    messages first.

    Args:
        seen: None for messages that the model did not write.
    """
    found: list[PassedAnswer | None] = [None] * len(seen)
    left = list(answers)
    for least in (3, 2, 1):
        for place in range(len(seen) - 1, -1, -1):
            message = seen[place]
            if message is None or found[place] is not None:
                continue
            answer = next((each for each in reversed(left) if _evidence(message, each) >= least), None)
            if answer is not None:
                left.remove(answer)
                found[place] = answer
    return found


def _evidence(message: SeenMessage, answer: PassedAnswer) -> int:
    """Return how much shows that a message was this answer: 3 for an id, 0 for nothing."""
    if any(known in answer.shown.ids for known in message.ids):
        return 3
    if message.calls or not message.text.strip() or not same_text(answer.user_text, message.user_text):
        return 0
    # An output tool's arguments are written as JSON with other white space.
    if "".join(answer.shown.text.split()) == "".join(message.text.split()):
        return 2
    return int(same_text(answer.shown.text, message.text))


_CALLS = re.compile(r"(?:[tT]ool|[fF]unction)_?(?:[cC]all|[uU]se)s?")
"""Keys of calls in any API, such as `tool_calls`, `functionCall` and `toolUse`."""
COPIES = {"tools", "tool_choice", "instructions", "prompt", "input", "text", "metadata"}
COPIES |= {"provider_specific_fields"}
"""Keys of what an answer repeats of its request, or a proxy of the answer."""


def called_in(value: Any) -> Iterator[str]:
    """Yield the names in all tool calls of an answer of any API, without what it repeats of its request."""
    if isinstance(value, list):
        for each in value:
            yield from called_in(each)
    if not isinstance(value, dict):
        return
    if (kind := value.get("type")) in ("function_call", "custom_tool_call", "tool_use", *CLIENT_TOOLS):
        yield str(value.get("name") or CLIENT_TOOLS.get(kind, ""))
        return
    for key, each in value.items():
        if _CALLS.fullmatch(key):
            for call in objects(each if isinstance(each, list) else [each]):
                if "toolType" not in call:  # Gemini shows the calls of Google's own tools under `toolCall`
                    yield str((entry(call, "function") or entry(call, "custom") or call).get("name") or "")
        elif key not in COPIES:
            yield from called_in(each)
