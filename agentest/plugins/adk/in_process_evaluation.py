"""Evaluation from Python: agents, sets, criteria, and evaluators are objects instead of files."""

from __future__ import annotations

import asyncio
import warnings
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from enum import Enum, StrEnum
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from agentest.config.agent_types import AgentConfig
from agentest.config.agents.base import AnyAgent
from agentest.config.agents.in_process import CustomAgent, agent_object_of
from agentest.config.file import LoadedConfig, find_config, load
from agentest.domain.events import Emit, Event, ScenarioFinished
from agentest.domain.results import RunResult, ScenarioResult
from agentest.domain.transcript import Conversation
from agentest.mocks.binding import Mock
from agentest.plugins.adk.formats.criteria import Criteria, parse_criteria
from agentest.plugins.adk.formats.eval_set import EvalSet
from agentest.plugins.adk.formats.problems import NO_NAMES, FormatNames, InvalidDocument, validated
from agentest.plugins.adk.formats.set_reader import EVAL_SET_NAMES, FileFormat, ReadSet
from agentest.plugins.adk.metrics.custom_metrics import (
    CustomMetricCode,
    check_code,
    metric_name,
    prepare_custom_metrics,
)
from agentest.plugins.adk.metrics.evaluator_base import Code
from agentest.plugins.adk.plan import EvalRequest, agent_at, loaded_with, prepare_eval
from agentest.plugins.frameworks.adk_settings import AdkModuleAgent, is_adk_object
from agentest.runner.prepare import Prepared, RunRequest
from agentest.runner.run import RunMode, execute
from agentest.runner.sources import EarlierRun, LiveAgents
from agentest.scenarios.options import parse_tools
from agentest.support.errors import ConfigError, UsageError, errors_as
from agentest.support.importing import has_module
from agentest.support.json_text import safe_repr
from agentest.support.terminal import clean_for_log, clean_rows
from agentest.support.text import snake_keys

_ResultQueue = asyncio.Queue[ScenarioResult | BaseException | None]


async def stream_results(
    prepared: Prepared, finished: Mapping[str, Sequence[Conversation]] | None = None
) -> AsyncGenerator[ScenarioResult]:
    """Yield each scenario's result as it finishes. Closing the generator early cancels the run.

    Raises UsageError, and KeyboardInterrupt after Ctrl-C.
    """
    queue: _ResultQueue = asyncio.Queue()

    def emit(event: Event) -> None:
        if isinstance(event, ScenarioFinished):
            queue.put_nowait(event.result)

    async def run() -> None:
        try:
            await run_result(prepared, emit, finished)
            queue.put_nowait(None)
        except BaseException as error:  # noqa: BLE001 - raised again below
            queue.put_nowait(error)

    running = asyncio.create_task(run())
    try:
        while (item := await queue.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        running.cancel()
        await asyncio.wait([running])


class PrebuiltMetrics(StrEnum):
    """Built-in metrics that a criterion can name. Members are strings: `{PrebuiltMetrics.SAFETY_V1: 1.0}`."""

    TOOL_TRAJECTORY_AVG_SCORE = "tool_trajectory_avg_score"
    RESPONSE_EVALUATION_SCORE = "response_evaluation_score"
    RESPONSE_MATCH_SCORE = "response_match_score"
    SAFETY_V1 = "safety_v1"
    FINAL_RESPONSE_MATCH_V2 = "final_response_match_v2"
    RUBRIC_BASED_FINAL_RESPONSE_QUALITY_V1 = "rubric_based_final_response_quality_v1"
    HALLUCINATIONS_V1 = "hallucinations_v1"
    RUBRIC_BASED_TOOL_USE_QUALITY_V1 = "rubric_based_tool_use_quality_v1"
    PER_TURN_USER_SIMULATOR_QUALITY_V1 = "per_turn_user_simulator_quality_v1"
    MULTI_TURN_TASK_SUCCESS_V1 = "multi_turn_task_success_v1"
    MULTI_TURN_TRAJECTORY_QUALITY_V1 = "multi_turn_trajectory_quality_v1"
    MULTI_TURN_TOOL_USE_QUALITY_V1 = "multi_turn_tool_use_quality_v1"
    RUBRIC_BASED_MULTI_TURN_TRAJECTORY_QUALITY_V1 = "rubric_based_multi_turn_trajectory_quality_v1"
    TOOL_CALL_COUNT_V1 = "tool_call_count_v1"
    INFERENCE_CALL_COUNT_V1 = "inference_call_count_v1"
    TOKEN_USAGE_V1 = "token_usage_v1"
    INVOCATION_DURATION_V1 = "invocation_duration_v1"


AgentLike = Any
"""A configured name, a URL, a module or folder of a google-adk agent, a google-adk agent or App, an agent of
`agentest.config`, a handler function, or an object with an `endpoint`.
"""
Evaluators = Mapping[str, Code] | Sequence[Code]
"""Custom evaluators, by metric, or a list of evaluators with a `metric_name`."""
CriteriaLike = Mapping[str, Any] | Mapping[PrebuiltMetrics, Any]
"""Metric → threshold or criterion, or the content of a test_config.json."""
T = TypeVar("T")
_FILE_KEYS = ("criteria", "custom_metrics", "user_simulator_config")


def as_eval_set(value: EvalSet | Mapping[str, Any]) -> EvalSet:
    """Return an evaluation set, also from its JSON form. Raises UsageError."""
    return as_value(EvalSet, value, EVAL_SET_NAMES)


def as_value(shape: type[T], value: Any, names: FormatNames = NO_NAMES) -> T:
    """Return a value, also from its JSON form or google-adk's object of the same name.

    Raises UsageError, which lists up to five problems.
    """
    if isinstance(value, shape):
        return value
    with errors_as(UsageError, "", InvalidDocument):
        return validated(shape, plain_json(value), names)


def plain_json(value: Any) -> Any:
    """Return the JSON form of a value of google-adk's, which is a pydantic model; others unchanged."""
    dump = getattr(value, "model_dump", None)
    return dump(mode="json", exclude_none=True) if callable(dump) else value


def read_set(eval_set: EvalSet, path: Path | None = None) -> ReadSet:
    """Return the set as if it came from a file. Raises UsageError if it has no cases or a duplicate id."""
    name = eval_set.eval_set_id
    if not eval_set.eval_cases:
        raise UsageError(f"the evaluation set `{name}` has no cases")
    for eval_id, times in Counter(case.eval_id for case in eval_set.eval_cases).items():
        if times > 1:
            raise UsageError(f"the evaluation set `{name}`: {times} cases have the id `{eval_id}`")
    return ReadSet(eval_set, path or Path(name), FileFormat.EVAL_SET, {})


def parse_given_criteria(
    criteria: CriteriaLike, evaluators: Evaluators, root: Path
) -> tuple[Criteria, dict[str, CustomMetricCode]]:
    """Return criteria given as values, and the code of custom metrics. Raises UsageError."""
    if not isinstance(criteria, Mapping):
        raise UsageError(f"criteria: expected a mapping of metrics, found {safe_repr(criteria)}")
    codes = _evaluators_by_metric(evaluators)
    content = snake_keys(criteria, _FILE_KEYS) if "criteria" in criteria else {"criteria": criteria}
    if isinstance(named := content["criteria"], Mapping):
        content["criteria"] = {plain_name(metric): criterion for metric, criterion in named.items()}
    custom = {name: {"code_config": {"name": f"{name} (given)"}} for name in codes}
    content["custom_metrics"] = {**(content.get("custom_metrics") or {}), **custom}
    parsed = parse_criteria(content, "the given values", root)
    if unused := sorted(codes.keys() - {criterion.metric for criterion in parsed.criteria}):
        names = ", ".join(f"`{name}`" for name in unused)
        warn([f"no criterion names {names}, so the evaluator is not used; add {{{unused[0]!r}: {{}}}}"])
    return prepare_custom_metrics(parsed, root, codes)


def _evaluators_by_metric(evaluators: Evaluators) -> dict[str, Code]:
    if isinstance(evaluators, Mapping):
        named = [(str(plain_name(name)), code) for name, code in evaluators.items()]
    else:
        named = [(metric_name(code), code) for code in evaluators]
    for name, times in Counter(name for name, _ in named).items():
        if times > 1:
            raise UsageError(f"evaluators: {times} of them score the metric `{name}`; name each its own")
    return {name: check_code(name, code) for name, code in named}


def plain_name(metric: Any) -> Any:
    """Return a metric's name as text, also if it is a constant of ours or of google-adk."""
    return metric.value if isinstance(metric, Enum) else metric


def mocks(tools: Mapping[str, Any] | None) -> dict[str, Mock]:
    """Parse mocks by tool name, as in a scenario. Raises UsageError."""
    with errors_as(UsageError, ""):
        return parse_tools({"tools": tools or {}})


def agent_to_evaluate(agent: AgentLike, agent_module: str | None, agent_name: str | None) -> AgentLike:
    """Return the agent to evaluate, also if it is given in google-adk's form. Raises UsageError."""
    if (agent is None) == (agent_module is None):
        raise UsageError("give either `agent` or `agent_module`")
    if agent_module is not None:
        return agent_in_process(agent_module, agent_name)
    if agent_name is not None:
        if not isinstance(agent, str) and not is_adk_object(agent):
            raise UsageError("`agent_name` names a part of a google-adk agent: give its module, or the agent")
        return agent_in_process(agent, agent_name)
    return agent


def agent_in_process(module: Any, agent_name: str | None = None) -> AdkModuleAgent:
    """Return the settings of a google-adk agent that runs in this process. Raises UsageError."""
    try:
        return AdkModuleAgent(module=module, agent_name=agent_name)
    except ValidationError as error:
        raise UsageError(f"agent_module: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from None


def configuration(agent: AgentLike, root: Path) -> tuple[LoadedConfig, str | None]:
    """Load the working directory's configuration, if there is one, with this agent under test.

    Returns it with the agent's name; None is the configuration's only agent. A name is looked up in the
    configuration, else as a module or folder of a google-adk agent.
    """
    if not isinstance(agent, str) or "://" in agent:
        return loaded_with(_agent_config(agent), root), None
    is_module = Path(root, agent).is_dir() or has_module(agent, root)
    try:
        path = find_config(root)
    except ConfigError as error:
        if not is_module:
            raise ConfigError(
                f"agent {agent!r} is not a URL, module or folder with a google-adk agent, and {error}"
            ) from None
        return loaded_with(agent_in_process(agent), root), None
    loaded = load(path)
    config = loaded.config
    known = {config.agent.name, *config.agents, *(other.name for other in config.compare)}
    if agent in known or not is_module:
        return loaded, agent
    return loaded_with(agent_in_process(agent), root), None


def _agent_config(agent: AgentLike) -> AgentConfig:
    if isinstance(agent, str):
        return agent_at(agent)
    if isinstance(agent, AnyAgent):
        return agent
    if isinstance(endpoint := getattr(agent, "endpoint", None), str):
        return agent_at(endpoint)
    if is_adk_object(agent):
        return agent_in_process(agent)
    if callable(agent) or agent_object_of(agent) is not None:
        return CustomAgent(type="custom", handler=agent)
    raise UsageError(
        f"{agent!r} is not an agent; give a name of the configuration, a URL, a module with a "
        f"google-adk agent, "
        "such an agent, an agent of agentest.config, a handler function, or an object with an `endpoint`"
    )


async def run_result(
    prepared: Prepared,
    emit: Emit = lambda _: None,
    finished: Mapping[str, Sequence[Conversation]] | None = None,
    limit_s: float | None = None,
) -> RunResult:
    """Run, and turn notes into warnings. Raises UsageError, and KeyboardInterrupt after Ctrl-C.

    Args:
        finished: conversations of an earlier run, by scope, to evaluate again.
        limit_s: time limit in seconds. Whatever has not finished by then is errored.
    """
    warn(prepared.notes)
    source = LiveAgents() if finished is None else EarlierRun(finished)
    outcome = await execute(prepared, emit, RunMode(source=source, limit_s=limit_s))
    warn(map(prepared.loaded.redact, outcome.notes))
    if outcome.result is None or outcome.interrupted:
        raise KeyboardInterrupt
    if finished is None:  # the earlier run has already warned about its calls
        warn(prepared.loaded.redact(warning.message) for warning in outcome.result.unanswered)
    return outcome.result


async def evaluate_files(
    files: Iterable[Path],
    request: RunRequest,
    *,
    agent: AgentLike | None,
    criteria: Path | None,
    mocks: Path | None,
    num_runs: int,
) -> RunResult:
    """Run evaluation sets of files for the fixture `agentest` of pytest. Raises UsageError."""
    evaluation = EvalRequest(
        request, tuple(map(str, files)), criteria=criteria, num_runs=num_runs, mocks=mocks
    )
    configured = None if agent is None else configuration(agent, request.root)
    return await run_result(prepare_eval(evaluation, configured=configured))


def warn(notes: Iterable[str]) -> None:
    """Issue each note as a warning, which test runners collect."""
    for note in notes:
        warnings.warn(clean_for_log(clean_rows(note)), stacklevel=2)
