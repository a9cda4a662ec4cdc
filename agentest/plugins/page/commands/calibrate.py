"""Commands about judges: `label` stores people's answers, `calibrate` compares, `show-prompts` prints."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path

import anyio
import click

from agentest.cli.location import Location, request_of
from agentest.cli.options import budget, choice_option, exits, flag, option, path_option, recording, where
from agentest.config.models import Batch
from agentest.domain.end_reason import Ending
from agentest.domain.metrics import BUILTIN
from agentest.domain.results import JudgeCalibration, ModelUsage, Unscored
from agentest.domain.transcript import Conversation, ToolCall, Turn
from agentest.judging.evaluator import ScenarioEvaluator
from agentest.judging.judge import BATCH_METRIC, Judge
from agentest.judging.judge_input import criterion_question
from agentest.judging.judgement import AgentBackground, CallVisibility
from agentest.judging.questions import SYSTEM, fingerprint, prompt_of, prompts_text
from agentest.judging.role_check import role_check_prompt
from agentest.models.port import Answer, CallKey, Message
from agentest.plugin import PLUGINS
from agentest.plugins.page.commands.chat import stdin_reader, write_stdout
from agentest.plugins.page.labels.agreement import (
    CalibrationResult,
    Consensus,
    Figures,
    JudgeOutcome,
    as_text,
    consensus_of,
    differences,
    figures_of,
    labelled_metrics,
    pairs_of,
)
from agentest.plugins.page.labels.agreement import as_json as json_of
from agentest.plugins.page.labels.conversations_to_label import gather_conversations, scenarios_of
from agentest.plugins.page.labels.judge_answers import (
    judge_labelled_questions,
    judge_requests,
    prepare_judge,
    run_metrics,
)
from agentest.plugins.page.labels.labelling_session import Dialogue, LabellingSession, open_questions
from agentest.plugins.page.labels.labels import (
    LabelQuestion,
    LabelSet,
    LabelsFile,
    metrics_named,
    read_labels,
)
from agentest.runner.judge_models import (
    CalibrationLine,
    calibration_file,
    known_calibrations,
    read_calibrations,
    write_calibrations,
)
from agentest.runner.plan import Options
from agentest.runner.prepare import Prepared, RunRequest
from agentest.scenarios.model import Criterion, Scenario
from agentest.support.dates import without_marks
from agentest.support.errors import ExitCode, ModelUnavailable, UsageError, errors_as
from agentest.support.files import path_from
from agentest.support.interrupts import run_event_loop
from agentest.support.json_text import json_document
from agentest.support.terminal import Output, say, source, tell, tell_notes
from agentest.support.text import count, did_you_mean, snake_case, turn_name

_METRIC = option("--metric metric_names", "NAME", "Select this metric, or criteria.", multiple=True)


@click.command()
@click.argument("labels", type=click.Path(path_type=Path))
@where
@option("--judge", "MODEL", "Measure this model (default: the configured judge).")
@_METRIC
@flag("--write", "Store the result next to the configuration, for runs to show.")
@flag("--json as_json", "Print JSON.")
@flag("--dry-run", "Show the largest number of model calls, and make none.")
@budget
@recording
@exits
def calibrate(
    location: Location,
    options: Options,
    labels: Path,
    judge: str | None,
    metric_names: tuple[str, ...],
    write: bool,
    as_json: bool,
) -> ExitCode:
    """Measure how well the judge agrees with the people who labelled the conversations of LABELS.

    Shows agreement, false alarms, misses and Cohen's kappa by metric, and where judge and people differ.

    Exit status: 0 measured, 2 if the labels or the configuration cannot be used or the judge gave no
    answer, 130 interrupted.
    """
    project = location.enter()
    file, request = project.path(labels), request_of(project, options)
    wanted = chosen_metrics(metric_names)
    label_set = read_labels(file)
    metrics = labelled_metrics(label_set, wanted)
    if not metrics:
        raise UsageError(_no_labels_message(file, metric_names, label_set))
    consensus = consensus_of(label_set)
    questions = [question for question in consensus.values if question.metric in metrics]
    prepared = prepare_judge(request, judge)
    settings = prepared.loaded.config.judge
    if options.dry_run:
        requests = judge_requests(questions, label_set.conversations, settings.batch, run_metrics(prepared))
        calls = count(sum(each.calls for each in requests) * settings.samples, "model call")
        say(f"{count(len(questions), 'labelled question')}, at most {calls}, retries and repairs on top")
        return ExitCode.PASSED
    if write:
        _check_file(calibration_file(prepared.loaded.path))  # checked before any model call is paid for
    answers, usage = run_event_loop(judge_labelled_questions, prepared, label_set, questions)
    result = _result(prepared, metrics, label_set, consensus, answers, usage)
    if as_json:
        Output(sys.stdout).write_bytes(source(json_document(json_of(result))))
    else:
        say("\n".join(as_text(result)))
    if not any(each.n for each in result.figures):
        not_written = "; nothing was written" if write else ""
        tell(f"agentest: nothing was measured, as the judge answered no question{not_written}")
        return ExitCode.ERRORED
    if write:
        _write(prepared, result.figures, request)
    return ExitCode.PASSED


def _no_labels_message(file: Path, metrics: Sequence[str], labels: LabelSet) -> str:
    if not labels.labels:
        return f"{file} has no labels; add some: agentest label RESULTS --to {file.name}"
    known = ", ".join(sorted({label.question.metric for label in labels.labels}))
    return f"--metric: {file} has no label for {', '.join(metrics)}; it has labels for {known}"


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
    try:
        if path.exists():
            read_calibrations(path)
    except ValueError as error:
        raise UsageError(f"--write: {path}: {error}; remove or repair it") from None


def _write(prepared: Prepared, figures: Iterable[Figures], request: RunRequest) -> None:
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
    with errors_as(UsageError, f"{path} cannot be written: ", OSError):
        write_calibrations(path, lines)
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


@click.command()
@click.argument("results")
@where
@path_option("--to", "Add to this file of labels.", default="labels.jsonl", show_default=True)
@_METRIC
@option("--scenario scenarios", "TEXT", "Select names with TEXT.", multiple=True)
@option("--by", "NAME", "Store your name, if several people label.", default="")
@exits
def label(
    location: Location,
    results: str,
    to: Path,
    metric_names: tuple[str, ...],
    scenarios: tuple[str, ...],
    by: str,
) -> ExitCode:
    """Label the conversations of RESULTS yourself, without seeing the judge's answers.

    RESULTS is a run (an id or its beginning, `latest`, a folder), a results.json, a journal.jsonl, an
    evaluation set or a labels file. Every answer is stored at once, and later calls leave answered questions
    out. Without a terminal, answers are read line by line.
    """
    project = location.enter()
    results_file, labels = project.run_file(results), project.path(to)
    if sys.stdin is None:
        raise UsageError("label reads what you type from the standard input, which is closed")
    metrics = chosen_metrics(metric_names)
    gathered = gather_conversations(results_file, scenarios_of(request_of(project, offline=True)))
    tell_notes(gathered.notes)
    session = LabellingSession(gathered=gathered, file=LabelsFile(labels), by=by)
    chosen = session.conversations(scenarios)
    if not chosen:
        names = {each.scenario for each in session.conversations()}
        if not names:
            raise UsageError(f"{results_file} has no conversation to label")
        raise UsageError(
            f"--scenario: {results_file} has no conversation of {', '.join(scenarios)}; "
            f"{did_you_mean(scenarios[0], names)}"
        )
    labelled = session.labels()
    questions = open_questions(
        chosen, metrics, session.answered(labelled), judgments=gathered.judged, labels=labelled
    )
    file = project.display_path(labels)
    if not questions:
        say(f"nothing is left to label: {file} has an answer to every question")
        return ExitCode.PASSED
    dialogue = Dialogue(session, read_line=stdin_reader(), write=write_stdout)
    try:
        labels_added = dialogue.run(questions)
    except KeyboardInterrupt:
        say(f"\n{file}: every answer is stored; run label again to continue")
        raise
    left = count(len(questions) - labels_added, "question")
    say(f"{file}: {count(labels_added, 'label')} added, {left} left")
    return ExitCode.PASSED


def chosen_metrics(names: Sequence[str]) -> tuple[str, ...]:
    """Return the metrics that `--metric` names, in table order; all if it names none. Raises UsageError."""
    with errors_as(UsageError, "--metric: "):
        return metrics_named(names)


@click.command("show-prompts")
@option("--metric", "NAME", "Show one metric, of evaluation sets, criteria, user.check, attack.")
@choice_option(
    "--mode",
    ["off", "false", "turn", "true", "conversation"],
    "Show all calls for an example, as this `judge.batch` makes them.",
)
@exits
def show_prompts(metric: str | None, mode: str | None) -> ExitCode:
    """Show the prompts of the judges."""
    say(prompt_text(metric, mode))
    return ExitCode.PASSED


_MODES = {"false": "off", "true": "turn"}
_OTHER_PROMPTS = {
    "criteria": lambda: (
        f"# system, all metrics\n{SYSTEM}\n\n"
        f"# criteria, each by itself\n{prompt_of(criterion_question(1, Criterion('(the criterion)'))).alone}"
    ),
    "user.check": role_check_prompt,
}


def prompt_text(metric: str | None, mode: str | None = None) -> str:
    """Return the prompts of a metric, or of all metrics if it is None.

    Args:
        metric: name of a metric, `criteria`, `user.check` or `attack`.
        mode: a value of `judge.batch`; returns all calls about an example in that mode.

    Raises UsageError for an unknown metric.
    """
    if metric and mode:
        raise UsageError("--metric shows one question, --mode shows whole calls; give one of them")
    if mode:
        return render_example_prompts(_MODES.get(mode, mode))
    others: dict[str, dict[str, Callable[[], str]]] = {"others": {**_OTHER_PROMPTS}}
    for hook in PLUGINS.all("hook").values():
        if heading := hook.facts.get("prompts"):
            others.setdefault(heading, {}).update(hook.load())
    if metric is None:
        lists = (
            f"# {heading}, shown with --metric NAME\n{', '.join(names)}" for heading, names in others.items()
        )
        modes = "# whole calls about an example\n--mode off, --mode turn, --mode conversation"
        return "\n\n".join((prompts_text(), *lists, modes))
    texts = {name: text for names in others.values() for name, text in names.items()}
    name = snake_case(metric)
    if text := texts.get(metric) or texts.get(name):
        return text()
    if name not in BUILTIN:
        raise UsageError(f"there is no metric {metric!r}; {did_you_mean(metric, {*BUILTIN, *texts})}")
    return prompts_text(name)


_EXAMPLE = Scenario(
    name="example",
    file="",
    line=0,
    profile="A busy traveller who writes short messages.",
    goal="Cancel the booking B-17 and get the money back.",
    knowledge=("The booking was made in May.",),
    expected_outcome="The refund is refused, as the fare is not refundable, and the traveller is told why.",
    criteria=(Criterion("Never asks for the full card number"), Criterion("Offers a voucher")),
)
_EXAMPLE_AGENT = AgentBackground(
    instructions="You work for an airline. Fares of type Light are not refundable.",
    tools="get_booking(id): a booking by its number",
    visibility=CallVisibility(has_tools=True),
)
_EXAMPLE_CONVERSATION = Conversation(
    conversation_id="example-1",
    turns=(
        Turn(
            turn_index=0,
            user_message="Please cancel B-17 and refund me.",
            agent_message="B-17 is a Light fare, which is not refundable. Shall I cancel it all the same?",
            tool_calls=(
                ToolCall(
                    name="get_booking",
                    args={"id": "B-17"},
                    result={"id": "B-17", "fare": "Light", "price": 120},
                    mocked=True,
                    turn_index=0,
                ),
            ),
            started_at="2026-03-02T09:30:00+01:00",
        ),
        Turn(
            turn_index=1,
            user_message="No, then leave it.",
            agent_message="All right. I can offer you a voucher for a seat instead.",
        ),
    ),
    ending=Ending.REFUSED,
)


class _RecordingModel:
    name = "nobody"

    def __init__(self) -> None:
        self.asked: list[tuple[CallKey, Sequence[Message]]] = []

    async def ask(
        self,
        messages: Sequence[Message],
        answer: type[Answer],  # noqa: ARG002 - every model is told the shape
        key: CallKey,
    ) -> Answer:
        self.asked.append((key, messages))
        raise ModelUnavailable("nobody answers")


def render_example_prompts(mode: str) -> str:
    """Return every judge call about two turns in a `judge.batch` mode; repeated messages are referenced."""
    listener = _RecordingModel()
    evaluator = ScenarioEvaluator(
        scenario=_EXAMPLE,
        scope="example",
        metrics=tuple(BUILTIN),
        judge=Judge(listener, batch=Batch(mode)),
        agent=_EXAMPLE_AGENT,
    )
    anyio.run(evaluator.everything, _EXAMPLE_CONVERSATION, 1)
    first_calls: dict[str, int] = {}
    calls = enumerate(listener.asked, start=1)
    return "\n\n".join(
        part for n, call in calls for part in _call_text(n, len(listener.asked), *call, first_calls)
    )


def _call_text(
    n: int, total: int, key: CallKey, messages: Sequence[Message], first_calls: dict[str, int]
) -> list[str]:
    about = "the conversation" if key.turn is None else turn_name(key.turn)
    parts = [
        f"# call {n} of {total}: {about}, {'all questions' if key.metric == BATCH_METRIC else key.metric}"
    ]
    for message in messages:
        first = first_calls.setdefault(message["content"], n)
        text = without_marks(message["content"]) if first == n else f"(as in call {first})"
        parts.append(f"## {message['role']}\n{text}")
    return parts
