"""Doctor checks of models: whether they respond in the required format, and what a run would cost."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import replace
from functools import partial

from pydantic import BaseModel

from agentest.authoring.check import Check, Tell, bad, good, left_open
from agentest.config.config import Config
from agentest.config.file import LoadedConfig
from agentest.config.models import Batch
from agentest.domain.results import ModelUsage
from agentest.domain.transcript import Usage
from agentest.models.budget import price_of
from agentest.models.factory import ModelTerms, open_models
from agentest.models.port import CallKey, Level
from agentest.models.providers import MissingAccess, ModelSpec, key_variables, resolve, resolve_confirming
from agentest.models.structured_output import StructuredModel
from agentest.runner.plan import Plan
from agentest.runner.prepare import CONFIRM, MODEL_VARIABLE, RunRequest
from agentest.runner.run_budget import estimate
from agentest.support.errors import ConfigError, ModelError
from agentest.support.text import count, shortened

Specs = Mapping[str, ModelSpec | None]
"""Role → its model; None if offline."""
_SCOPE = "doctor"
ROLES = ("user", "judge")
_QUESTION = "This is a test of the connection. Answer that you are reachable: true."
_PATIENCE_S = 20.0
_LEVELS = {
    Level.SCHEMA: "with a JSON Schema as its form",
    Level.JSON_MODE: "in JSON mode: it takes no JSON Schema",
    Level.PROMPT: "by the prompt alone: it takes no form",
}
_NO_MODEL = "Runs are offline until `model` names one (or --model, AGENTEST_MODEL), like openai/gpt-5-mini."


class ReachableAnswer(BaseModel):
    """The answer to the question whether a model can be reached."""

    reachable: bool


def resolved(
    loaded: LoadedConfig, request: RunRequest, environ: MutableMapping[str, str], tell: Tell
) -> Specs:
    """Resolve the models of all roles, and report on their keys.

    A role is missing from the result if its model cannot be called.
    """
    override = request.options.model or environ.get(MODEL_VARIABLE) or None
    config = loaded.config
    specs: dict[str, ModelSpec | None] = {}
    problems: dict[str, str] = {}
    for role, settings in (("user", config.user), ("judge", config.judge)):
        try:
            specs[role] = resolve(config, settings, environ, override)
        except ConfigError as error:
            problems[str(error)] = "key" if isinstance(error, MissingAccess) else "model"
    if specs.get("judge") and config.judge.confirm:
        try:
            specs[CONFIRM] = resolve_confirming(config, environ, override)
        except ConfigError as error:
            problems[f"{CONFIRM}: {error}"] = "key" if isinstance(error, MissingAccess) else "model"
    for problem, what in problems.items():
        tell(bad(what, problem))
    for spec in dict.fromkeys(each.name for each in specs.values() if each):
        named = next(each for each in specs.values() if each and each.name == spec)
        tell(good("key", f"{spec}: {_key_source(named, environ)}"))
    return specs


def _key_source(spec: ModelSpec, environ: Mapping[str, str]) -> str:
    """Return where the model's key comes from. The key itself is never shown."""
    prefix = spec.name.partition("/")[0]
    found = (name for name in key_variables(prefix) if (environ.get(name) or "").strip() == spec.api_key)
    if spec.api_key:
        return f"{next(found, 'provider_options.api_key')} is set"
    needless = "none is set, and none is needed"
    return needless if spec.base_url else "litellm finds it by itself, or needs none"


async def check_models(specs: Specs, tell: Tell) -> None:
    """Send each model one tiny question; a model with several roles gets one question."""
    if len(specs) == len(ROLES) and not any(specs.values()):
        tell(left_open("model", "none is configured: users follow rules, no judge is asked", _NO_MODEL))
        return
    by_spec: dict[int, tuple[ModelSpec, list[str]]] = {}
    for role, spec in specs.items():
        if spec is None:
            tell(left_open("model", f"{role}: none is configured", _NO_MODEL))
            continue
        where = spec.model, spec.base_url
        same = next((roles for each, roles in by_spec.values() if (each.model, each.base_url) == where), None)
        by_spec.setdefault(id(spec), (spec, [role])) if same is None else same.append(role)
    for spec, roles in by_spec.values():
        tell(await _check_model(spec, roles))


async def _check_model(spec: ModelSpec, roles: Sequence[str]) -> Check:
    terms = ModelTerms(concurrency=1)
    patient = replace(
        spec,
        timeout_s=min(spec.timeout_s, _PATIENCE_S),
        deadline_s=min(spec.deadline_s, _PATIENCE_S),
        retries=min(spec.retries, 1),
    )
    who = f"{spec.name} ({' and '.join(roles)})"
    messages = [{"role": "user", "content": _QUESTION}]
    try:
        async with open_models(None, patient, terms) as models:
            assert isinstance(models.judge, StructuredModel)
            await models.judge.ask(messages, ReachableAnswer, CallKey("judge", _SCOPE))
            level = models.judge.level
    except (ModelError, ConfigError) as error:
        cost = _usage_text(terms.ledger.of(_SCOPE))
        return bad("model", f"{who} gave no answer{cost}", shortened(str(error), 600))
    form = _LEVELS[level] if level is not None else ""
    return good("model", f"{who} answers {form}{_usage_text(terms.ledger.of(_SCOPE))}")


def _usage_text(used: Mapping[str, ModelUsage]) -> str:
    total = sum(used.values(), ModelUsage())
    told = [count(total.calls, "call")]
    if total.tokens.total_tokens:
        told.append(f"{total.tokens.total_tokens:,} tokens")
        told.append("price not known" if total.cost is None else f"{total.cost:.5f} USD")
    return f" ({', '.join(told)})" if total.calls else ""


_OF_USER = Usage(800, 60)
_OF_JUDGE = {
    Batch.OFF: Usage(1_500, 120),
    Batch.TURN: Usage(2_700, 700),
    Batch.CONVERSATION: Usage(3_800, 2_500),
}
"""Tokens per call: those of the prompts in docs/metrics.md, for a conversation of four turns."""


def check_price(plan: Plan, config: Config, specs: Specs, expected: str = "") -> Check:
    """Report the maximum number of model calls of a run, and their cost.

    Args:
        expected: expected usage of a run, estimated from an earlier one, in words; "" if unknown.
    """
    most = _max_price_check(plan, config, specs)
    if not expected or not any(specs.values()):
        return most
    return good("price", expected, f"{most.text[0].upper()}{most.text[1:]}. {_LIMIT}")


def _max_price_check(plan: Plan, config: Config, specs: Specs) -> Check:
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
    """Return the cost of the calls; None if the price is unknown."""
    if spec is None or not calls:
        return 0.0
    price = price_of(spec.name) if spec.priced else None
    return price.cost(each) * calls if price else None
