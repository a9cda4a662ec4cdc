"""Options that several commands share, and the functions that turn parsed options into a request."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from agentest.support.errors import UsageError
from agentest.support.terminal import tell

if TYPE_CHECKING:
    from agentest.cli.selection import ScenarioSelection
    from agentest.runner.environment import RunFolders
    from agentest.runner.prepare import RunRequest

Command = TypeVar("Command", bound=Callable[..., Any])


def _options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Combine several options into one decorator that keeps their order in the help."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


where = _options(
    click.option("--config", type=click.Path(path_type=Path), metavar="PATH", help="Configuration file."),
    click.option("--cwd", type=click.Path(path_type=Path), metavar="DIR", help="Run as if started in DIR."),
)


which = _options(
    click.option(
        "--scenario",
        "scenarios",
        multiple=True,
        metavar="TEXT",
        help="Only names with TEXT; =TEXT: this name.",
    ),
    click.option("--file", "files", multiple=True, metavar="TEXT", help="Only files with TEXT in the path."),
    click.option("--tag", "tags", multiple=True, metavar="TAG", help="Only scenarios with this tag."),
    click.option("--agent", metavar="NAME", help="Test this agent of the configuration."),
)


model_option = click.option(
    "--model", metavar="MODEL", help="Model for user and judges, like openai/gpt-5-mini."
)


output_options = _options(
    click.option(
        "--reporter",
        "reporters",
        multiple=True,
        metavar="NAME[=PATH]",
        help="console, json, junit, html or github-actions; with =PATH into this file.",
    ),
    click.option("--verbose", is_flag=True, help="Show transcripts."),
)


EVAL_FILES = ("criteria", "mocks", "initial_session")


def path_option(flag: str, name: str, about: str) -> Callable[[Command], Command]:
    """Return an option that takes a file path."""
    return click.option(flag, name, type=click.Path(path_type=Path), metavar="PATH", help=about)


camel_case_option = click.option(
    "--camel-case", is_flag=True, help="Write keys as ADK-TS does: evalCases for eval_cases."
)


coverage_options = _options(
    click.argument("more_results", nargs=-1, metavar="[RUN]…"),
    click.option(
        "--results",
        multiple=True,
        metavar="RUN",
        help="The same as RUN, one or several times.",
    ),
    click.option(
        "--eval-set",
        "eval_sets",
        multiple=True,
        metavar="FILE_OR_DIR[:CASE,…]",
        help="Count the cases of these evaluation sets, too.",
    ),
    click.option(
        "--fail-under",
        type=click.FloatRange(0, 100),
        metavar="PERCENT",
        help="Fail when fewer cells have a scenario, or fewer tools were called.",
    ),
    click.option(
        "--format",
        "form",
        type=click.Choice(["text", "json", "markdown"]),
        default="text",
        show_default=True,
        help="How to tell it.",
    ),
)


def with_dashes(option: str) -> str:
    """Replace underscores with dashes, because ADK's command line writes options with underscores."""
    return option.replace("_", "-")


def _workers(_: click.Context, param: click.Parameter, value: str | None) -> int | str | None:
    """Parse a number of workers or `auto`."""
    if value is None:
        return None
    if value != "auto" and (not value.isdecimal() or int(value) < 1):
        raise click.BadParameter(f"{value!r} is neither a whole number of at least 1 nor auto", param=param)
    return value if value == "auto" else int(value)


def _repeat(_: click.Context, param: click.Parameter, value: str | None) -> Any:
    """Parse `--repeat` into the minimum and maximum number of conversations."""
    from agentest.domain.repeat import parse_repeat

    try:
        return parse_repeat(value)
    except ValueError as error:
        raise click.BadParameter(str(error), param=param) from None


repeat_option = click.option(
    "--repeat",
    callback=_repeat,
    metavar="MIN..MAX",
    help="Add conversations until the verdict is decided, like 3..20.",
)


offline_option = click.option("--offline", is_flag=True, help="Ask no model, whatever is configured.")


unmocked_option = click.option(
    "--unmocked-tools",
    type=click.Choice(["error", "passthrough"]),
    help="Calls that no mock answers: an error, or the answer null (default: `unmocked_tools`, else "
    "error for run, passthrough for eval).",
)


strict_option = click.option(
    "--strict/--no-strict",
    default=None,
    help="Make scenarios errored whose verdict a warning questions (default: `strict`).",
)


def _cost(_: click.Context, param: click.Parameter, value: float | None) -> float | None:
    """Reject `nan`: no cost exceeds it, so it would not limit anything."""
    if value is not None and value != value:
        raise click.BadParameter("nan is not a number", param=param)
    return value


spread = _options(
    click.option(
        "--engine",
        type=click.Choice(["local", "workers", "ray"]),
        help="What holds the conversations: this process, worker processes (default with --workers), or Ray.",
    ),
    click.option(
        "--workers",
        callback=_workers,
        metavar="N",
        help="Spread over N workers; auto: as many as there are cores.",
    ),
    click.option(
        "--ray-address",
        metavar="ADDRESS",
        help="Join this Ray cluster: auto, HOST:6379, ray://HOST:10001 (default: RAY_ADDRESS, or start one).",
    ),
)


limits = _options(
    offline_option,
    click.option(
        "--concurrency", type=click.IntRange(min=1), metavar="N", help="Conversations under way at once."
    ),
    click.option("--fail-fast", is_flag=True, help="Stop at the first scenario that fails."),
    click.option(
        "--max-cost",
        type=click.FloatRange(min=0),
        callback=_cost,
        metavar="USD",
        help="Stop before models cost more.",
    ),
    click.option(
        "--max-llm-calls", type=click.IntRange(min=0), metavar="N", help="Make no more model calls."
    ),
)


order = _options(
    click.option(
        "--last-failed",
        is_flag=True,
        help="Only what failed or errored when it last ran; all where nothing did.",
    ),
    click.option("--failed-first", is_flag=True, help="Run what failed or errored last before the rest."),
    click.option(
        "--shuffle",
        is_flag=False,
        flag_value="",
        metavar="[SEED]",
        help="Run in any order; the seed that is shown gives it again.",
    ),
)


resume_option = click.option(
    "--resume",
    is_flag=False,
    flag_value="",
    metavar="[RUN]",
    help="Keep what an interrupted or killed run had finished (default: the latest), and run the rest.",
)


def _shard(_: click.Context, param: click.Parameter, value: str | None) -> Any:
    """Parse `--shard`."""
    if value is None:
        return None
    from agentest.domain.shards import parse_shard

    try:
        return parse_shard(value)
    except ValueError as error:
        raise click.BadParameter(str(error), param=param) from None


shard_options = _options(
    click.option(
        "--shard",
        callback=_shard,
        metavar="K/N",
        help="Run part K of N; agentest merge makes one run of all.",
    ),
    click.option(
        "--shard-by",
        metavar="RUN",
        help="Split by the durations of this run (default: the latest whole one that is kept), or counts.",
    ),
)


baseline_options = _options(
    click.option(
        "--baseline", metavar="RUN", help="Compare with this run when it ends: an id, a folder or a file."
    ),
    click.option("--fail-on-regression", is_flag=True, help="Exit with 1 when something regressed."),
)


not_run = _options(
    click.option("--dry-run", is_flag=True, help="Show how many model calls there can be, and run nothing."),
    click.option("--list", "list_only", is_flag=True, help="List what would run, and run nothing."),
)


recording = _options(
    click.option("--record", is_flag=True, help="Keep every model's answer in a cassette."),
    click.option("--replay", is_flag=True, help="Take models' answers from cassettes: no model, no key."),
    click.option(
        "--replay-or-record", is_flag=True, help="Replay what is recorded, ask and record the rest."
    ),
    click.option(
        "--cassettes", metavar="DIR", help="Where cassettes are (default: cassettes in output_dir)."
    ),
)


_SELECTION_OPTIONS = ("last_failed", "failed_first", "shuffle", "resume", "shard", "shard_by")


def enter_place(cwd: Path | None, config: Path | None) -> RunFolders:
    """Return the place of a run, and make the configuration's folder the working directory.

    Args:
        cwd: folder to change to first; None to stay in the current one.
        config: configuration file; None to search for it.

    Raises UsageError if `cwd` does not exist.
    """
    from agentest.runner.environment import RunFolders, run_folders_of

    if cwd is not None:
        if not cwd.is_dir():
            raise UsageError(f"--cwd: the folder {cwd} does not exist")
        os.chdir(cwd)
    here = Path.cwd()
    if config:  # the user named the file, so it can be in any folder
        return RunFolders(here, here)
    place = run_folders_of(here)
    if place.config:
        tell(f"agentest: configuration: {place.shown(place.config)}")
        os.chdir(place.root)
    return place


def build_request(place: RunFolders, config: Path | None, **options: Any) -> RunRequest:
    """Build the request of a command from its options.

    Args:
        place: folder of the configuration and working directory.
        config: configuration file named by the user; None for the one of `place`.
        options: fields of `RunRequest` and of `runner.plan.Options`.

    Raises UsageError if the engine options exclude each other, even if nothing runs.
    """
    from agentest.cli.engines import engine_name
    from agentest.runner.plan import Options
    from agentest.runner.prepare import RunRequest
    from agentest.scenarios.discovery import parse_path_choice

    beside = ("reporters", "verbose", "detailed", "baseline", "fail_on_regression")
    reporting = {name: options.pop(name) for name in beside if name in options}
    if options.get("cassettes"):
        options["cassettes"] = place.from_root(options["cassettes"])
    if options.get("paths"):
        options["paths"] = tuple(parse_path_choice(given, place.here) for given in options["paths"])
    named = place.path(config) if config else None
    request = RunRequest(place.root, named, Options(**options), here=place.here, **reporting)
    engine_name(request.options)
    return request


def split_selection_options(
    options: dict[str, Any], words: tuple[str, ...]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Split off the options that select and order scenarios, and return them with the positional arguments.

    `--shuffle` and `--resume` can be used without a value, but click takes the next word as their value.
    A word that cannot be a value is returned to the arguments.
    """
    selection = {name: options.pop(name) for name in _SELECTION_OPTIONS}
    if selection["shuffle"] and not selection["shuffle"].isdecimal():
        words, selection["shuffle"] = (selection["shuffle"], *words), ""
    if selection["resume"] and _names_scenarios(selection["resume"]):
        words, selection["resume"] = (selection["resume"], *words), ""
    if selection["resume"] is not None and selection["last_failed"]:
        raise click.UsageError("--resume and --last-failed exclude each other: what had failed is kept")
    if selection["shard_by"] and selection["shard"] is None and selection["resume"] is None:
        raise click.UsageError("--shard-by says how --shard K/N splits the run: give that, too")
    return selection, words


def _names_scenarios(word: str) -> bool:
    """Return True if a word names a file of scenarios or cases, or a place in one, and not a run."""
    path = word.partition(":")[0]
    return path.endswith((".py", ".test.json", ".evalset.json"))


def scenario_selection(selection: dict[str, Any]) -> ScenarioSelection:
    """Return the function that selects the scenarios of a prepared run."""
    from agentest.cli.selection import ScenarioSelection

    return ScenarioSelection(**selection)


def cassette_mode(options: dict[str, Any]) -> str | None:
    """Return the cassette mode, and remove its flags from the options.

    Raises click.UsageError if more than one flag is set.
    """
    chosen = [
        mode for mode in ("record", "replay", "replay-or-record") if options.pop(mode.replace("-", "_"))
    ]
    if len(chosen) > 1:
        raise click.UsageError(" and ".join(f"--{mode}" for mode in chosen) + " exclude each other")
    return chosen[0] if chosen else None
