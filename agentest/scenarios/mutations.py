"""Mutations of scripted user messages, without a model.

Each keeps the facts of a script (numbers, names, addresses) unless its relation is `new`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from agentest.plugin import PLUGINS
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import SENTENCE_END, sentences

_Change = Callable[[Sequence[str], random.Random], list[str] | None]


@dataclass(frozen=True, slots=True)
class Mutation:
    """One way to change a script."""

    relation: str  # how the agent's writes relate to those without it: `same`, `fewer` (a subset) or `new`
    change: _Change  # returns the changed messages; None if it cannot change them


def _at(
    places: Callable[[Sequence[str]], Sequence[int]],
    change: Callable[[Sequence[str], int, random.Random], list[str]],
) -> _Change:

    def mutate(texts: Sequence[str], rng: random.Random) -> list[str] | None:
        found = places(texts)
        return change(texts, rng.choice(found), rng) if found else None

    return mutate


def _if_different(change: Callable[[Sequence[str], random.Random], list[str]]) -> _Change:
    def mutate(texts: Sequence[str], rng: random.Random) -> list[str] | None:
        changed = change(texts, rng)
        return changed if changed != list(texts) else None

    return mutate


_AGREEMENT = re.compile(
    r"\s*(?:yes|yeah|yep|sure|ok|okay|confirm(?:ed)?|agreed|correct|right|exactly|do it|go ahead|please do|ja"
    r"|oui|sí)\b(?!.*\?)",
    re.IGNORECASE | re.DOTALL,
)
_MOST_AGREEMENT_WORDS = 8
_JOINT = re.compile(r"(?<!\s),?\s++(?=and\s)|[;,]\s+", re.IGNORECASE)
_PREPOSITION = re.compile(r"(?<!\s)\s+(?=(?:at|on|for|with|from|by)\s)", re.IGNORECASE)
_REFERS = re.compile(r"\b(?:it|this|that|these|those|them|one|both|first|second|last|then)\b", re.IGNORECASE)
_FACT = re.compile(r"(?<!\S)\S*[\d@/_]\S*|\"[^\"]*\"")
_ID = re.compile(r"(?<![\w@./-])([A-Za-z]{1,6})(-?)(\d+)(?![\w@/-]|[.,]\d)")
_PLAIN_WORD = re.compile(r"(?<![\w@./-])[a-z]{5,}(?![\w@/-])")
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_VALUE = re.compile(r"(?<![\w.,:-])\d+(?![\w:-]|[.,]\d)|\b(?:" + "|".join(_DAYS) + r")\b")
CORRECTION = re.compile(r"\bSorry, not (?P<wrong>\w+), (?P<right>\w+)\.")  # how `correct` words a correction
DENIAL = "No, do not do that."  # the message of `deny`
_TRANSLATIONS: Mapping[str, str] = {
    "hello": "hola",
    "hi": "hola",
    "good morning": "buenos días",
    "please": "por favor",
    "thanks": "gracias",
    "thank you": "gracias",
    "yes": "sí",
    "no": "no",
    "goodbye": "adiós",
    "bye": "adiós",
}
"""Words that carry no fact."""
_TRANSLATED = re.compile(r"\b(?:" + "|".join(sorted(_TRANSLATIONS, key=len, reverse=True)) + r")\b", re.I)
_FILLER = (
    "The light over the hills was soft this morning and the air smelled of rain.",
    "My neighbor told me a story about a boat on a quiet lake.",
    "There is a song that I have had in my head since breakfast.",
    "The leaves in the park are turning yellow and red.",
    "I like the sound of trains far away in the evening.",
    "Somebody painted the bench near the fountain green.",
)
"""Sentences without facts, requests or questions."""
_SHORTEST_LONG, _LONGEST_LONG = 4_000, 30_000
_OFF_TOPIC = ("By the way, what a gray sky today.", "My cat is asleep on the keyboard again, sorry.")
_INTERRUPTION = "Wait, a question first: what else can you help me with?"
_SECOND_GOAL = "Besides that, tell me in one sentence what you can help me with."


def is_agreement(text: str) -> bool:
    """Return True for a short message that says yes."""
    return len(text.split()) <= _MOST_AGREEMENT_WORDS and _AGREEMENT.match(text) is not None


def _requests(texts: Sequence[str]) -> list[int]:
    return [at for at, text in enumerate(texts) if text.strip() and not is_agreement(text)]


def _agreements(texts: Sequence[str]) -> list[int]:
    return [at for at, text in enumerate(texts) if at and is_agreement(text)]


def _with(texts: Sequence[str], at: int, *instead: str) -> list[str]:
    return [*texts[:at], *instead, *texts[at + 1 :]]


def _reorder(texts: Sequence[str], rng: random.Random) -> list[str] | None:
    free = [at for at in _requests(texts) if not _REFERS.search(texts[at])]
    if several := [at for at in free if len(sentences(texts[at])) > 1]:
        at = rng.choice(several)
        first, *others = sentences(texts[at])
        return _with(texts, at, " ".join([*others, first]))
    neighbors = [
        first for first, second in pairwise(free) if second == first + 1 and texts[first] != texts[second]
    ]
    if not neighbors:
        return None
    at = rng.choice(neighbors)
    return [*texts[:at], texts[at + 1], texts[at], *texts[at + 2 :]]


def _split(texts: Sequence[str], rng: random.Random) -> list[str] | None:
    for pattern in (SENTENCE_END, _JOINT, _PREPOSITION):
        if cuts := [(at, cut) for at in _requests(texts) for cut in _cuts(texts[at], pattern)]:
            break
    else:
        return None
    at, (end, begin) = rng.choice(cuts)
    return _with(texts, at, texts[at][:end].rstrip(), texts[at][begin:].lstrip())


def _cuts(text: str, pattern: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    for found in pattern.finditer(text):
        is_free = pattern is not _PREPOSITION or not _in_fact(text, found.start())
        if is_free and text[: found.start()].strip() and text[found.end() :].strip():
            yield found.span()


def _pairs(texts: Sequence[str]) -> list[int]:
    return [first for first, second in pairwise(_requests(texts)) if second == first + 1]


def _merge(texts: Sequence[str], at: int, _: random.Random) -> list[str]:
    return [*texts[:at], f"{texts[at].rstrip()} {texts[at + 1].lstrip()}", *texts[at + 2 :]]


def _drop(texts: Sequence[str], rng: random.Random) -> list[str] | None:
    messages = [at for at in _requests(texts) if 0 < at < len(texts) - 1]
    if messages:
        return _with(texts, rng.choice(messages))
    several = [at for at in _requests(texts) if len(sentences(texts[at])) > 1]
    if not several:
        return None
    at = rng.choice(several)
    left = sentences(texts[at])
    del left[rng.randrange(1, len(left))]
    return _with(texts, at, " ".join(left))


def _twice(texts: Sequence[str], at: int, _: random.Random) -> list[str]:
    return _with(texts, at, texts[at], texts[at])


def _typos(texts: Sequence[str], rng: random.Random) -> list[str]:
    return [text if is_agreement(text) else _mistyped(text, rng) for text in texts]


def _mistyped(text: str, rng: random.Random) -> str:
    places = [found.span() for found in _PLAIN_WORD.finditer(text) if not _in_fact(text, found.start())]
    letters = list(text)
    for begin, end in rng.sample(places, min(len(places), 1 + len(places) // 4)):
        at = rng.randrange(begin + 1, end - 2)
        letters[at], letters[at + 1] = letters[at + 1], letters[at]
    return "".join(letters)


def _in_fact(text: str, at: int) -> bool:
    return any(found.start() <= at < found.end() for found in _FACT.finditer(text))


def _case(texts: Sequence[str], rng: random.Random) -> list[str]:
    convert = rng.choice((str.upper, str.lower))
    changed = [_outside_facts(text, convert) for text in texts]
    return changed if changed != list(texts) else [_outside_facts(text, str.upper) for text in texts]


def _outside_facts(text: str, convert: Callable[[str], str]) -> str:
    parts, end = [], 0
    for found in _FACT.finditer(text):
        parts += [convert(text[end : found.start()]), found.group()]
        end = found.end()
    return "".join([*parts, convert(text[end:])])


def _language(texts: Sequence[str], _: random.Random) -> list[str]:
    return [_TRANSLATED.sub(lambda found: _TRANSLATIONS[found.group().lower()], text) for text in texts]


def _long(texts: Sequence[str], at: int, rng: random.Random) -> list[str]:
    size = rng.randint(_SHORTEST_LONG, _LONGEST_LONG)
    return _with(texts, at, f"{filler(size, rng)}\n\n{texts[at]}")


def filler(size: int, rng: random.Random) -> str:
    """Return at least `size` characters of talk without facts, requests or questions."""
    sentences: list[str] = []
    while size > 0:
        sentences.append(rng.choice(_FILLER))
        size -= len(sentences[-1]) + 1
    return " ".join(sentences)


def _inserted(message: Callable[[random.Random], str]) -> _Change:
    # Not before a yes: it would no longer answer what it answers.
    return _at(
        lambda texts: [n for n in range(1, len(texts) + 1) if n == len(texts) or not is_agreement(texts[n])],
        lambda texts, at, rng: [*texts[:at], message(rng), *texts[at:]],
    )


def _after_first(texts: Sequence[str]) -> range:
    return range(1, len(texts))


def _values(texts: Sequence[str]) -> list[tuple[int, str]]:
    return [(at, found.group()) for at in _requests(texts) for found in _VALUE.finditer(texts[at])]


def other_value(value: str) -> str:
    """Return another number or weekday."""
    if value.isdecimal():
        return str(int(value) + 1).zfill(len(value))
    return _DAYS[(_DAYS.index(value) + 1) % len(_DAYS)]


def _correct(texts: Sequence[str], rng: random.Random) -> list[str] | None:
    values = [(at, value) for at, value in _values(texts) if texts[at].count(value) == 1]
    if not values:
        return None
    at, value = rng.choice(values)
    correction = f"Sorry, not {value}, {other_value(value)}."
    if at + 1 < len(texts) and rng.random() < 0.5:  # the last message may have its effect at once
        return [*texts[: at + 1], correction, *texts[at + 1 :]]
    return _with(texts, at, f"{texts[at].rstrip()} {correction}")


def _contradict(texts: Sequence[str], rng: random.Random) -> list[str] | None:
    values = _values(texts)
    if not values:
        return None
    at, value = rng.choice(values)
    other = texts[at].replace(value, other_value(value))
    return _with(texts, at, f"{texts[at].rstrip()} {other}")


def _two_goals(texts: Sequence[str], at: int, _: random.Random) -> list[str]:
    return _with(texts, at, f"{texts[at].rstrip()} {_SECOND_GOAL}")


def _again(texts: Sequence[str], _: random.Random) -> list[str] | None:
    requests = [texts[at] for at in _requests(texts)]
    return [*texts, *requests] if requests else None


def _id_case(texts: Sequence[str], rng: random.Random) -> list[str]:
    """Write identifiers in small letters, with a space or without a hyphen."""
    joint, lower = rng.choice(((" ", True), ("", True), (" ", False), ("-", True)))

    def spelled(found: re.Match[str]) -> str:
        letters = found[1].lower() if lower else found[1]
        return f"{letters}{joint if found[2] else ''}{found[3]}"

    return [_ID.sub(spelled, text) for text in texts]


def _far_constraint(texts: Sequence[str], _: random.Random) -> list[str] | None:
    """Say six other things after the first request, else after its first sentence."""
    at = next(iter(_requests(texts)), None)
    if at is None:
        return None
    if at + 1 < len(texts) and not is_agreement(texts[at + 1]):
        return [*texts[: at + 1], *_FILLER, *texts[at + 1 :]]
    first, *others = sentences(texts[at])
    return _with(texts, at, first, *_FILLER, " ".join(others)) if others else None


OURS: Mapping[str, Mutation] = {
    "duplicate": Mutation("same", _at(lambda texts: range(len(texts)), _twice)),
    "correct": Mutation("new", _correct),
    "deny": Mutation("fewer", _at(_agreements, lambda texts, at, _: [*texts[:at], DENIAL])),
    "repeat_yes": Mutation("same", _at(_agreements, _twice)),
    "again": Mutation("same", _again),
    "id_case": Mutation("same", _if_different(_id_case)),
    "stop_early": Mutation("fewer", _at(_after_first, lambda texts, at, _: [*texts[:at]])),
    "split": Mutation("same", _split),
    "merge": Mutation("same", _at(_pairs, _merge)),
    "interrupt": Mutation(
        "fewer", _at(_after_first, lambda texts, at, _: [*texts[:at], _INTERRUPTION, *texts[at:]])
    ),
    "empty": Mutation("fewer", _inserted(lambda _: "")),
    "typos": Mutation("same", _if_different(_typos)),
    "case": Mutation("same", _if_different(_case)),
    "long": Mutation("same", _at(_requests, _long)),
    "far_constraint": Mutation("same", _far_constraint),
    "emoji": Mutation(
        "same", _at(_requests, lambda texts, at, _: _with(texts, at, f"שלום 👋 {texts[at]} 🙏🏽"))
    ),
    "reorder": Mutation("same", _reorder),
    "drop": Mutation("fewer", _drop),
    "contradict": Mutation("new", _contradict),
    "language": Mutation("same", _if_different(_language)),
    "off_topic": Mutation("same", _inserted(lambda rng: rng.choice(_OFF_TOPIC))),
    "two_goals": Mutation("same", _at(_requests, _two_goals)),
}
"""Those that find most come first."""


class _Mutations(Mapping[str, Mutation]):
    """Ours, then those of plug-ins, which are read for a name that is not ours, and to list all."""

    def __getitem__(self, name: str) -> Mutation:
        if name in OURS:
            return OURS[name]
        change = PLUGINS.find("change", name)
        if change is None:
            raise KeyError(name)
        mutation: Mutation = change.load(of=Mutation)
        return mutation

    def __contains__(self, name: object) -> bool:
        return name in OURS or (isinstance(name, str) and PLUGINS.find("change", name) is not None)

    def __iter__(self) -> Iterator[str]:
        return iter({**OURS, **PLUGINS.all("change")})

    def __len__(self) -> int:
        return sum(1 for _ in self)


MUTATIONS = _Mutations()  # name → mutation
SURROUNDING_MUTATIONS = ("chain", "edge", "foreign_id", "date")
"""Mutations of what surrounds a script; only explorations make them."""
ONCE = ("long", "correct", "contradict", "two_goals")
OF_MESSAGES = (*ONCE, "typos", "case", "language", "reorder")
"""Mutations of single messages, which fit a simulated user, too; those of `ONCE` change its first message."""


def mutated_message(names: Sequence[str], scenario: str, index: int, text: str) -> str:
    """Return a message of a simulated user with mutations; unchanged where they cannot change it."""
    for name in names:
        if not index or name not in ONCE:
            changed = MUTATIONS[name].change([text], random.Random(f"{scenario} {name} {index}"))
            text = changed[0] if changed else text
    return text
