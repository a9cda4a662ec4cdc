"""Mocks that are written from recorded calls: they answer the same calls in the same way."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import CANCELLED, ToolCall
from agentest.mocks.resolver import MockResolver
from agentest.plugins.authoring.mock_module import MockModule, module_of
from agentest.plugins.authoring.recorded_calls import RecordedTools, ToolDeclaration, gather_tools
from agentest.scenarios.options import parse_tools
from agentest.support.errors import MockError
from agentest.support.redaction import Redactor

RUFF = [sys.executable, "-m", "ruff"]
QUICK = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from(
    ["haircut", "2026-11-24", "it's", 'a "b"', "x" * 120, "word " * 30, "日本語", "\n", '"""', "\\"]
)
scalars = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, 1.0, -2.0, 1e300]) | texts
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
parameters = st.sampled_from(["service", "date", "n", "class", "args", "ctx", "_x", "tool", "match", "a b"])
arguments = st.dictionaries(parameters, scalars | json_values, max_size=3)
outcomes = json_values | texts.filter(str.strip).map(RuntimeError)
tool_names = st.sampled_from(["lookup", "get-orders", "print", "class", "tools", "1st", "Any", "größe"])
histories = st.lists(st.tuples(tool_names, arguments, outcomes), min_size=1, max_size=7)


def call(name: str, args: Any, outcome: Any, **more: Any) -> ToolCall:
    """A call that the agent's own tool answered, or failed."""
    more = {"seen_by": SeenBy.AGENT, **more}
    if isinstance(outcome, Exception):
        return ToolCall(name, args, {"error": str(outcome)}, False, 0, error=str(outcome), **more)
    return ToolCall(name, args, outcome, False, 0, **more)


def recorded(
    calls: Sequence[ToolCall], declared: Mapping[str, ToolDeclaration] | None = None
) -> RecordedTools:
    return gather_tools([calls], Redactor(), declared)


def written(gathered: RecordedTools) -> MockModule:
    return module_of(gathered.tools, "recorded_tools")


def imported(module: MockModule, folder: Path) -> dict[str, Any]:
    """The definitions of the module, in a folder with its files."""
    path = folder / "recorded_tools.py"
    for name, text in module.files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    names: dict[str, Any] = {"__file__": str(path), "__name__": "recorded_tools"}
    exec(compile(module.source, str(path), "exec", dont_inherit=True), names)
    return names


def answers(module: MockModule, folder: Path, calls: Sequence[tuple[str, Any]]) -> list[ToolCall]:
    """The mocks' answers to these calls in one conversation."""
    tools = parse_tools({"tools": imported(module, folder)["tools"]})
    mocks = MockResolver(tools, scenario="s", conversation_id="c")

    async def ask() -> None:
        for name, args in calls:
            await mocks.resolve(name, args, 0)

    asyncio.run(ask())
    return list(mocks.calls)


def outcome(told: ToolCall) -> Any:
    return told.error if told.error else told.result


@QUICK
@given(histories)
def test_the_same_calls_have_the_same_answers(
    tmp_path_factory: pytest.TempPathFactory, history: list[tuple[str, Any, Any]]
) -> None:
    """For any calls and answers, the module imports and answers each call as the real tool did."""
    made = written(recorded([call(*each) for each in history]))
    told = answers(made, tmp_path_factory.mktemp("m"), [(name, args) for name, args, _ in history])
    expected = [outcome(call(*each)) for each in history]
    assert [outcome(each) for each in told] == expected, made.source
    assert not any(each.invalid_arguments for each in told), made.source


@settings(QUICK, max_examples=4)
@given(histories)
def test_the_module_is_formatted_and_linted(history: list[tuple[str, Any, Any]]) -> None:
    """A project that checks its format with ruff finds nothing to change."""
    source = written(recorded([call(*each) for each in history])).source
    for command in (["format", "--check", "--diff", "-"], ["check", "--isolated", "--ignore", "E501", "-"]):
        done = subprocess.run([*RUFF, *command], input=source, capture_output=True, text=True, cwd="/")
        assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{source}"


def property_schema(**types: Any) -> dict[str, Any]:
    return {"type": "object", "properties": types, "required": list(types)[:1]}


SCHEMAS = st.sampled_from(
    [
        property_schema(service={"type": "string"}, n={"type": ["integer", "null"]}),
        property_schema(date={"type": "string", "format": "date"}, service={"enum": ["haircut", "shave"]}),
        property_schema(n={"anyOf": [{"type": "number"}, {"$ref": "#/x"}]}, service={}, tool={"default": 3}),
        property_schema(service={"type": "array", "items": {"type": "string"}}, n={"type": "boolean"}),
        {"properties": "nonsense", "required": None},
    ]
)


@QUICK
@given(histories, SCHEMAS)
def test_declared_tools_answer_the_same(
    tmp_path_factory: pytest.TempPathFactory, history: list[tuple[str, Any, Any]], schema: dict[str, Any]
) -> None:
    """For any declaration, a mock accepts the recorded calls, even if they do not match it."""
    declared = {
        name: ToolDeclaration(description='Says """it""" \\', parameters=schema) for name, _, _ in history
    }
    made = written(recorded([call(*each) for each in history], declared))
    told = answers(made, tmp_path_factory.mktemp("m"), [(name, args) for name, args, _ in history])
    assert [outcome(each) for each in told] == [outcome(call(*each)) for each in history], made.source
    assert not any(each.invalid_arguments for each in told), made.source


BOOKING = ToolDeclaration(
    description="Books a slot.\nLong story.",
    parameters={
        "type": "object",
        "properties": {
            "service": {"type": "string", "enum": ["haircut", "shave"]},
            "people": {"type": "integer", "default": 1},
            "note": {"type": "string"},
        },
        "required": ["service"],
    },
)


def test_a_mock_is_typed_as_the_real_tool_declares_it(tmp_path: Path) -> None:
    """Names, types, choices and defaults are the real tool's; a mismatch is an error for the agent."""
    made = written(recorded([call("book", {"service": "shave"}, {"id": 1})], {"book": BOOKING}))
    assert 'service: Literal["haircut", "shave"],' in made.source
    assert "people: int = 1," in made.source
    assert "note: str | None = None," in made.source
    assert '"""Books a slot. Long story.' in made.source
    told = answers(
        made, tmp_path, [("book", {"service": "haircut", "people": 2}), ("book", {"service": "x"})]
    )
    assert told[0].result == {"id": 1}
    assert "service" in str(told[1].invalid_arguments)


def test_what_was_not_recorded_ends_the_conversation(tmp_path: Path) -> None:
    """No answer is made up: another call is an error that names it and the file."""
    made = written(recorded([call("day", {"d": "mon"}, 1), call("day", {"d": "tue"}, 2)]))
    with pytest.raises(MockError, match=r"no answer was recorded for day\(d='sun'\); add it to .*recorded_"):
        answers(made, tmp_path, [("day", {"d": "sun"})])


def test_each_conversation_begins_with_the_first_answer(tmp_path: Path) -> None:
    """Several answers to one call are given in order, whatever is called in between."""
    calls = [("day", {"d": "mon"}, 1), ("day", {"d": "tue"}, 5), ("day", {"d": "mon"}, 2)]
    made = written(recorded([call(*each) for each in calls]))
    asked = [("day", {"d": "tue"}), *[("day", {"d": "mon"})] * 3]
    for _ in range(2):
        assert [each.result for each in answers(made, tmp_path, asked)] == [5, 1, 2, 2]


def test_conversations_are_merged(tmp_path: Path) -> None:
    """A longer one extends another; if they disagree, the first counts, with a note."""
    first = [call("n", {}, 1), call("id", {}, "A"), call("only", {}, True)]
    second = [call("n", {}, 1), call("n", {}, 2), call("id", {}, "B")]
    gathered = gather_tools([first, second], Redactor())
    told = answers(written(gathered), tmp_path, [("n", {}), ("n", {}), ("id", {}), ("only", {})])
    assert [each.result for each in told] == [1, 2, "A", True]
    assert gathered.notes == (
        "id: 1 call had other answers in another conversation; those of the first conversation are written",
    )


def test_secrets_are_not_written(tmp_path: Path) -> None:
    """Arguments, answers and errors have none; the mock answers for any secret."""
    calls = [
        call("login", {"user": "ann", "password": "hunter22"}, {"token": "t0ps3cret", "next_token": "page2"}),
        call("login", {"user": "bob", "password": "hunter22"}, RuntimeError("no key sk-abcdefghijklmnop")),
        call("raw", {"headers": {"Authorization": "Bearer abcdefghijkl"}, "q": "a"}, 1),
        call("raw", {"headers": {"Authorization": "Bearer abcdefghijkl"}, "q": "b"}, "sk-abcdefghijklmnop"),
    ]
    gathered = recorded(calls)
    made = written(gathered)
    for secret in ("hunter22", "t0ps3cret", "abcdefghijkl"):
        assert secret not in made.source
    asked = [("login", {"user": "bob", "password": "else"}), ("login", {"user": "ann", "password": "x"})]
    bob, ann = answers(made, tmp_path, asked)
    assert bob.error == "no key [redacted]"
    assert ann.result == {"token": "[redacted]", "next_token": "page2"}
    (told,) = answers(made, tmp_path, [("raw", {"headers": {}, "q": "a"})])
    assert told.result == 1
    assert any("the secret in password is not written" in note for note in gathered.notes)


@pytest.mark.slow
def test_long_answers_are_files(tmp_path: Path) -> None:
    """An answer of 5 MB is stored whole in a separate file, once."""
    long = {"rows": ["größe" * 10] * 100_000}
    made = written(recorded([call("dump", {"n": 1}, long), call("dump", {"n": 2}, {"rows": []})]))
    assert list(made.files) == ["recorded_tools_answers/dump_1.json"]
    assert len(made.source) < 3000
    one, two = answers(made, tmp_path, [("dump", {"n": 1}), ("dump", {"n": 2})])
    assert (one.result, two.result) == (long, {"rows": []})


@pytest.mark.parametrize(
    ("left_out", "why"),
    [
        (call("t", {}, None, seen_by=SeenBy.CALLER), "handed it to Agentest, which has no real tool"),
        (call("t", "{broken", 1), "its arguments are not a JSON object"),
        (ToolCall("t", {}, None, False, 0, error=CANCELLED, seen_by=SeenBy.AGENT), "had no answer yet"),
        (ToolCall("t", {}, 1, True, 0, seen_by=SeenBy.MOCK_SERVER), "a mock answered"),
        (call(" ", {}, 1), "it has no name"),
        (
            ToolCall("t", {}, {}, False, 0, invalid_arguments="x", seen_by=SeenBy.MOCK_SERVER),
            "the real tool was not called",
        ),
    ],
    ids=["handed-over", "no-object", "unfinished", "mocked", "nameless", "misfit"],
)
def test_what_tells_nothing_of_a_real_tool_is_left_out(left_out: ToolCall, why: str) -> None:
    """Each such call is reported, with the reason."""
    gathered = recorded([left_out])
    assert not gathered.tools
    assert why in gathered.notes[0]
    assert "left out 1 call" in gathered.notes[0]


def test_an_unknown_answer_is_null() -> None:
    """It may be the real one, so a note asks the user to check it."""
    gathered = recorded([call("t", {}, None)])
    assert "no answer was told, or null" in gathered.notes[0]
    assert '"t": None,' in written(gathered).source


def test_a_failing_request_keeps_its_status(tmp_path: Path) -> None:
    """The agent of a mocked API gets the status and the body of the real one."""
    failing = call("get_order", {"id": 1}, RuntimeError("x"), seen_by=SeenBy.MOCK_SERVER)
    failing = replace(failing, result={"detail": "no such order"})
    found = call("get_order", {"id": 2}, {"id": 2}, seen_by=SeenBy.MOCK_SERVER)
    gathered = gather_tools([[failing, found]], Redactor(), None, [(404, 200)])
    made = written(gathered)
    assert 'raise HttpResponse(404, {"detail": "no such order"})' in made.source
    told, other = answers(made, tmp_path, [("get_order", {"id": 1}), ("get_order", {"id": 2})])
    assert (told.result, other.result) == ({"detail": "no such order"}, {"id": 2})
    assert "404" in str(told.error)


def test_content_of_mcp_stays_what_it_is(tmp_path: Path) -> None:
    """A picture, or several texts, are answered as the server's own form again."""
    parts = [{"type": "text", "text": "a chart"}, {"type": "image", "data": "iVBO", "mimeType": "image/png"}]
    made = written(recorded([call("chart", {}, parts, seen_by=SeenBy.MOCK_SERVER)]))
    assert answers(made, tmp_path, [("chart", {})])[0].result == {"content": parts}


def test_dates_and_bytes_are_noted() -> None:
    """Notes name arguments that will change tomorrow, and answers that are not text."""
    calls = [call("day", {"d": f"2026-11-2{n}"}, n) for n in (3, 4)]
    assert "dates like 2026-11-23 distinguish its calls" in recorded(calls).notes[0]
    assert not recorded(calls[:1]).notes
    assert "an answer was not a text" in recorded([call("file", {}, "\ufffdPNG")]).notes[0]
