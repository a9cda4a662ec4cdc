"""Replace personal data in recorded sessions by stand-ins of the same shape.

Equal values get equal stand-ins, so that a customer's number in a message still matches the one in a tool's
result. Names are learned from tools' arguments and results, and from how users introduce themselves.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from ipaddress import ip_address
from typing import Any

from agentest.agents.json_reader import read_result
from agentest.support.redaction import Redactor

_PERSON = (
    r"customer|client|user|guest|passenger|patient|holder|contact|recipient|sender|owner|employee|driver|"
    r"travell?er|member|account_?holder|author|assignee|caller|subscriber|tenant|person|buyer|signer|payee"
)
_NAME_KEYS = re.compile(
    rf"(?i)^(?:(first|last|full|given|family|middle|sur|maiden|display|{_PERSON})[_-]?names?|surname|nachname|"
    r"vorname)$"
)
_PERSON_KEYS = re.compile(rf"(?i)^(?:{_PERSON})s?$")
_NEXT_TO_NAMES = re.compile(r"(?i)^(e[_-]?mail|phone|mobile|address|birth|date_?of_?birth|dob)")
_PLACE_KEYS = re.compile(
    r"(?i)^(street|address(_?line)?_?\d?|(street|postal|home|billing|shipping)_?address)$"
)
_NUMBER_KEYS = re.compile(
    r"(?i)^(?:\w*(?:phone|mobile|fax)(?:_?(?:no|number))?|tel|telephone|iban|ssn|social_?security\w*|passport\w*|"
    r"tax_?(?:id|number)|national_?(?:id|number)|driving_?licen[cs]e\w*|licen[cs]e_?(?:no|number)|"
    r"(?:bank_?)?account_?(?:no|number)|(?:credit_?)?card(?:_?(?:no|number))?|zip(?:_?code)?|post(?:al)?_?code)$"
)
_KEPT_KEYS = re.compile(
    r"(?i)(?:order|invoice|ticket|booking|product|item|sku|tracking|reference|serial)\w{0,40}$"
)
_WORD = r"[^\W\d_a-z][^\W\d_]*(?:[-'’][^\W\d_]+)*"
_INTRODUCED = re.compile(
    r"(?i:\bmy (?:full )?name(?: is|'s|’s)|\bname\s*[:=]|\bich hei(?:ß|ss)e|\bmein name ist|"
    rf"\bje m['’]appelle|\bme llamo|\bmi nombre es|\bmi chiamo)\s+({_WORD}(?: {_WORD}){{0,3}})"
    r"|(?i:\bi am|\bi['’]m|\bthis is|\bhier ist|\bon behalf of|\bbook(?:ing|ed)?(?: it)? for)"
    rf"\s+({_WORD}(?: {_WORD}){{1,2}})"
    r"|(?i:\b(?:customer|passenger|guest|patient|client|mr|mrs|ms|miss|dr|herr|frau|mme|m|señora?)\b[.:]?)"
    rf"\s+({_WORD}(?: {_WORD}){{0,2}})"
    r"|(?i:\b(?:regards|sincerely|cheers|thanks|gr(?:ü|ue)(?:ß|ss)e),?)"
    rf"[^\S\n]*(?:[\n,]\s*+)+({_WORD}(?: {_WORD}){{0,2}})\s*$"
    rf"|(?i:\b(?:dear|hello|hi|hey|hallo|bonjour|hola|thanks|thank you),?)\s+({_WORD}(?: {_WORD})?)(?=[,!.])"
)
_ASKS_NAME = re.compile(
    r"(?i)\b(?:your|full|first|last|customer|passenger|guest|holder)(?:['’]s)? name\b|\bname on the\b|"
    r"\bwho am i (?:speaking|talking)|\b(?:ihr|ihren|dein) name\b"
)
_ANSWERS_NAME = re.compile(
    r"(?i:(?:it['’]?s|it is|sure|yes|this is|the name is|under|of course)[,.:!]?\s+)*"
    rf"(?:({_WORD}(?: {_WORD}){{1,3}})(?=\s*(?:[.,;!]|$|and\b))|"
    r"([^\W\d_]{2,}(?:[ '’-][^\W\d_]+){0,2})(?=[.!]?\s*$))"
)
_EMAIL = re.compile(r"(?<![\w.+%'-])[\w.+%'-]+@[\w-]+(?:\.[\w-]+)+")
_IBAN = re.compile(r"(?i)(?<![A-Z0-9])[A-Z]{2}\d{2}(?:[ -]?[A-Z0-9]){11,30}")


def _words(text: str) -> list[str]:
    return text.split()


_IBAN_LENGTHS = {
    each[:2]: int(each[2:])
    for each in _words(
        "AD24 AE23 AT20 BE16 BG22 CH21 CY28 CZ24 DE22 DK18 EE20 ES24 FI18 FR27 GB22 GR27 HR21 HU28 IE22 IL23 "
        "IS26 IT27 LI21 LT20 LU20 LV21 MC27 MT31 NL18 NO15 PL28 PT25 RO24 SA24 SE24 SI19 SK24 SM27 TR26"
    )
}
_CARD = re.compile(r"(?<![\w-])[2-6](?:[ -]?\d){12,18}(?![\w-])")
_SSN = re.compile(r"(?<![\w-])\d{3}-\d{2}-\d{4}(?![\w-])")
_PHONE = re.compile(
    r"(?<![\w.:/#-])(?!\d{1,2}([./-])\d{1,2}\1\d{2,4}(?![./-]?\d))"
    r"(?:(?:\+|00)\d{1,3}(?:[ ./-]?\(?\d{1,4}\)?){2,6}|\(0\d{1,4}\)[ ./-]?\d[\d ./-]{4,12}\d"
    r"|0\d[\d ./-]{6,14}\d|(?:1[ .-])?\(\d{3}\) ?\d{3}[ .-]?\d{4}"
    r"|(?:1[ .-])?\d{3}([ .-])\d{3}\2\d{4}|[6-9]\d{4} \d{5})(?![\w-])"
)
_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])")
_IPV6 = re.compile(r"(?<![\w:.])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?![\w:])")
_STREET = re.compile(
    r"\b\d{1,5}[a-z]? (?:[A-Z][\w'’.-]*\s){1,4}"
    r"(?:Street|St|Road|Rd|Avenue|Ave|Lane|Ln|Drive|Dr|Boulevard|Blvd|Court|Ct|Place|Square|Terrace|Close)\b\.?"
    r"|\b[A-ZÄÖÜ][\w-]{0,60}(?:stra(?:ß|ss)e|str\.|weg|platz|allee|gasse|[ -]Stra(?:ß|ss)e) \d{1,4} ?[a-z]?\b"
    r"|\b\d{1,4},? (?:rue|avenue|boulevard|place|chemin) (?:d[eu]s? )?(?:la |l['’])?"
    r"[A-ZÉÈ][\w'’-]+(?: [A-ZÉÈ][\w'’-]+)*"
    r"|\b(?:Calle|Via|Avenida|Piazza) (?:de(?:l|la)? )?[A-Z]\w+(?: [A-Z]\w+)*,? \d{1,4}\b"
)
_TITLES = frozenset(
    _words("mr mrs ms miss dr prof sir herr frau mme m von van de der den del la le di da el al bin")
)
_ALSO_WORDS = frozenset(
    _words(
        "will may mark rose grace hope faith joy june april august bill drew frank jack rich art chase dawn "
        "eve grant guy iris jade lance max miles norm pat penny ray rob sue summer ward woods young brown "
        "black white green king long short best page price cook baker hall hill stone field day park rice "
        "wood wolf fox love strong good kind sharp cash sales case banks bond chance check"
    )
)
"""Names that stay in lower case, where they are ordinary words."""
_NO_NAMES = frozenset(
    _words(
        "order account support customer service user admin the you your this that here there all team "
        "everyone again madam sir folks happy very not is so please yes no ok okay what how can could my it "
        "we they he she sorry just also still trying looking on in wrong missing "
        "correct incorrect i do don dont know never mind thanks thank forget cancel stop later"
    )
)
"""Words that may follow `I am` or `Hello` and are no names."""
_FIRST = tuple(
    _words(
        "Alex Robin Kim Sam Chris Jo Toni Kay Lou Noel Uli Kit Ash Bo Cleo Dana Eli Fay Gil Ira Jules Mika"
    )
)
_LAST = tuple(
    _words("Berg Lind Marsh Brook Lake Frost Reed Vale Moor Glen Dale Holm Ford Thorn Crest Haven Ridge Shaw")
)
_LETTERS = re.compile(r"%20|[^\W_]+")
_BEGINNING = 3
"""Letters by which names are looked up."""
_SPELLINGS = {" ": r"(?:\s*,\s*|\s+|[._+-]|%20)?", "-": "[-‐‑‒–—]", "'": "['’]"}
_DASHES = str.maketrans("‐‑‒–—", "-----")


class PersonalData:
    """The personal data found so far, with its stand-ins.

    Args:
        more: name → regular expression of further data, such as `CUST-\\d+`.
    """

    def __init__(self, more: Mapping[str, str] | None = None) -> None:
        self._secrets = Redactor()
        self._more = [(name, re.compile(pattern)) for name, pattern in (more or {}).items()]
        self._names: dict[str, tuple[str, str]] = {}
        """A spelling of a name in lower case → the name as it was learned, and its stand-in."""
        self._by_letters: dict[str, list[str]] = {}
        """The letters and digits of spellings → the spellings."""
        self._lengths: dict[str, set[int]] = {}
        """The first letters of spellings → how many letters those have, because most texts have few names."""
        self._anywhere = False
        """True if a name is of a script without spaces, so that it may begin within a word."""
        self._taken: set[str] = set()
        self._parts: dict[str, str] = {}
        self._kept: set[str] = set()
        """Order numbers and the like, which stay although they look like a phone number."""
        self.counts: dict[str, int] = {}
        """Kind → how many different values were replaced."""
        self._known: dict[tuple[str, str], str] = {}
        self._used: set[tuple[str, str]] = set()

    def learn(self, value: Any) -> None:
        """Note the names of people, their addresses and numbers in a tool's arguments or result.

        A message is searched for names of people who introduce themselves.
        """
        for keys, text, siblings in _texts(value, (), ()):
            key = _snake(keys[-1]) if keys else ""
            above = _snake(keys[-2]) if len(keys) > 1 else ""
            is_person = (
                _NAME_KEYS.search(key)
                or (
                    key == "name" and (_PERSON_KEYS.search(above) or any(map(_NEXT_TO_NAMES.match, siblings)))
                )
                or (_PERSON_KEYS.search(key) and re.fullmatch(rf"{_WORD}(?:,? {_WORD}){{1,3}}", text.strip()))
                or (above and _PERSON_KEYS.search(above) and key in ("first", "last", "given", "family"))
            )
            if is_person and re.search(r"[^\W\d_]", text) and "@" not in text:
                self._learn_name(text.strip())
            elif _PLACE_KEYS.search(key) and re.search(r"\d", text):
                self._learn(text.strip(), self._replaced("street", text.strip(), _address))
            elif _NUMBER_KEYS.search(key) and re.search(r"\d", text) and len(text) > 3:
                self._learn(text.strip(), self._replaced("number", text.strip(), _same_shape))
            elif _KEPT_KEYS.search(key):
                self._kept.add(text)
            else:
                for match in _INTRODUCED.finditer(text):
                    name = next(filter(None, match.groups()))
                    if _NO_NAMES.isdisjoint(name.lower().split()):
                        self._learn_name(name)

    def learn_answer(self, question: str, answer: str) -> None:
        """Note the name with which a user answers a question of the agent for it."""
        match = _ANSWERS_NAME.match(answer.strip()) if _ASKS_NAME.search(question) else None
        name = (match[1] or match[2]) if match else ""
        if name and _NO_NAMES.isdisjoint(name.lower().split()):
            self._learn_name(name)

    def _learn_name(self, name: str) -> None:
        words = [word for word in re.split(r"[\s,]+", name) if word.strip(".").lower() not in _TITLES]
        if not words or name.lower() in self._names:
            return
        self.counts["name"] = self.counts.get("name", 0) + 1
        stands = [self._part(word, at) for at, word in enumerate(words)]
        self._learn(" ".join(words), " ".join(stands))
        if len(words) > 1:
            self._learn(f"{words[-1]} {' '.join(words[:-1])}", f"{stands[-1]} {' '.join(stands[:-1])}")
        for word, stand in zip(words, stands, strict=True):
            for part in {word, *re.split(r"[-'’]", word)}:
                if len(part) > 2 or not part.isascii():
                    self._learn(part, stand)

    def _part(self, word: str, at: int) -> str:
        key = unicodedata.normalize("NFC", word).lower()
        if key not in self._parts:
            pool, n = (_LAST if at else _FIRST), len(self._parts)
            names = [*pool, *(f"{first}{last.lower()}" for first in pool for last in _LAST)]
            start = _number(key, 2) % len(pool)
            free = (each for each in (*names[start : len(pool)], *names) if each not in self._taken)
            self._parts[key] = next(free, f"{pool[0]}{n}")
            self._taken.add(self._parts[key])
        return self._parts[key]

    def _learn(self, text: str, stand_in: str) -> None:
        composed, parted = (unicodedata.normalize(form, text) for form in ("NFC", "NFD"))
        folded = "".join(each for each in parted if not unicodedata.combining(each))
        for spelling in (text, composed, parted, folded):
            name = spelling.lower()
            if name not in self._names:
                self._names[name] = text, stand_in
                letters = re.sub(r"[\W_]+", "", name)
                self._by_letters.setdefault(letters, []).append(name)
                self._lengths.setdefault(letters[:_BEGINNING], set()).add(len(letters))
                self._anywhere = self._anywhere or _has_no_spaces(name)

    def hidden(self, value: Any) -> Any:
        """Return a JSON value with stand-ins in its texts, in keys that are names, and in long numbers."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self._key(key): self.hidden(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.hidden(item) for item in value]
        if isinstance(value, int) and not isinstance(value, bool) and value > 999:
            other = self.text(str(value))
            return int(other) if other.isdecimal() else value
        return value

    def _key(self, key: Any) -> Any:
        is_plain = not isinstance(key, str) or (key.isascii() and key.isidentifier() and key.islower())
        return key if is_plain else self.text(key)

    def text(self, text: str) -> str:
        """Return a text with stand-ins."""
        text = self._secrets(text)
        for kind, pattern in self._more:
            text = pattern.sub(partial(self._more_of, kind), text)
        text = _EMAIL.sub(lambda match: self._replaced("e-mail", match[0].lower(), _email), text)
        text = _IBAN.sub(self._iban, text)
        text = _CARD.sub(self._card, text)
        text = _SSN.sub(lambda match: self._shaped("number", match[0]), text)
        for pattern in (_IPV4, _IPV6):
            text = pattern.sub(self._ip, text)
        text = _PHONE.sub(self._phone, text)
        text = self._with_names(text)
        return _STREET.sub(self._street, text)

    def _with_names(self, text: str) -> str:
        """Replace names in one pass, because a stand-in may be the name of another person."""
        lower = text.replace("İ", "I").lower()  # as long as the text: only İ would become two characters
        words = [word for word in _LETTERS.finditer(lower) if word[0] != "%20"]
        letters = "".join(word[0] for word in words)
        parts, at, end = list[str](), 0, 0
        for word in words:
            for n in range(len(word[0]) if self._anywhere else 1):
                begin = word.start() + n
                if begin >= end and (match := self._name_at(begin, text, at + n, letters)):
                    parts += text[end:begin], self._name(match)
                    end = match.end()
            at += len(word[0])
        return "".join((*parts, text[end:]))

    def _name_at(self, begin: int, text: str, at: int, letters: str) -> re.Match[str] | None:
        """Return the longest name that begins there, in the text and in its letters."""
        beginnings = {letters[at : at + n] for n in range(1, _BEGINNING + 1)}
        lengths = {length for each in beginnings for length in self._lengths.get(each, ())}
        names = {name for n in lengths for name in self._by_letters.get(letters[at : at + n], ())}
        longest_first = sorted(names, key=lambda name: (-len(name), name))
        return next(filter(None, (_spelled(name).match(text, begin) for name in longest_first)), None)

    def _name(self, match: re.Match[str]) -> str:
        written = match[0]
        key = re.sub(r"(?:%20|[\s._+,-])+", " ", written).lower().replace("’", "'")
        exact = written.translate(_DASHES).lower()
        learned = self._names.get(exact) or self._names.get(key)
        if learned is None:
            spellings = self._by_letters.get(re.sub(r"%20|[\W_]+", "", exact), [""])
            learned = self._names.get(spellings[-1])
        if learned is None or (written.islower() and " " not in learned[0] and exact in _ALSO_WORDS):
            return written
        separator = re.search(r"%20|[._+-]", written) if " " in learned[0] and " " not in written else None
        stand_in = learned[1].replace(" ", separator[0] if separator else " ")
        if " " in learned[0] and not separator and not re.search(r"\s", written):
            stand_in = stand_in.replace(" ", "")
        if written.islower():
            return stand_in.lower()
        shouts = written.isupper() and len(written) > 1 and written.lower() != written
        return stand_in.upper() if shouts else stand_in

    def _iban(self, match: re.Match[str]) -> str:
        length = int(_IBAN_LENGTHS.get(match[0][:2].upper(), 0))
        ends = [at + 1 for at, each in enumerate(match[0]) if each.isalnum()]
        if not length or len(ends) < length:
            return match[0]
        iban, rest = match[0][: ends[length - 1]], match[0][ends[length - 1] :]
        return match[0] if rest[:1].isalnum() else self._shaped("IBAN", iban) + self.text(rest)

    def _card(self, match: re.Match[str]) -> str:
        digits = re.sub(r"\D", "", match[0])
        return self._shaped("card", match[0]) if _is_luhn(digits) else match[0]

    def _ip(self, match: re.Match[str]) -> str:
        try:
            address = ip_address(match[0])
        except ValueError:
            return match[0]
        return self._replaced("IP number", match[0], _ip if address.version == 4 else _ipv6)

    def _phone(self, match: re.Match[str]) -> str:
        digits = re.sub(r"\D", "", match[0])
        is_number = 8 <= len(digits) <= 15 and match[0] not in self._kept
        return self._shaped("phone", match[0]) if is_number else match[0]

    def _street(self, match: re.Match[str]) -> str:
        if "Example Street" in match[0]:
            return match[0]
        return self._replaced("street", match[0], _address)

    def _more_of(self, kind: str, match: re.Match[str]) -> str:
        return self._shaped(kind, match[0])

    def _shaped(self, kind: str, text: str) -> str:
        return self._replaced(kind, text, _same_shape)

    def _replaced(self, kind: str, text: str, stand_in: Callable[[str, str], str]) -> str:
        if (kind, text) not in self._known:
            seed = re.sub(r"[\W_]", "", text).upper() or text
            made, tries = stand_in(text, seed), 0
            while ((kind, made) in self._used or made == text) and tries < 50:
                tries += 1
                made = stand_in(text, f"{seed} {tries}")
            self._known[kind, text] = made
            self._used.add((kind, made))
            self.counts[kind] = self.counts.get(kind, 0) + 1
        return self._known[kind, text]


def _has_no_spaces(name: str) -> bool:
    return any(ord(each) > 0x2E80 for each in name)


@cache
def _spelled(name: str) -> re.Pattern[str]:
    letters = re.sub(r"^[\W_]+", "", name)
    body = "".join(_SPELLINGS.get(each) or re.escape(each) for each in letters)
    if not _has_no_spaces(name):
        body = rf"(?:(?<![^\W_])|(?<=%20)){body}(?![^\W_])"
    return re.compile(body, re.IGNORECASE)


def _snake(key: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", key).lower().replace("-", "_")


def _texts(
    value: Any, keys: tuple[str, ...], siblings: Iterable[str]
) -> Iterator[tuple[tuple[str, ...], str, Iterable[str]]]:
    if isinstance(value, str):
        inner = read_result(value)
        if inner is value:
            yield keys, value, siblings
        else:
            yield from _texts(inner, keys, siblings)
    elif isinstance(value, Mapping):
        names = [str(each) for each in value]
        for name, item in value.items():
            yield from _texts(item, (*keys, str(name)), names)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item, keys, siblings)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield keys, str(value), siblings


def _digits(text: str) -> Iterator[int]:
    block = hashlib.sha256(text.encode(errors="surrogatepass")).digest()
    while True:
        yield from (byte % 10 for byte in block)
        block = hashlib.sha256(block).digest()


def _same_shape(text: str, seed: str) -> str:
    """Return other digits and letters in the places of those of a text; its first two letters stay."""
    other = _digits(seed)
    return "".join(
        str(next(other) or (1 if at == 0 else 0))
        if each.isdecimal()
        else "ABCDEFGHJK"[next(other)]
        if each.isupper() and at > 1
        else "abcdefghjk"[next(other)]
        if each.islower() and at > 1
        else each
        for at, each in enumerate(text)
    )


def _number(seed: str, size: int = 4) -> int:
    return int.from_bytes(hashlib.sha256(seed.encode(errors="surrogatepass")).digest()[:size])


def _email(_: str, seed: str) -> str:
    return f"person{_number(seed) % 90_000 + 10_000}@example.com"


def _ip(_: str, seed: str) -> str:
    return f"192.0.2.{_number(seed) % 254 + 1}"


def _ipv6(_: str, seed: str) -> str:
    return f"2001:db8::{_number(seed) % 0xFFFF:x}"


def _address(_: str, seed: str) -> str:
    return f"{_number(seed) % 999 + 1} Example Street"


def _is_luhn(digits: str) -> bool:
    doubled = [int(each) * (1 + at % 2) for at, each in enumerate(reversed(digits))]
    return len(digits) >= 13 and sum(sum(divmod(each, 10)) for each in doubled) % 10 == 0
