"""The mock resolver: answers and records an agent's tool calls in one conversation."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Literal

from agentest.domain.messages import ToolSpec
from agentest.domain.tool_visibility import Approval, SeenBy
from agentest.domain.transcript import CANCELLED, CUT_OFF, NO_MOCK, ToolCall
from agentest.mocks.binding import Mock, RecordedAnswer, tool_specs
from agentest.mocks.calls import (
    CallRecord,
    MockOutcome,
    PendingRealCall,
    RecordedCall,
    check_tool_name,
    recordable,
    recordable_call,
    shortened_args,
)
from agentest.support.calling import ends_the_run, message_of_error
from agentest.support.errors import AgentestError, MockError, OwnFault, UnmockedToolError
from agentest.support.json_text import (
    STRICT,
    BuiltinState,
    builtin_bytes,
    copied,
    json_text,
    safe_repr,
    well_formed,
    well_formed_value,
)
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import shortened, turn_name

if TYPE_CHECKING:
    from agentest.mocks.answering import Attendant, ConversationMocks, ToolSimulator


class MockResolver:
    """The mocks of one scenario in one conversation.

        mocks = MockResolver({"get_order": {"id": 17}}, scenario="refunds an order", conversation_id="1")
        order = await mocks.resolve("get_order", {"id": 17}, turn_index=0)
        assert [call.name for call in mocks.calls] == ["get_order"]

    Positions in sequences and the copy of the initial `state` belong to this conversation.
    """

    def __init__(
        self,
        tools: Mapping[str, Mock],
        *,
        scenario: str,
        conversation_id: str,
        recorded: Sequence[RecordedAnswer] | None = None,
        unmocked_tools: Literal["error", "passthrough"] | ToolSimulator = "error",
        timeout_s: float = 30.0,
        redact: Callable[[str], str] = str,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        self._tools = tools
        self._recorded = recorded or ()
        self._of_a_case = recorded is not None
        self._scenario = scenario
        self._conversation_id = conversation_id
        self._simulator = None if isinstance(unmocked_tools, str) else unmocked_tools
        self._passthrough = unmocked_tools == "passthrough"
        self._timeout_s = timeout_s
        self._redact = redact
        self._initial = state
        self.state: dict[str, Any] = {}
        """The value of `ctx.state` in mocks: one object for the whole conversation."""
        self._called: ConversationMocks | None = None
        """None until the first call, as most conversations have none."""
        self.fault: OwnFault | None = None  # our own error that cost the conversation a call
        self.record = CallRecord(mocked=tools)
        self._attendant: Attendant | None = None

    def attended_by(self, attendant: Attendant) -> None:
        """Let an attendant observe every call from now on, and answer calls if it wants to."""
        self._attendant = attendant
        self.record.on_change = attendant.noticed

    def with_tools(self, tools: Mapping[str, Mock]) -> MockResolver:
        """Return a resolver for other tools in the same conversation. It shares only the state."""
        other = MockResolver(
            tools,
            scenario=self._scenario,
            conversation_id=self._conversation_id,
            timeout_s=self._timeout_s,
            redact=self._redact,
        )
        other.state = self.state
        return other

    def begin(self) -> None:
        """Fill the mocks' shared state with its initial value. Raises MockError."""
        if self._initial is not None:
            self.state.update(copy_initial_state(self._initial))

    def end_state(self) -> EndState:
        """Return the state at the end of the conversation."""
        return end_state(self.state, self._initial)

    def specs(self) -> tuple[ToolSpec, ...]:
        """Describe the mocks as tools."""
        return tool_specs(self._tools)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """All calls so far, in order."""
        return self.record.calls

    def observe(self, calls: Sequence[ToolCall], *, may_repeat: bool = False) -> None:
        """Record calls not answered here (`CallRecord.observe`). Raises AgentError for an invalid name."""
        for call in calls:
            check_tool_name(call.name)
        self.record.observe([recordable_call(call) for call in calls], may_repeat=may_repeat)

    def real_call(self, name: str, args: Any, turn_index: int) -> PendingRealCall | None:
        """Record a call that the agent's own tool is to answer. Returns None if the tool must not run.

        The tool may run if `unmocked_tools` is `passthrough` and nothing else answers the call. The call is
        recorded before the tool runs, because a call that never ends was still made.
        """
        check_tool_name(name)
        name, args = well_formed(name), recordable(args)
        if name in self._tools or not self._passthrough or self._recorded_for(name, args):
            return None
        call = ToolCall(name, args, None, False, turn_index, error=CANCELLED, seen_by=SeenBy.AGENT)
        return PendingRealCall(self.record, self.record.begin(call), self._redact)

    async def resolve_json(
        self,
        name: str,
        arguments: str,
        turn_index: int,
        call_id: str | None = None,
        *,
        round: int | None = None,
    ) -> str:
        """Answer a call with JSON arguments. Returns the text of the tool message.

        Args:
            round: index of the agent's message in the turn that made the call.

        Raises UnmockedToolError, MockError, or the AgentestError that a mock raised.
        """
        # Agents often send no text for a tool without arguments.
        try:
            args: Any = json.loads(arguments, **STRICT) if arguments.strip() else {}
        except (ValueError, RecursionError) as error:
            call = self._begin(name, arguments, turn_index, call_id, round=round)
            return json_text(self._refuse(call, f"the arguments are not valid JSON: {error}"))
        result, is_text = await self._resolved(name, args, turn_index, call_id, round)
        return str(result) if is_text else json_text(result)

    async def resolve(self, name: str, args: Any, turn_index: int) -> Any:
        """Answer and record a call. Returns the result, a JSON value that the caller may change."""
        result, _ = await self._resolved(name, copied(args), turn_index)
        return copied(result)

    def refuse(self, name: str, args: Any, turn_index: int, problem: str) -> str:
        """Record an impossible call and answer it with an error. Returns the text of the tool message."""
        call = self._begin(name, well_formed_value(args), turn_index, None, misfit=True)
        return json_text(self.record.finish(call, {"error": problem}, error=problem))

    async def serve(
        self,
        name: str,
        args: Any,
        turn_index: int,
        call_id: str | None = None,
        problem: str | None = None,
        seen_by: SeenBy = SeenBy.MOCK_SERVER,
    ) -> tuple[RecordedCall, Any]:
        """Answer a call that reached a mock server of Agentest. Raises as `resolve_json`.

        Args:
            problem: why the arguments do not fit. If set, no mock is called or needed.

        Returns:
            The recorded call and the answer. A call without a mock is not answered: if allowed, the caller
            forwards it to the real tool and reports to `note_real`.
        """
        name, args = well_formed(name), well_formed_value(args)
        call = self._begin(name, args, turn_index, call_id, seen_by, misfit=problem is not None)
        if problem is not None:
            return call, self._refuse(call, problem)
        if not call.call.mocked and isinstance(args, Mapping):
            return call, None
        result, _ = await self._fill(call, args)
        return call, result

    def note_real(
        self,
        call: RecordedCall,
        result: Any,
        *,
        failed: bool,
        status: int | None = None,
        ran: bool = True,
        approval: Approval | None = None,
    ) -> None:
        """Record a real tool's answer to a call without a mock. `ran`: False if null stood in for a tool."""
        known = recordable(result)
        call.status = status
        error = self._redact(shortened(json_text(known))) if failed else None
        asked: dict[str, Any] = {"approval": approval} if approval else {}
        self.record.finish(call, known, error=error, invalid_arguments=None, by_real_tool=ran, **asked)

    async def _resolved(
        self, name: str, args: Any, turn_index: int, call_id: str | None = None, round: int | None = None
    ) -> tuple[Any, bool]:
        name, args = well_formed_value(name), well_formed_value(args)
        return await self._fill(self._begin(name, args, turn_index, call_id, round=round), args)

    async def _fill(self, call: RecordedCall, args: Any) -> tuple[Any, bool]:
        if not isinstance(args, Mapping):
            return self._refuse(
                call, f"the arguments are not a JSON object but {shortened_args(args)}"
            ), False
        try:
            proposed = await self._outcome(call.call, args)
            by_hand = await self._attendant.answer(call, proposed) if self._attendant else None
            outcome = by_hand.outcome if by_hand else proposed or MockOutcome()
        except AgentestError as error:
            self.record.finish(call, None, error=self._redact(str(error)), simulated=False)
            raise
        except Exception as error:
            self.fault = OwnFault.of(error, f"the mock of {call.call.name!r} could not be called")
            raise self.fault from error
        call.http = outcome.http
        self.record.finish(
            call,
            outcome.result,
            error=outcome.error,
            invalid_arguments=outcome.invalid_arguments,
            raised=outcome.raised,
        )
        return outcome.sent, outcome.as_text

    async def _outcome(self, call: ToolCall, args: Mapping[str, Any]) -> MockOutcome | None:
        if call.name in self._tools:
            if self._called is None:
                from agentest.mocks.answering import ConversationMocks

                self._called = ConversationMocks(
                    self._tools,
                    scenario=self._scenario,
                    conversation_id=self._conversation_id,
                    timeout_s=self._timeout_s,
                    redact=self._redact,
                    state=self.state,
                )
            return await self._called.outcome(call.name, args, call.turn_index)
        answers = self._recorded_for(call.name, args)
        if not answers and self._simulator:
            result = await self._simulator.answer(
                call, [each for each in self.record.calls if each is not call]
            )
            return MockOutcome(result=result, sent=result, as_text=isinstance(result, str))
        if not answers:
            return None
        # Recorded answers are given in order, and the last one is repeated.
        before = sum(each.name == call.name and each.args == args for each in self.record.calls) - 1
        answer = copied(answers[min(before, len(answers) - 1)])
        return MockOutcome(result=answer, sent=answer, as_text=isinstance(answer, str))

    def _begin(
        self,
        name: str,
        args: Any,
        turn_index: int,
        call_id: str | None,
        seen_by: SeenBy = SeenBy.CALLER,
        *,
        misfit: bool = False,
        round: int | None = None,
    ) -> RecordedCall:
        check_tool_name(name)
        args = dict(args) if isinstance(args, Mapping) else args
        by_hand = self._attendant is not None and not self._passthrough and not misfit
        has_answer = name in self._tools or bool(self._recorded_for(name, args))
        simulated = self._simulator is not None and not has_answer and not misfit
        mocked = by_hand or has_answer or simulated
        call = self.record.begin(
            ToolCall(
                name,
                args,
                None,
                mocked,
                turn_index,
                error=CANCELLED,
                seen_by=seen_by,
                call_id=call_id,
                round=round,
                simulated=simulated,
            )
        )
        if not mocked and not self._passthrough and not misfit:
            self.record.finish(call, None, error=NO_MOCK)
            raise UnmockedToolError(self._unmocked(name, turn_index))
        return call

    def _unmocked(self, name: str, turn_index: int) -> str:
        where = f"scenario {self._scenario!r}, conversation {self._conversation_id}, {turn_name(turn_index)}"
        if self._of_a_case:
            known = any(answer.name == name for answer in self._recorded)
            recorded = "answers to calls with other arguments alone" if known else "no answer of it"
            return (
                f"the agent called tool {name!r}, which has no mock ({where}), and the evaluation set "
                f'recorded {recorded}. Either add a mock: --mocks FILE with tools = {{"{name}": …}}'
            )
        return (
            f"the agent called tool {name!r}, which has no mock ({where}). "
            f'Either add a mock to the scenario: tools={{"{name}": …}}'
        )

    def _refuse(self, call: RecordedCall, problem: str) -> Any:
        return self.record.finish(call, {"error": problem}, invalid_arguments=problem)

    def _recorded_for(self, name: str, args: Any) -> list[Any]:
        return [answer.result for answer in self._recorded if answer.name == name and answer.args == args]


_MOST_CHARS = 200_000
"""Maximum characters of a state that is stored completely; of a longer one only changes are stored."""
_MAX_PICKLED_BYTES = 3 * _MOST_CHARS
"""Size in bytes above which a state is surely too long: a pickle is less than three times its JSON."""
_MOST_DEPTH = 50
_MOST_BITS = 10_000  # maximum bits of an integer that Python converts to text; it refuses beyond about 14,000
_SHOWN_KEYS = 20
_TRIES = 3
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class EndState:
    """The mocks' state after a conversation has ended."""

    live: Mapping[str, Any]  # a copy of the state. A value that cannot be copied is the object itself.
    readable: Mapping[str, Any]
    """The state in JSON types, as mocks' answers are sent. Other values are described in words."""
    inexact: tuple[str, ...] = ()  # keys whose values are not JSON or are incomplete


def copy_initial_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Copy a scenario's state for one conversation. Raises MockError if it cannot be copied."""
    try:
        return dict(deepcopy(state))
    except BaseException as error:
        if ends_the_run(error):
            raise
        raise MockError(
            f"the scenario's `state` cannot be copied for the conversation: {type(error).__name__}: "
            f"{message_of_error(error)}"
        ) from None


def end_state(state: Mapping[str, Any], initial: Mapping[str, Any] | None) -> EndState:
    """Return a snapshot of the state, unaffected by threads. `begun`: the scenario's initial state."""
    now = dict(state)
    data = builtin_bytes(now)
    if data is not None:
        return _end_of_builtins(pickle.loads(data), len(data), initial)
    memo: dict[int, Any] = {}  # one memo for all keys, so that shared objects stay shared in the copy
    return _end_of({key: _copy(value, memo) for key, value in now.items()}, initial)


def _end_of_builtins(live: dict[Any, Any], size: int, initial: Mapping[str, Any] | None) -> EndState:
    """Do the same as `_end_of` with fewer conversions, because each one blocks other conversations."""
    text = _text(live) if size <= _MAX_PICKLED_BYTES else None
    if text is not None and len(text) <= _MOST_CHARS and all(isinstance(key, str) for key in live):
        json_form = json.loads(text)
        inexact = tuple(key for key, value in live.items() if json_form[key] != value)
        return EndState(live=live, readable=json_form, inexact=inexact)
    long = size > _MAX_PICKLED_BYTES or (text is not None and len(text) > _MOST_CHARS)
    if long and isinstance(initial, BuiltinState):
        try:
            changed = _changes(live, initial)  # convert only the changes of a state with megabytes
            cut = [_key(key) for key, value in changed.items() if key not in live or value != live[key]]
            readable, inexact = _readable(changed)
            return EndState(live=live, readable=readable, inexact=tuple(dict.fromkeys((*inexact, *cut))))
        except RecursionError:  # contains itself
            pass
    return _end_of(live, initial)


def _end_of(live: Mapping[str, Any], initial: Mapping[str, Any] | None) -> EndState:
    json_forms, inexact = _readable(live)
    if len(json.dumps(json_forms)) <= _MOST_CHARS:
        return EndState(live=live, readable=json_forms, inexact=inexact)
    changed = _changes(json_forms, _readable(initial or {})[0])
    cut = tuple(key for key in changed if changed[key] != json_forms.get(key))
    return EndState(live=live, readable=changed, inexact=tuple(dict.fromkeys((*inexact, *cut))))


def _readable(state: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    converted = {_key(key): _exact_or_words(value) for key, value in state.items()}
    inexact = tuple(key for key, (_, exact) in converted.items() if not exact)
    return {key: json_form for key, (json_form, _) in converted.items()}, inexact


def _copy(value: Any, memo: dict[int, Any]) -> Any:
    for _ in range(_TRIES):
        try:
            return deepcopy(value, memo)
        except RuntimeError:  # a mock's thread is still changing it
            continue
        except BaseException as error:
            if ends_the_run(error):
                raise
            break
    return value


def _exact_or_words(value: Any) -> tuple[Any, bool]:
    json_form = _form(value)
    if json_form is not None or value is None:
        return json_form, builtin_bytes(value) is not None and bool(json_form == value)
    try:
        return _in_words(value, ()), False
    except Exception:  # noqa: BLE001 - a mock's thread may still be changing the value
        return _words(value), False


def _form(value: Any) -> Any:
    text = _text(value)
    return None if text is None else json.loads(text)


def _text(value: Any) -> str | None:
    try:
        return json_text(value)
    except BaseException as error:
        if ends_the_run(error):
            raise
        return None


def _in_words(value: Any, inside: tuple[int, ...]) -> Any:
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        return f"(an int of {value.bit_length():,} bits)"
    if value is None or isinstance(value, str | int | bool):
        return value
    if id(value) in inside or len(inside) >= _MOST_DEPTH:
        return CUT_OFF
    inside = (*inside, id(value))
    if isinstance(value, Mapping):
        return {_key(key): _in_words(item, inside) for key, item in [*value.items()]}
    if isinstance(value, list | tuple | set | frozenset):
        return [_in_words(item, inside) for item in [*value]]
    json_form = _form(value)
    if json_form is not None:
        return json_form
    attributes = getattr(value, "__dict__", None)
    shows_itself = getattr(type(value), "__repr__", None) != object.__repr__
    if not shows_itself and isinstance(attributes, dict) and attributes:
        return {_key(key): _in_words(item, inside) for key, item in [*attributes.items()]}
    return _words(value)


def _key(key: Any) -> str:
    return key if isinstance(key, str) else _words(key)


def _words(value: Any) -> str:
    return _ADDRESS.sub("", safe_repr(value))


def _changes(now: Mapping[str, Any], initial: Mapping[str, Any], depth: int = 0) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    for key, value in now.items():
        before = initial.get(key, CUT_OFF)
        inside = isinstance(value, dict) and isinstance(before, dict) and depth < _MOST_DEPTH
        if value != before:
            changed[key] = _changes(value, before, depth + 1) if inside else value
    more = [f"{len(now) - len(changed)} more, as at the beginning"] if len(changed) < len(now) else []
    if gone := [_key(key) for key in initial if key not in now]:
        more.append(f"gone: {', '.join(gone[:_SHOWN_KEYS])}{', …' if len(gone) > _SHOWN_KEYS else ''}")
    return {**changed, CUT_OFF: f"({'; '.join(more)})"} if more else changed
