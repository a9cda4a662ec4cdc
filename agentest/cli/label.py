"""`agentest label`: label conversations in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from agentest.calibration.conversations_to_label import gather_conversations, scenarios_of
from agentest.calibration.label_file import LabelWriter, read_labels
from agentest.calibration.labels import LabelSet, metrics_named
from agentest.calibration.terminal_labelling import Dialogue, open_questions
from agentest.cli.chat import stdin_reader
from agentest.scenarios.discovery import matches_name
from agentest.support.errors import ExitCode, UsageError
from agentest.support.files import path_from
from agentest.support.spelling import did_you_mean
from agentest.support.terminal import say, tell
from agentest.support.text import count

if TYPE_CHECKING:
    from agentest.runner.prepare import RunRequest


@dataclass(frozen=True, slots=True)
class LabelOptions:
    """Options of `agentest label`."""

    results: Path
    to: Path
    metrics: tuple[str, ...] = ()
    scenarios: tuple[str, ...] = ()
    by: str = ""


def label(options: LabelOptions, request: RunRequest) -> ExitCode:
    """Ask the open questions in the terminal and store each label. Raises UsageError."""
    if sys.stdin is None:
        raise UsageError("label reads what you type from the standard input, which is closed")
    metrics = chosen_metrics(options.metrics)
    gathered = gather_conversations(options.results, scenarios_of(request))
    for note in gathered.notes:
        tell(f"agentest: {note}")
    chosen = {
        each.id: each
        for each in gathered.conversations.values()
        if not options.scenarios or matches_name(each.scenario, options.scenarios)
    }
    if not chosen:
        raise UsageError(
            _no_conversations_message(options, [each.scenario for each in gathered.conversations.values()])
        )
    known = read_labels(options.to) if options.to.exists() else LabelSet()
    answered = {each.question for each in known.labels if each.by == options.by}
    questions = open_questions(chosen.values(), metrics, answered)
    shown = path_from(request.here or request.root, options.to)
    if not questions:
        say(f"nothing is left to label: {shown} has an answer to every question")
        return ExitCode.PASSED
    dialogue = Dialogue(
        conversations=chosen,
        keep=LabelWriter(options.to, set(known.conversations)),
        read_line=stdin_reader(),
        write=lambda text: say(text, end=""),
        now=lambda: datetime.now().astimezone().isoformat(timespec="seconds"),
        by=options.by,
    )
    try:
        outcome = dialogue.run(questions)
    except KeyboardInterrupt:
        say(f"\n{shown}: every answer is kept; started again, label goes on from here")
        raise
    say(f"{shown}: {count(outcome.labelled, 'label')} added, {count(outcome.left, 'question')} left")
    return ExitCode.PASSED


def chosen_metrics(names: Sequence[str]) -> tuple[str, ...]:
    """Return the metrics that `--metric` names, in table order; all if it names none. Raises UsageError."""
    try:
        return metrics_named(names)
    except ValueError as error:
        raise UsageError(f"--metric: {error}") from None


def _no_conversations_message(options: LabelOptions, names: Sequence[str]) -> str:
    if not names:
        return f"{options.results} holds no conversation that could be labelled"
    hint = did_you_mean(options.scenarios[0], set(names))
    return f"--scenario: {options.results} holds no conversation of {', '.join(options.scenarios)}; {hint}"
