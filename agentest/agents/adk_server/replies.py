"""From the events of one run of an ADK agent to its reply, wherever it ran."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentest.agents.adk_server.events import read_run
from agentest.agents.port import AgentReply, NoReply
from agentest.support.errors import AgentError


def read_reply(
    items: Sequence[Any], turn_index: int, *, latency_ms: float, retries: int = 0, streamed: bool = False
) -> AgentReply:
    """The reply, without the session's state. Raises NoReply, with the calls that were made."""
    try:
        run = read_run(items, turn_index, streamed)
    except AgentError as error:
        raise NoReply(str(error), retries) from None
    if run.problem is not None:
        raise NoReply(run.problem, retries, run.calls)
    return AgentReply(
        run.text,
        usage=run.usage,
        model_calls=run.model_calls,
        latency_ms=latency_ms,
        retries=retries,
        observed=run.calls,
        remarks=run.remarks,
        author=run.author,
    )
