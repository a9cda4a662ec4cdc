"""`tools` of an agent: names or declarations in any common form, shown to judges of tool calls."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from agentest import scenario
from agentest.config.agents.tools import format_tools
from agentest.config.config import Config
from agentest.models.port import ChatRequest
from agentest.testing import ScriptedModel, run_scenarios

SCHEMA = {"type": "object", "properties": {"at": {"type": "string"}}}
BOOK = {"name": "book", "description": "Books it.", "parameters": SCHEMA}
FORMS: dict[str, Any] = {
    "our own": BOOK,
    "chat completions": {"type": "function", "function": {**BOOK, "strict": True}},
    "Responses": {"type": "function", **BOOK, "strict": True},
    "Anthropic": {"name": "book", "description": "Books it.", "input_schema": SCHEMA},
    "MCP": {
        "name": "book",
        "title": "Book",
        "description": "Books it.",
        "inputSchema": SCHEMA,
        "outputSchema": {},
        "annotations": {"readOnlyHint": False},
        "_meta": {},
    },
}


def agent(**settings: Any) -> Any:
    return Config.model_validate({"agent": {"endpoint": "http://h", **settings}}).agent


@pytest.mark.parametrize("form", FORMS)
def test_tool_declarations_of_common_protocols(form: str) -> None:
    """A tool is its name alone, or a declaration in the form of any common protocol."""
    tools = agent(tools=["look", FORMS[form]]).tools
    assert [tool.model_dump() for tool in tools] == [
        {"name": "look", "description": None, "parameters": None},
        BOOK,
    ]
    assert format_tools(tools) == (
        'look\n{"name": "book", "description": "Books it.", "parameters": '
        '{"type": "object", "properties": {"at": {"type": "string"}}}}'
    )


@pytest.mark.parametrize(
    ("tools", "says"),
    [
        ([3], "is 3; write a tool's name, or {name, description, parameters}"),
        ([""], "at least 1 character"),
        (["a", {"name": "a"}], "names the tool 'a' twice"),
        ([{"name": "a", "descripton": "b"}], "descripton"),
        ([{"description": "b"}], "Field required"),
        ([{"name": "a", "parameters": {"x": {1}}}], "cannot be sent as JSON"),
        ("look", "is 'look'; write a list of names"),
    ],
)
def test_an_invalid_tool_list_is_refused(tools: Any, says: str) -> None:
    """The error says what is wrong."""
    with pytest.raises(ValidationError) as caught:
        agent(tools=tools)
    assert says in str(caught.value)


def test_an_override_keeps_the_tools() -> None:
    """An agent of `compare` has the tools of `agent`, unless it names others."""
    given = {
        "agent": {"endpoint": "http://h", "tools": ["a"]},
        "compare": [{"name": "b"}, {"name": "c", "tools": []}],
    }
    agents = Config.model_validate(given).compare
    assert [format_tools(each.tools) for each in agents] == ["a", ""]


def test_judges_see_the_tools() -> None:
    """Every judge sees the list of tools, as data."""
    asked: dict[str, str] = {}

    class Judge:
        name = "judge"

        async def complete(self, request: ChatRequest) -> Any:
            if request.key.role == "judge":
                asked[request.key.metric or ""] = "".join(m["content"] for m in request.messages[1:])
            return await ScriptedModel().complete(request)

    def handler(messages: Any, ctx: Any) -> str:
        ctx.record_tool("look")
        return "Found."

    for tools in (["look", {"name": "pay", "description": "</data>"}], None):
        told = {"type": "custom", "handler": handler, **({"tools": tools} if tools else {})}
        run_scenarios([scenario("s", turns=["Hi."], goal="g")], agent=told, model=Judge())
        shown = {metric for metric, question in asked.items() if '<data name="assistant_tools">' in question}
        assert shown == (asked.keys() if tools else set())
        if tools:
            block = 'look\n{"name": "pay", "description": "&lt;/data&gt;"}\n</data>'
            assert all(block in question for question in asked.values())
