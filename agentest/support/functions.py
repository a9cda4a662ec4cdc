"""What kind of function somebody handed over. Scenario files import this: it costs next to nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling the function only makes a coroutine: it need not be called in a thread."""
    while isinstance(function, partial):
        function = function.func
    call = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    return inspect.iscoroutinefunction(call)
