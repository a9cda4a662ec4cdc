"""`agentest label`: a person labels conversations in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from agentest.calibration.candidates import gather, scenarios_of
from agentest.calibration.label_file import LabelWriter, read_labels
from agentest.calibration.labels import Labels, metrics_named
from agentest.calibration.terminal_labelling import Dialogue, open_questions
from agentest.cli.chat import typed
from agentest.scenarios.discovery import name_fits
from agentest.support.errors import ExitCode, UsageError
from agentest.support.files import path_from
from agentest.support.spelling import did_you_mean
from agentest.support.terminal import say, tell
from agentest.support.text import count

if TYPE_CHECKING:
    from agentest.runner.prepare import Request


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be labelled, and where labels go."""

    results: Path
    to: Path
    metrics: tuple[str, ...] = ()
    scenarios: tuple[str, ...] = ()
    by: str = ""


def label(wish: Wish, request: Request) -> ExitCode:
    """Ask a person. Raises UsageError."""
    if sys.stdin is None:
        raise UsageError("label reads what you type from the standard input, which is closed")
    metrics = chosen_metrics(wish.metrics)
    gathered = gather(wish.results, scenarios_of(request))
    for note in gathered.notes:
        tell(f"agentest: {note}")
    chosen = {
        each.id: each
        for each in gathered.conversations.values()
        if not wish.scenarios or name_fits(each.scenario, wish.scenarios)
    }
    if not chosen:
        raise UsageError(_nothing(wish, [each.scenario for each in gathered.conversations.values()]))
    known = read_labels(wish.to) if wish.to.exists() else Labels()
    answered = {each.question for each in known.labels if each.by == wish.by}
    questions = open_questions(chosen.values(), metrics, answered)
    shown = path_from(request.here or request.root, wish.to)
    if not questions:
        say(f"nothing is left to label: {shown} has an answer to every question")
        return ExitCode.PASSED
    dialogue = Dialogue(
        conversations=chosen,
        keep=LabelWriter(wish.to, set(known.conversations)),
        read_line=typed(),
        write=lambda text: say(text, end=""),
        now=lambda: datetime.now().astimezone().isoformat(timespec="seconds"),
        by=wish.by,
    )
    try:
        said = dialogue.run(questions)
    except KeyboardInterrupt:
        say(f"\n{shown}: every answer is kept; started again, label goes on from here")
        raise
    say(f"{shown}: {count(said.labelled, 'label')} added, {count(said.left, 'question')} left")
    return ExitCode.PASSED


def chosen_metrics(names: Sequence[str]) -> tuple[str, ...]:
    """The metrics that `--metric` names, in the order of the table; all where none is. Raises UsageError."""
    try:
        return metrics_named(names)
    except ValueError as error:
        raise UsageError(f"--metric: {error}") from None


def _nothing(wish: Wish, names: Sequence[str]) -> str:
    if not names:
        return f"{wish.results} holds no conversation that could be labelled"
    hint = did_you_mean(wish.scenarios[0], set(names))
    return f"--scenario: {wish.results} holds no conversation of {', '.join(wish.scenarios)}; {hint}"
