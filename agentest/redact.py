"""Keeping secrets out of everything that is shown."""

from __future__ import annotations

import re
from collections.abc import Iterable

MAX_ERROR_CHARS = 500
HIDDEN = "[redacted]"

_LOOKS_SECRET = re.compile(
    r"(SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|CRED|AUTHORIZATION|COOKIE)S?\d*(_|$)"
    # Not MAX_TOKENS, and not MONKEY.
    r"|TOKEN\d*(_|$)|(^|_|API|ACCESS|SECRET|PRIVATE|AI)KEYS?\d*(_|$)"
    r"|(^|_)(PASS|PWD|AUTH|JWT|PAT|DSN)\d*(_|$)",
    re.I,
)
# What is in `keep` stays, so that the reader still sees what was hidden.
_PATTERNS = (
    # "missing bearer token" is an error's usual wording, not a credential.
    re.compile(
        r"(?i)(?P<keep>\bbearer[\s:]+)(?!(?:tokens?|auth\w*|scheme|credentials?|header|realm)(?![\w.~+/-]))"
        r"[\w.~+/=-]{4,}"
    ),
    re.compile(
        r"(?P<keep>\b[Bb]asic\s+)(?=[A-Za-z+/]*(?:[0-9=]|[a-z][A-Z]|[A-Z]{2}))[A-Za-z0-9+/]{6,}={0,2}"
    ),
    re.compile(r"\b(?:sk|pk|rk|gsk|xai|ghp|gho|ghs|github_pat|glpat|hf|xox[abp])[-_][\w-]{8,}"),
    re.compile(r"\bAIza[\w-]{20,}"),
    re.compile(r"\bAKIA[A-Z0-9]{12,}"),
    re.compile(r"\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*"),
    re.compile(
        r"""(?i)(?P<keep>(?:api[_-]?key|access[_-]?token|client[_-]?secret)["']?\s*[=:]\s*["']?)[\w.~+/-]{6,}"""
    ),
    re.compile(r"(?P<keep>://)[^/\s:@]+:[^/\s@]+(?=@)"),
)
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SHORTEST_SECRET = 4


def looks_secret(name: str) -> bool:
    """Whether a variable or header of this name usually holds a secret."""
    return bool(_LOOKS_SECRET.search(_HUMP.sub("_", name.replace("-", "_"))))


class Redactor:
    """Hides known secret values, and whatever has the form of a credential."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = {s.strip() for s in secrets}
        # The longest first, so that a secret that contains another is hidden whole.
        self._secrets = sorted((s for s in known if len(s) >= _SHORTEST_SECRET), key=len, reverse=True)

    def __call__(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        for pattern in _PATTERNS:
            text = pattern.sub(_hidden, text)
        return text

    def error(self, text: str) -> str:
        """An error text ready to be shown: without secrets, at most 500 characters."""
        clean = self(text)
        return clean if len(clean) <= MAX_ERROR_CHARS else clean[: MAX_ERROR_CHARS - 1] + "…"


def _hidden(match: re.Match[str]) -> str:
    return (match.groupdict().get("keep") or "") + HIDDEN
