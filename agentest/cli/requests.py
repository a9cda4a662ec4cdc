"""What a command is asked for: where, and with which options. It imports nothing but click until then."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentest.support.errors import UsageError
from agentest.support.terminal import tell

_CHOOSING = ("last_failed", "failed_first", "shuffle", "resume", "shard", "shard_by")

if TYPE_CHECKING:
    from agentest.cli.choosing import Choosing
    from agentest.runner.place import Place
    from agentest.runner.prepare import Request


def place_in(cwd: Path | None, config: Path | None) -> Place:
    """Where the run takes place: the folder of the configuration becomes the working directory."""
    from agentest.runner.place import Place, place_of

    if cwd is not None:
        if not cwd.is_dir():
            raise UsageError(f"--cwd: the folder {cwd} does not exist")
        os.chdir(cwd)
    here = Path.cwd()
    if config:  # named by the user, so it may lie anywhere
        return Place(here, here)
    place = place_of(here)
    if place.config:
        tell(f"agentest: configuration: {place.shown(place.config)}")
        os.chdir(place.root)
    return place


def request_at(place: Place, config: Path | None, **options: Any) -> Request:
    """What is asked for there.

    Raises UsageError for engines that exclude each other, whether anything is run or not.

    Args:
        config: the file that the user names; None: that of the place.
        options: fields of `Request` and of `run.plan.Options`.
    """
    from agentest.cli.engines import engine_name
    from agentest.runner.plan import Options
    from agentest.runner.prepare import Request
    from agentest.scenarios.selection import path_choice

    beside = ("reporters", "verbose", "detailed", "baseline", "fail_on_regression")
    reporting = {name: options.pop(name) for name in beside if name in options}
    if options.get("cassettes"):
        options["cassettes"] = place.from_root(options["cassettes"])
    if options.get("paths"):
        options["paths"] = tuple(path_choice(given, place.here) for given in options["paths"])
    named = place.path(config) if config else None
    request = Request(place.root, named, Options(**options), here=place.here, **reporting)
    engine_name(request.options)
    return request


def choosing_options(
    options: dict[str, Any], words: tuple[str, ...]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What the command line says of earlier runs and of the order, taken out of the options, and its words.

    An option that may go without its value takes the word after it: one that cannot be meant is given back.
    """
    wish = {name: options.pop(name) for name in _CHOOSING}
    if wish["shuffle"] and not wish["shuffle"].isdecimal():
        words, wish["shuffle"] = (wish["shuffle"], *words), ""
    if wish["resume"] and _names_scenarios(wish["resume"]):
        words, wish["resume"] = (wish["resume"], *words), ""
    if wish["resume"] is not None and wish["last_failed"]:
        raise click.UsageError("--resume and --last-failed exclude each other: what had failed is kept")
    if wish["shard_by"] and wish["shard"] is None and wish["resume"] is None:
        raise click.UsageError("--shard-by says how --shard K/N splits the run: give that, too")
    return wish, words


def _names_scenarios(word: str) -> bool:
    """Whether a word is a file of scenarios or of cases, or a place in one, and no run."""
    path = word.partition(":")[0]
    return path.endswith((".py", ".test.json", ".evalset.json"))


def choosing(wish: dict[str, Any]) -> Choosing:
    """What chooses the scenarios of a prepared run by earlier ones."""
    from agentest.cli.choosing import Choosing

    return Choosing(**wish)


def tape(options: dict[str, Any]) -> str | None:
    """What is done with recorded answers; takes the flags out of the options."""
    chosen = [
        mode for mode in ("record", "replay", "replay-or-record") if options.pop(mode.replace("-", "_"))
    ]
    if len(chosen) > 1:
        raise click.UsageError(" and ".join(f"--{mode}" for mode in chosen) + " exclude each other")
    return chosen[0] if chosen else None
