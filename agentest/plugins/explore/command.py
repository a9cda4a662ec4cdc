"""`agentest explore`.

The module imports only click at the top; the command imports its work when it is called.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import click

from agentest.cli.main import RunCommand
from agentest.cli.options import (
    budget,
    choice_option,
    exits,
    flag,
    model_option,
    offline_option,
    option,
    output_options,
    record_option,
    resume_option,
    tape_options,
    unmocked_option,
    where,
    which,
)
from agentest.plugins.explore.options import ExploreOptions

if TYPE_CHECKING:
    from agentest.cli.location import Location
    from agentest.cli.rerun_selection import ScenarioSelection
    from agentest.domain.events import ReportOptions
    from agentest.runner.plan import Options


class ExploreCommand(RunCommand):
    """`agentest explore`, with its options in sections."""

    sections: Mapping[str, str] = MappingProxyType(
        {
            "What is tried": (
                "--parts --faults --injections --mutations --seed --scenario --file --tag --agent --resume "
                "--replay --dry-run"
            ),
            "How much": "--conversations --minutes --max-cost --max-llm-calls --concurrency --no-shrink",
            "Models": "--model --offline --record --replay-or-record --cassettes --no-cache --unmocked-tools",
            "Reports": "--fail-on --no-save --reporter -v --verbose -q",
        }
    )


@click.command(cls=ExploreCommand)
@click.argument("targets", nargs=-1, metavar="[PATH | PATH:LINE | PATH::NAME]…")
@where
@which
@option("--parts", "PARTS", "Try only these: faults, injections, mutations, attacks.")
@option("--faults", "KINDS", "Try only these kinds of faults, like timeout,empty.")
@option("--injections", "PLACE:TECHNIQUE:GOAL,…", "Try only these injections; parts may be empty or *.")
@option("--mutations", "NAMES", "Try only these mutations of the user's messages.")
@option("--conversations most", "N", "Run at most N conversations in all.", kind=click.IntRange(min=1))
@option("--minutes", "N", "Stop after N minutes.", kind=click.FloatRange(min=0, min_open=True))
@option("--seed", "N", "Try in another order (default: 0).", kind=click.IntRange(min=0), default=0)
@choice_option(
    "--fail-on",
    ["low", "medium", "high", "critical"],
    "Exit with 1 if a finding has this severity or a higher one (default: high).",
    default="high",
)
@flag("--no-shrink", "Confirm findings, but do not reduce them.")
@flag("--no-save", "Write no scenarios of findings.")
@option("--replay finding", "FINDING", "Run the saved scenario of a finding: its id or its file.")
@flag("--dry-run", "Show what would be tried and what it costs at most, and run nothing.")
@output_options
@model_option
@unmocked_option
@offline_option
@option("--concurrency", "N", "Run at most N conversations at once.", kind=click.IntRange(min=1))
@budget
@record_option
@tape_options
@resume_option
@exits
def explore(
    location: Location,
    options: Options,
    reports: ReportOptions,
    selection: ScenarioSelection,
    exploring: ExploreOptions,
    targets: tuple[str, ...],
) -> int:
    """Find failures that no test was written for: faults of tools, injections, and other users.

    Scenarios that pass are run again with changes, and what breaks an invariant is confirmed and reduced.

    Exit status: 0 no finding at or above --fail-on, 1 findings, 2 nothing could be explored, 130 interrupted.
    """
    from agentest.plugins.explore.exploration_run import explore_project

    return explore_project(location.enter(), options, reports, selection, exploring, targets)
