"""A rubric that is written as one text, in the parts that a judge can answer one by one.

    The answer must: (1) name the order, (2) be polite. Deduct if: it is late, or too long.

Every numbered part is a property of its own, together with what stands before the first; everything that
points are deducted for is one that must not be. Nothing of the text is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

_NUMBER = re.compile(r"\((\d+)\)|^[ \t]*(\d+)[.)](?=\s)", re.MULTILINE)
"""`(1)` anywhere, `1.` and `1)` at the beginning of a line."""
_DEDUCT = re.compile(
    r"(?:^|(?<=[.;:!?\n]))\s*(?:and\s+)?deduct(?:\s+(?:a\s+)?points?)?(?:\s+(?:if|for|when|where)\b)?\s*:?\s*",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"[.!?](?=\s+[A-Z])")
_EDGES = " \t\r\n,;:."
_AND = re.compile(r"(?:[,;\s]+(?:and|or))?[,;.\s]*$", re.IGNORECASE)
_OF_A_TEXT = re.compile(r"(part|deduction)-\d+")
"""The ids of parts. Their writer never saw them."""
_OR = re.compile(r"(?:or|and)\s+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RubricParts:
    """What must hold and what must not happen, in the order of the text."""

    wanted: tuple[str, ...]
    unwanted: tuple[str, ...] = ()


def split_rubric(text: str) -> RubricParts:
    """The parts of a rubric; a text without numbered parts and deductions is one part, as it stands."""
    before, deductions, after = _without_deductions(text)
    numbered = _numbered(before)
    if not deductions and len(numbered) < 2:
        return RubricParts((text.strip(),))
    rest = [part for part in (after.strip(),) if part.strip(_EDGES)]
    return RubricParts((*numbered, *rest), tuple(deductions))


def rubrics_of(text: str) -> list[dict[str, Any]]:
    """The rubrics of a criterion that a text stands for; their ids say which part of it they are."""
    parts = split_rubric(text)
    if len(parts.wanted) == 1 and not parts.unwanted:
        return [_rubric("rubric", parts.wanted[0])]
    return [
        *(_rubric(f"part-{n}", part) for n, part in enumerate(parts.wanted, 1)),
        *(_rubric(f"deduction-{n}", f"This must not happen: {p}") for n, p in enumerate(parts.unwanted, 1)),
    ]


def is_part(rubric_id: str) -> bool:
    """Whether the id may be one that `rubrics_of` made up: nobody knows by it which part is meant."""
    return _OF_A_TEXT.fullmatch(rubric_id) is not None


def _rubric(rubric_id: str, text: str) -> dict[str, Any]:
    return {"rubric_id": rubric_id, "rubric_content": {"text_property": text}}


def _without_deductions(text: str) -> tuple[str, list[str], str]:
    """What stands before the deductions, they themselves, and what stands after their sentence."""
    found = _DEDUCT.search(text)
    if found is None:
        return text, [], ""
    rest = text[found.end() :]
    end = _SENTENCE_END.search(rest)
    sentence, after = (rest[: end.end()], rest[end.end() :]) if end else (rest, "")
    deductions = list(_listed(sentence))
    return (text[: found.start()], deductions, after) if deductions else (text, [], "")


def _listed(sentence: str) -> Iterator[str]:
    """The items of a list: between semicolons where there are any, else between commas."""
    for item in _split_outside_brackets(sentence, ";" if ";" in sentence else ","):
        if (
            part := _OR.sub("", item.strip(_EDGES), count=1)
            if _OR.match(item.strip(_EDGES))
            else item.strip(_EDGES)
        ):
            yield part


def _split_outside_brackets(text: str, separator: str) -> list[str]:
    items, depth = [""], 0
    for character in text:
        depth = max(0, depth + (character in "([{") - (character in ")]}"))
        if character == separator and depth == 0:
            items.append("")
        else:
            items[-1] += character
    return items


def _numbered(text: str) -> list[str]:
    """The parts that are numbered from 1 on, each after what introduces them; all as one where none are."""
    marks = _marks(text)
    if len(marks) < 2:
        return [text.strip()] if text.strip(_EDGES) else []
    lead = text[: marks[0].start()].strip().rstrip(":").strip()
    ends = [*(mark.start() for mark in marks[1:]), len(text)]
    parts = (_AND.sub("", text[mark.end() : end]).strip() for mark, end in zip(marks, ends, strict=True))
    return [f"{lead} {part}".strip() for part in parts if part]


def _marks(text: str) -> Sequence[re.Match[str]]:
    """The numbers that count on from 1; others belong to the text."""
    marks: list[re.Match[str]] = []
    for mark in _NUMBER.finditer(text):
        if int(mark[1] or mark[2]) == len(marks) + 1:
            marks.append(mark)
    return marks
