"""In a worker: what the process and its programs print, which Ray keeps in files, without secrets."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
from collections.abc import Callable, Sequence
from io import TextIOWrapper

from agentest.support.redact import Redactor

_MOST_BYTES = 65_536
"""Of a line: what is longer is looked through in parts."""
_SHORTEST_PART = 8
"""Characters of a line that may be a part of a secret."""


class RedactedOutput:
    """Standard output and error of this process, and of all programs that it starts from now on.

    A secret may come while it is printed: `redact` may be set again.

    Args:
        secrets: what must not be printed, as far as it is known at the start.
    """

    def __init__(self, secrets: Sequence[str]) -> None:
        self.redact: Callable[[str], str] = Redactor(secrets)
        # A key of several lines is printed a line at a time.
        parts = [part for secret in secrets for part in secret.split("\n") if "\n" in secret]
        self._redact_parts = Redactor(part for part in parts if len(part.strip()) >= _SHORTEST_PART)
        for number, stream in ((1, sys.stdout), (2, sys.stderr)):
            if isinstance(stream, TextIOWrapper):
                stream.flush()
                stream.reconfigure(line_buffering=True)
            self._divert(number)

    def _divert(self, number: int) -> None:
        kept = os.dup(number)
        reading, writing = os.pipe()
        os.dup2(writing, number)
        os.close(writing)
        if number == 2:  # what is written as a process crashes no thread could pass on; it has no values
            faulthandler.enable(kept)
        thread = threading.Thread(
            target=self._pass_on, args=(reading, kept), name=f"output {number}", daemon=True
        )
        thread.start()

    def _pass_on(self, reading: int, kept: int) -> None:
        with open(reading, "rb") as source:
            while line := source.readline(_MOST_BYTES):
                text = self._redact_parts(self.redact(line.decode("utf-8", "replace")))
                os.write(kept, text.encode("utf-8", "replace"))
