"""Standard error as it was before pytest captured it: for whoever sits before a run that shows nothing."""

from __future__ import annotations

import os
from contextlib import suppress

from agentest.support.terminal import clean, in_log


class Aloud:
    """Writes lines at once, from any thread, whatever pytest captures meanwhile. Made while it does not."""

    def __init__(self) -> None:
        self._file: int | None = None
        with suppress(OSError):  # there is none: nobody sits there
            self._file = os.dup(2)

    def __call__(self, text: str) -> None:
        """Write a line; where that fails, it is lost."""
        if self._file is not None:
            # pytest may have begun a line of dots.
            row = f"\n{in_log(clean(text))}\n".encode("utf-8", "backslashreplace")
            with suppress(OSError):
                os.write(self._file, row)

    def close(self) -> None:
        """Write no more."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
