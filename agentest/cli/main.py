"""Command-line entry point: the `agentest` group, with commands in sections, and its exit status.

A command's module is imported when the command is looked up, so that `--help` stays fast. The module imports
only click.
"""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, NoReturn

import click

from agentest.plugin import PLUGINS, Feature, if_command
from agentest.support.errors import ExitCode, OutputError, UsageError, described, unwrapped
from agentest.support.terminal import Output, lost, tell
from agentest.version import __version__

if TYPE_CHECKING:
    from agentest.support.redaction import Redactor

_REPLACEMENTS = {
    "web": ("ui", "use `agentest ui`, which shows runs, talks to the agent and writes cases"),
    "test": ("run", "use `agentest run`"),
}
_MEANT_OPTIONS = {
    **{"-k": "--scenario", "--filter": "--scenario", "-x": "--fail-fast", "--url": "--endpoint"},
    **dict.fromkeys(("-n", "--parallel", "--jobs"), "--concurrency"),
    **dict.fromkeys(("--json", "--output", "--format"), "--reporter"),
}
"""Maps options of other tools to ours."""

_FIRST_SECTIONS = ("Run and compare", "Start", "Write tests", "Coding agents", "Judges")
"""The first sections of commands, in order. Others follow in the order of plug-ins."""
_RUN_OPTIONS = {
    "Select scenarios": (
        "--scenario --file --tag --agent --last-failed --failed-first --resume --shard "
        "--shard-by --list --dry-run"
    ),
    "How it runs": (
        "--conversations --repeat --concurrency --workers --engine --ray-address --shuffle --fail-fast "
        "--unmocked-tools --strict --record-tools --watch"
    ),
    "Models": (
        "--model --offline --max-cost --max-llm-calls --record --replay --replay-or-record --cassettes "
        "--no-cache"
    ),
    "Reports": "--reporter -v --verbose -q --baseline --fail-on-regression",
}
"""Maps a section to the options of a command that runs something, in the order of the help."""


FIRST_STEPS = (
    "To try it without an agent, a key or a network: `agentest init demo --demo`, then "
    "`agentest run --cwd demo`. "
    "For an agent that is running: `agentest init --endpoint URL`."
)


def with_dashes(option: str) -> str:
    """Replace underscores with dashes, because ADK's command line writes options with underscores."""
    return option.replace("_", "-")


def all_commands() -> dict[str, Feature]:
    """Return the commands of all plug-ins, also of those that the project's configuration names."""
    read_configured_plugins()
    return PLUGINS.all("command")


@cache
def read_configured_plugins() -> None:
    """Read the plug-ins that the configuration names: that of --config, or of --cwd or the working directory.

    Names are looked up before click parses these options, so they are read from the command line. An error is
    printed, because what does not need the plug-ins works all the same.
    """
    named = _value_of("--config")
    folder = os.path.abspath(_value_of("--cwd"))  # noqa: PTH100 - `--help` does not import pathlib
    if named or any(map(_names_plugins, _configurations(folder))):
        from pathlib import Path

        from agentest.cli.location import project_of

        project_of(Path(folder), Path(named) if named else None).read_plugins()


def _value_of(option: str) -> str:
    for before, word in pairwise(sys.argv):
        if before == option or word.startswith(f"{option}="):
            return word.removeprefix(f"{option}=")
    return ""


def _configurations(folder: str) -> Iterator[str]:
    while folder:
        yield from (f"{folder}/agentest.config.{ending}" for ending in ("py", "yaml", "yml"))
        folder = folder.rpartition(os.sep)[0]


def _names_plugins(file: str) -> bool:
    with suppress(OSError), open(file, "rb") as opened:
        return b"plugins" in opened.read()
    return False


def in_sections(commands: Iterable[Feature]) -> dict[str, list[Feature]]:
    """Return the commands of each section, in the order of the help."""
    sections: dict[str, list[Feature]] = {title: [] for title in _FIRST_SECTIONS}
    for command in commands:
        rows = sections.setdefault(command.facts["section"], [])
        names = [row.name for row in rows]
        after = command.facts.get("after")
        rows.insert(names.index(after) + 1 if after in names else len(rows), command)
    in_order = sorted(sections.items(), key=lambda section: section[0] == "Plug-ins")
    return {title: rows for title, rows in in_order if rows}


class SectionedGroup(click.Group):
    """A command group that lists its commands in sections and suggests a replacement for ADK's commands."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a command as click does. Raises UsageError."""
        if args[0] in _REPLACEMENTS and (advice := if_command(*_REPLACEMENTS[args[0]])):
            ctx.fail(f"No such command '{args[0]}': {advice}.")
        return super().resolve_command(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the first steps, if there is the command that they begin with."""
        if if_command("init", FIRST_STEPS):
            super().format_epilog(ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the commands in sections, without importing their modules."""
        commands = all_commands()
        width = max(map(len, commands))
        for title, rows in in_sections(commands.values()).items():
            with formatter.section(title):
                formatter.write_dl([(f"{row.name:<{width}}", row.help) for row in rows])


class RunCommand(click.Command):
    """A command that runs something, with its options in sections and its own options first."""

    sections: Mapping[str, str] = _RUN_OPTIONS
    file_endings: tuple[str, ...] = (".py", ".sim.yaml", ".sim.yml")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse arguments. Raises click.UsageError.

        The values of --shuffle and --resume are optional, but click takes any next word as their value. A
        word that cannot be the value is an argument.
        """
        can_be_value = {"--shuffle": str.isdecimal, "--resume": self._can_name_run}
        end = args.index("--") if "--" in args else len(args)
        for at, (option, word) in enumerate(pairwise(args[:end])):
            if option in can_be_value and not can_be_value[option](word):
                args[at] = f"{option}="
        return super().parse_args(ctx, args)

    def _can_name_run(self, word: str) -> bool:
        return not word.partition(":")[0].endswith(self.file_endings)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options in sections."""
        rows = {
            param.opts[0]: param.get_help_record(ctx)
            for param in self.get_params(ctx)
            if isinstance(param, click.Option)
        }
        sections = {title: names.split() for title, names in self.sections.items()}
        listed = {name for names in sections.values() for name in names}
        for title, names in {"Options": [name for name in rows if name not in listed], **sections}.items():
            if records := [row for name in names if (row := rows.get(name))]:
                with formatter.section(title):
                    formatter.write_dl(records)


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
    while (
        free := os.open(os.devnull, os.O_RDWR)
    ) < 3:  # the parent process closed it: no file of ours gets it
        pass
    os.close(free)
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:
            setattr(sys, stream, open(os.devnull, "w"))  # noqa: SIM115 - stays open until the process exits
    from agentest.support.interrupts import guard_process_exit, hear, hold, prevented_exits, was_interrupted

    # Objects of a command live until its end or are freed by reference counting, and imports make many.
    gc.set_threshold(20_000, 20, 50)
    hear()
    guard_process_exit()
    status: int = ExitCode.INTERRUPTED
    with suppress(KeyboardInterrupt):  # while an error is printed
        status = exit_status_of(lambda: _flushed(cli))
        hold()
    for problem in prevented_exits():
        tell(f"agentest: {problem}: the exit status is {ExitCode.ERRORED}")
        status = ExitCode.ERRORED
    exec("")  # Python would end by SIGINT after an interrupt of code that was executed as text, like this
    sys.exit(ExitCode.INTERRUPTED if was_interrupted() else status)


def exit_status_of(command: Callable[[], int]) -> int:
    """Run a command and return its exit status. A user's mistake is printed as one message."""
    try:
        return command()
    except (UsageError, OutputError) as error:
        return print_user_error(error)
    except click.ClickException:
        raise
    except BaseException as error:  # noqa: BLE001 - a SystemExit of the user's code would set our status
        return print_crash(error)


def _flushed(cli: click.Group) -> int:
    status = _status(cli)
    try:
        Output(sys.stdout).flush()
    except OutputError as error:
        return status or print_user_error(error)
    return status


def _status(cli: click.Group) -> int:
    try:
        return int(cli.main(prog_name="agentest", standalone_mode=False) or ExitCode.PASSED)
    except click.Abort:
        return ExitCode.INTERRUPTED
    except click.ClickException as error:
        from io import StringIO

        if isinstance(error, click.NoSuchOption) and error.ctx:
            meant = _MEANT_OPTIONS.get(error.option_name, "")
            if any(meant in parameter.opts for parameter in error.ctx.command.params):
                error = click.UsageError(f"No such option '{error.option_name}': use `{meant}`.", error.ctx)
        output = StringIO()
        error.show(output)
        tell(output.getvalue().rstrip("\n"))
        return ExitCode.ERRORED
    except SystemExit:  # click exits after a closed pipe in its help, and after shell completion
        return ExitCode.PASSED
    except OSError as error:  # click failed to write; commands raise no OSError
        raise lost(sys.stdout, error) from None


_MAX_LINES = 40
_MAX_LINE_CHARS = 1_000


def print_user_error(error: object) -> ExitCode:
    """Print an error that the user can fix, and return the exit status."""
    tell(f"agentest: {_redactor()(str(error))}")
    return ExitCode.ERRORED


def print_crash(error: BaseException) -> ExitCode:
    """Print an unexpected error with secrets redacted, and return the exit status."""
    import traceback

    from agentest.support.interrupts import was_interrupted

    errors = list(unwrapped(error))
    if isinstance(errors[-1], KeyboardInterrupt) or was_interrupted():  # it may have broken an import
        tell("agentest: interrupted")
        return ExitCode.INTERRUPTED
    if isinstance(errors[-1], OSError) and errors[-1].errno in (errno.EMFILE, errno.ENFILE):
        return print_user_error("no file descriptors are left; allow more: ulimit -n 1024")
    redact = _redactor()
    what = redact.error(described(error).removesuffix(": "))
    # The message is already printed.
    frames = [frame for each in errors for frame in traceback.format_tb(each.__traceback__)]
    rows = [redact(row) for frame in frames for row in frame.rstrip("\n").split("\n")]
    rows = [row if len(row) <= _MAX_LINE_CHARS else f"{row[: _MAX_LINE_CHARS - 1]}…" for row in rows]
    left_out = ["…"] if len(rows) > _MAX_LINES else []
    tell(
        "\n".join(
            [
                f"agentest: an unexpected error ended the program: {what}",
                *left_out,
                *rows[-_MAX_LINES:],
                f"{whose_mistake(errors[-1])}: please report it.",
            ]
        )
    )
    return ExitCode.ERRORED


def whose_mistake(error: BaseException) -> str:
    """Return the words that name the plug-in in which an unexpected error was raised, or Agentest."""
    if owner := PLUGINS.owner_of(error):
        return f"This is a mistake of the plug-in {owner.name!r} ({owner.source})"
    return f"This is a mistake of Agentest {__version__}, or of code that it ran"


def _redactor() -> Redactor:
    from agentest.support.redaction import Redactor, environment_secrets

    return Redactor(environment_secrets(os.environ))
