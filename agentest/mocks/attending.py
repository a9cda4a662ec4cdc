"""Somebody who attends to the calls of a conversation: sees each, and may answer it in place of its mock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from agentest.mocks.calls import RecordedCall
from agentest.mocks.http_response import HttpResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a call comes to: as it is recorded, and as the agent gets it."""

    result: Any = None
    sent: Any = None
    as_text: bool = False
    """Whether it is sent as the text that it is: a date is one only in JSON."""
    error: str | None = None
    invalid_arguments: str | None = None
    http: HttpResponse | None = None
    """The status and headers that the mock wishes."""
    raised: str | None = None
    """The exception that the mock's own code raised by mistake, and where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What somebody answers by hand: a JSON value, or the message of an error with which the tool fails."""

    result: Any = None
    error: str | None = None

    @property
    def outcome(self) -> Outcome:
        """The same as a mock would have answered it."""
        if self.error is None:
            return Outcome(result=self.result, sent=self.result, as_text=isinstance(self.result, str))
        answer = {"error": self.error}
        return Outcome(result=answer, sent=answer, error=self.error)


class Attendant(Protocol):
    """Whoever attends to a conversation. Calls that nothing mocks are answered by it, too."""

    def noticed(self, call: RecordedCall) -> None:
        """A call was recorded, or more is known of it. It may come from any thread."""
        ...

    async def answer(self, call: RecordedCall, proposed: Outcome | None) -> Given | None:
        """The answer to a call; None: what the mock proposes. `proposed` is None where nothing mocks it."""
        ...
