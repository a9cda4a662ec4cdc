"""With pytest-xdist: all scenarios go to one worker, where they are one run with one server of the agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling, LoadGroupScheduling, LoadScopeScheduling


class _One(LoadScopeScheduling):
    """Spreads tests one by one, as `--dist load` does."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid


_BY_DIST: dict[str, type[LoadScopeScheduling]] = {
    "load": _One,
    "worksteal": _One,
    "loadscope": LoadScopeScheduling,
    "loadfile": LoadFileScheduling,
    "loadgroup": LoadGroupScheduling,
}


def scheduler(config: pytest.Config, log: Any, is_scenario: Callable[[str], bool]) -> Any:
    """What spreads the tests over workers; None: pytest-xdist decides (`--dist each` runs all everywhere).

    Args:
        is_scenario: whether a path, relative to pytest's root, is a scenario file.
    """
    base = _BY_DIST.get(config.getvalue("dist"))
    if base is None:
        return None

    class Together(base):  # type: ignore[misc, valid-type]
        """The scheduler that the user wants, for everything but scenarios."""

        def _split_scope(self, nodeid: str) -> str:
            if is_scenario(nodeid.partition("::")[0]):
                return "agentest: all scenarios"
            return str(super()._split_scope(nodeid))

    return Together(config, log)
