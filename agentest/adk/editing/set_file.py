"""An evaluation set as a text: where each case stands in it, and the text with a case changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from agentest.adk.editing.content import Content
from agentest.adk.editing.rewriting import Piece, Rewriter
from agentest.adk.editing.style import Style, style_of
from agentest.adk.editing.syntax import Member, Node, Span, entries, read, root
from agentest.adk.formats.json_file import parse_json
from agentest.support.errors import UsageError

_ID = ("eval_id", "evalId")
_CASES = ("eval_cases", "evalCases")
_LISTS = ("a list", "a list in camelCase")


@dataclass(frozen=True, slots=True)
class CaseText:
    """A case in the text of its file. `eval_id`: "" where it has none that is a text."""

    eval_id: str
    span: Span


@dataclass(frozen=True, slots=True)
class SetFile:
    """An evaluation set that can be edited.

    Attributes:
        text: the file without the mark of its byte order.
        cases_at: where the list of cases stands; None where the file is one case alone.
        camel: whether its keys are spelt as `evalId`.
    """

    content: Content
    text: str
    style: Style
    cases_at: Span | None
    cases: tuple[CaseText, ...]
    camel: bool

    def place_of(self, eval_id: str) -> int:
        """The number of a case, from 0. Raises UsageError."""
        for number, case in enumerate(self.cases):
            if case.eval_id == eval_id:
                return number
        raise UsageError(f"{self.content.name}: there is no case {eval_id!r} any more")

    def value(self, place: int) -> Any:
        return self._node(place).value

    def shown(self, place: int) -> str:
        """The text of a case, moved to the margin."""
        source, margin = self._source(place), self._margin(place)
        lines = source.replace("\r\n", "\n").split("\n")
        return "\n".join([lines[0], *(line.removeprefix(margin) for line in lines[1:])])

    def with_value(self, place: int, value: Any) -> str:
        """The file in which a case has become another one: only what differs is written anew."""
        flat = self.cases_at is not None and "\n" not in self.text
        return self._with(place, self._writer().rewritten(self._node(place), value, flat=flat))

    def with_text(self, place: int, shown: str) -> str:
        """The file with this text in place of a case's, from the margin on as `shown` gives it."""
        return self.text if shown == self.shown(place) else self._with(place, self._moved_in(place, shown))

    def with_added(self, case: Any, place: int | None = None) -> str:
        """The file with another case, in its own style.

        Args:
            case: a value, or a text of JSON as `shown` gives it.
            place: before which case; None for the end.

        Raises UsageError where the file has no list of cases.
        """
        node = self._list()
        if not node.entries:
            value = json.loads(case) if isinstance(case, str) else case
            return self._around(node.span, self._writer().rewritten(node, [value]))
        place = len(self.cases) if place is None else min(place, len(self.cases))
        text = self._moved_in(0, case) if isinstance(case, str) else self._writer().piece(node, case).text
        pieces = [*self._pieces()]
        pieces.insert(place, Piece(text))
        return self._around(node.span, self._writer().joined(node, pieces))

    def without(self, place: int) -> str:
        """The file without a case. Raises UsageError where it has no list of cases."""
        node, pieces = self._list(), [*self._pieces()]
        del pieces[place]
        return self._around(node.span, self._writer().joined(node, pieces))

    def _list(self) -> Node:
        if self.cases_at is None:
            raise UsageError(
                f"{self.content.name}: is one case alone, without a list to which cases could be added; "
                "`agentest migrate OLD NEW` makes a set of it"
            )
        members = (Member(case.span.start, Node(case.span, None)) for case in self.cases)
        return Node(self.cases_at, [], tuple(members))

    def _pieces(self) -> Iterator[Piece]:
        for place in range(len(self.cases)):
            yield Piece(self._source(place), place)

    def _node(self, place: int) -> Node:
        try:
            return read(self.text, self.cases[place].span)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{self.content.name}: the case cannot be edited here: {error}") from None

    def _source(self, place: int) -> str:
        span = self.cases[place].span
        return self.text[span.start : span.end]

    def _margin(self, place: int) -> str:
        """What each line of a case but the first begins with; "" where one of them does not."""
        lines = self._source(place).split("\n")[1:]
        last = lines[-1] if lines else ""
        margin = last[: len(last) - len(last.lstrip(" \t"))]
        return margin if all(line.startswith(margin) for line in lines if line.strip()) else ""

    def _moved_in(self, place: int, shown: str) -> str:
        newline = "\r\n" if self.style.newline == "\r\n" else "\n"
        return shown.strip().replace("\r\n", "\n").replace("\n", newline + self._margin(place))

    def _with(self, place: int, case: str) -> str:
        return self._around(self.cases[place].span, case)

    def _around(self, span: Span, text: str) -> str:
        return self.text[: span.start] + text + self.text[span.end :]

    def _writer(self) -> Rewriter:
        return Rewriter(self.text, self.style)


@lru_cache(maxsize=2)  # one after another asks for the same file, and a large one takes seconds
def open_set(content: Content) -> SetFile:
    """A file in which cases can be edited. Raises UsageError for no JSON, and for other forms of sets."""
    text = content.text
    form = _form(parse_json(Path(content.name), text.encode()))
    whole = root(text)
    if form is None:
        raise UsageError(
            f"{content.name}: is in another form than an EvalSet, whose cases cannot be edited one by one; "
            "`agentest migrate OLD NEW` converts it. It can be edited as a text"
        )
    if form in _ID:
        case = CaseText(_eval_id(json.loads(text)), whole)
        return SetFile(content, text, style_of(text), None, (case,), form == _ID[1])
    at = whole
    if form in _CASES:
        spans = {entry.key: entry.span for entry in entries(text, whole)}
        at = spans[form]
    cases = tuple(CaseText(_eval_id(entry.value), entry.span) for entry in entries(text, at))
    return SetFile(content, text, style_of(text), at, cases, form in (_CASES[1], _LISTS[1]))


def _form(document: Any) -> str | None:
    """Under which key the cases are; the key of the id for a case alone; of `_LISTS` for a list of cases."""
    if isinstance(document, dict):
        listed = (key for key in _CASES if isinstance(document.get(key), list))
        return next(listed, None) or next((key for key in _ID if key in document), None)
    cases = [each for each in document if isinstance(each, dict)] if isinstance(document, list) else []
    spellings = {key for key in _ID for case in cases if key in case}
    return _LISTS[_ID[1] in spellings] if spellings else None


def _eval_id(case: Any) -> str:
    """The id of a case; "" where it has none that is a text."""
    found = next((case[key] for key in _ID if key in case), "") if isinstance(case, dict) else ""
    return found if isinstance(found, str) else ""
