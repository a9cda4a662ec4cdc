"""What the paths of an agent's configuration find in one answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentest.agents.http.guessing import guessed_of_stream, joined_texts, united
from agentest.agents.http.pieces import DONE, Piece
from agentest.agents.http.sources import Sources
from agentest.agents.http.usage import read_usage
from agentest.agents.paths import nothing_found, text_of
from agentest.agents.reading import shown
from agentest.agents.told_calls import ToldCalls
from agentest.agents.usual_places import no_place, usual_place
from agentest.config.agents.http import HttpTemplateAgent
from agentest.domain.transcript import Usage
from agentest.support.errors import AgentError
from agentest.support.json_path import JsonPath

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
