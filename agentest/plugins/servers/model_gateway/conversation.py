"""One conversation as the gateway sees it: its calls under way, and what the agent never received."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from time import monotonic
from unicodedata import normalize

import anyio
from anyio.lowlevel import checkpoint

from agentest.domain.messages import ToolSpec
from agentest.domain.tool_visibility import Approval
from agentest.domain.transcript import ToolCall, Usage
from agentest.plugins.protocols.model_messages import Json, messages_of
from agentest.plugins.servers import port
from agentest.plugins.servers.agent_tape import AgentTape
from agentest.plugins.servers.gateway_check import WAY_TO_REACH, is_output_tool
from agentest.plugins.servers.model_gateway import wire_form as wire
from agentest.plugins.servers.model_gateway.request_log import ConversationFaults, RequestLog
from agentest.support.errors import AgentError, AgentestError, MockError
from agentest.support.json_text import leaves
from agentest.support.lazy_dataclasses import dataclass, replace
from agentest.support.text import on_one_line, shortened

_MCP_NAME = re.compile(r"mcp__.+?__(.+)", re.DOTALL)
_WRAPPERS = ("result", "return_value", "output")
"""Keys in which frameworks wrap a result that is not an object."""
_UNSEEN = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff]")  # characters that nobody sees
_MOST_NOTES = 10
_MOST_REPLIES = 5  # without a request to the gateway, before the agent gets no further messages
_OF_TOOL = re.compile(r"(?i)tool|name|func|recipient|action|method|command")  # keys beside a tool's name
_QUOTES = _CALLED, _SAYS = "called tool `", "] said:"

_REWORDED = (
    "the agent changes replies before it sends them to its model again, so the model does not know results "
    "of mocks from earlier turns: if it forgets those of real tools, too, write model_gateway.memory: turn"
)


class CallsEnded(Exception):
    """A call ended the conversation. The message is for the agent."""


@dataclass(slots=True, kw_only=True)
class GatewayState:
    """The state of a gateway that all its conversations share."""

    origin: str = ""
    reached: bool = False
    replied: set[str] = field(default_factory=set)
    """Keys of conversations in which the agent replied before any request reached the gateway."""
    owners: dict[str, GatewayConversation | None] = field(default_factory=dict)
    """Id that was passed on → its conversation; None if several conversations have it."""
    begun: int = 0
    keys: set[str] = field(default_factory=set)  # keys with which agents called their models
    memory: str = "auto"
    output_tools: Collection[str] = ()
    on_note: Callable[[str], None] = lambda _: None
    noted: set[str] = field(default_factory=set)
    look: Callable[[], Awaitable[None]] = checkpoint  # finds connections that do not pass the gateway

    def note(self, text: str) -> None:
        """Report something once for the whole run."""
        if text not in self.noted and len(self.noted) < _MOST_NOTES:
            self.noted.add(text)
            self.on_note(text)


@dataclass(slots=True, kw_only=True)
class Rounds:
    """The rounds so far. A repeated request goes on where the client of the first gave up."""

    body: Json  # the request of the current round
    number: int = 0  # the number of hidden rounds before it
    calls: list[tuple[wire.ModelCall, asyncio.Task[wire.CallResult | None]]] = field(default_factory=list)
    """The calls of the current round whose answers are known or under way."""
    done: bool = False
    new: list[Json] = field(default_factory=list)
    """Messages that the agent has not received: those of the model with the results of its calls."""
    seen_calls: set[str] = field(default_factory=set)
    output_tokens: int = 0


@dataclass(slots=True, kw_only=True)
class GatewayConversation:
    """A conversation under way (implements `ModelConversation`).

    Args:
        mocked: names of the tools whose calls the gateway answers.
        recorded: names of tools of which it may have a recorded answer, depending on the arguments.
        named: names of tools that the scenario expects, forbids or limits.
        allows_real: True if tools without a mock may run.
        lane: the copy of the agent's server that has the conversation; None if there are no copies.
        place: what only one conversation at a time has: its lane or, without copies, its opening.
    """

    gateway: GatewayState

    who: port.Identity
    serving: port.ActiveConversation
    mocked: frozenset[str]
    allows_real: bool
    lane: int | None = None
    place: int | str = ""
    recorded: Collection[str] = ()
    named: Collection[str] = ()
    texts: list[str] = field(default_factory=list)  # the user's texts, oldest first, with single spaces
    model_texts: deque[str] = field(default_factory=lambda: deque(maxlen=50))
    waiting: int = 0  # requests to the agent that it has not answered yet
    answers: list[wire.PassedAnswer] = field(default_factory=list)
    """What the agent has received, oldest first."""
    has_calls: bool = False  # True if one of them has, or hides, a call
    ids: set[str] = field(default_factory=set)
    arguments: deque[str] = field(default_factory=lambda: deque(maxlen=200))
    number: int = 0
    number_at_end: int = 0
    over: bool = False  # True if it has ended. Its agent may still be at work.
    given_up: bool = False
    """True if the agent was given up, or makes requests that offer mocked tools after its replies."""
    idle_at: float = math.inf  # when the agent of a conversation that ended has surely ended its work
    open_requests: int = 0
    timeout_s: float = math.inf  # the time that the agent has for a reply
    asked: dict[float, str] = field(default_factory=dict)
    """When a model was asked that has not answered yet → its address."""
    bypass: str | None = None  # how the agent may have got calls in this turn that are not seen
    written: str | None = None  # that the model wrote a call in this turn where only some agents look for it
    hangs: str | None = None
    """Which model has not answered for most of that time, if a request for the last message met one."""
    tape: AgentTape | None = None
    problem: AgentestError | None = None  # ends the conversation. The agent is not to blame.
    log: RequestLog = field(default_factory=RequestLog)
    faults: ConversationFaults | None = None
    fault: str | None = None
    """Why a request for the user's last message got no answer, if the agent is not to blame."""
    recovered: bool = False  # True if the agent received an answer of a model after that
    ended_by: str | None = None  # the message about the call that ended the conversation, for the agent
    turn: int = 0
    seen_in: int = -1  # the last turn in which a request that offers tools was made and answered
    said_in: int = 0  # the turn of the last text: what the agent does after its reply belongs to that turn
    forgets: bool = False  # True if the agent sends no calls of earlier turns, although it ran some
    put_back: bool = False  # True if results of mocks were put back in later turns before that was known
    wrapper: str | None = None  # the key in which this agent's framework wraps results; None if it does not
    unfinished: list[tuple[wire.WireRequest, Rounds]] = field(default_factory=list)
    """Requests of the current turn whose clients gave up after hidden rounds, with these rounds."""
    _pending: dict[int, wire.ModelCall] = field(default_factory=dict)
    """Number → a call that the agent runs itself and whose result is not known yet."""
    _provided: dict[str, ToolCall] = field(default_factory=dict)
    """Id → a call of the provider that has no result yet, or waits for approval."""
    told: str = ""  # texts and arguments in one
    known: tuple[str, ...] = ()  # texts, arguments and the model's texts
    _outputs: tuple[Mapping[str, ToolSpec] | None, frozenset[str]] = (None, frozenset())
    """The tools of a request, and the output tools among them."""

    @property
    def at_work(self) -> bool:
        """True if the agent may make further requests although nobody waits for its reply."""
        return self.given_up and (self.idle_at == math.inf or self.has_just_ended)

    @property
    def has_just_ended(self) -> bool:
        return self.idle_at != math.inf and anyio.current_time() < self.idle_at

    def mock_name(self, name: str) -> str | None:
        """Return the mock for a tool, whose name an MCP client may have lengthened; None if there is none."""
        return _known(name, self.mocked)

    def plain_name(self, name: str) -> str | None:
        """Return the name that the scenario gives a tool; None if it names none like that."""
        return self.mock_name(name) or _known(name, self.recorded) or _known(name, self.named)

    def guards(self, name: str) -> bool:
        """Return True if a tool must not run unless the gateway allows the call."""
        return not self.allows_real or bool(self.mock_name(name) or _known(name, self.recorded))

    def note_written(self, name: str) -> None:
        """Note that the model wrote a call of a mocked or named tool where only some agents look."""
        self.written = f"in turn {self.turn + 1} the model wrote a call of {name!r} as text"
        if self.mock_name(name):
            self.bypass = self.written

    @property
    def guards_any(self) -> bool:
        """True if there is a tool that must not run unless the gateway allows the call."""
        return bool(not self.allows_real or self.mocked or self.recorded)

    def output_tools(self, request: wire.WireRequest) -> frozenset[str]:
        """Return the offered tools by which the agent's framework receives the final answer.

        A tool that the scenario names is a tool like any other.
        """
        if self._outputs[0] is not request.tools:
            own = {*self.mocked, *self.recorded, *self.named}
            outputs = frozenset(
                name
                for name, tool in request.tools.items()
                if not _known(name, own) and (name in self.gateway.output_tools or is_output_tool(tool))
            )
            self._outputs = request.tools, outputs
        return self._outputs[1]

    @contextmanager
    def said(self, text: str) -> Iterator[None]:
        text = on_one_line(text)
        if self.texts[-1:] != [text]:  # one message of the user may need several requests to the agent
            self.texts.append(text)
            self._note_known()
        if not self.waiting:
            self.fault, self.recovered, self.hangs = None, False, None
        self.waiting += 1
        self.said_in = self.turn
        self.log.begin_turn()
        try:
            yield
        except BaseException as error:
            # An agent that answers with an error has answered; `rest` tells of one that did not.
            self.given_up = self.given_up or not isinstance(error, AgentError)
            raise
        finally:
            self.waiting -= 1

    async def has_heard(self) -> None:
        """Raise MockError if earlier replies show that the agent does not use the gateway."""
        if not self.gateway.reached and len(self.gateway.replied) >= _MOST_REPLIES:
            raise MockError(
                f"this conversation was not begun: the agent replied in {_MOST_REPLIES} others without a "
                f"request to the gateway at {self.gateway.origin}, so real tools would run again. To reach "
                f"it, {WAY_TO_REACH}"
            )

    def begin_request(self, request: wire.WireRequest) -> int:
        """Count an open request. Returns the turn whose calls its answer shows; -1 if it shows none."""
        if not self.waiting and any(map(self.mock_name, request.tools)):
            self.given_up = True
        history = request.history
        strange = (history.names[known] for known in history.new_calls if known not in self.ids)
        if name := next(filter(self.plain_name, strange), None):
            self.bypass = (
                f"in turn {self.turn + 1} the agent's history has a call of {name!r} that did not pass the "
                f"gateway: a part of the agent calls a model elsewhere. For it, {WAY_TO_REACH}"
            )
        self.open_requests += 1
        return self.turn if self.waiting and request.tools else -1

    def note_hanging(self) -> None:
        """Note if a model is asked for long. A client that gives up then may be right."""
        since = min(self.asked, default=math.inf)
        waited_s = monotonic() - since
        if waited_s >= self.timeout_s / 2 and self.faults is None:
            self.hangs = f"the model at {self.asked[since]} had not answered after {waited_s:.3g} s"
            self.note_fault(self.hangs)

    def remembered(self, request: wire.WireRequest) -> list[wire.PassedAnswer]:
        """Return the answers of which the model is to be given what the agent did not receive.

        An agent that keeps only texts loses the results of real tools, so it must lose those of mocks, too.
        """
        if request.chained or not self.has_calls:
            return self.answers if self.has_calls else []
        ids = frozenset(request.ids)
        quotes = any(mark in text for text in request.user_texts for mark in _QUOTES)  # most requests do not
        quoted = [each for each in self.answers if _is_quoted(request, ids, each)] if quotes else []
        self._note_lost(each for each in quoted if each.hides)
        kept = [
            each
            for each in self.answers
            if not each.shown.calls or each in quoted or _has_calls_of(request, ids, each)
        ]
        memory, told = self.gateway.memory, request.user_texts[:-1]
        self.forgets = self.forgets or (
            len(kept) < len(self.answers)
            and any(
                each.turn < self.turn and any(wire.same_text(each.user_text, text) for text in told)
                for each in self.answers
                if each not in kept
            )
        )
        if memory == "auto" and not self.forgets:
            self.put_back |= any(
                each.turn < self.turn and each.hides and not each.shown.calls for each in kept
            )
        elif memory == "auto" and self.put_back:
            self.gateway.note(
                "the agent loses the results of its own tools after a turn, but some turns had mocked ones "
                "from earlier ones, because nothing showed it there: write model_gateway.memory: turn"
            )
        if memory == "turn" or (memory == "auto" and self.forgets):
            return [each if each.turn == self.turn else replace(each, forgotten=True) for each in kept]
        return kept

    def note_completed(
        self, request: wire.WireRequest, answers: Sequence[wire.PassedAnswer], body: Json
    ) -> None:
        """Note if a history lacks results of mocks although it has their turn, or their calls in this one."""
        if not self.has_calls or request.chained:
            return
        messages, earlier = {id(each) for each in messages_of(body)}, request.user_texts[:-1]
        lost = [
            each
            for each in answers
            if each.turn < self.turn and each.hides and each.before and id(each.before[0]) not in messages
            if each.user_text in earlier and each.all_hidden[0][0] in request.tools
        ]
        if any(
            {other.turn for other in answers if other.user_text == each.user_text} == {each.turn}
            for each in lost
        ):
            self.gateway.note(_REWORDED)
        hiding = [each for each in self.answers if each.turn == self.turn and each.hides]
        texts = (*request.user_texts, *request.history.texts)
        if told := [each for each in hiding if each.has_calls_in(texts)]:
            sent = json.dumps(body, ensure_ascii=False)
            self._note_lost(
                each for each in told if not any(known and known in sent for _, known in each.all_hidden)
            )

    def _note_lost(self, answers: Iterable[wire.PassedAnswer]) -> None:
        if lost := next(iter(answers), None):
            name, _ = lost.all_hidden[0]
            self.fail(
                f"the result of the mock of {name!r} is lost: the agent hands over to another agent as plain "
                "text, and the gateway cannot insert mock results there. Run the agent in process, or give "
                "it the tool by mcp_mock"
            )

    def end(self) -> None:
        self.over = True
        self.number_at_end = self.gateway.begun
        self.given_up = self.given_up or self.open_requests > 0
        self.answers.clear()
        self._drop_unfinished()

    def resumed(self, request: wire.WireRequest) -> Rounds | None:
        """Return the rounds of the same request that had no answer; None if there was none."""
        for each in self.unfinished:
            if (each[0].body, each[0].streams) == (request.body, request.streams):
                self.unfinished.remove(each)
                return each[1]
        return None

    def renew(self, call: wire.ModelCall, again: wire.ModelCall) -> None:
        """Note that the model has repeated a call, whose result will have the new id."""
        self._pending = {number: again if each is call else each for number, each in self._pending.items()}

    def _drop_unfinished(self) -> None:
        for _, task in (each for _, rounds in self.unfinished for each in rounds.calls):
            task.cancel()
        self.unfinished.clear()

    def passed(self, answer: wire.PassedAnswer) -> None:
        if self.over:
            return
        self.answers.append(answer)
        self.has_calls = self.has_calls or bool(answer.shown.calls) or answer.hides
        self.model_texts.extend(filter(None, [on_one_line(answer.shown.text)]))
        self._note_known()
        for known in answer.shown.ids:
            self.ids.add(known)
            if self.gateway.owners.setdefault(known, self) is not self:
                self.gateway.owners[known] = None

    def note_arguments(self, arguments: object) -> None:
        """Remember the texts in arguments of a call, which a sub-agent may be given."""
        texts = (leaf for _, leaf in leaves([arguments]) if isinstance(leaf, str) and leaf.strip())
        self.arguments.extend(map(on_one_line, texts))
        self._note_known()

    def _note_known(self) -> None:
        told = *self.texts, *self.arguments
        self.told, self.known = "\n".join(told), (*told, *self.model_texts)

    def forget(self) -> None:
        """Forget the ids, long after the end."""
        for known in self.ids:
            if self.gateway.owners.get(known) is self:
                del self.gateway.owners[known]

    def note_fault(self, why: str) -> None:
        """Record that a request got no answer, for which the agent is not to blame."""
        self.fault, self.recovered = self.fault or why, False

    def note_error(self, status: int, address: str, answer: str) -> None:
        """Report a refused key, or an address that seems wrong; then the agent's reaction is judged."""
        if status in (401, 403) or "API_KEY_INVALID" in answer:
            why = f"the model at {address} refuses the key of agent {self.who.agent!r} (status {status})"
            self.gateway.note(f"{why}: give the agent a valid key for that address")
            self.note_fault(why)
        elif status == 404 and self.faults is None:  # not one of the scenario
            text = shortened(self.log.redact(answer[:2000]), 200)
            self.gateway.note(
                f"the model at {address} answered agent {self.who.agent!r} with status {status}: {text}. "
                f"Check the name of the agent's model, and model_gateway.upstream"
            )

    async def error_of(self, agent_error: Exception | None) -> AgentestError | None:
        if self.problem:
            return self.problem
        self.note_hanging()
        if self.hangs and agent_error and not self.recovered:
            return MockError(f"{self.hangs}, and the agent did not reply")
        if self.fault and (agent_error or not self.recovered):
            then = shortened(str(agent_error), 200) if agent_error else "the agent answered without its model"
            return MockError(f"{self.fault}. Then {then}")
        if agent_error and not self.gateway.reached:
            return AgentError(
                f"{agent_error} (no request to a model had reached the gateway at {self.gateway.origin}: if "
                f"the agent failed to call its model, {WAY_TO_REACH})"
            )
        return None

    async def end_turn(self) -> port.TurnTraces:
        if not self.gateway.reached:
            self.gateway.replied.add(self.who.key)
            raise MockError(
                "the agent called no model through the gateway, so its real tools may have run. To reach the "
                f"gateway at {self.gateway.origin}, {WAY_TO_REACH}"
            )
        await self.gateway.look()
        bypass, written, self.bypass, self.written = self.bypass, self.written, None, None
        if bypass and (self.mocked or self.recorded):
            raise MockError(f"{bypass}. Real tools may have run in place of mocks")
        self._drop_unfinished()
        pending, self._pending = self._pending, {}
        for number in pending:  # such as calls that end the agent's work
            await self.serving.answered(number, port.RealAnswer(result=None))
        requests = self.log.end_turn()
        what = "was answered no request to its model that offers tools"
        what = what if requests else "made no request to a model through the gateway"
        models: dict[str, Usage] = {}
        for request in requests:
            name = request.model or ""
            models[name] = models.get(name, Usage()) + request.usage
        traces = port.TurnTraces(
            usage=sum(models.values(), Usage()),
            model_calls=sum(request.error is None for request in requests) or None,
            model_requests=requests,
            briefing=self.log.new_briefing(),
            faults=self.faults.end_turn() if self.faults else (),
            models=models,
            secrets=tuple(self.gateway.keys),
            missing=bypass
            or written
            or (None if self.seen_in == self.turn else f"in turn {self.turn + 1} the agent {what}"),
        )
        self.turn += 1
        return traces

    def fail(self, error: AgentestError | str) -> None:
        """End the conversation, because of no fault of the agent. A text is the message of a MockError."""
        self.problem = self.problem or (MockError(error) if isinstance(error, str) else error)

    async def answer(
        self, call: wire.ModelCall, offered: Collection[str] = (), *, cut: bool = False, forced: bool = False
    ) -> wire.CallResult | None:
        """Record a call. Returns the mock's result; None if the agent runs the tool itself.

        Args:
            offered: names of the tools that the agent offers. Some agents repair other names.
            cut: True if the model's answer was cut off, so that the arguments may be incomplete.
            forced: True if the model had to call a tool, whichever.

        Raises CallsEnded if the call ends the conversation.
        """
        if self.over:
            raise CallsEnded(f"{self.who} has ended: the call of {call.name!r} was not answered")
        mocks = [*self.mocked, *self.recorded]
        name, plain = _known(call.name, mocks), self.plain_name(call.name)
        if name is None and offered and call.name not in offered:
            name = wire.named_in(call.name, mocks)
            plain = plain or wire.named_in(call.name, self.named)
            named = (text for path, text in leaves([call.arguments]) if _OF_TOOL.search(path))
            if not name and any(wire.named_in(str(text), mocks) for text in named if " " not in str(text)):
                why = f"the model calls tools by {call.name!r}, which is not offered, so mocks cannot answer"
                self.fail(why)
                raise CallsEnded(why)
        problem = call.problem and call.problem + " (the model's answer was cut off)" * cut
        answer = await self.serving.answer(
            port.ServedCall(
                tool=name or plain or call.name,
                arguments=call.arguments,
                call_id=call.call_id,
                problem=problem if name else None,
                caller_runs=True,
            )
        )
        if answer.how in (port.CallOutcome.UNMOCKED, port.CallOutcome.REFUSED):
            if forced:
                self.gateway.note(
                    f"the agent forces its model to call a tool, and a call of {call.name!r} ended a "
                    "conversation: if it is the tool by which the agent returns its answer, write "
                    f"model_gateway.output_tools: [{call.name}]"
                )
            self.ended_by = answer.message
            raise CallsEnded(answer.message)
        if answer.how is port.CallOutcome.INVALID and name is None and self.allows_real:
            return None  # how the agent takes it is part of the test
        if answer.how is port.CallOutcome.REAL:
            self._pending[answer.number] = call
            self.note_arguments(call.arguments)
            return None
        failed = answer.how is not port.CallOutcome.ANSWERED
        result = {"error": answer.message} if failed and answer.result is None else answer.result
        if not failed and self.wrapper and not isinstance(result, dict):
            result = {self.wrapper: result}
        return wire.CallResult(
            name=call.name, result=result, call_id=call.call_id, failed=failed, kind=call.kind
        )

    async def note_made(self, calls: Sequence[ToolCall]) -> None:
        """Record calls that the model's provider made itself. Raises CallsEnded for one of a mocked tool.

        One without a name is the result of an earlier call. A function of the agent that runs may ask a model
        for the provider's tool of its name: that is one call.
        """
        for call in calls if not self.over else ():
            known, is_late = self._provided.pop(call.call_id or "", None), not call.name
            if is_late and known:
                call = replace(known, result=call.result, error=call.error)
            name = self.plain_name(call.name) or call.name
            if not name or any(
                name in (each.name, self.plain_name(each.name)) for each in self._pending.values()
            ):
                continue
            if call.call_id and call.result is None and call.approval is not Approval.DENIED:
                self._provided[call.call_id] = call
            made = replace(call, name=name, by_real_tool=call.ran)
            await self.serving.answer(
                port.ServedCall(tool=name, arguments=call.args, made=made, again=is_late)
            )
            if call.ran and self.mock_name(name):
                self.fail(
                    f"the model's provider ran {name!r} itself, which a mock cannot answer: remove the mock, "
                    "or give the agent a function of that name in place of the provider's tool"
                )
                raise CallsEnded(str(self.problem))

    async def read_results(self, request: wire.WireRequest) -> None:
        """Record the results of calls that the agent ran, and what its user denied, as a request has them."""
        for item in messages_of(request.body) if self._provided else ():
            asked = self._provided.get(str(item.get("approval_request_id")))
            if asked and item.get("approve") is False:
                await self.note_made([replace(asked, approval=Approval.DENIED)])
        # The newest first, because some models use the same ids in every turn.
        for result in reversed(request.results) if self._pending and not self.over else ():
            newest = reversed(self._pending.items())
            number = next((number for number, call in newest if _is_result_of(result, call)), None)
            if number is None:
                continue
            del self._pending[number]
            value = result.result
            if isinstance(value, dict) and len(value) == 1 and (key := next(iter(value))) in _WRAPPERS:
                self.wrapper, value = key, value[key]
            await self.serving.answered(number, port.RealAnswer(result=value, failed=result.failed))


def _known(name: str, names: Collection[str]) -> str | None:
    if name in names:
        return name
    # Tolerant frameworks run `find` for " find ", `Find`, `functions.find` and letters of other widths, too.
    plain = name if name.isascii() else _UNSEEN.sub("", normalize("NFKC", name))
    short = _MCP_NAME.sub(r"\1", plain).strip().removeprefix("functions.").casefold()
    return next((each for each in names if each.casefold() == short), None)


def _has_calls_of(request: wire.WireRequest, ids: Collection[str], answer: wire.PassedAnswer) -> bool:
    return any(
        call.call_id in ids
        or any((call.call_id or f"{call.name}(") in text for text in request.history.texts)
        for call in answer.shown.calls
    )


def _is_quoted(request: wire.WireRequest, ids: Collection[str], answer: wire.PassedAnswer) -> bool:
    if _has_calls_of(request, ids, answer):
        return False
    marks = [f"{_CALLED}{call.name}`" for call in answer.shown.calls]
    said = [] if marks or not answer.shown.text.strip() else [_SAYS, answer.shown.text.strip()]
    return any(
        any(mark in text for mark in marks) or bool(said and all(part in text for part in said))
        for text in request.user_texts
    )


def _is_result_of(result: wire.CallResult, call: wire.ModelCall) -> bool:
    if result.call_id and call.call_id:
        return result.call_id == call.call_id
    return result.name == call.name
