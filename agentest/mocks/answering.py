"""The answers of mocks: calls the mock of a tool in one conversation, with a time limit."""

from __future__ import annotations

import inspect
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from agentest.domain.changes import ChangedAnswers
from agentest.domain.transcript import ToolCall
from agentest.mocks.binding import BoundFunction, InvalidArguments, Mock, MockSequence
from agentest.mocks.calls import HttpResponse, MockOutcome, RecordedCall
from agentest.support.calling import USER_CODE, blocked_at, code_owned_by, ends_the_run, message_of_error
from agentest.support.deadlines import TimeLimit
from agentest.support.errors import AgentestError, EventLoopBlocked, MockError, ToolError, errors_as
from agentest.support.function_threads import BlockingTimer, in_thread
from agentest.support.importing import raised_at
from agentest.support.json_text import NotJson, json_text
from agentest.support.lazy_dataclasses import dataclass, replace
from agentest.support.text import shortened

if TYPE_CHECKING:
    from agentest.mocks.changed_answers import ChangedMocks


@dataclass(frozen=True, slots=True)
class MockContext:
    """The information that a mock function receives in addition to the call's arguments."""

    call_index: int  # number of earlier calls of this tool in this conversation
    turn_index: int
    conversation_id: str
    scenario: str
    state: dict[str, Any] = field(default_factory=dict)
    """State of this conversation only. Mocks may store anything in it."""


class ConversationMocks:
    """The mocks of one conversation, with the positions of their sequences and their shared state."""

    def __init__(
        self,
        tools: Mapping[str, Mock],
        *,
        scenario: str,
        conversation_id: str,
        timeout_s: float,
        redact: Callable[[str], str],
        state: dict[str, Any],
    ) -> None:
        """Create the mocks. `state` is the value of `ctx.state`."""
        self.state = state
        self._tools = tools
        self._scenario = scenario
        self._conversation_id = conversation_id
        self._timeout_s = timeout_s
        self._redact = redact
        self._calls: Counter[str] = Counter()
        self._changed: ChangedMocks | None = None

    async def outcome(self, name: str, args: Mapping[str, Any], turn_index: int) -> MockOutcome:
        """Return the mock's answer to a call. Raises an AgentestError unchanged."""
        ctx = MockContext(self._calls[name], turn_index, self._conversation_id, self._scenario, self.state)
        self._calls[name] += 1
        mock, changes = self._tools[name], None
        if isinstance(mock, ChangedAnswers):
            changes, mock = mock, mock.mock
            ctx = replace(ctx, call_index=self._changed_mocks.reached(name))
        if isinstance(mock, MockSequence):
            mock = mock.steps[min(ctx.call_index, len(mock.steps) - 1)]
        try:
            try:
                call = partial(self._answer, name, mock, dict(args), ctx)
                if changes:
                    call = partial(self._changed_mocks.answer, name, changes.changes, args, call)
                value = await call()
            except HttpResponse as response:  # may be raised or returned
                value = response
            http = value if isinstance(value, HttpResponse) else None
            value = http.sent if http else value
            result = _as_sent(name, value)
        except InvalidArguments as error:
            answer = {"error": f"invalid arguments: {error}"}
            return MockOutcome(result=answer, sent=answer, invalid_arguments=str(error))
        except AgentestError:
            raise
        except BaseException as error:
            if ends_the_run(error):
                raise
            # A mock that raises simulates a failing tool.
            message = message_of_error(error) or type(error).__name__
            redacted = self._redact(message)
            return MockOutcome(
                result={"error": redacted},
                sent={"error": message},
                error=redacted,
                raised=_mistake(error, mock.function) if isinstance(mock, BoundFunction) else None,
            )
        words = self._redact(shortened(str(http))) if http and http.failed else None
        return MockOutcome(result=result, sent=result, as_text=isinstance(value, str), error=words, http=http)

    @property
    def _changed_mocks(self) -> ChangedMocks:
        if self._changed is None:
            from agentest.mocks.changed_answers import ChangedMocks  # needed only for faults and injections

            self._changed = ChangedMocks()
        return self._changed

    async def _answer(self, name: str, mock: Mock, args: dict[str, Any], ctx: MockContext) -> Any:
        if isinstance(mock, BaseException):
            raise mock.with_traceback(None)  # raised repeatedly; each time would extend the traceback
        if isinstance(mock, type) and issubclass(mock, BaseException):
            raise mock
        if not isinstance(mock, BoundFunction):
            return mock
        args = deepcopy(args)  # a mock that changes its arguments must not change the record
        if not mock.may_block:
            return mock(args, ctx)
        limit = TimeLimit(self._timeout_s)
        try:
            with limit, code_owned_by(USER_CODE):  # a mock may call the real tool
                call = partial(mock, args, ctx)
                result = call() if mock.is_async else await in_thread(call, users=mock.function)
                return await BlockingTimer().of(result) if inspect.isawaitable(result) else result
        except EventLoopBlocked as error:
            raise MockError(f"the mock of tool {name!r}: {error}") from None
        except TimeoutError as error:
            if not limit.expired:
                raise
            late = f"the mock of tool {name!r} did not answer within {self._timeout_s:g} s"
            raise MockError(f"{late} ({at})" if (at := blocked_at(error.__cause__)) else late) from None


def _mistake(error: BaseException, function: Callable[..., Any]) -> str | None:
    if isinstance(error, ToolError):
        return None
    where = raised_at(error, function)
    return f"{type(error).__name__} at {where}" if where else type(error).__name__


def _as_sent(name: str, result: Any) -> Any:
    """Return the result as the agent receives it: read back from JSON, so that the record cannot change."""
    if isinstance(result, str):
        return result
    problem = f"the mock of tool {name!r} must return JSON, like a dict, a list or a text: "
    with errors_as(MockError, problem, NotJson):
        return json.loads(json_text(result))


@dataclass(frozen=True, slots=True, kw_only=True)
class ManualAnswer:
    """An answer given by hand: a JSON value, or the error message of a failing tool."""

    result: Any = None
    error: str | None = None

    @property
    def outcome(self) -> MockOutcome:
        """Return the outcome as if a mock had answered."""
        if self.error is None:
            return MockOutcome(result=self.result, sent=self.result, as_text=isinstance(self.result, str))
        answer = {"error": self.error}
        return MockOutcome(result=answer, sent=answer, error=self.error)


class ToolSimulator(Protocol):
    """Answers tools that have no mock."""

    async def answer(self, call: ToolCall, earlier: Sequence[ToolCall]) -> Any:
        """Return the result of a call, given the earlier ones. Raises an AgentestError."""


class Attendant(Protocol):
    """A participant that observes a conversation's calls and may answer them, even without a mock."""

    def noticed(self, call: RecordedCall) -> None:
        """Receive a call that was recorded or changed, from any thread."""

    async def answer(self, call: RecordedCall, proposed: MockOutcome | None) -> ManualAnswer | None:
        """Return the answer to a call; None: use the mock's answer, `proposed`, if there is one."""
