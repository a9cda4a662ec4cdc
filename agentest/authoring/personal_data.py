"""Replace personal data in recorded sessions by stand-ins of the same shape.

Equal values get equal stand-ins, so that a customer's number in a message still matches the one in a tool's
result.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from agentest.support.redaction import Redactor

_NAME_KEYS = re.compile(
    r"(?i)^(first|last|full|given|family|middle|sur|customer|client|user|guest|passenger|patient|holder|"
    r"contact|recipient|sender|owner|employee|traveller|traveler|member|account_holder)[_-]?names?$|^surname$"
)
_NEXT_TO_NAMES = re.compile(r"(?i)^(e[_-]?mail|phone|mobile|address|birth|date_of_birth|dob)")
_PLACE_KEYS = re.compile(r"(?i)^(street|address(_line)?_?\d?|street_address|postal_address|home_address)$")
_EMAIL = re.compile(r"[\w.+%-]+@[\w-]+(?:\.[\w-]+)+")
_IBAN = re.compile(r"\b[A-Z]{2}\d{2}(?:\s?[A-Z0-9]{4}){2,7}(?:\s?[A-Z0-9]{1,3})?\b")
_CARD = re.compile(r"(?<![\w-])(?:\d[ -]?){12,18}\d(?![\w-])")
_PHONE = re.compile(r"(?<![\w.:/-])(?:\+\d{1,3}[ ./-]?|\(0\d{1,4}\)[ ./-]?|0)\d[\d ./-]{6,14}\d(?![\w:-])")
_IP = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])")
_FIRST = ("Alex", "Robin", "Kim", "Sam", "Chris", "Jo", "Max", "Toni", "Kay", "Lou", "Noel", "Uli")
_LAST = ("Berg", "Lind", "Stone", "Marsh", "Field", "Brook", "Hill", "Wood", "Lake", "Frost", "Reed", "Vale")


class PersonalData:
    """The personal data found so far, with its stand-ins.

    Args:
        more: regular expressions for further data, such as `CUST-\\d+`.
    """

    def __init__(self, more: Iterable[str] = ()) -> None:
        self._secrets = Redactor()
        self._more = [re.compile(pattern) for pattern in more]
        self._names: dict[str, str] = {}
        self.counts: dict[str, int] = {}
        """Kind → how many different values were replaced."""
        self._known: dict[tuple[str, str], str] = {}

    def learn(self, value: Any) -> None:
        """Note the names of people and their addresses in a tool's arguments or result."""
        for key, text, siblings in _texts(value, "", ()):
            is_person = _NAME_KEYS.search(key) or (
                key.lower() == "name" and any(map(_NEXT_TO_NAMES.match, siblings))
            )
            if is_person and re.search(r"[^\W\d_]", text):
                self._names.setdefault(text.strip(), self._replaced("name", text.strip(), _name))
            elif _PLACE_KEYS.search(key) and re.search(r"\d", text):
                self._names.setdefault(text.strip(), self._replaced("address", text.strip(), _address))

    def hidden(self, value: Any) -> Any:
        """Return a JSON value with stand-ins in its texts."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {key: self.hidden(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.hidden(item) for item in value]
        return value

    def text(self, text: str) -> str:
        """Return a text with stand-ins."""
        text = self._secrets(text)
        for pattern in self._more:
            text = pattern.sub(lambda match: self._replaced("other", match[0], _same_shape), text)
        text = _EMAIL.sub(lambda match: self._replaced("e-mail", match[0], _email), text)
        text = _IBAN.sub(lambda match: self._replaced("IBAN", match[0], _same_shape), text)
        text = _CARD.sub(self._card, text)
        text = _IP.sub(lambda match: self._replaced("IP address", match[0], _ip), text)
        text = _PHONE.sub(lambda match: self._replaced("phone", match[0], _same_shape), text)
        for name in sorted(self._names, key=len, reverse=True):
            if name in text:
                text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", self._names[name], text)
            for part, other in zip(name.split(), self._names[name].split(), strict=False):
                if len(part) > 2 and part in text:
                    text = re.sub(rf"(?<!\w){re.escape(part)}(?!\w)", other, text)
        return text

    def _card(self, match: re.Match[str]) -> str:
        digits = re.sub(r"\D", "", match[0])
        return self._replaced("card", match[0], _same_shape) if _is_luhn(digits) else match[0]

    def _replaced(self, kind: str, text: str, stand_in: Callable[[str], str]) -> str:
        if (kind, text) not in self._known:
            self._known[kind, text] = stand_in(text)
            self.counts[kind] = self.counts.get(kind, 0) + 1
        return self._known[kind, text]


def _texts(value: Any, key: str, siblings: Iterable[str]) -> Iterator[tuple[str, str, Iterable[str]]]:
    if isinstance(value, str):
        yield key, value, siblings
    elif isinstance(value, Mapping):
        keys = [str(each) for each in value]
        for name, item in value.items():
            yield from _texts(item, str(name), keys)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item, key, siblings)


def _digits(text: str) -> Iterator[int]:
    """Yield digits that depend on the text alone."""
    block = hashlib.sha256(text.encode(errors="surrogatepass")).digest()
    while True:
        yield from (byte % 10 for byte in block)
        block = hashlib.sha256(block).digest()


def _same_shape(text: str) -> str:
    """Return other digits and letters in the places of those of a text; its first two letters stay."""
    other = _digits(text)
    made = "".join(
        str(next(other))
        if each.isdecimal()
        else "ABCDEFGHJK"[next(other)]
        if each.isupper() and at > 1
        else each
        for at, each in enumerate(text)
    )
    return made


def _email(text: str) -> str:
    number = int.from_bytes(hashlib.sha256(text.lower().encode(errors="surrogatepass")).digest()[:2])
    return f"person{number % 9000 + 1000}@example.com"


def _ip(text: str) -> str:
    return f"192.0.2.{next(_digits(text)) * 20 + len(text)}"


def _name(text: str) -> str:
    digits = _digits(text)
    words = text.split()
    picked = [
        (_FIRST if at == 0 else _LAST)[(next(digits) * 10 + next(digits)) % 12] for at in range(len(words))
    ]
    return " ".join(picked)


def _address(text: str) -> str:
    return f"{next(_digits(text)) + 1} Example Street"


def _is_luhn(digits: str) -> bool:
    doubled = [int(each) * (1 + at % 2) for at, each in enumerate(reversed(digits))]
    return len(digits) >= 13 and sum(sum(divmod(each, 10)) for each in doubled) % 10 == 0
