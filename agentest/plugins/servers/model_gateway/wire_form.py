"""What the gateway reads in, and changes of, the requests and answers of a model API.

`WireForm` is implemented once for each API. Requests and answers stay JSON objects of that API, because
whatever the gateway does not understand must pass through unchanged.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, NamedTuple, Protocol

from agentest.config.agents.mock_servers import Override
from agentest.domain.messages import ToolSpec
from agentest.domain.transcript import Usage
from agentest.support.http.sse import Event
from agentest.support.json_text import parse_json, well_formed
from agentest.support.lazy_dataclasses import dataclass

Json = dict[str, Any]
"""A JSON object of a model API."""
ANY_TOOL = "*"
_ENCODER = json.JSONEncoder(ensure_ascii=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """A tool call that the model asks for."""

    name: str
    arguments: Any
    """The arguments object, or what the model wrote in its place."""
    call_id: str | None = None
    problem: str | None = None
    """Why the arguments cannot be read; None if they are an object."""
    place: int = 0
    """Its place among the parts of the answer."""
    custom: bool = False
    """True for a tool that takes a text; in `arguments`, it is the argument `input`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult:
    """The result of a tool call, either read in a request of the agent or written into one."""

    name: str
    result: Any
    call_id: str | None = None
    failed: bool = False
    custom: bool = False
    """As `ModelCall.custom`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WireRequest:
    """A request of an agent to its model."""

    body: Json
    streams: bool
    model: str | None = None
    user_texts: tuple[str, ...] = ()
    """The texts of the user, oldest first."""
    instructions: str = ""
    tools: Mapping[str, ToolSpec] = field(default_factory=dict)
    """Offered tools by name."""
    ids: tuple[str, ...] = ()
    """Ids of the model's earlier answers and calls, newest first."""
    results: tuple[CallResult, ...] = ()
    """All results of tools in the request, oldest first."""
    history_texts: tuple[str, ...] = ()
    """All texts of earlier messages, in which frameworks may write ids of calls."""
    forced: str | None = None
    """The tool that the model has to call, `ANY_TOOL` for any; None if it may answer with text."""
    chained: bool = False
    """True if the provider has the history."""
    unmockable: str | None = None
    """Why calls of this request cannot be mocked; None if they can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WireAnswer:
    """One complete answer of the model, streamed or not."""

    body: Json
    """The whole response as it comes without streaming."""
    text: str = ""
    """What identifies the answer if it has no ids: its text, and its calls if they have none."""
    calls: tuple[ModelCall, ...] = ()
    ids: tuple[str, ...] = ()
    """Ids by which a later request may refer to the answer or to parts of it."""
    usage: Usage = Usage()
    incomplete: bool = False
    """True if the model ran into a limit of length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedAnswer:
    """An answer that the agent received, and what it did not receive of it.

    Messages are items of the API's history (`messages`, `input`, `contents`).
    """

    before: list[Json]
    """Hidden rounds: the model's messages with their results, which precede its last message."""
    message: list[Json]
    """The model's last message, complete."""
    owed: list[Json]
    """Results of hidden calls in `message`, as the API's history has them."""
    hidden_calls: tuple[ModelCall, ...]
    """The hidden calls in `message`."""
    shown: WireAnswer
    """What the agent received."""
    user_text: str
    """The user's text before it."""
    turn: int = 0
    answer_id: str | None = None
    """The provider's id of its last answer, to which a later request may have to refer."""

    @property
    def hides(self) -> bool:
        """True if the agent did not receive everything."""
        return bool(self.before or self.hidden_calls)


class SeenMessage(NamedTuple):
    """A message of the model in a history that the agent sends."""

    ids: tuple[str, ...]
    text: str
    """As `WireAnswer.text`."""
    user_text: str
    """The user's text before it."""
    calls: bool = False
    """True if it has calls that ids identify."""


class AnswerStream(Protocol):
    """Passes one streamed answer on to the agent, which may take several rounds with the model."""

    @property
    def text(self) -> str:
        """What identifies the answer as the agent has received it, like `WireAnswer.text`."""
        ...

    ids: list[str]
    """Ids of what it has received, but for those of the last round."""

    def feed(self, event: Event) -> bytes:
        """Take an event of the model. Returns what the agent receives at once."""
        ...

    def round(self) -> Json:
        """Return the whole answer of the current round, and begin the next.

        Raises CutStream if the model's stream has not ended.
        """
        ...

    def end(self, shown: Json, hidden: Sequence[ModelCall]) -> bytes:
        """Return the events that complete the agent's stream after the last round.

        Args:
            shown: the last round's answer without hidden calls.
            hidden: calls that the gateway answered.
        """
        ...

    def error(self, message: str) -> bytes:
        """Return an event that tells the agent's client of an error."""
        ...


class CutStream(Exception):
    """A model's stream ended before its last event. `told`: an event of the model told the agent already."""

    def __init__(self, *, told: bool = False) -> None:
        super().__init__("the model's stream ended before its last event")
        self.told = told


class WireForm(Protocol):
    """The requests and answers of one model API."""

    name: str

    def request(self, body: Json, path: str) -> WireRequest:
        """Read a request. Raises ValueError for one that the API could not accept."""
        ...

    def answer(self, body: Json) -> WireAnswer:
        """Read a complete answer."""
        ...

    def overridden(self, body: Json, override: Override) -> Json:
        """Return a request with the user's settings in place of the agent's, where the API has them."""
        ...

    def completed(self, request: WireRequest, answers: Sequence[PassedAnswer]) -> Json:
        """Return the request with everything that the agent did not receive of earlier answers.

        Returns the request's own body if nothing is missing.
        """
        ...

    def next_round(
        self, body: Json, answer: WireAnswer, results: Sequence[CallResult], *, lift: bool
    ) -> tuple[Json, list[Json]]:
        """Return the request that gives the model the results of its calls, and the messages that are new.

        Args:
            lift: True if the request must no longer force the model to call a tool.
        """
        ...

    def owed(self, results: Sequence[CallResult]) -> list[Json]:
        """Return results as parts of the API's history, to be added beside those of the agent."""
        ...

    def message(self, answer: WireAnswer) -> list[Json]:
        """Return an answer as messages of the API's history, unchanged."""
        ...

    def shown(
        self, request: WireRequest, answer: WireAnswer, hidden: Iterable[ModelCall], output_tokens: int
    ) -> Json:
        """Return the answer without hidden calls, as the agent receives it.

        Args:
            output_tokens: the model's tokens in all rounds.
        """
        ...

    def stream(self, request: WireRequest) -> AnswerStream:
        """Begin to pass a streamed answer on, with calls, and what follows them, held back until its end."""
        ...

    def error(self, status: int, message: str) -> Json:
        """Return the body of an error response."""
        ...


_OFFERED: deque[tuple[str, Mapping[str, ToolSpec]]] = deque(maxlen=8)
"""What was read last, because agents send the same tools with each request."""


def offered_tools(declarations: Iterable[Json], *schema_keys: str) -> Mapping[str, ToolSpec]:
    """Return the tools that a request declares, by name.

    Args:
        schema_keys: the keys that may have the schema of the arguments.
    """
    listed = list(declarations)
    declared = repr((schema_keys, listed))  # the order of keys tells output tools from others
    for known, tools in _OFFERED:
        if known == declared:
            return tools
    tools = {
        name: ToolSpec(
            name=name,
            description=str(each.get("description") or ""),
            parameters=next((schema for key in schema_keys if (schema := entry(each, key))), {}),
        )
        for each in listed
        if isinstance(name := each.get("name"), str) and name
    }
    _OFFERED.append((declared, tools))
    return tools


def tools_in(data: bytes) -> set[str]:
    """Return the names of the tools that a request in an unknown form offers."""
    if b'"tools"' not in data and b'"functions"' not in data:
        return set()
    try:
        return set(_names_in(json.loads(data), offered=False))
    except (ValueError, RecursionError):
        return set()


def _names_in(value: Any, *, offered: bool) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _names_in(item, offered=offered)
    elif isinstance(value, dict):
        if offered and isinstance(name := value.get("name"), str):
            yield name
        for key, item in value.items():
            yield from _names_in(item, offered=offered or key in ("tools", "functions"))


def parsed_arguments(text: Any) -> tuple[Any, str | None]:
    """Return arguments that an API sends as JSON text, and the problem if they are not an object."""
    if isinstance(text, Mapping):
        return dict(text), None
    if not isinstance(text, str) or not text.strip():
        return {}, None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        return text, f"the arguments are not JSON: {error}"
    return (value, None) if isinstance(value, dict) else (value, "the arguments are not a JSON object")


def model_of(body: Json) -> str | None:
    """Return the model that a request or an answer names."""
    model = body.get("model") or body.get("modelVersion")
    return model if isinstance(model, str) else None


def result_text(result: CallResult) -> str:
    """Return a result as the text that most APIs expect."""
    return result.result if isinstance(result.result, str) else json.dumps(result.result, ensure_ascii=False)


def parsed_result(content: Any) -> Any:
    """Return a result that an agent sent as text: the JSON value in it, else the text."""
    if not isinstance(content, str):
        return content
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return content


def texts_of(content: Any) -> str:
    """Return the text of a message's content: a text, or a list of parts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(
        text for part in parts if isinstance(part, dict) and isinstance(text := part.get("text"), str)
    )


def objects(value: Any) -> list[Json]:
    """Return the objects in a list; other values are ignored."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def same_text(one: str, other: str) -> bool:
    """Return True if texts differ in white space alone, or one contains the other."""
    one, other = normalized(one), normalized(other)
    return one == other or bool(one and other and (one in other or other in one))


def normalized(text: str) -> str:
    """Return a text with single spaces."""
    return " ".join(text.split())


def object_of(event: Event) -> Json | None:
    """Return the JSON object of an event; None if it has another value."""
    try:
        value = parse_json(event.data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def entry(value: Any, *keys: str) -> Json:
    """Return the object under nested keys; {} if there is none."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def sse(data: Json | str, name: str | None = None) -> bytes:
    """Return an event of a stream; a text of several lines has a `data` line for each."""
    written = data.replace("\n", "\ndata: ").encode() if isinstance(data, str) else encoded(data)
    return b"%bdata: %b\n\n" % (f"event: {name}\n".encode() if name else b"", written)


def encoded(value: Json) -> bytes:
    """Return a body as it is sent."""
    return well_formed(_ENCODER.encode(value)).encode()


def count(value: Any) -> int:
    """Return a number of tokens; 0 for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


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
    for is_of in (_has_id_of, _has_text_of, _has_part_of_text_of):  # the best evidence first
        for place in range(len(seen) - 1, -1, -1):
            message = seen[place]
            if message is None or found[place] is not None:
                continue
            answer = next((each for each in reversed(left) if is_of(message, each)), None)
            if answer is not None:
                left.remove(answer)
                found[place] = answer
    return found


def _has_id_of(message: SeenMessage, answer: PassedAnswer) -> bool:
    return any(known in answer.shown.ids for known in message.ids)


def _has_text_of(message: SeenMessage, answer: PassedAnswer) -> bool:
    # An output tool's arguments are written as JSON with other white space.
    return (
        _may_be_found_by_text(message)
        and "".join(answer.shown.text.split()) == "".join(message.text.split())
        and same_text(answer.user_text, message.user_text)
    )


def _has_part_of_text_of(message: SeenMessage, answer: PassedAnswer) -> bool:
    return (
        _may_be_found_by_text(message)
        and same_text(answer.user_text, message.user_text)
        and same_text(answer.shown.text, message.text)
    )


def _may_be_found_by_text(message: SeenMessage) -> bool:
    return not message.calls and bool(message.text.strip())
