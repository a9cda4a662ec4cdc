"""Which prompts a judge was calibrated with."""

from __future__ import annotations

import hashlib

from agentest.config.models import Batch
from agentest.evaluate.prompts import SYSTEM, question
from agentest.metrics import BUILTIN

_CHARS = 16


def fingerprint(metric: str, batch: Batch) -> str:
    """What changes whenever a judge is asked in other words, or together with other questions.

    Args:
        metric: a built-in one; any other name stands for the criteria of scenarios.
    """
    asked = [SYSTEM, batch.value]
    if metric in BUILTIN:
        asked += [question(metric), question(metric, first_turn=True)]
    return hashlib.sha256("\0".join(asked).encode()).hexdigest()[:_CHARS]
