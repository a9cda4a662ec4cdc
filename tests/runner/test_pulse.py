"""Signs of life: while a run goes on or waits, something is said."""

from __future__ import annotations

import anyio
import fake_time
import pytest

from agentest.domain.events import TimePassed
from agentest.runner.session import report_wait, ticking


def test_time_passes_every_thirty_seconds_while_a_block_lasts() -> None:
    """Whatever else happens, and no longer than the block lasts."""
    told: list[object] = []

    async def go() -> None:
        async with ticking(told.append):
            await anyio.sleep(100)
        await anyio.sleep(100)

    fake_time.run(go)
    assert told == [TimePassed()] * 3


def test_what_is_awaited_is_said_after_some_seconds() -> None:
    """Nothing of what is quick, then after 5 s, and every 30 s from then on."""
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
    """Whoever catches a UsageError finds it, and no group of errors."""

    async def go() -> None:
        async with report_wait("for nobody", print):
            await anyio.sleep(1)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fake_time.run(go)
