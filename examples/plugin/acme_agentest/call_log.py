"""A call source: the file to which Acme's assistants write their tool calls."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from agentest.conversation.turn_progress import CallSource, TurnProgress
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import ToolCall
from agentest.runner.call_sources import CallSources, LiveConversation, RunResources


async def open_call_log(resources: RunResources) -> "CallLog":
    """Open the source for a run."""
    return CallLog()


class CallLog(CallSources):
    """The calls of all conversations."""

    @asynccontextmanager
    async def conversation(self, live: LiveConversation) -> AsyncIterator[Sequence[CallSource]]:
        yield [LoggedCalls(live)]


class LoggedCalls(CallSource):
    """The calls of one conversation."""

    def __init__(self, live: LiveConversation) -> None:
        file = getattr(live.config, "call_log", "acme-calls.jsonl")  # a key of `type: acme` alone
        self._path = live.prepared.request.root / file
        self._session_id = live.spec.session_id
        self._mocks = live.mocks
        self._seen = 0

    async def complete(self, turn: TurnProgress) -> None:
        """Record the calls of a turn that the agent has answered."""
        lines = self._path.read_text(encoding="utf-8").splitlines() if self._path.exists() else []
        calls = [call for line in lines if (call := json.loads(line))["session"] == self._session_id]
        self._mocks.observe(
            [
                ToolCall(
                    name=call["tool"],
                    args=call["args"],
                    result=call["result"],
                    mocked=False,
                    turn_index=turn.turn_index,
                    seen_by=SeenBy.AGENT,
                )
                for call in calls[self._seen :]
            ]
        )
        self._seen = len(calls)
