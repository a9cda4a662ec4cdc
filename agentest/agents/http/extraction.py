"""Extract the reply, calls, errors, usage and saved values from a response, whole or event by event."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from multidict import CIMultiDictProxy

from agentest.agents.http.exchange import CookieJar
from agentest.agents.json_reader import excerpt, read_any, read_text, reported_usage
from agentest.agents.reply_detection import (
    empty_path_message,
    find_reply_path,
    missing_reply_message,
    text_of,
    where_text_is,
)
from agentest.agents.reported_calls import ReportedCalls
from agentest.config.agents.http import HttpTemplateAgent
from agentest.config.agents.http_requests import ValueSource
from agentest.domain.transcript import Usage
from agentest.support.errors import AgentError
from agentest.support.http.sse import Event
from agentest.support.jmespath_expressions import JsonPath
from agentest.support.json_text import json_or
from agentest.support.lazy_dataclasses import dataclass

_NEWLINE = "\n"
_ERROR_EVENT = "error"  # name of the events that report an error if no `error` path is configured
SESSION = "session_id"  # name of the session id among the saved values
DONE = "[DONE]"


def join_event_texts(texts: Sequence[str]) -> str:
    """Join the texts of events. If every event is a JSON string, join the decoded strings."""
    read = [json_or(text) for text in texts]
    return "".join(read) if read and all(isinstance(text, str) for text in read) else "".join(texts)


def guess_stream_reply(values: Sequence[Any], texts: Sequence[str]) -> str:
    """Return the reply of a stream without a configured `delta` or `reply`. Raises AgentError."""
    # A text may look like a number or like null.
    if values and not any(isinstance(value, dict | list) for value in values):
        return join_event_texts(texts)
    raise AgentError(
        "the agent answers with a stream of events: say by `delta`, a JMESPath, where a piece of the reply "
        f"stands in each, or by `reply` where the whole is; {where_text_is(united(values))}: "
        f"{excerpt(_NEWLINE.join(texts))}"
    )


def united(values: Sequence[Any]) -> Any:
    """Merge events into one value, so that each path is listed only once."""
    united: dict[str, Any] = {}
    for value in values:
        if isinstance(value, dict):
            united |= {key: item for key, item in value.items() if key != "event" and text_of(item)}
    return united


class SavedValueSources:
    """The places of values to save."""

    def __init__(self, sources: Mapping[str, ValueSource]) -> None:
        self._sources = sources
        self._paths = {name: JsonPath(source.path) for name, source in sources.items() if source.path}
        self._patterns = {n: re.compile(source.regex) for n, source in sources.items() if source.regex}

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._sources)

    def and_also(self, sources: Mapping[str, ValueSource]) -> SavedValueSources:
        """Return these places and others, which take precedence."""
        return SavedValueSources({**self._sources, **sources}) if sources else self

    def in_headers(self, headers: CIMultiDictProxy[str]) -> dict[str, Any]:
        """Return the values in a response's headers."""
        wanted = {name: source.header for name, source in self._sources.items() if source.header}
        found = {
            name: ", ".join(headers.getall(header)) for name, header in wanted.items() if header in headers
        }
        matches = {name: self._patterns[name].search(found[name]) for name in found if name in self._patterns}
        parts = {name: match[1] for name, match in matches.items() if match}
        return {name: text for name, text in found.items() if name not in matches} | parts

    def in_piece(self, piece: ResponsePiece) -> dict[str, Any]:
        """Return the values in a response or event."""
        found = {name: piece.find(path) for name, path in self._paths.items()}
        return {name: value for name, value in found.items() if value not in (None, "", False)}

    def in_text(self, text: str) -> dict[str, Any]:
        """Return the values that the regular expressions find in a response's text."""
        patterns = {n: each for n, each in self._patterns.items() if not self._sources[n].header}
        found = {name: pattern.search(text) for name, pattern in patterns.items()}
        return {name: match[1] for name, match in found.items() if match}

    def in_jar(self, jar: CookieJar) -> dict[str, Any]:
        """Return the values in cookies."""
        wanted = {name: source.cookie for name, source in self._sources.items() if source.cookie}
        found = {name: jar.value(cookie) for name, cookie in wanted.items()}
        return {name: value for name, value in found.items() if value is not None}

    def missing(self, name: str, key: str, nothing_for: Callable[[str, JsonPath], str]) -> str:
        """Return the error message for a missing value of `key`. `nothing_for` makes that for a path."""
        if name in self._paths:
            return nothing_for(key, self._paths[name])
        return f"`{key}: {self._sources[name].words}` finds nothing in the agent's answer"


class AnswerPaths:
    """The compiled paths of a configuration into an agent's responses."""

    def __init__(self, config: HttpTemplateAgent) -> None:
        def path(text: str | None) -> JsonPath | None:
            return None if text is None else JsonPath(text)

        self.reply = path(config.reply)
        self.delta = path(config.delta)
        self.done = path(config.done)
        self.tool_calls = path(config.tool_calls)
        self.error = path(config.error)
        self.usage = JsonPath(config.usage)
        session = {SESSION: config.session} if config.session else {}
        self.kept = SavedValueSources({**session, **config.save})
        self.whole_reply = self.reply is not None and self.reply.is_all
        self.whole_delta = self.delta is not None and self.delta.is_all

    @property
    def are_texts(self) -> bool:
        """True if events are read as text, because `delta` or `reply` is `@`."""
        return self.whole_delta or self.whole_reply


class ResponseExtraction:
    """One response, whole or event by event, and what the paths found in it."""

    def __init__(
        self, paths: AnswerPaths, kept: SavedValueSources | None = None, *, until: JsonPath | None = None
    ) -> None:
        """Create an empty extraction.

        Args:
            kept: the places of values to save, if they are not those of every response.
            until: the path that is true for the last response of a job, or for the event with its result.
        """
        self._paths = paths
        self._kept = kept or paths.kept
        self._until = until
        self.pieces: list[ResponsePiece] = []  # the whole response, or its events
        self._deltas: list[str] = []
        self._reply: str | None = None
        self._streamed = False
        self.calls = ReportedCalls()
        self.kept: dict[str, Any] = {}  # name → value found so far
        self.usage = Usage()
        self.is_done = False  # True if the last event of the stream has arrived
        self.guessed: JsonPath | None = None
        self.is_partial = False  # True for the response of a job or of a list of requests, which may be empty
        self.is_pending = False
        """True if the response says only that there is no result yet: its status is 202, or it is empty."""
        self._until_held = False

    @property
    def answer(self) -> Any:
        """The JSON value or text of the response; a list for a stream."""
        values = [piece.value for piece in self.pieces]
        return values if self._streamed else values[0] if values else None

    @property
    def has_result(self) -> bool:
        """True if this is the last response of a job."""
        if self._until is None:
            return not self.is_pending
        return self._until_held or self._until.holds(self.answer)

    @property
    def shown(self) -> str:
        """The response, formatted for messages."""
        return excerpt("\n".join(self._texts) if self._streamed else self.answer)

    @property
    def _texts(self) -> list[str]:
        return [str(piece.whole) for piece in self.pieces]

    def nothing_for(self, key: str, path: JsonPath) -> str:
        """Return the error message for a path that found nothing."""
        events = united(self.answer) if self._streamed else None
        return empty_path_message(key, path, self.shown if self._streamed else self.answer, events)

    def note_headers(self, headers: CIMultiDictProxy[str]) -> None:
        """Save values from the response's headers."""
        self.kept |= self._kept.in_headers(headers)

    def note_text(self, text: str) -> None:
        """Save values that regular expressions find in the text."""
        self.kept |= self._kept.in_text(text)

    def take_answer(self, piece: ResponsePiece) -> None:
        """Read a whole response. Raises AgentError if it reports an error."""
        self.pieces = [piece]
        path = self._paths.reply
        if path is None and self._paths.whole_delta and isinstance(piece.whole, str):
            path = self._paths.delta
        if path:
            self._reply = text_of(piece.find(path))
        self._read_details(piece)

    def take_event(self, piece: ResponsePiece) -> bool:
        """Read an event. Returns True if it contains text of the reply. Raises AgentError."""
        self._streamed = True
        self.is_done = bool(self._paths.done and piece.find(self._paths.done))
        if str(piece.whole).strip() == DONE:
            return False
        self.pieces.append(piece)
        self.note_text(str(piece.whole))
        came = self._add_text(piece)
        self._read_details(piece)
        if self._until and piece.find(self._until):
            self._until_held = True
            self.is_done = self.is_done or self._paths.done is None
        return came

    def _add_text(self, piece: ResponsePiece) -> bool:
        paths = self._paths
        if not paths.delta and not paths.reply:
            return bool(piece.whole) and isinstance(piece.value, str)
        if paths.delta and (delta := _text_in(piece.find(paths.delta))):
            self._deltas.append(delta)
            return True
        if paths.reply and (reply := _text_in(piece.find(paths.reply))):
            self._reply = reply
            return True
        return False

    def _read_details(self, piece: ResponsePiece) -> None:
        """Record calls, saved values and usage before checking for errors, so that earlier calls count."""
        paths = self._paths
        if paths.tool_calls:
            self.calls.take(piece.find(paths.tool_calls))
        self.kept |= self._kept.in_piece(piece)
        if (usage := reported_usage(piece.find(paths.usage))) is not None:
            self.usage = usage
        if paths.error and (told := piece.find(paths.error)):
            raise AgentError(f"the agent reports an error (`error: {paths.error.text}`): {excerpt(told)}")
        if paths.error is None and piece.name == _ERROR_EVENT:
            raise AgentError(f"the agent reports an error (event `{_ERROR_EVENT}`): {excerpt(piece.whole)}")

    def set_text(self, text: str) -> None:
        """Set the reply, for a reply in several responses."""
        self._reply = text

    def text(self) -> str | None:
        """Return the reply, or None if there are only tool calls. Raises AgentError if there is neither."""
        text = self._text()
        if text is None and not self.calls:
            paths = self._paths
            key, path = ("delta", paths.delta) if self._streamed and paths.delta else ("reply", paths.reply)
            assert path is not None
            raise AgentError(self.nothing_for(key, path))
        return text

    def _text(self) -> str | None:
        paths = self._paths
        if self._reply is not None:
            is_event = self._streamed and paths.whole_reply
            return join_event_texts([self._reply]) if is_event else self._reply
        if self._deltas:
            return join_event_texts(self._deltas) if paths.whole_delta else "".join(self._deltas)
        if paths.reply or (self._streamed and paths.delta):
            return None
        try:
            if self._streamed:
                return guess_stream_reply(self.answer, self._texts)
            self.guessed = find_reply_path(self.answer)
            if self.guessed is None:
                raise AgentError(missing_reply_message(self.answer))
        except AgentError:
            if self.calls:
                return None
            raise
        return text_of(self.guessed.find(self.answer))


def _text_in(found: Any) -> str:
    return "" if found is False else text_of(found) or ""


@dataclass(frozen=True, slots=True)
class ResponsePiece:
    """A JSON value or a text, and what the path `@` returns for it."""

    value: Any
    whole: Any  # the original text of an event, or the value of a response
    name: str | None = None

    @classmethod
    def of_event(cls, event: Event, *, is_text: bool = False) -> Self:
        """Read a server-sent event. An object gets its name as `event`, unless it has that key.

        Raises AgentError for an invalid JSON object, unless `is_text` allows any text.
        """
        must_parse = not is_text and event.data.lstrip().startswith("{")
        value = read_text(event.data) if must_parse else read_any(event.data)
        if isinstance(value, Mapping):
            value = {"event": event.name, **value}
        return cls(value, event.data, event.name)

    @classmethod
    def of_line(cls, line: str, *, is_text: bool = False) -> Self:
        """Read a line of JSON, or of any text if `is_text`. Raises AgentError."""
        return cls(read_any(line) if is_text else read_text(line, "a line of the agent's stream"), line)

    @property
    def fields(self) -> Any:
        """The value in which paths find something: an event that is not an object has `event` and `data`."""
        is_bare = self.name is not None and not isinstance(self.value, Mapping)
        return {"event": self.name, "data": self.value} if is_bare else self.value

    def find(self, path: JsonPath) -> Any:
        """Return the value at a path, or None."""
        if path.is_all:
            return self.whole
        found = path.find(self.value)
        return path.find(self.fields) if found is None and self.fields is not self.value else found
