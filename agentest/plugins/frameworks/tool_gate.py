"""The gate between an agent object and its tools: a mock answers each call, or the real tool may run.

A gate belongs to one turn of one conversation. A tool call from another task, a thread or a nested agent
reaches the gate of its own conversation through context variables.

At the end are the functions behind `agentest.mocks.langchain(tools, ctx)` and its siblings. Outside of a run,
the real tools run, so the line can stay in production code."""

from __future__ import annotations

import inspect
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from os import environ
from typing import Any, overload

from agentest.agents.port import InProcessTurn, RealCall, TurnContext
from agentest.domain.tool_visibility import Approval
from agentest.domain.transcript import ToolCall
from agentest.plugins.protocols.approvals import Approver
from agentest.support import calling, errors
from agentest.support.function_threads import in_function_thread
from agentest.support.json_text import safe_repr
from agentest.support.lazy_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """The answer to a tool call."""

    value: Any  # a JSON value from a mock, or whatever the real tool returned
    mocked: bool


_QUESTIONS = ("GraphInterrupt", "ApprovalRequired")  # the tools run again when they are answered


class ToolGate:
    """Answers the tool calls of one turn."""

    def __init__(self, ctx: TurnContext) -> None:
        self._ctx = ctx
        self._resolve = calling.make_loop_independent(ctx.resolve_tool)
        self._seen: set[str] = set()
        self._ignored: set[str] = set()
        self._without_id: list[tuple[str, Any]] = []
        """Calls without an id, as (tool, arguments): the user's code makes them for a call of the model."""
        self.approver = Approver(ctx.approve)
        self.turn_index = ctx.turn_index
        self.decided: dict[str | None, ToolCall] = {}
        """Id → the call, for calls that the user has decided about and no real tool has answered."""
        self._running: dict[str, RealCall] = {}
        self._waiting: dict[str, RealCall] = {}
        self._turn = ctx.in_process or InProcessTurn()

    @classmethod
    def of(cls, ctx: TurnContext) -> ToolGate:
        """Return the gate of a turn, or a new one if the context belongs to none."""
        gate = cls(ctx)
        # Tools in several threads may be the first at once: the gate of one of them is that of the turn.
        return gate if ctx.in_process is None else ctx.in_process.gates.setdefault(cls, gate)

    @property
    def ended(self) -> errors.AgentestError | None:
        """The error that ended the turn, such as a missing or broken mock."""
        return self._turn.ended

    def saw(self, call_id: str | None, name: str, args: Any) -> bool:
        """Return True if a call went through this gate. A call without an id counts once."""
        is_known = call_id in self._seen or name in self._ignored
        if not is_known and (is_known := (name, args) in self._without_id):
            self._without_id.remove((name, args))
        return is_known

    async def answer(
        self,
        name: str,
        args: Any,
        run: Callable[[], Awaitable[Any]],
        call_id: str | None = None,
        shown: Callable[[Any], Any] = lambda value: value,
    ) -> ToolAnswer:
        """Answer a call with its mock, or `run` the real tool if that is allowed.

        `shown` converts the real tool's result to the value that is recorded.
        """
        with self._storing_error():
            real = self._start_call(name, args, call_id)
            if real is None:
                return ToolAnswer(await self._answer_by_mock(name, args), True)
        with self._recording_failure(real, call_id):
            value = await run()
        real.answered(shown(value))
        return ToolAnswer(value, False)

    def answer_plainly(
        self,
        name: str,
        args: Any,
        run: Callable[[], Any],
        call_id: str | None = None,
        shown: Callable[[Any], Any] = lambda value: value,
    ) -> ToolAnswer:
        """Answer a call from sync code, and block until the answer is there. Otherwise like `answer`."""
        with self._storing_error():
            real = self._start_call(name, args, call_id)
            if real is None:
                return ToolAnswer(self._resolve.plainly(name, args), True)
        with self._recording_failure(real, call_id):
            value = run()
        real.answered(shown(value))
        return ToolAnswer(value, False)

    async def begin(self, name: str, args: Any, key: str) -> ToolAnswer | None:
        """Answer a call with its mock. None if the real tool has to run: call `end` or `fail` then."""
        with self._storing_error():
            real = self._start_call(name, args, None, key)
            if real is None:
                return ToolAnswer(await self._answer_by_mock(name, args), True)
        self._running[key] = real
        return None

    def end(self, key: str, result: Any, *, asks: bool = False) -> None:
        """Record the result of a real tool that `begin` allowed, or that it asks for approval."""
        if real := self._running.pop(key, None):
            if asks:
                self._ask(key, real)
            else:
                real.answered(result)

    def fail(self, key: str, error: BaseException) -> None:
        """Record the exception of a real tool that `begin` allowed."""
        if real := self._running.pop(key, None):
            real.failed(error)

    def let_pass(self, call_id: str | None) -> None:
        """Ignore a call that hands the conversation over to another agent."""
        self._seen.add(call_id or "")

    def ignore(self, names: Iterable[str]) -> None:
        """Ignore calls with these names, because the framework uses them to return its reply."""
        self._ignored.update(names)

    def note(self, name: str, args: Any, result: Any, call_id: str | None = None) -> None:
        """Record a call that no tool answered, because it was refused or the tool does not exist."""
        self._ctx.record_tool(name, args if isinstance(args, dict) else {"arguments": args}, result)
        self._remember(name, args, call_id)

    def note_not_run(self, name: str, args: Any, why: Any, call_id: str | None) -> None:
        """Record a call that the framework did not run."""
        self.note(name, args, {"error": f"not run: {why}"}, call_id)

    def note_past(self, name: str, args: Any, result: Any, where: str) -> None:
        """Record a call that bypassed the gate, and end the turn if the real tool was not allowed to run."""
        with self._storing_error():
            real = self._ctx.real_call(name, args)
            if real is not None:
                return real.answered(result)
            self.note(name, args, result)
            raise errors.AgentError(
                f"the agent called {name!r}, which {where}: mocks cannot take its place, and it has run. If "
                "it may run, leave its mock out and set unmocked_tools: passthrough; if it must not, make it "
                "a tool of the framework's, or leave it out of the agent under test"
            )

    async def _answer_by_mock(self, name: str, args: Any) -> Any:
        found = self._resolve(name, args)
        return await found if inspect.isawaitable(found) else found

    def _start_call(self, name: str, args: Any, call_id: str | None, key: str = "") -> RealCall | None:
        if self.ended is not None:
            raise self.ended
        if self._turn.is_over:
            raise errors.AgentError(
                f"tool {name!r} was called when its conversation had ended; it was not run"
            )
        self._remember(name, args, call_id)
        real = self._waiting.pop(call_id or key, None) or self._ctx.real_call(name, args)
        if real is not None and (approved := self.decided.pop(call_id or key, None)):
            real.approval = approved.approval
        return real

    def leave(self, call_id: str | None, approval: Approval) -> bool:
        """Note that a call does not run now. Returns True if its tool was called and asked itself."""
        self.let_pass(call_id)
        if real := self._waiting.get(call_id or ""):
            real.approval = approval  # also if the tool is called again, to hear that it was denied
            real.not_run(approval)
        return real is not None

    def _remember(self, name: str, args: Any, call_id: str | None) -> None:
        if call_id is None:
            self._without_id.append((name, args))
        else:
            self._seen.add(call_id)

    @contextmanager
    def _recording_failure(self, real: RealCall, call_id: str | None) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if call_id and type(error).__name__ in _QUESTIONS:
                self._ask(call_id, real)
            else:
                real.failed(error)
            raise

    def _ask(self, call_id: str, real: RealCall) -> None:
        real.not_run(Approval.PENDING)
        self._waiting[call_id] = real

    @contextmanager
    def _storing_error(self) -> Iterator[None]:
        try:
            yield
        except errors.UnmockedToolError as error:
            self._turn.ended = errors.UnmockedToolError(error.problem, errors.REAL_TOOLS_RUN)
            raise self._turn.ended from None
        except errors.AgentestError as error:
            self._turn.end(error)
            raise


_GATED_MARK = "__agentest_gate__"
_MOCK_SERVER_VARIABLES = ("AGENTEST_MCP_URL", "AGENTEST_REST_URL")
_gates_by_thread: Counter[int] = Counter()
"""Thread id → number of active gates, for threads whose event loops run conversations."""


def current_gate() -> ToolGate | None:
    """Return the gate of the current conversation, or None outside of conversations.

    Raises AgentError in a user's thread without context if any conversation is running.
    """
    who = calling.current_code_owner()
    if isinstance(who, ToolGate):
        return who
    if who is not None:
        return None
    if _gates_by_thread and threading.get_ident() not in _gates_by_thread and not in_function_thread():
        raise errors.AgentError(
            f"a tool or agent was called in thread {threading.current_thread().name!r}, which does not know "
            "whose conversation it works for, so that mocks cannot answer; it was not run. Call it by "
            "asyncio.to_thread, or give the thread its context: contextvars.copy_context().run"
        )
    return None


def gate_for_wrapped_tool(name: str, given: ToolGate | None = None) -> ToolGate | None:
    """Return the gate for a wrapped tool, or None if the real tool should run.

    The real tool runs outside of runs, inside a mock, and behind another gate.
    """
    who = calling.current_code_owner()
    if who is calling.USER_CODE or isinstance(who, ToolGate):  # inside a mock, or behind another gate
        return None
    if given is not None:
        return given
    if isinstance(who, TurnContext):
        return ToolGate.of(who)
    if calling.is_run_in_progress():
        error = errors.MockError(
            f"tool {name!r} was called where it is not known for which conversation, in thread "
            f"{threading.current_thread().name!r}, so that mocks cannot answer; it was not run. Call it in "
            "the task of the request, by asyncio.to_thread, or with its context: "
            "contextvars.copy_context().run; or give ctx to agentest.mocks"
        )
        for turn in tuple(InProcessTurn.in_progress):
            turn.end(error)
        raise error
    if any(environ.get(variable) for variable in _MOCK_SERVER_VARIABLES):
        raise errors.MockError(
            f"tool {name!r} was not run: Agentest has started this process, and its mocks are at the mock "
            "server ($AGENTEST_MCP_URL, $AGENTEST_REST_URL), not in here. Let the tool call that; or run "
            "the agent in Agentest's process (`app`, or type: custom)"
        )
    return None


def any_gate(_: str) -> ToolGate | None:
    """Return the gate of the current conversation, for a tool of any name."""
    return current_gate()


@contextmanager
def gate_in_front(gate: ToolGate) -> Iterator[None]:
    """Put a gate in front of all tools called in this block."""
    home = threading.get_ident()
    _gates_by_thread[home] += 1
    try:
        with calling.code_owned_by(gate):
            yield
    finally:
        _gates_by_thread[home] -= 1
        if not _gates_by_thread[home]:
            del _gates_by_thread[home]


def gate_method(owner: Any, method: str, gated: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Route a method of a framework's class through the gate, once. Without a gate it behaves as before.

    `gated` returns the new method for the original one.
    """
    original = owner.__dict__[method]
    if hasattr(original, _GATED_MARK):
        return
    made = wraps(original)(gated(original))
    setattr(made, _GATED_MARK, True)
    setattr(owner, method, made)


FindGate = Callable[[str], ToolGate | None]
"""Returns the gate for a tool of this name. None runs the real tool. May raise AgentestError."""


def langchain(tools: Iterable[Any], ctx: TurnContext | None = None) -> list[Any]:
    """Return LangChain or LangGraph tools whose calls the mocks answer.

    Args:
        tools: tools, or functions to convert to tools. Tools of the model's provider (mappings) are
            unchanged.
        ctx: the handler's context. Default: the conversation in which a tool is called.
    """
    gates, runner = _gates(ctx), _framework_module("langchain", "langchain_core", "LangChain")
    return list(runner.asking_tools(tools, gates))


def openai_agents(tools: Iterable[Any], ctx: TurnContext | None = None) -> list[Any]:
    """Return function tools of the OpenAI Agents SDK whose calls the mocks answer; `ctx` as in `langchain`.

    Tools that the provider runs are unchanged. Raises UsageError for a tool that acts on this machine.
    """
    gates, runner = _gates(ctx), _framework_module("openai_agents", "agents", "the OpenAI Agents SDK")
    return list(runner.asking_tools(tools, gates))


@overload
def pydantic_ai(tools: None = None, ctx: TurnContext | None = None) -> Any: ...
@overload
def pydantic_ai(tools: Iterable[Any], ctx: TurnContext | None = None) -> list[Any]: ...
def pydantic_ai(tools: Iterable[Any] | None = None, ctx: TurnContext | None = None) -> Any:
    """Return a capability for pydantic-ai's `capabilities`, through which mocks answer all tools.

    Args:
        tools: functions, tools and toolsets. If given, the result is for `toolsets`, and mocks answer these.
        ctx: as in `langchain`.
    """
    gates = _gates(ctx)
    runner = _framework_module("pydantic_ai", "pydantic_ai", "pydantic-ai")
    return runner.asking_capability(gates) if tools is None else runner.asking_toolsets(tools, gates)


def adk(ctx: TurnContext | None = None) -> Any:
    """Return a plugin for the `plugins` of google-adk's App or runners, through which mocks answer all tools.

    `ctx` is as in `langchain`.
    """
    return _framework_module("google_adk", "google.adk", "google-adk").asking_plugin(_gates(ctx))


def _framework_module(name: str, package: str, title: str) -> Any:
    """Return a framework's module. Raises UsageError if the framework is not installed."""
    try:
        import_module(package)
    except ImportError as error:
        raise errors.UsageError(
            f"agentest.mocks: {title} is not installed where Agentest runs, or too old: "
            f"{calling.message_of_error(error)}"
        ) from error
    return import_module(f"agentest.plugins.frameworks.{name}")


def _gates(ctx: TurnContext | None) -> FindGate:
    if ctx is None:
        return gate_for_wrapped_tool
    if not isinstance(ctx, TurnContext):
        raise errors.UsageError(
            f"agentest.mocks: `ctx` is {safe_repr(ctx):.100}; expected the ctx that a handler is given, or "
            "nothing: then it is the conversation that is under way where a tool is called"
        )
    gate = ToolGate.of(ctx)
    return lambda name: gate_for_wrapped_tool(name, gate)
