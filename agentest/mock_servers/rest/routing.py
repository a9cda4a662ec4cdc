"""Which operation a request asks for: by the path's template, the most specific first, and the method."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from agentest.mock_servers.rest.operations import Api, Operation
from agentest.support.spelling import nearest

_TEMPLATE = re.compile(r"\{([^{}/]+)\}")
_CONVERSATION = re.compile(r"/c/([^/]+)(/.*)?")
_KEY = re.compile(r"[0-9a-f]{24}")
_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a request asks for."""

    conversation: str | None
    """What its path names as the conversation."""
    path: str
    """The path of the document, without conversation and base."""
    operation: Operation | None = None
    values: Mapping[str, str]
    """What stands in the path for its parameters."""
    methods: tuple[str, ...] = ()
    """Where the method is none of the path's: those that are."""


class Routes:
    """The paths of an API."""

    def __init__(self, api: Api) -> None:
        self._api = api
        by_path: dict[str, list[Operation]] = {}
        for operation in api.operations:
            by_path.setdefault(operation.path, []).append(operation)
        self._paths = [(_pattern(path), by_path[path]) for path in sorted(by_path, key=_specific)]

    def find(self, method: str, raw_path: str) -> Found:
        """What a request asks for.

        Args:
            raw_path: as it is sent, with `%2F` for a slash that is none.
        """
        path = re.sub("/{2,}", "/", raw_path)
        match = _CONVERSATION.fullmatch(path)
        if match is None:
            return self._found(method, path, None)
        inside = self._found(method, match[2] or "/", unquote(match[1]))
        if inside.operation or _KEY.fullmatch(match[1]):
            return inside
        whole = self._found(method, path, None)
        return whole if whole.operation or whole.methods else inside

    def shown(self, path: str) -> str:
        """What there is, for whoever asked for something else."""
        known = [str(operation) for operation in self._api.operations]
        close = nearest(path, [operation.path for operation in self._api.operations])
        there = ", ".join(known[:_SHOWN]) + (
            f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
        )
        return (f"the nearest path is {close}; " if close else "") + f"there are {there}"

    def _found(self, method: str, path: str, conversation: str | None) -> Found:
        methods: tuple[str, ...] = ()
        for each in self._without_base(path):
            for pattern, operations in self._paths:
                match = pattern.fullmatch(each) or pattern.fullmatch(_other_end(each))
                if match is None:
                    continue
                operation = next((one for one in operations if one.method == method), None)
                if operation:
                    values = dict(zip(_TEMPLATE.findall(operation.path), match.groups(), strict=True))
                    return Found(
                        conversation=conversation,
                        path=each,
                        operation=operation,
                        values={name: unquote(value) for name, value in values.items()},
                    )
                methods = methods or tuple(one.method for one in operations)
        return Found(conversation=conversation, path=path, values={}, methods=methods)

    def _without_base(self, path: str) -> Iterator[str]:
        """The paths that may be meant: clients have the base path of the real API in theirs, or not."""
        for base in self._api.bases:
            if path == base or path.startswith(base + "/"):
                yield path[len(base) :] or "/"
        yield path


def _pattern(path: str) -> re.Pattern[str]:
    parts = _TEMPLATE.split(path)
    return re.compile("".join("([^/]+?)" if i % 2 else re.escape(part) for i, part in enumerate(parts)))


def _specific(path: str) -> tuple[tuple[int, str], ...]:
    """Before others stands, part by part, what has more of it written out."""
    return tuple((_openness(part), part) for part in path.split("/"))


def _openness(part: str) -> int:
    if "{" not in part:
        return 0
    return 2 if _TEMPLATE.fullmatch(part) else 1


def _other_end(path: str) -> str:
    return path[:-1] if path.endswith("/") else path + "/"


def allowed(methods: Iterable[str]) -> str:
    """The header `Allow`."""
    return ", ".join(sorted(methods))
