"""The models that scenario files request instead of the configured ones, and the accuracy of judges.

`named_models` decides which requested models are used. `known_calibrations` reads how accurate a judge is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from agentest.config.config import Config
from agentest.config.models import Batch, RequestedModel, Sampling
from agentest.domain.results import JudgeCalibration
from agentest.judging.questions import fingerprint
from agentest.models.providers import (
    MissingAccess,
    ModelSpec,
    litellm_name,
    recorded,
    resolve_named,
    sampled,
)
from agentest.support.errors import ConfigError
from agentest.support.files import user_text, write_atomically
from agentest.support.json_text import json_document, json_value
from agentest.support.lazy_dataclasses import dataclass

_WHO = {"judge": "judge", "user": "simulated user"}
_NO_MODEL_OF_ROLE = {
    "judge": "no judge is configured, so nobody is asked",
    "user": "no model is configured for the user, who follows rules",
}
_SHOWN = 3
"""Number of places that a note names."""


@dataclass(frozen=True, slots=True)
class ConfiguredModels:
    """The configured models, and what decides whether a requested model can be used."""

    config: Config
    environ: Mapping[str, str]
    user: ModelSpec | None
    judge: ModelSpec | None
    override: str | None = None
    """The model from `--model` or `AGENTEST_MODEL`."""
    recorded: Collection[str] = ()
    """The named models with recorded responses, if recordings are in use."""
    replay: bool = False
    """True if only recorded responses are used."""

    def of(self, requested: RequestedModel) -> ModelSpec | None:
        """Return the configured model of the role."""
        return self.user if requested.role == "user" else self.judge

    def resolved(self, requested: RequestedModel, name: str) -> ModelSpec:
        """Resolve a model other than the configured one. Raises MissingAccess, ConfigError."""
        settings = self.config.user if requested.role == "user" else self.config.judge
        if self.replay and name not in self.recorded:
            raise MissingAccess(f"nothing is recorded of {name}", "a recording of its answers")
        if self.replay:
            return recorded(name, settings)
        try:
            return resolve_named(name, self.config, settings, self.environ, self.override)
        except MissingAccess as missing:
            if name not in self.recorded:
                raise
            # Otherwise the configured model's responses would replace the recorded ones.
            raise ConfigError(
                f"answers of {name} are recorded, and asking for more needs {missing.what}; "
                "set it, or replay what there is with --replay"
            ) from None


def named_models(
    requests: Sequence[RequestedModel], configured: ConfiguredModels
) -> tuple[dict[RequestedModel, ModelSpec], tuple[str, ...]]:
    """Return the requests that can be met, and notes about the others and why.

    For the others, the configured model of the role is used. A run without any model calls none, regardless
    of API keys in the environment. Raises ConfigError with file and key for names that cannot be models.
    """
    if not (configured.user or configured.judge):
        return {}, tuple(_offline_notes(requests))
    specs: dict[RequestedModel, ModelSpec] = {}
    problems: dict[tuple[str, str | None, str], list[RequestedModel]] = {}
    for requested in requests:
        spec, problem = _resolve(requested, configured)
        if spec and spec != configured.of(requested):
            specs[requested] = spec
        if problem:
            problems.setdefault((requested.role, requested.model, problem), []).append(requested)
    notes = [_unmet_note(missed, problem, configured) for (*_, problem), missed in problems.items()]
    return specs, (*notes, *_ignored_setting_notes(requests))


def _resolve(requested: RequestedModel, configured: ConfiguredModels) -> tuple[ModelSpec | None, str]:
    """Return the model to use (None if there is none), and why it is not the requested one."""
    configured_model = configured.of(requested)
    if requested.model is None:
        return configured_model and sampled(configured_model, requested.sampling), ""
    spec, problem = _resolve_name(requested, requested.model, configured)
    return spec and sampled(spec, requested.sampling), problem


def _resolve_name(
    requested: RequestedModel, written: str, configured: ConfiguredModels
) -> tuple[ModelSpec | None, str]:
    configured_model = configured.of(requested)
    if configured_model and written == configured_model.name:
        return configured_model, ""
    try:
        name = litellm_name(written)
    except ConfigError as error:
        return configured_model, str(error).removeprefix(f"model {written!r} ")
    if configured_model and name == configured_model.name:
        return configured_model, ""
    try:
        return configured.resolved(requested, name), ""
    except MissingAccess as missing:
        return configured_model, f"needs {missing.what}"
    except ConfigError as error:
        raise ConfigError(f"{requested.location}: {error}") from None


def _unmet_note(missed: Sequence[RequestedModel], problem: str, configured: ConfiguredModels) -> str:
    """Describe which models are not used, why, and which model replaces them."""
    requested = missed[0]
    configured_model = configured.of(requested)
    instead = (
        f"the configured model {configured_model.name} is asked in its place"
        if configured_model
        else _NO_MODEL_OF_ROLE[requested.role]
    )
    return f"{_request_places(missed)}, which {problem}: {instead}"


def _offline_notes(requests: Sequence[RequestedModel]) -> Iterator[str]:
    """Note that no model is called, and how to enable the requested one."""
    by_model: dict[tuple[str, str], list[RequestedModel]] = {}
    for requested in requests:
        if requested.model:
            by_model.setdefault((requested.role, requested.model), []).append(requested)
    for (_, model), named in by_model.items():
        yield (
            f"{_request_places(named)}, but no model is configured and none is asked: "
            f"set AGENTEST_MODEL={_suggested(model)}, or `model` in the configuration"
        )


def _ignored_setting_notes(requests: Sequence[RequestedModel]) -> Iterator[str]:
    """Note the settings of a model that have no effect."""
    for requested in requests:
        if requested.not_sent:
            keys = ", ".join(f"`{key}`" for key in requested.not_sent)
            sent = ", ".join(field.name for field in fields(Sampling))
            not_sent = f"{keys} of the model's configuration is not sent to it"
            yield f"{requested.location}: {not_sent}; what is: {sent}"


def _request_places(requests: Sequence[RequestedModel]) -> str:
    """Return which files and keys name this model, and in what role."""
    by_file: dict[str, list[str]] = {}
    for requested in requests[:_SHOWN]:
        by_file.setdefault(requested.file, []).append(requested.key)
    where = "; ".join(f"{file}: {', '.join(keys)}" for file, keys in by_file.items())
    more = len(requests) - _SHOWN
    where += f" and {more} more" if more > 0 else ""
    verb = "names" if len(requests) == 1 else "name"
    return f"{where} {verb} the {_WHO[requests[0].role]} {requests[0].model}"


def _suggested(model: str) -> str:
    try:
        return litellm_name(model)
    except ConfigError:
        return f"<provider>/{model}"


FILE = "agentest.calibration.json"
_VERSION = 1
_DIGITS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationLine:
    """A line of the calibration file: a model's accuracy for a metric, and the prompts it applies to."""

    metric: str
    prompts: str
    calibration: JudgeCalibration


def calibration_file(configuration: Path) -> Path:
    """Return the calibration file of a configuration, which is a file or a folder."""
    return (configuration if configuration.is_dir() else configuration.parent) / FILE


def known_calibrations(
    path: Path, model: str, metrics: Iterable[str], batch: Batch
) -> tuple[dict[str, JudgeCalibration], tuple[str, ...]]:
    """Return metric → accuracy of this model with today's prompts, and notes for the user."""
    if not path.exists():
        return {}, ()
    try:
        lines = read_calibrations(path)
    except ValueError as error:
        remedy = "remove it, and measure again: agentest calibrate LABELS --write"
        return {}, (f"{path.name} is not used: {error}; {remedy}",)
    of_model = {line.metric: line for line in lines if line.calibration.model == model}
    wanted = [of_model[metric] for metric in metrics if metric in of_model]
    known = {
        line.metric: line.calibration for line in wanted if line.prompts == fingerprint(line.metric, batch)
    }
    return known, tuple(_others([line.metric for line in wanted if line.metric not in known]))


def _others(metrics: Sequence[str]) -> Iterable[str]:
    if metrics:
        yield (
            f"the judge was calibrated with other prompts, so that is not shown ({', '.join(metrics)}); "
            "measure again: agentest calibrate LABELS --write"
        )


def read_calibrations(path: Path) -> list[CalibrationLine]:
    """Read the lines of the file. Raises ValueError if Agentest did not write it."""
    try:
        document = json_value(user_text(path))
    except OSError as error:
        raise ValueError(f"it cannot be read ({error.strerror})") from None
    except ValueError:
        raise ValueError("it is not JSON") from None
    if not isinstance(document, dict) or document.get("version") != _VERSION:
        raise ValueError(f"it is not of version {_VERSION} of this file")
    try:
        return [_parsed_line(data) for data in document.get("calibrations", ())]
    except (ValidationError, TypeError, KeyError, AttributeError) as error:
        what = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise ValueError(f"it holds what agentest calibrate does not write ({what:.100})") from None


def _parsed_line(data: Mapping[str, Any]) -> CalibrationLine:
    values = {key: value for key, value in data.items() if key not in ("metric", "prompts")}
    calibration = _ADAPTER.validate_python(values)
    if not (isinstance(data["metric"], str) and isinstance(data["prompts"], str)):
        raise TypeError("metric and prompts are texts")
    _check_ranges(calibration)
    return CalibrationLine(metric=data["metric"], prompts=data["prompts"], calibration=calibration)


def _check_ranges(calibration: JudgeCalibration) -> None:
    """Raise TypeError for a figure out of range. NaN fails too, because every comparison with it is false."""
    kappas = (calibration.kappa, calibration.low, calibration.high)
    if not calibration.n > 0:
        raise TypeError(f"n is {calibration.n}")
    if not 0 <= calibration.agreement <= 1:
        raise TypeError(f"agreement is {calibration.agreement}")
    if not all(-1 <= value <= 1 for value in kappas if value is not None):
        raise TypeError("kappa, low and high lie between -1 and 1")
    if calibration.low is not None and calibration.high is not None and calibration.low > calibration.high:
        raise TypeError(f"low is {calibration.low}, and high {calibration.high}")


_ADAPTER = TypeAdapter(JudgeCalibration)


def write_calibrations(path: Path, lines: Iterable[CalibrationLine]) -> None:
    """Write lines to the file and retain those of other models and metrics. Raises OSError, ValueError."""
    written = {(each.calibration.model, each.metric): each for each in _existing_lines(path)}
    written |= {(each.calibration.model, each.metric): each for each in lines}
    document = {"version": _VERSION, "calibrations": [_line_json(written[key]) for key in sorted(written)]}
    write_atomically(path, json_document(document).encode())


def _existing_lines(path: Path) -> list[CalibrationLine]:
    return read_calibrations(path) if path.exists() else []


def _line_json(line: CalibrationLine) -> dict[str, Any]:
    known = _ADAPTER.dump_python(line.calibration)
    rounded = {k: round(v, _DIGITS) if isinstance(v, float) else v for k, v in known.items()}
    return {"model": rounded.pop("model"), "metric": line.metric, "prompts": line.prompts, **rounded}
