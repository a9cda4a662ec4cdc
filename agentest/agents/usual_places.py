"""Where a reply stands that no path was given for: at one of the usual places, if it is one alone."""

from __future__ import annotations

from typing import Any

from agentest.agents.notes import Notes
from agentest.agents.paths import where_text_is
from agentest.agents.reading import shown
from agentest.support.errors import AgentError
from agentest.support.json_path import JsonPath

USUAL_PLACES = (
    "reply",
    "response",
    "answer",
    "message",
    "message.content",
    "output",
    "output_text",
    "text",
    "content",
    "result",
    "completion",
    "generated_text",
    "bot_message",
    "choices[0].message.content",
    "data.reply",
    "data.response",
    "data.answer",
    "data.message",
    "data.text",
    "data.content",
)
"""The documentation names them: docs/agents/http.md."""
_FAILED = ("error", "failed", "failure")
"""Values of `status` by which an answer tells that there is no reply in it."""


def usual_place(answer: Any) -> JsonPath | None:
    """Where the reply stands in an answer, a JSON value; None where no usual place has a text.

    Raises AgentError where several have one, and for an answer that seems to tell of an error.
    """
    if isinstance(answer, str):
        return JsonPath("@")
    if sign := _sign_of_failure(answer):
        raise AgentError(
            f"the agent's answer tells of an error at `{sign}`, as it seems: {shown(answer)}; if it is none, "
            "say where the reply stands by `reply`, a JMESPath"
        )
    found = [path for path in map(JsonPath, USUAL_PLACES) if _has_text(path.find(answer))]
    if len(found) < 2:
        return found[0] if found else None
    places = " and ".join(f"`{path.text}`" for path in found)
    raise AgentError(
        f"the agent's answer has text at {places}: say by `reply`, a JMESPath, which is its reply: "
        f"{shown(answer)}"
    )


def no_place(answer: Any) -> str:
    """What to say of an answer whose reply no path and no usual place has found."""
    return (
        "where is the reply in the agent's answer? Say it by `reply`, a JMESPath; "
        f"{where_text_is(answer)}: {shown(answer)}"
    )


def note_place(notes: Notes, place: JsonPath) -> None:
    """Say at which usual place a reply was found."""
    if not place.is_all:
        notes.add(place.text, f"no `reply` says where its reply stands: it was found at `{place.text}`")


def note_failure(notes: Notes, answer: Any) -> None:
    """Say where an answer that has a reply seems to tell of an error as well, as no path says what is one."""
    if sign := _sign_of_failure(answer):
        notes.add(
            "failure",
            f"its answers seem to tell of an error at `{sign}`, and nobody looks there: say by `error`, a "
            "JMESPath, what is one",
        )


def _sign_of_failure(answer: Any) -> str | None:
    """The key by which an answer tells that it is an error, where no path says what is one."""
    if not isinstance(answer, dict):
        return None
    if str(answer.get("status")).lower() in _FAILED:
        return "status"
    return next((key for key in ("error", "errors") if answer.get(key)), None)


def _has_text(found: Any) -> bool:
    """Whether it is a text, or a list that begins with one."""
    if isinstance(found, list):
        return bool(found and (isinstance(found[0], str) or _is_part(found[0])))
    return isinstance(found, str) and bool(found.strip())


def _is_part(item: Any) -> bool:
    return isinstance(item, dict) and isinstance(item.get("text"), str)
