"""`AgentEvaluator`: evaluation sets in a test of one's own."""

from __future__ import annotations

import math
import os
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentest.adk.cases import CaseSet, unchecked
from agentest.adk.formats.eval_set import EvalSet
from agentest.adk.in_process_evaluation import (
    AgentLike,
    CriteriaLike,
    Evaluators,
    as_eval_set,
    configuration,
    criteria_of,
    mocks,
    read_set,
    run_result,
    wanted_agent,
    warn,
)
from agentest.adk.metrics.custom_metrics import about_experimental
from agentest.adk.migration import migrate
from agentest.adk.plan import EvalRequest, eval_plan, prepare_eval
from agentest.domain.results import RunResult, ScenarioResult
from agentest.report.console.scenario import scenario_lines
from agentest.report.console.text import Look
from agentest.report.registry import Broadcast, NotesReporter, Setting, make_reporters
from agentest.runner.environment import check_can_be_written, output_dir
from agentest.runner.prepare import Prepared, Request, prepared_for
from agentest.support.errors import AgentestError, UsageError
from agentest.support.json_text import safe_repr
from agentest.support.terminal import clean, in_log

_SHOWN = 20
"""How many cases a failure lists."""


class EvaluationFailed(AgentestError, AssertionError):
    """A case did not pass. `result` is the whole run."""

    def __init__(self, message: str, result: RunResult) -> None:
        super().__init__(message)
        self.result = result


class MigrationNotes(list[str]):
    """What a migration has to say. It may be awaited, as ADK-TS's method is: all is written by then."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, MigrationNotes]:
        yield from ()
        return self


class AgentEvaluator:
    """Evaluates an agent and raises EvaluationFailed when a case does not pass."""

    @staticmethod
    async def evaluate(
        agent: AgentLike = None,
        eval_dataset_file_path_or_dir: str | Path | None = None,
        num_runs: int = 2,
        agent_name: str | Path | None = None,
        initial_session_file: str | Path | None = None,
        print_detailed_results: bool = False,
        *,
        agent_module: str | None = None,
        config_file_path: str | Path | None = None,
        mocks: str | Path | None = None,
        every_set: bool = False,
        timeout_s: float | None = None,
        **others: Any,
    ) -> None:
        """Evaluate a file (`file:case1,case2`) or the `*.test.json` of a folder by the criteria beside each.

        Args:
            agent_module: module or folder of a google-adk agent, run in this process, in place of `agent`.
            agent_name: an agent below that one. In this place ADK-TS has the session file, so that a path
                or the name of a JSON file is taken for that.
            every_set: evaluates the `*.evalset.json` of a folder, too.
            timeout_s: the time limit of the evaluation: a case that has not finished by then is errored.
            others: arguments that google-adk's method has besides; they are refused in words.

        Raises EvaluationFailed, and UsageError for what cannot be run.
        """
        _check_runs(num_runs)
        _check_timeout(timeout_s)
        refuse_others(others)
        if eval_dataset_file_path_or_dir is None:
            raise UsageError("eval_dataset_file_path_or_dir is missing: the file or folder to evaluate")
        name, session = _name_and_session(agent_name, initial_session_file)
        agent = wanted_agent(agent, agent_module, name)
        root = Path.cwd()
        asked = EvalRequest(
            Request(root, detailed=print_detailed_results),
            (str(eval_dataset_file_path_or_dir),),
            _path(config_file_path),
            num_runs,
            _path(session),
            _path(mocks),
            every_set,
        )
        await _evaluated(prepare_eval(asked, configured=configuration(agent, root)), timeout_s)

    @staticmethod
    async def evaluate_eval_set(
        agent: AgentLike = None,
        eval_set: EvalSet | Mapping[str, Any] | None = None,
        criteria: CriteriaLike | None = None,
        num_runs: int = 2,
        print_detailed_results: bool = False,
        *,
        agent_module: str | None = None,
        agent_name: str | None = None,
        eval_config: Any = None,
        tools: Mapping[str, Any] | None = None,
        evaluators: Evaluators = (),
        timeout_s: float | None = None,
        **others: Any,
    ) -> None:
        """Evaluate a set. `criteria`: metric → threshold or criterion, or the content of a test_config.json.

        Args:
            agent_module: module or folder of a google-adk agent, run in this process, in place of `agent`.
            agent_name: an agent below that one.
            eval_config: google-adk's name for the content of a test_config.json, also as its EvalConfig.
            tools: mocks, as in a scenario.
            evaluators: the user's own evaluators, by metric or by their own `metric_name`.
            timeout_s: the time limit of the evaluation: a case that has not finished by then is errored.

        Raises EvaluationFailed, and UsageError for what cannot be run.
        """
        _check_runs(num_runs)
        _check_timeout(timeout_s)
        refuse_others(others)
        if eval_set is None:
            raise UsageError("eval_set is missing: the set to evaluate")
        root = Path.cwd()
        loaded, name = configuration(wanted_agent(agent, agent_module, agent_name), root)
        parsed, codes = criteria_of(_criteria(criteria, eval_config), evaluators, root)
        chosen = CaseSet(read_set(as_eval_set(eval_set)), parsed, mocks(tools), codes)
        plan = eval_plan([chosen], loaded.config, name, num_runs, root, loaded.redact)
        request = Request(root, detailed=print_detailed_results)
        notes = [*unchecked(chosen), *about_experimental(codes)]
        await _evaluated(prepared_for(request, loaded, plan, notes), timeout_s)

    @staticmethod
    def migrate_eval_data_to_new_schema(
        old_eval_data_file: str | Path,
        new_eval_data_file: str | Path,
        initial_session_file: str | Path | None = None,
        *,
        camel_case: bool = False,
        config_out: str | Path | None = None,
    ) -> MigrationNotes:
        """Convert a file of any form to an EvalSet, and the criteria that it names to a test_config.json.

        Args:
            camel_case: write keys as ADK-TS does.
            config_out: where the criteria go; None: beside the new file, where nothing is ever replaced.

        Returns notes on what an EvalSet has no place for. Raises UsageError.
        """
        notes = migrate(
            Path(old_eval_data_file),
            Path(new_eval_data_file),
            _path(initial_session_file),
            camel_case=camel_case,
            config_out=_path(config_out),
        )
        return MigrationNotes(notes)


_OF_GOOGLE_ADK = {
    "output_file": "results.json has every invocation (`reporters: [json]`)",
    "artifact_service": "an agent in this process keeps its artifacts in memory",
    "eval_set_results_manager": "results.json keeps the results (`reporters: [json]`, `output_dir`)",
    "app_name": "sessions have the app_name of the case's session_input",
}
"""Arguments that google-adk's methods have besides → what there is in their place."""


def refuse_others(others: Mapping[str, Any]) -> None:
    """Raise UsageError for an argument of google-adk's without a meaning here, TypeError for any other."""
    for name, value in others.items():
        if name not in _OF_GOOGLE_ADK:
            raise TypeError(f"AgentEvaluator takes no argument {name!r}")
        if value is not None:
            raise UsageError(f"{name} has no meaning here: {_OF_GOOGLE_ADK[name]}")


def _criteria(criteria: CriteriaLike | None, eval_config: Any) -> CriteriaLike:
    """The criteria of a call, where google-adk has two places for them. Raises UsageError."""
    if (criteria is None) == (eval_config is None):
        raise UsageError("give one of `criteria` and `eval_config`: what the set is held to")
    if criteria is not None:
        return criteria
    if callable(dump := getattr(eval_config, "model_dump", None)):
        return dump(mode="json", exclude_none=True)  # type: ignore[no-any-return]
    return eval_config  # type: ignore[no-any-return]


def _check_runs(num_runs: int) -> None:
    if isinstance(num_runs, bool) or not isinstance(num_runs, int) or num_runs < 1:
        raise UsageError(f"num_runs: expected a whole number of at least 1, found {num_runs!r}")


def _check_timeout(timeout_s: float | None) -> None:
    if timeout_s is None:
        return
    is_number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
    if not (is_number and 0 < timeout_s < math.inf):
        raise UsageError(f"timeout_s: expected a number of seconds above 0, found {timeout_s!r}")


def _name_and_session(
    name: str | Path | None, session: str | Path | None
) -> tuple[str | None, str | Path | None]:
    """The name and the session file, where ADK-TS's order may have put the file in the name's place."""
    if session is None and name is not None and (isinstance(name, Path) or name.endswith(".json")):
        return None, name
    return None if name is None else str(name), session


def _path(path: str | Path | None) -> Path | None:
    if path is None:
        return None
    if not isinstance(path, str | os.PathLike):
        raise UsageError(f"expected the path of a file, found {safe_repr(path)}")
    return Path.cwd() / path


async def _evaluated(prepared: Prepared, timeout_s: float | None) -> None:
    """Run, report, and raise EvaluationFailed unless everything passed."""
    detailed = prepared.request.detailed
    reports = [report for report in prepared.reports if report.name != "console" or report.path or detailed]
    check_can_be_written(reports)
    folder = output_dir(prepared)
    setting = Setting(
        root=prepared.request.root,
        folder=folder,
        environ=os.environ,
        detailed=detailed,
    )
    reporters = make_reporters(reports, setting)
    broadcast = Broadcast([*reporters, NotesReporter()])
    result = await run_result(prepared, broadcast, limit_s=timeout_s)
    warn(broadcast.problems)
    short = [scenario for scenario in result.scenarios if not scenario.verdict.passed]
    if short or result.unclaimed:
        told = [_failure_text(short, len(result.scenarios))] if short else []
        unclaimed = [in_log(warning.message) for warning in result.unclaimed]
        raise EvaluationFailed("\n".join([*unclaimed, *told]), result)


def _failure_text(short: Sequence[ScenarioResult], of: int) -> str:
    """What the console says of the cases that did not pass."""
    rows = [clean(line.plain) for scenario in short[:_SHOWN] for line in scenario_lines(scenario, Look())]
    more = [f"… {len(short) - _SHOWN} more"] if len(short) > _SHOWN else []
    return in_log("\n".join([f"{len(short)} of {of} cases did not pass", *rows, *more]).rstrip())
