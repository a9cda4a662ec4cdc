"""What a caller that could run the real tool itself is told in `_meta`, like a plugin within a framework.

Such a caller asks before the tool runs, with `_meta["agentest/caller"]` in its `tools/call`. The answer's
`_meta["agentest/answer"]` is `{how, result, message, number}`: `result` is the mock's answer as it is, and
where `how` is `real`, the caller runs the tool and tells of it by a notification
`notifications/agentest/answered` with `{number, result, failed}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentest.mock_servers.port import ServedAnswer

ANSWERED = "notifications/agentest/answered"
_CALLER = "agentest/caller"
_CALL_ID = "agentest/call_id"
_ANSWER = "agentest/answer"


def meta_of(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """The `_meta` of a message; empty where it has none."""
    meta = params.get("_meta")
    return meta if isinstance(meta, Mapping) else {}


def runs_tools(meta: Mapping[str, Any]) -> bool:
    """Whether the caller can run the real tool itself."""
    return _CALLER in meta


def call_id_of(meta: Mapping[str, Any]) -> str | None:
    """The id that the agent's framework gave to a call."""
    call_id = meta.get(_CALL_ID)
    return call_id if isinstance(call_id, str) and call_id else None


def told(answer: ServedAnswer) -> dict[str, Any]:
    """What is added to the result of a call for a caller that runs tools."""
    known = {
        "how": answer.how.value,
        "result": answer.result,
        "message": answer.message,
        "number": answer.number,
    }
    return {"_meta": {_ANSWER: known}}
