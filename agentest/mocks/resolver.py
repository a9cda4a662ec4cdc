"""Answering an agent's tool calls in one conversation."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from agentest.domain.messages import ToolSpec
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import NO_MOCK, UNANSWERED, ToolCall
from agentest.mocks.answering import AskedMocks, Attendant, Outcome
from agentest.mocks.binding import Mock, RecordedAnswer, tool_specs
from agentest.mocks.calls import (
    CallRecord,
    RealCall,
    RecordedCall,
    check_name,
    recordable,
    recordable_call,
    shown_args,
)
from agentest.mocks.state import EndState, beginning, end_state
from agentest.support.errors import AgentestError, UnmockedToolError
from agentest.support.json_text import copied, json_text, no_constant, well_formed, well_formed_value
from agentest.support.text import shortened


class MockResolver:
    """The mocks of one scenario as one conversation sees them: positions and state are its own."""

    def __init__(
        self,
        tools: Mapping[str, Mock],
        *,
        scenario: str,
        conversation_id: str,
        recorded: Sequence[RecordedAnswer] | None = None,
        unmocked_tools: Literal["error", "passthrough"] = "error",
        timeout_s: float = 30.0,
        redact: Callable[[str], str] = str,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        """`state`: what `ctx.state` begins with, of which the conversation has a copy of its own."""
        self._tools = tools
        self._recorded = recorded or ()
        self._of_a_case = recorded is not None
        self._scenario = scenario
        self._conversation_id = conversation_id
        self._passthrough = unmocked_tools == "passthrough"
        self._timeout_s = timeout_s
        self._redact = redact
        self._begun = state
        self._mocks = AskedMocks(
            tools, scenario=scenario, conversation_id=conversation_id, timeout_s=timeout_s, redact=redact
        )
        self._record = CallRecord(mocked=tools)
        self._attendant: Attendant | None = None

    def attended_by(self, attendant: Attendant) -> None:
        """Have somebody see every call from now on, and answer it where they like."""
        self._attendant = attendant
        self._record.on_change = attendant.noticed

    def beside(self, tools: Mapping[str, Mock]) -> MockResolver:
        """Who answers calls of other tools in the same conversation: they share its state and no more."""
        other = MockResolver(
            tools,
            scenario=self._scenario,
            conversation_id=self._conversation_id,
            timeout_s=self._timeout_s,
            redact=self._redact,
        )
        other._mocks.state = self._mocks.state
        return other

    def begin(self) -> None:
        """Fill the state that the mocks share with what it begins with. Raises MockError."""
        self._mocks.state.update(beginning(self._begun))

    @property
    def state(self) -> dict[str, Any]:
        """What the mocks find in `ctx.state`: one object through all of the conversation."""
        return self._mocks.state

    def end_state(self) -> EndState:
        """What is kept of the state at the end of the conversation."""
        return end_state(self._mocks.state, self._begun)

    def specs(self) -> tuple[ToolSpec, ...]:
        """The mocks, described to who may call them."""
        return tool_specs(self._tools)

    def calls_of(self, turn_index: int) -> tuple[ToolCall, ...]:
        """The calls of a turn, in the order in which they were made; one that ended the conversation too."""
        return self._record.of_turn(turn_index)

    def asked_in(self, turn_index: int) -> tuple[ToolCall, ...]:
        """The calls that waited for approval in a turn and that a later turn has."""
        return self._record.asked_in(turn_index)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """All calls so far, in their order."""
        return self._record.calls

    @property
    def statuses(self) -> tuple[int | None, ...]:
        """The status of HTTP with which the real tool answered each of the `calls`; None: it has none."""
        return self._record.statuses

    def observe(self, calls: Sequence[ToolCall], *, retold: bool = False) -> None:
        """Record calls that were answered elsewhere, whoever tells of them (`calls.CallRecord.observe`).

        Raises AgentError for a name that is none.
        """
        for call in calls:
            check_name(call.name)
        self._record.observe([recordable_call(call) for call in calls], retold=retold)

    def real_call(self, name: str, args: Any, turn_index: int) -> RealCall | None:
        """Record a call that the agent's own tool is to answer. None where the tool must not run.

        It may where `unmocked_tools` is `passthrough` and nothing else answers the call. The record is there
        before the tool runs: one that never ends has been called all the same.
        """
        check_name(name)
        name, args = well_formed(name), recordable(args)
        if name in self._tools or not self._passthrough or self._recorded_for(name, args):
            return None
        call = ToolCall(name, args, None, False, turn_index, error=UNANSWERED, seen_by=SeenBy.AGENT)
        return RealCall(self._record, self._record.begin(call), self._redact)

    async def resolve_json(
        self,
        name: str,
        arguments: str,
        turn_index: int,
        call_id: str | None = None,
        *,
        round: int | None = None,
    ) -> str:
        """Answer a call whose arguments are JSON text. Returns the text of the tool message.

        `round`: which of the agent's messages of the turn asked for it, from 0.

        Raises UnmockedToolError, MockError, or the AgentestError that a mock raised.
        """
        # Agents whose tool takes nothing often send no text at all.
        try:
            args: Any = json.loads(arguments, parse_constant=no_constant) if arguments.strip() else {}
        except (ValueError, RecursionError) as error:
            call = self._begin(name, arguments, turn_index, call_id, round=round)
            return json_text(self._refuse(call, f"the arguments are not valid JSON: {error}"))
        result, is_text = await self._resolved(name, args, turn_index, call_id, round)
        return str(result) if is_text else json_text(result)

    async def resolve(self, name: str, args: Any, turn_index: int) -> Any:
        """Answer a call, and record it. Returns the result, a JSON value that belongs to the caller."""
        result, _ = await self._resolved(name, copied(args), turn_index)
        return copied(result)

    def refuse(self, name: str, args: Any, turn_index: int, problem: str) -> str:
        """Record a call that cannot be made, and answer it with an error: the text of the tool message."""
        call = self._begin(name, well_formed_value(args), turn_index, None, misfit=True)
        return json_text(self._finish(call, {"error": problem}, error=problem))

    async def serve(
        self, name: str, args: Any, turn_index: int, call_id: str | None = None, problem: str | None = None
    ) -> tuple[RecordedCall, Any]:
        """Answer a call that came to a mock server. Raises as `resolve_json`.

        Args:
            problem: why the arguments do not fit; then the mock is not asked, and none need be there.

        Returns:
            The call in the record, and the answer. One that nothing mocks is not answered: where it may be,
            the real tool is asked, and `note_real` told.
        """
        name, args = well_formed(name), well_formed_value(args)
        call = self._begin(name, args, turn_index, call_id, SeenBy.MOCK_SERVER, misfit=problem is not None)
        if problem is not None:
            return call, self._refuse(call, problem)
        if not call.call.mocked and isinstance(args, Mapping):
            return call, None
        result, _ = await self._fill(call, args)
        return call, result

    def note_real(
        self, call: RecordedCall, result: Any, *, failed: bool, status: int | None = None, ran: bool = True
    ) -> None:
        """Note what the real tool answered to a call that nothing mocks, and its status of HTTP, if any.

        `ran`: whether there is a real tool; else the call was answered with null.
        """
        known = recordable(result)
        call.status = status
        error = self._redact(shortened(json_text(known))) if failed else None
        self._record.finish(call, result=known, error=error, invalid_arguments=None, by_real_tool=ran)

    async def _resolved(
        self,
        name: str,
        args: Any,
        turn_index: int,
        call_id: str | None = None,
        round: int | None = None,
    ) -> tuple[Any, bool]:
        """The result, and whether it is a text that is sent as it is: a date is one only in JSON."""
        name, args = well_formed_value(name), well_formed_value(args)
        return await self._fill(self._begin(name, args, turn_index, call_id, round=round), args)

    async def _fill(self, call: RecordedCall, args: Any) -> tuple[Any, bool]:
        """Answer a call that has been recorded, as `_resolved`."""
        if not isinstance(args, Mapping):
            return self._refuse(call, f"the arguments are not a JSON object but {shown_args(args)}"), False
        try:
            outcome = await self._attended(call, await self._outcome(call.call, args))
        except AgentestError as error:
            self._finish(call, None, error=self._redact(str(error)))
            raise
        call.http = outcome.http
        self._finish(
            call,
            outcome.result,
            error=outcome.error,
            invalid_arguments=outcome.invalid_arguments,
            raised=outcome.raised,
        )
        return outcome.sent, outcome.as_text

    async def _attended(self, call: RecordedCall, proposed: Outcome | None) -> Outcome:
        """What is answered: by whoever attends, else what the mock proposes, else null."""
        given = await self._attendant.answer(call, proposed) if self._attendant else None
        return given.outcome if given else proposed or Outcome()

    async def _outcome(self, call: ToolCall, args: Mapping[str, Any]) -> Outcome | None:
        """What is to be answered; None: nothing mocks the call. Raises an AgentestError as it is."""
        if call.name not in self._tools:
            return self._as_recorded(call.name, args)
        return await self._mocks.outcome(call.name, args, call.turn_index)

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
        """Record a call before its answer, which may never come. One that is a misfit needs no mock."""
        check_name(name)
        args = dict(args) if isinstance(args, Mapping) else args
        by_hand = self._attendant is not None and not self._passthrough and not misfit
        mocked = by_hand or name in self._tools or bool(self._recorded_for(name, args))
        call = self._record.begin(
            ToolCall(
                name,
                args,
                None,
                mocked,
                turn_index,
                error=UNANSWERED,
                seen_by=seen_by,
                call_id=call_id,
                round=round,
            )
        )
        if not mocked and not self._passthrough and not misfit:
            self._finish(call, None, error=NO_MOCK)
            raise UnmockedToolError(self._unmocked(name, turn_index))
        return call

    def _unmocked(self, name: str, turn_index: int) -> str:
        """Which tool it was, where, and how to mock it."""
        where = f"scenario {self._scenario!r}, conversation {self._conversation_id}, turn {turn_index}"
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

    def _finish(
        self,
        call: RecordedCall,
        result: Any,
        *,
        error: str | None = None,
        invalid_arguments: str | None = None,
        raised: str | None = None,
    ) -> Any:
        self._record.finish(
            call, result=result, error=error, invalid_arguments=invalid_arguments, raised=raised
        )
        return result

    def _refuse(self, call: RecordedCall, problem: str) -> Any:
        return self._finish(call, {"error": problem}, invalid_arguments=problem)

    def _recorded_for(self, name: str, args: Any) -> list[Any]:
        return [answer.result for answer in self._recorded if answer.name == name and answer.args == args]

    def _as_recorded(self, name: str, args: Any) -> Outcome | None:
        """What was recorded for the call, in order and the last again and again; None where nothing was."""
        answers = self._recorded_for(name, args)
        if not answers:
            return None
        before = sum(call.name == name and call.args == args for call in self._record.calls) - 1
        found = copied(answers[min(before, len(answers) - 1)])
        return Outcome(result=found, sent=found, as_text=isinstance(found, str))
