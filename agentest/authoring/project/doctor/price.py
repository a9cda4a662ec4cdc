"""What a run will roughly cost: how many calls there can be, and what calls usually take."""

from __future__ import annotations

from functools import partial

from agentest.authoring.project.doctor.checks import Check, good, left_open
from agentest.authoring.project.doctor.models import Specs
from agentest.config.config import Config
from agentest.config.models import Batch
from agentest.domain.transcript import Usage
from agentest.models.prices import price_of
from agentest.models.providers import ModelSpec
from agentest.runner.estimate import estimate
from agentest.runner.plan import Plan
from agentest.runner.prepare import CONFIRM

_OF_USER = Usage(800, 60)
_OF_JUDGE = {
    Batch.OFF: Usage(1_500, 120),
    Batch.TURN: Usage(2_700, 700),
    Batch.CONVERSATION: Usage(3_800, 2_500),
}
"""Tokens of a call, as docs/metrics.md has those of prompts: of a conversation of four turns."""


def check_price(plan: Plan, config: Config, specs: Specs, expected: str = "") -> Check:
    """The calls that a run can make at most, and what they would cost.

    Args:
        expected: what a run may take by an earlier one, in words; "" where that is not known.
    """
    most = _at_most(plan, config, specs)
    if not expected or not any(specs.values()):
        return most
    return good("price", expected, f"{most.text[0].upper()}{most.text[1:]}. {_LIMIT}")


def _at_most(plan: Plan, config: Config, specs: Specs) -> Check:
    user, judge = specs.get("user"), specs.get("judge")
    if not (user or judge):
        return good("price", "nothing: no model is asked")
    settings = config.judge
    count = partial(
        estimate,
        plan.units,
        user=user is not None,
        judge=judge is not None,
        samples=settings.samples,
        batch=settings.batch,
        check=config.user.check,
    )
    estimates, confirm = count(), specs.get(CONFIRM)
    calls = {"user": sum(e.user for e in estimates), "judge": sum(e.judge + e.dedup for e in estimates)}
    told = f"at most {calls['user']:,} calls of the user's model and {calls['judge']:,} of the judge's"
    costs = [_cost(user, calls["user"], _OF_USER), _cost(judge, calls["judge"], _OF_JUDGE[settings.batch])]
    if confirm:
        second = sum(e.judge + e.dedup for e in count(confirm=True)) - calls["judge"]
        told += f", and {second:,} of the model that confirms it"
        together = Batch.TURN if settings.batch is Batch.OFF else settings.batch
        costs.append(_cost(confirm, second, _OF_JUDGE[together]))
    if None in costs:
        return left_open("price", f"{told}; what they cost is not known")
    total = sum(cost for cost in costs if cost is not None)
    return good("price", f"{told}: some {total:.2f} USD, if all are made", _LESS)


_LIMIT = "--max-cost USD is the limit, --dry-run shows each scenario."
_LESS = f"Mostly it is less: conversations end early. {_LIMIT}"


def _cost(spec: ModelSpec | None, calls: int, each: Usage) -> float | None:
    """What so many calls cost; None where that is not known."""
    if spec is None or not calls:
        return 0.0
    price = price_of(spec.name) if spec.priced else None
    return price.cost(each) * calls if price else None
