"""Command-line entry point: the `agentest` group, and the commands that plug-ins hand in.

A command's module is imported when the command is looked up, so that `--help` stays fast.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NoReturn

import click

from agentest.cli.command_list import FIRST_STEPS, SectionedGroup, all_commands, with_dashes
from agentest.cli.exit_status import run_to_exit
from agentest.plugin import PLUGINS
from agentest.version import __version__

_CONTEXT = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
    "token_normalize_func": with_dashes,
}


class LazyCommands(Mapping[str, click.Command]):
    """The commands by name. Only an unknown name and a listing read all plug-ins."""

    def __getitem__(self, name: str) -> click.Command:
        feature = PLUGINS.find("command", name) or all_commands().get(name)
        if feature is None:
            raise KeyError(name)
        command: click.Command = feature.load(of=click.Command)
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(all_commands())

    def __len__(self) -> int:
        return len(all_commands())


@click.group(cls=SectionedGroup, commands=LazyCommands(), context_settings=_CONTEXT, epilog=FIRST_STEPS)
@click.version_option(__version__, prog_name="agentest")
def cli() -> None:
    """Test AI agents with simulated users, mocked tools and judged conversations."""


def main() -> NoReturn:
    """Run the `agentest` command and exit with its status."""
    run_to_exit(cli)
