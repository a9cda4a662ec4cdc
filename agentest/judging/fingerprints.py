"""Which prompts a judge was calibrated with."""

from __future__ import annotations

import hashlib

from agentest.config.models import Batch
from agentest.domain.metrics import BUILTIN
from agentest.judging.prompts import judge_messages
from agentest.judging.questions import (
    JudgeQuestion,
    criterion_question,
    joint_messages,
    metric_question,
)
from agentest.scenarios.criteria import Criterion

_CHARS = 16


def fingerprint(metric: str, batch: Batch) -> str:
    """What changes whenever a judge is asked in other words, or together with other questions.

    Args:
        metric: a built-in one; any other name stands for the criteria of scenarios.
    """
    if metric in BUILTIN:
        questions = [metric_question(metric, turn) for turn in (0, 1)]
    else:
        questions = [criterion_question(1, Criterion(""))]
    asked = [text for question in questions for text in _asked(question, batch)]
    return hashlib.sha256("\0".join([batch.value, *asked]).encode()).hexdigest()[:_CHARS]


def _asked(question: JudgeQuestion, batch: Batch) -> list[str]:
    """All that is written around a conversation where this is asked."""
    if batch is Batch.OFF:
        messages = judge_messages("", question.alone)
    else:
        messages = joint_messages([question], "", by_turn=batch is Batch.CONVERSATION)
    return [message["content"] for message in messages]
