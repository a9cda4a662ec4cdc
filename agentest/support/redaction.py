"""Redact secrets in everything that is shown or stored.

Texts may come from an agent or a model and have any length. The patterns never read again what they have read
without a match, so their time is linear in the length of the text.
"""

from __future__ import annotations

import base64
import dataclasses
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from functools import cache
from itertools import chain
from os.path import commonprefix
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

from agentest.support.json_text import plain, safe_repr
from agentest.support.lazy_dataclasses import dataclass, replace

MAX_ERROR_CHARS = 500
HIDDEN = "[redacted]"

_LOOKS_SECRET = re.compile(
    r"(SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|CRED|AUTHORIZATION|COOKIE)S?\d*(_|$)"
    # Matches neither MAX_TOKENS nor MONKEY.
    r"|TOKEN\d*(_|$)|(^|_|API|ACCESS|SECRET|PRIVATE|AI)KEYS?\d*(_|$)"
    r"|(^|_)(PASS|PWD|AUTH|JWT|PAT|DSN)\d*(_|$)",
    re.I,
)
_SIGNATURES = frozenset({"sig", "signature", "x-amz-signature", "x-goog-signature"})

_NAMES = ("password", "passwd", "passphrase", "secret", "token")
_NAME = f"(?:{'|'.join(_NAMES)})"
_KEY = "(?:api|access|account|private|secret)[_-]?key"
# The `keep` group stays, so that the reader can see what was redacted.
_PATTERNS_BY_PARTS = {
    # "missing bearer token" is a common error text, not a credential.
    "bearer": r"(?i)(?P<keep>(?<![a-z])bearer(?:[\s:+]|%20){1,64})"
    r"(?!(?:tokens?|auth\w{0,32}|scheme|credentials?|header|realm)(?![\w.~+/-]))[\w.~+/=%-]{4,}",
    "basic": r"(?P<keep>(?<![A-Za-z])[Bb]asic(?:\s|%20){1,64})"
    r"(?=[A-Za-z+/]*(?:[0-9=]|[a-z][A-Z]|[A-Z]{2}))[A-Za-z0-9+/]{6,}={0,2}",
    "k- k_ xai ghp gho ghr ghs ghu _pat glpat hf xox xapp whsec shpat": (
        r"\b(?:sk|pk|rk|gsk|xai|gh[oprsu]|github_pat|glpat|hf|xox[a-z]|xapp|whsec|shpat)[-_][\w-]{8,}"
    ),
    "aiza ya29. akia asia gocspx- sg. npm_ pypi-": (
        r"\b(?:AIza[\w-]{20,}|ya29\.[\w-]{20,}|A[KS]IA[A-Z0-9]{12,}|GOCSPX-[\w-]{16,}"
        r"|SG\.[\w-]{16,}\.[\w-]{16,}|npm_[A-Za-z0-9]{20,}|pypi-[\w-]{16,})"
    ),
    # A JSON Web Token, or its first part: a base64-encoded object.
    "eyj": r"\beyJ[\w-]{8,}(?:\.[\w-]++)*+",
    "-----begin": r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[^\0]*?"
    r"(?:-----END [A-Z ]{0,40}KEY-----|(?=\0|\Z))",
    "key access client": rf"(?i)(?P<keep>(?:{_KEY}|access[_-]?token|client[_-]?secret)"
    r"""\\{0,8}["']?\s{0,64}[=:]\s{0,64}\\{0,8}["']?)[\w.~+/%=-]{6,}""",
    " ".join(_NAMES): rf"""(?i)(?P<keep>{_NAME}\\{{0,8}}["']?\s?[=:]\s?\\{{0,8}}["'])[^"'\s\\]{{4,}}""",
    "= ".join((*_NAMES, "")): rf"""(?i)(?P<keep>{_NAME}=)[^&"'\s\\,;)}}]{{4,}}""",
    # Without a digit, it is a word: "Password: required".
    ": ".join((*_NAMES, "")): rf"(?i)(?P<keep>{_NAME}:\s{{0,8}})(?=[^\s\d]{{0,64}}\d)[\w.~+/%=-]{{8,}}",
    # Credentials in a URL: `user:password@` and `token@`.
    "@": r"""(?P<keep>:\\?/\\?/)[^/\s?#"'<>\\]+(?=@)""",
}
"""Parts in lower case, one of which a text has if the pattern matches → the pattern. Parts are found fast."""
_BEFORE = {"key": 8, "k-": 2, "k_": 2, "_pat": 6}
"""Part → the most characters of a match before it; a match begins with any other part, except with "@"."""
_COST = 30  # what it takes to try a pattern in one place, in characters that it reads
_PATTERNS = [(parts.split(), re.compile(pattern)) for parts, pattern in _PATTERNS_BY_PARTS.items()]
_QUERY = re.compile(r"""(?P<keep>[?&;#](?P<name>[\w.-]{1,64})=)[^?&;#\s"'<>\\]+""")
_NAMED_CREDENTIAL = re.compile(rf"(?i)(?:{_NAME}|authorization|{_KEY})$")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SHORTEST_SECRET = 4
_SHORTEST_OF_ENVIRONMENT = 8
_SHORTEST_LEARNED = 8
_MAX_LEARNED = 2000
_LOOKED_AT_CHARS = 8 * MAX_ERROR_CHARS
_NAMED = {'"': "quot", "'": "apos", "&": "amp", "<": "lt", ">": "gt"}
_LETTERS = {"\n": "n", "\r": "r", "\t": "t", "\b": "b", "\f": "f"}
_LONGEST_SPELLING = 40
_SHORTEST_IN_TRANSCRIPTS = 8
_LONGEST_WORD = 11
"""A secret that is one word of at most this many letters stays in transcripts: agents use such words."""
_MAX_CLEAN = 20_000
_SEPARATOR = "\n\0\n"
PIECE_END = b'", "'  # of JSON; no text contains it, because its quotation marks are escaped
_SHORTEST_PART = 6
_CUT = "…"
_SAME_IN_ANY_SPELLING = re.compile(r"[A-Za-z0-9_.-]+")
_BREAKS = re.compile(r"[\s;,]+")


def looks_secret(name: str) -> bool:
    """Return True if a variable or header with this name usually contains a secret."""
    return bool(_LOOKS_SECRET.search(_HUMP.sub("_", name.replace("-", "_"))))


def secret_values(named: Mapping[str, str]) -> list[str]:
    """Return the values whose names look secret."""
    return [value for name, value in named.items() if looks_secret(name) and name != "PWD"]


def environment_secrets(environ: Mapping[str, str]) -> list[str]:
    """Return values of the environment that must not be shown.

    Very short values are excluded: a key with the value `test` would redact every "test".
    """
    return [value for value in secret_values(environ) if len(value) >= _SHORTEST_OF_ENVIRONMENT]


def header_secrets(headers: Mapping[str, str]) -> list[str]:
    """Return secrets in headers: whole values, their parts, and decoded Basic credentials."""
    values = secret_values(headers)
    words = [word for value in values for word in (*value.split(), *_BREAKS.split(value))]
    words += [word.partition("=")[2] for word in words]  # a cookie's value
    secrets = [*values, *(word for word in words if len(word) >= 8)]
    for value in values:
        scheme, _, encoded = value.strip().partition(" ")
        if scheme.lower() == "basic":
            with suppress(ValueError):
                credentials = base64.b64decode(encoded, validate=True).decode()
                secrets += [credentials, credentials.partition(":")[2]]
    return secrets


def url_secrets(url: str) -> list[str]:
    """Return secrets in a URL: its password (or a user name alone) and secret query parameters."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return []
    name, colon, password = parts.netloc.rpartition("@")[0].partition(":")
    secrets = [password or name, unquote(password or name)]
    if colon:
        credentials = f"{unquote(name)}:{unquote(password)}"
        secrets += [credentials, base64.b64encode(credentials.encode()).decode()]
    query = parse_qsl(parts.query)
    return [secret for secret in [*secrets, *(v for n, v in query if _is_secret_parameter(n))] if secret]


def without_credentials(url: str) -> str:
    """Return the URL without user, password, query and fragment."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _is_secret_parameter(name: str) -> bool:
    return name.lower() in _SIGNATURES or looks_secret(name)


class _Secret(NamedTuple):
    text: str
    run: str
    """Its longest part that no escaping changes. A text without this part does not contain the secret."""
    spelt: re.Pattern[str] | None
    """Its forms in a URL, JSON, HTML or Python; None if escaping never changes it."""

    @classmethod
    def of(cls, text: str) -> _Secret:
        run = max(_SAME_IN_ANY_SPELLING.findall(text), key=len, default="")
        return cls(text, run, None if run == text else re.compile("".join(map(_spellings, text))))

    def may_be_in(self, text: str) -> bool:
        """Return False if the text contains neither the secret nor a truncated part of it."""
        if self.run in text:
            return True
        return _CUT in text and (self.text[:_SHORTEST_PART] in text or self.text[-_SHORTEST_PART:] in text)

    def hidden_in(self, text: str) -> str:
        if self.run not in text:
            return text
        return self.spelt.sub(HIDDEN, text) if self.spelt else text.replace(self.text, HIDDEN)


@dataclass(frozen=True, slots=True)
class TextRedaction:
    """Redacts some secrets in texts, including truncated ones that end with `…`."""

    secrets: tuple[_Secret, ...] = ()
    credentials: bool = False  # True to redact everything in the form of a credential, too

    def __bool__(self) -> bool:
        return self.credentials or bool(self.secrets)

    def __call__(self, text: str) -> str:
        for secret in self.secrets:
            text = secret.hidden_in(text)
        if self.credentials:
            text = _without_credentials(text)
        if _CUT in text:
            for secret in self.secrets:
                text = _redact_truncated(secret.text, text)
                text = _redact_truncated(secret.text[::-1], text[::-1], HIDDEN[::-1])[::-1]
        return text


class _SecretIndex:
    _CHARS = 8
    _FEW = 8  # are found sooner one by one

    def __init__(self) -> None:
        self._by_part: dict[str, dict[_Secret, None]] = {}
        """Each part of fixed length → the secrets that contain it."""
        self._others: dict[_Secret, None] = {}  # a few secrets, and those too short for such a part

    def __bool__(self) -> bool:
        return bool(self._by_part or self._others)

    def add(self, secret: _Secret) -> None:
        if len(secret.run) < 2 * self._CHARS - 1 or len(self._others) < self._FEW:
            self._others[secret] = None
        for part in self._parts(secret):
            self._by_part.setdefault(part, {})[secret] = None

    def remove(self, secret: _Secret) -> None:
        for part in self._parts(secret):
            self._by_part.get(part, {}).pop(secret, None)
        self._others.pop(secret, None)

    def _parts(self, secret: _Secret) -> list[str]:
        if secret in self._others:
            return []
        return [secret.run[at : at + self._CHARS] for at in range(len(secret.run) - self._CHARS + 1)]

    def in_text(self, text: str) -> Iterator[_Secret]:
        """Yield secrets that may be in a text: each contains a whole part at a multiple of 8 of it."""
        yield from self._others
        parts = self._by_part
        if parts:
            steps = range(0, len(text), self._CHARS)
            matching = {part for at in steps if (part := text[at : at + self._CHARS]) in parts}
            yield from {secret: None for part in matching for secret in parts[part]}


class Redactor:
    """Redacts known secrets in any escaping, and everything in the form of a credential.

    Args:
        transcripts: True to redact known secrets in messages of agents and tools as well.
    """

    def __init__(self, secrets: Iterable[str] = (), *, transcripts: bool = True) -> None:
        known = {s.strip() for s in secrets}
        self._known = {s: _Secret.of(s) for s in known if len(s) >= _SHORTEST_SECRET}
        self._learned: dict[str, _Secret] = {}
        self._transcripts = transcripts
        self._transcript_secrets = [
            each for each in self._known.values() if transcripts and _is_distinctive(each.text)
        ]
        self._learned_transcript_secrets = _SecretIndex()
        self._prepare()

    def _prepare(self) -> None:
        # Longest first, so that a secret that contains another is redacted as a whole.
        self._secrets = _longest_first({**self._known, **self._learned}.values())
        self._longest = len(self._secrets[0].text) * _LONGEST_SPELLING if self._secrets else 0
        self._ready = True

    def knowing(self, more: Iterable[str]) -> Redactor:
        """Return a copy that redacts these secrets as well."""
        return Redactor((*self._known, *more), transcripts=self._transcripts)

    def learn(self, secrets: Iterable[str]) -> None:
        """Redact these secrets from now on: login tokens and cookies received during the run.

        Short texts are ignored. If there are too many, the oldest are forgotten.
        """
        for text in secrets:
            if len(text) >= _SHORTEST_LEARNED and text not in self._known and text not in self._learned:
                self._ready = False
                self._learned[text] = secret = _Secret.of(text)
                if self._transcripts and _is_distinctive(text):
                    self._learned_transcript_secrets.add(secret)
        for oldest in list(self._learned)[: max(len(self._learned) - _MAX_LEARNED, 0)]:
            self._learned_transcript_secrets.remove(self._learned.pop(oldest))

    def __call__(self, text: str) -> str:
        if not self._ready:
            self._prepare()
        for secret in self._secrets:
            text = secret.hidden_in(text)
        return _without_credentials(text)

    @property
    def hides_transcripts(self) -> bool:
        """True if there may be secrets to redact in transcripts."""
        return self._transcripts and bool(self._transcript_secrets or self._learned)

    def transcript(self, text: str) -> str:
        """Redact known secrets in a message. Returns the same object if there are none.

        Texts that only have the form of a credential stay, as do short secrets and single words, because a
        transcript is evidence.
        """
        return self.hiding_in([text])(text) if self.hides_transcripts else text

    def hiding_in(self, texts: Iterable[str]) -> TextRedaction:
        """Return an object that redacts these texts like `transcript`, or a false one without secrets."""
        joined = "\0".join(texts)
        secrets = [
            each
            for each in (*self._transcript_secrets, *self._learned_transcript_secrets.in_text(joined))
            if each.may_be_in(joined)
        ]
        return TextRedaction(tuple(_longest_first(secrets)))

    def error(self, text: str) -> str:
        """Prepare an error text for display: redacted, at most 500 characters.

        Only the beginning of a long text is read. A secret that ends after it is removed with the rest.
        """
        if not self._ready:
            self._prepare()
        looked_at = _LOOKED_AT_CHARS + self._longest
        clean = self(text[:looked_at])
        if len(text) > looked_at:
            clean = clean[: max(len(clean) - self._longest, 0)] + "…"
        return clean if len(clean) <= MAX_ERROR_CHARS else clean[: MAX_ERROR_CHARS - 1] + "…"


def _longest_first(secrets: Iterable[_Secret]) -> list[_Secret]:
    return sorted(secrets, key=lambda secret: len(secret.text), reverse=True)


def _is_distinctive(secret: str) -> bool:
    if len(secret) < _SHORTEST_IN_TRANSCRIPTS:
        return False
    in_one_case = secret.islower() or secret.isupper() or secret.istitle()
    return not (secret.isalpha() and in_one_case and len(secret) <= _LONGEST_WORD)


def _redact_truncated(secret: str, text: str, hidden: str = HIDDEN) -> str:
    beginning = secret[:_SHORTEST_PART]
    parts, done = [], 0
    at = text.find(beginning)
    while at >= 0:
        end = at + len(commonprefix((secret, text[at : at + len(secret)])))  # noqa: RUF071 - characters
        if text[end : end + 1] == _CUT:
            parts += [text[done:at], hidden]
            done = end
        at = text.find(beginning, max(at + 1, done))
    return "".join([*parts, text[done:]]) if parts else text


def _hidden(match: re.Match[str]) -> str:
    groups = match.groupdict()
    if "name" in groups and not _is_secret_parameter(groups["name"]):
        return match[0]
    return groups.get("keep", "") + HIDDEN


def _without_credentials(text: str) -> str:
    folded = text.casefold()
    for parts, pattern in _PATTERNS:
        if any(part in folded for part in parts):
            text = pattern.sub(_hidden, text)
    return _QUERY.sub(_hidden, text)


def credentials_in(text: str) -> Iterator[str]:
    """Yield what has the form of a credential."""
    folded = text.replace("İ", "i").lower().replace("ſ", "s")  # of the same length, unlike casefold()
    matches = (match for parts, pattern in _PATTERNS for match in _matches(pattern, text, parts, folded))
    for match in chain(matches, _QUERY.finditer(text)):
        hidden = _hidden(match)
        found = match[0].removeprefix(hidden.removesuffix(HIDDEN))
        if hidden != match[0] and not found.startswith(HIDDEN):
            yield found


def _matches(
    pattern: re.Pattern[str], text: str, parts: Sequence[str], folded: str
) -> Iterator[re.Match[str]]:
    """Yield what `pattern.finditer` finds. A text that is full of parts is read from end to end."""
    places: list[tuple[int, int]] = []
    for part in parts:
        before = _BEFORE.get(part, 0)
        at = folded.find(part)
        while at >= 0 and len(places) * _COST < len(text):
            places.append((at - before, at))
            at = folded.find(part, at + 1)
    if ("@" in parts and places) or len(places) * _COST >= len(text):
        yield from pattern.finditer(text)
        return
    done = 0
    for first, last in sorted(places):
        tried = (pattern.match(text, start) for start in range(max(first, done), last + 1))
        if match := next(filter(None, tried), None):
            yield match
            done = match.end()


def _spellings(character: str) -> str:
    if _SAME_IN_ANY_SPELLING.fullmatch(character):
        return re.escape(character)
    code, named = ord(character), _NAMED.get(character)
    units = character.encode("utf-16-be", "surrogatepass").hex()
    ways = [
        "".join(rf"%(?:25){{0,3}}(?i:{byte:02x})" for byte in character.encode("utf-8", "surrogatepass")),
        "".join(rf"\\{{1,8}}u(?i:{units[i : i + 4]})" for i in range(0, len(units), 4)),
        rf"\\{{1,8}}(?i:x{code:02x}|U{code:08x})",
        rf"\\{{0,7}}&(?:amp;){{0,2}}#(?:0{{0,4}}{code}|(?i:x0{{0,4}}{code:x}));",
    ]
    ways += [rf"\\{{0,7}}&(?:amp;){{0,2}}{named};"] if named else []
    ways += [rf"\\{{1,8}}{_LETTERS[character]}"] if character in _LETTERS else []
    ways += [r"\+"] if character == " " else []
    # The character itself comes last, because `&` starts `&amp;`. Backslashes double with every level of
    # quoting.
    ways += [r"\\{1,8}" if character == "\\" else r"\\{0,7}" + re.escape(character)]
    return f"(?:{'|'.join(ways)})"


_T = TypeVar("_T")
_MAX_DEPTH = 100
_MIN_NUMBER = 10_000_000  # smaller numbers have fewer digits than any secret that is redacted in transcripts
_OURS = __name__.partition(".")[0]


def without_secrets(value: _T, redact: Redactor) -> _T:
    """Redact known secrets in all texts of a value (`Redactor.transcript`). Returns it unchanged if there are
    none.

    Searches our dataclasses, dicts, lists and tuples. A foreign object is replaced by its JSON form if its
    text contains a secret.
    """
    if not redact.hides_transcripts:
        return value
    hide = redact.hiding_in(_texts(value))
    hidden: _T = _Value(hide).value(value, 0) if hide else value
    return hidden


class CredentialFilter:
    """Hides in reports what has the form of a credential, which transcripts keep as evidence."""

    def __init__(self) -> None:
        self.has_hidden = False
        self._found: set[str] = set()
        self._clean: set[str] = set()
        """Short texts without a credential, because conversations have many texts in common."""
        self._distinctive = _SecretIndex()
        """Those that may stand elsewhere without the words that make them credentials."""

    @property
    def note(self) -> str:
        """How many different values are hidden; "" for none."""
        if len(self._found) == 1:
            return "1 value that looks like a credential is hidden"
        return f"{len(self._found):,} values that look like credentials are hidden" if self._found else ""

    def __call__(self, value: _T, keep: Collection[str] = ()) -> _T:
        """Return the value without credentials; the value itself if there are none.

        Args:
            keep: texts that stay, such as the names by which a page asks for more.
        """
        named: list[str] = []
        texts = [each for each in _texts(value, named) if each not in keep]
        unknown = [each for each in texts if each not in self._clean]
        # In parts, because a search takes twelve bytes for each character.
        parts = (_SEPARATOR.join(unknown[at : at + 999]) for at in range(0, len(unknown), 999))
        found = {each.replace("\\n", "\n") for each in chain(named, *map(credentials_in, parts))}
        if not found and len(self._clean) < _MAX_CLEAN:
            self._clean.update(each for each in texts if len(each) < MAX_ERROR_CHARS)
        text = _SEPARATOR.join(texts) if self._distinctive or found else ""
        for new in found - self._found if len(self._found) < _MAX_LEARNED else ():
            if _is_distinctive(new):
                self._distinctive.add(_Secret.of(new))
        self._found |= {each for each in found if _CUT not in each}
        secrets = [each for each in self._distinctive.in_text(text) if each.may_be_in(text)]
        if not (found or secrets):
            return value
        self.has_hidden = True
        hide = TextRedaction(tuple(_longest_first(secrets)), credentials=True)
        hidden: _T = _Value(hide, keep).value(value, 0)
        return hidden


def _is_named_credential(name: Any, value: Any) -> bool:
    is_text = isinstance(name, str) and isinstance(value, str) and len(value) >= _SHORTEST_SECRET
    return is_text and value != HIDDEN and _NAMED_CREDENTIAL.search(name) is not None


def _texts(value: Any, named: list[str] | None = None) -> Iterator[str]:
    """Yield every text in a value, including dict keys. Each container is visited once.

    Args:
        named: receives the values of dicts whose keys name a credential.
    """
    visited: set[int] = set()
    waiting = [value]
    while waiting:
        item = waiting.pop()
        kind: type = type(item)
        if kind is str:
            yield item
        elif item is None or kind is bool or kind is float or isinstance(item, Enum):
            continue
        elif kind is int:
            if abs(item) >= _MIN_NUMBER:
                yield _digits(item)
        elif id(item) not in visited:
            visited.add(id(item))
            if names := _fields(kind):
                waiting += [getattr(item, name) for name in names]
            elif isinstance(item, Mapping):
                waiting += [*item, *item.values()]
                if named is not None:
                    named += [text for name, text in item.items() if _is_named_credential(name, text)]
            elif isinstance(item, list | tuple | set | frozenset):
                waiting += item
            elif stored := getattr(item, "stored_texts", None):  # values that are read when they are used
                yield joined(set[bytes]().union(*(json.split(PIECE_END) for json in stored())))
            else:
                yield str(item) if isinstance(item, str) else _foreign_text(item)


def joined(pieces: Iterable[bytes]) -> str:
    """Return pieces of JSON as one text in which no pattern matches more than one of them."""
    return _SEPARATOR.encode().join(pieces).decode(errors="replace")


class _Value:
    def __init__(self, hide: TextRedaction, keep: Collection[str] = ()) -> None:
        self._text, self._keep = hide, keep
        self._made: dict[int, tuple[Any, Any]] = {}
        """Container id → the container and its replacement, because it may occur repeatedly or contain
        itself.
        """

    def value(self, value: Any, depth: int) -> Any:
        if value is None or isinstance(value, bool | float | Enum):
            return value
        if isinstance(value, str):
            return value if value in self._keep else self._text(value)
        if isinstance(value, int):
            return HIDDEN if abs(value) >= _MIN_NUMBER and self._is_hidden(_digits(value)) else value
        if id(value) not in self._made:
            self._made[id(value)] = value, "…"
            made = "…" if depth > _MAX_DEPTH else self._container(value, depth + 1)
            self._made[id(value)] = value, made
        return self._made[id(value)][1]

    def _container(self, value: Any, depth: int) -> Any:
        kind: type = type(value)
        if names := _fields(kind):
            old = {name: getattr(value, name) for name in names}
            new = {name: self.value(part, depth) for name, part in old.items()}
            changed = {name: part for name, part in new.items() if part is not old[name]}
            return replace(value, **changed) if changed else value
        if isinstance(value, Mapping):
            return self._mapping(value, depth)
        if isinstance(value, list | tuple | set | frozenset):
            parts = [self.value(part, depth) for part in value]
            if all(a is b for a, b in zip(value, parts, strict=True)):
                return value
            return parts if isinstance(value, list) else tuple(parts)
        if mapped := getattr(value, "mapped", None):
            return mapped(lambda part: _Value(self._text, self._keep).value(part, 0))
        return self.value(plain(value), depth) if self._is_hidden(_foreign_text(value)) else value

    def _mapping(self, value: Mapping[Any, Any], depth: int) -> Any:
        made: dict[Any, Any] = {}
        same = True
        for key, part in value.items():
            name, new = self.value(key, depth), self.value(part, depth)
            if self._text.credentials and _is_named_credential(key, part):
                new = HIDDEN
            same = same and name is key and new is part
            number = 1
            while name in made:  # two keys became equal
                number += 1
                name = f"{self.value(key, depth)} ({number})"
            made[name] = new
        return value if same else made

    def _is_hidden(self, text: str) -> bool:
        return self._text(text) != text


def _foreign_text(value: Any) -> str:
    try:
        return f"{value}\0{safe_repr(value)}"
    except Exception:  # noqa: BLE001 - a foreign object may even lack a text
        return safe_repr(value)


def _digits(number: int) -> str:
    """Return the number as text; "" if it has more digits than any secret, and than Python converts."""
    return str(number) if abs(number).bit_length() < 4_000 else ""


@cache
def _fields(kind: type) -> tuple[str, ...]:
    """Return the fields of a dataclass of ours; empty for anything else."""
    if not dataclasses.is_dataclass(kind) or kind.__module__.partition(".")[0] != _OURS:
        return ()
    return tuple(field.name for field in dataclasses.fields(kind))
