"""Dates and times in prompts. Those that a run inserts are marked, so that a replay works on any day."""

from __future__ import annotations

import os
import re
import time
from datetime import date, datetime
from typing import Any

_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_DATE_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d")
_BEGIN, _END = (f"@{os.urandom(8).hex()}@" for _ in range(2))
"""The marks around an inserted time. Nobody else can write them: each process has its own."""
_MARKED = re.compile(f"{_BEGIN}.*?{_END}")


def moment_of(nanoseconds: int) -> str:
    """Format nanoseconds since 1970 as ISO 8601 to the second, with the local offset."""
    return datetime.fromtimestamp(nanoseconds // 1_000_000_000).astimezone().isoformat(timespec="seconds")


def format_moment(moment: str) -> str:
    """Format an ISO 8601 time like "Sunday, 2026-11-22, 20:57 (UTC+01:00)". Other texts stay."""
    try:
        at = datetime.fromisoformat(moment)
    except ValueError:
        return moment
    offset = at.strftime("%z")
    zone = f" (UTC{offset[:3]}:{offset[3:5]})" if offset else ""
    return f"{_DAYS[at.weekday()]}, {at:%Y-%m-%d, %H:%M}{zone}"


def mask_moments(text: str) -> str:
    """Replace every time that `prompt_date` inserted. A time that anybody else wrote stays."""
    return _MARKED.sub("(a moment)", text) if _BEGIN in text else text


def without_marks(text: str) -> str:
    """Return a prompt as the model and people see it, without the marks of `prompt_date`."""
    return text.replace(_BEGIN, "").replace(_END, "") if _BEGIN in text else text


def normalize_date(value: Any) -> str:
    """Convert a date or date-time to ISO 8601. Raises ValueError for anything else.

    Args:
        value: a text, or the date or datetime that YAML creates from one.
    """
    if isinstance(value, date):  # includes datetime
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
    """Return today's local date in ISO 8601."""
    return datetime.now().astimezone().date().isoformat()


def prompt_date(configured: str | None, moment: str | None = None) -> str:
    """Return the date and time for a prompt: the configured one, else the moment, else now, with marks.

    A configured date has no marks, because another date makes another question.
    """
    if configured is None:
        shown = format_moment(moment_of(time.time_ns()) if moment is None else moment)
        return f"{_BEGIN}{shown}{_END}" if shown else ""
    return f"{configured} ({_DAYS[datetime.fromisoformat(configured).weekday()]})"
