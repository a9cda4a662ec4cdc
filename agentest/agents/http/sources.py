"""Values that are kept of an answer: the session's id, and what `save` names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from agentest.agents.http.cookies import CookieJar
from agentest.agents.http.pieces import Piece
from agentest.config.agents.http_requests import Source
from agentest.support.json_path import JsonPath


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
