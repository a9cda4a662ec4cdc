"""A command on its own pseudo-terminal, with pressed keys and awaited output."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
from pathlib import Path

from project import COMMAND, DEADLINE_S, clean_environment

_STYLES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A running `agentest`, as in an interactive shell: its terminal controls jobs."""

    def __init__(
        self, root: Path, *arguments: str, env: dict[str, str] | None = None, columns: int = 80
    ) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
        self._slave = theirs
        self._output, self._read, self._more = "", 0, threading.Condition()
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=root,
            env=clean_environment({"TERM": "xterm", **(env or {})}),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        threading.Thread(target=self._receive, daemon=True).start()

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def wait_for(self, text: str) -> str:
        """Wait for a text in the output after what was awaited before; return the output up to it."""
        with self._more:
            if not self._more.wait_for(lambda: text in self._output[self._read :], DEADLINE_S):
                raise AssertionError(f"{text!r} is not in {self._output[self._read :]!r}")
            begin, self._read = self._read, self._output.index(text, self._read) + len(text)
            return self._output[begin : self._read]

    @property
    def has_single_keys(self) -> bool:
        """Whether keys are delivered at once and without an echo."""
        return not termios.tcgetattr(self._slave)[3] & (termios.ICANON | termios.ECHO)

    def end(self) -> int:
        """Wait for the end of the process and return its exit status."""
        try:
            return self.process.wait(DEADLINE_S)
        finally:
            self.close()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    def _receive(self) -> None:
        while True:
            try:
                data = os.read(self._ours, 65536)
            except OSError:
                return
            with self._more:
                self._output += _STYLES.sub("", data.decode(errors="replace"))
                self._more.notify_all()
