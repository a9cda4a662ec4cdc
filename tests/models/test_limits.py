"""Places, rates and what 429s do to them, on a clock that only moves when everybody waits."""

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
from anyio.lowlevel import checkpoint
from fake_time import run
from hypothesis import given, settings
from hypothesis import strategies as st

from agentest.models.admission import Call, LocalGate
from agentest.models.limits import Limiter, estimate_tokens, hold_from_headers
from agentest.models.port import TransientError
from agentest.support.http.retries import MAX_RETRY_AFTER_S

NOW = datetime(2026, 5, 1, 12, 0, 0, tzinfo=UTC)
NONE_LEFT = "x-ratelimit-remaining-requests"
RESET = "x-ratelimit-reset-requests"


class NoLimit:
    ends_at = inf

    def paused(self) -> AbstractContextManager[None]:
        return nullcontext()


class Place:
    """An attempt at the gate of a limiter, and what came of it."""

    def __init__(self, limiter: Limiter, tokens: int = 0) -> None:
        self.attempt = LocalGate("m", limiter).attempt(Call(NoLimit()), tokens)

    async def __aenter__(self) -> Self:
        await self.attempt.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.attempt.leave()

    def succeeded(self, tokens: int) -> None:
        self.attempt.succeeded(tokens, 0.0, None)

    def throttled(self, retry_after: float | None = None) -> None:
        self.attempt.failed(TransientError("429", retry_after, throttled=True), alone=False)


class Requests:
    """Requests through a limiter: when and in which order they started, and how many were under way."""

    def __init__(self, limiter: Limiter) -> None:
        self.limiter = limiter
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
        async with Place(self.limiter, tokens) as place:
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
        return [pytest.approx(at) for at, _ in self.starts]


def ok(place: Place) -> None:
    place.succeeded(0)


def too_many(place: Place) -> None:
    place.throttled()


async def all_places_work(limiter: Limiter) -> None:
    """As many requests as there are places can be under way at the same time, and no more."""
    assert limiter.in_progress == 0
    requests = Requests(limiter)
    async with anyio.create_task_group() as tasks:
        for _ in range(limiter.places + 3):
            tasks.start_soon(requests.make, 0, 0, 1000.0)
    assert requests.most == limiter.places


DURATIONS = st.lists(st.floats(0, 20), min_size=1, max_size=30)


@given(DURATIONS, st.integers(1, 6))
def test_never_more_at_a_time_than_places(durations: list[float], places: int) -> None:
    """However many ask for a place, never more than `max_concurrency` have one, and everyone gets one."""

    async def use() -> None:
        requests = Requests(Limiter(places))
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
    """Requests start in the order in which they asked, small ones behind large ones too."""
    tokens = data.draw(st.lists(st.integers(0, 2000), min_size=len(durations), max_size=len(durations)))

    async def use() -> None:
        requests = Requests(Limiter(places, rpm, tpm))
        async with anyio.create_task_group() as tasks:
            for name, (lasts, size) in enumerate(zip(durations, tokens, strict=True)):
                tasks.start_soon(requests.make, name, size, lasts)
        assert requests.order == list(range(len(durations)))

    run(use)


@given(
    st.lists(st.tuples(st.floats(0, 90), st.integers(1, 3000)), min_size=1, max_size=60),
    st.integers(1, 120),
    st.integers(1, 6000),
)
def test_never_more_in_a_minute_than_the_rates(arrivals: list[tuple[float, int]], rpm: int, tpm: int) -> None:
    """In any minute start no more requests and tokens than the rates and one burst (or one request) allow."""

    async def use() -> None:
        requests = Requests(Limiter(1000, rpm, tpm))

        async def arrive(after: float, tokens: int) -> None:
            await anyio.sleep(after)
            await requests.make(0, tokens)

        async with anyio.create_task_group() as tasks:
            for after, tokens in arrivals:
                tasks.start_soon(arrive, after, tokens)
        largest = max(tokens for _, tokens in arrivals)
        for begin, _ in requests.starts:
            minute = [tokens for at, tokens in requests.starts if begin <= at < begin + 60]
            assert len(minute) <= rpm + max(1, rpm * 0.1) + 0.01
            assert sum(minute) <= tpm + max(1, tpm * 0.1, largest) + 0.01

    run(use)


def test_a_rate_is_used_in_full() -> None:
    """Who always waits gets exactly the rate after the burst, not less."""

    async def use() -> None:
        requests = Requests(Limiter(8, requests_per_minute=60))
        for _ in range(66):
            await requests.make()
        assert requests.started_at() == [max(0, n - 5) for n in range(66)]

    run(use)


@given(
    st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), min_size=1, max_size=25),
    st.integers(1, 4),
    st.none() | st.integers(1, 60),
)
def test_cancellation_leaks_no_place(
    requests_made: list[tuple[float, float]], places: int, rpm: int | None
) -> None:
    """Whoever is cancelled, waiting in line, for a rate or under way, gives back what they had."""

    async def use() -> None:
        limiter = Limiter(places, rpm)
        requests = Requests(limiter)

        async def cancelled(after: float, lasts: float) -> None:
            with anyio.move_on_after(after):
                await requests.make(0, 0, lasts)

        async with anyio.create_task_group() as tasks:
            for after, lasts in requests_made:
                tasks.start_soon(cancelled, after, lasts)
        await all_places_work(limiter)

    run(use)


def test_an_error_gives_the_place_back() -> None:
    """A request that breaks frees its place."""

    async def use() -> None:
        limiter = Limiter(1)
        with pytest.raises(RuntimeError, match="broken"):
            async with Place(limiter):
                raise RuntimeError("broken")
        await all_places_work(limiter)

    run(use)


def test_who_waits_sleeps_once() -> None:
    """A whole line of waiting requests makes one sleep per start: nobody polls."""
    sleeps: list[float] = []

    async def use() -> None:
        async def sleep(seconds: float) -> None:
            sleeps.append(seconds)
            await anyio.sleep(seconds)

        requests = Requests(Limiter(100, requests_per_minute=6, sleep=sleep))
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(requests.make)

    run(use)
    assert sleeps == [pytest.approx(10)] * 19


def test_without_rates_the_clock_is_not_asked() -> None:
    """Where only places are limited, a request costs no look at the clock and no turn of the loop."""

    def clock() -> float:
        raise AssertionError("asked")

    async def use() -> None:
        others = 0

        async def other() -> None:
            nonlocal others
            others += 1

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(other)
            async with Place(Limiter(1, clock=clock), 100) as place:
                place.succeeded(100)
                assert others == 0

    run(use)


def test_a_request_larger_than_the_rate_starts_once_there_is_a_burst() -> None:
    """More tokens than a minute's allowance are not refused for ever; those who follow wait for the debt."""

    async def use() -> None:
        requests = Requests(Limiter(8, tokens_per_minute=600))
        await requests.make(0, 1260)
        await requests.make(0, 60)
        assert requests.started_at() == [0, 126]

    run(use)


@pytest.mark.parametrize(("used", "next_start"), [(60, 6), (660, 66), (6, 0.6), (0, 6)])
def test_the_rate_counts_what_was_used(used: int, next_start: float) -> None:
    """An estimate counts until it is known what was used; unknown use leaves it."""

    async def use() -> None:
        requests = Requests(Limiter(8, tokens_per_minute=600))
        await requests.make(0, 60, then=lambda place: place.succeeded(used))
        await requests.make(0, 60)
        assert requests.started_at() == [0, next_start]

    run(use)


OUTCOMES = st.lists(st.tuples(st.floats(0, 5), st.booleans()), max_size=80)


@given(OUTCOMES, st.integers(1, 16))
def test_places_stay_between_one_and_the_maximum(outcomes: list[tuple[float, bool]], most: int) -> None:
    """Whatever is answered, there are always between one and `max_concurrency` places, and all get served."""

    async def use() -> None:
        limiter = Limiter(most)
        requests = Requests(limiter)

        def report(place: Place, good: bool) -> None:
            before = limiter.places
            place.succeeded(1) if good else place.throttled()
            assert 1 <= limiter.places <= most
            assert (limiter.places >= before) if good else limiter.places in (before, max(1, before // 2))

        async with anyio.create_task_group() as tasks:
            for lasts, good in outcomes:
                tasks.start_soon(requests.make, 0, 0, lasts, lambda place, good=good: report(place, good))
        assert len(requests.starts) == len(outcomes)
        assert requests.most <= most
        await all_places_work(limiter)

    run(use)


async def throttle(limiter: Limiter) -> None:
    """429s one after the other until there are fewer places, or as many as would do it."""
    before = limiter.places
    for _ in range(max(8, before)):
        if limiter.places == before:
            await Requests(limiter).make(then=too_many)


def test_429s_halve_the_places() -> None:
    """429s to requests that were sent after the last decrease halve the places again, down to one."""

    async def use() -> None:
        limiter = Limiter(9)
        seen = []
        for _ in range(12):
            await Requests(limiter).make(then=too_many)
            seen.append(limiter.places)
        assert seen == [9, 9, 4, 4, 4, 2, 2, 2, 1, 1, 1, 1]
        await all_places_work(limiter)

    run(use)


@given(st.integers(8, 100))
def test_a_burst_of_429s_halves_once(places: int) -> None:
    """The 429s of requests that were sent before the places were halved halve nothing again."""

    async def use() -> None:
        limiter = Limiter(places)
        async with anyio.create_task_group() as tasks:
            for lasts in range(places):
                tasks.start_soon(Requests(limiter).make, 0, 0, lasts, too_many)
        assert limiter.places == places // 2

    run(use)


@given(st.integers(8, 100), st.randoms(use_true_random=False))
def test_429s_now_and_then_take_nothing_away(places: int, chance: Random) -> None:
    """Of as many answers as there are places, a tenth may be 429s in whatever order, and none is lost."""

    async def use() -> None:
        limiter = Limiter(places)
        outcomes = [too_many] * (places // 10) + [ok] * (places - places // 10)
        chance.shuffle(outcomes)
        for outcome in outcomes * 3:
            await Requests(limiter).make(then=outcome)
        assert limiter.places == places

    run(use)


def test_after_a_decrease_nobody_starts_until_enough_have_ended() -> None:
    """Requests under way are left alone; new ones start when fewer than the new number are."""

    async def use() -> None:
        limiter = Limiter(6)
        requests = Requests(limiter)
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(requests.make, 0, 0, 1, too_many)
            for lasts in (2, 3, 4):
                tasks.start_soon(requests.make, 0, 0, lasts)
            tasks.start_soon(requests.make)
        assert limiter.places == 3
        assert requests.started_at()[-1] == 2

    run(use)


def test_places_come_back() -> None:
    """Until near where the 429s came each success gives a place back; then each round one, then more."""

    async def use() -> None:
        limiter = Limiter(16)
        await throttle(limiter)
        await throttle(limiter)
        seen = [limiter.places]
        for _ in range(3 + 7 + 8 + 9 + 11 + 15):
            await Requests(limiter).make(then=ok)
            seen.append(limiter.places)
        assert seen == [4, 5, 6, *[7] * 7, *[8] * 8, *[9] * 9, *[11] * 11, *[15] * 15, 16]

    run(use)


def test_a_429_slows_the_growth() -> None:
    """A round with a 429 in it gives one place more, however many the one before gave."""

    async def use() -> None:
        limiter = Limiter(100)
        for _ in range(6):
            await throttle(limiter)
        for _ in range(1 + 1 + 3 + 4):  # 1 → 2 → 3, where the last 429s came → 4 → 6
            await Requests(limiter).make(then=ok)
        assert limiter.places == 6
        await Requests(limiter).make(then=too_many)
        for _ in range(6):
            await Requests(limiter).make(then=ok)
        assert limiter.places == 7

    run(use)


def test_old_successes_give_no_place_back() -> None:
    """The success of a request that was sent before a decrease says nothing of the places after it."""

    async def use() -> None:
        limiter = Limiter(6)
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(Requests(limiter).make, 0, 0, 1, too_many)
            for _ in range(3):
                tasks.start_soon(Requests(limiter).make, 0, 0, 2, ok)
        assert limiter.places == 3

    run(use)


def test_a_place_that_is_given_back_is_used_at_once() -> None:
    """Who waits for a place gets the one that a success adds, before any other is freed."""

    async def use() -> None:
        limiter = Limiter(2)
        await throttle(limiter)
        later = Requests(limiter)
        async with anyio.create_task_group() as tasks, Place(limiter) as place:
            tasks.start_soon(later.make)
            await anyio.sleep(1)
            assert later.starts == []
            place.succeeded(1)
            await anyio.sleep(1)
            assert later.started_at() == [1]

    run(use)


def test_a_place_that_is_not_used_costs_no_rate() -> None:
    """Who has waited for a place and then makes no request leaves the rates as they were."""

    async def use() -> None:
        limiter = Limiter(8, requests_per_minute=1, tokens_per_minute=60)
        for _ in range(100):
            attempt = Place(limiter, 6).attempt
            assert attempt.enter_now()
            attempt.leave(made=False)
        assert anyio.current_time() == 0
        requests = Requests(limiter)
        await requests.make(0, 6)
        await requests.make(0, 6)
        assert requests.started_at() == [0, 60]

    run(use)


class Provider:
    """A server that answers after a second, and with 429 at once what is beyond what it takes.

    `stray`: of so many requests, one is answered with 429 for no reason.
    """

    def __init__(self, takes: int, stray: int = 0, retry_after: float | None = None) -> None:
        self.takes = takes
        self.stray = stray
        self.retry_after = retry_after
        self.under_way = self.requests = self.answered = 0

    async def serve(self, limiter: Limiter, most: int) -> None:
        """Whoever waits for answers: asks again until so many have been given."""
        while self.answered < most:
            async with Place(limiter) as place:
                if self.answered >= most:
                    return
                refused = not await self._takes()
                place.throttled(self.retry_after) if refused else place.succeeded(0)
            if refused:
                await anyio.sleep(self.retry_after or 0.2)

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


def asked(provider: Provider, limiter: Limiter, askers: int, answers: int) -> float:
    """Have so many ask until there are enough answers; the seconds that it took."""
    took = 0.0

    async def use() -> None:
        nonlocal took
        async with anyio.create_task_group() as tasks:
            for _ in range(askers):
                tasks.start_soon(provider.serve, limiter, answers)
        took = anyio.current_time()

    run(use)
    return took


@pytest.mark.parametrize("retry_after", [None, 1.0])
@pytest.mark.slow
def test_stray_429s_do_not_throttle(retry_after: float | None) -> None:
    """With 500 places and 5 % stray 429s, throughput stays near what it is without them."""
    limiter = Limiter(500)
    took = asked(Provider(500, stray=20, retry_after=retry_after), limiter, 1000, 10_000)
    assert limiter.places == 500
    assert took < 1.3 * 10_000 / 500


@pytest.mark.parametrize("places", [64, 500])
def test_a_storm_throttles(places: int) -> None:
    """With a server that takes 20 at a time, places settle near 20: hardly more are refused, nobody idles."""
    limiter, provider = Limiter(places), Provider(20)
    took = asked(provider, limiter, 600, 2000)
    assert 10 <= limiter.places <= 30
    assert took < 1.25 * 2000 / 20
    assert provider.requests - provider.answered < 0.25 * provider.answered + places


def test_after_a_storm_all_places_come_back() -> None:
    """When a server takes everything again after a storm, so does the limiter within a few rounds."""
    limiter, provider = Limiter(500), Provider(1)
    asked(provider, limiter, 600, 30)
    assert limiter.places < 10
    provider.takes, provider.answered = 500, 0
    asked(provider, limiter, 600, 3000)
    assert limiter.places == 500


@pytest.mark.parametrize(
    ("retry_after", "start"),
    [(7.0, 7), (1e9, MAX_RETRY_AFTER_S), (float("inf"), MAX_RETRY_AFTER_S), (0.0, 0), (-5.0, 0), (None, 0)],
)
def test_nobody_starts_before_retry_after(retry_after: float | None, start: float) -> None:
    """What a 429 asks to wait is waited by all where nobody is answered, at most 30 s; nonsense is not."""

    async def use() -> None:
        limiter = Limiter(8)
        await Requests(limiter).make(then=lambda place: place.throttled(retry_after))
        requests = Requests(limiter)
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(requests.make)
        assert requests.started_at() == [start] * 3

    run(use)


def test_a_429_among_answers_holds_nobody_else() -> None:
    """While others are answered, what one 429 asks to wait is for that one request."""

    async def use() -> None:
        limiter = Limiter(8)
        await Requests(limiter).make(then=ok)
        await Requests(limiter).make(then=lambda place: place.throttled(7))
        requests = Requests(limiter)
        await requests.make()
        assert requests.started_at() == [0]

    run(use)


def test_a_hold_counts_for_those_who_wait_already() -> None:
    """A hold is prolonged by a later one, never shortened, for whoever is waiting through it too."""

    async def use() -> None:
        limiter = Limiter(8)
        requests = Requests(limiter)
        limiter.hold(5)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(requests.make)
            await anyio.sleep(4)
            limiter.hold(8)
            limiter.hold(1)
            limiter.hold(float("nan"))
        assert requests.started_at() == [12]

    run(use)


def test_the_clock_and_the_sleep_can_be_given() -> None:
    """A limiter knows time only by the clock and the sleep that it is given."""
    now = 1000.0

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        await checkpoint()

    async def use() -> None:
        limiter = Limiter(1, requests_per_minute=1, clock=lambda: now, sleep=sleep)
        for _ in range(3):
            async with Place(limiter):
                pass
        assert now == pytest.approx(1120)

    run(use)


@given(st.floats(0, 1e9), st.integers(1, 10_000))
def test_rounding_errors_of_the_clock_stop_nobody(start: float, rpm: int) -> None:
    """A sleep that ends a rounding error too early does not make the limiter wait for ever."""
    now, sleeps = start, 0

    async def sleep(seconds: float) -> None:
        nonlocal now, sleeps
        now, sleeps = now + seconds, sleeps + 1
        assert sleeps < 100

    async def use() -> None:
        limiter = Limiter(1, requests_per_minute=rpm, clock=lambda: now, sleep=sleep)
        for _ in range(30):
            async with Place(limiter):
                pass

    run(use)


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
    """When nothing remains, the reset's duration or point in time is read; anything else holds nobody."""
    hold = hold_from_headers({NONE_LEFT: "0", RESET: reset}, NOW)
    assert hold == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize("remaining", ["1", "149", "", "none", "-1", "nan"])
def test_what_remains_is_used(remaining: str) -> None:
    """While anything remains, or nothing readable says that nothing does, nobody is held."""
    assert hold_from_headers({NONE_LEFT: remaining, RESET: "9s"}, NOW) is None
    assert hold_from_headers({RESET: "9s"}, NOW) is None
    assert hold_from_headers({NONE_LEFT: "0"}, NOW) is None


@pytest.mark.parametrize("what", ["requests", "tokens", "input-tokens", "output-tokens"])
def test_anthropics_headers_are_read(what: str) -> None:
    """Each of Anthropic's allowances can be the one that is used up, in whatever case the headers come."""
    headers = httpx.Headers(
        {
            f"Anthropic-RateLimit-{what}-Remaining": "0",
            f"Anthropic-RateLimit-{what}-Reset": "2026-05-01T12:00:30Z",
        }
    )
    assert hold_from_headers(headers, NOW) == 30


def test_the_longest_of_several_holds_counts() -> None:
    """Where several allowances are used up, all must be renewed."""
    headers = {NONE_LEFT: "0", RESET: "1s"}
    headers |= {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "6s"}
    assert hold_from_headers(headers, NOW) == 6


@settings(max_examples=200)
@given(
    st.text(max_size=30)
    | st.datetimes().map(str)
    | st.from_regex(r"([0-9.]{1,9}(ms|[smhd]))+", fullmatch=True)
)
@pytest.mark.slow
def test_no_header_breaks_anything(text: str) -> None:
    """Whatever a server puts into these headers, the answer is None or a positive number of seconds."""
    found: Mapping[str, str]
    for found in ({NONE_LEFT: "0", RESET: text}, {NONE_LEFT: text, RESET: "1s"}):
        hold = hold_from_headers(found)
        assert hold is None or hold > 0


def test_tokens_are_estimated_by_characters() -> None:
    """About a token for four characters, and a few for each message."""
    messages = [{"role": "system", "content": "x" * 400}, {"role": "user", "content": ""}]
    assert estimate_tokens(messages) == 108
    assert estimate_tokens([]) == 0
