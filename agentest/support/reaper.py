"""End process groups when the process that started this script is gone. Uses only the standard library.

Standard input is a pipe from the process that owns the groups: a line `+GROUP` for a started group, `-GROUP`
for one that has ended. When the pipe ends, the owner is gone, perhaps killed, and the remaining groups are
ended.
"""

from __future__ import annotations

import os
import signal
import sys
import time

GRACE_S = 2.0
POLL_S = 0.05


def main() -> None:
    groups: set[int] = set()
    for line in sys.stdin:
        group = int(line[1:])
        (groups.add if line[0] == "+" else groups.discard)(group)
    left = {group for group in groups if send(group, signal.SIGTERM)}
    deadline = time.monotonic() + GRACE_S
    while left and time.monotonic() < deadline:
        time.sleep(POLL_S)
        left = {group for group in left if send(group, 0)}
    for group in left:
        send(group, signal.SIGKILL)


def send(group: int, number: int) -> bool:
    """Send a signal to the group. Return False if the group is gone."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


if __name__ == "__main__":
    main()
