"""Schedulers of pytest-xdist with all scenarios in one group. Import it only if pytest-xdist is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling, LoadGroupScheduling, LoadScopeScheduling


class _OneByOne(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return nodeid


_BY_DIST: dict[str, type[LoadScopeScheduling]] = {
    "load": _OneByOne,
    "worksteal": _OneByOne,
    "loadscope": LoadScopeScheduling,
    "loadfile": LoadFileScheduling,
    "loadgroup": LoadGroupScheduling,
}


def scheduler(config: pytest.Config, log: Any, is_scenario: Callable[[str], bool]) -> Any:
    """Return the scheduler; None to let pytest-xdist decide (`--dist each` runs everything on every worker).

    Args:
        config: pytest's configuration.
        log: the log of pytest-xdist.
        is_scenario: returns True if a path, relative to pytest's root, is a scenario file.
    """
    base = _BY_DIST.get(config.getvalue("dist"))
    if base is None:
        return None

    class Together(base):  # type: ignore[misc, valid-type]
        """The user's scheduler, with all scenarios in one group."""

        def _split_scope(self, nodeid: str) -> str:
            if is_scenario(nodeid.partition("::")[0]):
                return "agentest: all scenarios"
            return str(super()._split_scope(nodeid))

    return Together(config, log)
