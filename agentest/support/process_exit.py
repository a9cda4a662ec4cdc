"""Ends of the process that only the program may order: `os._exit` and `os.exec…`.

User code that calls them would end the run without a report and with a status of its own: 0 reads as a pass.
After `guard_process_exit` they raise ProcessExitError, which is recorded where the code was called. The rest
of the run goes on, and the command ends with status 2. Native code that ends the process is out of reach.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from traceback import extract_stack
from typing import Any, NoReturn

from agentest.errors import ProcessExitError

end_process: Callable[[int], NoReturn] = os._exit
"""Ends the process at once with a status, also after `guard_process_exit`."""

_GUARDED = ("_exit", "execv", "execve")
"""The other functions that replace the program call one of the last two."""
_prevented: list[str] = []


def guard_process_exit() -> None:
    """Keep user code from ending this process. Processes that are forked from it may end as they like."""
    process = os.getpid()
    for name in _GUARDED:
        setattr(os, name, _guarded(name, getattr(os, name), process))


def prevented_exits() -> list[str]:
    """Where user code tried to end the process, one message for each place."""
    return list(dict.fromkeys(_prevented))


def _guarded(name: str, real: Callable[..., Any], process: int) -> Callable[..., Any]:
    def guarded(*args: Any, **options: Any) -> Any:
        if os.getpid() != process:
            return real(*args, **options)
        caller = extract_stack(sys._getframe(1), limit=1)[0]
        shown = ", ".join([*map(repr, args[:1]), *("…" for _ in args[1:2])])
        problem = f"os.{name}({shown}) at {caller.filename}:{caller.lineno} would have ended the run"
        _prevented.append(problem)
        raise ProcessExitError(f"{problem}; remove it")

    return guarded
