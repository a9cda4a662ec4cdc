"""The text of an evaluation set: read its cases, and write it again with the indentation that it has."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any

from agentest.plugins.adk.formats.set_reader import parse_json
from agentest.plugins.adk.set_files import SetContent
from agentest.support.errors import UsageError
from agentest.support.lazy_dataclasses import dataclass

_FIRST_ENTRY = re.compile(r"^\s*[\[{]\r?\n([ \t]+)")
_ESCAPED = re.compile(r"\\u(?:00[89a-fA-F]|0[1-9a-fA-F]|[1-9a-fA-F])")
_HALF = re.compile("[\ud800-\udfff]")
_ID = ("eval_id", "evalId")
_CASES = ("eval_cases", "evalCases")


@dataclass(frozen=True, slots=True)
class JsonStyle:
    """The formatting of a JSON file.

    Attributes:
        indent: white space per level; None if the whole file is one line.
        newline: `\\n` or `\\r\\n`.
        ascii: True if other letters than ASCII are escaped.
        before, after: white space around the document.
    """

    indent: str | None
    newline: str
    ascii: bool
    before: str = ""
    after: str = "\n"

    def written(self, value: Any) -> str:
        """Return the text of a document."""
        text = json.dumps(value, ensure_ascii=self.ascii, allow_nan=False, indent=self.indent)
        # Unpaired surrogates can only be escaped: the reader reports them.
        text = _HALF.sub(lambda half: f"\\u{ord(half[0]):04x}", text)
        return self.before + text.replace("\n", self.newline) + self.after


def style_of(text: str) -> JsonStyle:
    """Find the formatting of a JSON text."""
    first = _FIRST_ENTRY.search(text)
    return JsonStyle(
        indent=first[1] if first else None,
        newline="\r\n" if "\r\n" in text else "\n",
        ascii=bool(_ESCAPED.search(text)) and text.isascii(),
        before=text[: len(text) - len(text.lstrip())],
        after=text[len(text.rstrip()) :],
    )


@dataclass(frozen=True, slots=True)
class SetFile:
    """An evaluation set that can be edited.

    An edit that changes nothing leaves the file as it is; any other writes the whole file anew, in its own
    indentation.

    Attributes:
        document: the parsed file.
        cases_key: key of the list of cases; "" if the file is that list; None if it is a single case.
        camel: True if its keys are in camelCase, such as `evalId`.
    """

    content: SetContent
    document: Any
    style: JsonStyle
    cases_key: str | None
    camel: bool

    @property
    def cases(self) -> Sequence[Any]:
        """The cases, as they are in the file."""
        if self.cases_key is None:
            return (self.document,)
        cases: list[Any] = self.document[self.cases_key] if self.cases_key else self.document
        return cases

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the cases; "" for one that has no text as its id."""
        return tuple(map(_eval_id, self.cases))

    def index_of(self, eval_id: str) -> int:
        """Return the index of a case, from 0. Raises UsageError."""
        if eval_id not in self.ids:
            raise UsageError(f"{self.content.name}: the case {eval_id!r} no longer exists")
        return self.ids.index(eval_id)

    def value(self, index: int) -> Any:
        """Return a copy of a case."""
        return deepcopy(self.cases[index])

    def case_text(self, index: int) -> str:
        """Return a case as JSON text."""
        style = JsonStyle(self.style.indent, "\n", self.style.ascii, after="")
        return style.written(self.cases[index])

    def with_value(self, index: int, value: Any) -> str:
        """Return the file with a new value for a case."""
        old = self.cases[index]
        new = _merged(old, value)
        return self.content.text if _is_same(old, new) else self._with_cases(index, index + 1, new)

    def with_added(self, case: Any, index: int | None = None) -> str:
        """Return the file with another case.

        Args:
            index: index of the case that it precedes; None to append it.

        Raises UsageError if the file has no list of cases.
        """
        if self.cases_key is None:
            raise UsageError(
                f"{self.content.name}: is one case alone, without a list to which cases could be added; "
                "`agentest migrate OLD NEW` makes a set of it"
            )
        at = len(self.cases) if index is None else index
        return self._with_cases(at, at, case)

    def without(self, index: int) -> str:
        """Return the file without a case, of a list."""
        return self._with_cases(index, index + 1)

    def _with_cases(self, start: int, end: int, *cases: Any) -> str:
        changed = [*self.cases[:start], *cases, *self.cases[end:]]
        if self.cases_key is None:
            (document,) = changed
        else:
            document = {**self.document, self.cases_key: changed} if self.cases_key else changed
        return self.style.written(document)


@lru_cache(maxsize=2)  # several consecutive calls open the same file, and a large one takes seconds
def open_set(content: SetContent) -> SetFile:
    """Parse a file whose cases can be edited. Raises UsageError for invalid JSON and other formats."""
    text = content.text
    document = parse_json(Path(content.name), text.encode())
    form = _form_of_cases(document)
    if form is None:
        raise UsageError(
            f"{content.name}: is in another form than an EvalSet, whose cases cannot be edited one by one; "
            "`agentest migrate OLD NEW` converts it. It can be edited as a text"
        )
    cases_key, camel = form
    return SetFile(content, document, style_of(text), cases_key, camel)


def _form_of_cases(document: Any) -> tuple[str | None, bool] | None:
    """Return the key of the list of cases ("": the document; None: it is a case), and the spelling."""
    if isinstance(document, dict):
        for key in _CASES:
            if isinstance(document.get(key), list):
                return key, key == _CASES[1]
        return next(((None, key == _ID[1]) for key in _ID if key in document), None)
    cases = [each for each in document if isinstance(each, dict)] if isinstance(document, list) else []
    spellings = {key for key in _ID for case in cases if key in case}
    return ("", _ID[1] in spellings) if spellings else None


def _eval_id(case: Any) -> str:
    eval_id = next((case[key] for key in _ID if key in case), "") if isinstance(case, dict) else ""
    return eval_id if isinstance(eval_id, str) else ""


def _merged(old: Any, new: Any) -> Any:
    """Return the new value, with the numbers and the order of keys of the old one where they are equal.

    A value that went through a browser has lost digits of long numbers, and `-0.0` and `1.0` are `0` and `1`.
    """
    if isinstance(old, dict) and isinstance(new, Mapping):
        keys = [*(key for key in old if key in new), *(key for key in new if key not in old)]
        return {key: _merged(old.get(key), new[key]) for key in keys}
    if isinstance(old, list) and isinstance(new, list):
        return [_merged(a, b) for a, b in zip(old, new, strict=False)] + new[len(old) :]
    return old if _is_same(old, new) else new


def _is_same(old: Any, new: Any) -> bool:
    """Return True if two values are equal for a browser: 1 equals 1.0, but not true."""
    if isinstance(old, dict) and isinstance(new, Mapping):
        return old.keys() == new.keys() and all(_is_same(old[key], new[key]) for key in old)
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(_is_same, old, new))
    if isinstance(old, bool) or isinstance(new, bool):
        return old is new
    if isinstance(old, int | float) and isinstance(new, int | float):
        try:
            return float(old) == float(new)
        except OverflowError:
            return old == new
    return bool(old == new)
