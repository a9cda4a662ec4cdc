"""A metric: how often the agent apologizes."""

import re

from agentest import QuantitativeMetric, ScoreInput


class Apologies(QuantitativeMetric):
    """Apologies in a reply."""

    def score(self, input: ScoreInput) -> int:
        return len(re.findall(r"\b(?:sorry|apologi[sz]e)\b", input.agent_message, re.IGNORECASE))
