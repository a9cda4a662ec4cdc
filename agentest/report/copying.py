"""A conversation as the page offers it for copying: a scripted scenario, or why there is none."""

from __future__ import annotations

from agentest.codegen.script import Told, told
from agentest.store.layouts import CODECS
from agentest.store.reading import usable
from agentest.store.shapes import StoredConversation
from agentest.support.json_text import Json

_MOST_BYTES = 1_000_000
"""Of a conversation; the source of a longer one takes longer to lay out than the run took."""
_NOTHING_FOUND: Json = {
    "evaluation": {"turnEvaluations": [], "goalCompletion": None, "conversationMetrics": {}},
    "trajectory": None,
    "perTurnTrajectory": [],
    "labelledFailures": [],
    "criteria": [],
}
_TOO_LONG = Told(missing=f"which has more than {_MOST_BYTES // 1_000_000} MB; `agentest export` writes it")


def to_copy(scenario: str, conversation: Json, size: int) -> Json:
    """`script` and `noScript`, one of which is "".

    Args:
        scenario: its name.
        conversation: as in results.json.
        size: how many bytes it has there.
    """
    made = _told(scenario, conversation) if size <= _MOST_BYTES else _TOO_LONG
    return {"script": made.source, "noScript": made.missing}


def _told(scenario: str, conversation: Json) -> Told:
    # What was found out about it is most of it, and nobody needs it here.
    said = {**conversation, **_NOTHING_FOUND}
    return told(scenario, usable(CODECS.read(StoredConversation, said)))
