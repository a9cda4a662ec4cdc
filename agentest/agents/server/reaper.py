"""Ends a process group when the process that started this one is gone. A script, standard library only.

Its standard input is a pipe from the process that watches over the group. A word on it means that the group
has been ended already; its end without a word means that the watcher was killed.
"""

import os
import signal
import sys
import time

GRACE_S = 2.0
POLL_S = 0.05


def main(group: int) -> None:
    if sys.stdin.buffer.read(1):
        return
    try:
        os.killpg(group, signal.SIGTERM)
        deadline = time.monotonic() + GRACE_S
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(POLL_S)
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it ended by itself


if __name__ == "__main__":
    main(int(sys.argv[1]))
