"""What stands between an agent object and its tools: mocks answer, or the real tool may run.

A gate belongs to one turn of one conversation. Whatever calls a tool (another task, a thread, an agent within
the agent) comes to the gate of its own conversation (`standing`).
"""

from __future__ import annotations

import inspect
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from os import environ
from typing import Any

from agentest.agents.port import RealCall, TurnContext
from agentest.support.calling import from_anywhere
from agentest.support.errors import REAL_TOOLS_RUN, AgentError, AgentestError, MockError, UnmockedToolError
from agentest.support.function_threads import in_function_thread
from agentest.support.functions import THE_USERS, code_of, whose_code


@dataclass(frozen=True, slots=True)
class Answer:
    """What a tool call is answered with."""

    value: Any
    """Of a mock: a JSON value. Of the real tool: whatever that returned."""
    mocked: bool


Shown = Callable[[Any], Any]


def _as_it_is(value: Any) -> Any:
    return value


class Gate:
    """Answers the tool calls of one turn. What ends the turn is kept: frameworks may swallow it."""

    def __init__(self, ctx: TurnContext) -> None:
        self._ctx = ctx
        self._resolve = from_anywhere(ctx.resolve_tool)
        self._seen: set[str] = set()
        self._ignored: set[str] = set()
        self._without_id: list[tuple[str, Any]] = []
        """Calls without an id, by tool and arguments: made by code of the user's, for the model's request."""
        self._running: dict[str, RealCall] = {}
        self._ended: AgentestError | None = None
        self._closed = False

    @classmethod
    def of(cls, ctx: TurnContext) -> Gate:
        """The gate of a turn; a new one for a context that belongs to no run's."""
        return ctx.gate if isinstance(ctx.gate, cls) else cls(ctx)

    def end_turn(self, error: AgentestError) -> None:
        """End the turn: it is not known whether what happened elsewhere was of it. No call is answered."""
        self._ended = self._ended or error

    def close(self) -> None:
        """Answer no call any more: the conversation has ended."""
        self._closed = True

    @property
    def ended(self) -> AgentestError | None:
        """What ended the turn: a tool without a mock, a broken mock."""
        return self._ended

    def saw(self, call_id: str | None, name: str, args: Any) -> bool:
        """Whether a call came through here; one that came without its id counts once."""
        if call_id in self._seen or name in self._ignored:
            return True
        if (name, args) not in self._without_id:
            return False
        self._without_id.remove((name, args))
        return True

    async def answer(
        self,
        name: str,
        args: Any,
        run: Callable[[], Awaitable[Any]],
        call_id: str | None = None,
        shown: Shown = _as_it_is,
    ) -> Answer:
        """Answer a call: by its mock, or by `run`, the real tool, where that is let through.

        Args:
            shown: what of the real tool's result is recorded.
        """
        with self._ending():
            real = self._begun(name, args, call_id)
            if real is None:
                return Answer(await self._resolved(name, args), True)
        with _kept(real):
            value = await run()
        real.answered(shown(value))
        return Answer(value, False)

    def answer_plainly(
        self,
        name: str,
        args: Any,
        run: Callable[[], Any],
        call_id: str | None = None,
        shown: Shown = _as_it_is,
    ) -> Answer:
        """The same for code that is not async: it waits."""
        with self._ending():
            real = self._begun(name, args, call_id)
            if real is None:
                return Answer(self._resolve.plainly(name, args), True)
        with _kept(real):
            value = run()
        real.answered(shown(value))
        return Answer(value, False)

    async def begin(self, name: str, args: Any, key: str) -> Answer | None:
        """Answer a call by its mock. None: the real tool is to run; `end` or `fail` is told of it by key."""
        with self._ending():
            real = self._begun(name, args, None)
            if real is None:
                return Answer(await self._resolved(name, args), True)
        self._running[key] = real
        return None

    def end(self, key: str, result: Any) -> None:
        """The real tool of a call returned this, if it was one that ran."""
        if real := self._running.pop(key, None):
            real.answered(result)

    def fail(self, key: str, error: BaseException) -> None:
        """The real tool of a call raised this."""
        if real := self._running.pop(key, None):
            real.failed(error)

    def let_pass(self, call_id: str | None) -> None:
        """Take a call for what is no tool's: it hands the conversation over to another agent."""
        self._seen.add(call_id or "")

    def ignore(self, names: Iterable[str]) -> None:
        """Take the calls of these names for what are no tool's: the framework reads the reply from them."""
        self._ignored.update(names)

    def note(self, name: str, args: Any, result: Any, call_id: str | None = None) -> None:
        """Record a call that no tool has answered: it was refused, or the tool does not exist."""
        self._ctx.record_tool(name, args if isinstance(args, dict) else {"arguments": args}, result)
        self._remember(name, args, call_id)

    def note_past(self, name: str, args: Any, result: Any, where: str) -> None:
        """Record a call that was made past the gate, and end the turn where it should not have been."""
        with self._ending():
            real = self._ctx.real_call(name, args)
            if real is not None:
                return real.answered(result)
            self.note(name, args, result)
            raise AgentError(
                f"the agent called {name!r}, which {where}: mocks cannot take its place, and it has run. If "
                "it may run, leave its mock out and set unmocked_tools: passthrough; if it must not, make it "
                "a tool of the framework's, or leave it out of the agent under test"
            )

    async def _resolved(self, name: str, args: Any) -> Any:
        found = self._resolve(name, args)
        return await found if inspect.isawaitable(found) else found

    def _begun(self, name: str, args: Any, call_id: str | None) -> RealCall | None:
        if self._ended is not None:
            raise self._ended
        if self._closed:
            raise AgentError(f"tool {name!r} was called when its conversation had ended; it was not run")
        self._remember(name, args, call_id)
        return self._ctx.real_call(name, args)

    def _remember(self, name: str, args: Any, call_id: str | None) -> None:
        if call_id is None:
            self._without_id.append((name, args))
        else:
            self._seen.add(call_id)

    @contextmanager
    def _ending(self) -> Iterator[None]:
        try:
            yield
        except UnmockedToolError as error:
            self._ended = UnmockedToolError(error.problem, REAL_TOOLS_RUN)
            raise self._ended from None
        except AgentestError as error:
            self._ended = self._ended or error
            raise


@contextmanager
def _kept(real: RealCall) -> Iterator[None]:
    """Keep what the real tool raises."""
    try:
        yield
    except Exception as error:
        real.failed(error)
        raise


_PLACED = "__agentest_gate__"
_SERVED = ("AGENTEST_MCP_URL", "AGENTEST_REST_URL")
"""What a process finds in its environment that a run has started, with mock servers beside it."""
_homes: Counter[int] = Counter()
"""The threads whose event loops lead conversations, and how many gates stand there now."""
_asked_for: list[Gate] = []
"""The gates that may be asked for now."""
_runs: list[object] = []
"""The runs that are under way in this process."""


@dataclass(frozen=True, slots=True)
class _ForWhoAsks:
    """A gate that stands before no tool but those that ask for it."""

    gate: Gate


def current() -> Gate | None:
    """The gate of the conversation whose code this is; None outside of conversations.

    Raises AgentError in a thread of the user's that does not know its conversation, while there are any.
    """
    who = whose_code()
    if isinstance(who, Gate):
        return who
    if who is not None:
        return None
    if _homes and threading.get_ident() not in _homes and not in_function_thread():
        raise AgentError(
            f"a tool or agent was called in thread {threading.current_thread().name!r}, which does not know "
            "whose conversation it works for, so that mocks cannot answer; it was not run. Call it by "
            "asyncio.to_thread, or give the thread its context: contextvars.copy_context().run"
        )
    return None


def asked(name: str, given: Gate | None = None) -> Gate | None:
    """The gate that a tool asks for; None: the real one runs, as no run is under way, or a mock calls it.

    Args:
        name: the tool's, for errors.
        given: the gate of the conversation, where the code says which that is.

    Raises MockError where it is not known whose call it is; conversations that it may be of end with it.
    """
    who = whose_code()
    if who is THE_USERS or isinstance(who, Gate):  # which stands before it already
        return None
    if given is not None:
        return given
    if isinstance(who, _ForWhoAsks):
        return who.gate
    if _runs:
        raise _lost(name)
    if any(environ.get(variable) for variable in _SERVED):
        raise MockError(
            f"tool {name!r} was not run: Agentest has started this process, and its mocks are at the mock "
            "server ($AGENTEST_MCP_URL, $AGENTEST_REST_URL), not in here. Let the tool call that; or run "
            "the agent in Agentest's process (`app`, or type: custom)"
        )
    return None


def _lost(name: str) -> MockError:
    error = MockError(
        f"tool {name!r} was called where it is not known for which conversation, in thread "
        f"{threading.current_thread().name!r}, so that mocks cannot answer; it was not run. Call it in the "
        "task of the request, by asyncio.to_thread, or with its context: contextvars.copy_context().run; "
        "or give ctx to agentest.mocks"
    )
    for gate in tuple(_asked_for):
        gate.end_turn(error)
    return error


@contextmanager
def standing(gate: Gate) -> Iterator[None]:
    """Have a gate stand before all tools that are called from here on."""
    home = threading.get_ident()
    _homes[home] += 1
    try:
        with code_of(gate):
            yield
    finally:
        _homes[home] -= 1
        if not _homes[home]:
            del _homes[home]


@contextmanager
def to_be_asked_for(gate: Gate) -> Iterator[None]:
    """Have tools that ask for a gate find this one in what is called from here on."""
    _asked_for.append(gate)
    try:
        with code_of(_ForWhoAsks(gate)):
            yield
    finally:
        _asked_for.remove(gate)


@contextmanager
def run_under_way() -> Iterator[None]:
    """Have no tool that asks for a gate run the real one without a conversation."""
    run = object()
    _runs.append(run)
    try:
        yield
    finally:
        _runs.remove(run)


def place(owner: Any, method: str, gated: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Lead a method of a framework's class by the gate, once and for all: without a gate it is what it was.

    Args:
        gated: makes the method to be called from the one that was there.
    """
    original = owner.__dict__[method]
    if hasattr(original, _PLACED):
        return
    made = wraps(original)(gated(original))
    setattr(made, _PLACED, True)
    setattr(owner, method, made)
