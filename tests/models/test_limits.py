"""Places, rates and reactions to overload and 429s, on a clock that only moves when every task waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from math import inf
from random import Random
from typing import Self

import anyio
import httpx
import pytest
from fake_time import run
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentest.models.admission import LocalGate
from agentest.models.budget import Call
from agentest.models.circuit import Circuit, Places
from agentest.models.limits import Quota, estimate_tokens
from agentest.models.openai_adapter import room_from_headers
from agentest.models.port import Room, TransientError

NOW = datetime(2026, 5, 1, 12, 0, 0, tzinfo=UTC)
NONE_LEFT = "x-ratelimit-remaining-requests"
RESET = "x-ratelimit-reset-requests"


class NoLimit:
    ends_at = inf

    def paused(self) -> AbstractContextManager[None]:
        return nullcontext()


def gate_of(places: int, rpm: int | None = None, tpm: int | None = None) -> LocalGate:
    """A gate to a model that is known to have no small quota."""
    quota = Quota(eager=True)
    quota.require(rpm, tpm)
    return LocalGate("m", Places(places), quota=quota)


class Place:
    """One attempt to pass a gate, and its outcome."""

    def __init__(self, gate: LocalGate, tokens: int = 0, call: Call | None = None) -> None:
        self.attempt = gate.attempt(call or Call(NoLimit()), lambda: tokens)

    async def __aenter__(self) -> Self:
        await self.attempt.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.attempt.leave()

    def succeeded(self, tokens: int) -> None:
        self.attempt.succeeded(tokens, None, None)

    def overloaded(self) -> None:
        self.attempt.failed(TransientError("503", overloaded=True), alone=False)


class Requests:
    """Requests through a gate: their start times and order, and how many ran at once."""

    def __init__(self, gate: LocalGate) -> None:
        self.gate = gate
        self.order: list[int] = []
        self.starts: list[tuple[float, int]] = []
        self.under_way = 0
        self.most = 0

    async def make(
        self,
        name: int = 0,
        tokens: int = 0,
        lasts: float = 0.0,
        then: Callable[[Place], None] | None = None,
    ) -> None:
        async with Place(self.gate, tokens) as place:
            self.order.append(name)
            self.starts.append((anyio.current_time(), tokens))
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            try:
                await anyio.sleep(lasts)
                if then:
                    then(place)
            finally:
                self.under_way -= 1

    def started_at(self) -> list[float]:
        return [at for at, _ in self.starts]


def ok(place: Place) -> None:
    place.succeeded(0)


def too_many(place: Place) -> None:
    place.overloaded()


async def all_places_work(gate: LocalGate) -> None:
    """Check that exactly as many requests as places can run at once."""
    assert gate.places.in_progress == 0
    requests = Requests(gate)
    async with anyio.create_task_group() as tasks:
        for _ in range(gate.places.places + 3):
            tasks.start_soon(requests.make, 0, 0, 1000.0)
    assert requests.most == gate.places.places


DURATIONS = st.lists(st.floats(0, 20), min_size=1, max_size=30)


@given(DURATIONS, st.integers(1, 6))
def test_never_more_at_a_time_than_places(durations: list[float], places: int) -> None:
    """At most `max_concurrency` of any number of requests run at once, and all of them run."""

    async def use() -> None:
        requests = Requests(gate_of(places))
        async with anyio.create_task_group() as tasks:
            for lasts in durations:
                tasks.start_soon(requests.make, 0, 0, lasts)
        assert requests.most == min(places, len(durations))
        assert len(requests.starts) == len(durations)

    run(use)


@given(
    DURATIONS, st.integers(1, 6), st.none() | st.integers(1, 100), st.none() | st.integers(1, 5000), st.data()
)
def test_everyone_is_served_in_order(
    durations: list[float], places: int, rpm: int | None, tpm: int | None, data: st.DataObject
) -> None:
    """Requests start in the order of arrival, even small ones behind large ones."""
    tokens = data.draw(st.lists(st.integers(0, 2000), min_size=len(durations), max_size=len(durations)))

    async def use() -> None:
        requests = Requests(gate_of(places, rpm, tpm))
        async with anyio.create_task_group() as tasks:
            for name, (lasts, size) in enumerate(zip(durations, tokens, strict=True)):
                tasks.start_soon(requests.make, name, size, lasts)
        assert requests.order == list(range(len(durations)))

    run(use)


@example([(80, 1)] * 3, 1, 6000)  # a long time without requests allows no burst
@example([(80, 60)] * 3, 120, 60)
@given(
    st.lists(st.tuples(st.floats(0, 90), st.integers(1, 3000)), min_size=1, max_size=60),
    st.integers(1, 120),
    st.integers(1, 6000),
)
def test_never_more_in_a_minute_than_the_rates(arrivals: list[tuple[float, int]], rpm: int, tpm: int) -> None:
    """In any minute, requests stay within their rate, and tokens within theirs and one request."""

    async def use() -> None:
        requests = Requests(gate_of(1000, rpm, tpm))

        async def arrive(after: float, tokens: int) -> None:
            await anyio.sleep(after)
            await requests.make(0, tokens)

        async with anyio.create_task_group() as tasks:
            for after, tokens in arrivals:
                tasks.start_soon(arrive, after, tokens)
        largest = max(tokens for _, tokens in arrivals)
        for begin, _ in requests.starts:
            minute = [tokens for at, tokens in requests.starts if begin <= at < begin + 60]
            assert len(minute) <= rpm
            assert sum(minute) <= tpm + largest

    run(use)


def test_a_rate_is_used_in_full() -> None:
    """Under constant demand, requests start evenly, and all but a small margin of the rate is used."""

    async def use() -> None:
        requests = Requests(gate_of(8, rpm=60))
        for _ in range(66):
            await requests.make()
        assert requests.started_at() == [pytest.approx(n / 0.98) for n in range(66)]

    run(use)


@given(
    st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), min_size=1, max_size=25),
    st.integers(1, 4),
    st.none() | st.integers(1, 60),
)
def test_cancellation_leaks_no_place(
    requests_made: list[tuple[float, float]], places: int, rpm: int | None
) -> None:
    """A request cancelled in the queue, waiting for a rate or running releases its place."""

    async def use() -> None:
        gate = gate_of(places, rpm)
        requests = Requests(gate)

        async def cancelled(after: float, lasts: float) -> None:
            with anyio.move_on_after(after):
                await requests.make(0, 0, lasts)

        async with anyio.create_task_group() as tasks:
            for after, lasts in requests_made:
                tasks.start_soon(cancelled, after, lasts)
        await all_places_work(gate)

    run(use)


def test_an_error_gives_the_place_back() -> None:
    """A request that fails releases its place."""

    async def use() -> None:
        gate = gate_of(1)
        with pytest.raises(RuntimeError, match="broken"):
            async with Place(gate):
                raise RuntimeError("broken")
        await all_places_work(gate)

    run(use)


def test_a_request_larger_than_the_rate_starts() -> None:
    """A request over the rate is not blocked forever; the next ones wait until its debt is paid."""

    async def use() -> None:
        requests = Requests(gate_of(8, tpm=600))
        await requests.make(0, 1260)
        await requests.make(0, 60)
        assert requests.started_at() == [0, pytest.approx(126 / 0.98)]

    run(use)


@pytest.mark.parametrize(("used", "next_start"), [(60, 6), (660, 66), (6, 0.6), (0, 6)])
def test_the_rate_counts_actual_usage(used: int, next_start: float) -> None:
    """The estimate counts until usage is known; unknown usage leaves the estimate."""

    async def use() -> None:
        requests = Requests(gate_of(8, tpm=600))
        await requests.make(0, 60, then=lambda place: place.succeeded(used))
        await requests.make(0, 60)
        assert requests.started_at() == [0, pytest.approx(next_start / 0.98)]

    run(use)


OUTCOMES = st.lists(st.tuples(st.floats(0, 5), st.booleans()), max_size=80)


@given(OUTCOMES, st.integers(1, 16))
def test_places_stay_between_one_and_the_maximum(outcomes: list[tuple[float, bool]], most: int) -> None:
    """For any outcomes, there are one to `max_concurrency` places, and all requests run."""

    async def use() -> None:
        gate = gate_of(most)
        requests = Requests(gate)

        def report(place: Place, good: bool) -> None:
            before = gate.places.places
            place.succeeded(1) if good else place.overloaded()
            assert 1 <= gate.places.places <= most
            assert (
                (gate.places.places >= before)
                if good
                else gate.places.places in (before, max(1, before // 2))
            )

        async with anyio.create_task_group() as tasks:
            for lasts, good in outcomes:
                tasks.start_soon(requests.make, 0, 0, lasts, lambda place, good=good: report(place, good))
        assert len(requests.starts) == len(outcomes)
        assert requests.most <= most
        await all_places_work(gate)

    run(use)


async def throttle(gate: LocalGate) -> None:
    """Send 503s one by one until places are removed, or as many as would do so."""
    before = gate.places.places
    for _ in range(max(8, before)):
        if gate.places.places == before:
            await Requests(gate).make(then=too_many)


def test_failures_halve_the_places() -> None:
    """503s to requests sent after the last decrease halve the places again, down to one."""

    async def use() -> None:
        gate = gate_of(9)
        seen = []
        for _ in range(12):
            await Requests(gate).make(then=too_many)
            seen.append(gate.places.places)
        assert seen == [9, 9, 4, 4, 4, 2, 2, 2, 1, 1, 1, 1]
        await all_places_work(gate)

    run(use)


@given(st.integers(8, 100))
def test_a_burst_of_failures_halves_once(places: int) -> None:
    """503s to requests sent before a decrease do not halve the places again."""

    async def use() -> None:
        gate = gate_of(places)
        async with anyio.create_task_group() as tasks:
            for lasts in range(places):
                tasks.start_soon(Requests(gate).make, 0, 0, lasts, too_many)
        assert gate.places.places == places // 2

    run(use)


@given(st.integers(8, 100), st.randoms(use_true_random=False))
def test_occasional_failures_remove_no_place(places: int, chance: Random) -> None:
    """If up to a tenth of the outcomes are 503s, in any order, no place is lost."""

    async def use() -> None:
        gate = gate_of(places)
        outcomes = [too_many] * (places // 10) + [ok] * (places - places // 10)
        chance.shuffle(outcomes)
        for outcome in outcomes * 3:
            await Requests(gate).make(then=outcome)
        assert gate.places.places == places

    run(use)


def test_after_a_decrease_nothing_starts_until_enough_have_ended() -> None:
    """Running requests continue; new ones start only within the new number of places."""

    async def use() -> None:
        gate = gate_of(6)
        requests = Requests(gate)
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(requests.make, 0, 0, 1, too_many)
            for lasts in (2, 3, 4):
                tasks.start_soon(requests.make, 0, 0, lasts)
            tasks.start_soon(requests.make)
        assert gate.places.places == 3
        assert requests.started_at()[-1] == 2

    run(use)


def test_places_come_back() -> None:
    """Each success restores a place until close to the failures, then each round restores one, then more."""

    async def use() -> None:
        gate = gate_of(16)
        await throttle(gate)
        await throttle(gate)
        seen = [gate.places.places]
        for _ in range(3 + 7 + 8 + 9 + 11 + 15):
            await Requests(gate).make(then=ok)
            seen.append(gate.places.places)
        assert seen == [4, 5, 6, *[7] * 7, *[8] * 8, *[9] * 9, *[11] * 11, *[15] * 15, 16]

    run(use)


def test_a_failure_slows_the_growth() -> None:
    """A round with a failure restores only one place, however many the last one did."""

    async def use() -> None:
        gate = gate_of(100)
        for _ in range(6):
            await throttle(gate)
        for _ in range(1 + 1 + 3 + 4):  # 1 → 2 → 3, where the last failures came → 4 → 6
            await Requests(gate).make(then=ok)
        assert gate.places.places == 6
        await Requests(gate).make(then=too_many)
        for _ in range(6):
            await Requests(gate).make(then=ok)
        assert gate.places.places == 7

    run(use)


def test_old_successes_give_no_place_back() -> None:
    """Success of a request sent before a decrease restores no place."""

    async def use() -> None:
        gate = gate_of(6)
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(Requests(gate).make, 0, 0, 1, too_many)
            for _ in range(3):
                tasks.start_soon(Requests(gate).make, 0, 0, 2, ok)
        assert gate.places.places == 3

    run(use)


def test_a_place_that_is_given_back_is_used_at_once() -> None:
    """A waiting request gets a restored place before another one is released."""

    async def use() -> None:
        gate = gate_of(2)
        await throttle(gate)
        later = Requests(gate)
        async with anyio.create_task_group() as tasks, Place(gate) as place:
            tasks.start_soon(later.make)
            await anyio.sleep(1)
            assert later.starts == []
            place.succeeded(1)
            await anyio.sleep(1)
            assert later.started_at() == [1]

    run(use)


def test_a_place_that_is_not_used_costs_no_rate() -> None:
    """A caller that gets a place and makes no request does not use up the rates."""

    async def use() -> None:
        gate = gate_of(8, rpm=1, tpm=60)
        for _ in range(100):
            attempt = Place(gate, 6).attempt
            assert attempt.enter_now()
            attempt.leave(made=False)
        assert anyio.current_time() == 0
        requests = Requests(gate)
        await requests.make(0, 6)
        await requests.make(0, 6)
        assert requests.started_at() == [0, pytest.approx(60 / 0.98)]

    run(use)


def test_an_attempt_that_waits_again_costs_no_rate() -> None:
    """An attempt that waited for the rate while the model went down probes it at once, at the same cost."""

    async def use() -> None:
        gate = gate_of(8, rpm=60)
        gate.circuit = Circuit("m", 600)
        await Requests(gate).make()
        requests = Requests(gate)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(requests.make)
            await anyio.sleep(0.5)
            for number in range(3):
                gate.circuit.attempt_failed(Call(NoLimit(), -number), TransientError("503"))
        assert requests.started_at() == [pytest.approx(1 / 0.98)]
        assert gate.places.in_progress == 0

    run(use)


class Provider:
    """A server that answers after a second, and with 503 at once if it is overloaded.
    `stray`: one in this many requests gets a 503 for no reason.
    """

    def __init__(self, takes: int, stray: int = 0) -> None:
        self.takes = takes
        self.stray = stray
        self.under_way = self.requests = self.answered = 0

    async def serve(self, gate: LocalGate, most: int) -> None:
        """Send requests until the given number of answers has arrived."""
        while self.answered < most:
            async with Place(gate) as place:
                if self.answered >= most:
                    return
                refused = not await self._takes()
                place.overloaded() if refused else place.succeeded(0)
            if refused:
                await anyio.sleep(0.2)

    async def _takes(self) -> bool:
        self.requests += 1
        if self.under_way >= self.takes or (self.stray and self.requests % self.stray == 0):
            await anyio.sleep(0.01)
            return False
        self.under_way += 1
        await anyio.sleep(1)
        self.under_way -= 1
        self.answered += 1
        return True


def asked(provider: Provider, gate: LocalGate, askers: int, answers: int) -> float:
    """Send requests from many tasks until there are enough answers; return the seconds taken."""
    took = 0.0

    async def use() -> None:
        nonlocal took
        async with anyio.create_task_group() as tasks:
            for _ in range(askers):
                tasks.start_soon(provider.serve, gate, answers)
        took = anyio.current_time()

    run(use)
    return took


@pytest.mark.slow
def test_stray_failures_do_not_throttle() -> None:
    """With 500 places and 5% stray 503s, throughput stays nearly the same."""
    gate = gate_of(500)
    took = asked(Provider(500, stray=20), gate, 1000, 10_000)
    assert gate.places.places == 500
    assert took < 1.3 * 10_000 / 500


@pytest.mark.parametrize("places", [64, 500])
def test_a_storm_throttles(places: int) -> None:
    """With a server that takes 20 at once, places settle near 20, with few refusals and little idling."""
    gate, provider = gate_of(places), Provider(20)
    took = asked(provider, gate, 600, 2000)
    assert 10 <= gate.places.places <= 30
    assert took < 1.25 * 2000 / 20
    assert provider.requests - provider.answered < 0.25 * provider.answered + places


def test_after_a_storm_all_places_come_back() -> None:
    """When an overloaded server recovers, the gate restores all places within a few rounds."""
    gate, provider = gate_of(500), Provider(1)
    asked(provider, gate, 600, 30)
    assert gate.places.places < 10
    provider.takes, provider.answered = 500, 0
    asked(provider, gate, 600, 3000)
    assert gate.places.places == 500


@pytest.mark.parametrize(
    ("reset", "seconds"),
    [
        ("1s", 1),
        ("6m0s", 360),
        ("20ms", 0.02),
        ("1h2m3s", 3723),
        ("2m59.56s", 179.56),
        ("500µs", 0.0005),
        ("1d", 86400),
        ("12", 12),
        ("0s", None),
        ("soon", None),
        ("", None),
        ("-3s", None),
        ("3s or so", None),
        ("2026-05-01T12:00:09Z", 9),
        ("2026-05-01T14:00:09+02:00", 9),
        ("2026-05-01T12:00:09", 9),
        ("2026-05-01T11:59:00Z", None),
    ],
)
def test_headers_say_how_long_to_hold(reset: str, seconds: float | None) -> None:
    """If nothing remains, the reset's duration or timestamp is the hold; anything else gives none."""
    room = room_from_headers({NONE_LEFT: "0", RESET: reset}, NOW)
    assert room == Room(requests=0, pause_s=pytest.approx(seconds or 0))


@pytest.mark.parametrize(
    ("remaining", "requests"),
    [("1", 1), ("149", 149), ("", None), ("none", None), ("-1", None), ("nan", None)],
)
def test_no_hold_while_anything_remains(remaining: str, requests: int | None) -> None:
    """Only a readable zero in the remaining header is a hold."""
    room = room_from_headers({NONE_LEFT: remaining, RESET: "9s"}, NOW)
    assert room == (None if requests is None else Room(requests))
    assert room_from_headers({RESET: "9s"}, NOW) is None


@pytest.mark.parametrize("what", ["requests", "tokens", "input-tokens", "output-tokens"])
def test_anthropics_headers_are_read(what: str) -> None:
    """Any of Anthropic's allowances can be used up; header names are case-insensitive."""
    headers = httpx.Headers(
        {
            f"Anthropic-RateLimit-{what}-Remaining": "0",
            f"Anthropic-RateLimit-{what}-Reset": "2026-05-01T12:00:30Z",
        }
    )
    room = room_from_headers(headers, NOW)
    assert room == (Room(0, pause_s=30) if what == "requests" else Room(tokens=0, pause_s=30))
    assert room_from_headers({f"llm_provider-{name}": text for name, text in headers.items()}, NOW) == room


@pytest.mark.parametrize(
    ("limit", "reset", "rate"),
    [
        ("500", "120ms", 500),
        ("500", "0s", 500),
        ("500", "1m0s", 500),
        ("14400", "2m59.56s", None),  # of a day
        ("500", "", None),
        ("many", "1s", None),
    ],
)
def test_what_is_allowed_in_a_minute(limit: str, reset: str, rate: float | None) -> None:
    """An allowance that is renewed within a minute is one for a minute."""
    headers = {NONE_LEFT: "7", RESET: reset, "x-ratelimit-limit-requests": limit}
    assert room_from_headers(headers, NOW) == Room(7, requests_per_minute=rate)
    until = {"remaining": "9000", "limit": "20000", "reset": "2026-05-01T12:00:30Z"}
    headers = {f"anthropic-ratelimit-input-tokens-{key}": text for key, text in until.items()}
    headers |= {f"anthropic-ratelimit-output-tokens-{key}": text for key, text in until.items()}
    headers["anthropic-ratelimit-output-tokens-limit"] = "4000"
    assert room_from_headers(headers, NOW) == Room(tokens=9000, tokens_per_minute=20_000)


def test_a_reset_is_by_the_servers_clock() -> None:
    """A clock that is off by hours changes no pause."""
    headers = {NONE_LEFT: "0", RESET: "2026-05-01T12:00:30Z", "date": "Fri, 01 May 2026 12:00:10 GMT"}
    assert room_from_headers(headers) == Room(0, pause_s=20)


def test_the_longest_of_several_holds_counts() -> None:
    """If several allowances are used up, the latest reset counts."""
    headers = {NONE_LEFT: "0", RESET: "1s"}
    headers |= {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "6s"}
    assert room_from_headers(headers, NOW) == Room(0, 0, 6)


@settings(max_examples=200)
@given(
    st.text(max_size=30)
    | st.datetimes().map(str)
    | st.from_regex(r"([0-9.]{1,9}(ms|[smhd]))+", fullmatch=True)
)
@pytest.mark.slow
def test_no_header_breaks_anything(text: str) -> None:
    """For any header values, there is no error and nothing negative."""
    found: Mapping[str, str]
    for found in ({NONE_LEFT: "0", RESET: text}, {NONE_LEFT: text, RESET: "1s"}):
        room = room_from_headers(found)
        assert room is None or (room.pause_s >= 0 and room.requests >= 0)


def test_tokens_are_estimated_by_characters() -> None:
    """The estimate is about one token per four characters, plus a few per message."""
    messages = [{"role": "system", "content": "x" * 400}, {"role": "user", "content": ""}]
    assert estimate_tokens(messages) == 108
    assert estimate_tokens([]) == 0
