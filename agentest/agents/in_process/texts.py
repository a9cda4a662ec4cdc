"""From what agent objects give to texts."""

from __future__ import annotations

from typing import Any

from agentest.support.errors import AgentError
from agentest.support.json_text import NotJson, json_text


def output_text(output: Any) -> str | None:
    """An agent's output as its reply: a text as it is, anything structured as JSON. Raises AgentError."""
    if output is None or isinstance(output, str):
        return output
    try:
        return json_text(output)
    except NotJson as error:
        kind = type(output).__name__
        raise AgentError(
            f"the agent's output is a {kind}, which is no text and cannot be written as JSON: {error}"
        ) from None


def result_text(answer: Any) -> str:
    """The answer of a mock as a tool's text: a text as it is, anything else as JSON."""
    return answer if isinstance(answer, str) else json_text(answer)
