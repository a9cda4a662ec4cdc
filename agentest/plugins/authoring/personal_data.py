"""Replace personal data in recorded sessions by stand-ins of the same shape.

Equal values get equal stand-ins, so that a customer's number in a message still matches the one in a tool's
result. Names are learned from tools' arguments and results, and from how users introduce themselves.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.resources import files
from ipaddress import ip_address
from tomllib import loads
from typing import Any

from agentest.plugins.authoring.trace_messages import (
    has_no_spaces,
    snake_key,
    spelled_pattern,
    texts_with_keys,
    without_accents,
)
from agentest.support.redaction import HIDDEN, Redactor
from agentest.support.text import count

_TABLES = loads(files(__package__).joinpath("personal_words.toml").read_text("utf-8"))
_LABELS = {name: text.replace("\n", "") for name, text in _TABLES["labels"].items()}
_WORDS = {name: dict.fromkeys(text.split()).keys() for name, text in _TABLES["words"].items()}
_PERSON = _LABELS["person"]
_NAME_KEYS = re.compile(
    rf"(?:(?:first|last|full|given|family|middle|sur|maiden|display|{_PERSON})_?names?|surname|nachname|vorname|"
    r"nombre_completo|apellidos?|prenom|nom_de_famille|cognome|imie|nazwisko|imie_i_nazwisko|sobrenome|"
    r"nome_completo|voornaam|achternaam|имя|фамилия|фио|姓名|氏名|名前)$"
)
_PERSON_KEYS = re.compile(rf"(?i)^(?:{_PERSON})s?$")
_NEXT_TO_NAMES = re.compile(r"(?i)^(e[_-]?mail|phone|mobile|address|birth|date_?of_?birth|dob)")
_KEY_WORDS = {
    "secret": _LABELS["secret"],
    "birth date": _LABELS["birth"],
    "number": f"{_LABELS['number']}|{_LABELS['more_numbers']}",
    "street": _LABELS["street"],
}
_KEYS = {
    kind: re.compile(
        rf"(?:^|_)(?:{words.replace(' ', '_')})(?:_?(?:no|number|nr|num|numer|numero|id|code))?$"
    )
    for kind, words in _KEY_WORDS.items()
}
_LABEL = re.compile(
    r"(?i)(?:(?<![^\W_])|(?<=[\u2e80-\U0003ffff]))(?:"
    + "|".join(
        f"(?P<{group}>{words.replace(' ?', '[ _-]?').replace(' (', '[ _](').replace('de )', 'de[ _])')})"
        for group, words in ((group, _LABELS[group]) for group in ("secret", "birth", "number"))
    )
    + r")(?:[ _-]?(?:number|numer|numero|num|no|nr|id)\b\.?|号码?|番号)?"
    r"(?P<mark>\s{0,3}(?:[.:=#：]|(?:is|was|ist|lautet|es|est|e|to|jest|war|on|am|op|le|el|il|em|dnia|это)\b"
    r"|是|は)?\s{0,3})"
)
_DATE = re.compile(
    r"(?<![\d./-])(?:\d{4}[./-]\d{1,2}[./-]\d{1,2}|\d{1,2}[./-]\d{1,2}[./-](?:\d{4}|\d{2})"
    r"|\d{1,2}(?:st|nd|rd|th|er|\.)? (?:of |de )?[^\W\d_]{3,12}\.?,? (?:de |del )?\d{4}"
    r"|(?<![^\W_])[^\W\d_]{3,12}\.? \d{1,2}(?:st|nd|rd|th)?,? \d{4}|\d{4}年\d{1,2}月\d{1,2}日)(?![\d/-])"
)
_IDS = re.compile(
    r"(?<![\w-])(?:\d{3}-\d{2}-\d{4}|[2-9]\d{3} \d{4} \d{4}|(?:\d{3}\.){2}\d{3}-\d{2}"
    r"|756(?:\.\d{4}){2}\.\d{2}|[XYZ\d]\d{7}-?[A-Z]|[A-CEGHJ-PR-TW-Z]{2} ?\d{2} ?\d{2} ?\d{2} ?[A-D]|\d{11}"
    r"|[12] ?\d{2} ?(?:0[1-9]|1[0-2]) ?\d[\dAB] ?\d{3} ?\d{3} ?\d{2}|[A-Z]{6}\d{2}[A-Z]\d{2}[A-Z]\d{3}[A-Z]"
    r"|[A-Z]{4}\d{6}[HM][A-Z]{5}[A-Z\d]\d|[A-Z]{5}\d{4}[A-Z]|\d{17}[\dX]"
    r"|[A-ZÄÖÜ]{1,3}-[A-Z]{1,2} \d{1,4}[EH]?|[A-Z]{2}\d{2} [A-Z]{3}|[A-Z]{2}-\d{3}-[A-Z]{2})(?![\w-])"
)
_DOUBTFUL = re.compile(
    r"(?<![\w./-])(?:19\d\d[./-]\d{1,2}[./-]\d{1,2}|\d{1,2}[./-]\d{1,2}[./-]19\d\d"
    r"|\d{1,2}\.? [^\W\d_]{3,12} 19\d\d)(?![\w/-])"
    r"|(?<![\w.-])[A-Z]{0,3}\d{8,12}[A-Z]?(?![\w-])"
    r"|(?<=[a-z,] )[A-Z][a-z]{1,20} [A-Z][a-z]{2,20}(?=[ ,.!?]|$)"
)
_PRIVATE = re.compile("[\U000f0000-\U000ffffd]")
"""Characters that stand for stand-ins, so that no later pattern reads these."""
_KEPT_KEYS = re.compile(
    r"(?i)(?:order|invoice|ticket|booking|product|item|sku|tracking|reference|serial)\w{0,40}$"
)
_WORD = r"[^\W\d_a-z][^\W\d_]*(?:[-'’][^\W\d_]+)*"
_INTRODUCED = re.compile(
    r"(?i:\bmy (?:full )?name(?: is|'s|’s)|\bname\s*[:=]|\bich hei(?:ß|ss)e|\bmein name ist|"
    r"\bje m['’]appelle|\bme llamo|\bmi nombre es|\bmi chiamo|\bil mio nome è|\bnazywam się|\bmam na imię|"
    r"\bme chamo|\bmeu nome é|\bik heet|\bmijn naam is|меня зовут|我叫|我是|私は)"
    rf"\s*({_WORD}(?: {_WORD}){{0,3}})"
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


_IBAN_LENGTHS = {each[:2]: int(each[2:]) for each in _WORDS["ibans"]}
_CARD = re.compile(r"(?<![\w-])[2-6](?:[ -]?\d){12,18}(?![\w-])")
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
    r"|\b(?:Calle|Via|Viale|Corso|Avenida|Av\.|Piazza|Plaza|Paseo|Rua|Praça|Travessa)"
    r"(?: (?:de|del|della|da|do|dos|di|la|los|las)){0,2} [^\W\d_]\w+(?: [^\W\da-z_]\w+){0,4},?"
    r" (?:n[.º°]* ?)?\d{1,4}\b"
    r"|(?i:\b(?:ul\.?|ulic[aiy]|alej[ai]|al\.|plac(?:u)?|ulitsa|ул\.|улиц[аеы]|проспект|пр-т|переулок)) ?"
    r"[^\W\d_]\S{1,30}(?: [^\W\d_]\S{1,30})?,? (?:д\. ?)?\d{1,4}\w?\b(?:/\d{1,4})?"
    r"|\b[A-Z][\w-]{1,40}(?:straat|laan|plein|gracht|kade|dijk|gatan|vägen|gade|vej|katu) \d{1,4} ?[a-z]?\b"
    r"|\b[A-ZÇĞİÖŞÜ]\w{1,30} (?:Caddesi|Cad\.|Sokak|Sok\.|Sokağı) (?:No: ?)?\d{1,4}\b"
    r"|[\u4e00-\u9fff]{1,12}(?:路|街|道|巷)\d{1,5}号?(?:\d{1,4}室)?|[\u3040-\u9fff]{1,12}\d{1,3}丁目[\d番号の-]{0,12}"
    r"|(?i:\b\d{1,5}[a-z]?,? (?:[a-z'’.-]{1,20} ){1,3}(?:street|avenue|boulevard)\b)"
    r"|\b\d{1,4}[a-z/]{0,2}\d{0,3}, (?:[A-Z][\w.]{0,20} ){1,3}(?:Road|Marg|Nagar|Colony|Chowk)\b"
)
_FIRST, _LAST = _WORDS["first_names"], _WORDS["last_names"]
_LETTERS = re.compile(r"%20|[^\W_]+")
_LETTER = r"[^\W_\u2e80-\U0003ffff]"  # a letter or digit, except of scripts without spaces between words
_BEGINNING = 3
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
        self._by_letters: dict[str, list[str]] = {}  # the letters and digits of spellings → the spellings
        self._lengths: dict[str, set[int]] = {}
        """The first letters of spellings → how many letters those have, because most texts have few names."""
        self._anywhere = False
        """True if a name is of a script without spaces, so that it may begin within a word."""
        self._taken: set[str] = set()
        self._parts: dict[str, str] = {}
        self._births: set[tuple[int, frozenset[int]]] = set()
        self._passwords: set[str] = set()
        self._codes: set[str] = set()  # identifiers in capitals, without what separates their digits
        self._kept: set[str] = set()
        """Order numbers and the like, which stay although they look like a phone number."""
        self.counts: dict[str, int] = {}
        self._known: dict[tuple[str, str], str] = {}
        self._used: set[tuple[str, str]] = set()

    def learn(self, value: Any) -> None:
        """Note the names of people, their addresses and numbers in a tool's arguments or result.

        A message is searched for names of people who introduce themselves.
        """
        for keys, text, siblings in texts_with_keys(value, (), ()):
            key = snake_key(keys[-1]) if keys else ""
            above = snake_key(keys[-2]) if len(keys) > 1 else ""
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
            elif kind := next((each for each, keys in _KEYS.items() if keys.search(key)), ""):
                self._learn_value(kind, text.strip())
            elif _KEPT_KEYS.search(key):
                self._kept.add(text)
            else:
                self._learn_said(text)

    def _learn_said(self, text: str) -> None:
        for match in _INTRODUCED.finditer(text):
            name = next(filter(None, match.groups()))
            if _WORDS["no_names"].isdisjoint(name.lower().split()):
                self._learn_name(name)
        for match in _LABEL.finditer(without_accents(text)):
            following = text[match.end() : match.end() + 64]
            if match["birth"] and (date := _DATE.match(following)):
                self._learn_value("birth date", date[0])
            elif match["number"]:
                self._learn_value("number", _code(following))
            elif match["secret"]:
                self._learn_value("secret", _secret(following, match[0].strip().lower(), match["mark"]))

    def _learn_value(self, kind: str, value: str) -> None:
        squeezed = re.sub(r"[\W_]", "", value)
        if kind == "street" and len(value) > 3:
            self._learn(value, self._replaced(kind, value, _address))
        elif kind == "birth date":
            self._births |= {_birth(date[0]) for date in _DATE.finditer(value)}
        elif kind == "secret" and len(value) > 2:
            self._passwords.add(value)
        elif kind == "number" and len(squeezed) > 2 and re.search(r"\d", value):
            self._codes.add(squeezed.upper())

    def learn_answer(self, question: str, answer: str) -> None:
        """Note the name, number, date of birth or password with which a user answers a question for it."""
        for label in _LABEL.finditer(without_accents(question)):
            if label["birth"] and (date := _DATE.search(answer)):
                self._learn_value("birth date", date[0])
            elif label["number"] and (digit := re.search(r"(?<!\S)\S*\d", answer)):
                self._learn_value("number", _code(answer[digit.start() :]) or answer.strip())
            elif label["secret"] and " " not in answer.strip():
                self._learn_value("secret", answer.strip())
        match = _ANSWERS_NAME.match(answer.strip()) if _ASKS_NAME.search(question) else None
        name = (match[1] or match[2]) if match else ""
        if name and _WORDS["no_names"].isdisjoint(name.lower().split()):
            self._learn_name(name)

    def _learn_name(self, name: str) -> None:
        words = [
            word for word in re.split(r"[\s,]+", name) if word.strip(".").lower() not in _WORDS["titles"]
        ]
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
            self._parts[key] = next(free, f"{names[0]}{n}")
            self._taken.add(self._parts[key])
        return self._parts[key]

    def _learn(self, text: str, stand_in: str) -> None:
        composed, parted = (unicodedata.normalize(form, text) for form in ("NFC", "NFD"))
        for spelling in (text, composed, parted, without_accents(composed)):
            name = spelling.lower()
            if name not in self._names:
                self._names[name] = text, stand_in
                letters = re.sub(r"[\W_]+", "", name)
                self._by_letters.setdefault(letters, []).append(name)
                self._lengths.setdefault(letters[:_BEGINNING], set()).add(len(letters))
                self._anywhere = self._anywhere or has_no_spaces(name)

    def hidden(self, value: Any) -> Any:
        """Return a JSON value with stand-ins in its texts, in keys that are names, and in long numbers."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self._key(key): self.hidden(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.hidden(item) for item in value]
        if isinstance(value, int) and not isinstance(value, bool) and value > 99:
            other = self.text(str(value))
            return int(other) if other.isdecimal() else value
        return value

    def counted(self) -> Iterator[str]:
        """Yield how many values of each kind were replaced."""
        kinds = {kind for kind, _ in self._more}
        yield from (count(n, kind, kind if kind in kinds else "") for kind, n in self.counts.items())

    def doubts(self, value: Any) -> list[str]:
        """Return texts in a hidden value that look personal and are not stand-ins."""
        stand_ins = {*(made for _, made in self._used), *(made for _, made in self._names.values())}
        texts = (text for _, text, _ in texts_with_keys(value, (), ()))
        found = (match[0] for text in texts for match in _DOUBTFUL.finditer(text))
        return [each for each in found if each not in self._kept and each not in stand_ins]

    def _key(self, key: Any) -> Any:
        is_plain = not isinstance(key, str) or (key.isascii() and key.isidentifier() and key.islower())
        return key if is_plain else self.text(key)

    def text(self, text: str) -> str:
        """Return a text with stand-ins."""
        shown: list[str] = []

        def put(hide: Callable[[re.Match[str]], str], match: re.Match[str]) -> str:
            new = hide(match)
            if new == match[0] and not _PRIVATE.match(new):
                return new
            shown.append(new)
            return chr(0xF0000 + len(shown) - 1)

        text = _PRIVATE.sub(partial(put, lambda match: match[0]), self._secrets(text))
        for pattern, hide in (*self._learned_in(text), *self._patterns()):
            text = pattern.sub(partial(put, hide), text)
        text = self._with_names(text, partial(put, self._name))
        text = _STREET.sub(partial(put, self._street), text)
        return _PRIVATE.sub(lambda match: shown[ord(match[0]) - 0xF0000], text)

    def _patterns(self) -> Iterator[tuple[re.Pattern[str], Callable[[re.Match[str]], str]]]:
        yield _EMAIL, lambda match: self._replaced("e-mail", match[0].lower(), _email)
        yield from ((_IBAN, self._iban), (_CARD, partial(self._checked, "card", _is_luhn)))
        yield from ((_IDS, partial(self._checked, "number", _is_id)), (_IPV4, self._ip), (_IPV6, self._ip))
        yield from ((_PHONE, partial(self._checked, "phone", self._is_phone)), (_DATE, self._date))

    def _learned_in(self, text: str) -> Iterator[tuple[re.Pattern[str], Callable[[re.Match[str]], str]]]:
        yield from ((pattern, partial(self._checked, kind, bool)) for kind, pattern in self._more)
        if found := sorted((each for each in self._passwords if each in text), key=len, reverse=True):
            words = "|".join(
                rf"(?<!{_LETTER})" * each[0].isalnum()
                + re.escape(each)
                + rf"(?!{_LETTER})" * each[-1].isalnum()
                for each in found
            )
            yield re.compile(words), partial(self._checked, "secret", bool)
        squeezed = re.sub(r"[\W_]", "", text).upper()
        if codes := sorted((each for each in self._codes if each in squeezed), key=len, reverse=True):
            words = "|".join(r"[ ./_-]?".join(map(re.escape, each)) for each in codes)
            pattern = re.compile(rf"(?i)(?<![^\W_])(?<!\d[.,:])(?:{words})(?![^\W_]|[.,:]\d)")
            yield pattern, partial(self._checked, "number", bool)

    def _with_names(self, text: str, hide: Callable[[re.Match[str]], str]) -> str:
        """Replace names in one pass, because a stand-in may be the name of another person."""
        lower = text.replace("İ", "I").lower()  # as long as the text: only İ would become two characters
        words = [word for word in _LETTERS.finditer(lower) if word[0] != "%20"]
        letters = "".join(word[0] for word in words)
        parts, at, end = list[str](), 0, 0
        for word in words:
            for n in range(len(word[0]) if self._anywhere else 1):
                begin = word.start() + n
                if begin >= end and (match := self._name_at(begin, text, at + n, letters)):
                    parts += text[end:begin], hide(match)
                    end = match.end()
            at += len(word[0])
        return "".join((*parts, text[end:]))

    def _name_at(self, begin: int, text: str, at: int, letters: str) -> re.Match[str] | None:
        beginnings = {letters[at : at + n] for n in range(1, _BEGINNING + 1)}
        lengths = {length for each in beginnings for length in self._lengths.get(each, ())}
        names = {name for n in lengths for name in self._by_letters.get(letters[at : at + n], ())}
        longest_first = sorted(names, key=lambda name: (-len(name), name))
        return next(filter(None, (spelled_pattern(name).match(text, begin) for name in longest_first)), None)

    def _name(self, match: re.Match[str]) -> str:
        written = match[0]
        key = re.sub(r"(?:%20|[\s._+,-])+", " ", written).lower().replace("’", "'")
        exact = written.translate(_DASHES).lower()
        learned = self._names.get(exact) or self._names.get(key)
        if learned is None:
            spellings = self._by_letters.get(re.sub(r"%20|[\W_]+", "", exact), [""])
            learned = self._names.get(spellings[-1])
        if learned is None or (written.islower() and " " not in learned[0] and exact in _WORDS["also_words"]):
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

    def _checked(self, kind: str, is_one: Callable[[str], bool], match: re.Match[str]) -> str:
        return self._shaped(kind, match[0]) if is_one(match[0]) else match[0]

    def _is_phone(self, text: str) -> bool:
        return 8 <= len(re.sub(r"\D", "", text)) <= 15 and text not in self._kept

    def _date(self, match: re.Match[str]) -> str:
        year, others = _birth(match[0])
        is_birth = any(year == born and others <= rest for born, rest in self._births)
        return self._replaced("birth date", match[0], _other_date) if is_birth else match[0]

    def _ip(self, match: re.Match[str]) -> str:
        try:
            address = ip_address(match[0])
        except ValueError:
            return match[0]
        return self._replaced("IP number", match[0], _ip if address.version == 4 else _ipv6)

    def _street(self, match: re.Match[str]) -> str:
        is_hidden = "Example Street" in match[0]
        return match[0] if is_hidden else self._replaced("street", match[0], _address)

    def _shaped(self, kind: str, text: str) -> str:
        kept = 0 if kind in ("secret", "number") and not _IBAN.fullmatch(text) else 2  # as its country
        return self._replaced(kind, text, partial(_same_shape, kept=kept))

    def _replaced(self, kind: str, text: str, stand_in: Callable[[str, str], str]) -> str:
        if (kind, text) not in self._known:
            seed = re.sub(r"[\W_]", "", text).upper() or text
            made, tries = stand_in(text, seed), 0
            while ((kind, made) in self._used or made == text) and tries < 50:
                tries += 1
                made = stand_in(text, f"{seed} {tries}")
            made = made if made != text else HIDDEN
            self._known[kind, text] = made
            self._used.add((kind, made))
            self.counts[kind] = self.counts.get(kind, 0) + 1
        return self._known[kind, text]


def _code(text: str) -> str:
    last = end = 0
    for group in re.finditer(r"[A-Za-zÄÖÜ0-9]+", text[:40]):
        between = text[last : group.start()]
        is_short = group[0].isupper() and len(group[0]) <= 3 and group[0] not in ("I", "A")
        if re.search(r"[^ ./\"'(-]", between) or (last and len(between) > 1):
            break
        last = group.end()
        if re.search(r"\d", group[0]) or (end and is_short):
            end = last
        elif not is_short:
            break
    return text[:end].strip(" \"'(")


def _secret(text: str, label: str, mark: str) -> str:
    if re.search(r"(?:pin|otp|cvv2?|cvc2?|csc|code)\W*(?:is|ist|es|est|:|=)?$", label):
        return number[0] if (number := re.match(r"\d{3,8}(?!\w)", text)) else ""
    word = next(iter(re.split(r"[\s，。、；]", text)), "").strip("\"'“”„«»`()").rstrip(".,;")
    is_value = bool(re.search(r"[^\W\d_]", word)) and bool(re.search(r"[\d\W_]", word))
    plain = without_accents(word).lower()
    is_named = bool(mark.strip()) and len(word) > 3 and plain not in _WORDS["states"] | _WORDS["no_names"]
    return word if is_value or is_named else ""


def _birth(date: str) -> tuple[int, frozenset[int]]:
    numbers = re.findall(r"\d+", date)
    year = next((each for each in numbers if len(each) == 4), numbers[-1])
    numbers.remove(year)
    return int(year) % 100, frozenset(map(int, numbers))


def _other_date(date: str, seed: str) -> str:
    year, _ = _birth(date)
    tries = seed.partition(" ")[2]

    def other(match: re.Match[str]) -> str:
        if len(match[0]) == 4:
            return str(int(match[0]) - 1 - _number(f"{year}{tries}") % 9)
        if int(match[0]) == year and match.end() == len(date):
            return f"{(year - 1 - _number(f'{year}{tries}') % 9) % 100:02}"
        return str(1 + _number(f"{year} {int(match[0])}{tries}") % 12).zfill(len(match[0]))

    return re.sub(r"\d+", other, date)


def _is_id(text: str) -> bool:
    text = re.sub(r"[\W_]", "", text)
    if text.isdecimal() and len(text) == 11:  # PESEL
        weights = (1, 3, 7, 9, 1, 3, 7, 9, 1, 3, 1)
        is_checked = sum(int(each) * weight for each, weight in zip(text, weights, strict=True)) % 10 == 0
        return is_checked and 1 <= int(text[2:4]) % 20 <= 12 and 1 <= int(text[4:6]) <= 31
    if re.fullmatch(r"[XYZ\d]\d{7}[A-Z]", text):  # DNI and NIE
        number = int(text[:-1].translate(str.maketrans("XYZ", "012")))
        return "TRWAGMYFPDXBNJZSQVHLCKE"[number % 23] == text[-1]
    return len(text) != 18 or bool(re.match(r"\d{6}(?:19|20)\d\d(?:0[1-9]|1[0-2])[0-3]\d", text))


def _digits(text: str) -> Iterator[int]:
    block = hashlib.sha256(text.encode(errors="surrogatepass")).digest()
    while True:
        yield from (byte % 10 for byte in block)
        block = hashlib.sha256(block).digest()


def _same_shape(text: str, seed: str, kept: int = 2) -> str:
    other, made = _digits(seed), ""
    for at, each in enumerate(text):
        if each.isdecimal():
            made += str(next(other) or (1 if at == 0 else 0))
        elif at >= kept and (each.isupper() or each.islower()):
            letter = "ABCDEFGHJK"[next(other)]
            made += letter if each.isupper() else letter.lower()
        else:
            made += each
    return made


def _number(seed: str, size: int = 4) -> int:
    return int.from_bytes(hashlib.sha256(seed.encode(errors="surrogatepass")).digest()[:size])


def _numbered(form: str, most: int, least: int = 1) -> Callable[[str, str], str]:
    return lambda _, seed: form.format(_number(seed) % most + least)


_email = _numbered("person{}@example.com", 90_000, 10_000)
_ip = _numbered("192.0.2.{}", 254)
_ipv6 = _numbered("2001:db8::{:x}", 0xFFFF, 0)
_address = _numbered("{} Example Street", 999)


def _is_luhn(text: str) -> bool:
    digits = re.sub(r"\D", "", text)
    doubled = [int(each) * (1 + at % 2) for at, each in enumerate(reversed(digits))]
    return len(digits) >= 13 and sum(sum(divmod(each, 10)) for each in doubled) % 10 == 0
