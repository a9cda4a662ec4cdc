"""ROUGE-1: the overlap of a response's words with those of its reference.

The result equals google-adk's to the last digit. ASCII words are stemmed; Chinese, Japanese, and Korean are
split by character, Thai, Lao, Khmer, and Myanmar by cluster; every other word is used whole.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from functools import cache, lru_cache

from agentest.support.lazy_dataclasses import dataclass

_BY_CHARACTER = ((0x4E00, 0x9FFF), (0x3040, 0x30FF), (0xAC00, 0xD7AF))
_BY_CLUSTER = ((0x0E00, 0x0EFF), (0x1780, 0x17FF), (0x1000, 0x109F))
_MOST_MARKS = 30


@dataclass(frozen=True, slots=True)
class Overlap:
    """The number of words of two texts, and of words that both have, counting repetitions."""

    shared: int
    actual: int
    expected: int

    @classmethod
    def of(cls, actual: Sequence[Hashable], expected: Sequence[Hashable]) -> Overlap:
        return cls((Counter(actual) & Counter(expected)).total(), len(actual), len(expected))

    @property
    def f(self) -> float:
        """The harmonic mean of precision and recall; 0 if there is no overlap."""
        if not self.shared:
            return 0.0
        precision, recall = self.shared / self.actual, self.shared / self.expected
        return 2 * precision * recall / (precision + recall)


def rouge1(response: str, reference: str) -> Overlap:
    """Count the words that a response shares with its reference."""
    return Overlap.of(words(response), words(reference))


def words(text: str) -> list[str]:
    """Return the words that ROUGE counts, in order."""
    spaced = "".join(map(_spaced, _normalized(text).lower()))
    return [stem(word) if len(word) > 3 and word.isascii() else word for word in spaced.split()]


def _normalized(text: str) -> str:
    if text.isascii():
        return text
    return "".join(unicodedata.normalize("NFKC", piece) for piece in _with_few_marks(text))


def _with_few_marks(text: str) -> Iterator[str]:
    start = marks = 0
    for at, character in enumerate(text):
        marks = marks + 1 if _is_mark(character) else 0
        if marks > _MOST_MARKS:
            yield text[start:at]
            start, marks = at, 1
    yield text[start:]


@cache
def _is_mark(character: str) -> bool:
    """Return True if a character is sorted among the combining marks of the one before it."""
    return bool(unicodedata.combining(unicodedata.normalize("NFKD", character)[0]))


@cache
def _spaced(character: str) -> str:
    code = ord(character)
    if _within(code, _BY_CHARACTER):
        return f" {character} "
    is_mark = unicodedata.category(character).startswith("M")
    if _within(code, _BY_CLUSTER) and not is_mark:
        return f" {character}"
    return character if is_mark or character.isalnum() else " "


def _within(code: int, ranges: tuple[tuple[int, int], ...]) -> bool:
    return any(low <= code <= high for low, high in ranges)


def _rules(text: str) -> tuple[tuple[str, str], ...]:
    return tuple((word, stem) for word, _, stem in (rule.partition(":") for rule in text.split()))


# NLTK: words whose stem the rules would miss.
_IRREGULAR = dict(
    _rules(
        "sky:sky skies:sky dying:die lying:lie tying:tie news:news inning:inning innings:inning "
        "outing:outing outings:outing canning:canning cannings:canning howe:howe proceed:proceed "
        "exceed:exceed succeed:succeed"
    )
)
# NLTK: the paper has abli:able in place of bli:ble, and no fulli:ful.
_STEP_2 = _rules(
    "ational:ate tional:tion enci:ence anci:ance izer:ize bli:ble alli:al entli:ent eli:e ousli:ous "
    "ization:ize ation:ate ator:ate alism:al iveness:ive fulness:ful ousness:ous aliti:al iviti:ive "
    "biliti:ble fulli:ful"
)
_STEP_3 = _rules("icate:ic ative: alize:al iciti:ic ical:ic ful: ness:")
_STEP_4 = _rules(
    "al: ance: ence: er: ic: able: ible: ant: ement: ment: ent: ion: ou: ism: ate: iti: ous: ive: ize:"
)


@lru_cache(maxsize=65536)
def stem(word: str) -> str:
    """Return the stem of a word in lower case."""
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if len(word) <= 2:
        return word
    for step in (_plural, _past, _final_y, _step_2):
        word = step(word)
    word = _replace_first(_replace_first(word, _STEP_3, least=1), _STEP_4, least=2)
    word = _final_e(word)
    return word[:-1] if word.endswith("ll") and _measure(word[:-1]) > 1 else word


def _vowel_shape(word: str) -> str:
    shape: list[str] = []
    last = "v"
    for letter in word:
        last = "v" if letter in "aeiou" or (letter == "y" and last == "c") else "c"
        shape.append(last)
    return "".join(shape)


def _measure(stem: str) -> int:
    return _vowel_shape(stem).count("vc")


def _ends_short(stem: str) -> bool:
    shape = _vowel_shape(stem)
    # NLTK: two letters are enough if they are a vowel and a consonant.
    return shape == "vc" or (shape.endswith("cvc") and stem[-1] not in "wxy")


def _replace_first(word: str, rules: Sequence[tuple[str, str]], *, least: int) -> str:
    for suffix, replacement in rules:
        if word.endswith(suffix):
            stem = word[: -len(suffix)]
            has_measure = _measure(stem) >= least and (suffix != "ion" or stem[-1] in "st")
            return stem + replacement if has_measure else word
    return word


def _plural(word: str) -> str:
    if word.endswith("ies"):
        return _ie_or_i(word)
    if word.endswith("sses"):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _ie_or_i(word: str) -> str:
    # NLTK: `dies` and `died` become `die`, `flies` and `tried` become `fli` and `tri`.
    return word[:-1] if len(word) == 4 else word[:-2]


def _past(word: str) -> str:
    if word.endswith("ied"):
        return _ie_or_i(word)
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    for suffix in ("ed", "ing"):
        stem = word.removesuffix(suffix)
        if stem != word and "v" in _vowel_shape(stem):
            if stem.endswith(("at", "bl", "iz")):
                return stem + "e"
            if stem[-1] == stem[-2:-1] and _vowel_shape(stem).endswith("c"):
                return stem if stem[-1] in "lsz" else stem[:-1]
            return stem + "e" if _measure(stem) == 1 and _ends_short(stem) else stem
    return word


def _final_y(word: str) -> str:
    # NLTK: the y needs a consonant before it that is not the only letter; the paper requires a vowel.
    ends_in_y = word.endswith("y") and len(word) > 2 and _vowel_shape(word[:-1]).endswith("c")
    return word[:-1] + "i" if ends_in_y else word


def _step_2(word: str) -> str:
    # NLTK: -alli first; the rest goes through the step again.
    while word.endswith("alli") and _measure(word[:-4]) > 0:
        word = word[:-2]
    if word.endswith("logi"):
        # NLTK: not in the paper; the l counts as part of the stem.
        return word[:-1] if _measure(word[:-3]) > 0 else word
    return _replace_first(word, _STEP_2, least=1)


def _final_e(word: str) -> str:
    if not word.endswith("e"):
        return word
    stem = word[:-1]
    measure = _measure(stem)
    return stem if measure > 1 or (measure == 1 and not _ends_short(stem)) else word
