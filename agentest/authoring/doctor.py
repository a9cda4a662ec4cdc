"""`agentest doctor`: check everything that a run needs, in the order in which the run needs it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from enum import Enum
from functools import partial
from pathlib import Path

import anyio
from pydantic import BaseModel

from agentest.agents.advice import detect_within_limit, is_at
from agentest.agents.error_hints import ProbeResponse, hint
from agentest.agents.http_sender import endpoint_probe_of
from agentest.agents.response_features import (
    DetectedProtocol,
    is_missing_model_error,
    missing_fields,
    missing_headers,
    settings_line,
    suggest_for_fields,
)
from agentest.authoring.endpoint_detection import LOGIN, is_login, misses, tls_problem
from agentest.config.agent_types import AgentConfig, advice_for_unseen_calls, visibility_of_agent
from agentest.config.agents.over_http import HttpAgent
from agentest.config.config import Config
from agentest.config.file import LoadedConfig
from agentest.config.models import Batch
from agentest.domain.results import ModelUsage
from agentest.domain.tool_visibility import ToolVisibility
from agentest.domain.transcript import Usage
from agentest.models.budget import price_of
from agentest.models.factory import ModelTerms, open_models
from agentest.models.port import CallKey, Level
from agentest.models.providers import MissingAccess, ModelSpec, key_variables, resolve, resolve_confirming
from agentest.models.structured_output import StructuredModel
from agentest.runner.agents import StartedServers, check_mocks, connected_agents, start_servers, with_ports
from agentest.runner.plan import Plan, agents_under_test, make_plan
from agentest.runner.prepare import (
    CONFIRM,
    MODEL_VARIABLE,
    Prepared,
    RunRequest,
    configure,
    discover_scenarios,
    managed_servers_of,
)
from agentest.runner.run_budget import estimate
from agentest.runner.tools import TYPES_WITH_TOOLS_ON_EITHER_SIDE
from agentest.support.errors import ConfigError, ModelError, UsageError
from agentest.support.files import path_from, shown_path
from agentest.support.http.client import Client
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.redaction import Redactor, environment_secrets
from agentest.support.text import count, shortened


class CheckOutcome(Enum):
    """The outcome of a check."""

    GOOD = "good"
    BAD = "bad"
    """A run would not start, or would be errored."""
    OPEN = "open"
    """The check was skipped or is inconclusive."""


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the doctor's output."""

    mark: CheckOutcome
    name: str
    """The subject, in one or two words."""
    text: str
    """The finding."""
    advice: str = ""
    """The next step, in rows; "" if there is nothing to do."""


good = partial(Check, CheckOutcome.GOOD)
bad = partial(Check, CheckOutcome.BAD)
left_open = partial(Check, CheckOutcome.OPEN)
Tell = Callable[[Check], None]
"""Receives each check as soon as it is complete."""


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
    """Return where the model's key comes from. The key itself is never shown."""
    prefix = spec.name.partition("/")[0]
    variables = (name for name in key_variables(prefix) if (environ.get(name) or "").strip() == spec.api_key)
    if spec.api_key:
        return f"{next(variables, 'provider_options.api_key')} is set"
    needless = "none is set, and none is needed"
    return needless if spec.base_url else "litellm finds it by itself, or needs none"


async def check_models(specs: Specs, tell: Tell) -> None:
    """Send each model one tiny question; a model with several roles gets one question."""
    if len(specs) == len(ROLES) and not any(specs.values()):
        tell(left_open("model", "none is configured: users follow rules, no judge is asked", _NO_MODEL))
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
    terms = ModelTerms(concurrency=1)
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
"""Tokens per call: those of the prompts in docs/metrics.md, for a conversation of four turns."""


def check_price(plan: Plan, config: Config, specs: Specs, expected: str = "") -> Check:
    """Report the maximum number of model calls of a run, their cost, and an estimate from an earlier run."""
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
    text = f"at most {calls['user']:,} calls of the user's model and {calls['judge']:,} of the judge's"
    costs = [_cost(user, calls["user"], _OF_USER), _cost(judge, calls["judge"], _OF_JUDGE[settings.batch])]
    if confirm:
        second = sum(e.judge + e.dedup for e in count(confirm=True)) - calls["judge"]
        text += f", and {second:,} of the model that confirms it"
        together = Batch.TURN if settings.batch is Batch.OFF else settings.batch
        costs.append(_cost(confirm, second, _OF_JUDGE[together]))
    if None in costs:
        return left_open("price", f"{text}; what they cost is not known")
    total = sum(cost for cost in costs if cost is not None)
    return good("price", f"{text}: some {total:.2f} USD, if all are made", _LESS)


_LIMIT = "--max-cost USD is the limit, --dry-run shows each scenario."
_LESS = f"Mostly it is less: conversations end early. {_LIMIT}"


def _cost(spec: ModelSpec | None, calls: int, each: Usage) -> float | None:
    if spec is None or not calls:
        return 0.0
    price = price_of(spec.name) if spec.priced else None
    return price.cost(each) * calls if price else None


_OPENING_S = 10.0
_CUSTOM_FORMAT_TYPES = ("http", "websocket")
"""Types whose request format is configured, so that they can talk to endpoints of other types, too."""
_VISIBILITY_TEXTS = {
    ToolVisibility.RETURNED: (
        "not seen yet: a run shows whether the agent hands them over, so that mocks answer them"
    ),
    ToolVisibility.REPORTED: "seen: {who} of them",
    ToolVisibility.PARTIAL: "partly seen: {who} of theirs, and the agent may have other tools",
    ToolVisibility.UNSEEN: "not seen: nothing tells of them",
}


@dataclass(frozen=True, slots=True)
class AgentToCheck:
    """One agent to check, with the part of the plan that uses it."""

    name: str
    config: AgentConfig
    plan: Plan
    """The plan for this agent only."""


def agents_to_check(request: RunRequest, loaded: LoadedConfig, plan: Plan | None) -> list[AgentToCheck]:
    """Return the agents to check: the requested one, else all of the configuration. Raises ConfigError."""
    names, known = agents_under_test(loaded.config, request.options.agent)
    wanted = names if request.options.agent else dict.fromkeys((*names, *known))
    agents = []
    for name in wanted:
        units = tuple(unit for unit in plan.units if unit.agent == name) if plan else ()
        agents.append(AgentToCheck(name, known[name], Plan(units, {name: known[name]}, False, units=units)))
    return agents


async def check_agent(
    checked: AgentToCheck, request: RunRequest, loaded: LoadedConfig, tell: Tell, say: Callable[[str], object]
) -> None:
    """Start the agent if necessary, check it, and stop whatever was started. `say` reports long waits."""
    calls = check_calls(checked)
    notes: list[str] = []
    to_set = _tell_gateway(checked, tell) if checked.config.model_gateway else []
    servers = managed_servers_of(loaded.config, {checked.name: checked.config}, loaded.redact)
    wanted = Prepared(request, loaded, _startable_plan(checked), (), managed_servers=servers)
    async with anyio.create_task_group() as tasks:
        async with AsyncExitStack() as stack:
            try:
                prepared = stack.enter_context(with_ports(wanted))
                started = await start_servers(prepared, stack, tasks, notes.append, say=say)
                with anyio.move_on_after(_OPENING_S):  # imports what a run would import
                    await connected_agents(prepared, started.client, stack, notes.append)
                agent = prepared.plan.agents[checked.name]
                http = agent if isinstance(agent, HttpAgent) and agent.app is None else None
                if http and (problem := await tls_problem(http.address, started.client)):
                    raise UsageError(f"{http.address}: {problem}")
                tell(good(_subject("agent", checked), _response_text(checked, notes)))
                if http:
                    tell(await _check_protocol(_subject("protocol", checked), http, started.client))
                if to_set:
                    limit_s = loaded.config.request_timeout_ms / 1000
                    tell(await _check_gateway(checked, started, limit_s, say))
            except UsageError as error:  # a task group would wrap the error
                tell(bad(_subject("agent", checked), str(error)))
        tasks.cancel_scope.cancel()
    tell(calls)


def _tell_gateway(checked: AgentToCheck, tell: Tell) -> list[str]:
    """Report how the agent learns the gateway's address. Returns the lines that its owner has to set."""
    from agentest.runner.gateway_setup import how_told, lines_to_set

    text, lines = how_told(checked.config), lines_to_set(checked.config)
    tell((left_open if lines else good)(_subject("gateway", checked), text, "\n".join(lines)))
    return lines


async def _check_gateway(
    checked: AgentToCheck, started: StartedServers, limit_s: float, say: Callable[[str], object]
) -> Check:
    from agentest.runner.gateway_setup import has_called_model, lines_by_framework

    name = _subject("gateway", checked)
    say(f"waiting for the agent to call its model, at most {limit_s:g} s: send it a message")
    if await has_called_model(started, checked.name, limit_s):
        return good(name, "a request of the agent to its model arrived")
    advice = "\n".join(lines_by_framework(checked.config))
    return left_open(name, f"no request to a model arrived within {limit_s:g} s", advice)


def _startable_plan(checked: AgentToCheck) -> Plan:
    """Return the plan, without scenarios if their mocks prevent a start; that is reported separately."""
    try:
        check_mocks(checked.plan)
    except UsageError:
        return replace(checked.plan, entries=(), units=())
    return checked.plan


def _subject(what: str, checked: AgentToCheck) -> str:
    return f"{what} {checked.name}" if checked.name != "agent" else what


def _response_text(checked: AgentToCheck, notes: Sequence[str]) -> str:
    agent = checked.config
    if not isinstance(agent, HttpAgent) or agent.app is not None:
        return f"{agent.address}, type {agent.type}"
    ready = agent.server.ready if agent.server else ""
    was_running = any(f"at {ready} was running already" in note for note in notes)
    how = "; its server was running already" if was_running else "; its `server` was started"
    return f"{agent.address} answers{how if agent.server else ''}"


async def _check_protocol(name: str, agent: HttpAgent, client: Client) -> Check:
    probe = endpoint_probe_of(agent, client)
    detected = await detect_within_limit(probe, agent.type)
    at_endpoint = next((each for each in detected if is_at(each, probe.url)), None)
    if at_endpoint is not None:
        return _check_of_found_protocol(name, agent, at_endpoint, await probe.post_nothing())
    at_other_path = next(
        (each for each in detected if each.settings["type"] == agent.type), next(iter(detected), None)
    )
    return _check_of_unknown_protocol(name, agent, await probe.post_nothing(), at_other_path)


def _check_of_found_protocol(
    name: str, agent: HttpAgent, finding: DetectedProtocol, response: ProbeResponse | None
) -> Check:
    detected_type = str(finding.settings["type"])
    because = shortened(finding.because)
    if problem := _refusal(response, agent):
        return bad(name, f"{detected_type}: {because}; but {problem[0]}", problem[1])
    if detected_type == agent.type:
        return good(name, f"{agent.type}, as configured: {because}")
    if agent.type in _CUSTOM_FORMAT_TYPES:
        return left_open(name, f"{agent.type}, as configured; it speaks {detected_type}, too: {because}")
    text = f"it speaks {detected_type}, and the configuration says {agent.type}: {because}"
    return bad(name, text, _advice_to_write(finding))


def _check_of_unknown_protocol(
    name: str, agent: HttpAgent, response: ProbeResponse | None, at_other_path: DetectedProtocol | None
) -> Check:
    if missed := misses(response, agent.type):
        return good(name, f"{agent.type}, as configured: it misses `{missed}` in an empty request")
    if refusal := _refusal(response, agent):
        return bad(name, f"{agent.type} is configured, and {refusal[0]}", refusal[1])
    status = f"it answers an empty request {f'with status {response.status}' if response else 'in no way'}"
    if response is not None and (problem := _endpoint_problem(agent, response)):
        return bad(name, f"{agent.type} is configured, and {status}", f"{problem[0].upper()}{problem[1:]}")
    is_absent = response is not None and response.status in (404, 405)
    if is_absent and agent.type not in _CUSTOM_FORMAT_TYPES:
        advice = _advice_to_write(at_other_path) if at_other_path else f"Nothing is there. {_PATH_ADVICE}"
        return bad(name, f"{agent.type} is configured, and {status}", advice)
    also = f" Elsewhere at this server: {settings_line(at_other_path.settings)}" if at_other_path else ""
    return left_open(
        name, f"{agent.type} is configured; {status}, which tells no protocol", _RUN_ADVICE + also
    )


def _refusal(response: ProbeResponse | None, agent: HttpAgent) -> tuple[str, str] | None:
    """Return why every request would be refused like the empty one, and what to do; None if not."""
    if response is None:
        return None
    names_model = agent.type in _CUSTOM_FORMAT_TYPES or "model" in getattr(agent, "body", {})
    if is_missing_model_error(response) and not names_model:
        return "it asks for the name of a model", "Write: body: {model: …}"
    if response.status in (401, 403):
        why = f"it answers an empty request with status {response.status}"
        return why, hint(response.status, "").capitalize()
    if names := missing_headers(response.json):
        why = f"it asks for {count(len(names), 'header')} that it does not get"
        return why, f"Write: headers: {{{', '.join(f'{name}: …' for name in names)}}}"
    return None


def _endpoint_problem(agent: HttpAgent, response: ProbeResponse) -> str:
    """Return why the endpoint cannot answer requests of the agent's type; "" if that is unknown."""
    if is_login(response):
        return f"{LOGIN}."
    missing = () if agent.type in _CUSTOM_FORMAT_TYPES else missing_fields(response.json)
    return f"{suggest_for_fields(missing)}." if missing else ""


_VISIBILITY_ADVICE = (
    "Scenarios that judge what is said need no more. docs/agents.md says how calls can be seen."
)
_EITHER_SIDE_ADVICE = (
    "Its protocol allows tools on either side: scenarios with mocks begin with one conversation alone, and a "
    "real tool that runs in place of a mock stops the run."
)
_PATH_ADVICE = "Is the path of `endpoint` right? docs/agents.md says where agents of each type usually are."
_RUN_ADVICE = "A run will tell: agentest run --scenario TEXT runs one scenario."


def _advice_to_write(finding: DetectedProtocol) -> str:
    return f"Write: agent: {{{settings_line(finding.settings)}}}"


def check_calls(checked: AgentToCheck) -> Check:
    agent, name = checked.config, _subject("tool calls", checked)
    visibility = visibility_of_agent(agent)
    try:
        check_mocks(checked.plan)
    except UsageError as error:
        return bad(name, str(error))
    text = _VISIBILITY_TEXTS[visibility].format(who=" and ".join(_visibility_sources(agent)))
    if visibility is ToolVisibility.RETURNED:
        either_side = agent.type in TYPES_WITH_TOOLS_ON_EITHER_SIDE
        return left_open(name, text, _EITHER_SIDE_ADVICE if either_side else "")
    if visibility is not ToolVisibility.UNSEEN:
        return good(name, text)
    judged = [unit for unit in checked.plan.units if unit.scenario.speaks_of_calls]
    if judged:
        ways = advice_for_unseen_calls(checked.name, agent)
        return bad(name, f"{text}, and {judged[0].scenario.name!r} judges them", ways)
    return left_open(name, text, _VISIBILITY_ADVICE)


def _visibility_sources(agent: AgentConfig) -> Iterator[str]:
    if agent.natural_visibility is ToolVisibility.REPORTED:
        yield "its protocol tells"
    if agent.mock_servers:
        yield "mock servers tell"
    if agent.model_gateway:
        yield "its model gateway tells"
    if "traces" in agent.beside:
        yield "its traces tell"


async def run_checks(
    request: RunRequest,
    tell: Tell,
    environ: MutableMapping[str, str] = os.environ,
    *,
    say: Callable[[str], object] = lambda _: None,
    expected: Callable[[Prepared], str] = lambda _: "",
) -> int:
    """Run all checks, report each as soon as it is complete, and return the number of failures.

    Agents' servers are started and stopped. Each configured model answers one question, unless the request is
    offline.

    Args:
        say: receives a message about each long wait.
        expected: expected usage of a run, estimated from an earlier one, in words; "" if unknown.
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
        findings(left_open("the rest", "was not looked at: it stands in the configuration"))
        return failures
    findings(good("configuration", path_from(request.here or request.root, loaded.path)))
    redact = loaded.redact.knowing(environment_secrets(environ))  # `.env` was read
    plan = check_scenarios(request, loaded, findings)
    findings(check_output(loaded.config, request.root))
    if ignored := check_ignored(loaded.config, request.root):
        findings(ignored)
    try:
        agents = agents_to_check(request, loaded, plan)
    except UsageError as error:
        findings(bad("agent", str(error)))
        agents = []
    for agent in agents:
        await check_agent(agent, request, loaded, findings, say)
    if request.options.offline:
        findings(left_open("model", "not asked: --offline"))
        return failures
    specs = resolved(loaded, request, environ, findings)
    await check_models(specs, findings)
    if plan is not None and specs.keys() >= set(ROLES):
        confirm = specs.get(CONFIRM)
        run = Prepared(request, loaded, plan, (), user=specs["user"], judge=specs["judge"], confirm=confirm)
        findings(check_price(plan, loaded.config, specs, expected(run)))
    return failures


_LEAST_FREE_BYTES = 100_000_000
_GB = 1_000_000_000


def check_scenarios(request: RunRequest, loaded: LoadedConfig, tell: Tell) -> Plan | None:
    """Plan all scenarios that can be loaded; return None if no plan is possible."""
    try:
        discovered = discover_scenarios(request, loaded)
        plan = make_plan(loaded.config, discovered, request.options, request.root)
    except UsageError as error:
        tell(bad("scenarios", str(error)))
        return None
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
    return plan


def check_output(config: Config, root: Path) -> Check:
    """Check that reports can be written. Leaves no files behind."""
    folder = root / config.output_dir
    existing = next(each for each in (folder, *folder.parents) if each.exists())
    name = shown_path(folder, root)
    try:
        with tempfile.TemporaryFile(dir=existing):
            free = shutil.disk_usage(existing).free
    except OSError as error:
        why = f"{name} cannot be written to: {error.strerror or error}"
        return bad("output", why, "See to its permissions, or name another folder with `output_dir`.")
    text = f"{name} can be written to, {free / _GB:.1f} GB free"
    if free < _LEAST_FREE_BYTES:
        return bad("output", text, "Make room: a run keeps every conversation.")
    return good("output", text)


def check_ignored(config: Config, root: Path) -> Check | None:
    """Check that git ignores the files of runs; return None if it does, or without a repository."""
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
