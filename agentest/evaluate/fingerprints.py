"""Which prompts a judge was calibrated with."""

from __future__ import annotations

import hashlib

from agentest.config.models import Batch
from agentest.evaluate.prompts import SYSTEM
from agentest.evaluate.questions import criterion_question, metric_question
from agentest.metrics import BUILTIN
from agentest.scenarios.criteria import Criterion

_CHARS = 16


def fingerprint(metric: str, batch: Batch) -> str:
    """What changes whenever a judge is asked in other words, or together with other questions.

    Args:
        metric: a built-in one; any other name stands for the criteria of scenarios.
    """
    if metric in BUILTIN:
        asked = [metric_question(metric, turn).alone for turn in (0, 1)]
    else:
        asked = [criterion_question(1, Criterion("")).alone]
    return hashlib.sha256("\0".join([SYSTEM, batch.value, *asked]).encode()).hexdigest()[:_CHARS]
