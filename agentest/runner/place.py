"""Where a run takes place: in the folder of its configuration, which may be above where the user is."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from agentest.config.file import find_above
from agentest.support.paths import path_from


@dataclass(frozen=True, slots=True)
class Place:
    """Two folders, absolute, which are mostly one."""

    root: Path
    """The configuration's; scenario files, servers and reports live relative to it."""
    here: Path
    """The user's; what the command line names is relative to it."""
    config: Path | None = None
    """The configuration, where it was found above the user's folder."""

    def path(self, given: Path) -> Path:
        """A path of the command line, absolute."""
        return self.here / given

    def from_root(self, given: str) -> str:
        """A path of the command line, whatever follows it, as it is written in the root."""
        if self.root == self.here or Path(given).is_absolute():
            return given
        return f"{os.path.relpath(self.here, self.root)}/{given}"

    def word(self, given: str) -> str:
        """A word of the command line that may be a path or a name, as it is written in the root."""
        path = given.rpartition(":")[0] or given
        is_path = "://" not in given and ("/" in given or ".json" in given)
        there = any((self.here / each).exists() for each in (given, path))
        return self.from_root(given) if is_path or there else given

    def shown(self, path: Path) -> str:
        """A path as the user would write it."""
        return path_from(self.here, path)


def place_of(here: Path) -> Place:
    """The place of a run that is started in a folder: there, or above where only there is a configuration."""
    above = find_above(here)
    return Place(above.parent, here, above) if above else Place(here, here)
