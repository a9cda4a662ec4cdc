"""In a worker: what the process and its programs print, which Ray keeps in files, without secrets."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
from collections.abc import Callable
from io import TextIOWrapper

_MOST_BYTES = 65_536
"""Of a line: what is longer is looked through in parts."""


class RedactedOutput:
    """Standard output and error of this process, and of all programs that it starts from now on.

    A secret may come while it is printed: `redact` may be set again.
    """

    def __init__(self, redact: Callable[[str], str]) -> None:
        self.redact = redact
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
                text = self.redact(line.decode("utf-8", "replace"))
                os.write(kept, text.encode("utf-8", "replace"))
