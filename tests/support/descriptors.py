"""This process without file descriptors to spare."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def opened() -> set[int]:
    """Count this process's open file descriptors, including one for the count."""
    return {int(each.name) for each in Path("/dev/fd").iterdir()}


@contextmanager
def no_more_than(left: int) -> Iterator[None]:
    """Limit the file descriptors that can be opened in the block."""
    before = opened()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(before) + 1
    kept = [os.dup(0) for _ in range(highest - len(before))]  # what is free below the highest
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(kept, default=highest) + left, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for each in kept:
            os.close(each)
