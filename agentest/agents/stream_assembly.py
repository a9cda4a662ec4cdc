"""Calls that model APIs stream in pieces, assembled for clients and for the model gateway.

Nothing says that a name is complete before its answer is. So calls are read, and decided on, at the end.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

Json = dict[str, Any]


class StreamedCalls:
    """Assembles the `tool_calls` of one streamed chat completion.

    Args:
        names: tools that may be called, which tell a name in pieces from two names.
    """

    def __init__(self, names: Collection[str] = ()) -> None:
        self._names = names
        self._calls: list[tuple[int, _StreamedCall]] = []
        self._at: dict[int, _StreamedCall] = {}
        """The last call with an index, to which further pieces with this index belong."""
        self._of_id: dict[str, dict[int, _StreamedCall]] = {}  # id → index → call, the last one last
        self._last = -1

    @property
    def calls(self) -> list[Json]:
        """The calls as they come without streaming, in the order of their indices."""
        return [call.json() for _, call in sorted(self._calls, key=lambda each: each[0])]

    @property
    def has_doubtful_name(self) -> bool:
        """True if a name may be those of two calls: in pieces, without an id, and that of no known tool."""
        return any(call.is_joined and not call.id and call.name not in self._names for _, call in self._calls)

    def add(self, pieces: Sequence[Mapping[str, Any]]) -> None:
        """Add the `tool_calls` of a delta."""
        for position, piece in enumerate(pieces):
            known = self._at.get(position) if len(pieces) > 1 else None
            # Without an index, several pieces continue the calls at their positions, one the last call.
            continues = known is not None and not known.is_complete
            self._add(piece, position if continues else max(self._last, position))

    def _add(self, piece: Mapping[str, Any], position: int) -> None:
        index, identifier = piece.get("index"), str(piece.get("id") or "")
        same_id = self._of_id.setdefault(identifier, {}) if identifier else {}
        if not isinstance(index, int):
            # Some servers send no index. A new id starts a call.
            index = next(reversed(same_id), self._last + 1 if identifier else position)
        # Others send index 0 for all calls, so that only ids tell them apart.
        call = same_id.get(index) or self._at.get(index)
        if call is None or call.is_followed_by(piece):
            kind = "custom" if "custom" in piece else "function"
            name = call.next_name if call and not identifier else ""
            index = index if isinstance(piece.get("index"), int) or not identifier else self._last + 1
            call = _StreamedCall(kind, name, self._names)
            self._calls.append((index, call))
        self._at[index] = same_id[index] = call
        self._last = max(self._last, index)
        call.add(piece)


class _StreamedCall:
    def __init__(self, kind: str, name: str, names: Collection[str]) -> None:
        self._names = names
        self.id: Any = None
        self.next_name = ""
        """The name, if it came again after the call was complete: that of the next call, if there is one."""
        self._kind = kind
        self._text_key = "input" if kind == "custom" else "arguments"
        self.name = name
        self.is_joined = False
        self._named_first = False
        self._pieces: list[str] = []
        self._extras: Json = {}

    def is_followed_by(self, piece: Mapping[str, Any]) -> bool:
        """Return True if a piece at the place of this call starts another one."""
        name, text = self._parts(piece)
        identifier = piece.get("id")
        # Some servers send a new id with each piece, but a name, even an empty one, only with the first.
        if self.id and identifier and identifier != self.id and name is not None:
            return bool(name) or self.is_complete
        if not self.is_complete:
            return not self.id and not identifier and self._is_another(name, piece)
        if identifier and identifier == self.id and name == self.name and text == "".join(self._pieces):
            return False  # some servers repeat the whole call at its end
        return bool(text.strip()) or (self._named_first and name not in (None, "", self.name))

    def add(self, piece: Mapping[str, Any]) -> None:
        name, text = self._parts(piece)
        self.id = self.id or piece.get("id")
        if self.is_complete:
            self.next_name = name if name and name == self.name else self.next_name
            text = ""
        if name:  # some servers send it in pieces, repeat it, or repeat what came of it so far
            self.is_joined = self.is_joined or not name.startswith(self.name)
            self.name = name if name.startswith(self.name) else self.name + name
        if text:
            self._named_first = self._named_first or (bool(self.name) and not self._pieces)
            self._pieces.append(text)
        # Such as Gemini's signatures behind this API.
        self._extras |= {key: piece[key] for key in piece.keys() - {"index", "id", "type", self._kind}}

    def json(self) -> Json:
        function = {"name": self.name, self._text_key: "".join(self._pieces)}
        return {"id": self.id, "type": self._kind, self._kind: function, **self._extras}

    def _is_another(self, name: str | None, piece: Mapping[str, Any]) -> bool:
        if self._pieces or not name or not self.name or name.startswith(self.name):
            return False
        if any(each.startswith(self.name + name) for each in self._names):
            return False
        function = piece.get(self._kind)
        begins = "type" in piece or (isinstance(function, Mapping) and function.get(self._text_key) == "")
        return self.name in self._names or begins or "index" not in piece

    def _parts(self, piece: Mapping[str, Any]) -> tuple[str | None, str]:
        function = piece.get(self._kind)
        if not isinstance(function, Mapping):
            return None, ""
        name, text = function.get("name"), function.get(self._text_key)
        # Some servers send the object itself.
        text = text if isinstance(text, str) else "" if text is None else json.dumps(text)
        return name if isinstance(name, str) else None, text

    @property
    def is_complete(self) -> bool:
        """Return True if the arguments are a whole object, which nothing can continue."""
        if self._kind == "custom" or not self._pieces or not self._pieces[-1].rstrip().endswith("}"):
            return False
        try:
            return isinstance(json.loads("".join(self._pieces)), dict)
        except (ValueError, RecursionError):
            return False
