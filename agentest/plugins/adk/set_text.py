"""The text of an evaluation set: locate each case in it, and change a case without touching the rest."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from agentest.plugins.adk.formats.set_reader import parse_json
from agentest.plugins.adk.set_files import SetContent
from agentest.support.errors import UsageError
from agentest.support.lazy_dataclasses import dataclass

_SPACE = re.compile(r"[ \t\r\n]*")
# The standard library's scanner skips values, because it is fast and sets may have megabytes.
# Numbers are not converted, so that they may have any number of digits.
_SCAN = json.JSONDecoder(parse_int=len, parse_float=len, strict=False).raw_decode


@dataclass(frozen=True, slots=True)
class TextSpan:
    """The location of a value: the characters from `start` up to, but excluding, `end`."""

    start: int
    end: int

    def of(self, text: str) -> str:
        return text[self.start : self.end]


@dataclass(frozen=True, slots=True)
class JsonEntry:
    """An entry of an object or a list.

    Attributes:
        start: the start of its key; in a list, of its value.
        value: the parsed value, except for numbers.
    """

    start: int
    span: TextSpan
    value: Any
    key: str | None = None


def root(text: str) -> TextSpan:
    """Locate the document in its text, without the surrounding white space."""
    return TextSpan(_after_space(text, 0), len(text.rstrip(" \t\r\n")))


def entries(text: str, span: TextSpan) -> Iterator[JsonEntry]:
    """Yield the entries of an object or a list; nothing for other values."""
    if text[span.start] not in "[{":
        return
    is_object, position = text[span.start] == "{", _after_space(text, span.start + 1)
    while text[position] not in "]}":
        start, key = position, None
        if is_object:
            key, end = _SCAN(text, start)
            position = _after_space(text, _after_space(text, end) + 1)
        value, end = _SCAN(text, position)
        yield JsonEntry(start, TextSpan(position, end), value, key)
        position = _after_space(text, end)
        if text[position] == ",":
            position = _after_space(text, position + 1)


def _after_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    assert match is not None, "the pattern fits everywhere"
    return match.end()


_FIRST_ENTRY = re.compile(r"[\[{](\r?\n)([ \t]+)")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_COLON = re.compile(r":( ?)")
_COMMA = re.compile(r",( ?)\S")
_STYLE_SAMPLE_CHARS = 200_000
"""Number of characters of a file that are examined to find its style."""
_ESCAPED = re.compile(r"\\u(?:00[89a-fA-F]|0[1-9a-fA-F]|[1-9a-fA-F])")
_HALF = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class JsonStyle:
    """The formatting of a JSON file.

    Attributes:
        newline: "" if the whole file is one line.
        indent: white space per level.
        colon, comma: separators between key and value, and between values on one line.
        ascii: True if other letters than ASCII are escaped.
    """

    newline: str = "\n"
    indent: str = "  "
    colon: str = ": "
    comma: str = ", "
    ascii: bool = False

    def written(self, value: Any, margin: str | None) -> str:
        """Format a value over several lines, indented by `margin`; on one line if it is None."""
        if margin is None or not self.newline:
            return self._dumped(value, separators=(self.comma, self.colon))
        text = self._dumped(value, indent=self.indent, separators=(",", self.colon))
        return text.replace("\n", self.newline + margin)

    def _dumped(self, value: Any, **layout: Any) -> str:
        text = json.dumps(value, ensure_ascii=self.ascii, allow_nan=False, **layout)
        # Unpaired surrogates can only be escaped: the reader reports them.
        return _HALF.sub(lambda half: f"\\u{ord(half[0]):04x}", text)


def style_of(text: str) -> JsonStyle:
    """Find the formatting of a JSON text from its first entries."""
    bare = _STRING.sub('""', text[:_STYLE_SAMPLE_CHARS])
    first, colon, comma = _FIRST_ENTRY.search(bare), _COLON.search(bare), _COMMA.search(bare)
    return JsonStyle(
        newline=first[1] if first else "",
        indent=first[2] if first else "",
        colon=f":{colon[1]}" if colon else ": ",
        comma=f",{comma[1]}" if comma else ", ",
        ascii=bool(_ESCAPED.search(text)) and text.isascii(),
    )


_ID = ("eval_id", "evalId")
_CASES = ("eval_cases", "evalCases")
_LISTS = ("a list", "a list in camelCase")


@dataclass(frozen=True, slots=True)
class CaseText:
    """The location of a case in its file. `eval_id` is "" if the case has no text as its id."""

    eval_id: str
    span: TextSpan


@dataclass(frozen=True, slots=True)
class SetFile:
    """An evaluation set that can be edited.

    Attributes:
        text: the file without its byte order mark.
        cases_at: location of the list of cases; None if the file is a single case.
        camel: True if its keys are in camelCase, such as `evalId`.
    """

    content: SetContent
    text: str
    style: JsonStyle
    cases_at: TextSpan | None
    cases: tuple[CaseText, ...]
    camel: bool

    def index_of(self, eval_id: str) -> int:
        """Return the index of a case, from 0. Raises UsageError."""
        for number, case in enumerate(self.cases):
            if case.eval_id == eval_id:
                return number
        raise UsageError(f"{self.content.name}: the case {eval_id!r} no longer exists")

    def value(self, index: int) -> Any:
        """Return a case. Raises UsageError for a number with more digits than Python reads."""
        try:
            return json.loads(self._source(index))
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{self.content.name}: the case cannot be edited here: {error}") from None

    def case_text(self, index: int) -> str:
        """Return the text of a case, without its indentation."""
        source, margin = self._source(index), self._margin(index)
        lines = source.replace("\r\n", "\n").split("\n")
        return "\n".join([lines[0], *(line.removeprefix(margin) for line in lines[1:])])

    def with_value(self, index: int, value: Any) -> str:
        """Return the file with a new value for a case. Only what differs is reformatted."""
        if same(self.value(index), value):
            return self.text
        flat = self.cases_at is not None and "\n" not in self.text
        span = self.cases[index].span
        return self._replaced_at(span, self._writer.rewritten(span, value, flat=flat))

    def with_text(self, index: int, case_text: str) -> str:
        """Return the file with the text of a case replaced. `case_text` is not indented."""
        if case_text == self.case_text(index):
            return self.text
        return self._replaced_at(self.cases[index].span, self._indented(index, case_text))

    def with_added(self, case: Any, index: int | None = None) -> str:
        """Return the file with another case, in its own formatting.

        Args:
            case: a value, or JSON text without indentation.
            index: index of the case that it precedes; None to append it.

        Raises UsageError if the file has no list of cases.
        """
        span, writer = self._list(), self._writer
        if not self.cases:
            value = json.loads(case) if isinstance(case, str) else case
            return self._replaced_at(span, writer.rewritten(span, [value]))
        first = self.cases[0].span.start
        text = self._indented(0, case) if isinstance(case, str) else writer.new_entry(span, first, case)
        pieces = self._pieces()
        pieces.insert(len(pieces) if index is None else index, (text, None))
        return self._with_cases(pieces)

    def without(self, index: int) -> str:
        """Return the file without a case. Raises UsageError if it has no list of cases."""
        pieces = self._pieces()
        del pieces[index]
        return self._with_cases(pieces)

    def _list(self) -> TextSpan:
        if self.cases_at is None:
            raise UsageError(
                f"{self.content.name}: is one case alone, without a list to which cases could be added; "
                "`agentest migrate OLD NEW` makes a set of it"
            )
        return self.cases_at

    def _pieces(self) -> list[_Piece]:
        return [(self._source(index), index) for index in range(len(self.cases))]

    def _with_cases(self, pieces: Sequence[_Piece]) -> str:
        span = self._list()
        return self._replaced_at(span, self._writer.joined(span, [case.span for case in self.cases], pieces))

    def _source(self, index: int) -> str:
        return self.cases[index].span.of(self.text)

    def _margin(self, index: int) -> str:
        """Return the common indentation of a case's lines after the first; "" if there is none."""
        lines = self._source(index).split("\n")[1:]
        last = lines[-1] if lines else ""
        margin = last[: len(last) - len(last.lstrip(" \t"))]
        return margin if all(line.startswith(margin) for line in lines if line.strip()) else ""

    def _indented(self, index: int, case_text: str) -> str:
        newline = "\r\n" if self.style.newline == "\r\n" else "\n"
        return case_text.strip().replace("\r\n", "\n").replace("\n", newline + self._margin(index))

    def _replaced_at(self, span: TextSpan, text: str) -> str:
        return self.text[: span.start] + text + self.text[span.end :]

    @property
    def _writer(self) -> JsonRewriter:
        return JsonRewriter(self.text, self.style)


@lru_cache(maxsize=2)  # several consecutive calls open the same file, and a large one takes seconds
def open_set(content: SetContent) -> SetFile:
    """Parse a file whose cases can be edited. Raises UsageError for invalid JSON and other formats."""
    text = content.text
    form = _form_of_cases(parse_json(Path(content.name), text.encode()))
    document = root(text)
    if form is None:
        raise UsageError(
            f"{content.name}: is in another form than an EvalSet, whose cases cannot be edited one by one; "
            "`agentest migrate OLD NEW` converts it. It can be edited as a text"
        )
    if form in _ID:
        case = CaseText(_eval_id(json.loads(text)), document)
        return SetFile(content, text, style_of(text), None, (case,), form == _ID[1])
    at = document
    if form in _CASES:
        spans = {entry.key: entry.span for entry in entries(text, document)}
        at = spans[form]
    cases = tuple(CaseText(_eval_id(entry.value), entry.span) for entry in entries(text, at))
    return SetFile(content, text, style_of(text), at, cases, form in (_CASES[1], _LISTS[1]))


def _form_of_cases(document: Any) -> str | None:
    """Return the key of the list of cases, the key of a single case's id, or an entry of `_LISTS`."""
    if isinstance(document, dict):
        listed = (key for key in _CASES if isinstance(document.get(key), list))
        return next(listed, None) or next((key for key in _ID if key in document), None)
    cases = [each for each in document if isinstance(each, dict)] if isinstance(document, list) else []
    spellings = {key for key in _ID for case in cases if key in case}
    return _LISTS[_ID[1] in spellings] if spellings else None


def _eval_id(case: Any) -> str:
    eval_id = next((case[key] for key in _ID if key in case), "") if isinstance(case, dict) else ""
    return eval_id if isinstance(eval_id, str) else ""


_MARGIN = re.compile(r"[ \t]*")
_Piece = tuple[str, int | None]
"""The text of an entry of the new value, and its index among the previous entries; None if it is new."""


@dataclass(frozen=True, slots=True)
class JsonRewriter:
    """Write new values over those of a JSON text, and preserve everything else."""

    text: str
    style: JsonStyle

    def rewritten(self, span: TextSpan, new: Any, *, flat: bool = False) -> str:
        """Return the text of the value at a location after it has changed to `new`.

        Args:
            flat: True if the surrounding text is on one line; new text is then on one line, too.
        """
        source = span.of(self.text)
        old = json.loads(source)
        if same(old, new):
            return source
        existing = list(entries(self.text, span)) if new else []
        if existing and isinstance(old, dict) and isinstance(new, Mapping):
            pieces = self._object_pieces(span, existing, new)
        elif existing and isinstance(old, list) and isinstance(new, list):
            pieces = self._list_pieces(span, existing, old, new)
        else:
            return self.style.written(new, None if flat else self._margin(span.start))
        return self.joined(span, [TextSpan(each.start, each.span.end) for each in existing], list(pieces))

    def joined(self, span: TextSpan, existing: Sequence[TextSpan], pieces: Sequence[_Piece]) -> str:
        """Return the text of an object or a list with these entries, separated as the `existing` ones are."""
        if not pieces:
            return self.text[span.start] + self.text[span.end - 1]
        lead = self.text[span.start + 1 : existing[0].start]
        between = [self.text[a.end : b.start] for a, b in pairwise(existing)]
        usual = between[0] if between else "," + (lead if "\n" in lead else self.style.comma[1:])
        separators = [between[old - 1] if old else usual for _, old in pieces[1:]]
        parts = [separator + text for separator, (text, _) in zip(["", *separators], pieces, strict=True)]
        return (
            self.text[span.start : existing[0].start]
            + "".join(parts)
            + self.text[existing[-1].end : span.end]
        )

    def new_entry(self, span: TextSpan, first: int, value: Any, key: str | None = None) -> str:
        """Return the text of a new entry of the value at `span`, formatted like the entry at `first`."""
        head = "" if key is None else self.style.written(key, None) + self.style.colon
        return head + self.style.written(value, None if self._is_flat(span) else self._margin(first))

    def _is_flat(self, span: TextSpan) -> bool:
        return "\n" not in span.of(self.text)

    def _object_pieces(
        self, span: TextSpan, existing: Sequence[JsonEntry], new: Mapping[str, Any]
    ) -> Iterator[_Piece]:
        """Yield the entries of an object: existing ones in file order, new ones after their predecessor."""
        last = {entry.key: number for number, entry in enumerate(existing)}
        following: defaultdict[str | None, list[str]] = defaultdict(list)
        previous = None
        for key in new:
            if key in last:
                previous = key
            else:
                following[previous].append(self.new_entry(span, existing[0].start, new[key], key))
        yield from ((text, None) for text in following[None])
        for number, entry in enumerate(existing):
            if entry.key is None or entry.key not in new:
                continue
            if last[entry.key] != number:  # parsers use the last value of a duplicate key
                yield self.text[entry.start : entry.span.end], number
                continue
            yield self._changed(span, entry, number, new[entry.key])
            yield from ((text, None) for text in following[entry.key])

    def _list_pieces(
        self, span: TextSpan, existing: Sequence[JsonEntry], old_values: Sequence[Any], new: Sequence[Any]
    ) -> Iterator[_Piece]:
        """Yield the entries of a list: unchanged ones as they are, changed ones rewritten in place."""
        old_forms, new_forms = ([_rewriting_form(value) for value in values] for values in (old_values, new))
        matcher = SequenceMatcher(None, old_forms, new_forms, autojunk=False)
        known = {form: entry.span.of(self.text) for form, entry in zip(old_forms, existing, strict=True)}
        for what, old, old_end, at, end in matcher.get_opcodes():
            for step in range(end - at):
                number = old + step
                if what == "equal" or (number < old_end and new_forms[at + step] not in known):
                    yield self._changed(span, existing[number], number, new[at + step])
                elif new_forms[at + step] in known:  # the entry has moved
                    yield known[new_forms[at + step]], None
                else:
                    yield self.new_entry(span, existing[0].start, new[at + step]), None

    def _changed(self, span: TextSpan, entry: JsonEntry, number: int, value: Any) -> _Piece:
        head = self.text[entry.start : entry.span.start]
        return head + self.rewritten(entry.span, value, flat=self._is_flat(span)), number

    def _margin(self, start: int) -> str:
        """Return the indentation of the line at a position."""
        match = _MARGIN.match(self.text, self.text.rfind("\n", 0, start) + 1)
        assert match is not None, "the pattern fits everywhere"
        return match[0]


def same(value: Any, other: Any) -> bool:
    """Return True if two values are equal for a browser: 1 equals 1.0, but not true."""
    return _rewriting_form(value) == _rewriting_form(other)


def _rewriting_form(value: Any) -> str:
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
