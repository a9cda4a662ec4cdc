"""Criteria: parse a `test_config.json` into metrics with their thresholds and options."""

from __future__ import annotations

import difflib
import math
import re
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import field, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    ValidationError,
    model_validator,
)

from agentest.adk.formats.eval_set import Rubric
from agentest.adk.formats.judge_options import CriteriaObject as _CriteriaObject
from agentest.adk.formats.judge_options import JudgeModelOptions, JudgeSelection, ModelConfig, ModelName
from agentest.adk.formats.metric_info import Interval
from agentest.config.models import NO_SAMPLING, RequestedModel, Sampling
from agentest.domain.metrics import ADK_METRICS, MetricDefinition
from agentest.support.errors import UsageError
from agentest.support.files import read_text_file, user_text
from agentest.support.json_text import json_value, safe_repr
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import nearest, snake_case

_MESSAGES = {
    "missing": "is missing",
    "string_too_short": "must not be empty",
    "extra_forbidden": "is not a key that is known here",
    "model_type": "must be an object",
    "dict_type": "must be an object",
    "dataclass_type": "must be an object",
    "tuple_type": "must be a list",
}
_S = TypeVar("_S", bound=BaseModel)


def checked(section: type[_S], data: object, source: str, *at: str) -> _S:
    """Validate a section of the file. Raises UsageError, which locates the first mistake."""
    try:
        return section.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
    names = (snake_case(part) if isinstance(part, str) else str(part) for part in first["loc"])
    path = ".".join([*at, *names])
    message = _MESSAGES.get(first["type"]) or first["msg"].replace("Input should", "must")
    value = _shortened(safe_repr(first["input"]))
    raise UsageError(
        f"{source}: {path + ': ' if path else ''}{message.removeprefix('Value error, ')}; found {value}"
    )


def _shortened(text: str) -> str:
    return text if len(text) <= 80 else text[:79] + "…"


def check_no_data_form(data: object, source: str) -> None:
    """Raise UsageError for criteria in the form of ADK for TypeScript: those belong in the data file."""
    keys = [key for key in ("metrics", "thresholds", "rubric") if isinstance(data, Mapping) and key in data]
    if keys:
        named = ", ".join(f"`{key}`" for key in keys)
        raise UsageError(
            f"{source}: {named} stand in the file of the cases, beside its `data`; of a file of criteria, "
            'write {"criteria": {"safety_v1": 1.0, …}}, with `rubrics` in the criterion of a rubric metric'
        )


class MatchType(StrEnum):
    """The ways of comparing tool calls."""

    EXACT = "EXACT"
    IN_ORDER = "IN_ORDER"
    ANY_ORDER = "ANY_ORDER"


def as_match_type(value: object) -> MatchType:
    """Parse a match type: a name in any letter case, or its number. Raises ValueError."""
    names = list(MatchType)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(names):
        return names[value]
    name = re.sub("[- ]", "_", value.strip().upper()) if isinstance(value, str) else ""
    if name in MatchType.__members__:
        return MatchType[name]
    raise ValueError("must be " + ", ".join(f"{name.value} or {n}" for n, name in enumerate(names)))


_METRIC = "safety_v1"


def not_blank(text: str) -> str:
    """Return the text. Raises ValueError if it is blank."""
    if not text.strip():
        raise ValueError("must not be empty")
    return text


def policy_text(metric: str, policy: str | None, policy_file: str | None, at: str, folder: Path) -> str:
    """Return the policy of a criterion; "" if it has none.

    Args:
        at: location of the criterion, for errors.
        folder: the folder to which `policy_file` is relative.

    Raises UsageError for an unreadable file, and for a metric that has no policy.
    """
    key = "policy" if policy is not None else "policy_file"
    if (policy or policy_file) and metric != _METRIC:
        raise UsageError(f"{at}.{key}: only `{_METRIC}` asks about a policy; give it to that criterion")
    if policy_file is None:
        return policy or ""
    path = folder / policy_file
    try:
        return read_text_file(path)
    except ValueError as error:
        hint = "name a text file, or give the text itself as `policy`"
        raise UsageError(f"{at}.{key}: {path} {error}; {hint}") from None


CRITERIA_FILE = "test_config.json"
"""Name of the criteria file next to evaluation sets."""
STOP_SIGNAL = "</finished>"
MAX_INVOCATIONS = 20
_NOT_GIVEN = math.inf
"""Stands for a threshold that is not given. No score reaches it, so nothing passes by mistake."""
_UNBOUNDED = (-sys.float_info.max, sys.float_info.max)


@dataclass(frozen=True, slots=True)
class MetricCriterion:
    """A metric, the score it must reach, and its options. A metric ignores options that it does not have."""

    metric: str
    threshold: float
    match_type: MatchType = MatchType.EXACT
    ignore_args: bool = False
    any_args_where_absent: bool = False
    """True if an expected call without arguments matches any (ADK-TypeScript's `expected_tool_calls`)."""
    judge_model: str | None = None
    """The judge model, as written in the file."""
    judge_sampling: Sampling = NO_SAMPLING
    """Sampling settings of the judge, whichever model it is."""
    num_samples: int | None = None
    """Number of judge samples; None for the metric's default."""
    parallelism_limit: int | None = None
    """Maximum number of concurrent judge calls for one conversation; None for no limit."""
    rubrics: tuple[Rubric, ...] = ()
    evaluate_intermediate_nl_responses: bool = False
    include_intermediate_responses_in_final: bool = False
    stop_signal: str = STOP_SIGNAL
    policy: str = ""
    """The policy of `safety_v1`; "" for the agent's instructions."""
    information: bool = False
    """If True, the score is reported but does not affect the verdict."""
    written: Mapping[str, Any] = field(default_factory=dict)
    """The criterion as written, for custom evaluators; `{"threshold": …}` if it was a number."""
    file: str = field(default="", compare=False)
    """The file in which it was written."""
    not_sent: tuple[str, ...] = field(default=(), compare=False)
    """Keys of `judge_model_config` that cannot be sent in our requests."""

    @property
    def judge(self) -> RequestedModel | None:
        """Return the judge that the file requests; None for the configured one without changes."""
        if self.judge_model is None and not self.judge_sampling.set_parameters() and not self.not_sent:
            return None
        return RequestedModel(
            role="judge",
            model=self.judge_model,
            sampling=self.judge_sampling,
            file=self.file,
            key=f"criteria.{self.metric}",
            metric=self.metric,
            not_sent=self.not_sent,
        )

    @property
    def has_threshold(self) -> bool:
        """Return False for a custom metric whose default applies but is not known yet (see `own_metrics`)."""
        return self.threshold != _NOT_GIVEN


@dataclass(frozen=True, slots=True)
class CustomMetric:
    """A custom metric: the import path of a function or of an Evaluator."""

    path: str
    info: Mapping[str, Any] | None = None
    description: str = ""


@dataclass(frozen=True, slots=True)
class UserSimulator:
    """The settings of the simulated user."""

    model: RequestedModel | None = None
    """The model that the file requests; None for the configured one without changes."""
    max_allowed_invocations: int = MAX_INVOCATIONS
    """At least 1."""
    custom_instructions: str = ""


@dataclass(frozen=True, slots=True)
class Criteria:
    """The content of a `test_config.json`."""

    criteria: tuple[MetricCriterion, ...]
    custom: Mapping[str, CustomMetric] = field(default_factory=dict)
    user: UserSimulator = UserSimulator()
    adapts: bool = False
    """If True, a case skips the criteria that it has no data for, as with the default criteria."""
    source: Path | None = None
    notes: tuple[str, ...] = ()
    """Notes about the file for the user."""


DEFAULT = Criteria(
    (MetricCriterion("tool_trajectory_avg_score", 1.0), MetricCriterion("response_match_score", 0.8)),
    adapts=True,
)


def default_criteria() -> dict[str, Any]:
    """Return the default criteria as the content of a file."""
    return {"criteria": {each.metric: each.threshold for each in DEFAULT.criteria}}


def read_criteria(path: Path) -> Criteria:
    """Read a `test_config.json`. Raises UsageError with file and key."""
    try:
        data = json_value(user_text(path))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise UsageError(f"{path}: is not valid JSON: {error}") from None
    return replace(parse_criteria(data, str(path), path.parent), source=path)


def parse_criteria(data: Mapping[str, Any], source: str, folder: Path = Path()) -> Criteria:
    """Parse the content of a criteria file, or a bare mapping of metrics to criteria.

    Args:
        data: keys may be in either spelling.
        source: the file's name in errors.
        folder: the folder to which files in the criteria are relative.

    Raises UsageError.
    """
    check_no_data_form(data, source)
    file = checked(_File, {"criteria": data} if _is_bare_mapping(data) else data, source)
    custom = {
        name: checked(_CustomMetric, metric, source, "custom_metrics", name)
        for name, metric in (file.custom_metrics or {}).items()
    }
    return Criteria(
        tuple(
            _criterion(name, criterion, custom, source, folder) for name, criterion in file.criteria.items()
        ),
        {name: metric.value() for name, metric in custom.items()},
        (file.user_simulator_config or _UserSimulator()).value(source),
        notes=() if file.live_model_config is None else (_LIVE_IGNORED.format(source=source),),
    )


def _ids_differ(rubrics: tuple[Rubric, ...]) -> tuple[Rubric, ...]:
    for rubric_id, count in Counter(rubric.rubric_id for rubric in rubrics).items():
        if count > 1:
            raise ValueError(f"the rubric_id `{rubric_id}` is given {count} times; give each rubric its own")
    return rubrics


class _CustomCriterion(BaseModel):
    """A criterion of a custom metric, which may have any other keys."""

    model_config = ConfigDict(strict=True)

    threshold: float | None = None
    """None for the metric's default."""
    information: bool = False


class _BuiltinCriterion(JudgeSelection):
    threshold: float
    information: bool = False
    policy: Annotated[str, AfterValidator(not_blank)] | None = None
    policy_file: Annotated[str, AfterValidator(not_blank)] | None = None
    match_type: Annotated[MatchType, BeforeValidator(as_match_type)] = MatchType.EXACT
    ignore_args: bool = False
    judge_model_options: JudgeModelOptions = JudgeModelOptions()
    rubrics: Annotated[tuple[Rubric, ...], Strict(False), AfterValidator(_ids_differ)] = ()
    evaluate_intermediate_nl_responses: bool = False
    include_intermediate_responses_in_final: bool = False
    stop_signal: Annotated[str, Field(min_length=1)] = STOP_SIGNAL

    @model_validator(mode="after")
    def _one_policy(self) -> Self:
        if self.policy is not None and self.policy_file is not None:
            raise ValueError("policy and policy_file exclude each other; keep one of them")
        return self

    @model_validator(mode="after")
    def _options_once(self) -> Self:
        self.merged(self.judge_model_options)
        return self

    def value(self, metric: str, threshold: float, written: Mapping[str, Any]) -> MetricCriterion:
        """Return the criterion, without its file and the content of a `policy_file`."""
        judges = self.merged(self.judge_model_options)
        config = judges.judge_model_config or ModelConfig()
        return MetricCriterion(
            metric=metric,
            threshold=threshold,
            match_type=self.match_type,
            ignore_args=self.ignore_args,
            judge_model=judges.judge_model,
            judge_sampling=config.sampling,
            num_samples=judges.num_samples,
            parallelism_limit=judges.parallelism_limit,
            rubrics=self.rubrics,
            evaluate_intermediate_nl_responses=self.evaluate_intermediate_nl_responses,
            include_intermediate_responses_in_final=self.include_intermediate_responses_in_final,
            stop_signal=self.stop_signal,
            policy=self.policy or "",
            information=self.information,
            written=written,
            not_sent=config.not_sent,
        )


class _Informational(_BuiltinCriterion):
    """An informational criterion: its threshold is not shown."""

    threshold: float | None = None  # type: ignore[assignment]


class _ValueInfo(_CriteriaObject):
    interval: Interval | None = None


class _MetricInfo(_CriteriaObject):
    metric_name: str | None = None
    description: str | None = None
    default_threshold: float | None = None
    experimental: bool = False
    metric_value_info: _ValueInfo = _ValueInfo()
    requires_threshold: bool = True


class _CodeConfig(_CriteriaObject):
    name: Annotated[str, Field(min_length=1)]


class _CustomMetric(_CriteriaObject):
    code_config: _CodeConfig
    metric_info: _MetricInfo | None = None
    description: str = ""

    def value(self) -> CustomMetric:
        info = self.metric_info.model_dump(exclude_unset=True) if self.metric_info else None
        return CustomMetric(self.code_config.name, info, self.description)

    def bounds(self) -> tuple[float, float]:
        interval = self.metric_info and self.metric_info.metric_value_info.interval
        return (interval.min_value, interval.max_value) if interval else _UNBOUNDED


def _require_placeholders(template: str) -> str:
    """Require the placeholders of google-adk: without them the user cannot continue the conversation."""
    for name in ("stop_signal", "conversation_plan", "conversation_history"):
        if not re.search(r"\{[{%][^{}]*\b" + name + r"\b", template):
            raise ValueError(f"has no placeholder `{{{{ {name} }}}}`; add it")
    return template


class _UserSimulator(_CriteriaObject):
    type: Literal["llm_backed"] | None = None
    model: ModelName | None = None
    model_configuration: ModelConfig | None = None
    max_allowed_invocations: Annotated[int, Field(ge=1)] = MAX_INVOCATIONS
    custom_instructions: Annotated[str, AfterValidator(_require_placeholders)] | None = None
    include_function_calls: bool = False

    def value(self, source: str) -> UserSimulator:
        model = self._requested_model(source)
        return UserSimulator(model, self.max_allowed_invocations, self.custom_instructions or "")

    def _requested_model(self, source: str) -> RequestedModel | None:
        config = self.model_configuration or ModelConfig()
        if self.model is None and not config.sampling.set_parameters() and not config.not_sent:
            return None
        key = "user_simulator_config"
        return RequestedModel("user", self.model, config.sampling, source, key, not_sent=config.not_sent)


_LIVE_IGNORED = (
    "{source}: live_model_config is ignored: it is for ADK's live (bidirectional) sessions, and here agents "
    "are sent one message after another"
)


class _File(_CriteriaObject):
    criteria: dict[str, Any] = Field(default_factory=dict)
    custom_metrics: dict[str, Any] | None = None
    user_simulator_config: _UserSimulator | None = None
    live_model_config: Any = None


def _is_bare_mapping(data: object) -> bool:
    """Return True if the data maps metrics to criteria, without the keys of a file."""
    if not isinstance(data, Mapping) or {snake_case(str(key)) for key in data} & _File.model_fields.keys():
        return False
    return bool(data) and all(_like_criterion(name, value) for name, value in data.items())


def _like_criterion(metric: object, value: object) -> bool:
    if value is None:
        return metric in ADK_METRICS
    has_own = metric in ADK_METRICS and ADK_METRICS[str(metric)].default_threshold is not None
    return isinstance(value, int | float) or (
        isinstance(value, Mapping) and (has_own or not value.keys().isdisjoint(("threshold", "information")))
    )


def _criterion(
    metric: str, value: Any, custom: Mapping[str, _CustomMetric], source: str, folder: Path
) -> MetricCriterion:
    written = {"threshold": value} if isinstance(value, str | int | float | None) else value
    written = _with_threshold(metric, written)
    if metric in custom:
        base = checked(_CustomCriterion, written, source, "criteria", metric)
        if base.threshold is None:
            threshold, written = _NOT_GIVEN, _without_threshold(written, metric, source)
        else:
            threshold = _within(base.threshold, custom[metric].bounds(), metric, source)
        return MetricCriterion(metric, threshold, information=base.information, written=written)
    if metric not in ADK_METRICS:
        raise UsageError(f"{source}: criteria: {_unknown_metric(metric, custom)}")
    return _builtin(ADK_METRICS[metric], written, source, folder)


def _builtin(
    metric: MetricDefinition, written: Mapping[str, Any], source: str, folder: Path
) -> MetricCriterion:
    bounds = metric.thresholds
    decides = bounds is not None and not (isinstance(written, Mapping) and written.get("information"))
    form = _BuiltinCriterion if decides else _Informational
    criterion = checked(form, written, source, "criteria", metric.name)
    at = f"{source}: criteria.{metric.name}"
    if bounds is None and criterion.threshold is not None:
        raise UsageError(
            f"{at}: is a number that never passes or fails, so it has no threshold; write null in its place"
        )
    least, _ = bounds or (0.0, 0.0)
    threshold = least if criterion.threshold is None else criterion.threshold
    _within(threshold, bounds or _UNBOUNDED, metric.name, source)
    value = criterion.value(metric.name, threshold, written)
    return replace(
        value,
        file=source,
        information=not decides,
        policy=policy_text(metric.name, criterion.policy, criterion.policy_file, at, folder),
    )


def _with_threshold(metric: str, written: Any) -> Any:
    """Add the metric's own default threshold to a criterion that gives none."""
    default = ADK_METRICS[metric].default_threshold if metric in ADK_METRICS else None
    if default is None or not isinstance(written, Mapping) or written.get("threshold") is not None:
        return written
    return {**written, "threshold": default}


def _without_threshold(written: Mapping[str, Any], metric: str, source: str) -> dict[str, Any]:
    """Return the keys for the metric's code. Raises UsageError for a misspelled threshold."""
    others = {str(key): value for key, value in written.items() if key != "threshold"}
    matches = difflib.get_close_matches("threshold", others, n=1, cutoff=0.75)
    if matches:
        raise UsageError(
            f"{source}: criteria.{metric}: unknown key `{matches[0]}`; did you mean `threshold`?"
        )
    return others


def _unknown_metric(metric: str, custom: Mapping[str, Any]) -> str:
    names = sorted({*ADK_METRICS, *custom})
    close = nearest(metric, names)
    hint = f"did you mean `{close}`? " if close else ""
    valid = ", ".join(f"`{name}`" for name in names)
    example = f'"custom_metrics": {{"{metric}": {{"code_config": {{"name": "module.Evaluator"}}}}}}'
    return f"there is no metric `{metric}`; {hint}valid are: {valid}; your own by {example}, or `evaluators=`"


def _within(threshold: float, bounds: tuple[float, float], metric: str, source: str) -> float:
    low, high = bounds
    if low <= threshold <= high:
        return threshold
    expected = "be a finite number" if bounds == _UNBOUNDED else f"be from {low:g} to {high:g}"
    raise UsageError(f"{source}: criteria.{metric}.threshold: must {expected}, found {threshold!r}")
