"""The worker pool in one event loop, with orders of events that are rare among real processes."""

from __future__ import annotations

from random import Random
from typing import Any

import anyio
import pytest
from crew_lab import Fate, Lab, passed, running, unit
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentest.domain.results import Status
from agentest.support.errors import UsageError


def held(results: Any) -> dict[str, list[str]]:
    return {
        scope: [each.conversation.conversation_id for each in result.conversations]
        for scope, result in results.items()
    }


def test_all_conversations_run_once() -> None:
    """Without problems, each conversation runs once, in order of its number."""
    units = [unit("a", 3), unit("b", 2, parallel=False), unit("c", line="l"), unit("d", 2, line="l")]
    lab, results = running(units)
    assert held(results) == {
        "a": ["a-1", "a-2", "a-3"],
        "b": ["b-1", "b-2"],
        "c": ["c-1"],
        "d": ["d-1", "d-2"],
    }
    assert passed(results)
    assert not lab.rules.broken
    assert not lab.said


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**9),
    deaths=st.integers(0, 6),
    concurrency=st.integers(1, 6),
    size=st.integers(1, 4),
    outside=st.sampled_from([0.0, 0.5, 1.0]),
)
@example(seed=2541, deaths=3, concurrency=1, size=3, outside=0.5)  # its line begins anew
def test_all_conversations_count_once_whatever_dies(
    seed: int, deaths: int, concurrency: int, size: int, outside: float
) -> None:
    """However workers die and messages are delayed, the run ends, each conversation counts once, and
    concurrency stays within its limit."""
    random = Random(seed)
    units = [
        unit(
            f"u{n}",
            random.randint(1, 4),
            line=random.choice([None, None, "l"]),
            parallel=random.random() < 0.6,
        )
        for n in range(random.randint(1, 6))
    ]

    async def kill(lab: Lab) -> None:
        for _ in range(deaths):
            await anyio.sleep(random.random())
            if able := [worker for worker in lab.alive if worker.ready]:
                random.choice(able).die()

    fate = Fate(random, waits_outside=outside)
    lab, results = running(units, kill, concurrency=concurrency, size=size, fate=fate)
    assert {scope: len(result.conversations) for scope, result in results.items()} == {
        each.scope: each.conversations for each in units
    }
    ids = [each.split("-retry")[0] for of_one in held(results).values() for each in of_one]
    assert sorted(ids) == sorted(f"{u.scope}-{n}" for u in units for n in range(1, u.conversations + 1))
    assert lab.rules.broken == []


def test_a_conversation_that_kills_workers_does_not_affect_others() -> None:
    """It is errored after three workers; all others run."""
    units = [unit("kills"), *(unit(f"u{n}", 3) for n in range(4))]
    lab, results = running(units, fate=Fate(kills=frozenset({"kills"})), concurrency=6)
    assert results.pop("kills").verdict.status is Status.ERRORED
    assert passed(results)
    assert len(lab.workers) == 5
    own = [text for text in lab.said if "1 unfinished conversation" in text]
    end = "will not run again, because this was the last attempt"
    assert [text.endswith(end) for text in own][-1:] == [True]
    assert sum(end in text for text in lab.said) == 1


def test_a_worker_that_dies_before_it_can_begin_is_replaced() -> None:
    """This also holds before the run starts."""

    async def kill(lab: Lab) -> None:
        await anyio.sleep(0.4)
        lab.workers[0].die()

    lab, results = running([unit("a", 4)], beforehand=kill)
    assert passed(results)
    assert len(lab.workers) == 3


def test_workers_that_never_become_ready() -> None:
    """If three in a row die before they are ready, the run ends before it starts."""
    with pytest.raises(UsageError, match="was killed by SIGKILL before it could begin, as 2 others did"):
        running([unit("a")], fate=Fate(stillborn=True))


def test_a_worker_that_cannot_be_replaced() -> None:
    """The remaining workers run everything; without any, the run stops with the reason."""

    async def kill_one(lab: Lab) -> None:
        await anyio.sleep(1.2)
        lab.workers[0].die()

    async def kill_both(lab: Lab) -> None:
        await kill_one(lab)
        await anyio.sleep(1.0)
        lab.workers[1].die()

    units = [unit("a", 20)]
    lab, results = running(units, kill_one, fate=Fate(connects=2))
    assert passed(results)
    assert "no worker takes its place: no process can be forked any more" in lab.said
    lab, results = running(units, kill_both, fate=Fate(connects=2))
    assert lab.stop.reason == (
        "no worker is left: a worker process was killed by SIGKILL, and none takes its place: "
        "no process can be forked any more"
    )
    assert results["a"].verdict.status is Status.ERRORED


def test_a_worker_that_cannot_be_replaced_before_the_run() -> None:
    """The error says why the worker died and why it has no replacement."""

    async def kill(lab: Lab) -> None:
        await anyio.sleep(0.4)
        lab.workers[0].die()

    with pytest.raises(UsageError, match=r"was killed by SIGKILL, and none .*: no process can be forked"):
        running([unit("a")], beforehand=kill, fate=Fate(connects=2))


def test_the_reason_of_a_failed_start_is_redacted() -> None:
    """The reason appears in the run's reports."""

    async def kill(lab: Lab) -> None:
        lab.session.prepared.loaded.redact.learn(["sk-very-secret"])
        await anyio.sleep(1.2)
        lab.workers[0].die()

    lab, results = running([unit("a", 20)], kill, fate=Fate(refuses="https://me:sk-very-secret@host is down"))
    assert lab.stop.reason == "https://[redacted]@host is down"
    assert results["a"].verdict.status is Status.ERRORED


@pytest.mark.parametrize("size", [1, 2])
def test_a_bug_just_before_the_run_is_reported(size: int) -> None:
    """A worker that fails when all are ready stops the run, and nothing waits for it."""

    async def fail(lab: Lab) -> None:
        lab.workers[0].fail()
        await anyio.sleep(1.0)

    lab, results = running([unit("a", 4)], between=fail, size=size)
    assert lab.stop.reason == "a worker process failed: a mistake"
    assert {result.verdict.status for result in results.values()} <= {Status.ERRORED}


def test_a_bug_at_the_end_is_reported() -> None:
    """An error while workers close changes no result, but the run did not end cleanly."""
    lab, results = running([unit("a", 4)], fate=Fate(fails_at_end=True))
    assert passed(results)
    assert lab.notes == ["a worker process failed: a mistake"]
    assert lab.stop.reason == "a worker process failed: a mistake"


def test_a_stop_ends_workers_that_are_silent() -> None:
    """A stopped run waits some seconds for a blocked worker and kills it; workers that exit are neither
    reported nor replaced."""

    async def stop(lab: Lab) -> None:
        await anyio.sleep(1.0)
        lab.workers[0].silent = True
        lab.workers[1].die()
        await anyio.sleep(0.2)
        lab.stop.interrupt()

    lab, results = running([unit("a", 30)], stop, size=3)
    assert results["a"].verdict.status is Status.ERRORED
    assert [note.partition(":")[0] for note in lab.notes] == [
        "a worker process did not end when asked to, and was killed"
    ]
    assert not lab.alive


def test_only_the_failed_worker_is_reported() -> None:
    """After a bug in one worker, the others end without messages."""

    async def fail(lab: Lab) -> None:
        await anyio.sleep(1.0)
        lab.workers[0].fail()

    lab, _ = running([unit("a", 30)], fail, size=3)
    assert lab.stop.reason == "a worker process failed: a mistake"
    assert lab.notes == ["a worker process failed: a mistake"]


def test_a_stop_while_a_worker_is_silent_at_its_end() -> None:
    """After all conversations, a run waits for a silent worker until it is stopped."""

    async def stop(lab: Lab) -> None:
        await anyio.sleep(0.6)
        lab.workers[1].silent = True
        await anyio.sleep(100)
        lab.stop.interrupt()

    lab, _ = running([unit("a", parallel=False)], stop)
    assert not lab.alive


def test_a_stop_works_at_any_moment() -> None:
    """The run and its workers end soon, even while workers die or are replaced."""
    for seed in range(60):
        random = Random(seed)

        async def stop(lab: Lab, random: Random = random) -> None:
            for _ in range(random.randint(0, 2)):
                await anyio.sleep(random.random())
                if able := [worker for worker in lab.alive if worker.ready]:
                    random.choice(able).die()
            await anyio.sleep(random.random())
            lab.stop.interrupt()
            began = anyio.current_time()
            while lab.alive:
                assert anyio.current_time() - began < 25
                await anyio.sleep(0.5)

        units = [unit("a", 30), unit("b", 5, parallel=False), unit("c", 3, line="l")]
        lab, _ = running(units, stop, fate=Fate(random, waits_outside=0.5))
        assert not lab.alive
        assert not lab.notes
