"""`hallucinations_v1`: split replies into sentences, and score the share that evidence supports."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from math import fsum
from typing import ClassVar, Literal, Self

from pydantic import model_validator

from agentest.domain.results import Score, Unscored
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import Turn
from agentest.models.port import StructuredAnswer
from agentest.plugins.adk.metrics.grader import majority
from agentest.support.lazy_dataclasses import dataclass

_GROUNDED = ("supported", "not_applicable")
_MAX_SHOWN_CHARS = 120  # maximum number of characters of a sentence in a reason


class SentenceLabel(StructuredAnswer):
    """A judge's label of one sentence."""

    sentence: int
    reason: str
    label: Literal["supported", "unsupported", "contradictory", "disputed", "not_applicable"]


class SentenceLabels(StructuredAnswer):
    """A judge's labels: exactly one for each sentence. `sentence_count` is their number."""

    sentence_count: ClassVar[int]

    labels: list[SentenceLabel]

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        numbers = Counter(label.sentence for label in self.labels)
        for number in range(1, self.sentence_count + 1):
            if numbers.pop(number, 0) != 1:
                raise ValueError(f"sentence {number} must have exactly one label")
        if numbers:
            raise ValueError(
                f"there is no sentence {min(numbers)}; they are numbered from 1 to {self.sentence_count}"
            )
        return self

    def share(self) -> float:
        return sum(label.label in _GROUNDED for label in self.labels) / self.sentence_count


@cache
def sentence_labels(count: int) -> type[SentenceLabels]:
    """Return the answer type for this number of sentences."""

    class Labels(SentenceLabels):
        sentence_count: ClassVar[int] = count

    return Labels


@dataclass(frozen=True, slots=True)
class Statement:
    """A reply or an earlier message of the agent in a turn."""

    sentences: tuple[str, ...]
    source: str
    turn: Turn  # the turn up to this message, if known


def statements_of(turn: Turn, every_message: bool) -> list[Statement]:
    """Return the reply, or, with `every_message`, all messages of the agent, if they have sentences.

    An earlier message is judged by the calls before it, or by all calls of the turn if the agent does not
    report their order.
    """
    statements = [Statement(sentences(turn.agent_message), "its reply", turn)]
    if every_message:
        statements[:0] = [_as_of_remark(turn, at) for at in range(len(turn.remarks))]
    return [statement for statement in statements if statement.sentences]


def _as_of_remark(turn: Turn, at: int) -> Statement:
    """Return an earlier message with the turn as it was then, because later calls do not support it."""
    remark = turn.remarks[at]
    split = sentences(remark.text)
    agents = (SeenBy.AGENT, SeenBy.CALLER)  # only their calls count toward `calls_before`
    counted = all(c.seen_by in agents or SeenBy.AGENT in c.also_seen_by for c in turn.tool_calls)
    if remark.calls_before is None or not counted:
        return Statement(split, "a remark on the way to its reply", turn)
    until = replace(
        turn,
        agent_message=remark.text,
        author=remark.author,
        remarks=turn.remarks[:at],
        tool_calls=turn.tool_calls[: remark.calls_before],
        state_after=None,
    )
    return Statement(split, "what it said last, on the way to its reply,", until)


def grounded_share(statements: Sequence[str], answers: Sequence[SentenceLabels]) -> Score:
    """Return the share of grounded sentences by majority, a tie counting against a sentence."""
    problems = []
    for number, sentence in enumerate(statements, start=1):
        labels = [label for answer in answers for label in answer.labels if label.sentence == number]
        if majority([label.label in _GROUNDED for label in labels]):
            continue
        against = next(label for label in labels if label.label not in _GROUNDED)
        quote = sentence if len(sentence) <= _MAX_SHOWN_CHARS else sentence[:_MAX_SHOWN_CHARS] + "…"
        problems.append(f"{against.label}: “{quote}” ({against.reason})")
    value = (len(statements) - len(problems)) / len(statements)
    return Score(value, "; ".join(problems), tuple(answer.share() for answer in answers))


def mean_of_statements(results: Sequence[Score | Unscored]) -> Score | Unscored:
    """Combine a turn's statements: the mean of their values if all have one."""
    unscored = next((result for result in results if isinstance(result, Unscored)), None)
    if unscored:
        return unscored
    scores = [result for result in results if isinstance(result, Score)]
    value = fsum(float(score.value) for score in scores) / len(scores)
    reason = "; ".join(score.reason for score in scores if score.reason)
    samples = tuple(sample for score in scores for sample in score.samples)
    return Score(value, reason or "every sentence is supported", samples)


_CLOSING = "\"'”’»)\\]}」』”）】》〉*_"
# Marks that always end a sentence, and marks that end one only before white space.
_END = re.compile(rf"[。！？｡．।॥۔؟።។။]++[{_CLOSING}]*+|(?<![.!?…])[.!?…]++[{_CLOSING}]*+(?=\s)")
_ITEM = re.compile(r"\s*(?:[-*+•‣·–>]|#{1,6}|\(?\d{1,3}[.)]|\(?[A-Za-z][.)])\s+")
_LONGEST_WORD = 40
_FENCE = re.compile(r"\s*(```|~~~)")
_DOTTED = re.compile(r"(?:\w\.)*\w")
"""`U.S`, `e.g`, `p.m`, and initials: single characters separated by periods."""
_WORD = re.compile(r"\w+")
_ABBREVIATIONS = frozenset(
    _WORD.findall("mr mrs ms dr prof jr sr st vs etc ca cf al inc ltd co corp dept bzw usw hr herr mme mlle")
)
_BEFORE_NUMBERS = frozenset(
    _WORD.findall(
        "no nr nos p pp fig sec vol ch art ver v approx est incl max min tel ext jan feb mar apr jun jul aug "
        "sep sept oct nov dec mon tue wed thu fri sat sun"
    )
)
"""Words that are abbreviations only before a number: "No. 5", but "No. We don't."; compared in lower case."""


def sentences(text: str) -> tuple[str, ...]:
    """Split a text into sentences: parts with a letter or a digit. Pictograms alone are one sentence."""
    result = [
        sentence.strip()
        for chunk, is_sentence in _text_chunks(text)
        for sentence in ([chunk] if is_sentence else _split(chunk))
        if any(map(str.isalnum, sentence))
    ]
    pictogram = any(unicodedata.category(char) == "So" for char in text)
    return tuple(result) if result or not pictogram else (text.strip(),)


def _text_chunks(text: str) -> Iterator[tuple[str, bool]]:
    lines: list[str] = []
    kind = "text"
    for line in [*text.splitlines(), ""]:
        opens = _FENCE.match(line)
        if kind == "code":
            lines.append(line)
            if opens:
                yield "\n".join(lines), True
                lines, kind = [], "text"
            continue
        row = line.lstrip().startswith("|")
        is_lower = line.lstrip()[:1].islower() and not _ITEM.match(line)  # in the middle of a sentence
        goes_on = not opens and (row if kind == "table" else not row and is_lower)
        if lines and not goes_on:
            yield "\n".join(lines), kind == "table"
            lines = []
        lines.append(line)
        kind = "code" if opens else "table" if row else "text"
    if lines:  # an unclosed code block
        yield "\n".join(lines), kind != "text"


def _split(chunk: str) -> Iterator[str]:
    mark = _ITEM.match(chunk)
    start, begins = 0, mark.end() if mark else 0
    for end in _END.finditer(chunk, begins):
        if _ends_sentence(chunk, start, end):
            yield chunk[start : end.end()]
            start = end.end()
    yield chunk[start:]


def _ends_sentence(chunk: str, start: int, end: re.Match[str]) -> bool:
    if not end[0].startswith((".", "!", "?", "…")):
        return True
    rest = chunk[end.end() : end.end() + 80].lstrip()
    if rest[:1].islower():
        return False
    # Look at the last characters only: copying the whole text each time would take quadratic time.
    before = chunk[max(start, end.start() - _LONGEST_WORD) : end.start()]
    return not end[0].startswith(".") or not _abbreviated(before, rest)


def _abbreviated(before: str, rest: str) -> bool:
    words = before.split()
    word = words[-1].lstrip("\"'“‘«([{*_") if words else ""
    if word.casefold() in _BEFORE_NUMBERS:
        return rest[:1].isdigit()
    letters = word.replace(".", "").isalpha()
    return word.casefold() in _ABBREVIATIONS or bool(letters and _DOTTED.fullmatch(word))
