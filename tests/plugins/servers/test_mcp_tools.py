"""The tools of the MCP mock server: what is reported them, what is checked of a call and its answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp_mock import mcp_server

from agentest import sequence
from agentest.conversation.turn_progress import TurnProgress
from agentest.domain.changes import injection
from agentest.support.errors import ConfigError, MockError, UnmockedToolError

DATES = {"type": "object", "properties": {"date": {"type": "string", "pattern": "^2"}}, "required": ["date"]}
SLOTS = {"type": "object", "properties": {"free": {"type": "array"}}, "required": ["free"]}
WRAPPED = {"type": "object", "properties": {"result": {"type": "array"}}, "required": ["result"]}


def tool(name: str = "slots", schema: Any = DATES, **more: Any) -> dict[str, Any]:
    return {"name": name, "description": "Free slots.", "inputSchema": schema, **more}


def create_booking(service: str, seats: int = 2) -> dict[str, Any]:
    """Book a table."""
    return {"service": service, "seats": seats}


def broken() -> None:
    raise ValueError("the kitchen burns")


def test_mocks_are_told_of_by_their_signatures() -> None:
    """Without a file the tools are the mocks: names, docstrings and parameters."""

    async def tools() -> Any:
        async with mcp_server({"create_booking": create_booking, "slots": []}) as server:
            return (await server.ask("tools/list"))["tools"]

    first, second = anyio.run(tools)
    assert (first["name"], first["description"]) == ("create_booking", "Book a table.")
    assert first["inputSchema"]["required"] == ["service"]
    assert first["inputSchema"]["properties"]["seats"] == {"type": "integer", "default": 2}
    free = {"type": "object", "properties": {}, "additionalProperties": True}
    assert second == {"name": "slots", "inputSchema": free}


def test_a_description_has_the_injection_of_the_conversation_that_lists_it() -> None:
    planted = injection("direct", at="slots.description")

    async def listed() -> tuple[list[str], tuple[str, ...]]:
        async with mcp_server({"slots": [], "rooms": []}) as server:
            server.served.injections = (planted,)
            tools = (await server.ask("tools/list"))["tools"]
            turn = TurnProgress(0, "Hi")
            await server.served.complete(turn)
            return [each.get("description", "") for each in tools], tuple(each.kind for each in turn.faults)

    assert anyio.run(listed) == ([planted.payload, ""], (planted.label,))


ANSWERS: dict[str, tuple[Any, Any, bool, str]] = {
    "a text": ("as it is", None, False, "as it is"),
    "JSON": ({"a": [1, None]}, None, False, '{"a": [1, null]}'),
    "a function": (create_booking, {"service": "cut"}, False, '{"service": "cut", "seats": 2}'),
    "arguments that do not fit": (create_booking, {}, True, "invalid arguments: `service` is missing"),
    "arguments that are not an object": (
        create_booking,
        [1],
        True,
        "invalid arguments: the arguments are not a JSON object but [1]",
    ),
    "a mock that raises": (broken, None, True, "the kitchen burns"),
    "a sequence": (sequence(ValueError("first"), "second"), None, True, "first"),
}


def test_every_answer_is_content() -> None:
    """Any mock gives a result with text, and failures are marked."""

    async def all_of_them() -> None:
        async with mcp_server({name: mock for name, (mock, *_) in ANSWERS.items()}) as server:
            for name, (_, arguments, is_error, text) in ANSWERS.items():
                result = await server.call(name, arguments)
                assert result == {"content": [{"type": "text", "text": text}], "isError": is_error}, name
            await server.served.check()

    anyio.run(all_of_them)


def test_an_unmocked_tool_ends_the_conversation() -> None:
    """The agent gets an error, and the conversation ends with ways to mock the tool."""

    async def call() -> None:
        async with mcp_server({"slots": []}) as server:
            result = await server.call("pay", {"amount": 1})
            assert result["isError"]
            assert "'pay', which has no mock" in result["content"][0]["text"]
            with pytest.raises(UnmockedToolError):
                await server.served.check()

    anyio.run(call)


def test_a_mock_may_answer_in_mcps_own_form() -> None:
    """Content of typed parts, like an image, is passed on; a dict that only looks like it is JSON."""
    image = {"content": [{"type": "image", "data": "AAAA", "mimeType": "image/png"}]}
    failing = {"content": [{"type": "text", "text": "sold out"}], "isError": True}
    other = {"content": [{"type": "novel", "text": "x"}]}

    async def call() -> None:
        async with mcp_server({"photo": image, "buy": failing, "read": other}) as server:
            assert await server.call("photo") == {"isError": False, **image}
            assert await server.call("buy") == failing
            assert json.loads((await server.call("read"))["content"][0]["text"]) == other
            assert server.calls[0] == ("photo", {}, image)

    anyio.run(call)


FORMS = {
    "a list": [tool()],
    "a result": {"tools": [tool()]},
    "a whole answer": {"jsonrpc": "2.0", "id": 4, "result": {"tools": [tool()], "nextCursor": None}},
}


@pytest.mark.parametrize("form", FORMS)
def test_recorded_tools_are_told_as_they_are(form: str, tmp_path: Path) -> None:
    """The server lists a recorded tool as it was recorded, whatever its mock looks like."""

    async def tools() -> Any:
        async with mcp_server({"slots": []}, root=tmp_path, recorded=FORMS[form]) as server:  # type: ignore[arg-type]
            return (await server.ask("tools/list"))["tools"]

    assert anyio.run(tools) == [tool()]


def test_mocks_of_other_tools_stay_away(tmp_path: Path) -> None:
    """If mocks reach other tools another way, this server does not list them."""

    async def tools() -> None:
        mocks = {"slots": [], "pay": {}}
        async with mcp_server(mocks, root=tmp_path, recorded=[tool()], only_way=False) as server:
            assert [each["name"] for each in (await server.ask("tools/list"))["tools"]] == ["slots"]
            assert server.notes == []

    anyio.run(tools)


def test_arguments_are_validated_by_the_recorded_schema(tmp_path: Path) -> None:
    """Invalid ones get an error and are recorded as such, without a call of the mock."""
    asked: list[str] = []

    def slots(date: str) -> None:
        asked.append(date)

    async def calls() -> None:
        async with mcp_server({"slots": slots}, root=tmp_path, recorded=[tool()]) as server:
            missing = await server.call("slots", {})
            wrong = await server.call("slots", {"date": "tomorrow"})
            await server.call("slots", {"date": "2026-01-01"})
            said = [result["content"][0]["text"] for result in (missing, wrong)]
            assert said[0] == "invalid arguments: 'date' is a required property"
            assert said[1] == "invalid arguments: `date`: 'tomorrow' does not match '^2'"
            invalid = [call.invalid_arguments for call in server.mocks.record.of_turn(0)]
            assert invalid == [
                "'date' is a required property",
                "`date`: 'tomorrow' does not match '^2'",
                None,
            ]
            assert asked == ["2026-01-01"]

    anyio.run(calls)


PROMISES: dict[str, tuple[Any, Any, Any]] = {
    "an object": (SLOTS, {"free": ["9"]}, {"free": ["9"]}),
    "a value that Python servers wrap": (WRAPPED, ["9"], {"result": ["9"]}),
    "a value that is wrapped already": (WRAPPED, {"result": ["9"]}, {"result": ["9"]}),
    "no object at all": ({"type": "array"}, ["9"], ["9"]),
    "MCP's own form": (
        SLOTS,
        {"content": [{"type": "text", "text": "nine"}], "structuredContent": {"free": []}},
        {"free": []},
    ),
}


def test_promised_answers_are_kept(tmp_path: Path) -> None:
    """A tool with an `outputSchema` answers with the `structuredContent` that clients insist on."""
    recorded = [tool(name, {"type": "object"}, outputSchema=p[0]) for name, p in PROMISES.items()]

    async def calls() -> None:
        mocks = {name: promise[1] for name, promise in PROMISES.items()}
        async with mcp_server(mocks, root=tmp_path, recorded=recorded) as server:
            for name, (_, _, structured) in PROMISES.items():
                result = await server.call(name)
                assert (result["structuredContent"], result["isError"]) == (structured, False), name
            await server.served.check()

    anyio.run(calls)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ({"fre": []}, "'free' is a required property"),
        ({"free": "no"}, "`free`: 'no' is not of type 'array'"),
        ({"content": [{"type": "text", "text": "nine"}]}, "None is not of type 'object'"),
    ],
)
def test_a_mock_that_answers_what_the_tool_cannot(answer: Any, problem: str, tmp_path: Path) -> None:
    """It ends the conversation, as the mock's error: clients raise there, and the agent is not to blame."""

    async def call() -> None:
        recorded = [tool(schema={"type": "object"}, outputSchema=SLOTS)]
        async with mcp_server({"slots": answer}, root=tmp_path, recorded=recorded) as server:
            assert (await server.call("slots"))["isError"]
            with pytest.raises(MockError) as error:
                await server.served.check()
            said = f"the mock of tool 'slots' answered what the real tool cannot answer: {problem}. Correct"
            assert str(error.value).startswith(said)
            assert server.calls == [("slots", {}, answer)]

    anyio.run(call)


def test_a_failing_mock_breaks_no_promise(tmp_path: Path) -> None:
    """A tool that fails has no answer to be checked."""

    async def call() -> None:
        recorded = [tool("broken", {"type": "object"}, outputSchema=SLOTS)]
        async with mcp_server({"broken": broken}, root=tmp_path, recorded=recorded) as server:
            result = await server.call("broken")
            assert result == {"content": [{"type": "text", "text": "the kitchen burns"}], "isError": True}
            await server.served.check()

    anyio.run(call)


def test_an_unsupported_pattern_is_noted(tmp_path: Path) -> None:
    """Patterns are JavaScript's: one that Python cannot parse is not checked, with a note."""
    schema = {"type": "object", "properties": {"name": {"type": "string", "pattern": r"^\p{L}+$"}}}

    async def call() -> None:
        async with mcp_server({"slots": "ok"}, root=tmp_path, recorded=[tool(schema=schema)]) as server:
            assert not (await server.call("slots", {"name": "Ada"}))["isError"]
            assert server.notes[:1] == [
                r"the inputSchema of tool 'slots' has the pattern '^\\p{L}+$', which Python cannot read: it "
                "was not checked"
            ]

    anyio.run(call)


FILES = {
    "absent": (None, "does not exist; write there what the real server answers to `tools/list`, or add"),
    "empty": ("", "is empty"),
    "no JSON": ("tools:", "is not JSON"),
    "no tools": ('{"resources": []}', "has no list `tools`"),
    "a text": ('"slots"', "has no list of tools"),
    "the first page": ('{"tools": [], "nextCursor": "2"}', "has the first page of the tools alone"),
    "no name": ('[{"inputSchema": {}}]', "tool 1 has no `name`"),
    "no schema": ('[{"name": "a"}]', "tool 'a' has no `inputSchema`"),
    "a schema that is a text": ('[{"name": "a", "inputSchema": "x"}]', "the inputSchema of tool 'a' is not"),
    "twice": (
        '[{"name": "a", "inputSchema": {}}, {"name": "a", "inputSchema": {}}]',
        "has the tool 'a' twice",
    ),
    "a wrong schema": (
        '[{"name": "a", "inputSchema": {"type": "objekt"}}]',
        "the inputSchema of tool 'a': is not a valid JSON Schema",
    ),
    "a schema elsewhere": (
        '[{"name": "a", "inputSchema": {"$ref": "https://example.com/x.json"}}]',
        "the inputSchema of tool 'a': `$ref` 'https://example.com/x.json' is not in the schema",
    ),
}


@pytest.mark.parametrize("case", FILES)
def test_a_file_that_is_wrong_is_refused(case: str, tmp_path: Path) -> None:
    """Nothing runs with tools that cannot be read: the key, the file and what is wrong are named."""
    content, problem = FILES[case]
    if content is not None:
        (tmp_path / "tools.json").write_text(content)

    async def open_it() -> None:
        async with mcp_server(root=tmp_path, tools="tools.json"):
            pass

    with pytest.raises(ConfigError) as error:
        anyio.run(open_it)
    assert str(error.value).startswith("mcp_mock.tools of agent 'shop': ")
    assert problem in str(error.value)
