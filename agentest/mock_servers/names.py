"""The names by which a call says whose it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agentest.support.trace_context import named_in_baggage, named_in_trace

HEADER = "x-agentest-conversation"
META = "agentest/conversation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    """What may name a conversation."""

    text: str
    place: str
    """Where it stands, for people."""
    certain: bool
    """Whether it can be nothing else: a trace may well be of somebody else's, and tells nothing then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Everything that may name a conversation, the most certain first."""

    names: tuple[Name, ...] = ()

    def __iter__(self) -> Iterator[Name]:
        return iter(self.names)


def names_of(
    headers: Mapping[str, str], path: str | None = None, meta: Mapping[str, Any] | None = None
) -> Names:
    """The names in a request.

    Args:
        headers: by lower-case name.
        path: what stands in the path for the conversation.
        meta: the `_meta` of an MCP request.
    """
    return Names(names=tuple(_names(headers, path, meta or {})))


def _names(headers: Mapping[str, str], path: str | None, meta: Mapping[str, Any]) -> Iterator[Name]:
    if path:
        yield Name(text=path, place="the path", certain=True)
    if told := headers.get(HEADER):
        yield Name(text=told, place=f"the header {HEADER}", certain=True)
    if told := _text(meta, META):
        yield Name(text=told, place=f"_meta[{META!r}]", certain=True)
    for where, carrier in (("_meta", meta), ("the header", headers)):
        if told := named_in_baggage(_text(carrier, "baggage")):
            yield Name(text=told, place=f"{where} baggage", certain=False)
        if told := named_in_trace(_text(carrier, "traceparent")):
            yield Name(text=told, place=f"{where} traceparent", certain=False)


def _text(values: Mapping[str, Any], key: str) -> str | None:
    value = values.get(key)
    return value if isinstance(value, str) else None
