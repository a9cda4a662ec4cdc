"""The command line. It imports nothing but click until a command needs more, so that `--help` is quick."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from agentest import __version__
from agentest.errors import ExitCode, UsageError

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(context_settings=_CONTEXT)
@click.version_option(__version__, prog_name="agentest")
def cli() -> None:
    """Test AI agents: simulated users, mocked tools, judged conversations, black-box over HTTP."""


@cli.command()
@click.option("--config", type=click.Path(path_type=Path), metavar="PATH", help="Configuration file.")
@click.option("--cwd", type=click.Path(path_type=Path), metavar="DIR", help="Run as if started in DIR.")
@click.option("--scenario", "scenarios", multiple=True, metavar="TEXT", help="Only names containing TEXT.")
@click.option("--file", "files", multiple=True, metavar="TEXT", help="Only files whose path contains TEXT.")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="Only scenarios with this tag.")
@click.option("--agent", metavar="NAME", help="Test this agent of the configuration.")
@click.option("--reporter", "reporters", multiple=True, metavar="NAME", help="console, json, github-actions.")
@click.option("--verbose", is_flag=True, help="Show transcripts.")
@click.option(
    "--watch", is_flag=True, help="Run again when scenarios, their imports or the configuration change."
)
@click.option("--offline", is_flag=True, help="Ask no model, whatever is configured.")
@click.option("--model", metavar="MODEL", help="Model for simulated user and judges, like openai/gpt-5-mini.")
@click.option("--conversations", type=click.IntRange(min=1), metavar="N", help="Conversations per scenario.")
@click.option(
    "--concurrency", type=click.IntRange(min=1), metavar="N", help="Conversations under way at once."
)
@click.option("--fail-fast", is_flag=True, help="Stop at the first scenario that fails.")
@click.option("--list", "list_only", is_flag=True, help="List the scenarios and run nothing.")
def run(cwd: Path | None, config: Path | None, watch: bool, list_only: bool, **given: Any) -> None:
    """Run the scenarios (*.sim.py) against the agent.

    Exit status: 0 all passed, 1 a scenario failed, 2 something errored or could not be run, 130 interrupted.
    """
    if watch and list_only:
        raise click.UsageError("--watch and --list exclude each other")
    try:
        request = _request(_root(cwd), config, **given)
        if watch:
            from agentest.watch import run_and_watch

            sys.exit(run_and_watch(request))
        sys.exit(_list(request) if list_only else _run(request))
    except UsageError as error:
        _fail(error)
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)


@cli.command("show-prompts")
@click.option("--metric", metavar="NAME", help="Only this metric.")
def show_prompts(metric: str | None) -> None:
    """Show what the judges are asked."""
    from agentest.evaluate.prompts import shown_prompts
    from agentest.metric_names import BUILTIN
    from agentest.spelling import did_you_mean, snake_case

    if metric is not None and snake_case(metric) not in BUILTIN:
        _fail(f"there is no metric {metric!r}; {did_you_mean(metric, BUILTIN)}")
    click.echo(shown_prompts(snake_case(metric) if metric else None))


def _root(cwd: Path | None) -> Path:
    """The working directory; scenario files, servers and reports all live relative to it."""
    if cwd is not None:
        if not cwd.is_dir():
            _fail(f"--cwd: the folder {cwd} does not exist")
        os.chdir(cwd)
    return Path.cwd()


def _request(root: Path, config: Path | None, **given: Any) -> Any:
    from agentest.plan import Options
    from agentest.prepare import Request

    reporters, verbose = given.pop("reporters"), given.pop("verbose")
    return Request(root, root / config if config else None, Options(**given), reporters, verbose)


def _run(request: Any) -> ExitCode:
    from agentest.app import run_once
    from agentest.prepare import prepare

    return run_once(prepare(request))


def _list(request: Any) -> ExitCode:
    from agentest.app import broken, listing
    from agentest.prepare import prepare

    prepared = prepare(request)
    for line in listing(prepared):
        click.echo(line)
    problems = broken(prepared)
    for entry in problems:
        click.echo(f"{entry.file}:{entry.line}: {entry.verdict.reasons[0].message}", err=True)
    return ExitCode.ERRORED if problems else ExitCode.PASSED


def _fail(error: object) -> NoReturn:
    click.echo(f"agentest: {error}", err=True)
    sys.exit(ExitCode.ERRORED)


def main() -> None:
    """Entry point of the `agentest` command."""
    cli(prog_name="agentest")
