"""Rules in instructions and documents, and the values at the edges of their limits."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import accumulate
from typing import Literal, NamedTuple

from agentest.support.lazy_dataclasses import dataclass

_MOST_CHARS = 400
"""A longer sentence is not a rule that a scenario can quote."""
_MOST_RULES = 200
_SENTENCE = re.compile(r"[^.!?;]+(?:[.!?;](?!\s|$)[^.!?;]*)*[.!?;]*")
_BULLET = re.compile(r"^\s*(?:[-*+•#>]+|\d{1,3}[.)]\s)\s*")
_WORDS = (
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
)
_NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d{1,9})(?:\.\d{1,4})?|" + "|".join(_WORDS[1:])
_CLOCK = r"\d{1,2}:\d{2}(?:\s?[ap]\.?m\b\.?)?|\d{1,2}\s?[ap]\.?m\b\.?"
_VALUE = rf"(?P<money>[$€£]\s?)?(?:(?P<clock>{_CLOCK})|(?P<number>{_NUMBER})\b)"
_UNIT = r"(?:\s?(?P<percent>%)|[\s-]{1,2}(?P<unit>[a-z]{2,20}))?"
_AT_MOST = (
    "up to and including|up to|at most|no more than|not more than|a maximum of|maximum of|maximum|max|within|"
    "not over|not above|not exceed(?:ing)?|never exceed(?:ing)?|no later than|not later than|until|"
    "limited to|(?:a )?limit of|limit is|may not exceed|must not exceed|cannot exceed"
)
_LESS = "less than|fewer than|under|below|before|younger than|lower than|cheaper than"
_AT_LEAST = (
    "at least|a minimum of|minimum of|minimum|min|no less than|not less than|not under|not below|"
    "no fewer than"
)
_MORE = "more than|over|above|exceeding|exceeds?|older than|after|later than|greater than|beyond"
_LIMIT = re.compile(
    rf"\b(?:(?P<at_most>{_AT_MOST})|(?P<at_least>{_AT_LEAST})|(?P<less>{_LESS})|(?P<more>{_MORE}))"
    rf"\s+(?:a |an |the |of )?{_VALUE}{_UNIT}",
    re.IGNORECASE,
)
_OR = re.compile(
    rf"{_VALUE}{_UNIT}\s+or\s+(?:(?P<at_most>fewer|less|under|below|earlier)|"
    r"(?P<at_least>more|over|later|older))\b(?:\s(?P<noun>[a-z]{2,20}))?",
    re.IGNORECASE,
)
_WINDOW = re.compile(
    rf"\b(?P<number>{_NUMBER})[\s-](?P<unit>minute|hour|day|week|month|year|item)s?(?P<at_most>[\s-]"
    r"(?:[a-z]+[\s-])?(?:window|limit|period|maximum|deadline))\b",
    re.IGNORECASE,
)
_RANGE = re.compile(
    rf"\b(?:between|from)\s+{_VALUE.replace('<', '<low_')}(?:\s?[a-z%]{{1,12}})?"
    rf"\s+(?:and|to|until)\s+{_VALUE}{_UNIT}",
    re.IGNORECASE,
)
_NEGATION = re.compile(
    r"\b(?:never|not|cannot|can't|don't|won't|no|refuse|reject|decline|deny|forbidden|prohibited|escalate|approval|"
    r"supervisor|manager|impossible|hand(?:ed)? over|unless|expires?|lapses?|void|invalid|too late)\b",
    re.IGNORECASE,
)
_BAN = re.compile(
    r"\b(?:never|must not|may not|do not|don't|cannot|not allowed|not permitted|forbidden|under no)\b", re.I
)
_CONFIRM = re.compile(
    r"\b(?:confirm(?:s|ed|ation|ing)?|consent|explicitly|permission|says? yes|approves?)\b",
    re.IGNORECASE,
)
_ASK = re.compile(r"\b(?:must |always |first )?ask(?:s|ing)?\b", re.IGNORECASE)
_CONDITION = re.compile(r"\b(?:only|unless|if|when|before|until|without|except|always|must)\b", re.IGNORECASE)
_TAIL = re.compile(r"\s+((?:after|before|since|from|of|old|in advance)\b[^,.;:()!?]{0,60})", re.IGNORECASE)
_CUT_TAIL = re.compile(
    r"\s+(?:and|or|but|if|unless|when|is|are|will|can|may|must|only|need|require)\b.*", re.IGNORECASE
)
_NO_UNIT = re.compile(
    "an?|and|are|at|but|can|cannot|do|for|from|if|in|is|may|must|needs?|not|of|old|on|or|per|should|than|"
    "the|to|will|with|"
)
_AGE = re.compile(r"\b(?:age|aged|old|adults?|minors?|alcohol)\b", re.IGNORECASE)
_SPANS = ("minute", "hour", "day", "week", "month", "year")

Kind = Literal["limit", "ban", "confirm", "ask", "condition"]


class Edge(NamedTuple):
    """A value at the edge of a limit."""

    value: str
    """As a user writes it, such as `31 days` or `17:01`."""
    number: Fraction
    is_allowed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A rule, quoted, with where it stands."""

    quote: str
    source: str
    """File and line."""
    kind: Kind
    unit: str = ""
    """Of a limit: `$`, `%`, `clock`, or a noun in the singular; "" without one."""
    tail: str = ""
    """What the limit counts from, such as `after delivery`."""
    edges: tuple[Edge, ...] = ()
    """Of a limit: one below, exactly at, and one above."""

    @property
    def is_span(self) -> bool:
        """True if the limit is an amount of time."""
        return self.unit in _SPANS

    def fact(self, edge: Edge) -> str:
        """Return a user's sentence that states the value."""
        if self.unit == "clock":
            return f"I want it at {edge.value}."
        if self.unit == "year" and not self.tail.startswith(("after", "before", "since", "from")):
            return f"I am {edge.value} old."
        if self.is_span:
            return (
                f"It is {edge.value} {re.sub('^of ', 'after ', self.tail)}."
                if self.tail
                else f"It has been {edge.value}."
            )
        if self.unit in ("$", "€", "£"):
            return f"The amount is {edge.value}."
        return f"I want {edge.value}." if self.unit else f"The number is {edge.value}."


def read_policies(text: str, source: str, first_line: int = 1) -> tuple[list[Policy], int]:
    """Return the rules of a text, and how many sentences are too long or too many to be used."""
    policies: dict[tuple[str, str, Fraction | None], Policy] = {}
    left_out = 0
    for sentence, line in _sentences(text):
        if len(sentence) > _MOST_CHARS or len(policies) >= _MOST_RULES:
            left_out += 1
            continue
        for each in policies_of(sentence, f"{source}:{first_line + line}"):
            key = (each.quote, each.unit, each.edges[0].number if each.edges else None)
            policies.setdefault(key, each)
    return list(policies.values()), left_out


def _sentences(text: str) -> Iterator[tuple[str, int]]:
    """Yield each sentence with its line, counted from 0. Lines of a paragraph belong together."""
    paragraph: list[tuple[str, int]] = []
    for number, line in enumerate([*text.splitlines(), ""]):
        begins = not line.strip() or _BULLET.match(line)
        if begins and paragraph:
            yield from _sentences_of(paragraph)
            paragraph = []
        if line.strip():
            paragraph.append((_BULLET.sub("", line).strip(), number))


def _sentences_of(paragraph: Sequence[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    joined = " ".join(text for text, _ in paragraph)
    starts = [0, *accumulate(len(text) + 1 for text, _ in paragraph[:-1])]
    for match in _SENTENCE.finditer(joined):
        begin = match.start() + len(match[0]) - len(match[0].lstrip())
        if sentence := match[0].strip(" *_`\t"):
            yield sentence, paragraph[bisect_right(starts, begin) - 1][1]


def policies_of(sentence: str, source: str) -> Iterator[Policy]:
    """Yield the rules of one sentence: each limit, else a ban, a question, or a condition."""
    found = False
    taken: list[tuple[int, int]] = []
    for pattern in (_RANGE, _OR, _LIMIT, _WINDOW):
        for match in pattern.finditer(sentence):
            if any(match.start() < end and start < match.end() for start, end in taken):
                continue
            taken.append(match.span())
            for policy in _limits(match, sentence, source):
                found = True
                yield policy
    if found:
        return
    kind: Kind | None = None
    if _ASK.search(sentence) and not _CONFIRM.search(sentence):
        kind = "ask"
    elif _CONFIRM.search(sentence):
        kind = "confirm"
    elif _BAN.search(sentence):
        kind = (
            "condition"
            if re.search(r"\b(?:unless|if|until|without|except|before|when)\b", sentence, re.IGNORECASE)
            else "ban"
        )
    elif _CONDITION.search(sentence):
        kind = "condition"
    if kind:
        yield Policy(quote=sentence, source=source, kind=kind)


def _limits(match: re.Match[str], sentence: str, source: str) -> Iterator[Policy]:
    groups = match.groupdict()
    value = _number(groups.get("clock") or groups["number"], is_clock=bool(groups.get("clock")))
    if value is None:
        return
    unit = next((groups[name] for name in ("money", "percent", "unit", "noun") if groups.get(name)), "")
    unit = "clock" if groups.get("clock") else _singular(unit.strip().lower())
    if _NO_UNIT.fullmatch(unit):
        unit = "year" if _AGE.search(sentence) else ""
    tail = _TAIL.match(sentence, match.end())
    around = sentence[: match.start()] + " " + sentence[match.end() :]
    is_negative = bool(_NEGATION.search(around))
    bounds: list[tuple[Fraction, str]]
    if match.re is _RANGE:
        low = _number(groups["low_clock"] or groups["low_number"], is_clock=bool(groups["low_clock"]))
        if low is None or low >= value:
            return
        bounds = [(low, "at_least"), (value, "at_most")]
    else:
        bounds = [(value, next(name for name in ("at_most", "at_least", "less", "more") if groups.get(name)))]
    for limit, comparison in bounds:
        edges = tuple(
            Edge(_written(each, unit, sentence), each, _holds(comparison, step) != is_negative)
            for step in (-1, 0, 1)
            if (each := limit + step) >= 0
        )
        yield Policy(
            quote=sentence,
            source=source,
            kind="limit",
            unit=unit,
            tail=_CUT_TAIL.sub("", tail[1]).strip() if tail else "",
            edges=edges,
        )


def _holds(comparison: str, step: int) -> bool:
    return {"at_most": step <= 0, "less": step < 0, "at_least": step >= 0, "more": step > 0}[comparison]


def _number(text: str | None, *, is_clock: bool) -> Fraction | None:
    """Return a number, or a time of day in minutes."""
    if not text:
        return None
    if is_clock:
        hours, minutes = re.match(r"(\d+)(?::(\d+))?", text).groups()  # type: ignore[union-attr]
        late = 12 * ("p" in text.lower()) if hours != "12" else -12 * ("a" in text.lower())
        total = (int(hours) + late) * 60 + int(minutes or 0)
        return Fraction(total) if 0 <= total < 24 * 60 else None
    return Fraction(_WORDS.index(text.lower())) if text.lower() in _WORDS else Fraction(text.replace(",", ""))


def _written(value: Fraction, unit: str, sentence: str) -> str:
    """Return a value as the rule writes it."""
    if unit == "clock":
        hours, minutes = divmod(int(value), 60)
        if re.search(r"\d\s?[ap]\.?m\b", sentence, re.IGNORECASE):
            return f"{(hours - 1) % 12 + 1}:{minutes:02d} {'pm' if hours >= 12 else 'am'}"
        return f"{hours}:{minutes:02d}"
    plain = str(int(value)) if value.denominator == 1 else str(float(value))
    if unit in ("$", "€", "£"):
        return unit + plain
    if unit == "%" or not unit:
        return plain + unit
    return f"{plain} {unit if value == 1 else _plural(unit)}"


def _singular(unit: str) -> str:
    if unit.endswith("ies"):
        return unit[:-3] + "y"
    if unit in _PLURALS:
        return _PLURALS[unit]
    return unit[:-1] if len(unit) > 3 and unit.endswith("s") and not unit.endswith("ss") else unit


_PLURALS = {"people": "person", "children": "child", "boxes": "box"}


def _plural(unit: str) -> str:
    irregular = {one: many for many, one in _PLURALS.items()}
    if unit in irregular or unit in ("usd", "eur", "gbp", "percent", "kg", "km"):
        return irregular.get(unit, unit)
    return unit[:-1] + "ies" if unit.endswith("y") and unit[-2:-1] not in "aeiou" else f"{unit}s"
