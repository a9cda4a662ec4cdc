"""A bypassed mock is noticed; a call that ran no tool raises no false alarm."""

from __future__ import annotations

from typing import Any

import pytest

from agentest.agents.bypassed_tools import REFUSED, MockedTools
from agentest.agents.port import MockBypassed
from agentest.domain.messages import ToolSpec
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import ARGUMENTS_UNKNOWN, ToolCall
from agentest.mocks.resolver import MockResolver
from agentest.scenarios.definition import scenario


def check_stock(item: str, limit: int = 10) -> dict[str, Any]:
    return {"item": item, "limit": limit}


def seen(name: str, args: Any, result: Any = None, error: str | None = None, **more: Any) -> ToolCall:
    """A call that the agent reports and that reached no server of ours."""
    return ToolCall(name, args, result, False, 0, error=error, **{"seen_by": SeenBy.AGENT, **more})


def problem(*calls: ToolCall, own: tuple[str, ...] = ()) -> str | None:
    """Return the error that the check raises for the calls of a turn, if any."""
    made = scenario("s", turns=["-"], tools={"check_stock": check_stock, "price": {"eur": 2}})
    mocks = MockResolver(made.tools, scenario="s", conversation_id="s-1")
    try:
        MockedTools("shop", mocks.specs(), own).check(calls)
    except MockBypassed as error:
        return str(error)
    return None


GOOD = {"item": "tea"}
RAN: dict[str, ToolCall] = {
    "the mocked tool": seen("check_stock", GOOD, {"n": 3}),
    "by a framework's name": seen("mcp__shop__check_stock", GOOD, {"n": 3}),
    "by one underscore": seen("shop_check_stock", GOOD, "3"),
    "told by spans": seen("check_stock", GOOD, seen_by=SeenBy.SPANS),
    "told by spans without arguments and result": seen(
        "price", None, seen_by=SeenBy.SPANS, invalid_arguments=ARGUMENTS_UNKNOWN
    ),
    "without a result": seen("check_stock", GOOD),
    "and failed": seen("check_stock", GOOD, {"error": "the warehouse is closed"}),
    "though the arguments do not fit the mock": seen("check_stock", {"what": "tea"}, {"n": 3}),
    "with an answer that only sounds wrong": seen("check_stock", GOOD, "error: no connection"),
    "with an answer that speaks of fields": seen(
        "check_stock", GOOD, {"item": "tea", "customs": "a form with the field required by law"}
    ),
    "and its API wants more": seen(
        "price", {}, {"detail": [{"type": "missing", "loc": ["query", "item"], "msg": "Field required"}]}
    ),
    "a mock of any arguments": seen("price", {"x": 1}, "required: a longer wait"),
}
NOT_RUN: dict[str, ToolCall] = {
    "answered by a server": seen("check_stock", GOOD, seen_by=SeenBy.MOCK_SERVER),
    "no mocked tool": seen("search", GOOD, {"n": 3}),
    "an unknown tool": seen("chek_stock", GOOD, "Unknown tool: chek_stock"),
    "of the agent's own": seen("get_price", {}, {"eur": 3}),
    "pydantic-ai": seen(
        "check_stock",
        {},
        "1 validation error:\n- type: missing, Field required\nFix the errors and try again.",
    ),
    "LangGraph": seen(
        "check_stock",
        {"itm": "tea"},
        "Error invoking tool 'check_stock' with kwargs {'itm': 'tea'} with error:\n item: Field required",
    ),
    "google-adk": seen(
        "check_stock",
        {},
        {"error": "Invoking `check_stock()` failed: mandatory input parameters are not present"},
    ),
    "in this process, and the framework raised": seen("check_stock", GOOD, {"error": "not run: no answer"}),
    "AI SDK": seen("check_stock", {}, error="Invalid input for tool check_stock: Type validation failed"),
    "told by nothing but that the arguments do not fit": seen("check_stock", {"item": 3}, error="failed"),
    "nor by that": seen("check_stock", {"item": None}),
}


@pytest.mark.parametrize("name", RAN)
def test_the_real_tool_ran(name: str) -> None:
    """A mocked tool called past the mock servers ends the conversation without blaming the agent."""
    told = problem(RAN[name], own=("get_price",))
    assert told is not None
    assert "no mock was called" in told


@pytest.mark.parametrize("name", NOT_RUN)
def test_nothing_was_run(name: str) -> None:
    """Mocked answers, unmocked tools and refusals by a framework are not bypasses."""
    assert problem(NOT_RUN[name], own=("get_price",)) is None


@pytest.mark.parametrize("schema", [{"type": "strange"}, {"properties": 5}, {"$ref": "#/$defs/gone"}])
def test_a_schema_that_cannot_be_used_excuses_nothing(schema: dict[str, Any]) -> None:
    """A failed call counts as one that ran, because nothing shows that its arguments were rejected."""
    tools = MockedTools("shop", (ToolSpec(name="check_stock", description="", parameters=schema),))
    with pytest.raises(MockBypassed, match="no mock was called"):
        tools.check([seen("check_stock", {"item": 3}, error="failed")])


@pytest.mark.parametrize("form", [str, lambda text: {"content": [{"type": "text", "text": text}]}])
def test_a_call_that_we_refused(form: Any) -> None:
    """If a mock server refused the call, the error has its message, as no real tool ran."""
    told = problem(seen("check_stock", GOOD, form(f"{REFUSED} of 'check_stock': it names no conversation")))
    assert told is not None
    assert "it names no conversation" in told
    assert "real tool" not in told
