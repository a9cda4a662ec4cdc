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
from agentest.models.providers import MissingAccess, ModelSpec, litellm_name, recorded, resolve_named, sampled
from agentest.plugin import if_command
from agentest.support.errors import ConfigError
from agentest.support.files import user_text, write_atomically
from agentest.support.json_text import json_document, json_value
from agentest.support.lazy_dataclasses import dataclass

_WHO = {"judge": "judge", "user": "simulated user"}
_NO_MODEL_OF_ROLE = {
    "judge": "no judge is configured, so no model is called",
    "user": "no model is configured for the user, who follows rules",
}
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class ConfiguredModels:
    """The configured models, and what decides whether a requested model can be used."""

    config: Config
    environ: Mapping[str, str]
    user: ModelSpec | None
    judge: ModelSpec | None
    override: str | None = None
    recorded: Collection[str] = ()  # the named models with recorded responses, if recordings are in use
    replay: bool = False  # True if only recorded responses are used

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
                f"answers of {name} are recorded, but new ones need {missing.what}: set it, or replay the "
                "recorded ones with --replay"
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
        spec = spec and sampled(spec, requested.sampling)
        if spec and spec != configured.of(requested):
            specs[requested] = spec
        if problem:
            problems.setdefault((requested.role, requested.model, problem), []).append(requested)
    notes: list[str] = []
    for (role, _, problem), missed in problems.items():
        known = configured.of(missed[0])
        instead = f"the configured model {known.name} is used instead" if known else _NO_MODEL_OF_ROLE[role]
        notes.append(f"{_request_places(missed)}, which {problem}: {instead}")
    for requested in requests:
        if requested.not_sent:
            keys = ", ".join(f"`{key}`" for key in requested.not_sent)
            sent = ", ".join(field.name for field in fields(Sampling))
            not_sent = f"{keys} of the model's configuration is not sent to it"
            notes.append(f"{requested.location}: {not_sent}; what is: {sent}")
    return specs, tuple(notes)


def _resolve(requested: RequestedModel, configured: ConfiguredModels) -> tuple[ModelSpec | None, str]:
    configured_model, written = configured.of(requested), requested.model
    if written is None or (configured_model and written == configured_model.name):
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


def _offline_notes(requests: Sequence[RequestedModel]) -> Iterator[str]:
    by_model: dict[tuple[str, str], list[RequestedModel]] = {}
    for requested in requests:
        if requested.model:
            by_model.setdefault((requested.role, requested.model), []).append(requested)
    for (_, model), named in by_model.items():
        try:
            suggested = litellm_name(model)
        except ConfigError:
            suggested = f"<provider>/{model}"
        yield (
            f"{_request_places(named)}, but no model is configured: "
            f"set AGENTEST_MODEL={suggested}, or `model` in the configuration"
        )


def _request_places(requests: Sequence[RequestedModel]) -> str:
    by_file: dict[str, list[str]] = {}
    for requested in requests[:_SHOWN]:
        by_file.setdefault(requested.file, []).append(requested.key)
    where = "; ".join(f"{file}: {', '.join(keys)}" for file, keys in by_file.items())
    more = len(requests) - _SHOWN
    where += f" and {more} more" if more > 0 else ""
    verb = "names" if len(requests) == 1 else "name"
    return f"{where} {verb} the {_WHO[requests[0].role]} {requests[0].model}"


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
        remedy = if_command("calibrate", ", and measure again: agentest calibrate LABELS --write")
        return {}, (f"{path.name} is not used: {error}; remove it{remedy}",)
    of_model = {line.metric: line for line in lines if line.calibration.model == model}
    wanted = [of_model[metric] for metric in metrics if metric in of_model]
    known = {
        line.metric: line.calibration for line in wanted if line.prompts == fingerprint(line.metric, batch)
    }
    others = [line.metric for line in wanted if line.metric not in known]
    note = (
        f"the judge was calibrated with other prompts, so that is not shown ({', '.join(others)})"
        + if_command("calibrate", "; measure again: agentest calibrate LABELS --write")
    )
    return known, (note,) if others else ()


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
        raise ValueError(f"it contains something that Agentest does not write ({what:.100})") from None


def _parsed_line(data: Mapping[str, Any]) -> CalibrationLine:
    values = {key: value for key, value in data.items() if key not in ("metric", "prompts")}
    calibration = _ADAPTER.validate_python(values)
    if not (isinstance(data["metric"], str) and isinstance(data["prompts"], str)):
        raise TypeError("metric and prompts are texts")
    low, high = calibration.low, calibration.high
    kappas = [value for value in (calibration.kappa, low, high) if value is not None]
    # NaN is out of range too, because every comparison with it is false.
    in_range = {
        f"n is {calibration.n}": calibration.n > 0,
        f"agreement is {calibration.agreement}": 0 <= calibration.agreement <= 1,
        "kappa, low and high lie between -1 and 1": all(-1 <= value <= 1 for value in kappas),
        f"low is {low}, and high {high}": low is None or high is None or low <= high,
    }
    if problems := [problem for problem, holds in in_range.items() if not holds]:
        raise TypeError(problems[0])
    return CalibrationLine(metric=data["metric"], prompts=data["prompts"], calibration=calibration)


_ADAPTER = TypeAdapter(JudgeCalibration)


def write_calibrations(path: Path, lines: Iterable[CalibrationLine]) -> None:
    """Write lines to the file and retain those of other models and metrics. Raises OSError, ValueError."""
    existing = read_calibrations(path) if path.exists() else []
    written = {(each.calibration.model, each.metric): each for each in [*existing, *lines]}
    document = {"version": _VERSION, "calibrations": [_line_json(written[key]) for key in sorted(written)]}
    write_atomically(path, json_document(document).encode())


def _line_json(line: CalibrationLine) -> dict[str, Any]:
    known = _ADAPTER.dump_python(line.calibration)
    rounded = {k: round(v, _DIGITS) if isinstance(v, float) else v for k, v in known.items()}
    return {"model": rounded.pop("model"), "metric": line.metric, "prompts": line.prompts, **rounded}
