"""What an agent's tools can be asked for: goals × conditions of arguments × kinds of users, paired off."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from agentest.domain.tool_verbs import verb_effect
from agentest.plugins.adk.metrics.rouge import stem
from agentest.runner.tools import KnownTool
from agentest.support.lazy_dataclasses import dataclass

T = TypeVar("T")
PLAIN, LEAST, MOST, CHOICE, SHORT, MISSING = (
    *("plain", "at its minimum", "at its maximum", "each choice"),
    *("without optional", "missing"),
)
CONDITIONS = (PLAIN, MISSING, LEAST, MOST, CHOICE, SHORT)
STYLES: Mapping[str, str] = {
    "polite": "Hello! {} Thank you very much.",
    "terse": "{}",
    "impatient": "I am in a hurry. {}",
    "verbose": "Hello, I hope you can help me. I have thought about this for a while. {} That is all.",
    "elderly": "Good day, I am not used to chats. {}",
    "angry": "This has already taken far too long. {}",
}
"""Built-in persona → how it writes a request where no model plays it."""
_STEM_CHARS, _MOST_VALUES = 5, 12
_WORD, _CAMEL = re.compile(r"[^\W_]+"), re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_STOP = re.compile(
    "an?|and|are|as|at|be|by|can|for|from|if|in|is|it|may|must|my|not|of|on|or|per|the|to|with|you|your|\\d+"
)
_BY_NAME = (
    (("email", "mail"), "alex@example.com"),
    (("phone", "mobile"), "+1 202 555 0143"),
    (("time",), "10:00"),
    (("date", "day", "birthday"), "2030-03-14"),
    (("city", "location", "place", "destination"), "Lisbon"),
    (("name", "customer", "user", "person"), "Alex Miller"),
    (("id", "number", "no", "ref", "reference", "code", "order", "invoice"), "A-1001"),
    (("currency",), "EUR"),
    (("country",), "Portugal"),
    (("address",), "12 Mill Lane, Lisbon"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolGoal:
    """A tool as something that a user can want, with values for its arguments."""

    tool: KnownTool
    recorded: Mapping[str, Any]
    """The arguments of an earlier call; {} without one."""

    @property
    def name(self) -> str:
        return self.tool.name

    @property
    def is_write(self) -> bool:
        """True if it is declared, or looks, as if it changes something."""
        if self.tool.read_only is not None:
            return not self.tool.read_only
        method, _, path = self.name.partition(" ")
        if method.isupper() and path.startswith("/"):
            return method not in ("GET", "HEAD", "OPTIONS")
        return verb_effect(self.name) != "read"

    @property
    def words(self) -> frozenset[str]:
        return stems(self.name)

    @property
    def request(self) -> str:
        """What a user asks for, such as `Please refund my order.`"""
        sentence = re.split(r"(?<=[a-z0-9)])[.;:\n]", self.tool.description.strip(), maxsplit=1)[0]
        words = sentence.split()
        says = " ".join(words_of(self.name))
        if 1 < len(words) <= 12 and verb_effect(words[0].lower()):
            says = re.sub(r"\b(?:an?|the)\s", "my ", words[0].lower() + sentence[len(words[0]) :], count=1)
        return f"Please {says.rstrip('.')}."

    @property
    def properties(self) -> dict[str, Mapping[str, Any]]:
        schema = (self.tool.parameters or {}).get("properties")
        found: Mapping[str, Any] = schema if isinstance(schema, Mapping) else {}
        known: dict[str, Mapping[str, Any]] = {
            n: each for n, each in found.items() if isinstance(each, Mapping)
        }
        return known or {name: {} for name in self.recorded}

    @property
    def required(self) -> tuple[str, ...]:
        listed = (self.tool.parameters or {}).get("required")
        return (
            tuple(each for each in listed if isinstance(each, str) and each in self.properties)
            if isinstance(listed, list)
            else ()
        )

    @property
    def arguments(self) -> dict[str, Any]:
        """Values for the required arguments, or for all if none is declared as required."""
        names = self.required or (tuple(self.recorded) if self.recorded else tuple(self.properties)[:4])
        return {name: self.value(name) for name in names}

    def value(self, name: str) -> Any:
        schema = self.properties.get(name, {})
        return self.recorded[name] if name in self.recorded else example(name, schema)

    def variants(self, condition: str) -> tuple[tuple[str, Any], ...]:
        """Return the arguments, with values, that a condition is about; () if it does not apply."""
        found: list[tuple[str, Any]] = []
        if condition in (PLAIN, SHORT):
            optional = set(self.properties) - set(self.required)
            return (("", None),) if condition == PLAIN or (self.required and optional) else ()
        if condition == MISSING:
            return tuple((name, None) for name in self.required) if self.is_write else ()
        for name, schema in self.properties.items():
            if condition == CHOICE and isinstance(schema.get("enum"), list):
                found += [(name, each) for each in schema["enum"] if isinstance(each, str | int | float)]
            elif condition in (LEAST, MOST):
                key = "minimum" if condition == LEAST else "maximum"
                if isinstance(schema.get(key), int | float):
                    found.append((name, schema[key]))
        return tuple(found[:_MOST_VALUES])


class MatrixRow(NamedTuple):
    """One line of the matrix."""

    goal: ToolGoal
    condition: str
    argument: str
    value: Any
    style: str


def matrix(goals: Sequence[ToolGoal], seed: int) -> list[MatrixRow]:
    """Return rows with every edge of every goal, and each goal and each condition with each style."""
    rows = [
        MatrixRow(goal, condition, argument, value, style)
        for goal in goals
        for condition in CONDITIONS
        for argument, value in goal.variants(condition)
        for style in STYLES
    ]
    found = covering(rows, _pairs, seed)
    first = {row.goal.name: row for row in reversed(found) if row.condition == PLAIN}
    return [*reversed(first.values()), *(row for row in found if first.get(row.goal.name) is not row)]


def _pairs(row: MatrixRow) -> frozenset[tuple[str, ...]]:
    name, condition, style = row.goal.name, row.condition, row.style
    variant = (f"{condition} {row.argument} {row.value!r}", name)
    return frozenset((variant, ("goal", name, style), ("condition", condition, style)))


def covering(rows: Sequence[T], elements: Callable[[T], frozenset[Any]], seed: int) -> list[T]:
    """Return rows that together have every element of all rows. Greedy, and the same for a seed."""
    shuffled = random.Random(seed).sample(rows, len(rows))
    having = [elements(row) for row in shuffled]
    left: set[Any] = set().union(*having)
    found: list[T] = []
    while left:
        best = max(range(len(shuffled)), key=lambda at: len(having[at] & left))
        found.append(shuffled[best])
        left -= having[best]
    return found


def example(name: str, schema: Mapping[str, Any]) -> Any:
    """Return a value that a schema allows, as a user would write it."""
    for key in ("const", "default", "example"):
        if schema.get(key) is not None:
            return schema[key]
    for key in ("examples", "enum"):
        if isinstance(schema.get(key), list) and schema[key]:
            return schema[key][0]
    kind = schema.get("type")
    kind = next((each for each in kind if each != "null"), None) if isinstance(kind, list) else kind
    for alternative in (*(schema.get("anyOf") or ()), *(schema.get("oneOf") or ())):
        if isinstance(alternative, Mapping) and alternative.get("type") != "null":
            return example(name, alternative)
    if kind in ("integer", "number"):
        low, high = schema.get("minimum"), schema.get("maximum")
        if isinstance(low, int | float):
            return low if not isinstance(high, int | float) else type(low)((low + high) // 2)
        return min(high, 2) if isinstance(high, int | float) else 2
    if kind == "boolean":
        return True
    if kind == "array":
        items = schema.get("items")
        return [example(name, items if isinstance(items, Mapping) else {})]
    if kind == "object":
        properties = schema.get("properties")
        known = properties if isinstance(properties, Mapping) else {}
        return {key: example(key, each) for key, each in known.items() if isinstance(each, Mapping)}
    words = words_of(name)
    known_texts = (text for names, text in _BY_NAME if {*names} & {*words[-1:]})
    text = {"date": "2030-03-14", "date-time": "2030-03-14T10:00:00Z", "email": "alex@example.com"}.get(
        str(schema.get("format")), ""
    )
    return text or next(known_texts, f"my {' '.join(words) or 'value'}")


def stated(arguments: Mapping[str, Any]) -> str:
    """Return sentences in which a user states arguments."""
    return " ".join(_stated(name, value) for name, value in arguments.items() if not isinstance(value, dict))


def _stated(name: str, value: Any) -> str:
    words = " ".join(words_of(name)) or name
    if isinstance(value, bool):
        return f"{words.capitalize()}: {'yes' if value else 'no'}."
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return f"The {words} is {text}{'' if text.endswith('.') else '.'}"


def words_of(text: str) -> list[str]:
    """Return the words of a text, or of a name in any case, in lower case."""
    return [each.lower() for each in _WORD.findall(_CAMEL.sub(" ", text))]


def stems(text: str) -> frozenset[str]:
    """Return the beginnings of the words of a text, by which words of one family are equal."""
    words = (word.lower() for word in _WORD.findall(text))
    return frozenset(
        stem(each)[:_STEM_CHARS] for each in words if not _STOP.fullmatch(each) and not each.isdigit()
    )


def best_tool(
    words: frozenset[str], goals: Sequence[ToolGoal], bonus: Callable[[ToolGoal], float] | None = None
) -> ToolGoal | None:
    """Return the changing tool that shares most of these words; None if none does.

    Args:
        bonus: what else speaks for a tool. Without it, its name must share a word.
    """
    add = bonus or (lambda _: 0.0)
    scored = [(_shared(words, each) + add(each), -at, each) for at, each in enumerate(goals) if each.is_write]
    best = max(scored, key=lambda each: each[:2], default=None)
    if best and best[0] >= (1 if bonus else 3):
        return best[2]
    return scored[0][2] if bonus and len(scored) == 1 else None


def _shared(wanted: frozenset[str], goal: ToolGoal) -> float:
    about = stems(goal.tool.description) | stems(" ".join(goal.properties))
    return 3 * len(wanted & _family(goal.words)) + min(len(wanted & about), 2)


_KIN = tuple(
    map(stems, ("refund return reimburse", "book reserve schedule appointment", "buy order purchase cart"))
)


def _family(words: frozenset[str]) -> frozenset[str]:
    return words.union(*(kin for kin in _KIN if kin & words))
