"""The texts of a stream as one reply, also where no path was given for it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from agentest.agents.paths import text_of, where_text_is
from agentest.agents.reading import shown
from agentest.support.errors import AgentError

_NEWLINE = "\n"


def joined_texts(texts: Sequence[str]) -> str:
    """Events that are text, joined; where each of them is a JSON text, what they say."""
    try:
        read = [json.loads(text) for text in texts]
    except (ValueError, RecursionError):
        return "".join(texts)
    return "".join(read) if read and all(isinstance(text, str) for text in read) else "".join(texts)


def guessed_of_stream(values: Sequence[Any], texts: Sequence[str]) -> str:
    """The reply of a stream for which neither `delta` nor `reply` was given. Raises AgentError."""
    # A text may look like a number, or be the word null.
    if values and not any(isinstance(value, dict | list) for value in values):
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
