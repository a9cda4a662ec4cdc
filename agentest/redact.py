"""Keeping secrets out of everything that is shown."""

from __future__ import annotations

import re
from collections.abc import Iterable

MAX_ERROR_CHARS = 500
HIDDEN = "[redacted]"

_LOOKS_SECRET = re.compile(
    r"(^|_)(API_?KEY|KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASS|PWD|CREDENTIALS?|AUTH|AUTHORIZATION|COOKIE)(_|$)",
    re.I,
)
_PATTERNS = (
    re.compile(r"(?i)(?<=bearer )[\w.~+/=-]{4,}"),
    re.compile(r"(?i)(?<=basic )[A-Za-z0-9+/=]{8,}"),
    re.compile(r"\b(?:sk|pk|rk|gsk|xai|ghp|gho|ghs|github_pat|glpat|hf|xox[abp])[-_][\w-]{8,}"),
    re.compile(r"\bAIza[\w-]{20,}"),
    re.compile(r"\bAKIA[A-Z0-9]{12,}"),
    re.compile(r"""(?i)(?<=api[_-]key["'=: ])["'=: ]*[\w.~+/-]{6,}"""),
)
_SHORTEST_SECRET = 4


def looks_secret(name: str) -> bool:
    """Whether a variable or header of this name usually holds a secret."""
    return bool(_LOOKS_SECRET.search(name.replace("-", "_")))


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
            text = pattern.sub(HIDDEN, text)
        return text

    def error(self, text: str) -> str:
        """An error text ready to be shown: without secrets, at most 500 characters."""
        clean = self(text)
        return clean if len(clean) <= MAX_ERROR_CHARS else clean[: MAX_ERROR_CHARS - 1] + "…"
