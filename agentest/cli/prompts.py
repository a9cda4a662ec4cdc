"""`agentest show-prompts`: what the judges are asked."""

from __future__ import annotations

from agentest.errors import UsageError
from agentest.evalset.metrics.shown import JUDGED_NAMES, shown_prompt
from agentest.evaluate.example_calls import shown_calls
from agentest.evaluate.prompts import shown_prompts
from agentest.metrics import BUILTIN
from agentest.support.spelling import did_you_mean, snake_case


def prompts(metric: str | None, mode: str | None = None) -> str:
    """The prompts of a metric; None: of all that judge scenarios. Raises UsageError for an unknown metric.

    Args:
        mode: a value of `judge.batch`, for all calls about an example, as they are made then.
    """
    if metric and mode:
        raise UsageError("--metric shows one question, --mode shows whole calls; give one of them")
    if mode:
        return shown_calls(mode)
    if metric is None:
        names = ", ".join(JUDGED_NAMES)
        return (
            f"{shown_prompts()}\n\n# of evaluation sets, each by --metric NAME\n{names}"
            "\n\n# whole calls about an example\n--mode off, --mode turn, --mode conversation"
        )
    name = snake_case(metric)
    if name in JUDGED_NAMES:
        return shown_prompt(name)
    if name not in BUILTIN:
        raise UsageError(f"there is no metric {metric!r}; {did_you_mean(metric, {*BUILTIN, *JUDGED_NAMES})}")
    return shown_prompts(name)
