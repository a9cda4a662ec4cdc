"""Date and time in prompts: written in one form, so that a recording is found whatever the day."""

from __future__ import annotations

import re
from datetime import datetime

_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MOMENT = re.compile(rf"(?:{'|'.join(_DAYS)}), \d{{4}}-\d\d-\d\d, \d\d:\d\d(?: \(UTC[+-]\d\d:\d\d\))?")


def moment_of(nanoseconds: int) -> str:
    """A moment since the epoch: ISO 8601 to the second, with the offset of the local time."""
    return datetime.fromtimestamp(nanoseconds // 1_000_000_000).astimezone().isoformat(timespec="seconds")


def shown_moment(moment: str) -> str:
    """A moment in ISO 8601 for a prompt: "Sunday, 2026-11-22, 20:57 (UTC+01:00)"; other texts as they are."""
    try:
        at = datetime.fromisoformat(moment)
    except ValueError:
        return moment
    offset = at.strftime("%z")
    zone = f" (UTC{offset[:3]}:{offset[3:5]})" if offset else ""
    return f"{_DAYS[at.weekday()]}, {at:%Y-%m-%d, %H:%M}{zone}"


def without_moments(text: str) -> str:
    """The text with every moment that `shown_moment` wrote replaced by one and the same word."""
    return _MOMENT.sub("(a moment)", text)
