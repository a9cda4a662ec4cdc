"""What is known of the judge: agentest.calibration.json, beside the configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from agentest.config.models import Batch
from agentest.domain.results import JudgeCalibration
from agentest.judging.fingerprints import fingerprint
from agentest.support.files import user_text, write_atomically
from agentest.support.json_text import json_document, json_value

FILE = "agentest.calibration.json"
_VERSION = 1
_DIGITS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """A line of the file: how right a model was about a metric, and by which prompts it was asked."""

    metric: str
    prompts: str
    calibration: JudgeCalibration


def calibration_file(configuration: Path) -> Path:
    """Where calibrations are kept for a configuration, a file or a folder."""
    return (configuration if configuration.is_dir() else configuration.parent) / FILE


def known_calibrations(
    path: Path, model: str, metrics: Iterable[str], batch: Batch
) -> tuple[dict[str, JudgeCalibration], tuple[str, ...]]:
    """Metric → how right this model has been, asked as it is asked today; and what the user should know."""
    if not path.exists():
        return {}, ()
    try:
        lines = read_calibrations(path)
    except ValueError as error:
        again = "remove it, and measure again: agentest calibrate LABELS --write"
        return {}, (f"{path.name} is not used: {error}; {again}",)
    mine = {line.metric: line for line in lines if line.calibration.model == model}
    wanted = [mine[metric] for metric in metrics if metric in mine]
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


def read_calibrations(path: Path) -> list[Calibrated]:
    """The lines of the file. Raises ValueError where it is not what Agentest writes."""
    try:
        document = json_value(user_text(path))
    except OSError as error:
        raise ValueError(f"it cannot be read ({error.strerror})") from None
    except ValueError:
        raise ValueError("it is not JSON") from None
    if not isinstance(document, dict) or document.get("version") != _VERSION:
        raise ValueError(f"it is not of version {_VERSION} of this file")
    try:
        return [_line(data) for data in document.get("calibrations", ())]
    except (ValidationError, TypeError, KeyError, AttributeError) as error:
        what = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise ValueError(f"it holds what agentest calibrate does not write ({what:.100})") from None


def _line(data: Mapping[str, Any]) -> Calibrated:
    own = {key: value for key, value in data.items() if key not in ("metric", "prompts")}
    calibration = _ADAPTER.validate_python(own)
    if not (isinstance(data["metric"], str) and isinstance(data["prompts"], str)):
        raise TypeError("metric and prompts are texts")
    _check_ranges(calibration)
    return Calibrated(metric=data["metric"], prompts=data["prompts"], calibration=calibration)


def _check_ranges(calibration: JudgeCalibration) -> None:
    """Raise TypeError for what is no such figure. NaN is none either: every comparison with it is false."""
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


def write_calibrations(path: Path, lines: Iterable[Calibrated]) -> None:
    """Put lines into the file; those of other models and metrics stay. Raises OSError, ValueError."""
    kept = {(each.calibration.model, each.metric): each for each in _there(path)}
    kept |= {(each.calibration.model, each.metric): each for each in lines}
    document = {"version": _VERSION, "calibrations": [_json(kept[key]) for key in sorted(kept)]}
    write_atomically(path, json_document(document).encode())


def _there(path: Path) -> list[Calibrated]:
    return read_calibrations(path) if path.exists() else []


def _json(line: Calibrated) -> dict[str, Any]:
    known = _ADAPTER.dump_python(line.calibration)
    rounded = {k: round(v, _DIGITS) if isinstance(v, float) else v for k, v in known.items()}
    return {"model": rounded.pop("model"), "metric": line.metric, "prompts": line.prompts, **rounded}
