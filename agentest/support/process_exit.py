"""Ends of the process that only the program may order: `os._exit`, `os.abort`, `os.exec…`, and signals that
the process sends to itself.

User code that calls them would end the run without a report and with a status of its own: 0 reads as a pass.
After `guard_process_exit` they raise ProcessExitError, which is recorded where the code was called. The rest
of the run goes on, and the command ends with status 2. Native code that ends the process is out of reach.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Callable
from traceback import extract_stack
from types import ModuleType
from typing import Any, NoReturn

from agentest.support.errors import ProcessExitError

end_process: Callable[[int], NoReturn] = os._exit
"""Ends the process at once with a status, also after `guard_process_exit`."""

_ENDS = ("_exit", "abort", "execv", "execve")
"""The other functions that replace the program call one of the last two."""
_SIGNALLED = {"kill": "pid", "killpg": "group", "raise_signal": ""}
"""Function that sends a signal → what its first argument says of the receiver; "": it is this process."""
_ARE_NO_END = ("SIGCHLD", "SIGCONT", "SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGURG", "SIGWINCH")
"""Signals that end no process that leaves them to the system."""
_prevented: list[str] = []


def guard_process_exit() -> None:
    """Keep user code from ending this process. Processes that are forked from it may end as they like."""
    process = os.getpid()
    for module in (os, importlib.import_module(os.name)):
        for name in (*_ENDS, "kill", "killpg"):
            _guard(module, name, process)
    _guard(signal, "raise_signal", process)


def prevented_exits() -> list[str]:
    """Where user code tried to end the process, one message for each place."""
    return list(dict.fromkeys(_prevented))


def _guard(module: ModuleType, name: str, process: int) -> None:
    real = getattr(module, name, None)  # no system has all of them
    if real is not None:
        setattr(module, name, _guarded(f"{module.__name__}.{name}", name, real, process))


def _guarded(shown: str, name: str, real: Callable[..., Any], process: int) -> Callable[..., Any]:
    def guarded(*args: Any, **options: Any) -> Any:
        if os.getpid() != process or not (name in _ENDS or _ends_us(name, args)):
            return real(*args, **options)
        caller = extract_stack(sys._getframe(1), limit=1)[0]
        given = ", ".join([*map(repr, args[:1]), *("…" for _ in args[1:2])])
        problem = f"{shown}({given}) at {caller.filename}:{caller.lineno} would have ended the run"
        _prevented.append(problem)
        raise ProcessExitError(f"{problem}; remove it")

    return guarded


def _ends_us(name: str, args: tuple[Any, ...]) -> bool:
    """Whether a signal goes to this process, or to its whole group, and nothing here takes it."""
    *receiver, number = args or (0,)
    group = os.getpgrp() if hasattr(os, "getpgrp") else 0
    ours = {"pid": (os.getpid(), 0, -group), "group": (group, 0)}
    if (whose := _SIGNALLED[name]) and not set(receiver) & set(ours[whose]):
        return False
    try:
        left_to_system = signal.getsignal(number) is signal.SIG_DFL
    except (TypeError, ValueError):  # 0 only looks whether the process is there
        return False
    return left_to_system and signal.Signals(number).name not in _ARE_NO_END
