"""`hallucinations_v1`: which share of what an agent says is borne out by what it was told."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import fsum
from typing import ClassVar, Literal, Self

from pydantic import BaseModel, model_validator

from agentest.adk.metrics.prompts import grounding_question
from agentest.adk.metrics.turn_judge import Panel, Sampled, TurnJudge, concurrently, majority, reply_messages
from agentest.domain.results import MetricResult, Score, Skipped, Unscored
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import Conversation, ToolCall, Turn
from agentest.models.structured_output import UNDESCRIBED

_GROUNDED = ("supported", "not_applicable")
_SHOWN = 120
"""How many characters of a sentence a reason shows."""


class SentenceLabel(BaseModel):
    """What a judge says of one sentence."""

    model_config = UNDESCRIBED

    sentence: int
    reason: str
    label: Literal["supported", "unsupported", "contradictory", "disputed", "not_applicable"]


class SentenceLabels(BaseModel):
    """What a judge says of every sentence: exactly one label each. `asked` is how many there are."""

    model_config = UNDESCRIBED

    asked: ClassVar[int]

    labels: list[SentenceLabel]

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        numbers = Counter(label.sentence for label in self.labels)
        for number in range(1, self.asked + 1):
            if numbers.pop(number, 0) != 1:
                raise ValueError(f"sentence {number} must have exactly one label")
        if numbers:
            raise ValueError(f"there is no sentence {min(numbers)}; they are numbered from 1 to {self.asked}")
        return self

    def by_sentence(self) -> dict[int, SentenceLabel]:
        return {label.sentence: label for label in self.labels}

    def share(self) -> float:
        return sum(label.label in _GROUNDED for label in self.labels) / self.asked


@cache
def sentence_labels(count: int) -> type[SentenceLabels]:
    """The shape of the labels of so many sentences."""

    class Labels(SentenceLabels):
        asked: ClassVar[int] = count

    return Labels


@dataclass(frozen=True, slots=True)
class _Statement:
    """One of the things that the agent said in a turn: its reply or a remark."""

    sentences: tuple[str, ...]
    source: str
    turn: Turn
    """The turn as far as it had come, where that is known."""


class HallucinationsV1(TurnJudge):
    """The share of sentences that are supported or claim nothing, 0 to 1.

    With `evaluate_intermediate_nl_responses` the mean of the shares of each remark and of the reply. A remark
    is judged by what had been called before it; where the agent does not tell that, by all of the turn's
    calls. What the agent was told is evidence, too. A label is
    decided by the majority of the samples, a tie against the sentence. A turn without any sentence is left
    out; one of whose statements no judge could be had is unscored.
    """

    __slots__ = ()

    def _no_turn(self) -> Skipped:
        return Skipped("the agent said no sentence")

    def _statements(self, turn: Turn) -> list[_Statement]:
        statements = [_Statement(sentences(turn.agent_message), "its reply", turn)]
        if self.criterion.evaluate_intermediate_nl_responses:
            statements[:0] = [_remark(turn, at) for at in range(len(turn.remarks))]
        return [statement for statement in statements if statement.sentences]

    async def _score(self, turn: Turn, conversation: Conversation, panel: Panel) -> MetricResult | None:
        statements = self._statements(turn)
        if not statements:
            return None

        async def judged(nth: int) -> Score | Unscored:
            statement = statements[nth]
            question = grounding_question(statement.sentences, statement.source)
            messages = reply_messages(
                self.case, self.criterion, conversation, statement.turn, question, self.facts
            )
            shape = sentence_labels(len(statement.sentences))
            return _share(statement.sentences, await panel.ask(messages, shape, turn.turn_index, nth))

        results = await concurrently(judged, range(len(statements)))
        return _mean(results, panel.samples * len(statements))


def _remark(turn: Turn, at: int) -> _Statement:
    """A remark in the turn as it was when it was made: what came later bears nothing of it out."""
    remark = turn.remarks[at]
    split = sentences(remark.text)
    if remark.calls_before is None or not all(_told_by_protocol(call) for call in turn.tool_calls):
        return _Statement(split, "a remark on the way to its reply", turn)
    until = replace(
        turn,
        agent_message=remark.text,
        author=remark.author,
        remarks=turn.remarks[:at],
        tool_calls=turn.tool_calls[: remark.calls_before],
        state_after=None,
    )
    return _Statement(split, "what it said last, on the way to its reply,", until)


def _told_by_protocol(call: ToolCall) -> bool:
    """Whether a call is one of those that are counted in a remark's `calls_before`."""
    return call.seen_by in (SeenBy.AGENT, SeenBy.CALLER) or SeenBy.AGENT in call.also_seen_by


def _share(said: Sequence[str], sampled: Sampled[SentenceLabels]) -> Score | Unscored:
    """The share of grounded sentences by majority, with every sample's share."""
    if not sampled.answers:
        return Unscored(sampled.problem)
    by_sample = [answer.by_sentence() for answer in sampled.answers]
    problems = [
        problem
        for number, sentence in enumerate(said, start=1)
        if (problem := _problem(sentence, [labels[number] for labels in by_sample]))
    ]
    value = (len(said) - len(problems)) / len(said)
    return Score(value, "; ".join(problems), tuple(answer.share() for answer in sampled.answers))


def _problem(sentence: str, labels: Sequence[SentenceLabel]) -> str:
    """What most judges hold against a sentence; "" where most hold nothing."""
    if majority([label.label in _GROUNDED for label in labels]):
        return ""
    against = next(label for label in labels if label.label not in _GROUNDED)
    shown = sentence if len(sentence) <= _SHOWN else sentence[:_SHOWN] + "…"
    return f"{against.label}: “{shown}” ({against.reason})"


def _mean(results: Sequence[Score | Unscored], asked: int) -> Score | Unscored:
    """One result for a turn's statements: the mean of their values, if all have one."""
    for result in results:
        if isinstance(result, Unscored):
            return result
    scores = [result for result in results if isinstance(result, Score)]
    value = fsum(float(score.value) for score in scores) / len(scores)
    reason = "; ".join(score.reason for score in scores if score.reason)
    samples = tuple(sample for score in scores for sample in score.samples)
    return Score(value, reason or "every sentence is supported", samples if asked > 1 else ())


_CLOSING = "\"'”’»)\\]}」』”）】》〉*_"
# Marks that end a sentence wherever they stand, and marks that do so before white space.
_END = re.compile(
    rf"[。！？｡．।॥۔؟።។။]++[{_CLOSING}]*+|(?<![.!?…])[.!?…]++[{_CLOSING}]*+(?=\s)",
)
_ITEM = re.compile(r"\s*(?:[-*+•‣·–>]|#{1,6}|\(?\d{1,3}[.)]|\(?[A-Za-z][.)])\s+")
_LONGEST_WORD = 40
_FENCE = re.compile(r"\s*(```|~~~)")
_DOTTED = re.compile(r"(?:\w\.)*\w")
"""`U.S`, `e.g`, `p.m`, and initials: single characters with stops between them."""
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
"""Abbreviations only before a number: "No. 5", but "No. We don't."."""


def sentences(text: str) -> tuple[str, ...]:
    """The text's sentences in order: what has a letter or a digit. A text of pictograms alone is one."""
    result = [
        sentence.strip()
        for chunk, whole in _chunks(text)
        for sentence in ([chunk] if whole else _split(chunk))
        if any(map(str.isalnum, sentence))
    ]
    pictogram = any(unicodedata.category(char) == "So" for char in text)
    return tuple(result) if result or not pictogram else (text.strip(),)


def _chunks(text: str) -> Iterator[tuple[str, bool]]:
    """Paragraphs, list items and headings; tables and code blocks, which are whole (True)."""
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
        goes_on = not opens and (row if kind == "table" else not row and _continues(lines, line))
        if lines and not goes_on:
            yield "\n".join(lines), kind == "table"
            lines = []
        lines.append(line)
        kind = "code" if opens else "table" if row else "text"
    if lines:  # a code block that nobody closed
        yield "\n".join(lines), kind != "text"


def _continues(lines: list[str], line: str) -> bool:
    """Whether a line goes on with the sentence before it, which was broken to fit."""
    return bool(lines) and line.lstrip()[:1].islower() and not _ITEM.match(line)


def _split(chunk: str) -> Iterator[str]:
    mark = _ITEM.match(chunk)
    start, begins = 0, mark.end() if mark else 0
    for end in _END.finditer(chunk, begins):
        if _ends(chunk, start, end):
            yield chunk[start : end.end()]
            start = end.end()
    yield chunk[start:]


def _ends(chunk: str, start: int, end: re.Match[str]) -> bool:
    """Whether what looks like the end of a sentence is one."""
    if not end[0].startswith((".", "!", "?", "…")):
        return True
    rest = chunk[end.end() : end.end() + 80].lstrip()
    if rest[:1].islower():
        return False
    # The end of it alone: where no sentence ends, copying all of it again and again would take for ever.
    before = chunk[max(start, end.start() - _LONGEST_WORD) : end.start()]
    return not end[0].startswith(".") or not _abbreviated(before, rest)


def _abbreviated(before: str, rest: str) -> bool:
    words = before.split()
    word = words[-1].lstrip("\"'“‘«([{*_") if words else ""
    if word.casefold() in _BEFORE_NUMBERS:
        return rest[:1].isdigit()
    letters = word.replace(".", "").isalpha()
    return word.casefold() in _ABBREVIATIONS or bool(letters and _DOTTED.fullmatch(word))
