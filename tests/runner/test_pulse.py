"""Progress messages while a run goes on or waits."""

from __future__ import annotations

from types import SimpleNamespace

import anyio
import fake_time
import pytest

from agentest.domain.events import TimePassed
from agentest.runner.session import report_wait, ticking


def test_time_passes_every_thirty_seconds_while_a_block_lasts() -> None:
    """The events stop when the block ends."""
    told: list[object] = []
    quota = SimpleNamespace(waiting=1, is_limited=True)
    session = SimpleNamespace(emit=told.append, quotas=[quota])

    async def go() -> None:
        async with ticking(session):  # type: ignore[arg-type]
            await anyio.sleep(70)
            quota.waiting = 0
            await anyio.sleep(30)
        await anyio.sleep(100)

    fake_time.run(go)
    assert told == [TimePassed(rate_bound=True)] * 2 + [TimePassed()]


def test_long_waits_are_reported() -> None:
    """A short wait prints nothing; a longer one is reported after 5 s, then every 30 s."""
    said: list[str] = []

    async def go() -> None:
        async with report_wait("for nobody", said.append):
            await anyio.sleep(4)
        async with report_wait("for the agent's server", said.append):
            await anyio.sleep(40)

    fake_time.run(go)
    assert said == [
        "waiting for the agent's server: 5 s so far",
        "waiting for the agent's server: 35 s so far",
    ]


def test_an_error_comes_out_of_the_block_as_it_is() -> None:
    """An exception leaves the block unchanged, not inside an exception group."""

    async def go() -> None:
        async with report_wait("for nobody", print):
            await anyio.sleep(1)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fake_time.run(go)
