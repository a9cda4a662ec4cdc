"""Changes of a JSON text that touch nothing but what has changed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from agentest.adk.editing.style import Style
from agentest.adk.editing.syntax import Member, Node

_MARGIN = re.compile(r"[ \t]*")


@dataclass(frozen=True, slots=True)
class Piece:
    """An entry of a list or an object as it will be written.

    `old`: its number among the entries that were there, whose spacing it keeps; None for one that is new.
    """

    text: str
    old: int | None = None


@dataclass(frozen=True, slots=True)
class Rewriter:
    """Writes new values over those of a text."""

    text: str
    style: Style

    def rewritten(self, node: Node, new: Any, *, flat: bool = False) -> str:
        """The text of a value that has become another one.

        Args:
            flat: whether what is around it stands in one line; what is written anew does so, too.
        """
        if same(node.value, new):
            return self.source(node)
        if node.entries and isinstance(node.value, dict) and isinstance(new, Mapping) and new:
            return self.joined(node, list(self._members(node, new)))
        if node.entries and isinstance(node.value, list) and isinstance(new, list) and new:
            return self.joined(node, list(self._items(node, new)))
        return self._written(new, flat, self._margin(node.span.start))

    def joined(self, node: Node, pieces: Sequence[Piece]) -> str:
        """An object or a list that holds these entries, each with the space that stood around it."""
        opening, closing = self.text[node.span.start], self.text[node.span.end - 1]
        if not pieces:
            return opening + closing
        before, after = self._spaces(node)
        parts = []
        for place, piece in enumerate(pieces):
            lead = before[0] if place == 0 else self._lead(piece, before)
            last = place == len(pieces) - 1
            known = piece.old is not None and piece.old < len(after) - 1
            tail = after[-1] if last else after[piece.old] if known and piece.old is not None else ""
            parts.append(lead + piece.text + tail)
        return opening + ",".join(parts) + closing

    def piece(self, node: Node, value: Any, key: str | None = None) -> Piece:
        """A new entry of a list or an object that has some, laid out as they are."""
        assert node.entries
        head = "" if key is None else self.style.line(key) + self.style.colon
        margin = self._margin(node.entries[0].start)
        return Piece(head + self._written(value, self.is_flat(node), margin))

    def is_flat(self, node: Node) -> bool:
        """Whether a value stands in one line."""
        return "\n" not in self.source(node)

    def source(self, node: Node) -> str:
        return self.text[node.span.start : node.span.end]

    def _members(self, node: Node, new: Mapping[str, Any]) -> Iterator[Piece]:
        """The entries of an object: those that stay in the order of the file, each followed by new ones."""
        assert node.entries is not None
        last = {member.key: number for number, member in enumerate(node.entries)}
        following, flat = _following(new, last), self.is_flat(node)
        for key in following.get(None, ()):
            yield self.piece(node, new[key], key)
        for number, member in enumerate(node.entries):
            if member.key is None or member.key not in new:
                continue
            # Of a key that is given twice, the last value is the one that is read.
            changed = new[member.key] if last[member.key] == number else member.node.value
            yield self._kept(member, number, changed, flat=flat)
            for key in following.get(member.key, ()) if last[member.key] == number else ():
                yield self.piece(node, new[key], key)

    def _items(self, node: Node, new: Sequence[Any]) -> Iterator[Piece]:
        """The entries of a list: what is the same stays, what stands in its place is rewritten."""
        assert node.entries is not None
        old_forms, new_forms = [_form(value) for value in node.value], [_form(value) for value in new]
        flat = self.is_flat(node)
        matcher = SequenceMatcher(None, old_forms, new_forms, autojunk=False)
        known = {form: self.source(member.node) for form, member in zip(old_forms, node.entries, strict=True)}
        for what, old, old_end, at, end in matcher.get_opcodes():
            for step in range(end - at):
                number = old + step
                if what == "equal" or (number < old_end and new_forms[at + step] not in known):
                    yield self._kept(node.entries[number], number, new[at + step], flat=flat)
                elif new_forms[at + step] in known:  # it was moved
                    yield Piece(known[new_forms[at + step]])
                else:
                    yield self.piece(node, new[at + step])

    def _kept(self, member: Member, number: int, value: Any, *, flat: bool) -> Piece:
        head = self.text[member.start : member.node.span.start]
        return Piece(head + self.rewritten(member.node, value, flat=flat), number)

    def _spaces(self, node: Node) -> tuple[list[str], list[str]]:
        """What stands before each entry and after it, up to the commas and brackets."""
        assert node.entries
        before, after, place = [], [], node.span.start + 1
        for member in node.entries:
            before.append(self.text[place : member.start])
            end = member.end
            place = self.text.find(",", end) if member is not node.entries[-1] else node.span.end - 1
            after.append(self.text[end:place])
            place += 1
        return before, after

    def _lead(self, piece: Piece, before: Sequence[str]) -> str:
        if piece.old:
            return before[piece.old]
        if len(before) > 1:
            return before[1]
        return before[0] if "\n" in before[0] else self.style.comma[1:]

    def _written(self, value: Any, flat: bool, margin: str) -> str:
        return self.style.line(value) if flat else self.style.lines(value, margin)

    def _margin(self, start: int) -> str:
        """The white space with which the line of a place begins."""
        match = _MARGIN.match(self.text, self.text.rfind("\n", 0, start) + 1)
        assert match is not None, "the pattern fits everywhere"
        return match[0]


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same to who reads numbers as browsers do: 1 and 1.0 are, true is not 1."""
    return _form(one) == _form(other)


def _form(value: Any) -> str:
    return json.dumps(_plain(value), sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    try:
        return float(value) + 0.0  # no -0.0: browsers write it as 0
    except OverflowError:
        return [str(value)]


def _following(new: Mapping[str, Any], known: Mapping[str | None, int]) -> dict[str | None, list[str]]:
    """Keys that are there already → the new keys that come after each; None: those before all."""
    found: dict[str | None, list[str]] = {}
    previous = None
    for key in new:
        if key in known:
            previous = key
        else:
            found.setdefault(previous, []).append(key)
    return found
