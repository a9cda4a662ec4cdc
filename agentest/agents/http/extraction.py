"""What the paths of an agent's configuration find in one answer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentest.agents.call_mapping import ToldCalls
from agentest.agents.http.cookies import CookieJar
from agentest.agents.json_reader import read_any, read_text, shown
from agentest.agents.reply_paths import no_place, nothing_found, text_of, usual_place, where_text_is
from agentest.config.agents.http import HttpTemplateAgent
from agentest.config.agents.http_requests import Source
from agentest.domain.transcript import Usage
from agentest.support.errors import AgentError
from agentest.support.http.sse import Event
from agentest.support.json_path import JsonPath

_NEWLINE = "\n"


def joined_texts(texts: Sequence[str]) -> str:
    """Events that are text, joined; where each of them is a JSON text, what they say."""
    try:
        read = [json.loads(text) for text in texts]
    except (ValueError, RecursionError):
        return "".join(texts)
    return "".join(read) if read and all(isinstance(text, str) for text in read) else "".join(texts)


def guessed_of_stream(values: Sequence[Any], texts: Sequence[str]) -> str:
    """The reply of a stream for which neither `delta` nor `reply` was given. Raises AgentError."""
    # A text may look like a number, or be the word null.
    if values and not any(isinstance(value, dict | list) for value in values):
        return joined_texts(texts)
    raise AgentError(
        "the agent answers with a stream of events: say by `delta`, a JMESPath, where a piece of the reply "
        f"stands in each, or by `reply` where the whole is; {where_text_is(united(values))}: "
        f"{shown(_NEWLINE.join(texts))}"
    )


def united(values: Sequence[Any]) -> Any:
    """Events as one, so that each path is named once."""
    united: dict[str, Any] = {}
    for value in values:
        if isinstance(value, dict):
            united |= {key: item for key, item in value.items() if key != "event" and text_of(item)}
    return united


_PROMPT = ("prompt_tokens", "input_tokens", "promptTokens", "inputTokens", "promptTokenCount", "prompt")
_COMPLETION = (
    "completion_tokens",
    "output_tokens",
    "completionTokens",
    "outputTokens",
    "candidatesTokenCount",
    "completion",
)
_CACHED = ("cached_tokens", "cachedTokens", "cachedInputTokens", "cache_read_input_tokens", "cached")
_DETAILS = ("prompt_tokens_details", "input_tokens_details", "inputTokenDetails")


def read_usage(reported: Any) -> Usage | None:
    """Tokens that an answer tells of; None for what tells of none."""
    if not isinstance(reported, Mapping):
        return None
    details: Mapping[str, Any] = next(
        (reported[name] for name in _DETAILS if isinstance(reported.get(name), Mapping)), {}
    )
    prompt, completion = _count(reported, _PROMPT), _count(reported, _COMPLETION)
    if prompt is None and completion is None:
        return None
    return Usage(prompt or 0, completion or 0, _count(reported, _CACHED) or _count(details, _CACHED) or 0)


def _count(reported: Mapping[str, Any], names: Sequence[str]) -> int | None:
    values = (reported.get(name) for name in names)
    return next((v for v in values if isinstance(v, int) and not isinstance(v, bool) and v >= 0), None)


class Sources:
    """Where the values of names stand."""

    def __init__(self, sources: Mapping[str, Source]) -> None:
        self._sources = sources
        self._paths = {name: JsonPath(source.path) for name, source in sources.items() if source.path}
        self._patterns = {n: re.compile(source.regex) for n, source in sources.items() if source.regex}

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._sources)

    def in_headers(self, headers: Mapping[str, str]) -> dict[str, Any]:
        """What the headers of an answer tell."""
        wanted = {name: source.header for name, source in self._sources.items() if source.header}
        return {name: headers[header] for name, header in wanted.items() if header in headers}

    def in_piece(self, piece: Piece) -> dict[str, Any]:
        """What an answer or an event tells."""
        found = {name: piece.find(path) for name, path in self._paths.items()}
        return {name: value for name, value in found.items() if value not in (None, "", False)}

    def in_text(self, text: str) -> dict[str, Any]:
        """What regular expressions find in the text of an answer."""
        found = {name: pattern.search(text) for name, pattern in self._patterns.items()}
        return {name: match[1] for name, match in found.items() if match}

    def in_jar(self, jar: CookieJar) -> dict[str, Any]:
        """What cookies tell."""
        wanted = {name: source.cookie for name, source in self._sources.items() if source.cookie}
        found = {name: jar.value(cookie) for name, cookie in wanted.items()}
        return {name: value for name, value in found.items() if value is not None}

    def missing(self, name: str, key: str, nothing_for: Callable[[str, JsonPath], str]) -> str:
        """What to say where the value of a name, which `key` asks for, was not found.

        Args:
            nothing_for: says it of a key and its path.
        """
        if name in self._paths:
            return nothing_for(key, self._paths[name])
        return f"`{key}: {self._sources[name].words}` finds nothing in the agent's answer"


_ERROR_EVENT = "error"
"""The name of events that tell of an error, where no path says what does."""
SESSION = "session_id"
"""The name of the session's id among the values that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPaths:
    """Where things stand in an agent's answers."""

    reply: JsonPath | None
    delta: JsonPath | None
    done: JsonPath | None
    tool_calls: JsonPath | None
    error: JsonPath | None
    usage: JsonPath
    kept: Sources
    """The session's id, and what `save` names."""

    @property
    def are_texts(self) -> bool:
        """Whether what comes is asked for as text: `delta` or `reply` is `@`."""
        return _is_all(self.delta) or _is_all(self.reply)


def paths_of(config: HttpTemplateAgent) -> AnswerPaths:
    """The paths of a configuration, compiled."""

    def path(text: str | None) -> JsonPath | None:
        return None if text is None else JsonPath(text)

    session = {SESSION: config.session} if config.session else {}
    return AnswerPaths(
        reply=path(config.reply),
        delta=path(config.delta),
        done=path(config.done),
        tool_calls=path(config.tool_calls),
        error=path(config.error),
        usage=JsonPath(config.usage),
        kept=Sources({**session, **config.save}),
    )


class Gathering:
    """One answer as it is read: whole, or event by event."""

    def __init__(self, paths: AnswerPaths) -> None:
        self._paths = paths
        self._values: list[Any] = []
        self._texts: list[str] = []
        self._deltas: list[str] = []
        self._reply: str | None = None
        self._streamed = False
        self.calls = ToldCalls()
        self.kept: dict[str, Any] = {}
        """Name → value, as far as the answer has told."""
        self.usage = Usage()
        self.is_done = False
        """Whether the event came that is the last one."""
        self.guessed: JsonPath | None = None
        """Where the reply was found, as no path says it."""

    @property
    def answer(self) -> Any:
        """The JSON value or the text that came; of a stream a list of them."""
        return self._values if self._streamed else self._values[0] if self._values else None

    @property
    def shown(self) -> str:
        """What came, for people."""
        return shown("\n".join(self._texts) if self._streamed else self.answer)

    def nothing_for(self, key: str, path: JsonPath) -> str:
        """What to say where a path has found nothing."""
        events = united(self._values) if self._streamed else None
        return nothing_found(key, path, self.shown if self._streamed else self.answer, events)

    def note_headers(self, headers: Mapping[str, str]) -> None:
        """Keep what the headers of the answer tell."""
        self.kept |= self._paths.kept.in_headers(headers)

    def note_text(self, text: str) -> None:
        """Keep what regular expressions find in the answer's text."""
        self.kept |= self._paths.kept.in_text(text)

    def take_answer(self, piece: Piece) -> None:
        """Read a whole answer. Raises AgentError for one that tells of an error."""
        self._values = [piece.value]
        path = self._paths.reply
        if path is None and _is_all(self._paths.delta) and isinstance(piece.whole, str):
            path = self._paths.delta
        if path:
            self._reply = text_of(piece.find(path))
        self._look(piece)

    def take_event(self, piece: Piece) -> bool:
        """Read an event of a stream; whether it has text of the reply. Raises AgentError."""
        self._streamed = True
        self.is_done = bool(self._paths.done and piece.find(self._paths.done))
        if str(piece.whole).strip() == DONE:
            return False
        self._values.append(piece.value)
        self._texts.append(str(piece.whole))
        self.note_text(str(piece.whole))
        came = self._take_text(piece)
        self._look(piece)
        return came

    def _take_text(self, piece: Piece) -> bool:
        """Add a piece of the reply, or note the whole; an event is never both."""
        paths = self._paths
        if not paths.delta and not paths.reply:
            return bool(piece.whole) and isinstance(piece.value, str)
        if paths.delta and (delta := _said(piece.find(paths.delta))):
            self._deltas.append(delta)
            return True
        if paths.reply and (reply := _said(piece.find(paths.reply))):
            self._reply = reply
            return True
        return False

    def _look(self, piece: Piece) -> None:
        """Calls first: what an agent did before it failed stays in the record."""
        paths = self._paths
        if paths.tool_calls:
            self.calls.take(piece.find(paths.tool_calls))
        self.kept |= paths.kept.in_piece(piece)
        if (usage := read_usage(piece.find(paths.usage))) is not None:
            self.usage = usage
        if paths.error and (told := piece.find(paths.error)):
            raise AgentError(f"the agent reports an error (`error: {paths.error.text}`): {shown(told)}")
        if paths.error is None and piece.name == _ERROR_EVENT:
            raise AgentError(f"the agent reports an error (event `{_ERROR_EVENT}`): {shown(piece.whole)}")

    def text(self) -> str | None:
        """The reply; None where the agent has called tools and said nothing. Raises AgentError for none."""
        text = self._text()
        if text is None and not self.calls:
            raise AgentError(self._nothing())
        return text

    def _text(self) -> str | None:
        paths = self._paths
        if self._reply is not None:
            return joined_texts([self._reply]) if self._streamed and _is_all(paths.reply) else self._reply
        if self._deltas:
            return joined_texts(self._deltas) if _is_all(paths.delta) else "".join(self._deltas)
        if paths.reply or (self._streamed and paths.delta):
            return None
        return self._guess()

    def _guess(self) -> str | None:
        try:
            if self._streamed:
                return guessed_of_stream(self._values, self._texts)
            self.guessed = usual_place(self.answer)
            if self.guessed is None:
                raise AgentError(no_place(self.answer))
        except AgentError:
            if self.calls:
                return None
            raise
        return text_of(self.guessed.find(self.answer))

    def _nothing(self) -> str:
        paths = self._paths
        key, path = ("delta", paths.delta) if self._streamed and paths.delta else ("reply", paths.reply)
        assert path is not None
        return self.nothing_for(key, path)


def _is_all(path: JsonPath | None) -> bool:
    return path is not None and path.is_all


def _said(found: Any) -> str:
    """What a path has found in an event as text: `false` is what a condition gives that does not hold."""
    return "" if found is False else text_of(found) or ""


DONE = "[DONE]"


@dataclass(frozen=True, slots=True)
class Piece:
    """A JSON value or a text, and what `@` stands for in it."""

    value: Any
    whole: Any
    """Of an event the text as it came, of an answer its value."""
    name: str | None = None
    """The event's; None: it is none with a name."""

    def find(self, path: JsonPath) -> Any:
        """What stands at a path; None for nothing.

        An event that is no object has the keys `event` and `data`, beside being itself.
        """
        if path.is_all:
            return self.whole
        found = path.find(self.value)
        if found is None and self.name is not None and not isinstance(self.value, Mapping):
            return path.find({"event": self.name, "data": self.value})
        return found


def of_answer(value: Any, text: str | None = None) -> Piece:
    """A whole answer; `text` is what `@` stands for in it, if not its value."""
    return Piece(value, value if text is None else text)


def of_event(event: Event, *, is_text: bool = False) -> Piece:
    """A server-sent event: of an object, `event` is its name, unless it has a key of this name.

    `is_text`: whether events are texts, which may look like half an object. Else that raises AgentError.
    """
    value = read_any(event.data) if is_text else _value(event.data)
    if isinstance(value, Mapping):
        value = {"event": event.name, **value}
    return Piece(value, event.data, event.name)


def of_line(line: str, *, is_text: bool = False) -> Piece:
    """A line of JSON, or of text where lines are texts. Else raises AgentError."""
    return Piece(read_any(line) if is_text else read_text(line, "a line of the agent's stream"), line)


def _value(data: str) -> Any:
    """The JSON value of an event's data, or its text. Raises AgentError for half an object."""
    return read_text(data) if data.lstrip().startswith("{") else read_any(data)
