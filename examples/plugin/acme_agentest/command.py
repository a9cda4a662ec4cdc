"""A command: `agentest slowest`."""

from pathlib import Path

import click

from agentest.cli.location import project_of
from agentest.cli.options import exits
from agentest.store.reader import read_results
from agentest.support.errors import ExitCode


@click.command()
@click.argument("run", default="latest")
@click.option("--count", default=3, help="Print this many replies (default: 3).")
@exits
def slowest(run: str, count: int) -> ExitCode:
    """Print the slowest replies of RUN: an id (agentest runs), or latest."""
    results = read_results(project_of(Path.cwd()).run_file(run))
    turns = [
        (turn.latency_ms, scenario.name, turn.user_message)
        for scenario in results.scenarios
        for result in scenario.conversations
        for turn in result.conversation.turns
    ]
    for latency_ms, name, message in sorted(turns, reverse=True)[:count]:
        click.echo(f"{latency_ms:.0f} ms  {name}: {message}")
    return ExitCode.PASSED
