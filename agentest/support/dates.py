"""Date and time in prompts: written in one form, so that a recording is found whatever the day."""

from __future__ import annotations

import re
import time
from datetime import date, datetime
from typing import Any

_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_DATE_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d")
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


def checked_date(value: Any) -> str:
    """A date or date-time as ISO 8601. Raises ValueError for anything else.

    Args:
        value: a text, or the date or datetime that YAML makes of one.
    """
    if isinstance(value, date):  # a datetime is one, too
        return value.isoformat()
    if isinstance(value, str):
        text = value.strip()
        try:
            if _DATE.fullmatch(text):
                return date.fromisoformat(text).isoformat()
            if _DATE_TIME.match(text):
                return datetime.fromisoformat(text).isoformat()
        except ValueError:
            pass
    raise ValueError(
        "expected a date or date-time in ISO 8601, like 2024-05-15 or 2024-05-15T10:30:00+02:00, "
        f"found {value!r:.80}"
    )


def today() -> str:
    """Today in ISO 8601, by the local time."""
    return datetime.now().astimezone().date().isoformat()


def shown_date(configured: str | None, moment: str | None = None) -> str:
    """The date and time for a prompt: the configured one, else the moment, else now.

    A configured one is shown in a form that `without_moments` leaves alone: another one is another question.
    """
    if configured is None:
        return shown_moment(moment_of(time.time_ns()) if moment is None else moment)
    return f"{configured} ({_DAYS[datetime.fromisoformat(configured).weekday()]})"
