"""`agentest doctor`: check everything that a run needs, in the order in which the run needs it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import partial
from inspect import isawaitable
from pathlib import Path

from pydantic import BaseModel

from agentest.config.config import Config
from agentest.config.file import LoadedConfig
from agentest.config.models import Batch
from agentest.domain.results import ModelUsage
from agentest.domain.transcript import Usage
from agentest.models.admission import LocalGates
from agentest.models.budget import price_of
from agentest.models.factory import ModelTerms, open_models
from agentest.models.port import CallKey, Level
from agentest.models.providers import MissingAccess, ModelSpec, key_variables, resolve, resolve_confirming
from agentest.models.structured_output import StructuredModel
from agentest.plugin import PLUGINS
from agentest.runner.plan import Plan, make_plan
from agentest.runner.prepare import (
    CONFIRM,
    MODEL_VARIABLE,
    Prepared,
    RunRequest,
    configure,
    discover_scenarios,
)
from agentest.runner.run_budget import estimate
from agentest.support.errors import ConfigError, ModelError, UsageError
from agentest.support.files import path_from, shown_path
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.redaction import Redactor, environment_secrets
from agentest.support.text import count, shortened


class CheckOutcome(Enum):
    """The outcome of a check."""

    GOOD = "good"
    BAD = "bad"  # a run would not start, or would be errored
    OPEN = "open"  # the check was skipped or is inconclusive


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the doctor's output."""

    mark: CheckOutcome
    name: str  # the subject, in one or two words
    text: str  # the finding
    advice: str = ""  # the next step, in rows; "" if there is nothing to do
    leaves_doubt: bool = False  # True if a run cannot be called ready before this is known


good = partial(Check, CheckOutcome.GOOD)
bad = partial(Check, CheckOutcome.BAD)
left_open = partial(Check, CheckOutcome.OPEN)
Tell = Callable[[Check], None]  # receives each check as soon as it is complete


@dataclass(slots=True, kw_only=True)
class Examination:
    """The subjects of the checks of one `agentest doctor`, and where they report."""

    request: RunRequest
    loaded: LoadedConfig
    environ: MutableMapping[str, str]
    tell: Tell
    say: Callable[[str], object]  # receives a message about each long wait
    expected: Callable[[Prepared], str]
    """Returns the expected usage of a run, estimated from an earlier one, in words; "" if unknown."""
    interleave: bool  # True to run two conversations at once with agents that were running already, too
    plan: Plan | None = None  # what a run would do; None if no plan is possible


def subject(what: str, agent: str) -> str:
    """Return the name of a check about an agent, which names the agent unless it is the only one."""
    return f"{what} {agent}" if agent != "agent" else what


Specs = Mapping[str, ModelSpec | None]  # role → its model; None if offline
_SCOPE = "doctor"
ROLES = ("user", "judge")
_QUESTION = "This is a test of the connection. Answer that you are reachable: true."
_PATIENCE_S = 20.0
_LEVELS = {
    Level.SCHEMA: "with a JSON Schema",
    Level.JSON_MODE: "in JSON mode: it does not support JSON Schemas",
    Level.PROMPT: "as the prompt alone requests: it does not support structured output",
}
_NO_MODEL = "Runs are offline until `model` names one (or --model, AGENTEST_MODEL), like openai/gpt-5-mini."


class ReachableAnswer(BaseModel):
    """The answer to the question whether a model can be reached."""

    reachable: bool


def resolved(
    loaded: LoadedConfig, request: RunRequest, environ: MutableMapping[str, str], tell: Tell
) -> Specs:
    """Resolve the models of all roles that can be called, and report on their keys."""
    override = request.options.model or environ.get(MODEL_VARIABLE) or None
    config = loaded.config
    specs: dict[str, ModelSpec | None] = {}
    problems: dict[str, str] = {}

    def resolve_role(role: str, spec_of: Callable[[], ModelSpec | None], prefix: str = "") -> None:
        try:
            specs[role] = spec_of()
        except ConfigError as error:
            problems[f"{prefix}{error}"] = "key" if isinstance(error, MissingAccess) else "model"

    resolve_role("user", lambda: resolve(config, config.user, environ, override))
    resolve_role("judge", lambda: resolve(config, config.judge, environ, override))
    if specs.get("judge") and config.judge.confirm:
        resolve_role(CONFIRM, lambda: resolve_confirming(config, environ, override), f"{CONFIRM}: ")
    for problem, what in problems.items():
        tell(bad(what, problem))
    named: dict[str, ModelSpec] = {}
    for spec in specs.values():
        if spec and named.setdefault(spec.name, spec) is spec:
            tell(good("key", f"{spec.name}: {_key_source(spec, environ)}"))
    return specs


def _key_source(spec: ModelSpec, environ: Mapping[str, str]) -> str:
    prefix = spec.name.partition("/")[0]
    variables = (name for name in key_variables(prefix) if (environ.get(name) or "").strip() == spec.api_key)
    if spec.api_key:
        return f"{next(variables, 'provider_options.api_key')} is set"
    needless = "none is set, and none is needed"
    return needless if spec.base_url else "litellm finds it on its own, or needs none"


async def check_models(specs: Specs, tell: Tell) -> None:
    """Send each model one tiny question; a model with several roles gets one question."""
    if len(specs) == len(ROLES) and not any(specs.values()):
        tell(left_open("model", "none is configured: users follow rules, no judge is called", _NO_MODEL))
        return
    groups: dict[tuple[str, str | None], tuple[ModelSpec, list[str]]] = {}
    for role, spec in specs.items():
        if spec is None:
            tell(left_open("model", f"{role}: none is configured", _NO_MODEL))
        else:
            groups.setdefault((spec.model, spec.base_url), (spec, []))[1].append(role)
    for spec, roles in groups.values():
        tell(await _check_model(spec, roles))


async def _check_model(spec: ModelSpec, roles: Sequence[str]) -> Check:
    terms = ModelTerms(LocalGates(1))
    fast = replace(
        spec,
        timeout_s=min(spec.timeout_s, _PATIENCE_S),
        deadline_s=min(spec.deadline_s, _PATIENCE_S),
        retries=min(spec.retries, 1),
    )
    who = f"{spec.name} ({' and '.join(roles)})"
    messages = [{"role": "user", "content": _QUESTION}]
    try:
        async with open_models(None, fast, terms) as models:
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
    parts = [count(total.calls, "call")]
    if total.tokens.total_tokens:
        parts.append(f"{total.tokens.total_tokens:,} tokens")
        parts.append("price not known" if total.cost is None else f"{total.cost:.5f} USD")
    return f" ({', '.join(parts)})" if total.calls else ""


_OF_USER = Usage(800, 60)
_OF_JUDGE = {
    Batch.OFF: Usage(1_500, 120),
    Batch.TURN: Usage(2_700, 700),
    Batch.CONVERSATION: Usage(3_800, 2_500),
}
"""Tokens per call: those of the prompts in docs/judges.md, for a conversation of four turns."""


def check_price(plan: Plan, config: Config, specs: Specs, expected: str = "") -> Check:
    """Report the maximum number of model calls of a run, their cost, and an estimate from an earlier run."""
    most = _max_price_check(plan, config, specs)
    if not expected or not any(specs.values()):
        return most
    return good("price", expected, f"{most.text[0].upper()}{most.text[1:]}. {_LIMIT}")


def _max_price_check(plan: Plan, config: Config, specs: Specs) -> Check:
    user, judge = specs.get("user"), specs.get("judge")
    if not (user or judge):
        return good("price", "nothing: no model is called")
    settings = config.judge
    count = partial(
        estimate,
        plan.units,
        user=user is not None,
        judge=settings if judge else None,
        user_checks=config.user.checked_attempts(strict=config.strict),
    )
    estimates, confirm = count(), specs.get(CONFIRM)
    calls = {"user": sum(e.user for e in estimates), "judge": sum(e.judge + e.dedup for e in estimates)}
    text = f"at most {calls['user']:,} calls of the user's model and {calls['judge']:,} of the judge's"
    costs = [_cost(user, calls["user"], _OF_USER), _cost(judge, calls["judge"], _OF_JUDGE[settings.batch])]
    if confirm:
        second = sum(e.judge + e.dedup for e in count(confirm=True)) - calls["judge"]
        text += f", and {second:,} of the model that confirms it"
        together = Batch.TURN if settings.batch is Batch.OFF else settings.batch
        costs.append(_cost(confirm, second, _OF_JUDGE[together]))
    if None in costs:
        return left_open("price", f"{text}; their cost is unknown")
    total = sum(cost for cost in costs if cost is not None)
    return good("price", f"{text}: about {total:.2f} USD if all are made", _LESS)


_LIMIT = "--max-cost USD is the limit, --dry-run shows each scenario."
_LESS = f"Most runs cost less, because conversations end early. {_LIMIT}"


def _cost(spec: ModelSpec | None, calls: int, each: Usage) -> float | None:
    if spec is None or not calls:
        return 0.0
    price = price_of(spec.name) if spec.priced else None
    return price.cost(each) * calls if price else None


async def run_checks(
    request: RunRequest,
    tell: Tell,
    environ: MutableMapping[str, str] = os.environ,
    *,
    say: Callable[[str], object] = lambda _: None,
    expected: Callable[[Prepared], str] = lambda _: "",
    interleave: bool = False,
) -> int:
    """Run all checks, report each as soon as it is complete, and return the number of failures.

    Agents' servers are started and stopped. Each configured model answers one question, unless the request is
    offline. `Examination` describes the other arguments.
    """
    redact, failures = Redactor(environment_secrets(environ)), 0

    def findings(check: Check) -> None:
        nonlocal failures
        failures += check.mark is CheckOutcome.BAD
        tell(replace(check, text=redact(check.text), advice=redact(check.advice)))

    try:
        loaded = configure(request, environ)
    except UsageError as error:
        findings(bad("configuration", str(error)))
        findings(left_open("the rest", "was not checked, because it depends on the configuration"))
        return failures
    findings(good("configuration", path_from(request.here or request.root, loaded.path)))
    redact = loaded.redact.knowing(environment_secrets(environ))  # `.env` was read
    examination = Examination(
        request=request,
        loaded=loaded,
        environ=environ,
        tell=findings,
        say=say,
        expected=expected,
        interleave=interleave,
    )
    for name, check in PLUGINS.all("check").items():
        try:
            checking = check.load()(examination)
            if isawaitable(checking):
                await checking
        except UsageError as error:
            findings(bad(name, str(error)))
        except Exception as error:  # noqa: BLE001 - the others are still worth a look
            findings(bad(name, str(check.problem("failed", error))))
    return failures


async def check_models_and_price(run: Examination) -> None:
    """Send each model one question, and report what a run may cost."""
    if run.request.options.offline:
        run.tell(left_open("model", "not checked: --offline"))
        return
    specs = resolved(run.loaded, run.request, run.environ, run.tell)
    await check_models(specs, run.tell)
    if run.plan is not None and specs.keys() >= set(ROLES):
        prepared = Prepared(
            run.request,
            run.loaded,
            run.plan,
            (),
            user=specs["user"],
            judge=specs["judge"],
            confirm=specs.get(CONFIRM),
        )
        run.tell(check_price(run.plan, run.loaded.config, specs, run.expected(prepared)))


_LEAST_FREE_BYTES = 100_000_000
_GB = 1_000_000_000


def check_scenarios(run: Examination) -> None:
    """Plan all scenarios that can be loaded. Raises UsageError if no plan is possible."""
    request, loaded, tell = run.request, run.loaded, run.tell
    discovered = discover_scenarios(request, loaded)
    run.plan = make_plan(loaded, discovered, request.options, request.root)
    for file, line, message in discovered.problems:
        # Of a traceback, the last row has the reason.
        first, *_, last = [row for row in message.splitlines() if row.strip()] * 2
        why = first if first == last else f"{first}: {last.strip()}"
        tell(bad("scenarios", f"{shown_path(file, request.root)}:{line}: {why}"))
    usable = [scenario for scenario in discovered.scenarios if not scenario.refused]
    if usable:
        files = len({scenario.file for scenario in usable})
        tell(good("scenarios", f"{count(len(usable), 'scenario')} in {count(files, 'file')}"))
    elif not discovered.problems:
        include = ", ".join(loaded.config.include)
        why = f"none: no file that matches {include} (`include`) calls scenario(…)"
        tell(bad("scenarios", why, "agentest init writes a first one."))


def check_output(run: Examination) -> None:
    """Check that reports can be written, which leaves no files behind, and that git ignores them."""
    config, root = run.loaded.config, run.request.root
    run.tell(_check_writable(config, root))
    if ignored := _check_ignored(config, root):
        run.tell(ignored)


def _check_writable(config: Config, root: Path) -> Check:
    folder = root / config.output_dir
    existing = next(each for each in (folder, *folder.parents) if each.exists())
    name = shown_path(folder, root)
    try:
        with tempfile.TemporaryFile(dir=existing):
            free = shutil.disk_usage(existing).free
    except OSError as error:
        why = f"{name} cannot be written to: {error.strerror or error}"
        return bad("output", why, "Check its permissions, or name another folder with `output_dir`.")
    text = f"{name} can be written to, {free / _GB:.1f} GB free"
    if free < _LEAST_FREE_BYTES:
        return bad("output", text, "Free some space: a run stores every conversation.")
    return good("output", text)


def _check_ignored(config: Config, root: Path) -> Check | None:
    if not (root / ".git").exists() or Path(config.output_dir).is_absolute():
        return None
    try:
        text = (root / ".gitignore").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    name = config.output_dir.strip("./")
    if name in text:
        return None
    return left_open("git", f"{config.output_dir} is not in .gitignore", "agentest init adds it.")
