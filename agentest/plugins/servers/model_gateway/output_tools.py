"""Output tools: tools by which a framework receives the model's final answer.

Their calls are the agent's reply. Such a tool runs no code of the agent, so it needs no mock.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from agentest.domain.messages import ToolSpec

_SIGNATURES = tuple(
    (re.compile(name), re.compile(description, re.DOTALL))
    for name, description in (
        ("final_answer", r"Provides a final answer to the given problem\."),  # smolagents
        (r"final_result(_\w+)?", r"(\S+: )?The final response which ends this conversation"),  # pydantic-ai
        ("set_model_response", r"Set your final response using the required output schema\..*"),  # google-adk
        ("json", r"Respond with a JSON object\."),  # AI SDK with Anthropic
        (  # Strands, under the name of the output's class
            ".+",
            r"IMPORTANT: This StructuredOutputTool should only be invoked as the last and final tool before "
            r"returning the completed result to the caller\..*",
        ),
    )
)
"""Name and description of each framework's output tool. A name alone could be that of a real tool."""


def is_output_tool(tool: ToolSpec) -> bool:
    """Return True if a tool's name and description are those of a framework's output tool."""
    known = any(
        name.fullmatch(tool.name) and description.fullmatch(tool.description.strip())
        for name, description in _SIGNATURES
    )
    return known and not _is_of_a_function(tool.parameters)


def _is_of_a_function(parameters: Mapping[str, Any]) -> bool:
    """Return True if pydantic made a schema of a function's parameters, and not of a type.

    pydantic-ai offers functions as output tools, too, with the same names and descriptions. pydantic sorts
    the keys of a schema, and forbids other parameters in that of a function. In that of a type, a client may
    have added this at the end.
    """
    return next((key for key in parameters if key in ("additionalProperties", "properties")), "") == (
        "additionalProperties"
    )
