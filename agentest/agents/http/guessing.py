"""Where a reply stands that no path was given for: at one of the usual places, if it is one alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from agentest.agents.paths import text_of, where_text_is
from agentest.agents.reading import shown
from agentest.errors import AgentError
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
_NEWLINE = "\n"
_FAILED = ("error", "failed", "failure")
"""Values of `status` by which an answer tells that there is no reply in it."""


def usual_place(answer: Any) -> JsonPath:
    """Where the reply stands in an answer. Raises AgentError where no usual place has a text, or several."""
    if isinstance(answer, str):
        return JsonPath("@")
    if sign := _sign_of_failure(answer):
        raise AgentError(
            f"the agent's answer tells of an error at `{sign}`, as it seems: {shown(answer)}; if it is none, "
            "say where the reply stands by `reply`, a JMESPath"
        )
    found = [path for path in map(JsonPath, USUAL_PLACES) if _has_text(path.find(answer))]
    if len(found) == 1:
        return found[0]
    if not found:
        raise AgentError(
            "where is the reply in the agent's answer? Say it by `reply`, a JMESPath; "
            f"{where_text_is(answer)}: {shown(answer)}"
        )
    places = " and ".join(f"`{path.text}`" for path in found)
    raise AgentError(
        f"the agent's answer has text at {places}: say by `reply`, a JMESPath, which is its reply: "
        f"{shown(answer)}"
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


def joined_texts(texts: Sequence[str]) -> str:
    """Events that are text, joined; where each of them is a JSON text, what they say."""
    try:
        read = [json.loads(text) for text in texts]
    except (ValueError, RecursionError):
        return "".join(texts)
    return "".join(read) if read and all(isinstance(text, str) for text in read) else "".join(texts)


def guessed_of_stream(values: Sequence[Any], texts: Sequence[str]) -> str:
    """The reply of a stream for which neither `delta` nor `reply` was given. Raises AgentError."""
    if values and all(isinstance(value, str) for value in values):
        return joined_texts(texts)
    raise AgentError(
        "the agent answers with a stream of events: say by `delta`, a JMESPath, where a piece of the reply "
        f"stands in each, or by `reply` where the whole is; {where_text_is(united(values))}: "
        f"{shown(_NEWLINE.join(texts))}"
    )


def united(values: Sequence[Any]) -> Any:
    """Events as one, so that each path is named once."""
    united: dict[str, Any] = {}
    for value in values:
        if isinstance(value, dict):
            united |= {key: item for key, item in value.items() if key != "event" and text_of(item)}
    return united
