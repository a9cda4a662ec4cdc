"""`agentest eval`: the command, its request, and how another process prepares the same run.

The module imports only click at the top; the command imports its work when it is called.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agentest.cli.command_list import RunCommand
from agentest.cli.options import exits, flag, option, path_option, run_options, where
from agentest.support.errors import UsageError
from agentest.support.lazy_dataclasses import dataclass

if TYPE_CHECKING:
    from agentest.cli.location import Location, Project
    from agentest.cli.run_output import RunVariant
    from agentest.cli.selection import ScenarioSelection
    from agentest.plugins.adk.plan import EvalRequest
    from agentest.runner.plan import Options
    from agentest.runner.prepare import Prepared, ReportOptions, RunRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalOptions:
    """The options that only `agentest eval` has."""

    criteria: Path | None = None
    num_runs: int = 1
    every_set: bool = False
    mocks: Path | None = None
    initial_session: Path | None = None

    def request(
        self, request: RunRequest, project: Project, targets: tuple[str, ...], *, runs_nothing: bool
    ) -> EvalRequest:
        """Return the request for a run of evaluation sets."""
        from agentest.plugins.adk.plan import EvalRequest

        return EvalRequest(
            request,
            tuple(map(project.word, targets)),
            criteria=self.criteria and project.path(self.criteria),
            num_runs=self.num_runs,
            initial_session=self.initial_session and project.path(self.initial_session),
            mocks=self.mocks and project.path(self.mocks),
            every_set=self.every_set,
            without_agent=runs_nothing,
        )


class EvalCommand(RunCommand):
    """`agentest eval`, whose words may also be files of cases."""

    file_endings = (*RunCommand.file_endings, ".test.json", ".evalset.json")


@click.command("eval", cls=EvalCommand)
@click.argument("targets", nargs=-1, required=True, metavar="[AGENT] FILE_OR_DIR[:CASE,…]…")
@where
@option("--agent", "NAME", "Test this agent of the configuration, or the agent at a URL.")
@path_option(
    "--config-file-path criteria",
    "Use these criteria for all files (default: test_config.json next to each).",
)
@click.option("--num-runs", type=click.IntRange(min=1), default=1, metavar="N", help="Run each case N times.")
@flag("--all every_set", "Run the *.evalset.json of folders, too.")
@path_option("--mocks", "Read mocks from `tools`, a dict in this Python file.")
@path_option("--initial-session-file initial_session", "Use this session for cases that have none.")
@flag("--print-detailed-results detailed", "Show every invocation next to the expected one.")
@run_options
@exits
def evaluate(
    location: Location,
    options: Options,
    reports: ReportOptions,
    evaluation: EvalOptions,
    selection: ScenarioSelection,
    targets: tuple[str, ...],
    list_only: bool,
) -> int:
    """Run ADK evaluation sets (*.test.json of a folder, or any file) against the agent.

    AGENT may be named first: an agent of the configuration, a URL, or a package with a `root_agent`.

    Exit status as of run: 0 all passed, 1 a case failed, 2 something errored or could not be evaluated.
    """
    from agentest.cli.requests import request_of
    from agentest.plugins.adk.plan import prepare_eval

    if list_only and options.dry_run:
        raise UsageError("--list and --dry-run exclude each other")
    project, runs_nothing = location.enter(), list_only or options.dry_run
    request = request_of(project, options, reports, offline=list_only)
    eval_request = evaluation.request(request, project, targets, runs_nothing=runs_nothing)
    kind = evaluation_run(eval_request, targets)
    prepared = selection(prepare_eval(eval_request), kind.name)
    if runs_nothing:
        from agentest.cli.listing import show_plan

        return show_plan(prepared, list_only=list_only)
    from agentest.cli.run import run_once

    return run_once(prepared, kind)


def evaluation_run(evaluation: EvalRequest, words: Iterable[str]) -> RunVariant:
    """Return the kind of a run of evaluation sets, with the command that resumes it."""
    from agentest.cli.run_output import RunVariant
    from agentest.store.runs.folder import RunKind

    agent = evaluation.request.options.agent
    command = [*words, *([f"--agent={agent}"] if agent is not None else ())]
    if evaluation.num_runs != 1:
        command.append(f"--num-runs={evaluation.num_runs}")
    return RunVariant(
        RunKind.EVAL,
        resumed_by=shlex.join(["agentest", "eval", *command, "--resume"]),
        recipe=EvalRecipe(evaluation),
    )


@dataclass(frozen=True, slots=True)
class EvalRecipe:
    """Prepare a run of evaluation sets in another process."""

    evaluation: EvalRequest

    def prepared(self, root: Path) -> Prepared:
        from agentest.cli.requests import moved_request
        from agentest.plugins.adk.plan import prepare_eval
        from agentest.support.files import moved

        evaluation, old = self.evaluation, self.evaluation.request.root
        criteria, session, mocks = (
            path and moved(path, old, root)
            for path in (evaluation.criteria, evaluation.initial_session, evaluation.mocks)
        )
        request = moved_request(evaluation.request, root)
        eval_request = replace(
            evaluation, request=request, criteria=criteria, initial_session=session, mocks=mocks
        )
        return prepare_eval(eval_request)
