"""A call that the agent's own tool answers, in the record of a conversation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentest.mocks.calls import CallRecord, RecordedCall
from agentest.mocks.recordable import recordable
from agentest.support.calling import words_of


class RealCall:
    """A call that was recorded before the agent's own tool runs, to be told what comes of it."""

    def __init__(self, record: CallRecord, call: RecordedCall, redact: Callable[[str], str]) -> None:
        self._record = record
        self._call = call
        self._redact = redact

    def answered(self, result: Any) -> None:
        """The tool returned this: anything; what is no JSON is kept as Python shows it."""
        self._record.finish(self._call, result=recordable(result), error=None)

    def failed(self, error: BaseException) -> None:
        """The tool raised this."""
        shown = self._redact(words_of(error) or type(error).__name__)
        self._record.finish(self._call, result={"error": shown}, error=shown)
