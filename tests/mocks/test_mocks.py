"""Mocks: every rule for what a scenario's tools answer, and what is recorded."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Any, Literal
from uuid import UUID

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from agentest import fault, scenario, sequence
from agentest.domain.messages import Session
from agentest.domain.transcript import Blame, Conversation, ToolCall
from agentest.mocks.answering import MockContext
from agentest.mocks.binding import RecordedAnswer, bind
from agentest.mocks.resolver import MockResolver
from agentest.support.errors import (
    AgentError,
    AgentestError,
    MockError,
    ScenarioError,
    ToolError,
    UnmockedToolError,
)
from agentest.testing import ScriptedAgent, run_scenarios, tool_call

ROWS = [{"id": "A-7", "total": 2.5}, {"id": "B-8", "total": 3.0}]


@pytest.mark.parametrize(
    ("kind", "settings", "value", "expected"),
    [
        ("empty", {}, {"rows": ROWS, "page": 1}, {"rows": [], "page": 1}),
        ("empty", {}, {"page": 1}, {}),
        ("empty", {}, ROWS, []),
        ("empty", {}, "text", ""),
        ("empty", {}, 7, None),
        ("truncated", {}, ROWS, ROWS[:1]),
        ("truncated", {}, ["abcd"], ["ab"]),
        ("truncated", {}, {"page": 1, "name": "abcd"}, {"page": 1, "name": "ab"}),
        ("truncated", {}, {"page": 1}, {"page": 1}),
        ("schema", {"mode": "extra"}, ROWS[:1], [{**ROWS[0], "unexpected": {"value": 1}}]),
        ("schema", {"mode": "extra"}, 7, {"result": 7, "unexpected": {"value": 1}}),
        ("schema", {"mode": "drop"}, {"a": 1, "b": 2}, {"b": 2}),
        ("schema", {"mode": "drop", "path": "[0]"}, [1, 2], [2]),
        ("schema", {"mode": "retype"}, {"a": "x"}, {"a": {"value": "x"}}),
        ("schema", {"mode": "retype"}, {"a": 1}, {"a": "1 (unverified)"}),
        ("schema", {"mode": "null"}, {"a": 1}, {"a": None}),
        ("schema", {"mode": "null"}, 7, {"unexpected": 7}),
        ("wrong_entity", {}, {"total": 2, "order_id": 9}, {"total": 2, "order_id": 10}),
        ("wrong_entity", {}, {"id": "A-9"}, {"id": "A-0"}),
        ("wrong_entity", {}, {"name": "Ann Lee"}, {"name": "Other Ann Lee"}),
        ("wrong_entity", {}, {"email": "ann@example.com"}, {"email": "other-ann@example.com"}),
        ("wrong_entity", {}, {"id": True}, {"id": True}),
        ("plausible_lie", {}, {"id": 7, "total": 2.5}, {"id": 7, "total": 2.76}),
        ("plausible_lie", {}, {"total": 50}, {"total": 55}),
        ("plausible_lie", {}, {"paid": True}, {"paid": False}),
        ("plausible_lie", {}, {"text": "room 09 of 3 floors, 09"}, {"text": "room 09 of 3 floors, 10"}),
        ("plausible_lie", {}, {"day": "2026-01-31"}, {"day": "2026-02-01"}),
        ("plausible_lie", {}, {"order": "id 2026-13-45"}, {"order": "id 2026-13-46"}),
        ("plausible_lie", {}, {"day": "9999-12-31"}, {"day": "9999-12-32"}),
        ("plausible_lie", {}, {"at": "2026-12-31T09:30:00Z"}, {"at": "2027-01-01T09:30:00Z"}),
        ("plausible_lie", {}, {"name": "Ann"}, {"name": "Ann"}),
        ("duplicate", {}, [1, 2], [1, 2, 1, 2]),
        ("duplicate", {}, {"page": 1, "rows": [1]}, {"page": 1, "rows": [1, 1]}),
        ("duplicate", {}, {"page": 1}, {"page": 1}),
        ("partial", {}, 7, {"status": "partial", "error": "a part of the request failed", "result": 7}),
    ],
)
def test_what_a_fault_makes_of_an_answer(kind: str, settings: Any, value: Any, expected: Any) -> None:
    """The mock's own value stays as it is, for the calls that no fault changes."""
    mocks = resolver({"look": fault(kind, **settings).then(value)})
    assert asyncio.run(mocks.resolve("look", {}, 0)) == expected
    assert asyncio.run(mocks.resolve("look", {}, 0)) == value


def resolver(
    tools: Mapping[str, Any],
    conversation_id: str = "c-1",
    unmocked_tools: Literal["error", "passthrough"] = "error",
    timeout_s: float = 5.0,
) -> MockResolver:
    """The mocks of a scenario in one conversation."""
    made = scenario("booking", goal="Book.", tools=tools)
    return MockResolver(
        made.tools,
        scenario="booking",
        conversation_id=conversation_id,
        unmocked_tools=unmocked_tools,
        timeout_s=timeout_s,
    )


def answers(mock: Any, *arguments: dict[str, Any] | str, **options: Any) -> list[Any]:
    """Call the tool with each of these arguments, and return the answers as the agent gets them."""

    async def go() -> list[Any]:
        mocks = resolver({"tool": mock}, **options)
        texts = [a if isinstance(a, str) else json.dumps(a) for a in arguments or ({},)]
        return [await mocks.resolve_json("tool", text, 0) for text in texts]

    return anyio.run(go)


_UNMOCKED = object()


def recorded(mock: Any, arguments: str = "{}", name: str = "tool", **options: Any) -> ToolCall:
    """Return the record of one call, whatever its outcome."""

    async def go() -> ToolCall:
        mocks = resolver({} if mock is _UNMOCKED else {"tool": mock}, **options)
        try:
            await mocks.resolve_json(name, arguments, 2)
        finally:
            (call,) = mocks.record.of_turn(2)
            calls.append(call)
        return call

    calls: list[ToolCall] = []
    try:
        anyio.run(go)
    except AgentestError:
        assert len(calls) == 1
    return calls[0]


# Values

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES)
def test_values(value: Any) -> None:
    """A plain value is answered as JSON, text unchanged, and the record has the value."""
    (answer,) = answers(value)
    assert answer == value if isinstance(value, str) else json.loads(answer) == value
    call = recorded(value, '{"a": 1}')
    assert call == ToolCall("tool", {"a": 1}, value, True, 2)


@dataclass
class Slot:
    hour: int


class Booking(BaseModel):
    day: date
    slot: Slot


class Color(Enum):
    RED = "red"
    OLD = date(2026, 1, 2)


@dataclass
class Stay:
    day: date
    extra: dict[Any, Any]


KEYS = '{"2026-01-02": 1, "red": [{"00000000-0000-0000-0000-000000000005": 2}]}'


@pytest.mark.parametrize(
    ("value", "answer"),
    [
        ("already JSON? No: text.", "already JSON? No: text."),
        ('{"as": "it is"}', '{"as": "it is"}'),
        ("", ""),
        (None, "null"),
        ("grüße", "grüße"),
        ({"a": "grüße"}, '{"a": "grüße"}'),
        (Slot(9), '{"hour": 9}'),
        ([Booking(day=date(2026, 1, 2), slot=Slot(9))], '[{"day": "2026-01-02", "slot": {"hour": 9}}]'),
        ((1, 2), "[1, 2]"),
        ({1: "one"}, '{"1": "one"}'),
        (date(2026, 1, 2), '"2026-01-02"'),
        ({"at": [datetime(2026, 1, 2, 9, 30, tzinfo=UTC)]}, '{"at": ["2026-01-02T09:30:00Z"]}'),
        ([time(9, 30), timedelta(hours=1)], '["09:30:00", "PT1H"]'),
        ({"price": Decimal("9.50")}, '{"price": "9.50"}'),
        ([UUID(int=5)], '["00000000-0000-0000-0000-000000000005"]'),
        ([Color.RED, Color.OLD], '["red", "2026-01-02"]'),
        (
            {"colors": {Color.RED}, "numbers": frozenset({3, 1, 2})},
            '{"colors": ["red"], "numbers": [1, 2, 3]}',
        ),
        ([{"b", "a", "c"}, {"b", 1}], '[["a", "b", "c"], ["b", 1]]'),
        ({date(2026, 1, 2): 1, Color.RED: [{UUID(int=5): 2}]}, KEYS),
        (
            Stay(date(2026, 1, 2), {Color.RED: {Decimal("1.0")}}),
            '{"day": "2026-01-02", "extra": {"red": ["1.0"]}}',
        ),
    ],
)
def test_forms_of_values(value: Any, answer: str) -> None:
    """Text is sent as is, other values as JSON or as pydantic serializes them, also from functions."""
    assert answers(value) == [answer]
    assert answers(lambda: value) == [answer]


# Functions


def test_raw_functions() -> None:
    """A function with a parameter `args`, and perhaps `ctx`, gets the raw argument dict and the context."""
    assert answers(lambda args: args, {"n": "5"}) == ['{"n": "5"}']
    assert answers(lambda args, ctx: [args, ctx.call_index], {"n": 5}) == ['[{"n": 5}, 0]']
    assert answers(lambda ctx, args: [args, ctx.call_index], {}) == ["[{}, 0]"]
    assert answers(lambda ctx: ctx.call_index) == ["0"]


def test_functions_without_parameters() -> None:
    """A function without parameters, or with only the context, accepts any call."""

    class Now:
        def __call__(self) -> str:
            return "noon"

    async def later() -> str:
        return "later"

    for mock, answer in ((lambda: "sunny", "sunny"), (Now(), "noon"), (later, "later")):
        call = recorded(mock, '{"city": "Bern"}')
        assert (call.args, call.invalid_arguments) == ({"city": "Bern"}, None)
        assert answers(mock, {"city": "Bern"}, {}) == [answer, answer]
    assert answers(lambda ctx: ctx.call_index, {"city": "Bern"}, {}) == ["0", "1"]


def test_parameters_that_begin_with_an_underscore() -> None:
    """One or two positional parameters that begin with `_` get the raw arguments, and the context."""

    def both(_: Any, __: MockContext) -> list[Any]:
        return [_, __.call_index]

    def positional(_args: Any, _ctx: Any = None, /) -> list[Any]:
        return [_args, _ctx.call_index]

    async def later(_args: Any) -> Any:
        return _args

    given = {"n": "5", "_args": 1}
    assert json.loads(answers(both, given)[0]) == [given, 0]
    assert json.loads(answers(positional, given)[0]) == [given, 0]
    assert json.loads(answers(later, given)[0]) == given
    assert json.loads(answers(lambda _: _, given)[0]) == given
    assert json.loads(answers(lambda _args, ctx: [_args, ctx.turn_index], given)[0]) == [given, 0]
    assert json.loads(answers(lambda args, _ctx: [args, _ctx.turn_index], given)[0]) == [given, 0]


def test_other_parameters_with_underscores() -> None:
    """Among three or more parameters, or keyword-only ones, `_x` is an ordinary name."""

    def by_name(*, _x: int) -> int:
        return _x

    def mixed(_x: int, n: int) -> list[int]:
        return [_x, n]

    assert answers(by_name, {"_x": "3"}) == ["3"]
    assert answers(mixed, {"_x": "3", "n": "4"}) == ["[3, 4]"]
    assert answers(lambda _a, _b, _c: [_a, _b, _c], {"_a": 1, "_b": 2, "_c": 3}) == ["[1, 2, 3]"]


def book(service: str, day: date, guests: int = 1, note: str | None = None) -> dict[str, Any]:
    return {"service": service, "day": day.isoformat(), "guests": guests, "note": note}


def test_bound_functions() -> None:
    """Any other function gets the arguments by name, converted to the annotated types, with its defaults."""
    (answer,) = answers(book, {"service": "cut", "day": "2026-01-02", "guests": "3"})
    assert json.loads(answer) == {"service": "cut", "day": "2026-01-02", "guests": 3, "note": None}


def test_bound_functions_with_context() -> None:
    """A bound function gets the context as `ctx`, which no argument can replace."""

    def find(q: str, ctx: MockContext) -> list[Any]:
        return [q, ctx.conversation_id]

    def anything(ctx: MockContext, **more: Any) -> list[Any]:
        return [ctx.conversation_id, more]

    assert answers(find, {"q": "x"}) == ['["x", "c-1"]']
    assert "`ctx` is not a parameter" in answers(find, {"q": "x", "ctx": "y"})[0]
    assert answers(anything, {"ctx": "mine", "b": 1}) == ['["c-1", {"b": 1}]']


def test_all_kinds_of_functions() -> None:
    """Methods, partial functions, callable objects, `**` functions and odd parameter names are bound."""

    class Salon:
        def book(self, n: int) -> int:
            return n + 1

        def __call__(self, n: int) -> int:
            return n + 2

    def everything(n: int, **more: Any) -> Any:
        return [n, more]

    def odd(schema: int, model_config: int, _x: int, p0: int, args: int) -> list[int]:
        return [schema, model_config, _x, p0, args]

    def add(n: int, by: int) -> int:
        return n + by

    assert answers(Salon().book, {"n": "1"}) == ["2"]
    assert answers(Salon(), {"n": "1"}) == ["3"]
    assert answers(partial(add, by=3), {"n": "1"}) == ["4"]
    assert answers(everything, {"n": "1", "p0": 2, "other": None}) == ['[1, {"p0": 2, "other": null}]']
    five = {"schema": 1, "model_config": "2", "_x": 3, "p0": 4, "args": 5}
    assert answers(odd, five) == ["[1, 2, 3, 4, 5]"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"service": "cut"}, "`day` is missing"),
        ({"service": "cut", "day": "soon"}, "`day`: "),
        ({"service": "cut", "day": "2026-01-02", "color": "red"}, "`color` is not a parameter"),
        ({"service": 5, "day": "2026-01-02"}, "`service`: "),
        ({"service": "cut", "day": "2026-01-02", "guests": "many"}, "`guests`: "),
    ],
)
def test_arguments_that_do_not_fit(arguments: dict[str, Any], problem: str) -> None:
    """Invalid arguments are answered with an error and recorded as invalid."""
    (answer,) = answers(book, arguments)
    assert list(json.loads(answer)) == ["error"]
    assert problem in json.loads(answer)["error"]
    call = recorded(book, json.dumps(arguments))
    assert call.args == arguments
    assert call.result == json.loads(answer)
    assert problem in (call.invalid_arguments or "")
    assert (call.mocked, call.error) == (True, None)


def test_a_mismatch_inside_the_function() -> None:
    """A validation error of the function itself is a failing tool, not invalid arguments of the agent."""
    call = recorded(lambda: Booking.model_validate({}))
    assert call.invalid_arguments is None
    assert "validation error" in (call.error or "")


def positional(args: Any, /) -> None:
    """Cannot be called by name."""


def unresolved(day: "Tomorrow") -> None:  # type: ignore[name-defined] # noqa: F821, UP037
    """Has an unresolvable annotation."""


def prose(day: "the day of it") -> None:  # type: ignore[valid-type] # noqa: F722
    """Has an annotation that is not an expression."""


@pytest.mark.parametrize("function", [positional, unresolved, prose])
def test_functions_that_cannot_be_bound(function: Callable[..., Any]) -> None:
    """A function that can never be called is an error in the scenario's definition."""
    with pytest.raises(ScenarioError, match=r"tools\['tool'\]: the function cannot be called"):
        resolver({"tool": function})


def test_defaults_are_not_copied() -> None:
    """A default that cannot be copied, such as a lock, is accepted."""
    lock = threading.Lock()
    assert answers(lambda held=lock: held is lock) == ["true"]


def test_async_functions() -> None:
    """Async functions, and functions that return awaitables, are awaited."""

    async def find(q: str) -> str:
        await checkpoint()
        return q

    async def raw(args: Any, ctx: Any) -> Any:
        return [args, ctx.call_index]

    assert answers(find, {"q": "x"}) == ["x"]
    assert answers(raw, {"q": "x"}) == ['[{"q": "x"}, 0]']
    assert answers(lambda args: find("y"), {}) == ["y"]
    assert json.loads(answers(find, {})[0]) == {"error": "invalid arguments: `q` is missing"}


def test_hanging_async_functions() -> None:
    """An async mock that never answers is an error of the mock, not the agent."""
    with pytest.raises(MockError, match=r"mock of tool 'tool' did not answer within 0\.01 s"):
        answers(anyio.sleep_forever, timeout_s=0.01)
    assert "did not answer" in (recorded(anyio.sleep_forever, timeout_s=0.01).error or "")


def test_the_record_is_a_copy() -> None:
    """Later changes to a mock's arguments or value do not change the record."""
    kept: list[Any] = []

    def spoil(args: Any) -> Any:
        args["list"].append("spoilt")
        args["new"] = True
        kept.append({"slots": []})
        return kept[-1]

    async def go() -> ToolCall:
        mocks = resolver({"tool": spoil})
        await mocks.resolve_json("tool", '{"list": []}', 0)
        kept[-1]["slots"].append("spoilt")
        return mocks.record.of_turn(0)[0]

    call = anyio.run(go)
    assert call.args == {"list": []}
    assert call.result == {"slots": []}


def test_plain_functions_run_in_threads() -> None:
    """A plain mock may block: it runs in a thread with its conversation's context variables."""
    here, meeting = threading.get_ident(), threading.Barrier(10)
    who: ContextVar[int] = ContextVar("who")

    def wait() -> list[Any]:
        meeting.wait(60)  # all ten are at it at once, or none gets on
        return [threading.get_ident() == here, who.get()]

    async def one(number: int) -> Any:
        who.set(number)
        return await resolver({"tool": wait}, timeout_s=100.0).resolve("tool", {}, 0)

    async def go() -> list[Any]:
        return await asyncio.gather(*(one(number) for number in range(10)))

    assert anyio.run(go) == [[False, number] for number in range(10)]


@pytest.mark.slow
def test_hanging_plain_functions() -> None:
    """A plain mock that never answers ends only its own conversation, with an error of the mock."""
    released = threading.Event()

    def hang(n: int) -> None:
        if n == 0:
            released.wait(600)

    async def go() -> list[Any]:
        mocks = resolver({"tool": hang}, timeout_s=1.0)
        found = [await asyncio.gather(mocks.resolve("tool", {"n": 0}, 0), return_exceptions=True)]
        patient = resolver({"tool": hang}, timeout_s=100.0)
        found += [await patient.resolve("tool", {"n": 1}, 0) for _ in range(100)]
        return found

    try:
        (error,), *others = anyio.run(go)
    finally:
        released.set()
    assert isinstance(error, MockError)
    assert "mock of tool 'tool' did not answer within 1 s" in str(error)
    assert others == [None] * 100


def test_names_of_tools() -> None:
    """A tool name over 256 characters is the agent's error, and the message shows its beginning."""
    name = "evil" * 50_000
    for passthrough in ("error", "passthrough"):
        mocks = resolver({}, unmocked_tools=passthrough)  # type: ignore[arg-type]
        for asked in (mocks.resolve, mocks.resolve_json):
            with pytest.raises(AgentError, match="200000 characters") as caught:
                anyio.run(asked, name, "{}", 0)
            assert "'evilevil" in str(caught.value)
            assert len(str(caught.value)) < 300
        with pytest.raises(AgentError):
            mocks.observe([ToolCall(name, {}, None, False, 0)])
        assert mocks.record.of_turn(0) == ()


# Context


def test_context() -> None:
    """The context has the call index per tool, the turn, the conversation, the scenario and state."""

    def look(ctx: MockContext) -> list[Any]:
        ctx.state.setdefault("calls", []).append(ctx.turn_index)
        return [ctx.call_index, ctx.turn_index, ctx.conversation_id, ctx.scenario, ctx.state["calls"]]

    async def go() -> list[Any]:
        mocks = resolver({"a": look, "b": look}, "c-7")
        calls = (("a", 0), ("b", 0), ("a", 1))
        return [json.loads(await mocks.resolve_json(name, "{}", turn)) for name, turn in calls]

    assert anyio.run(go) == [
        [0, 0, "c-7", "booking", [0]],
        [0, 0, "c-7", "booking", [0, 0]],
        [1, 1, "c-7", "booking", [0, 0, 1]],
    ]


# Sequences


@given(st.lists(st.integers(), min_size=1, max_size=5), st.integers(1, 9))
def test_sequences(values: list[int], calls: int) -> None:
    """A sequence answers in order, then repeats its last answer; both spellings work."""
    expected = [str(values[min(i, len(values) - 1)]) for i in range(calls)]
    assert answers(sequence(*values), *[{}] * calls) == expected
    assert answers(sequence(values), *[{}] * calls) == expected


def test_sequences_of_lists() -> None:
    """Several lists are several answers; a single list contains the answers."""
    assert answers(sequence([1], [2]), {}, {}) == ["[1]", "[2]"]
    assert answers(sequence([[1]]), {}, {}) == ["[1]", "[1]"]


@pytest.mark.parametrize("values", [(), ([],)])
def test_empty_sequences(values: tuple[Any, ...]) -> None:
    """An empty sequence raises ValueError."""
    with pytest.raises(ValueError, match="at least one value"):
        sequence(*values)


def test_steps_of_sequences() -> None:
    """An element of a sequence may be a function, an async function, or an exception, class or instance."""

    async def later(n: int) -> int:
        return n

    steps = sequence(lambda args, ctx: ctx.call_index, later, TimeoutError("too slow"), KeyError, "done")
    found = answers(steps, {}, {"n": 4}, {}, {}, {}, {})
    assert found == ["0", "4", '{"error": "too slow"}', '{"error": "KeyError"}', "done", "done"]


def test_a_raised_exception_stays_small() -> None:
    """An exception of a sequence does not grow when raised a hundred times."""
    error = ValueError("no")
    assert answers(sequence(error), *[{}] * 100) == ['{"error": "no"}'] * 100
    length, trace = 0, error.__traceback__
    while trace:
        length, trace = length + 1, trace.tb_next
    assert length < 10


@settings(max_examples=25)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=60))
def test_conversations_share_nothing(order: list[int]) -> None:
    """Each of five interleaved conversations has its own sequences, call indices and state."""

    async def remember(ctx: MockContext) -> list[Any]:
        ctx.state.setdefault("seen", []).append(ctx.call_index)
        await checkpoint()
        return [ctx.conversation_id, *ctx.state["seen"]]

    made = scenario("s", goal="g", tools={"next": sequence(*range(100)), "remember": remember})

    async def go() -> None:
        each = [MockResolver(made.tools, scenario="s", conversation_id=f"c-{i}") for i in range(5)]

        async def one(i: int) -> None:
            for call in range(order.count(i)):
                for _ in range(order.index(i)):
                    await checkpoint()
                assert await each[i].resolve_json("next", "{}", 0) == str(call)
                assert await each[i].resolve("remember", {}, 0) == [f"c-{i}", *range(call + 1)]

        async with anyio.create_task_group() as tasks:
            for i in range(5):
                if i in order:
                    tasks.start_soon(one, i)

    anyio.run(go)


# Raising


class Wordless(Exception):
    """Raises when converted to a string."""

    def __str__(self) -> str:
        raise SystemExit


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("no slots"), "no slots"),
        (ValueError(), "ValueError"),
        (SystemExit(3), "3"),
        (TimeoutError("slow"), "slow"),
        (GeneratorExit(), "GeneratorExit"),
        (Wordless(), "Wordless"),
        (asyncio.CancelledError("a request was cancelled"), "a request was cancelled"),
    ],
)
def test_raising_mocks(error: BaseException, message: str) -> None:
    """If a mock raises, plain or async, the answer is an error with the message."""

    def fail() -> None:
        raise error

    async def fail_later() -> None:
        raise error

    for mock in (fail, fail_later, sequence(error)):
        assert answers(mock) == [json.dumps({"error": message})]
        call = recorded(mock)
        assert call == ToolCall("tool", {}, {"error": message}, True, 2, error=message, raised=call.raised)


def test_mocks_that_raise_by_mistake() -> None:
    """An accidental exception in a mock is recorded with its location; a deliberate one is not."""

    def broken(service: str) -> dict[str, str]:
        return {"price": {"haircut": "35"}[service]}

    def refusing(args: dict[str, str]) -> None:
        raise ToolError(f"no {args['service']} today")

    def unreadable(args: dict[str, str]) -> Any:
        return json.loads(args["service"])

    def raised(mock: Any) -> str | None:
        return recorded(mock, json.dumps({"service": "massage"})).raised

    line = broken.__code__.co_firstlineno + 1
    assert raised(broken) == raised(sequence(broken)) == f"KeyError at test_mocks.py:{line}"
    assert raised(unreadable) == f"JSONDecodeError at test_mocks.py:{line + 6}"
    deliberate = (
        refusing,
        ToolError("closed"),
        ValueError("closed"),
        TimeoutError("slow"),
        sequence(KeyError("x")),
    )
    assert [raised(mock) for mock in deliberate] == [None] * 5
    assert raised(lambda wrong: wrong) is None, "arguments that do not fit are no mistake of the mock's code"


def test_agentest_errors() -> None:
    """AgentestError raised by a mock ends the conversation; the call is recorded."""

    def stop() -> None:
        raise AgentestError("that is enough")

    for mock in (stop, sequence(AgentestError("that is enough"))):
        with pytest.raises(AgentestError, match="that is enough"):
            answers(mock)
        assert recorded(mock) == ToolCall("tool", {}, None, True, 2, error="that is enough")


# Unmocked tools


def test_unmocked_tools() -> None:
    """The error about an unmocked tool has tool, scenario, conversation, turn and two solutions."""
    with pytest.raises(UnmockedToolError) as caught:
        anyio.run(resolver({}, "booking-3").resolve_json, "send_email", '{"to": "a"}', 4)
    text = str(caught.value)
    for part in (
        "'send_email'",
        "'booking'",
        "booking-3",
        "turn 5",
        'tools={"send_email"',
        "unmocked_tools: passthrough",
    ):
        assert part in text
    assert recorded(_UNMOCKED, '{"a": 1}') == ToolCall("tool", {"a": 1}, None, False, 2, error="no mock")


def test_passthrough() -> None:
    """With `passthrough` an unmocked tool answers null, and the call is recorded as not mocked."""
    mocks = resolver({"other": 1}, unmocked_tools="passthrough")
    assert anyio.run(mocks.resolve_json, "tool", '{"a": 1}', 0) == "null"
    assert mocks.record.of_turn(0) == (ToolCall("tool", {"a": 1}, None, False, 0),)
    assert recorded(5, unmocked_tools="passthrough").mocked


@pytest.mark.parametrize(
    "name",
    ["constructor", "__class__", "__proto__", "toString", "get", "", " ", 'a"b', "\ufffd", "x" * 256],
)
def test_names_of_attributes_are_only_names(name: str) -> None:
    """A tool named like a Python attribute is unmocked until it is mocked."""
    with pytest.raises(UnmockedToolError):
        anyio.run(resolver({"tool": 1}).resolve_json, name, "{}", 0)
    if name.strip():
        assert anyio.run(resolver({name: "mine"}).resolve_json, name, "{}", 0) == "mine"


# Arguments that are not an object


@pytest.mark.parametrize(
    "arguments",
    [
        "{",
        "not JSON",
        '{"a": 1}}',
        "{'a': 1}",
        '{"a": NaN}',
        "Infinity",
        '{"a": -1e999}',
        "[" * 100_000,
        "9" * 5_000,
        "\x00",
    ],
)
def test_arguments_that_are_not_json(arguments: str) -> None:
    """Arguments that are not JSON are recorded verbatim and answered with an error."""
    first, second = answers("fine", arguments, {})
    assert "not valid JSON" in json.loads(first)["error"]
    assert second == "fine"
    for options in ({}, {"unmocked_tools": "passthrough"}):
        call = recorded("fine", arguments, **options)
        assert call.args == arguments
        assert "not valid JSON" in (call.invalid_arguments or "")
        assert call.result == {"error": call.invalid_arguments}


@pytest.mark.parametrize("arguments", ["[]", "null", "5", '"{}"', "true", "[1, [2]]"])
def test_arguments_that_are_not_an_object(arguments: str) -> None:
    """They are recorded and answered with an error, and the next call works."""
    first, second = answers("fine", arguments, {})
    assert "not a JSON object" in json.loads(first)["error"]
    assert second == "fine"
    call = recorded("fine", arguments)
    assert call.args == json.loads(arguments)
    assert "not a JSON object" in (call.invalid_arguments or "")


@pytest.mark.parametrize("arguments", ["", " ", "\n"])
def test_no_arguments(arguments: str) -> None:
    """Missing arguments count as an empty object."""
    assert recorded(lambda: "fine", arguments) == ToolCall("tool", {}, "fine", True, 2)


@given(st.text(max_size=20) | VALUES.map(json.dumps))
def test_any_arguments(arguments: str) -> None:
    """Any argument text gives one answer and one record."""
    (answer,) = answers(lambda **anything: anything, arguments)
    assert isinstance(answer, str)
    assert recorded(lambda **anything: anything, arguments).mocked


# Results


@pytest.mark.parametrize(
    "result",
    [object(), b"x", {object()}, float("nan"), {"a": float("inf")}, {(1, 2): 3}, open, (n for n in (1, 2))],
)
def test_results_that_are_not_json(result: Any) -> None:
    """A result that is not JSON is an error of the mock, not the agent."""
    with pytest.raises(MockError, match="mock of tool 'tool' must return JSON, like a dict"):
        answers(lambda: result)
    assert "must return JSON" in (recorded(lambda: result).error or "")


@pytest.mark.slow
def test_results_that_contain_themselves() -> None:
    """Cyclic or endlessly nested results are not JSON."""
    loop: list[Any] = []
    loop.append(loop)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for result in (loop, deep):
        with pytest.raises(MockError, match="must return JSON"):
            answers(lambda result=result: result)


@pytest.mark.parametrize("value", [{b"x"}, b"x", float("nan"), ValueError])
def test_values_that_are_not_json(value: Any) -> None:
    """A plain value that is not JSON is an error in the scenario's definition."""
    with pytest.raises(ScenarioError, match=r"tools\['tool'\]"):
        resolver({"tool": value})


# In a conversation


def held(tools: Mapping[str, Any], script: Any, **config: Any) -> Conversation:
    """Run a conversation of one turn with an agent that sends these replies."""
    made = scenario("booking", turns=["Book."], tools=tools)
    with ScriptedAgent(script) as agent:
        result = run_scenarios([made], agent=agent, **config)
    return result.scenarios[0].conversations[0].conversation


def test_a_conversation_goes_on() -> None:
    """The conversation continues to its reply after failing tools and invalid or unknown arguments."""

    def broken(n: int = 1) -> None:
        raise ValueError("no")

    calls = [
        tool_call("broken"),
        {"function": {"name": "broken", "arguments": "{not JSON"}},
        tool_call("broken", x=1),
    ]
    conversation = held({"broken": broken}, [calls, "Done."])
    assert conversation.failure is None
    assert conversation.turns[0].agent_message == "Done."
    assert [bool(c.invalid_arguments) for c in conversation.tool_calls] == [False, True, True]


def test_all_results_go_back_in_one_request() -> None:
    """The results of several calls are sent in one request, in order, with their call ids."""
    with ScriptedAgent([[tool_call("a"), tool_call("b"), tool_call("a")], "Done."]) as agent:
        made = scenario("s", turns=["Go."], tools={"a": sequence("a1", "a2"), "b": {"b": 1}})
        run_scenarios([made], agent=agent)
    first, second = agent.requests
    assert first["messages"] == [{"role": "user", "content": "Go."}]
    _, asked, *results = second["messages"]
    assert [r["content"] for r in results] == ["a1", '{"b": 1}', "a2"]
    assert [r["tool_call_id"] for r in results] == [c["id"] for c in asked["tool_calls"]]
    assert {r["role"] for r in results} == {"tool"}


def test_fifty_rounds() -> None:
    """Fifty tool rounds in a turn are answered."""
    conversation = held({"again": "more"}, [*[tool_call("again")] * 50, "Done."])
    assert conversation.failure is None
    assert len(conversation.tool_calls) == 50


def test_more_than_fifty_rounds() -> None:
    """Round 51 ends the conversation, keeps the first fifty, and blames the agent."""
    conversation = held({"again": "more"}, [tool_call("again")])
    assert conversation.failure is not None
    assert conversation.failure.blame is Blame.AGENT
    assert "more than 50 times in turn 1" in conversation.failure.message
    assert conversation.unfinished is not None
    assert (len(conversation.tool_calls), conversation.unfinished.requests) == (50, 51)


@pytest.mark.parametrize(
    ("mock", "blame"),
    [
        (sequence(AgentestError("enough")), Blame.AGENT),
        (sequence(AgentError("enough")), Blame.AGENT),
        (lambda: object(), Blame.MOCK),
        (None, Blame.AGENT),
    ],
)
def test_who_is_to_blame(mock: Any, blame: Blame) -> None:
    """AgentestError in a mock and an unmocked tool blame the agent; a broken mock does not."""
    conversation = held({"tool": mock} if mock else {}, [tool_call("tool")])
    assert conversation.failure is not None
    assert conversation.failure.blame is blame
    assert len(conversation.tool_calls) == 1


@pytest.mark.slow
def test_a_mock_that_blocks_does_not_delay_other_conversations() -> None:
    """Other conversations finish while a plain mock blocks past the agent's time limit."""
    answered, enough = threading.Semaphore(0), threading.Event()

    def agent(body: dict[str, Any]) -> Any:
        first, last = body["messages"][0]["content"], body["messages"][-1]["role"]
        if first == "slow":
            return "Done." if last == "tool" else tool_call("block")
        answered.release()
        return "Hello."

    def block() -> str:
        for _ in range(9):
            assert answered.acquire(timeout=60)
        enough.wait(1.2)  # and then for longer than the agent's time-out
        return "ok"

    made = [scenario(name, turns=[name], tools={"block": block}) for name in ("slow", *"abcdefghi")]
    with ScriptedAgent(agent) as server:
        result = run_scenarios(made, agent=server, concurrency=10, request_timeout_ms=1000, strict=False)
    assert [found.verdict.status for found in result.scenarios] == ["passed"] * 10


@pytest.mark.slow
def test_two_hundred_conversations_at_once() -> None:
    """Two hundred conversations of two scenarios share a sequence; each has its own position."""
    steps = sequence("first", "second", "third")
    made = [
        scenario(f"s{i}", turns=["Go."], conversations_per_scenario=100, tools={"next": steps})
        for i in (1, 2)
    ]
    with ScriptedAgent([*[tool_call("next")] * 3, "Done."]) as agent:
        result = run_scenarios(made, agent=agent, concurrency=50)
    for found in result.scenarios:
        for each in found.conversations:
            assert [c.result for c in each.conversation.tool_calls] == ["first", "second", "third"]
    assert sum(len(found.conversations) for found in result.scenarios) == 200


def test_a_mismatch_is_a_warning() -> None:
    """Arguments that a mock does not accept give one warning per tool; the status does not change."""

    def weather(city: str) -> str:
        return "sunny"

    calls = [
        tool_call("weather", town="Bern"),
        tool_call("weather"),
        tool_call("weather", city="Bern"),
        {"function": {"name": "weather", "arguments": "{not JSON"}},
    ]
    made = [
        scenario("odd", turns=["Go."], tools={"weather": weather}),
        scenario("fine", turns=["Go."], tools={"weather": lambda: "sunny"}),
    ]
    with ScriptedAgent([calls, "Sunny."]) as agent:
        odd, fine = run_scenarios(made, agent=agent, strict=False).scenarios
    assert odd.verdict.passed
    warning = next(each for each in odd.verdict_warnings if each.code == "mock-misfit")
    assert warning.note
    assert warning.message.startswith(
        "weather was called 2 times with arguments that its mock does not take: `city`"
    )
    assert "mock-misfit" not in {each.code for each in fine.verdict_warnings}


def test_handlers_cannot_change_recorded_answers() -> None:
    """A handler that changes an answer changes neither the record nor later answers."""

    def handler(messages: Any, ctx: Any) -> str:
        given = {"q": [1]}
        found = [ctx.resolve_tool(name, given) for name in ("recorded", "recorded", "plain", "plain")]
        given["q"].append("spoilt")
        for answer in found:
            answer["list"].append("spoilt")
        ctx.session.state["list"].append("spoilt")
        return json.dumps([len(ctx.session.state["list"]), *(len(answer["list"]) for answer in found)])

    made = replace(
        scenario("s", turns=["One.", "Two."], conversations_per_scenario=3, tools={"plain": {"list": []}}),
        recorded=(RecordedAnswer("recorded", {"q": [1]}, {"list": []}),),
        session=Session(state={"list": []}),
    )
    (found,) = run_scenarios([made], agent=handler).scenarios
    for held in found.conversations:
        assert [turn.agent_message for turn in held.conversation.turns] == [
            "[1, 1, 1, 1, 1]",
            "[2, 1, 1, 1, 1]",
        ]
        assert all(call.result == {"list": []} for call in held.conversation.tool_calls)
        assert all(call.args == {"q": [1]} for call in held.conversation.tool_calls)


def test_a_handler_cannot_change_its_messages() -> None:
    """Changes that a handler makes inside a message do not reach the next request."""

    def handler(messages: list[dict[str, Any]], ctx: Any) -> Any:
        calls = [c for m in messages for c in m.get("tool_calls", ())]
        names = [c["function"]["name"] for c in calls]
        for made in calls:
            made["function"]["name"] = "spoilt"
        return (
            str(names) if len(names) > 1 else {"content": None, "tool_calls": [{"id": "1", **tool_call("a")}]}
        )

    with_tools = scenario("s", turns=["Go."], tools={"a": 1})
    (found,) = run_scenarios([with_tools], agent=handler).scenarios
    assert found.conversations[0].conversation.turns[0].agent_message == "['a', 'a']"


def test_a_function_that_cannot_block_needs_no_thread() -> None:
    """A function without calls and loops runs inline; any other runs in a thread."""
    here: list[int] = []

    def put_together(service: str, ctx: MockContext) -> Any:
        return {"id": f"BK-{ctx.call_index}", "for": service}

    def asks_for_its_thread(service: str) -> Any:
        here.append(threading.get_ident())
        return service

    async def outcome(mock: Any) -> Any:
        asked = asyncio.get_running_loop().create_task(
            resolver({"book": mock}).resolve("book", {"service": "cut"}, 0)
        )
        await asyncio.sleep(0)
        return asked.result() if asked.done() else [await asked]

    assert asyncio.run(outcome(put_together)) == {"id": "BK-0", "for": "cut"}
    assert asyncio.run(outcome(asks_for_its_thread)) == ["cut"]
    assert here != [threading.get_ident()]


@pytest.mark.parametrize(
    "function",
    [
        lambda n: n**n,
        lambda n: n << n,
        lambda n: [each for each in n],  # noqa: C416
        lambda n: len(n),
        lambda n, ctx: ctx.state["lock"].acquire(),
    ],
)
def test_a_function_that_may_take_time_never_runs_in_the_event_loop(function: Any) -> None:
    """Functions with powers, shifts, loops or calls run in a thread."""
    assert bind(function).may_block


def test_custom_types_are_validated_in_a_thread() -> None:
    """Validation of such types runs user code."""

    def book(service: Service) -> str:
        return "done"

    assert bind(book).may_block


class Service(BaseModel):
    name: str
