"""End programs when the process that started them is gone. Uses only the standard library.

Standard input is a pipe from that process: a line `?` before a program starts, `+SESSION` when it has
started, `!` if it has not, and `-SESSION` when it has ended. When the pipe ends, its owner is gone, perhaps
killed, and the remaining programs are ended, with everything in their sessions.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator

GRACE_S = 2.0
POLL_S = 0.05
MARK = "AGENTEST_STARTED_BY"
"""Variable of the programs that one process starts; its value is the argument of this script."""


def main() -> None:
    sessions: set[int] = set()
    starting = 0
    for line in sys.stdin:
        if line[0] in "?!+":
            starting += 1 if line[0] == "?" else -1
        if line[0] in "+-":
            (sessions.add if line[0] == "+" else sessions.discard)(int(line[1:]))
    mark = f"{MARK}={sys.argv[1]}".encode()
    deadline = time.monotonic() + GRACE_S
    asked: set[int] = set()
    while time.monotonic() < deadline:
        if starting:  # killed before it could name the program, which may not have begun either
            sessions.update(_marked_sessions(mark))
        for session in sessions - asked:
            send(session, signal.SIGTERM)
        asked |= sessions
        sessions = {session for session in sessions if send(session, 0)}
        if not sessions and not starting:
            return
        time.sleep(POLL_S)
    for session in sessions:
        send(session, signal.SIGKILL)


def send(session: int, number: int) -> bool:
    """Send a signal to the processes of a session. Return False if none is running.

    Shells and programs like `timeout` put what they start in process groups of their own.
    """
    listed = list(_processes())
    groups = {group for _, group, its in listed if its == session} if listed else {session}
    return sum(_send_to_group(group, number) for group in groups) > 0


def _send_to_group(group: int, number: int) -> bool:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _processes() -> Iterator[tuple[int, int, int]]:
    """Yield number, group and session of every running process, where the system shows them in files.

    A zombie is not running. In many containers nothing collects dead orphans.
    """
    for entry in os.scandir("/proc") if sys.platform.startswith("linux") else ():
        if entry.name.isdecimal():
            try:
                with open(f"{entry.path}/stat", "rb") as file:
                    state, _, group, session = file.read().rpartition(b")")[2].split(maxsplit=4)[:4]
            except (OSError, ValueError):  # it has ended meanwhile
                continue
            if state not in b"ZX":
                yield int(entry.name), int(group), int(session)


def _marked_sessions(mark: bytes) -> Iterator[int]:
    for process, _, session in _processes():
        if process == session:
            try:
                with open(f"/proc/{process}/environ", "rb") as file:
                    if mark in file.read().split(b"\0"):
                        yield session
            except OSError:  # it has ended, or belongs to someone else
                continue


if __name__ == "__main__":
    main()
