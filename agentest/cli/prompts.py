"""`agentest show-prompts`: print the prompts of the judges."""

from __future__ import annotations

from agentest.adk.metrics.shown_prompts import JUDGED_NAMES, shown_prompt
from agentest.domain.metrics import BUILTIN
from agentest.judging.example_prompts import render_example_prompts
from agentest.judging.questions import SYSTEM, criterion_question, prompts_text
from agentest.runner.conversation_run import shown_question
from agentest.scenarios.model import Criterion
from agentest.support.errors import UsageError
from agentest.support.spelling import did_you_mean, snake_case

_MODES = {"false": "off", "true": "turn"}
"""Values of `judge.batch` that have a different name here."""
_OTHERS = {
    "criteria": lambda: (
        f"# system, all metrics\n{SYSTEM}\n\n"
        f"# criteria, each by itself\n{criterion_question(1, Criterion('(the criterion)')).alone}"
    ),
    "user.check": shown_question,
}
"""Judge questions that are not metrics."""


def prompt_text(metric: str | None, mode: str | None = None) -> str:
    """Return the prompts of a metric, or of all metrics if it is None.

    Args:
        metric: name of a metric, `criteria` or `user.check`.
        mode: a value of `judge.batch`; returns all calls about an example in that mode.

    Raises UsageError for an unknown metric.
    """
    if metric and mode:
        raise UsageError("--metric shows one question, --mode shows whole calls; give one of them")
    if mode:
        return render_example_prompts(_MODES.get(mode, mode))
    if metric is None:
        names = ", ".join(JUDGED_NAMES)
        return (
            f"{prompts_text()}\n\n# besides, each by --metric NAME\n{', '.join(_OTHERS)}"
            f"\n\n# of evaluation sets, each by --metric NAME\n{names}"
            "\n\n# whole calls about an example\n--mode off, --mode turn, --mode conversation"
        )
    if metric in _OTHERS:
        return _OTHERS[metric]()
    name = snake_case(metric)
    if name in JUDGED_NAMES:
        return shown_prompt(name)
    if name not in BUILTIN:
        raise UsageError(
            f"there is no metric {metric!r}; {did_you_mean(metric, {*BUILTIN, *JUDGED_NAMES, *_OTHERS})}"
        )
    return prompts_text(name)
