"""Client for an agent object of a framework."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import anyio

from agentest.agents.port import Agent, AgentReply, ConversationalAgent, NoReply, Resources, TurnContext
from agentest.agents.python_agent import call_with_timeout
from agentest.domain.messages import Message, Session
from agentest.domain.tool_visibility import DENIED, Approval, SeenBy
from agentest.domain.transcript import ToolCall, waiting
from agentest.plugins.frameworks.tool_gate import ToolGate, gate_in_front
from agentest.plugins.protocols.approvals import Decision
from agentest.support.calling import ends_the_run, message_of_error
from agentest.support.errors import AgentError, CannotSend, ConfigError, EventLoopBlocked
from agentest.support.function_threads import BlockingTimer
from agentest.support.json_text import NotJson, json_text
from agentest.support.lazy_dataclasses import dataclass

_CLOSE_S = 5.0
MakeContext = Callable[..., Any]
"""A function of the user's, without parameters or with the scenario's session."""


class FrameworkConversation(Protocol):
    """One conversation with an agent object. Stores what the framework needs for the next turn."""

    async def turn(self, messages: Sequence[Message], gate: ToolGate) -> AgentReply:
        """Return the reply to the last message. Raises whatever the agent raises."""


NextAgent = Callable[[], Awaitable[Any]]
"""Returns an agent that has not been used, of a framework whose agents serve one conversation."""
Begin = Callable[[Any, str], FrameworkConversation]
"""Starts a conversation with the context from the user's code (or None) and the session id."""


@dataclass(frozen=True, slots=True)
class Framework:
    """A framework with agent objects."""

    title: str
    prepare: Callable[..., Begin]
    """Installs the gate and returns a function that begins a conversation. It is given the agent and, of a
    framework with agents for a single use, a function that returns the next one. Raises ValueError."""
    single_use: bool = False  # True if an agent serves one conversation, so that each needs a new one
    takes_history: bool = False  # True if a conversation sends messages from before its first turn

    async def open(
        self,
        name: str,
        agent: Any,
        resources: Resources,
        make_context: MakeContext | None,
        make_agent: Callable[[], Any] | None,
    ) -> Agent:
        """Return the client of an agent object. Raises ConfigError if it cannot be run."""
        try:
            given = (_next_agent(self, agent, make_agent),) if self.single_use else ()
            begin = self.prepare(agent, *given)
        except (ImportError, AttributeError) as error:
            raise ConfigError(
                f"agent {name!r}: handler: the installed {self.title} cannot be used: "
                f"{type(error).__name__}: {message_of_error(error)}. "
                "agentest docs agents lists tested versions"
            ) from error
        except ValueError as error:
            raise ConfigError(f"agent {name!r}: handler: {error}") from None
        return ConversationalAgent(
            name,
            lambda: ObjectConversation(name, self, begin, make_context, resources.timeout_s),
            takes_history=self.takes_history,
            takes_attachments=False,
        )


def _next_agent(framework: Framework, agent: Any, make: Callable[[], Any] | None) -> NextAgent:
    unused = [agent]

    async def next_agent() -> Any:
        if unused:
            return unused.pop()
        if make is None:
            raise AgentError(
                f"an agent of {framework.title} serves one conversation, and this one has been used: let "
                "`handler` name a function without parameters that returns a new one"
            )
        made = make()
        return await made if inspect.isawaitable(made) else made

    return next_agent


class ObjectConversation:
    """One conversation with an agent object."""

    def __init__(
        self,
        name: str,
        framework: Framework,
        begin: Begin,
        make_context: MakeContext | None,
        timeout_s: float,
    ) -> None:
        self.name = name
        self._title = framework.title
        self._begin = begin
        self._make_context = make_context
        self._timeout_s = timeout_s
        self._conversation: FrameworkConversation | None = None

    async def close(self) -> None:
        """Close what the framework has opened for the conversation."""
        if close := getattr(self._conversation, "close", None):
            with anyio.move_on_after(_CLOSE_S, shield=True):
                await close()

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """Return the agent's reply. Raises AgentError; other AgentestErrors pass through."""
        who = f"the {self._title} agent"
        call = partial(self._turn, messages, ctx)
        reply, latency_ms = await call_with_timeout(call, self._timeout_s, who, self.name)
        return replace(reply, latency_ms=latency_ms)

    async def _turn(self, messages: Sequence[Message], ctx: TurnContext, steps: BlockingTimer) -> AgentReply:
        gate = ToolGate.of(ctx)
        try:
            with gate_in_front(gate):
                conversation = self._conversation or await steps.of(self._start_conversation(ctx))
                reply = with_decisions(await steps.of(conversation.turn(messages, gate)), gate)
        except BaseException as error:
            if gate.ended is None or ends_the_run(error):
                raise
            raise gate.ended from error  # frameworks wrap the exceptions of tools
        if gate.ended is not None:
            raise gate.ended
        agent_reply: AgentReply = reply
        return agent_reply

    async def _start_conversation(self, ctx: TurnContext) -> FrameworkConversation:
        context = await _create_context(self._make_context, ctx.session or Session())
        self._conversation = self._begin(context, ctx.session_id)
        return self._conversation


async def _create_context(make_context: MakeContext | None, session: Session) -> Any:
    """Return the context of a conversation. Raises AgentError for an error in the user's function."""
    parameters = () if make_context is None else inspect.signature(make_context).parameters.values()
    takes_session = any(
        p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters
    )
    if session.state and not takes_session:
        raise CannotSend(
            "the scenario's session has a state, and an agent object gets it by `context` alone: name a "
            "function there that takes the session, `def context(session)`, and finds it in `session.state`"
        )
    if make_context is None:
        return None
    try:
        made = make_context(session) if takes_session else make_context()
        return await made if inspect.isawaitable(made) else made
    except (Exception, EventLoopBlocked) as error:
        problem = f"{type(error).__name__}: {message_of_error(error)}"
        raise AgentError(f"the function that `context` names raised {problem}") from error


class AskedCall(NamedTuple):
    """A call of the agent that waits for approval. A question about something else has no name."""

    name: str | None
    args: Any = None
    call_id: str | None = None
    question: str = ""
    runs: bool = True  # False if its tool does not run, whatever the user answers


def decide(gate: ToolGate, asked: Sequence[AskedCall]) -> Decision:
    """Return the scenario's decision about calls. Without one, they wait: raises NoReply with them."""
    decision, waits = gate.approver.decision([each.name for each in asked]), list[ToolCall]()
    for each in asked:
        if each.name is None:
            continue
        call = ToolCall(each.name, each.args, None, False, gate.turn_index, seen_by=SeenBy.AGENT)
        call = replace(call, call_id=each.call_id)
        if decision is not None and each.runs and decision.about(each.name).approved:
            gate.decided[each.call_id] = replace(call, approval=Approval.GRANTED)
            continue
        approval = Approval.DENIED if decision else Approval.PENDING
        if gate.leave(each.call_id, approval):
            continue
        if decision is None:
            waits.append(waiting(call))
        else:
            gate.decided[each.call_id] = replace(call, approval=approval, error=DENIED)
    if decision is not None:
        return decision
    what = ", ".join(f"approval of {each.name!r}" if each.name else each.question for each in asked)
    name = next((each.name for each in asked if each.name), None)
    raise NoReply(
        f"the agent's run waits for {what}, and the scenario has no answer: write "
        f"approve={f'{{{name!r}: True}}' if name else True}",
        observed=(*gate.decided.values(), *waits),
    )


def with_decisions(reply: AgentReply, gate: ToolGate) -> AgentReply:
    """Return a reply with the calls that the user has decided about."""
    observed = (*reply.observed, *gate.decided.values())
    return replace(reply, observed=observed, approvals=gate.approver.answered)


def output_text(output: Any) -> str | None:
    """Convert an agent's output to a reply: text unchanged, other values as JSON. Raises AgentError."""
    if output is None or isinstance(output, str):
        return output
    try:
        return json_text(output)
    except NotJson as error:
        kind = type(output).__name__
        raise AgentError(
            f"the agent's output is a {kind}, which is not a text and cannot be written as JSON: {error}"
        ) from None


def result_text(answer: Any) -> str:
    """Convert a mock's answer to a tool result: text unchanged, other values as JSON."""
    return answer if isinstance(answer, str) else json_text(answer)
