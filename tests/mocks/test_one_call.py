"""Merging reports of one call that sources word differently, and keeping two calls apart."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import ToolCall
from agentest.mocks.calls import CallRecord, alike, is_called, tool_called

AGENT, SERVER, SPANS = SeenBy.AGENT, SeenBy.MOCK_SERVER, SeenBy.SPANS


def told(name: str, args: Any, by: SeenBy = AGENT, id: str | None = None, turn: int = 0) -> ToolCall:
    return ToolCall(name, args, None, False, turn, seen_by=by, call_id=id)


def served(record: CallRecord, name: str, args: Any, turn: int = 0) -> None:
    """Record a call that a mock server answered."""
    call = ToolCall(name, args, None, True, turn, seen_by=SERVER)
    record.finish(record.begin(call), "mocked")


ALIKE: list[tuple[Any, Any]] = [
    ({"item": "tea"}, {"item": "tea", "limit": 10}),
    ({"item": "tea", "note": None}, {"item": "tea"}),
    ({"n": "2"}, {"n": 2}),
    ({"n": "2.0"}, {"n": 2}),
    ({"all": "True"}, {"all": True}),
    ({"order": {"item": "tea"}}, {"order": {"item": "tea", "gift": False}}),
    ({"items": [{"n": "1"}]}, {"items": [{"n": 1, "gift": None}]}),
    ({}, {"page": 1}),
]
NOT_ALIKE: list[tuple[Any, Any]] = [
    ({"item": "tea"}, {"item": "milk"}),
    ({"item": "tea", "n": 1}, {"item": "tea", "m": 1}),
    ({"n": "two"}, {"n": 2}),
    ({"n": True}, {"n": 1}),
    ({"n": "1"}, {"n": True}),
    ({"items": ["tea"]}, {"items": ["tea", "milk"]}),
    ({"n": "1"}, {"n": "1.0"}),
    ({"item": "tea"}, ["tea"]),
]


@pytest.mark.parametrize(("one", "other"), ALIKE)
def test_changes_by_frameworks_are_ignored(one: Any, other: Any) -> None:
    """Filled-in defaults, dropped nulls and numbers as text leave arguments alike."""
    assert alike(one, other)
    assert alike(other, one)


@pytest.mark.parametrize(("one", "other"), NOT_ALIKE)
def test_other_differences_count(one: Any, other: Any) -> None:
    """Different values, and keys that either side lacks on both sides, are different arguments."""
    assert not alike(one, other)
    assert not alike(other, one)


@pytest.mark.parametrize(
    ("name", "tool"),
    [
        ("check_stock", "check_stock"),
        ("mcp__shop__check_stock", "check_stock"),
        ("shop_check_stock", "check_stock"),
        ("shop.check_stock", "check_stock"),
        ("functions.check_stock", "check_stock"),
        ("shop-check-stock", "check.stock"),
        ("recheck_stock", None),
        ("check_stock_now", None),
        ("Check_stock", None),
    ],
)
def test_names_of_a_tool(name: str, tool: str | None) -> None:
    """A framework may add a prefix to a tool's name, with a separator."""
    assert tool_called(name, ["stock_of", tool or "check_stock"]) == tool
    assert is_called(name, tool or "check_stock") is (tool is not None)


def test_the_longest_name_matches_and_the_agents_own_tools_do_not() -> None:
    """The longest suffix is the mocked tool; a tool the agent has is never a mock."""
    assert tool_called("shop_check_stock", ["stock", "check_stock"]) == "check_stock"
    assert tool_called("get_price", ["price"], others=["get_price"]) is None
    assert tool_called("price", ["price"], others=["price"]) == "price"


CASES: dict[str, tuple[list[tuple[str, Any]], list[ToolCall], list[str]]] = {
    "told by a longer name": (
        [("stock", {"item": "tea"})],
        [told("mcp__shop__stock", {"item": "tea"})],
        ["stock item=tea mock-server+agent"],
    ),
    "recorded as the server got it": (
        [("stock", {"item": "tea", "n": 1})],
        [told("shop_stock", {"item": "tea", "note": None})],
        ["stock item=tea,n=1 mock-server+agent"],
    ),
    "the exact one first": (
        [("stock", {"n": 1, "limit": 10}), ("stock", {"n": 1})],
        [told("stock", {"n": 1}), told("stock", {"n": 1, "note": None})],
        ["stock n=1,limit=10 mock-server+agent", "stock n=1 mock-server+agent"],
    ),
    "who has no choice first": (
        [("stock", {"n": 1, "limit": 5}), ("stock", {"n": 1, "page": 2})],
        [told("stock", {"n": 1, "note": None}), told("stock", {"n": "1", "limit": 5})],
        ["stock n=1,limit=5 mock-server+agent", "stock n=1,page=2 mock-server+agent"],
    ),
    "each source once": (
        [("stock", {"n": 1})],
        [
            told("shop_stock", {"n": 1}),
            told("shop_stock", {"n": 1}),
            told("stock", {"n": "1"}, SPANS),
            told("shop_stock", {"n": 1}, SPANS),
        ],
        ["stock n=1 mock-server+agent+spans", "shop_stock n=1 agent+spans"],
    ),
    "another tool's name is no longer name": (
        [("stock", {"n": 1})],
        [told("stock_of", {"n": 1})],
        ["stock n=1 mock-server", "stock_of n=1 agent"],
    ),
    "a call that no server was asked for": (
        [("stock", {"n": 1})],
        [told("stock", {"n": 1}), told("stock", {"n": 2})],
        ["stock n=1 mock-server+agent", "stock n=2 agent"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_one_call_in_two_reports(name: str) -> None:
    """A call to a server and the framework's report of it become one call; others stay two."""
    calls, tellings, expected = CASES[name]
    record = CallRecord()
    for tool, args in calls:
        served(record, tool, args)
    for source in (AGENT, SPANS):
        record.observe([call for call in tellings if call.seen_by is source])
    assert sorted(map(shown, record.calls)) == sorted(expected)


def test_a_mocked_tool_with_a_longer_name() -> None:
    """A call of `delete_stock` that reached no server is not merged with a call of `stock`."""
    record = CallRecord(mocked={"stock", "delete_stock"})
    served(record, "stock", {"item": "tea"})
    record.observe([told("delete_stock", {"item": "tea"})])
    assert sorted(map(shown, record.calls)) == ["delete_stock item=tea agent", "stock item=tea mock-server"]


def shown(call: ToolCall) -> str:
    args = ",".join(f"{key}={value}" for key, value in call.args.items())
    sources = "+".join([call.seen_by.value, *(source.value for source in call.also_seen_by)])
    return f"{call.name} {args} {sources}"


def test_a_repeated_history() -> None:
    """Calls of earlier turns are recognized when a snapshot repeats them in the framework's words."""
    record = CallRecord()
    served(record, "stock", {"item": "tea", "limit": 10})
    first = told("shop_stock", {"item": "tea"}, id="c1")
    record.observe([first], may_repeat=True)
    served(record, "stock", {"item": "milk", "limit": 10}, turn=1)
    again = [told("shop_stock", {"item": "tea"}, id="c1", turn=1)]
    record.observe([*again, told("shop_stock", {"item": "milk"}, id="c2", turn=1)], may_repeat=True)
    assert [shown(call) for call in record.calls] == [
        "stock item=tea,limit=10 mock-server+agent",
        "stock item=milk,limit=10 mock-server+agent",
    ]


ITEMS = st.lists(st.sampled_from(["tea", "milk"]), max_size=6)


@given(ITEMS, ITEMS, st.sampled_from(["stock", "mcp__shop__stock"]), st.booleans(), st.randoms())
def test_counts(asked: list[str], tellings: list[str], name: str, filled: bool, chance: Any) -> None:
    """For each argument, the number of calls is the largest that one source reports, in any order."""
    record = CallRecord()
    for item in asked:
        served(record, "stock", {"item": item, "limit": 10} if filled else {"item": item})
    chance.shuffle(tellings)
    record.observe([told(name, {"item": item, "note": None}) for item in tellings])
    for item in ("tea", "milk"):
        found = [call for call in record.calls if call.args["item"] == item]
        assert len(found) == max(asked.count(item), tellings.count(item))
        assert sum(call.mocked for call in found) == asked.count(item)
        assert all(call.name == "stock" for call in found if call.mocked)
