"""Recognize error texts that programs write."""

from __future__ import annotations

import re

_CHARS = 1_000
_ERROR = re.compile(
    r"""\s*(?:
        [\w.]*(?:error|exception)\s*:\s
        | \{\s*"error"
        | (?:http(?:/[\d.]+)?|error|status)\s+(?:code\s+)?[45]\d\d\b
        | (?:[45]\d\d\s*[:-]?\s+)?
          (?:internal\s+server\s+error|bad\s+gateway|service\s+unavailable|gateway\s+time-?out)
        | .*traceback\s\(most\ recent\ call\ last\)
    )""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)


def reads_like_error(text: str) -> bool:
    """Return True if a text starts like an exception or a server's error page, or contains a traceback."""
    return _ERROR.match(text[:_CHARS]) is not None
