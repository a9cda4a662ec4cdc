"""The options that only `agentest explore` has. What checks them is imported when they are given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, get_args

from agentest.support.errors import UsageError
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import did_you_mean

if TYPE_CHECKING:
    from agentest.config.config import ExploreSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ExploreOptions:
    """The options that only `agentest explore` has."""

    parts: str | None = None
    faults: str | None = None
    injections: str | None = None
    mutations: str | None = None
    most: int | None = None  # the most conversations; None: as configured
    minutes: float | None = None
    seed: int = 0
    fail_on: str = "high"
    no_shrink: bool = False
    no_save: bool = False
    finding: str | None = None  # the finding to run again; None: explore

    def __post_init__(self) -> None:
        """Raise UsageError for a name that does not exist."""
        from agentest.config.config import ExplorePart
        from agentest.domain.changes import TOOL_FAULTS
        from agentest.plugins.explore.injection_sweep import pattern_problem
        from agentest.scenarios.mutations import MUTATIONS, SURROUNDING_MUTATIONS

        tables = {
            "part": get_args(ExplorePart),
            "mutation": (*MUTATIONS, *SURROUNDING_MUTATIONS),
            "fault": TOOL_FAULTS,
        }
        for pattern in names_in(self.injections) or ():
            if problem := pattern_problem(pattern):
                raise UsageError(f"--injections: {problem}")
        for what, known in tables.items():
            for name in names_in(getattr(self, f"{what}s")) or ():
                if name not in known:
                    raise UsageError(f"--{what}s: there is no {what} {name!r}; {did_you_mean(name, known)}")

    @property
    def only(self) -> Mapping[str, str | None]:
        """Part → what of it is tried; None: everything."""
        return {"faults": self.faults, "injections": self.injections, "mutations": self.mutations}

    def chosen_parts(self, settings: ExploreSettings) -> tuple[str, ...]:
        """Return the parts of the exploration, in order."""
        from agentest.config.config import ExplorePart

        given = names_in(self.parts)
        if given is None:
            chosen = tuple(part for part, value in self.only.items() if value is not None)
            given = chosen or tuple(settings.parts)
        return tuple(part for part in get_args(ExplorePart) if part in given)


def names_in(text: str | None) -> tuple[str, ...] | None:
    """Split a value with commas; None if it is not given. Raises UsageError for an empty one."""
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise UsageError("an option of explore is empty: name what to try, or remove the option")
    return names
