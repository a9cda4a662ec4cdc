"""Asking the mocks of one conversation: what the mock of a tool makes of a call."""

from __future__ import annotations

import inspect
import json
from collections import Counter
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from agentest.mocks.binding import BoundFunction, InvalidArguments, Mock, MockSequence
from agentest.mocks.calls import RecordedCall
from agentest.mocks.http_response import HttpResponse
from agentest.support.calling import ends_the_run, words_of
from agentest.support.deadlines import TimeLimit
from agentest.support.errors import AgentestError, MockError, ToolError
from agentest.support.function_threads import in_thread
from agentest.support.functions import THE_USERS, code_of
from agentest.support.json_text import NotJson, json_text
from agentest.support.source_location import raised_at
from agentest.support.text import shortened


@dataclass(frozen=True, slots=True)
class MockContext:
    """What a mock function may know besides the call's arguments."""

    call_index: int
    """How many calls of this tool came before in this conversation."""
    turn_index: int
    conversation_id: str
    scenario: str
    state: dict[str, Any] = field(default_factory=dict)
    """Belongs to this conversation alone; mocks may keep in it what they like."""


class AskedMocks:
    """Mocks as one conversation asks them: where their sequences are, and the state that they share."""

    def __init__(
        self,
        tools: Mapping[str, Mock],
        *,
        scenario: str,
        conversation_id: str,
        timeout_s: float,
        redact: Callable[[str], str],
    ) -> None:
        self.state: dict[str, Any] = {}
        """What mocks find in `ctx.state`."""
        self._tools = tools
        self._scenario = scenario
        self._conversation_id = conversation_id
        self._timeout_s = timeout_s
        self._redact = redact
        self._calls: Counter[str] = Counter()

    async def outcome(self, name: str, args: Mapping[str, Any], turn_index: int) -> Outcome:
        """What the tool's mock makes of a call. Raises an AgentestError as it is."""
        mock, ctx = self._step(name, turn_index)
        try:
            value = await self._answer_or_response(name, mock, dict(args), ctx)
            http = value if isinstance(value, HttpResponse) else None
            value = http.sent if http else value
            result = _as_sent(name, value)
        except InvalidArguments as error:
            answer = {"error": f"invalid arguments: {error}"}
            return Outcome(result=answer, sent=answer, invalid_arguments=str(error))
        except AgentestError:
            raise
        except BaseException as error:
            if ends_the_run(error):
                raise
            # A mock that raises is a tool that fails.
            message = words_of(error) or type(error).__name__
            shown = self._redact(message)
            return Outcome(
                result={"error": shown},
                sent={"error": message},
                error=shown,
                raised=_mistake(error, mock.function) if isinstance(mock, BoundFunction) else None,
            )
        words = self._redact(shortened(str(http))) if http and http.failed else None
        return Outcome(result=result, sent=result, as_text=isinstance(value, str), error=words, http=http)

    def _step(self, name: str, turn_index: int) -> tuple[Mock, MockContext]:
        """The mock that answers the next call, an item of a sequence by itself, and its context."""
        ctx = MockContext(self._calls[name], turn_index, self._conversation_id, self._scenario, self.state)
        self._calls[name] += 1
        mock = self._tools[name]
        if isinstance(mock, MockSequence):
            mock = mock.steps[min(ctx.call_index, len(mock.steps) - 1)]
        return mock, ctx

    async def _answer_or_response(self, name: str, mock: Mock, args: dict[str, Any], ctx: MockContext) -> Any:
        """What the mock answers; a response of HTTP may be raised, too."""
        try:
            return await self._answer(name, mock, args, ctx)
        except HttpResponse as response:
            return response

    async def _answer(self, name: str, mock: Mock, args: dict[str, Any], ctx: MockContext) -> Any:
        if isinstance(mock, BaseException):
            raise mock.with_traceback(None)  # it is raised again and again: each time would add to the last
        if isinstance(mock, type) and issubclass(mock, BaseException):
            raise mock
        if not isinstance(mock, BoundFunction):
            return mock
        # What the mock does to its arguments must not change the record.
        return await self._called(name, mock, deepcopy(args), ctx)

    async def _called(self, name: str, mock: BoundFunction, args: dict[str, Any], ctx: MockContext) -> Any:
        limit = TimeLimit(self._timeout_s)
        try:
            with limit, code_of(THE_USERS):  # a mock may call the real tool
                call = partial(mock, args, ctx)
                result = call() if mock.is_async else await in_thread(call, users=mock.function)
                return await result if inspect.isawaitable(result) else result
        except TimeoutError:
            if not limit.expired:
                raise
            raise MockError(
                f"the mock of tool {name!r} did not answer within {self._timeout_s:g} s"
            ) from None


def _mistake(error: BaseException, function: Callable[..., Any]) -> str | None:
    """The exception and where it was raised; None where a mock raised it to make its tool fail."""
    if isinstance(error, ToolError):
        return None
    where = raised_at(error, function)
    return f"{type(error).__name__} at {where}" if where else type(error).__name__


def _as_sent(name: str, result: Any) -> Any:
    """The result as the agent gets it: read back from JSON, so that the record cannot change later."""
    if isinstance(result, str):
        return result
    try:
        return json.loads(json_text(result))
    except NotJson as error:
        raise MockError(
            f"the mock of tool {name!r} answered with something that is not JSON-serialisable: {error}"
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a call comes to: as it is recorded, and as the agent gets it."""

    result: Any = None
    sent: Any = None
    as_text: bool = False
    """Whether it is sent as the text that it is: a date is one only in JSON."""
    error: str | None = None
    invalid_arguments: str | None = None
    http: HttpResponse | None = None
    """The status and headers that the mock wishes."""
    raised: str | None = None
    """The exception that the mock's own code raised by mistake, and where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What somebody answers by hand: a JSON value, or the message of an error with which the tool fails."""

    result: Any = None
    error: str | None = None

    @property
    def outcome(self) -> Outcome:
        """The same as a mock would have answered it."""
        if self.error is None:
            return Outcome(result=self.result, sent=self.result, as_text=isinstance(self.result, str))
        answer = {"error": self.error}
        return Outcome(result=answer, sent=answer, error=self.error)


class Attendant(Protocol):
    """Whoever attends to a conversation. Calls that nothing mocks are answered by it, too."""

    def noticed(self, call: RecordedCall) -> None:
        """A call was recorded, or more is known of it. It may come from any thread."""
        ...

    async def answer(self, call: RecordedCall, proposed: Outcome | None) -> Given | None:
        """The answer to a call; None: what the mock proposes. `proposed` is None where nothing mocks it."""
        ...
