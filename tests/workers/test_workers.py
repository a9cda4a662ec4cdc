"""Distribution of work among workers, shared limits, and messages between processes."""

from __future__ import annotations

import asyncio
import pickle
import socket
from collections.abc import Callable
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any, Self

import anyio
import pytest
from builders import conversation, conversation_result, failing_conversation, tool_call, turn
from hypothesis import given
from hypothesis import strategies as st

from agentest.config.config import Config
from agentest.config.file import LoadedConfig
from agentest.config.models import RequestedModel
from agentest.domain.results import Unscored
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import ToolCall
from agentest.models.providers import ModelSpec
from agentest.runner.environment import RESERVE, limited_to_connections
from agentest.runner.plan import Options, Plan, Unit
from agentest.runner.prepare import Prepared, RunRequest
from agentest.scenarios.model import Scenario
from agentest.support.redaction import Redactor
from agentest.workers.channel import Link, packed
from agentest.workers.engine import cores, worker_count

HERE = Path()


def unit(name: str, conversations: int = 3) -> Unit:
    scenario = Scenario(name=name, file="a.sim.py", line=1, turns=())
    return Unit(scenario, "a", "a.sim.py", name, name, conversations, 1, (), {})


def prepared(units: int = 8, concurrency: int = 20, **models: Any) -> Prepared:
    """A run whose scenarios have three conversations each; `user` and `judge` are model settings, and the
    other models are judges named in files."""
    made = tuple(unit(f"s{n}") for n in range(units))
    config = Config.model_validate({"agent": {"endpoint": "http://127.0.0.1:9/"}, "concurrency": concurrency})
    specs = {role: ModelSpec("m", "m", **settings) for role, settings in models.items()}
    plan = Plan(made, {}, False, units=made)
    loaded = LoadedConfig(config, HERE, Redactor())
    roles = {role: specs.pop(role, None) for role in ("user", "judge")}
    named = {RequestedModel("judge", name): spec for name, spec in specs.items()}
    return Prepared(RunRequest(HERE), loaded, plan, (), **roles, named=named)


@pytest.mark.parametrize(
    ("run", "count"),
    [(prepared(units=3), 8), (prepared(units=2), 6), (prepared(concurrency=2), 2), (prepared(units=0), 1)],
    ids=["as wanted", "conversations", "places", "nothing"],
)
def test_no_worker_is_without_work(run: Prepared, count: int) -> None:
    """There are at most as many workers as conversations and places."""
    assert worker_count(run, 8) == count


def test_auto_knows_the_quota_of_a_container(tmp_path: Path) -> None:
    """A container limited to one core gets one worker; a missing or unreadable quota is no limit."""
    quota = tmp_path / "cpu.max"
    unbound = cores(quota)
    assert unbound >= 1
    for text, expected in (("100000 100000", 1), ("50000 100000", 1), ("max 100000", unbound), ("", unbound)):
        quota.write_text(text)
        assert cores(quota) == expected


class Odd:
    """A foreign class."""

    def __str__(self) -> str:
        return "odd"

    def __reduce__(self) -> Any:
        raise AssertionError("its own code must not run")


def test_our_values_are_sent_unchanged() -> None:
    """A conversation's result with every field set arrives equal."""
    told: dict[str, Any] = {"seen_by": SeenBy.AGENT, "mocked": False, "call_id": "c1"}
    told["also_seen_by"] = (SeenBy.SPANS,)
    calls = (tool_call(args={"a": [1, None, {"b": 2.5}]}), tool_call(**told))
    held = conversation("c", [turn(tool_calls=calls)])
    unseen = conversation_result(held=held, trajectory=Unscored("calls cannot be seen"))
    for result in (conversation_result(held=held), failing_conversation(), unseen):
        again = pickle.loads(packed(result))
        assert again == result
    assert again.conversation.turns[0].tool_calls[1].call_id == "c1"


def test_user_values_are_sent_as_json() -> None:
    """Objects become what results.json shows of them; no other method of theirs is called."""
    call: ToolCall = pickle.loads(packed(tool_call(args={"x": Odd(), "n": float("inf")}, result=(1, {2}))))
    assert call.args == {"x": "odd", "n": "Infinity"}
    assert call.result == [1, [2]]
    assert pickle.loads(packed({"any": Odd(), "class": Odd})) == {"any": "odd", "class": str(Odd)}


def test_nesting_is_cut() -> None:
    """Arguments nested deeper than any report shows do not prevent sending a conversation."""
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    call = replace(tool_call(), args={"deep": deep})
    assert "…" in str(pickle.loads(packed(call)).args)


class Ends:
    """Both ends of a socket pair; received messages are in `heard`."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[Any] = asyncio.Queue()
        self.lost = anyio.Event()
        self.one: Link
        self.other: Link

    async def __aenter__(self) -> Self:
        ours, theirs = socket.socketpair()
        self.one = await Link.over(ours, self.heard.put_nowait, self.lost.set)
        self.other = await Link.over(theirs, self.heard.put_nowait, lambda: None)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.other.close()
        await self.one.close()


class Unshowable:
    """A user value that cannot be converted to text."""

    def __str__(self) -> str:
        raise ValueError("not me")

    __repr__ = __str__


def test_an_unprintable_value_blocks_no_other_message() -> None:
    """Its message is dropped, and messages sent with it arrive."""

    async def go() -> None:
        async with Ends() as ends:
            call = ToolCall("find", {"object": Unshowable()}, None, False, 0)
            for message in ("before", call, "after"):
                ends.one.send(message)
            assert [await ends.heard.get(), await ends.heard.get()] == ["before", "after"]

    anyio.run(go)


def test_both_ends_may_send_at_once() -> None:
    """If both ends send more than a pipe holds before reading, all messages arrive in order."""

    async def go() -> None:
        async with Ends() as ends:
            for n in range(20):
                ends.one.send(("one", n, b"x" * 500_000))
                ends.other.send(("other", n, b"y" * 500_000))
            heard = [await ends.heard.get() for _ in range(40)]
        for name in ("one", "other"):
            assert [(m[1], len(m[2])) for m in heard if m[0] == name] == [(n, 500_000) for n in range(20)]

    anyio.run(go)


def test_closing_waits_for_sent_messages() -> None:
    """Closing waits until everything has been read; sending afterwards is not an error."""

    async def go() -> None:
        async with Ends() as ends:
            ends.other.send(b"z" * 3_000_000)
            await ends.other.close()
            await ends.lost.wait()
            assert len(ends.heard.get_nowait()) == 3_000_000
            ends.one.send("nobody hears this")

    anyio.run(go)


def allowing(allowed: int) -> Callable[[int], int]:
    return lambda needed: min(needed, allowed)


def test_enough_file_descriptors_change_nothing() -> None:
    """A run with enough connections keeps its limits."""
    run = prepared(user={}, judge={})
    assert limited_to_connections(run, allow=allowing(10_000)) == run


def test_too_few_file_descriptors_lower_concurrency() -> None:
    """Fewer conversations and calls run at once, and one note has all numbers."""
    run = prepared(units=100, concurrency=100, user={}, judge={"max_concurrency": 50})
    fit = limited_to_connections(run, allow=allowing(RESERVE + 110))
    assert fit.request.options.concurrency == 24
    assert fit.user
    assert fit.judge
    assert (fit.user.max_concurrency, fit.judge.max_concurrency) == (73, 12)
    (note,) = fit.notes
    assert "100 conversations with 350 model calls at once need 482 file descriptors" in note
    assert f"{RESERVE + 110} are allowed" in note
    assert "24 conversations" in note
    assert "ulimit -n 482" in note
    assert "--concurrency" in note


@given(st.integers(1, 300), st.integers(0, 2000), st.integers(1, 4), st.integers(0, 50))
def test_lowered_concurrency_fits(concurrency: int, allowed: int, processes: int, most: int) -> None:
    """In every process, all that may run at once fits the limit, down to one of each."""
    run = prepared(units=100, concurrency=concurrency, user={"max_concurrency": most or None})
    fit = limited_to_connections(run, processes, allowing(allowed))
    if fit.notes:
        assert fit.user
        # A share may be rounded up, and there is always one of each.
        places, calls = (
            ceil((whole or 0) / processes)
            for whole in (fit.request.options.concurrency, fit.user.max_concurrency)
        )
        assert places > 0
        assert calls > 0
        assert RESERVE + places + calls <= max(allowed, RESERVE) + 2


def test_workers_may_have_more_than_an_even_share() -> None:
    """One worker may have to run everything, so it requests that, but starts with its share."""
    run = prepared(units=100, concurrency=100)
    asked: list[int] = []

    def allow(wanted: int) -> int:
        asked.append(wanted)
        return RESERVE + 25

    assert limited_to_connections(run, 4, allow) == run
    assert asked == [RESERVE + 100]
    assert limited_to_connections(run, 3, allow).request.options.concurrency == 75


def test_only_actual_work_needs_connections() -> None:
    """Three scenarios need no hundred connections, a replay none to models; a named judge needs its own."""
    run = prepared(units=3, concurrency=1000, user={}, alike={})
    other = replace(run, named={RequestedModel("judge", "other"): ModelSpec("other", "other")})
    replay = replace(run, request=replace(run.request, options=Options(tape="replay")))
    asked: list[int] = []

    def allow(needed: int) -> int:
        asked.append(needed)
        return needed

    limited_to_connections(run, allow=allow)
    limited_to_connections(replay, allow=allow)
    limited_to_connections(other, allow=allow)
    assert asked == [RESERVE + 9 + 27, RESERVE + 9, RESERVE + 9 + 27 + 27]
