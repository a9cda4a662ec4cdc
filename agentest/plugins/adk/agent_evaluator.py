"""`AgentEvaluator`: evaluate an agent with evaluation sets from a Python test."""

from __future__ import annotations

import math
import os
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

from agentest.config.fields import check_can_be_written
from agentest.domain.events import ReportOptions
from agentest.domain.results import RunResult
from agentest.plugins.adk.cases import CaseSet, unchecked_notes
from agentest.plugins.adk.formats.criteria import CRITERIA_FILE, default_criteria, parse_criteria
from agentest.plugins.adk.formats.eval_set import EvalSet
from agentest.plugins.adk.formats.set_reader import parse_json, read_bytes
from agentest.plugins.adk.in_process_evaluation import (
    AgentLike,
    CriteriaLike,
    Evaluators,
    agent_to_evaluate,
    as_eval_set,
    configuration,
    mocks,
    parse_given_criteria,
    plain_json,
    read_set,
    run_result,
    warn,
)
from agentest.plugins.adk.metrics.custom_metrics import experimental_notes
from agentest.plugins.adk.plan import EvalRequest, agent_at, eval_plan, prepare_eval
from agentest.plugins.adk.set_commands import migrate
from agentest.report.console.scenario import block
from agentest.report.registry import Broadcast, NotesReporter, ReporterContext, make_reporters
from agentest.runner.prepare import Prepared, RunRequest, prepared_for
from agentest.support.errors import AgentestError, UsageError
from agentest.support.json_text import safe_repr
from agentest.support.terminal import clean_for_log

_MAX_SHOWN_CASES = 20


class EvaluationFailed(AgentestError, AssertionError):
    """Raised when a case does not pass. `result` is the whole run."""

    def __init__(self, message: str, result: RunResult) -> None:
        super().__init__(message)
        self.result = result


class MigrationNotes(list[str]):
    """The notes of a migration. Awaiting it returns the list itself, because ADK-TS's method is async."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, MigrationNotes]:
        yield from ()
        return self


def find_config_for_test_file(test_file: str | Path) -> dict[str, Any]:
    """Return the content of the test_config.json next to a file, or the default criteria.

    `evaluate_eval_set` takes it as `eval_config`. Raises UsageError if the content is not valid.
    """
    path = Path(test_file).parent / CRITERIA_FILE
    if not path.exists():
        return default_criteria()
    content = parse_json(path, read_bytes(path))
    parse_criteria(content, str(path), path.parent)
    return dict(content)


class AgentEvaluator:
    """Evaluate an agent, and raise EvaluationFailed if a case does not pass.

    Arguments of `evaluate` and `evaluate_eval_set`:
        agent_module: module or folder of a google-adk agent to run in this process, instead of `agent`.
        agent_name: a sub-agent of that agent.
        timeout_s: time limit of the evaluation in seconds. Cases that are unfinished by then are errored.
        others: further arguments of google-adk's method. They raise UsageError with an explanation.
    """

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
        """Evaluate a file (`file:case1,case2`), or each `*.test.json` of a folder, with its criteria file.

        Args:
            agent_name: ADK-TS passes the session file at this position, so a path or the name of a JSON file
                is used as `initial_session_file`. An agent that is a URL gets its state in each request, as
                `metadata.session_state`.
            every_set: also evaluate the `*.evalset.json` of a folder.

        Raises EvaluationFailed if a case does not pass, UsageError if the evaluation cannot run.
        """
        _check(num_runs, timeout_s, others)
        if eval_dataset_file_path_or_dir is None:
            raise UsageError("eval_dataset_file_path_or_dir is missing: the file or folder to evaluate")
        session = initial_session_file
        is_url = isinstance(agent, str) and "://" in agent  # no part of such an agent has a name
        if session is None and (is_url or isinstance(agent_name, Path) or str(agent_name).endswith(".json")):
            agent_name, session = None, agent_name  # ADK-TS's position of the file
        if session is not None and is_url:
            agent = agent_at(str(agent)).model_copy(update={"send_session_state": True})
        agent = agent_to_evaluate(agent, agent_module, None if agent_name is None else str(agent_name))
        root = Path.cwd()
        eval_request = EvalRequest(
            RunRequest(root, reports=ReportOptions(detailed=print_detailed_results)),
            (str(eval_dataset_file_path_or_dir),),
            _path(config_file_path),
            num_runs,
            _path(session),
            _path(mocks),
            every_set,
        )
        await _run_and_check(prepare_eval(eval_request, configured=configuration(agent, root)), timeout_s)

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
        """Evaluate an evaluation set that is passed as a value.

        Args:
            criteria: metric → threshold or criterion, or the content of a test_config.json.
            eval_config: google-adk's name for the content of a test_config.json; also an EvalConfig.
            tools: mocks, as in a scenario.
            evaluators: custom evaluators, by metric, or a list of evaluators with a `metric_name`.

        Raises EvaluationFailed if a case does not pass, UsageError if the evaluation cannot run.
        """
        _check(num_runs, timeout_s, others)
        if eval_set is None:
            raise UsageError("eval_set is missing: the set to evaluate")
        root = Path.cwd()
        loaded, name = configuration(agent_to_evaluate(agent, agent_module, agent_name), root)
        parsed, codes = parse_given_criteria(_given_criteria(criteria, eval_config), evaluators, root)
        chosen = CaseSet(read_set(as_eval_set(eval_set)), parsed, mocks(tools), codes)
        plan = eval_plan([chosen], loaded.config, name, num_runs, root, loaded.redact)
        request = RunRequest(root, reports=ReportOptions(detailed=print_detailed_results))
        notes = [*unchecked_notes(chosen), *experimental_notes(codes)]
        await _run_and_check(prepared_for(request, loaded, plan, notes), timeout_s)

    find_config_for_test_file = staticmethod(find_config_for_test_file)

    @staticmethod
    def migrate_eval_data_to_new_schema(
        old_eval_data_file: str | Path,
        new_eval_data_file: str | Path,
        initial_session_file: str | Path | None = None,
        *,
        camel_case: bool = False,
        config_out: str | Path | None = None,
    ) -> MigrationNotes:
        """Convert an evaluation file in any format to an EvalSet, and its criteria to a test_config.json.

        Args:
            camel_case: write keys in camelCase, as ADK-TS does.
            config_out: where to write the criteria. The default is next to the new file. An existing file
                is never replaced.

        Returns notes about content that an EvalSet cannot represent. Raises UsageError.
        """
        notes = migrate(
            Path(old_eval_data_file),
            Path(new_eval_data_file),
            _path(initial_session_file),
            camel_case=camel_case,
            config_out=_path(config_out),
        )
        return MigrationNotes(notes)


_GOOGLE_ADK_ONLY = {
    "output_file": "results.json has every invocation (`reporters: [json]`)",
    "artifact_service": "an agent in this process keeps its artifacts in memory",
    "eval_set_results_manager": "results.json keeps the results (`reporters: [json]`, `output_dir`)",
    "app_name": "sessions have the app_name of the case's session_input",
}
"""Arguments that only google-adk's methods have → what to use instead."""


def _check(num_runs: int, timeout_s: float | None, others: Mapping[str, Any]) -> None:
    if isinstance(num_runs, bool) or not isinstance(num_runs, int) or num_runs < 1:
        raise UsageError(f"num_runs: expected a whole number of at least 1, found {num_runs!r}")
    is_number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
    if timeout_s is not None and not (is_number and 0 < timeout_s < math.inf):
        raise UsageError(f"timeout_s: expected a number of seconds above 0, found {timeout_s!r}")
    for name, value in others.items():
        if name not in _GOOGLE_ADK_ONLY:
            raise TypeError(f"AgentEvaluator takes no argument {name!r}")
        if value is not None:
            raise UsageError(f"{name} has no meaning here: {_GOOGLE_ADK_ONLY[name]}")


def _given_criteria(criteria: CriteriaLike | None, eval_config: Any) -> CriteriaLike:
    """Return the one of the two that is given. Raises UsageError unless exactly one is."""
    if (criteria is None) == (eval_config is None):
        raise UsageError("give either `criteria` or `eval_config`")
    given: CriteriaLike = plain_json(eval_config) if criteria is None else criteria
    return given


def _path(path: str | Path | None) -> Path | None:
    if path is None:
        return None
    if not isinstance(path, str | os.PathLike):
        raise UsageError(f"expected the path of a file, found {safe_repr(path)}")
    return Path.cwd() / path


async def _run_and_check(prepared: Prepared, timeout_s: float | None) -> None:
    root, detailed = prepared.request.root, prepared.request.reports.detailed
    reports = [report for report in prepared.reports if report.name != "console" or report.path or detailed]
    check_can_be_written(reports)
    folder = prepared.output_dir
    reporters = make_reporters(
        reports, ReporterContext(root=root, folder=folder, environ=os.environ, detailed=detailed)
    )
    broadcast = Broadcast([*reporters, NotesReporter()])
    result = await run_result(prepared, broadcast, limit_s=timeout_s)
    warn(broadcast.problems)
    not_passed = [scenario for scenario in result.scenarios if not scenario.verdict.passed]
    if not (not_passed or result.unclaimed):
        return
    text = [clean_for_log(warning.message) for warning in result.unclaimed]
    if not_passed:
        text.append(f"{len(not_passed)} of {len(result.scenarios)} cases did not pass")
        text += map(block, not_passed[:_MAX_SHOWN_CASES])
        left = len(not_passed) - _MAX_SHOWN_CASES
        text += [f"… {left} more"] if left > 0 else []
    raise EvaluationFailed("\n".join(text), result)
