"""Criteria: parse a `test_config.json` into metrics with their thresholds and options."""

from __future__ import annotations

import difflib
import math
import re
import sys
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import field, fields, replace
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

from agentest.config.models import RequestedModel, Sampling
from agentest.domain.metrics import ADK_METRICS, MetricDefinition
from agentest.plugins.adk.formats.eval_set import Rubric
from agentest.plugins.adk.formats.metric_info import Interval
from agentest.plugins.adk.formats.set_reader import parse_json, read_bytes
from agentest.support.errors import UsageError
from agentest.support.files import read_text_file
from agentest.support.json_text import safe_repr
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import nearest, snake_case, snake_keys

_MESSAGES = {
    "missing": "is missing",
    "string_too_short": "must not be empty",
    "string_pattern_mismatch": "must not be empty",
    "extra_forbidden": "is not a key that is known here",
    "model_type": "must be an object",
    "dict_type": "must be an object",
    "dataclass_type": "must be an object",
    "tuple_type": "must be a list",
}
_S = TypeVar("_S", bound=BaseModel)


def _checked(section: type[_S], data: object, source: str, *at: str) -> _S:
    """Validate a section of the file. Raises UsageError, which locates the first mistake."""
    try:
        return section.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
    names = (snake_case(part) if isinstance(part, str) else str(part) for part in first["loc"])
    path = ".".join([*at, *names])
    message = _MESSAGES.get(first["type"]) or first["msg"].replace("Input should", "must")
    value = safe_repr(first["input"])
    value = value if len(value) <= 80 else value[:79] + "…"
    raise UsageError(
        f"{source}: {path + ': ' if path else ''}{message.removeprefix('Value error, ')}; found {value}"
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


CRITERIA_FILE = "test_config.json"  # name of the criteria file next to evaluation sets
STOP_SIGNAL = "</finished>"
_WITH_POLICY = "safety_v1"
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
    judge: RequestedModel | None = None
    """The judge that the file requests; None for the configured one without changes."""
    num_samples: int | None = None  # number of judge samples; None for the metric's default
    parallelism_limit: int | None = None
    """Maximum number of concurrent judge calls for one conversation; None for no limit."""
    rubrics: tuple[Rubric, ...] = ()
    evaluate_intermediate_nl_responses: bool = False
    include_intermediate_responses_in_final: bool = False
    stop_signal: str = STOP_SIGNAL
    policy: str = ""  # the policy of `safety_v1`; "" for the agent's instructions
    information: bool = False  # if True, the score is reported but does not affect the verdict
    written: Mapping[str, Any] = field(default_factory=dict)
    """The criterion as written, for custom evaluators; `{"threshold": …}` if it was a number."""

    @property
    def has_threshold(self) -> bool:
        """Return False for a custom metric whose default applies but is not known yet (see `own_metrics`)."""
        return self.threshold != _NOT_GIVEN


@dataclass(frozen=True, slots=True)
class UserSimulator:
    """The settings of the simulated user."""

    model: RequestedModel | None = None
    """The model that the file requests; None for the configured one without changes."""
    max_allowed_invocations: int = MAX_INVOCATIONS  # at least 1
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
    notes: tuple[str, ...] = ()  # notes about the file for the user


DEFAULT = Criteria(
    (MetricCriterion("tool_trajectory_avg_score", 1.0), MetricCriterion("response_match_score", 0.8)),
    adapts=True,
)


def default_criteria() -> dict[str, Any]:
    """Return the default criteria as the content of a file."""
    return {"criteria": {each.metric: each.threshold for each in DEFAULT.criteria}}


def read_criteria(path: Path) -> Criteria:
    """Read a `test_config.json`. Raises UsageError with file and key."""
    data = parse_json(path, read_bytes(path))
    return replace(parse_criteria(data, str(path), path.parent), source=path)


def parse_criteria(data: Mapping[str, Any], source: str, folder: Path = Path()) -> Criteria:
    """Parse the content of a criteria file, or a bare mapping of metrics to criteria.

    Args:
        data: keys may be in either spelling.
        source: the file's name in errors.
        folder: the folder to which files in the criteria are relative.

    Raises UsageError.
    """
    keys = [key for key in ("metrics", "thresholds", "rubric") if isinstance(data, Mapping) and key in data]
    if keys:
        named = ", ".join(f"`{key}`" for key in keys)
        raise UsageError(
            f"{source}: {named} are in the file of the cases, next to its `data`; of a file of criteria, "
            'write {"criteria": {"safety_v1": 1.0, …}}, with `rubrics` in the criterion of a rubric metric'
        )
    file = _checked(_File, {"criteria": data} if _is_bare_mapping(data) else data, source)
    custom = {
        name: _checked(CustomMetric, metric, source, "custom_metrics", name)
        for name, metric in (file.custom_metrics or {}).items()
    }
    return Criteria(
        tuple(
            _criterion(name, criterion, custom, source, folder) for name, criterion in file.criteria.items()
        ),
        custom,
        (file.user_simulator_config or _UserSimulator()).value(source),
        notes=() if file.live_model_config is None else (_LIVE_IGNORED.format(source=source),),
    )


def _ids_differ(rubrics: tuple[Rubric, ...]) -> tuple[Rubric, ...]:
    for rubric_id, count in Counter(rubric.rubric_id for rubric in rubrics).items():
        if count > 1:
            raise ValueError(f"the rubric_id `{rubric_id}` is given {count} times; give each rubric its own")
    return rubrics


_NOT_SENT_KEYS = """
    audio_timestamp audio_transcription_config automatic_continuation automatic_function_calling
    cached_content candidate_count continuation_token enable_enhanced_civic_answers
    generation_output_config http_options image_config labels logprobs media_resolution
    model_armor_config model_selection_config response_json_schema response_logprobs response_mime_type
    response_modalities response_schema routing_config safety_settings service_tier
    should_return_http_response speech_config stop_sequences store system_instruction thinking_config
    tool_config tools
"""
_NOT_SENT = frozenset(_NOT_SENT_KEYS.split())
"""Keys that only Gemini's API has, or that would change the question or the format of its answer."""


class _ModelConfig(BaseModel):
    """`judge_model_config` and `model_configuration`. Keys in either spelling; unknown keys are refused."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    temperature: Annotated[float, Field(ge=0)] | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[float, Field(ge=1)] | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    not_sent: tuple[str, ...] = Field(default=(), strict=False)  # known keys that are not sent

    @model_validator(mode="before")
    @classmethod
    def _keys(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        sent = cls.model_fields.keys() - {"not_sent"}
        known = sent | _NOT_SENT
        named = snake_keys(values, known)
        for key in named.keys() - known:
            raise ValueError(_unknown_key_text(str(key), known))
        options = {key: value for key, value in named.items() if key in sent}
        left_out = sorted(key for key in named.keys() & _NOT_SENT if named[key] is not None)
        return {**options, "not_sent": left_out}

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if (
            None not in (self.max_output_tokens, self.max_tokens)
            and self.max_output_tokens != self.max_tokens
        ):
            raise ValueError("`max_output_tokens` and `max_tokens` are one setting; give one of them")
        return self

    def requested(
        self, role: Literal["user", "judge"], model: str | None, file: str, key: str
    ) -> RequestedModel | None:
        sampling = Sampling(
            max_tokens=self.max_output_tokens or self.max_tokens,
            **self.model_dump(exclude={"max_output_tokens", "max_tokens", "not_sent"}),
        )
        if model is None and not sampling.set_parameters() and not self.not_sent:
            return None
        metric = key.removeprefix("criteria.") if role == "judge" else None
        return RequestedModel(role, model, sampling, file, key, metric, self.not_sent)


def _unknown_key_text(key: str, known: Collection[str]) -> str:
    close = difflib.get_close_matches(snake_case(key), sorted(known), n=1, cutoff=0.5)
    advice = f"did you mean `{close[0]}`?" if close else "give `temperature`, `max_output_tokens` or `top_p`"
    return f"unknown key `{key}`; {advice}"


class _CriteriaObject(BaseModel):
    """An object of a criteria file. Strict: numbers cannot be given as text or booleans."""

    model_config = ConfigDict(strict=True)

    @model_validator(mode="before")
    @classmethod
    def _either_spelling(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        named = snake_keys(values, cls.model_fields)
        for key in (key for key in named if key not in cls.model_fields):
            matches = difflib.get_close_matches(snake_case(str(key)), cls.model_fields, n=1, cutoff=0.6)
            if matches:
                raise ValueError(f"unknown key `{key}`; did you mean `{matches[0]}`?")
        return named


def _a_name(value: str) -> str:
    if not value.isprintable() or not all(part.strip() for part in value.split("/")):
        raise ValueError("must be the name of a model, like gemini-2.5-flash or openai/gpt-4")
    return value


_ModelName = Annotated[str, Field(min_length=1), AfterValidator(_a_name)]


class _JudgeSelection(_CriteriaObject):
    """The judge and its number of samples: in the criterion, or in `judge_model_options` as in google-adk."""

    judge_model: _ModelName | None = None
    judge_model_config: _ModelConfig | None = None
    num_samples: Annotated[int, Field(ge=1)] | None = None
    parallelism_limit: Annotated[int, Field(ge=1)] | None = None


class JudgeModelOptions(_JudgeSelection):
    """The judge of a metric, as a criterion's `judge_model_options`. Other keys are refused."""

    model_config = ConfigDict(extra="forbid")


class _CustomCriterion(BaseModel):
    model_config = ConfigDict(strict=True)

    threshold: float | None = None  # None for the metric's default
    information: bool = False


_NotBlank = Annotated[str, Field(pattern=r"\S")]


class _BuiltinCriterion(_JudgeSelection):
    threshold: float
    information: bool = False
    policy: _NotBlank | None = None
    policy_file: _NotBlank | None = None
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
        for name in _JudgeSelection.model_fields:
            option = getattr(self.judge_model_options, name)
            if None not in (getattr(self, name), option):
                raise ValueError(f"`{name}` is given twice, here and in `judge_model_options`; give it once")
            if option is not None:
                setattr(self, name, option)
        return self


class _Informational(_BuiltinCriterion):
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


class CustomMetric(_CriteriaObject):
    """A custom metric: the import path of a function or of an Evaluator."""

    code_config: _CodeConfig
    metric_info: _MetricInfo | None = None
    description: str = ""

    @property
    def path(self) -> str:
        return self.code_config.name

    @property
    def info(self) -> dict[str, Any]:
        """Return the metadata as written."""
        return self.metric_info.model_dump(exclude_unset=True) if self.metric_info else {}

    @property
    def interval(self) -> Interval | None:
        """Return the range of its scores as written; None if the file gives none."""
        return self.metric_info.metric_value_info.interval if self.metric_info else None


def _require_placeholders(template: str) -> str:
    for name in ("stop_signal", "conversation_plan", "conversation_history"):
        if not re.search(r"\{[{%][^{}]*\b" + name + r"\b", template):
            raise ValueError(f"has no placeholder `{{{{ {name} }}}}`; add it")
    return template


class _UserSimulator(_CriteriaObject):
    type: Literal["llm_backed"] | None = None
    model: _ModelName | None = None
    model_configuration: _ModelConfig | None = None
    max_allowed_invocations: Annotated[int, Field(ge=1)] = MAX_INVOCATIONS
    custom_instructions: Annotated[str, AfterValidator(_require_placeholders)] | None = None
    include_function_calls: bool = False

    def value(self, source: str) -> UserSimulator:
        config = self.model_configuration or _ModelConfig()
        model = config.requested("user", self.model, source, "user_simulator_config")
        return UserSimulator(model, self.max_allowed_invocations, self.custom_instructions or "")


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
    if not isinstance(data, Mapping) or {snake_case(str(key)) for key in data} & _File.model_fields.keys():
        return False

    def is_criterion(metric: object, value: object) -> bool:
        known = ADK_METRICS.get(str(metric))
        if isinstance(value, Mapping):
            needs_none = known is not None and known.default_threshold is not None
            return needs_none or not value.keys().isdisjoint(("threshold", "information"))
        return isinstance(value, int | float) or (value is None and known is not None)

    return bool(data) and all(is_criterion(metric, value) for metric, value in data.items())


def _criterion(
    metric: str, value: Any, custom: Mapping[str, CustomMetric], source: str, folder: Path
) -> MetricCriterion:
    written = {"threshold": value} if isinstance(value, str | int | float | None) else value
    default = ADK_METRICS[metric].default_threshold if metric in ADK_METRICS else None
    if default is not None and isinstance(written, Mapping) and written.get("threshold") is None:
        written = {**written, "threshold": default}
    if metric in custom:
        base = _checked(_CustomCriterion, written, source, "criteria", metric)
        if base.threshold is None:
            others = {str(key): value for key, value in written.items() if key != "threshold"}
            matches = difflib.get_close_matches("threshold", others, n=1, cutoff=0.75)
            if matches:
                raise UsageError(
                    f"{source}: criteria.{metric}: unknown key `{matches[0]}`; did you mean `threshold`?"
                )
            threshold, written = _NOT_GIVEN, others
        else:
            interval = custom[metric].interval
            bounds = (interval.min_value, interval.max_value) if interval else _UNBOUNDED
            threshold = _within(base.threshold, bounds, metric, source)
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
    criterion = _checked(form, written, source, "criteria", metric.name)
    at = f"{source}: criteria.{metric.name}"
    if bounds is None and criterion.threshold is not None:
        raise UsageError(
            f"{at}: is a number that never passes or fails, so it has no threshold; write null in its place"
        )
    least, _ = bounds or (0.0, 0.0)
    threshold = least if criterion.threshold is None else criterion.threshold
    judge = (criterion.judge_model_config or _ModelConfig()).requested(
        "judge", criterion.judge_model, source, f"criteria.{metric.name}"
    )
    as_written: dict[str, Any] = {
        option.name: getattr(criterion, option.name)
        for option in fields(MetricCriterion)
        if option.name in _BuiltinCriterion.model_fields
    }
    read = {
        "threshold": _within(threshold, bounds or _UNBOUNDED, metric.name, source),
        "policy": _policy(metric.name, criterion, at, folder),
        "information": not decides,
    }
    return MetricCriterion(metric=metric.name, judge=judge, written=written, **{**as_written, **read})


def _policy(metric: str, criterion: _BuiltinCriterion, at: str, folder: Path) -> str:
    """Return the policy of a criterion at `at`; "" if it has none. `policy_file` is relative to it."""
    key = "policy" if criterion.policy is not None else "policy_file"
    if (criterion.policy or criterion.policy_file) and metric != _WITH_POLICY:
        raise UsageError(f"{at}.{key}: only `{_WITH_POLICY}` asks about a policy; give it to that criterion")
    if criterion.policy_file is None:
        return criterion.policy or ""
    path = folder / criterion.policy_file
    try:
        return read_text_file(path)
    except ValueError as error:
        hint = "name a text file, or give the text itself as `policy`"
        raise UsageError(f"{at}.{key}: {path} {error}; {hint}") from None


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
