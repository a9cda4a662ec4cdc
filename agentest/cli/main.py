"""Command-line entry point: the `agentest` group, and the module of each command.

A module is imported when one of its commands is looked up, so that `--help` stays fast.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import NoReturn

import click

from agentest.cli.command_list import FIRST_STEPS, SECTIONS, SectionedGroup, with_dashes
from agentest.cli.exit_status import run_to_exit
from agentest.version import __version__

_FUNCTIONS = {"eval": "evaluate", "import": "import_"}
"""Maps a command to its function, if that has another name."""
_CONTEXT = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
    "token_normalize_func": with_dashes,
}


class LazyCommands(Mapping[str, click.Command]):
    """The commands by name. A command's module is imported when the command is looked up."""

    def __init__(self) -> None:
        rows = (row for rows in SECTIONS.values() for row in rows.items())
        self._modules = {name: module for name, (module, _) in rows}

    def __getitem__(self, name: str) -> click.Command:
        module = import_module(self._modules[name])
        command: click.Command = getattr(module, _FUNCTIONS.get(name, name.replace("-", "_")))
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)


@click.group(cls=SectionedGroup, commands=LazyCommands(), context_settings=_CONTEXT, epilog=FIRST_STEPS)
@click.version_option(__version__, prog_name="agentest")
def cli() -> None:
    """Test AI agents with simulated users, mocked tools and judged conversations."""


def main() -> NoReturn:
    """Run the `agentest` command and exit with its status."""
    run_to_exit(cli)
