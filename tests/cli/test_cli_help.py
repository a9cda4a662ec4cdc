"""Help: commands and options in sections that fit a screen of 80 columns."""

from __future__ import annotations

import re

import click
import pytest
from click.testing import CliRunner

from agentest.cli.main import RunCommand, cli


def help_of(*words: str) -> str:
    done = CliRunner().invoke(cli, [*words, "--help"], prog_name="agentest", terminal_width=80)
    assert done.exit_code == 0
    return done.output


def test_help_names_only_commands_that_there_are() -> None:
    assert {*re.findall(r"`agentest\s+([a-z-]+)", help_of())} <= {*cli.commands}


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_each_command_says_what_it_does_and_what_each_option_is(name: str) -> None:
    """Texts start with a verb and end with a period, every option has one, and all fit 80 columns."""
    command = cli.commands[name]
    assert all(len(row) <= 80 for row in help_of(name).splitlines())
    first = (command.help or "").splitlines()[0]
    assert first[:1].isupper()
    assert not first.split()[0].endswith("s")
    if isinstance(command, click.Group):
        return
    for option in command.params:
        if isinstance(option, click.Option):
            assert (option.help or "")[:1].isalpha(), option.name


@pytest.mark.parametrize(
    "name", sorted(name for name, command in cli.commands.items() if isinstance(command, RunCommand))
)
def test_no_option_is_lost_among_sections(name: str) -> None:
    """Each option of a command with many is in exactly one section."""
    told = help_of(name).splitlines()
    for option in cli.commands[name].params:
        if isinstance(option, click.Option):
            flags = {*option.opts, *(f"{flag}," for flag in option.opts)}
            assert sum(row.lstrip().partition(" ")[0] in flags for row in told) == 1


def test_options_of_run_without_a_section_are_about_location() -> None:
    """A new option of `run` belongs in a section, so that users find it."""
    told = help_of("run")
    rest = told[told.index("Options:") : told.index("Select scenarios:")]
    flags = {row.split()[0] for row in rest.splitlines() if row.strip().startswith("-")}
    assert flags == {"--config", "--cwd", "-h,"}
