"""One conversation as the gateway sees it: its calls under way, and what the agent never received."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field

from agentest.domain.transcript import Usage
from agentest.mock_servers.model_gateway.wire_form import (
    CallHandling,
    CallResult,
    ModelCall,
    PassedAnswer,
    WireRequest,
    normalized,
    same_text,
)
from agentest.mock_servers.port import ActiveConversation, CallOutcome, Identity, ServedCall, TurnTraces
from agentest.support.errors import MockError
from agentest.support.lazy_dataclasses import dataclass

_MCP_NAME = re.compile(r"mcp__.+?__(.+)", re.DOTALL)
_WRAPPERS = ("result", "return_value", "output")
"""Keys in which frameworks wrap a result that is no object."""


class CallsEnded(Exception):
    """A call ended the conversation. The message is for the agent."""


@dataclass(slots=True, kw_only=True)
class GatewayState:
    """What all conversations of a gateway know of it."""

    origin: str = ""
    """Its address."""
    reached: bool = False
    """True if a request to a model ever came."""
    owners: dict[str, GatewayConversation | None] = field(default_factory=dict)
    """Id that was passed on → its conversation; None if several conversations have it."""
    begun: int = 0
    """The number of conversations that have begun."""
    memory: str = "auto"
    """As `model_gateway.memory`."""
    on_note: Callable[[str], None] = lambda _: None
    noted_memory: bool = False


@dataclass(slots=True, kw_only=True)
class PendingCall:
    """A call that the agent runs itself and whose result is not known yet."""

    call: ModelCall
    number: int


@dataclass(slots=True, kw_only=True)
class GatewayConversation:
    """A conversation under way (implements `mock_servers.port.ModelConversation`).

    Args:
        mocked: names of the tools whose calls the gateway answers.
        recorded: names of tools of which it may have a recorded answer, depending on the arguments.
        allows_real: True if tools without a mock may run.
    """

    gateway: GatewayState

    who: Identity
    serving: ActiveConversation
    mocked: frozenset[str]
    allows_real: bool
    recorded: Collection[str] = ()
    texts: list[str] = field(default_factory=list)
    """The user's texts, oldest first, with single spaces."""
    model_texts: deque[str] = field(default_factory=lambda: deque(maxlen=50))
    """Texts of the model that the agent received."""
    waiting: int = 0
    """Requests to the agent that it has not answered yet."""
    answers: list[PassedAnswer] = field(default_factory=list)
    """What the agent has received, oldest first."""
    ids: set[str] = field(default_factory=set)
    """Ids of the model's answers that the agent received."""
    arguments: deque[str] = field(default_factory=lambda: deque(maxlen=200))
    """Texts in arguments of calls that the agent received."""
    number: int = 0
    """Its number in the order of beginning."""
    number_at_end: int = 0
    """The number of conversations that had begun when it ended."""
    over: bool = False
    """True if it has ended. Its agent may still be at work."""
    at_work: bool = False
    """True if the agent was given up, or makes requests that offer mocked tools after its replies."""
    open_requests: int = 0
    turn: int = 0
    forgets: bool = False
    """True if the agent sends no calls of earlier turns, although it ran some."""
    usage: Usage = Usage()
    requests: int = 0
    """The model's work for the turn."""
    wrapper: str | None = None
    """The key in which this agent's framework wraps results; None if it does not."""
    _pending: list[PendingCall] = field(default_factory=list)

    def mock_name(self, name: str) -> str | None:
        """Return the mock for a tool, whose name an MCP client may have lengthened; None if there is none."""
        return _known(name, self.mocked)

    def handling(self, name: str) -> CallHandling:
        """Decide about a call by its name alone. The call of a tool that must not run is held back."""
        if self.mock_name(name):
            return CallHandling.HIDE
        shows = self.allows_real and not _known(name, self.recorded)
        return CallHandling.SHOW if shows else CallHandling.HOLD

    def guards(self, name: str) -> bool:
        """Return True if a tool must not run unless the gateway allows the call."""
        return self.handling(name) is not CallHandling.SHOW

    @contextmanager
    def said(self, text: str) -> Iterator[None]:
        text = normalized(text)
        if self.texts[-1:] != [text]:  # one message of the user may need several requests to the agent
            self.texts.append(text)
        self.waiting += 1
        try:
            yield
        except BaseException:
            self.at_work = True
            raise
        finally:
            self.waiting -= 1

    @contextmanager
    def requested(self, request: WireRequest) -> Iterator[None]:
        """Note that a request of the conversation is under way until the block ends."""
        if not self.waiting and any(map(self.mock_name, request.tools)):
            self.at_work = True
        self.open_requests += 1
        try:
            yield
        finally:
            self.open_requests -= 1

    def remembered(self, request: WireRequest) -> list[PassedAnswer]:
        """Return the answers of which the model is to be given what the agent did not receive.

        An agent that keeps only texts loses the results of real tools, so it must lose those of mocks, too.
        """
        if request.chained:
            return self.answers
        ids = frozenset(request.ids)
        kept = [each for each in self.answers if not each.shown.calls or _has_calls_of(request, ids, each)]
        memory, told = self.gateway.memory, request.user_texts[:-1]
        self.forgets = self.forgets or (
            len(kept) < len(self.answers)
            and any(
                each.turn < self.turn and any(same_text(each.user_text, text) for text in told)
                for each in self.answers
                if each.shown.calls and not _has_calls_of(request, ids, each)
            )
        )
        if memory == "turn" or (memory == "auto" and self.forgets):
            return [each for each in kept if each.turn == self.turn]
        unsure = memory == "auto" and not (ids or self.gateway.noted_memory)
        if unsure and any(each.hides and each.turn < self.turn for each in kept):
            self.gateway.noted_memory = True
            self.gateway.on_note(
                "nothing shows whether the agent remembers results of tools in later turns, so those of "
                "mocks are put back: write model_gateway.memory: turn if it keeps only texts, else keep"
            )
        return kept

    def end(self) -> None:
        """Take no more calls."""
        self.over = True
        self.number_at_end = self.gateway.begun
        self.at_work = self.at_work or self.open_requests > 0
        self.answers.clear()

    def passed(self, answer: PassedAnswer) -> None:
        """Remember an answer that the agent has received."""
        if self.over:
            return
        self.answers.append(answer)
        self.model_texts.append(normalized(answer.shown.text))
        for known in answer.shown.ids:
            self.ids.add(known)
            if self.gateway.owners.setdefault(known, self) is not self:
                self.gateway.owners[known] = None

    def forget(self) -> None:
        """Forget the ids, long after the end."""
        for known in self.ids:
            if self.gateway.owners.get(known) is self:
                del self.gateway.owners[known]

    async def end_turn(self) -> TurnTraces:
        if not self.gateway.reached:
            raise MockError(
                f"the agent called no model through the gateway at {self.gateway.origin}, so its real tools "
                "may have run: set OPENAI_BASE_URL, ANTHROPIC_BASE_URL or GOOGLE_GEMINI_BASE_URL for it as "
                "docs/model-gateway.md says, or let `server` start it"
            )
        pending, self._pending = self._pending, []
        for each in pending:  # such as calls that end the agent's work
            await self.serving.answered(each.number, None, failed=False)
        traces = TurnTraces(usage=self.usage, model_calls=self.requests or None)
        self.usage, self.requests = Usage(), 0
        self.turn += 1
        return traces

    async def answer(self, call: ModelCall, *, cut: bool = False) -> CallResult | None:
        """Record a call. Returns the mock's result; None if the agent runs the tool itself.

        Args:
            cut: True if the model's answer was cut off, so that the arguments may be incomplete.

        Raises CallsEnded if the call ends the conversation.
        """
        if self.over:
            raise CallsEnded(f"{self.who} has ended: the call of {call.name!r} was not answered")
        name = self.mock_name(call.name) or _known(call.name, self.recorded)
        problem = call.problem
        if problem and cut:
            problem = f"{problem} (the model's answer was cut off)"
        answer = await self.serving.answer(
            ServedCall(
                tool=name or call.name,
                arguments=call.arguments,
                call_id=call.call_id,
                problem=problem if name else None,
                caller_runs=True,
            )
        )
        if answer.how in (CallOutcome.UNMOCKED, CallOutcome.REFUSED):
            raise CallsEnded(answer.message)
        if answer.how is CallOutcome.REAL:
            self._pending.append(PendingCall(call=call, number=answer.number))
            self.arguments.extend(_texts_in(call.arguments))
            return None
        failed = answer.how is not CallOutcome.ANSWERED
        result = {"error": answer.message} if failed and answer.result is None else answer.result
        if not failed and self.wrapper and not isinstance(result, dict):
            result = {self.wrapper: result}
        return CallResult(name=call.name, result=result, call_id=call.call_id, failed=failed)

    async def read_results(self, request: WireRequest) -> None:
        """Record the results of calls that the agent ran itself, which its next request contains."""
        # The newest first, because some models use the same ids in every turn.
        for result in reversed(request.results) if not self.over else ():
            newest = reversed(self._pending)
            pending = next((each for each in newest if _is_result_of(result, each.call)), None)
            if pending is None:
                continue
            self._pending.remove(pending)
            value = result.result
            if isinstance(value, dict) and len(value) == 1 and (key := next(iter(value))) in _WRAPPERS:
                self.wrapper, value = key, value[key]
            await self.serving.answered(pending.number, value, failed=result.failed)

    def count(self, usage: Usage) -> None:
        """Add one answer of the model."""
        self.usage += usage
        self.requests += 1


def _known(name: str, names: Collection[str]) -> str | None:
    if name in names:
        return name
    short = _MCP_NAME.fullmatch(name)
    return short[1] if short and short[1] in names else None


def _has_calls_of(request: WireRequest, ids: Collection[str], answer: PassedAnswer) -> bool:
    """Return True if a history has the calls of an answer, perhaps as text."""
    return any(
        call.call_id in ids
        or any((call.call_id or f"{call.name}(") in text for text in request.history_texts)
        for call in answer.shown.calls
    )


def _is_result_of(result: CallResult, call: ModelCall) -> bool:
    if result.call_id and call.call_id:
        return result.call_id == call.call_id
    return result.name == call.name


def _texts_in(value: object) -> Sequence[str]:
    if isinstance(value, str):
        return [normalized(value)] if value.strip() else []
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for item in items for text in _texts_in(item)]
