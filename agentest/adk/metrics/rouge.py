"""ROUGE-1: how many words a response and its reference share.

Agrees with google-adk to the last digit, which makes words of any script: ASCII words by their stem, Chinese,
Japanese and Korean by character, Thai, Lao, Khmer and Myanmar by cluster, every other word whole.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from agentest.adk.metrics.porter import stem

_BY_CHARACTER = ((0x4E00, 0x9FFF), (0x3040, 0x30FF), (0xAC00, 0xD7AF))
"""Chinese, Japanese (both syllabaries), Korean."""
_BY_CLUSTER = ((0x0E00, 0x0EFF), (0x1780, 0x17FF), (0x1000, 0x109F))
"""Thai and Lao, Khmer, Myanmar."""
_MOST_MARKS = 30
"""As in Unicode's Stream-Safe Text Format."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """How many words two texts have, and how many of them in common, each as often as both have it."""

    shared: int
    actual: int
    expected: int

    @classmethod
    def of(cls, actual: Sequence[Hashable], expected: Sequence[Hashable]) -> Overlap:
        return cls((Counter(actual) & Counter(expected)).total(), len(actual), len(expected))

    @property
    def f(self) -> float:
        """The harmonic mean of precision and recall; 0 where nothing is shared."""
        if not self.shared:
            return 0.0
        precision, recall = self.shared / self.actual, self.shared / self.expected
        return 2 * precision * recall / (precision + recall)


def rouge1(response: str, reference: str) -> Overlap:
    """The words that a response shares with its reference."""
    return Overlap.of(words(response), words(reference))


def words(text: str) -> list[str]:
    """The words that ROUGE counts, in order."""
    spaced = _normalized(text).lower().translate(_SPACED)
    return [stem(word) if len(word) > 3 and word.isascii() else word for word in spaced.split()]


def _normalized(text: str) -> str:
    """The text in the form NFKC. To sort marks takes as long as the square of their number."""
    if text.isascii():
        return text
    return "".join(unicodedata.normalize("NFKC", piece) for piece in _with_few_marks(text))


def _with_few_marks(text: str) -> Iterator[str]:
    """The text in pieces: whole, unless a character has more marks than any script puts on one."""
    start = marks = 0
    for at, character in enumerate(text):
        marks = marks + 1 if _IS_MARK[character] else 0
        if marks > _MOST_MARKS:
            yield text[start:at]
            start, marks = at, 1
    yield text[start:]


class _IsMark(dict[str, bool]):
    """Whether a character is sorted among those behind the one before it. Filled as they are met."""

    def __missing__(self, character: str) -> bool:
        self[character] = bool(unicodedata.combining(unicodedata.normalize("NFKD", character)[0]))
        return self[character]


_IS_MARK = _IsMark()


class _Spaced(dict[int, str]):
    """Code point → text, so that white space is what separates words. Filled as characters are met."""

    def __missing__(self, code: int) -> str:
        self[code] = _spaced(code)
        return self[code]


_SPACED = _Spaced()


def _spaced(code: int) -> str:
    character = chr(code)
    if _within(code, _BY_CHARACTER):
        return f" {character} "
    is_mark = unicodedata.category(character).startswith("M")
    if _within(code, _BY_CLUSTER) and not is_mark:
        return f" {character}"
    return character if is_mark or character.isalnum() else " "


def _within(code: int, ranges: tuple[tuple[int, int], ...]) -> bool:
    return any(low <= code <= high for low, high in ranges)
