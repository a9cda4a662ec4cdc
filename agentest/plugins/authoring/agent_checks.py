"""Check the agents of a configuration: start them, send them a message, and report what came back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import anyio

from agentest.agents.configuration_advice import detect_within_limit, is_at, login_advice
from agentest.agents.http.client import NO_TIES
from agentest.agents.http_sender import endpoint_probe_of
from agentest.agents.port import Agent, AgentReply, of_lane
from agentest.agents.protocol_probe import (
    DetectedProtocol,
    is_absent,
    settings_line,
)
from agentest.config.agent_types import AgentConfig, advice_for_unseen_calls, visibility_of_agent
from agentest.config.agents.http import HttpTemplateAgent
from agentest.config.agents.over_http import HttpAgent
from agentest.config.file import LoadedConfig
from agentest.domain.tool_visibility import ToolVisibility
from agentest.plugins.authoring.api_inference import REQUESTS_ADVICE, UNKNOWN_CONVERSATION
from agentest.plugins.authoring.doctor import Check, Examination, Tell, bad, good, left_open, subject
from agentest.plugins.authoring.endpoint_detection import missing_settings, tls_problem
from agentest.plugins.page.talk.talk import ShortTalk, short_talk
from agentest.plugins.servers import gateway_check
from agentest.runner.agents import check_mocks, connected_agents, start_servers, with_ports
from agentest.runner.call_sources import CallObservations, ServerReports
from agentest.runner.plan import Plan, agents_under_test
from agentest.runner.prepare import Prepared, RunRequest, managed_servers_of
from agentest.support.errors import AgentError, CannotSend, UsageError
from agentest.support.http.client import Client
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import shortened

_OPENING_S = 10.0
_HELLO = "Hello."
_DETECTION_S = 60.0
_SHOWN_CHARS = 80
NewTalk = Callable[..., AbstractAsyncContextManager[ShortTalk]]
_VISIBILITY_TEXTS = {
    ToolVisibility.RETURNED: "none was handed over in the answer",
    ToolVisibility.REPORTED: "reported by {sources}",
    ToolVisibility.PARTIAL: "partly seen: reported by {sources}, and the agent may have other tools\n"
    "If it has none, write tool_visibility: reported, so that strict expectations can be judged.",
    ToolVisibility.UNSEEN: "not visible: nothing reports them",
}


@dataclass(frozen=True, slots=True)
class AgentToCheck:
    """One agent to check, with the part of the plan that uses it."""

    name: str
    config: AgentConfig
    plan: Plan  # the plan for this agent only


def agents_to_check(request: RunRequest, loaded: LoadedConfig, plan: Plan | None) -> Iterator[AgentToCheck]:
    """Yield the agents to check: the requested one, else all of the configuration. Raises ConfigError."""
    names, known = agents_under_test(loaded.config, request.options.agent)
    wanted = names if request.options.agent else dict.fromkeys((*names, *known))
    for name in wanted:
        units = tuple(unit for unit in plan.units if unit.agent == name) if plan else ()
        yield AgentToCheck(name, known[name], Plan(units, {name: known[name]}, False, units=units))


async def check_agents(run: Examination) -> None:
    """Check each agent of the configuration, or the requested one. Raises ConfigError."""
    for agent in agents_to_check(run.request, run.loaded, run.plan):
        await _check_agent(agent, run)


async def _check_agent(checked: AgentToCheck, run: Examination) -> None:
    request, loaded, tell, say, wants_talk = run.request, run.loaded, run.tell, run.say, run.interleave
    notes: list[str] = []
    reply: AgentReply | None = None
    observed = CallObservations()
    to_set = _tell_gateway(checked, run) if checked.config.model_gateway else []
    servers = managed_servers_of(loaded.config, {checked.name: checked.config}, loaded.redact)
    wanted = Prepared(request, loaded, _startable_plan(checked), (), managed_servers=servers)
    async with anyio.create_task_group() as tasks:
        async with AsyncExitStack() as stack:
            try:
                prepared = stack.enter_context(with_ports(wanted))
                reports = ServerReports(on_note=notes.append, say=say, observed=observed)
                started = await start_servers(prepared, stack, tasks, reports)
                opened: Mapping[str, Agent] = {}
                with anyio.move_on_after(_OPENING_S):  # imports what a run would import
                    opened = await connected_agents(prepared, started.client, stack, notes.append)
                agent = prepared.plan.agents[checked.name]
                http = agent if isinstance(agent, HttpAgent) and agent.app is None else None
                if http and (problem := await tls_problem(http.address, started.client)):
                    raise UsageError(f"{http.address}: {problem}")
                tell(good(subject("agent", checked.name), _response_text(checked, notes)))
                served = agent if agent.urls and not agent.in_process else None
                if served and (client := opened.get(checked.name)):
                    limit_s = loaded.config.request_timeout_ms / 1000
                    source: Any = started.call_sources.get(checked.name, {}).get("servers")
                    at = source and source.addresses_of(checked.name)
                    talk = partial(short_talk, of_lane(client, 1), servers=at)
                    reply = await _check_protocol(checked.name, served, talk, started.client, tell)
                    if reply:
                        wants_talk = wants_talk or bool(served.server and not _was_running(served, notes))
                        tell(await _check_conversations(checked, talk, wants_talk, notes))
                    called = reply or any(gateway_check.WITHOUT_TOKEN in note for note in notes)
                    if to_set or (called and agent.server and agent.model_gateway):
                        tell(await _check_gateway(checked, run, observed, limit_s if to_set else 0.0, notes))
            except UsageError as error:  # a task group would wrap the error
                tell(bad(subject("agent", checked.name), str(error)))
        tasks.cancel_scope.cancel()
    tell(check_calls(checked, reply, reached={key for who, key in observed.reached if who == checked.name}))


def _gateway_address(checked: AgentToCheck, run: Examination) -> str:
    folder = run.request.root / run.loaded.config.output_dir
    return gateway_check.gateway_address(checked.config, folder, run.environ)


def _tell_gateway(checked: AgentToCheck, run: Examination) -> list[str]:
    text, address = gateway_check.how_told(checked.config), _gateway_address(checked, run)
    lines = gateway_check.lines_to_set(checked.config, address)
    run.tell((left_open if lines else good)(subject("gateway", checked.name), text, "\n".join(lines)))
    return lines


async def _check_gateway(
    checked: AgentToCheck, run: Examination, observed: CallObservations, limit_s: float, notes: Sequence[str]
) -> Check:
    name = subject("gateway", checked.name)
    if limit_s:
        run.say(f"waiting for the agent to call its model, at most {limit_s:g} s: send it a message")
    if await gateway_check.has_called_model(observed, checked.name, limit_s):
        folder = run.request.root / run.loaded.config.output_dir
        limits = gateway_check.limits_of_watch(checked.config, folder, run.environ)
        return good(name, "a request of the agent to its model arrived", limits)
    advice = "\n".join(gateway_check.lines_by_framework(checked.config, _gateway_address(checked, run)))
    when = f" within {limit_s:g} s" if limit_s else ", although the agent answered"
    lost = [note for note in notes if gateway_check.WITHOUT_TOKEN in note]  # perhaps since the wait began
    return bad(name, lost[0] if lost else f"no request to a model arrived{when}", advice)


def _startable_plan(checked: AgentToCheck) -> Plan:
    try:
        check_mocks(checked.plan)
    except UsageError:
        return replace(checked.plan, entries=(), units=())
    return checked.plan


def _response_text(checked: AgentToCheck, notes: Sequence[str]) -> str:
    agent = checked.config
    if not isinstance(agent, HttpAgent) or agent.app is not None:
        return f"{agent.address}, type {agent.type}"
    how = "; its server was running already" if _was_running(agent, notes) else "; its `server` was started"
    return f"{agent.address} answers{how if agent.server else ''}"


def _was_running(agent: AgentConfig, notes: Sequence[str]) -> bool:
    ready = agent.server.ready if agent.server else ""
    return any(f"at {ready} was running already" in note for note in notes)


async def _check_protocol(
    agent: str, config: AgentConfig, new_talk: NewTalk, sender: Client, tell: Tell
) -> AgentReply | None:
    name = subject("protocol", agent)
    try:
        async with new_talk() as talk:
            reply = await talk.say(_HELLO)
    except (AgentError, CannotSend) as error:
        problem = shortened(str(error), 600)
        if isinstance(config, HttpAgent):
            tell(await _problem_check(name, config, problem, sender))
        else:
            tell(bad(name, problem))
        return None
    text = shortened(" ".join((reply.text or "").split()), _SHOWN_CHARS)
    said = repr(text) if text else f"a call of {reply.tool_requests[0].name}"
    tell(good(name, f"{config.type}, as configured: it answered {_HELLO!r} with {said}"))
    return reply


async def _problem_check(name: str, agent: HttpAgent, problem: str, sender: Client) -> Check:
    probe = endpoint_probe_of(agent, sender)
    detected = await detect_within_limit(probe, agent.type, _DETECTION_S)
    here = next((each for each in detected if is_at(each, probe.url)), None)
    response = await probe.post_message()
    text = f"{agent.type} is configured: {problem}"
    steps = list(missing_settings(response, agent.type, getattr(agent, "body", None)))
    if steps:
        return bad(name, text, "\n".join(steps))
    if here is not None and here.settings["type"] != agent.type:
        text = f"it speaks {here.settings['type']}, and the configuration says {agent.type}"
        text, steps = f"{text}: {shortened(here.because)}", [_advice_to_write(here)]
    elif response is not None and (advice := login_advice(response)):
        steps = [f"{advice}."]
    elif is_absent(response) and detected and here is None:
        steps = [_advice_to_write(min(detected, key=lambda each: each.settings["type"] != agent.type))]
    elif response is not None and is_absent(response):
        steps = [_PATH_ADVICE]
    return bad(name, text, "\n".join(steps))


_FACTS = ("LANTERN-4821", "COMPASS-7350")
_PLANT = "Please remember this code word for me: {}. Reply with OK."
_RECALL = "Which code word did I ask you to remember? If I gave you none, say so."
_INTERLEAVED = "two conversations at once"


_UNKNOWN_ADVICE = f"Put {{{{session_id}}}} or {{{{messages}}}} into `body`. {REQUESTS_ADVICE}"


async def _check_conversations(
    checked: AgentToCheck, new_talk: NewTalk, wanted: bool, notes: Sequence[str]
) -> Check:
    """Give each of two interleaved conversations a fact, and ask both for it.

    Only for agents whose conversations are cheap and harmless: those that were started for this check, and
    those whose owner asks for it.
    """
    name = subject("conversations", checked.name)
    if checked.config.exclusive:
        return good(name, "one at a time (exclusive: true)")
    if not wanted:
        advice = "agentest doctor --interleave sends 4 messages to see whether conversations mix."
        if isinstance(checked.config, HttpTemplateAgent) and not checked.config.names_the_conversation:
            unnamed = "its requests name no conversation: without a cookie, every message is a first message"
            return left_open(name, unnamed, advice, leaves_doubt=True)
        return left_open(name, f"{_INTERLEAVED} were not tried: the agent was running already", advice)
    try:
        async with new_talk("agentest-a") as one, new_talk("agentest-b") as other:
            for talk, fact in zip((one, other), _FACTS, strict=True):
                await talk.say(_PLANT.format(fact))
            texts = [(await talk.say(_RECALL)).text or "" for talk in (one, other)]
    except (AgentError, CannotSend) as error:
        return left_open(name, f"{_INTERLEAVED} could not be tried: {shortened(str(error))}")
    foreign = next((fact for text, fact in zip(texts, reversed(_FACTS), strict=True) if fact in text), None)
    if foreign:
        text = f"{_INTERLEAVED} share state: a reply repeats {foreign}, which only the other one received"
        return bad(name, text, "Write: exclusive: true (one conversation at a time), or fix the agent.")
    told = f"{_INTERLEAVED}, each given a code word"
    if all(fact in text for text, fact in zip(texts, _FACTS, strict=True)):
        return good(name, f"{told}: each repeated its own, and not the other's (4 messages)")
    if any(NO_TIES in note for note in notes):
        return left_open(name, UNKNOWN_CONVERSATION, _UNKNOWN_ADVICE, leaves_doubt=True)
    unknown = "at least one did not repeat it, so whether the agent remembers is unknown (4 messages)"
    return left_open(name, f"{told}: {unknown}")


_EITHER_SIDE_ADVICE = (
    "Its protocol allows tools on either side: scenarios with mocks start with a single conversation, and "
    "the run stops if a real tool runs instead of a mock."
)
_PATH_ADVICE = "Is the path of `endpoint` right? agentest docs agents says where agents usually are."


def _advice_to_write(finding: DetectedProtocol) -> str:
    return f"Write: agent: {{{settings_line(finding.settings)}}}"


def check_calls(
    checked: AgentToCheck, reply: AgentReply | None = None, reached: Collection[str] = ()
) -> Check:
    """Report how calls become visible. `reached`: keys of the agent's servers that a request reached."""
    agent, name = checked.config, subject("tool calls", checked.name)
    visibility = visibility_of_agent(agent)
    try:
        check_mocks(checked.plan)
    except UsageError as error:
        return bad(name, str(error))
    if reply and reply.tool_requests:
        return good(name, f"handed over in the answer: {reply.tool_requests[0].name}")
    if reply and reply.observed:
        return good(name, f"reported in the answer: {reply.observed[0].name}")
    text = _VISIBILITY_TEXTS[visibility].format(sources=" and ".join(_visibility_sources(agent)))
    if visibility is ToolVisibility.RETURNED:
        if reply is None:
            text = "not seen yet: no answer came"
        either_side = agent.tools_on_either_side
        own_tools = f"To see and mock tools that it runs itself, {agent.documented_gateway_advice}."
        return left_open(name, text, _EITHER_SIDE_ADVICE if either_side else own_tools)
    if visibility is not ToolVisibility.UNSEEN:
        if agent.model_gateway and "model_gateway" not in reached:
            unseen = "its model gateway would report them, and no request has reached it"
            return left_open(name, unseen, leaves_doubt=True)
        return (good if reached else left_open)(name, text)
    judged = [unit for unit in checked.plan.units if unit.scenario.speaks_of_calls]
    if judged:
        ways = advice_for_unseen_calls(checked.name, agent)
        return bad(name, f"{text}, and {judged[0].scenario.name!r} judges them", ways)
    unneeded = "Scenarios that check only replies need nothing more"
    ways = "; or ".join((*agent.ways_to_see[:1], agent.documented_gateway_advice))
    return left_open(name, text, f"{unneeded}. To see calls, {ways}.")


def _visibility_sources(agent: AgentConfig) -> Iterator[str]:
    if agent.natural_visibility is ToolVisibility.REPORTED:
        yield "its replies (none so far)"
    if agent.mock_servers:
        yield "mock servers"
    if agent.model_gateway:
        yield "its model gateway"
    if "traces" in agent.beside:
        yield "its traces"
