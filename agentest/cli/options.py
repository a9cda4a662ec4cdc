"""Options that several commands share, and the values in which commands get them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from functools import cached_property, wraps
from importlib import import_module
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Unpack

import click

from agentest.cli.main import exit_status_of
from agentest.plugin import PLUGINS, Kind

Command = TypeVar("Command", bound=Callable[..., object])
GROUPS = {
    "location": ("agentest.cli.location", "Location"),
    "options": ("agentest.runner.plan", "Options"),
    "reports": ("agentest.domain.events", "ReportOptions"),
    "selection": ("agentest.cli.rerun_selection", "ScenarioSelection"),
}
"""Maps a parameter of commands to the class, with its module, that groups the options of its fields."""


def exits(command: Callable[..., int]) -> Callable[..., int]:
    """Turn the outcome of a command into an exit status; print a user's mistake as one message.

    Options that belong together reach the command as one value, if it has a parameter for it: one of
    `GROUPS`, or one whose type is a dataclass that the command's module defines or imports.
    """

    @wraps(command)
    def called(**values: object) -> int:
        return exit_status_of(lambda: command(**_grouped(command, values)))

    return called


def _grouped(command: Callable[..., int], values: dict[str, object]) -> dict[str, object]:
    for name, group in groups_of(command).items():
        mine = [field.name for field in fields(group) if field.name in values]
        values[name] = group(**{each: values.pop(each) for each in mine})
    return values


def groups_of(command: Callable[..., int]) -> dict[str, Any]:
    """Return the classes that group options, by the parameter of the command."""
    groups = {}
    for name, annotation in command.__annotations__.items():
        if name in GROUPS:
            module, kind = GROUPS[name]
            groups[name] = getattr(import_module(module), kind)
        elif is_dataclass(group := command.__globals__.get(annotation)):
            groups[name] = group
    return groups


def _options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def flag(names: str, about: str) -> Callable[[Command], Command]:
    """Return an option without a value. The names are the flag and, if it has another one, its argument."""
    return click.option(*names.split(), is_flag=True, help=about)


class OptionSettings(TypedDict, total=False):
    """What few options set, as click names it."""

    multiple: bool
    required: bool
    default: object
    show_default: bool
    callback: Callable[..., object]
    is_flag: bool
    flag_value: str


def option(
    names: str,
    metavar: str | None,
    about: str,
    *,
    kind: click.ParamType[Any] | None = None,
    **more: Unpack[OptionSettings],
) -> Callable[[Command], Command]:
    """Return an option with a value, by default a text. The names are as for `flag`, `more` as click's."""
    return click.option(*names.split(), type=kind, metavar=metavar, help=about, **more)


def choice_option(
    names: str, choices: Sequence[str] | click.Choice[str], about: str, **more: Unpack[OptionSettings]
) -> Callable[[Command], Command]:
    """Return an option whose value is one of several words. The names are as for `flag`."""
    kind = choices if isinstance(choices, click.Choice) else click.Choice(choices)
    return click.option(*names.split(), type=kind, help=about, **more)


def optional_value(names: str, metavar: str, about: str) -> Callable[[Command], Command]:
    """Return an option whose value is "" if the command line names none."""
    return option(names, f"[{metavar}]", about, is_flag=False, flag_value="")


def format_option(*forms: str) -> Callable[[Command], Command]:
    """Return an option for the output format; the first form is the default."""
    about = "Choose the output format."
    return choice_option("--format form", forms, about, default=forms[0], show_default=True)


def path_option(
    names: str, about: str, *, metavar: str = "PATH", **more: Unpack[OptionSettings]
) -> Callable[[Command], Command]:
    """Return an option that takes a file path. The names are as for `flag`, `more` as click's."""
    return option(names, metavar, about, kind=click.Path(path_type=Path), **more)


where = _options(
    path_option("--config", "Use this configuration file."),
    path_option("--cwd", "Change to DIR first.", metavar="DIR"),
)

names_option = option(
    "--scenario scenarios",
    "TEXT",
    "Select scenarios by a part of the name; =NAME: the whole name.",
    multiple=True,
)
which = _options(
    names_option,
    option("--file files", "TEXT", "Select files with TEXT in the path.", multiple=True),
    option("--tag tags", "TAG", "Select scenarios with this tag.", multiple=True),
    option("--agent", "NAME", "Test this agent of the configuration."),
)

model_option = option("--model", "MODEL", "Set the model of user and judges, like openai/gpt-5-mini.")

QUIET, VERBOSE = -1, 2


def _set_verbosity(context: click.Context, param: click.Parameter, value: int) -> None:
    if not value:
        return
    wanted = {"-q": QUIET, "--verbose": VERBOSE}.get(param.opts[0], value)
    known = context.params.get("verbosity", wanted)
    if min(known, wanted) < 0 < max(known, wanted):
        raise click.UsageError("--quiet and --verbose exclude each other")
    context.params["verbosity"] = max(known, wanted)


def _verbosity_flag(*names: str, about: str, count: bool = False) -> Callable[[Command], Command]:
    return click.option(
        *names, is_flag=not count, count=count, expose_value=False, callback=_set_verbosity, help=about
    )


verbosity_options = _options(
    _verbosity_flag("-v", count=True, about="Show passed scenarios and conversations; -vv: transcripts."),
    _verbosity_flag("--verbose", about="Show transcripts, like -vv."),
    _verbosity_flag("-q", "--quiet", about="Show one character per scenario, and failures at the end."),
)


class _ReporterOption(click.Option):
    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        self.help = f"Report as {', '.join(FeatureChoice('reporter').choices)}, to PATH if given."
        return super().get_help_record(ctx)


output_options = _options(
    click.option("--reporter", "reporters", metavar="NAME[=PATH]", multiple=True, cls=_ReporterOption),
    verbosity_options,
)


def _parsed(module: str, parser: str) -> Callable[[click.Context, click.Parameter, str | None], object]:
    def parse(_: click.Context, param: click.Parameter, value: str | None) -> object:
        try:
            return None if value is None else getattr(import_module(module), parser)(value)
        except ValueError as error:
            raise click.BadParameter(str(error), param=param) from None

    return parse


def _workers(_: click.Context, param: click.Parameter, value: str | None) -> int | str | None:
    if value is None:
        return None
    if value != "auto" and (not value.isdecimal() or int(value) < 1):
        raise click.BadParameter(f"{value!r} is neither a whole number of at least 1 nor auto", param=param)
    return value if value == "auto" else int(value)


repeat_option = option(
    "--repeat",
    "MIN..MAX",
    "Run conversations until the verdict is decided, like 3..20.",
    callback=_parsed("agentest.domain.repeat_setting", "parse_repeat"),
)

offline_option = flag("--offline", "Call no model, even if one is configured.")

unmocked_option = choice_option(
    "--unmocked-tools",
    ["error", "passthrough", "simulate"],
    "End the conversation at a call without a mock, answer null, or have a model answer "
    "(default: `unmocked_tools`, or else error for run, passthrough for eval).",
)

strict_option = click.option(
    "--strict/--no-strict",
    default=None,
    help="Treat warnings that question a verdict as errors "
    "(default: on for `run`, off for `eval`; configuration key `strict`).",
)


def _cost(_: click.Context, param: click.Parameter, value: float | None) -> float | None:
    """Reject `nan`: no cost exceeds it, so it would not limit anything."""
    if value is not None and value != value:
        raise click.BadParameter("nan is not a number", param=param)
    return value


class FeatureChoice(click.Choice):  # type: ignore[type-arg] # not generic at run time before click 8.2
    """The name of a feature. Plug-ins are read for a name that the core lacks, and for the help.

    Options are parsed before the configuration is read, so those that it names are read here.
    """

    def __init__(self, kind: Kind) -> None:
        self.case_sensitive = True
        self.kind = kind

    @cached_property
    def choices(self) -> tuple[str, ...]:  # type: ignore[override]
        from agentest.cli.main import read_configured_plugins

        read_configured_plugins()
        return tuple(PLUGINS.all(self.kind))

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return value if PLUGINS.find(self.kind, value) else super().convert(value, param, ctx)


spread = _options(
    choice_option(
        "--engine",
        FeatureChoice("engine"),
        "Choose where conversations run (default: workers if --workers is set).",
    ),
    option("--workers", "N", "Use N worker processes; auto: one per core.", callback=_workers),
    option(
        "--ray-address",
        "ADDRESS",
        "Join a Ray cluster: auto, HOST:6379, ray://HOST:10001 (default: RAY_ADDRESS, or a new one).",
    ),
)

budget = _options(
    option(
        "--max-cost",
        "USD",
        "Stop before model calls cost more than this.",
        kind=click.FloatRange(min=0),
        callback=_cost,
    ),
    option("--max-llm-calls", "N", "Stop after N model calls.", kind=click.IntRange(min=0)),
)

limits = _options(
    offline_option,
    option("--concurrency", "N", "Run at most N conversations at once.", kind=click.IntRange(min=1)),
    flag("--fail-fast", "Stop after the first scenario that fails."),
    budget,
)

order = _options(
    flag("--last-failed", "Select scenarios that failed or errored last time; all if none did."),
    flag("--failed-first", "Run scenarios that failed or errored last time first."),
    optional_value("--shuffle", "SEED", "Run in random order; repeat an order with its printed seed."),
)

resume_option = optional_value(
    "--resume", "RUN", "Finish an interrupted run, reusing its finished conversations (default: the latest)."
)

shard_options = _options(
    option(
        "--shard",
        "K/N",
        "Run part K of N; agentest merge combines the parts.",
        callback=_parsed("agentest.domain.shards", "parse_shard"),
    ),
    option(
        "--shard-by", "RUN", "Split by the durations of RUN (default: the latest complete run), or by counts."
    ),
)

baseline_options = _options(
    option("--baseline", "RUN", "Compare the result with RUN: an id, a folder or a file."),
    flag("--fail-on-regression", "Exit with 1 if something broke or regressed."),
)

not_run = _options(
    flag("--dry-run", "Show the largest number of model calls, and run nothing."),
    flag("--list list_only", "List what would run, and run nothing."),
)


def _cassette_mode(context: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        flag = param.opts[0]
        if mode := context.params.get("tape"):
            raise click.UsageError(f"--{mode} and {flag} exclude each other")
        context.params["tape"] = flag.removeprefix("--")


def _cassette_flag(flag: str, about: str) -> Callable[[Command], Command]:
    return click.option(flag, is_flag=True, expose_value=False, callback=_cassette_mode, help=about)


record_option = _cassette_flag("--record", "Record model responses to cassettes.")
tape_options = _options(
    _cassette_flag("--replay-or-record", "Replay recorded model responses, and record the others."),
    option("--cassettes", "DIR", "Set the folder of cassettes (default: cassettes in output_dir)."),
    click.option(
        "--no-cache", "cache", flag_value=False, default=True, help="Call models again for known questions."
    ),
)

recording = _options(
    record_option,
    _cassette_flag("--replay", "Replay model responses from cassettes, without a model or a key."),
    tape_options,
)

run_options = _options(
    output_options,
    model_option,
    unmocked_option,
    strict_option,
    limits,
    spread,
    recording,
    order,
    resume_option,
    shard_options,
    baseline_options,
    not_run,
)
"""Options of the commands that run something; their help shows them in sections (`RunCommand`)."""
