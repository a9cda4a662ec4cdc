"""How many values the aliases of a YAML file stand for: more than a few are refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import yaml

from agentest.support.errors import ConfigError

_MOST_REPEATED = 100_000
"""How many values aliases (`*name`) may add to those that a file has: as many a machine reads in a second."""


_CHARACTERS_A_VALUE = 100
"""A long text that is repeated counts as several values."""


class Sizes:
    """How many values each node of a file stands for, its aliases written out."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sizes: dict[yaml.Node, int] = {}
        self._entered: set[yaml.Node] = set()
        self._written = 0
        """What the nodes looked at so far come to without repetitions."""

    def measure(self, node: yaml.Node) -> int:
        """Raises ConfigError where aliases would make a node endlessly long."""
        if node in self._entered and node not in self._sizes:
            raise RecursionError  # the node is a part of itself
        if node not in self._sizes:
            self._entered.add(node)
            own = 1 + (len(node.value) // _CHARACTERS_A_VALUE if _is_text(node) else 0)
            self._written += own
            self._sizes[node] = own + sum(map(self.measure, _parts(node)))
            if self._sizes[node] - self._written > _MOST_REPEATED:
                raise self._too_many(node.start_mark.line + 1)
        return self._sizes[node]

    def _too_many(self, line: int) -> ConfigError:
        return ConfigError(
            f"{self._path}:{line}: aliases (`*name`) repeat parts of the file so often that more than "
            f"{_MOST_REPEATED:,} values come of it; write out what is really needed"
        )


def _is_text(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode)


def _parts(node: yaml.Node) -> Iterator[yaml.Node]:
    """What the node directly holds."""
    if isinstance(node, yaml.SequenceNode):
        yield from node.value
    if isinstance(node, yaml.MappingNode):
        for pair in node.value:
            yield from pair
