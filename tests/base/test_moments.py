"""Date and time in prompts."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from agentest.support.dates import format_moment, mask_moments, moment_of, prompt_date, without_marks

NOON_UTC = 1_794_830_400 * 1_000_000_000
"""2026-11-16, 12:00:00 UTC, in nanoseconds."""


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    yield monkeypatch
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("name", "moment", "shown"),
    [
        ("UTC", "2026-11-16T12:00:00+00:00", "Monday, 2026-11-16, 12:00 (UTC+00:00)"),
        ("CET-1", "2026-11-16T13:00:00+01:00", "Monday, 2026-11-16, 13:00 (UTC+01:00)"),
        ("IST-5:30", "2026-11-16T17:30:00+05:30", "Monday, 2026-11-16, 17:30 (UTC+05:30)"),
        ("NZT-13", "2026-11-17T01:00:00+13:00", "Tuesday, 2026-11-17, 01:00 (UTC+13:00)"),
        ("NST+3:30", "2026-11-16T08:30:00-03:30", "Monday, 2026-11-16, 08:30 (UTC-03:30)"),
    ],
)
def test_moments_are_shown_in_local_time(
    zone: pytest.MonkeyPatch, name: str, moment: str, shown: str
) -> None:
    """A moment is stored with the offset of its place, and shown as a clock there would."""
    zone.setenv("TZ", name)
    time.tzset()
    assert moment_of(NOON_UTC) == moment
    zone.setenv("TZ", "UTC")  # who judges elsewhere shows the same
    time.tzset()
    assert format_moment(moment) == shown
    text = f"It is {prompt_date(None, moment)}. Ann wrote: {shown}"
    assert without_marks(text) == f"It is {shown}. Ann wrote: {shown}"
    assert mask_moments(text) == f"It is (a moment). Ann wrote: {shown}"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("2026-11-16T12:00:00Z", "Monday, 2026-11-16, 12:00 (UTC+00:00)"),
        ("2026-11-16T12:00:00", "Monday, 2026-11-16, 12:00"),
        ("2026-11-16", "Monday, 2026-11-16, 00:00"),
        ("", ""),
        ("some time in May", "some time in May"),
    ],
)
def test_other_forms_of_moments(text: str, shown: str) -> None:
    """A moment without an offset is shown without one; any other text is shown unchanged."""
    assert format_moment(text) == shown
    assert mask_moments(shown) == shown
