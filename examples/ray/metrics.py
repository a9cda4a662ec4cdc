"""A metric that computes: what keeps one core busy, and several machines worth having."""

from __future__ import annotations

import hashlib

from agentest import QuantitativeMetric, TurnInput


class Tone(QuantitativeMetric):
    """Stands for a classifier: some milliseconds of a core a turn."""

    def score(self, input: TurnInput) -> float:
        hashlib.pbkdf2_hmac("sha256", input.agent_message.encode(), b"tone", 20_000)
        return 1.0 if "glad" in input.agent_message or "refund" in input.agent_message else 0.0
