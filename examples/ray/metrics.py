"""A metric that computes: what keeps one core busy, and several machines worth having."""

from __future__ import annotations

from difflib import SequenceMatcher

from agentest import QuantitativeMetric, ScoreInput

_GOOD = (
    "We are glad to help you with that. What is it about, and since when has it been so?",
    "We have sent your refund today. It takes five days at the most. Is there anything else?",
    "Thank you for waiting. You get your money back within five days, and need not do anything else.",
    "We are sorry for the trouble. You get a new one within five days. Is there anything else?",
)


class Likeness(QuantitativeMetric):
    """How like a reply is to the most like of good ones, from 0 to 1: some milliseconds of a core a turn."""

    def score(self, input: ScoreInput) -> float:
        ratios = [SequenceMatcher(None, input.agent_message, good, autojunk=False).ratio() for good in _GOOD]
        return max(ratios)
