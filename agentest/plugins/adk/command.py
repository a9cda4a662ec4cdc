"""ADK's evaluation sets: `agentest eval` runs them, `eval-set` creates them, `migrate` converts old ones.

The module imports only click at the top; each command imports its work when it is called.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from time import time
from typing import TYPE_CHECKING

import click

from agentest.cli.main import RunCommand, with_dashes
from agentest.cli.options import exits, flag, option, path_option, run_options, where
from agentest.support.errors import ExitCode, UsageError
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.terminal import say, tell

if TYPE_CHECKING:
    from agentest.cli.location import Location, Project
    from agentest.cli.rerun_selection import ScenarioSelection
    from agentest.cli.run_output import RunVariant
    from agentest.domain.events import ReportOptions
    from agentest.plugins.adk.plan import EvalRequest
    from agentest.runner.plan import Options
    from agentest.runner.prepare import Prepared, RunRequest


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


camel_case_option = flag("--camel-case", "Write keys like ADK-TS: evalCases instead of eval_cases.")


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
    from agentest.cli.location import request_of
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
        from agentest.cli.location import moved_request
        from agentest.plugins.adk.plan import prepare_eval
        from agentest.support.files import moved

        evaluation, old = self.evaluation, self.evaluation.request.root
        criteria, session, mocks = (
            path and moved(path, old, root)
            for path in (evaluation.criteria, evaluation.initial_session, evaluation.mocks)
        )
        request = moved_request(evaluation.request, root)
        return prepare_eval(
            replace(evaluation, request=request, criteria=criteria, initial_session=session, mocks=mocks)
        )


@click.group("eval-set")
def eval_set() -> None:
    """Create evaluation sets: `eval_set create`, `eval_set add_eval_case`, as in ADK's command line.

    AGENT is the agent's folder, which stores its sets as ID.evalset.json. For a name or a URL, the working
    directory stores them.
    """


@eval_set.command()
@click.argument("agent")
@click.argument("set_id", metavar="ID")
@exits
def create(agent: str, set_id: str) -> ExitCode:
    """Create an evaluation set without cases."""
    from agentest.plugins.adk.set_commands import SetLocation, create_set

    file = create_set(SetLocation(agent, set_id), time())
    say(f"{file}: evaluation set {set_id!r} created, without cases yet")
    say(f"agentest eval_set add_eval_case {agent} {set_id} --scenarios_file FILE adds cases")
    return ExitCode.PASSED


@eval_set.command("add-eval-case")
@click.argument("agent")
@click.argument("set_id", metavar="ID")
@path_option(
    "--scenarios-file scenarios",
    'Read scenarios: {"scenarios": [{"starting_prompt": …, "conversation_plan": …}]}.',
    required=True,
)
@path_option("--session-input-file session", "Read the session of the cases: {app_name, user_id, state}.")
@exits
def add_eval_case(agent: str, set_id: str, scenarios: Path, session: Path | None) -> ExitCode:
    """Add conversation scenarios to an evaluation set, as cases with a simulated user.

    A scenario that the set already has is left out.
    """
    from agentest.plugins.adk.set_commands import SetLocation, add_cases

    target = SetLocation(agent, set_id)
    for eval_id, is_new in add_cases(target, scenarios, session, time()):
        outcome = "added" if is_new else "exists already, left out"
        say(f"{target.file}: case {eval_id!r} {outcome}")
    return ExitCode.PASSED


@click.command(context_settings={"token_normalize_func": with_dashes})
@click.argument("old", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@path_option("--initial-session-file initial_session", "Use this session for cases that have none.")
@path_option("--config-out", "Write OLD's criteria to this file (default: next to NEW).")
@camel_case_option
@exits
def migrate(
    old: Path, new: Path, initial_session: Path | None, config_out: Path | None, camel_case: bool
) -> ExitCode:
    """Convert the evaluation set OLD, in any format, to an EvalSet, and write it to NEW.

    The criteria in OLD are written to a test_config.json next to NEW.
    """
    from agentest.plugins.adk.set_commands import migrate as converted

    for note in converted(old, new, initial_session, camel_case=camel_case, config_out=config_out):
        tell(f"agentest: {note}")
    return ExitCode.PASSED
