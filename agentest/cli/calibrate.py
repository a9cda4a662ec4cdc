"""`agentest calibrate`: measure how well the configured judge agrees with human labels."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from datetime import datetime
from pathlib import Path

from agentest.calibration.agreement import (
    CalibrationResult,
    Consensus,
    Figures,
    JudgeOutcome,
    as_json,
    as_text,
    consensus_of,
    differences,
    figures_of,
    labelled_metrics,
    pairs_of,
)
from agentest.calibration.conversations_to_label import gather_conversations, scenarios_of
from agentest.calibration.judge_answers import (
    judge_labelled_questions,
    judge_requests,
    prepare_judge,
    run_metrics,
)
from agentest.calibration.label_file import LabelsFile, read_labels
from agentest.calibration.labelling_session import LabellingSession, open_questions
from agentest.calibration.labels import LabelQuestion, LabelSet, metrics_named
from agentest.calibration.terminal_labelling import Dialogue
from agentest.cli.chat import stdin_reader
from agentest.cli.location import Location
from agentest.cli.requests import RequestOptions
from agentest.domain.results import JudgeCalibration, ModelUsage, Unscored
from agentest.judging.questions import fingerprint
from agentest.runner.judge_models import (
    CalibrationLine,
    calibration_file,
    known_calibrations,
    read_calibrations,
    write_calibrations,
)
from agentest.runner.prepare import Prepared, RunRequest
from agentest.support.errors import ExitCode, UsageError
from agentest.support.files import path_from
from agentest.support.interrupts import run_event_loop
from agentest.support.json_text import json_document
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.terminal import Output, say, source, tell
from agentest.support.text import count, did_you_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateOptions(RequestOptions):
    """Options of `agentest calibrate`."""

    labels: Path
    judge: str | None = None
    metric_names: tuple[str, ...] = ()
    write: bool = False
    as_json: bool = False


def calibrate(options: CalibrateOptions) -> ExitCode:
    """Ask the judge the labelled questions and print the agreement. Raises UsageError."""
    project = options.location.enter()
    options = replace(options, labels=project.path(options.labels))
    request = options.request(project)
    wanted = chosen_metrics(options.metric_names)
    labels = read_labels(options.labels)
    metrics = labelled_metrics(labels, wanted)
    if not metrics:
        raise UsageError(_no_labels_message(options, labels))
    consensus = consensus_of(labels)
    questions = [question for question in consensus.values if question.metric in metrics]
    prepared = prepare_judge(request, options.judge)
    settings = prepared.loaded.config.judge
    if request.options.dry_run:
        calls_needed = judge_requests(questions, labels.conversations, settings.batch, run_metrics(prepared))
        calls = count(sum(each.calls for each in calls_needed) * settings.samples, "model call")
        say(f"{count(len(questions), 'labelled question')}, at most {calls}, retries and repairs on top")
        return ExitCode.PASSED
    if options.write:
        _check_file(calibration_file(prepared.loaded.path))  # checked before any model call is paid for
    answers, usage = run_event_loop(judge_labelled_questions, prepared, labels, questions)
    result = _result(prepared, metrics, labels, consensus, answers, usage)
    if options.as_json:
        Output(sys.stdout).write_bytes(source(json_document(as_json(result))))
    else:
        say("\n".join(as_text(result)))
    if not any(each.n for each in result.figures):
        tell("agentest: nothing was measured, as the judge answered no question" + _not_written_note(options))
        return ExitCode.ERRORED
    if options.write:
        _write(prepared, result.figures, request)
    return ExitCode.PASSED


def _not_written_note(options: CalibrateOptions) -> str:
    return "; nothing was written" if options.write else ""


def _no_labels_message(options: CalibrateOptions, labels: LabelSet) -> str:
    if not labels.labels:
        return f"{options.labels} has no labels; add some: agentest label RESULTS --to {options.labels.name}"
    known = ", ".join(sorted({label.question.metric for label in labels.labels}))
    missing = ", ".join(options.metric_names)
    return f"--metric: {options.labels} has no label for {missing}; it has labels for {known}"


def _result(
    prepared: Prepared,
    metrics: Iterable[str],
    labels: LabelSet,
    consensus: Consensus,
    answers: dict[LabelQuestion, JudgeOutcome],
    usage: ModelUsage,
) -> CalibrationResult:
    assert prepared.judge
    redact = prepared.loaded.redact
    return CalibrationResult(
        judge=prepared.judge.name,
        figures=[figures_of(metric, labels, consensus, answers) for metric in metrics],
        differences=differences(pairs_of(consensus, answers)),
        unscored={
            question: Unscored(redact.error(answer.error))
            for question, answer in answers.items()
            if isinstance(answer, Unscored)
        },
        conversations=labels.conversations,
        usage=usage,
    )


def _check_file(path: Path) -> None:
    """Raise UsageError if results cannot be added to the file."""
    try:
        if path.exists():
            read_calibrations(path)
    except ValueError as error:
        raise UsageError(f"--write: {path}: {error}; remove it or mend it") from None


def _write(prepared: Prepared, figures: Iterable[Figures], request: RunRequest) -> None:
    """Write the figures to the file next to the configuration. Raises UsageError."""
    assert prepared.judge
    model, batch = prepared.judge.name, prepared.loaded.config.judge.batch
    path = calibration_file(prepared.loaded.path)
    measured = [each for each in figures if each.n]
    _, notes = known_calibrations(path, model, [each.metric for each in measured], batch)
    lines = [
        CalibrationLine(
            metric=each.metric, prompts=fingerprint(each.metric, batch), calibration=_calibration(each, model)
        )
        for each in measured
    ]
    try:
        write_calibrations(path, lines)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None
    file = path_from(request.here or request.root, path)
    tell(f"agentest: {file}: {count(len(lines), 'metric')} of {model}; commit it, so that runs show it")
    if notes:
        tell("agentest: the stored result was measured with other prompts, so it is replaced")


def _calibration(figures: Figures, model: str) -> JudgeCalibration:
    interval = figures.kappa_interval
    return JudgeCalibration(
        model=model,
        n=figures.n,
        agreement=figures.agreement.value or 0.0,
        kappa=figures.kappa,
        low=interval.low if interval else None,
        high=interval.high if interval else None,
        date=datetime.now().astimezone().date().isoformat(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelOptions:
    """Options of `agentest label`."""

    location: Location = field(default_factory=Location)
    results: str
    to: Path
    metric_names: tuple[str, ...] = ()
    scenarios: tuple[str, ...] = ()
    by: str = ""


def label(options: LabelOptions) -> ExitCode:
    """Ask the open questions in the terminal and store each label. Raises UsageError."""
    project = options.location.enter()
    results, labels = project.run_file(options.results), project.path(options.to)
    request = RequestOptions(location=options.location).request(project, offline=True)
    if sys.stdin is None:
        raise UsageError("label reads what you type from the standard input, which is closed")
    metrics = chosen_metrics(options.metric_names)
    gathered = gather_conversations(results, scenarios_of(request))
    for note in gathered.notes:
        tell(f"agentest: {note}")
    session = LabellingSession(gathered=gathered, file=LabelsFile(labels), by=options.by)
    chosen = session.conversations(options.scenarios)
    if not chosen:
        raise UsageError(
            _no_conversations_message(
                results, options.scenarios, [each.scenario for each in session.conversations()]
            )
        )
    questions = open_questions(chosen, metrics, session.answered(session.labels()))
    file = project.display_path(labels)
    if not questions:
        say(f"nothing is left to label: {file} has an answer to every question")
        return ExitCode.PASSED
    dialogue = Dialogue(session, read_line=stdin_reader(), write=lambda text: say(text, end=""))
    try:
        outcome = dialogue.run(questions)
    except KeyboardInterrupt:
        say(f"\n{file}: every answer is stored; run label again to continue")
        raise
    say(f"{file}: {count(outcome.labelled, 'label')} added, {count(outcome.left, 'question')} left")
    return ExitCode.PASSED


def chosen_metrics(names: Sequence[str]) -> tuple[str, ...]:
    """Return the metrics that `--metric` names, in table order; all if it names none. Raises UsageError."""
    try:
        return metrics_named(names)
    except ValueError as error:
        raise UsageError(f"--metric: {error}") from None


def _no_conversations_message(results: Path, scenarios: Sequence[str], names: Sequence[str]) -> str:
    if not names:
        return f"{results} has no conversation to label"
    hint = did_you_mean(scenarios[0], set(names))
    return f"--scenario: {results} has no conversation of {', '.join(scenarios)}; {hint}"
