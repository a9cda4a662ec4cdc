"""Structured answers: levels, repairs, retries, places and usage, over real HTTP."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import anyio
import pytest
from anyio.lowlevel import checkpoint
from model_server import RESET, Answer, ModelServer, Received, completion, error
from pydantic import BaseModel

from agentest.domain.results import ModelUsage
from agentest.domain.transcript import Usage
from agentest.models.admission import LocalGate
from agentest.models.caller import LiveModel, RetryPolicy
from agentest.models.circuit import Places
from agentest.models.limits import Quota
from agentest.models.openai_adapter import OpenAIChatModel
from agentest.models.port import CallKey, ChatReply, Ledger, ModelAnswer, Question
from agentest.models.providers import ModelSpec
from agentest.models.structured_output import StructuredModel, answer_schema
from agentest.support.errors import InvalidAnswer, ModelUnavailable
from agentest.support.http.client import open_client


class Rating(BaseModel):
    """A rating."""

    reason: str
    value: Literal[1, 2, 3]


GOOD = completion({"reason": "fine", "value": 3})
BAD = completion({"reason": "fine", "value": 9})
KEY = CallKey("judge", "scenario")
ASKED = [{"role": "system", "content": "You judge."}, {"role": "user", "content": "How was it?"}]
NO_SCHEMA = error(400, "response_format json_schema is not supported")


@dataclass
class Asking:
    """A model on a server; pauses are recorded and skipped."""

    server: ModelServer
    retries: int = 4
    timeout_s: float = 10.0
    places: int = 8
    parameters: dict[str, Any] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)
    pauses: list[float] = field(default_factory=list)
    taken_while_pausing: list[int] = field(default_factory=list)

    def run(self, use: Callable[[StructuredModel], Awaitable[Any]]) -> Any:
        return anyio.run(self._run, use)

    async def _run(self, use: Callable[[StructuredModel], Awaitable[Any]]) -> Any:
        places = Places(self.places)

        async def sleep(seconds: float) -> None:
            self.pauses.append(seconds)
            self.taken_while_pausing.append(places.in_progress)

        spec = ModelSpec("openai/m", "m", self.server.base_url, **self.parameters)
        async with open_client() as client:
            model = StructuredModel(
                LiveModel(
                    OpenAIChatModel(spec, client),
                    self.ledger,
                    LocalGate("m", places, quota=Quota(eager=True)),
                    patience=RetryPolicy(timeout_s=self.timeout_s, retries=self.retries, sleep=sleep),
                )
            )
            return await use(model)

    def ask(self, times: int = 1) -> list[Rating]:
        """Ask the same question several times in sequence."""

        async def use(model: StructuredModel) -> list[Rating]:
            return [await model.ask(ASKED, Rating, KEY) for _ in range(times)]

        answers: list[Rating] = self.run(use)
        return answers

    @property
    def used(self) -> ModelUsage:
        return self.ledger.of("scenario")["judge"]


def last_text(received: Received) -> str:
    text: str = received.body["messages"][-1]["content"]
    return text


# Levels


def test_a_model_with_schema_support() -> None:
    """One request is enough, and the prompt stays unchanged."""
    with ModelServer(GOOD) as server:
        assert Asking(server).ask() == [Rating(reason="fine", value=3)]
    assert server.forms == ["json_schema"]
    assert server.received[0].body["messages"] == ASKED


def test_a_model_with_json_mode() -> None:
    """If the schema is refused, JSON mode is used with the schema in the prompt."""
    with ModelServer(NO_SCHEMA, GOOD) as server:
        Asking(server).ask()
    assert server.forms == ["json_schema", "json_object"]
    assert json.dumps(answer_schema(Rating)) in last_text(server.received[1])
    assert last_text(server.received[1]).startswith("How was it?")


def test_a_model_without_json_support() -> None:
    """If JSON mode is refused too, only the prompt has the schema."""
    with ModelServer(NO_SCHEMA, error(422, "no json_object either"), GOOD) as server:
        Asking(server).ask()
    assert server.forms == ["json_schema", "json_object", None]
    assert json.dumps(answer_schema(Rating)) in last_text(server.received[2])


def test_a_lone_surrogate() -> None:
    """Questions and repairs contain no text that UTF-8 cannot encode."""
    asked: list[Question] = []

    class Answering:
        name = "model"
        parameters: dict[str, Any] = {}  # noqa: RUF012 - a protocol's attribute

        async def answer(self, question: Question) -> ModelAnswer:
            asked.append(question)
            return ModelAnswer(
                '{"reason": "\ud800"}' if len(asked) == 1 else '{"reason": "fine", "value": 3}'
            )

    messages = [{"role": "user", "content": "a\ud83db \ud83d\ude00"}]
    assert anyio.run(StructuredModel(Answering()).ask, messages, Rating, KEY).value == 3
    first, second = asked
    assert [m["content"] for m in first.messages] == ["a\ufffdb 😀"]
    assert [m["content"] for m in second.messages[:2]] == ["a\ufffdb 😀", '{"reason": "\ufffd"}']


def test_the_level_is_remembered() -> None:
    """After two requests that were refused and then answered, all start with the level that worked."""
    with ModelServer(*2 * (NO_SCHEMA, NO_SCHEMA, GOOD), GOOD) as server:
        Asking(server).ask(times=4)
    assert server.forms == [*2 * ("json_schema", "json_object", None), None, None]


def test_a_stray_refusal_changes_only_its_request() -> None:
    """A form and a parameter that were accepted before are used again after one 400."""
    too_large = error(400, "max_tokens is too large for this prompt")
    with ModelServer(GOOD, too_large, NO_SCHEMA, GOOD, GOOD) as server:
        Asking(server, parameters={"max_tokens": 9}).ask(times=3)
    assert server.forms == ["json_schema", "json_schema", "json_schema", "json_object", "json_schema"]
    assert [each.body.get("max_tokens") for each in server.received] == [9, 9, None, None, 9]


def test_all_calls_learn_together_what_a_model_refuses() -> None:
    """Forty questions at once to a model that takes no form cost a few requests more."""

    def script(received: Received) -> Answer:
        return NO_SCHEMA if "response_format" in received.body else GOOD

    async def ask(model: StructuredModel) -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(40):
                tasks.start_soon(model.ask, ASKED, Rating, KEY)

    with ModelServer(script=script) as server:
        Asking(server).run(ask)
    assert len(server.received) == 40 + 2 * 2


def cut(text: str, tokens: int) -> Answer:
    """An answer that ends at its limit of tokens."""
    choice = {"message": {"content": text}, "finish_reason": "length"}
    body = {"choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": tokens}}
    return Answer(json.dumps(body).encode())


def test_a_cut_answer_raises_the_limit_once() -> None:
    """Reasoning that uses up `max_tokens` gets four times as many, once, and the error names the cause."""
    with ModelServer(cut("", 700), GOOD) as server:
        assert Asking(server, parameters={"max_tokens": 700}).ask() == [Rating(reason="fine", value=3)]
    assert [each.body["max_tokens"] for each in server.received] == [700, 2800]
    with ModelServer(cut("", 10)) as server:
        with pytest.raises(ModelUnavailable, match=r"cut after 10 tokens \(finish_reason: length\)"):
            Asking(server).ask()
        assert [each.body.get("max_tokens") for each in server.received] == [None, 2048]


def test_a_cut_answer_that_is_complete_is_used() -> None:
    with ModelServer(cut('{"reason": "fine", "value": 3}', 9)) as server:
        assert len(Asking(server).ask()) == len(server.received) == 1


def test_a_request_refused_at_every_level() -> None:
    """A request refused at every level does not lower the level for the next one."""
    refused = error(400, "this text is not allowed")

    async def use(model: StructuredModel) -> None:
        with pytest.raises(ModelUnavailable, match=r"model openai/m: .*this text is not allowed"):
            await model.ask(ASKED, Rating, KEY)
        await model.ask(ASKED, Rating, KEY)

    with ModelServer(refused, refused, refused, GOOD) as server:
        Asking(server).run(use)
    assert server.forms == ["json_schema", "json_object", None, "json_schema"]


def test_other_errors_lower_no_level() -> None:
    """A busy or broken server does not lower the level."""
    with ModelServer(error(429), error(500), GOOD, GOOD) as server:
        Asking(server).ask(times=2)
    assert server.forms == ["json_schema"] * 4


def test_a_parameter_that_is_refused() -> None:
    """A refused parameter is dropped at the same level, also for concurrent requests."""

    def script(received: Received) -> Answer:
        if "temperature" in received.body:
            return error(400, "Unsupported value: 'temperature'", param="temperature")
        return GOOD

    async def use(model: StructuredModel) -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(6):
                tasks.start_soon(model.ask, ASKED, Rating, KEY)
        await model.ask(ASKED, Rating, KEY)

    with ModelServer(script=script) as server:
        asking = Asking(server, parameters={"temperature": 0.2})
        asking.run(use)
    assert set(server.forms) == {"json_schema"}
    assert "temperature" not in server.received[-1].body
    assert asking.used.calls == len(server.received)


def test_the_schema() -> None:
    """The schema is valid for strict structured output: closed, all required, no titles or defaults."""

    class Inner(BaseModel):
        title: str = "none"

    class Outer(BaseModel):
        inner: Inner
        many: list[Inner]
        default: int = 1

    schema = answer_schema(Outer)
    inner = schema["$defs"]["Inner"]
    assert schema["required"] == ["inner", "many", "default"]
    assert inner["required"] == ["title"]
    assert schema["additionalProperties"] is inner["additionalProperties"] is False
    assert inner["properties"]["title"] == {"type": "string"}
    assert schema["properties"]["default"] == {"type": "integer"}


# Repairs


def test_a_repair() -> None:
    """A repair shows the model its answer, the problem and the expected schema."""
    with ModelServer(BAD, GOOD) as server:
        assert Asking(server).ask() == [Rating(reason="fine", value=3)]
    first, second = server.received
    assert second.body["messages"][:2] == first.body["messages"] == ASKED
    wrong, complaint = second.body["messages"][2:]
    assert wrong == {"role": "assistant", "content": json.dumps({"reason": "fine", "value": 9})}
    assert complaint["role"] == "user"
    assert "value: Input should be 1, 2 or 3" in complaint["content"]
    assert json.dumps(answer_schema(Rating)) in complaint["content"]


@pytest.mark.parametrize("answer", [BAD, completion("no JSON"), completion(""), completion(None)])
def test_repairs_end(answer: Answer) -> None:
    """After three requests without a valid answer, the error is an invalid answer."""
    with ModelServer(answer) as server, pytest.raises(InvalidAnswer, match=r"openai/m .* in 3 attempts"):
        Asking(server).ask()
    assert len(server.received) == 3
    # Each repair shows the last answer alone: the prompt does not grow.
    assert [len(r.body["messages"]) for r in server.received] == [2, 4, 4]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_without_an_answer_is_shown(field: str) -> None:
    """Some servers take the whole answer for reasoning."""
    answer = completion(None, **{field: 'The value is {"value": 3}.'})
    said = r"reasoning and no answer; it wrote: '<think>The value is .*</think>'"
    with ModelServer(answer) as server, pytest.raises(InvalidAnswer, match=said):
        Asking(server).ask()


def test_the_second_repair() -> None:
    """The second repair shows the second invalid answer, not the first."""
    with ModelServer(completion("one"), completion("two"), GOOD) as server:
        Asking(server).ask()
    assert server.received[2].body["messages"][2]["content"] == "two"


def test_a_refusal_to_answer() -> None:
    """A refusal is not retried, and its tokens are counted."""
    with ModelServer(completion(None, refusal="I will not.")) as server:
        asking = Asking(server)
        with pytest.raises(InvalidAnswer, match="model openai/m refused to answer: I will not"):
            asking.ask()
    assert len(server.received) == 1
    assert asking.used == ModelUsage(1, Usage(10, 5), cost=None)


# Retries


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 529])
def test_statuses_that_are_retried(status: int) -> None:
    """After a temporary status, the same request is repeated."""
    with ModelServer(error(status), error(status), GOOD) as server:
        assert Asking(server).ask() == [Rating(reason="fine", value=3)]
    assert server.received[0].body == server.received[1].body == server.received[2].body


@pytest.mark.parametrize(
    "answer", [RESET, Answer(b"{", cut=True), Answer(b"<html>"), Answer(b'{"error": "busy"}')]
)
def test_broken_answers_are_retried(answer: Answer) -> None:
    """A reset connection, a truncated answer and a gateway's page are retried."""
    with ModelServer(answer, GOOD) as server:
        assert Asking(server).ask() == [Rating(reason="fine", value=3)]
    assert len(server.received) == 2


@pytest.mark.parametrize("status", [401, 403, 404])
def test_statuses_that_are_not_retried(status: int) -> None:
    """A wrong key or address is reported at once."""
    with ModelServer(error(status, "go away")) as server:
        asking = Asking(server)
        with pytest.raises(ModelUnavailable, match=rf"model openai/m: .*answered {status}: go away"):
            asking.ask()
    assert len(server.received) == 1
    assert asking.used.calls == 1
    assert asking.pauses == []


def test_a_model_that_does_not_answer() -> None:
    """A request that times out is repeated."""

    class Silent:
        name = "silent"

        def __init__(self) -> None:
            self.asked = 0

        async def complete(self, request: Any) -> Any:
            self.asked += 1
            await anyio.sleep_forever()

    async def use() -> tuple[Silent, Ledger]:
        silent, ledger = Silent(), Ledger()

        async def sleep(seconds: float) -> None:
            """Not waited for."""

        model = StructuredModel(
            LiveModel(
                silent,
                ledger,
                LocalGate("m", Places(1)),
                patience=RetryPolicy(timeout_s=0.01, retries=2, sleep=sleep),
            )
        )
        with pytest.raises(ModelUnavailable, match=r"no answer within 0\.01 s \(tried 3 times\)"):
            await model.ask(ASKED, Rating, KEY)
        return silent, ledger

    silent, ledger = anyio.run(use)
    assert silent.asked == 3
    assert ledger.of("scenario")["judge"] == ModelUsage(3, retries=2, cost=None)


@pytest.mark.parametrize("retries", [0, 1, 4])
def test_retries_end(retries: int) -> None:
    """After the configured retries, the error has the number of attempts."""
    with ModelServer(error(503, "down")) as server:
        asking = Asking(server, retries=retries)
        with pytest.raises(ModelUnavailable, match="answered 503: down") as caught:
            asking.ask()
    assert len(server.received) == retries + 1
    assert ("(tried" in str(caught.value)) == (retries > 0)
    assert len(asking.pauses) == retries


@pytest.mark.parametrize(
    ("asked_for", "granted"),
    [("3", 3), ("2.5", 2.5), ("100", 100)],
)
def test_retry_after(asked_for: str, granted: float) -> None:
    """The pause is exactly that of `Retry-After`."""
    with ModelServer(error(429, headers={"retry-after": asked_for}), GOOD) as server:
        asking = Asking(server)
        asking.ask()
    assert asking.pauses == [granted]


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("asked_for", ["3600", "inf"])
def test_a_pause_that_is_too_long(status: int, asked_for: str) -> None:
    """If the requested pause exceeds the call's deadline, the call fails and says why."""
    with ModelServer(error(status, "slow down", headers={"retry-after": asked_for})) as server:
        asking = Asking(server)
        with pytest.raises(ModelUnavailable, match=r"slow down; it asks to wait \w+ s, longer than"):
            asking.ask()
    assert len(server.received) == 1
    assert asking.pauses == []


@pytest.mark.parametrize("asked_for", ["0", "-5", "Wed, 21 Oct 2015 07:28:00 GMT"])
def test_retry_after_in_the_past(asked_for: str) -> None:
    """A server that asks for no pause, or for one that is over, is not flooded."""
    with ModelServer(error(429, headers={"retry-after": asked_for}), GOOD) as server:
        asking = Asking(server)
        asking.ask()
    assert [0 < pause < 1 for pause in asking.pauses] == [True]


@pytest.mark.parametrize("headers", [{}, {"retry-after": "soon"}, {"retry-after": "nan"}])
def test_pauses_grow(headers: dict[str, str]) -> None:
    """Without a readable `Retry-After`, pauses grow up to a limit."""
    with ModelServer(error(503, headers=headers)) as server:
        asking = Asking(server, retries=8)
        with pytest.raises(ModelUnavailable):
            asking.ask()
    assert all(0 < pause <= 8 for pause in asking.pauses)
    assert asking.pauses[0] <= 0.5
    assert asking.pauses[-1] >= 4


def test_retries_begin_anew() -> None:
    """A repair has the full number of retries, and errors do not carry over to the next question."""
    with ModelServer(error(503), BAD, error(503), GOOD) as server:
        Asking(server, retries=1).ask()
    assert len(server.received) == 4


# Places and accounts


def test_pauses_release_the_place() -> None:
    """A request releases its place while it waits to retry."""
    with ModelServer(error(429), error(429), GOOD) as server:
        asking = Asking(server, places=1)
        asking.ask()
    assert asking.taken_while_pausing == [0, 0]


def test_places_bound_concurrent_requests() -> None:
    """At most as many requests as places run at once."""

    class Counting:
        name = "counting"
        under_way = most = 0

        async def complete(self, request: Any) -> Any:
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            await checkpoint()
            self.under_way -= 1
            return ChatReply('{"reason": "fine", "value": 3}')

    async def use() -> int:
        counting = Counting()
        model = StructuredModel(
            LiveModel(counting, Ledger(), LocalGate("m", Places(3), quota=Quota(eager=True)))
        )

        async def ask() -> None:
            await model.ask(ASKED, Rating, KEY)

        await ask()
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(ask)
        return counting.most

    assert anyio.run(use) == 3


def test_every_attempt_is_counted() -> None:
    """Refusals, retries and repairs count as calls with their tokens."""
    usage = {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
    wrong = completion("no JSON", usage)
    right = completion({"reason": "r", "value": 1}, usage)
    with ModelServer(NO_SCHEMA, error(429), RESET, wrong, right) as server:
        asking = Asking(server)
        asking.ask()
    assert len(server.received) == 5
    assert asking.used == ModelUsage(5, Usage(14, 4, 8), retries=3, cost=None)


def test_a_call_that_is_cancelled_is_counted() -> None:
    """A request in progress when the run is stopped counts as a call."""
    ledger = Ledger()

    async def use() -> None:
        started = anyio.Event()

        class Silent:
            name = "silent"

            async def complete(self, request: Any) -> Any:
                started.set()
                await anyio.sleep_forever()

        model = StructuredModel(LiveModel(Silent(), ledger, LocalGate("m", Places(1))))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(model.ask, ASKED, Rating, KEY)
            await started.wait()
            tasks.cancel_scope.cancel()

    anyio.run(use)
    assert ledger.of("scenario")["judge"].calls == 1


def test_usage_is_counted_by_scenario_and_role() -> None:
    async def use(model: StructuredModel) -> None:
        for key in (
            CallKey("user", "a"),
            CallKey("judge", "a"),
            CallKey("judge", "a", 5),
            CallKey("dedup", "b"),
        ):
            await model.ask(ASKED, Rating, key)

    with ModelServer(GOOD) as server:
        asking = Asking(server)
        asking.run(use)
    assert {role: used.calls for role, used in asking.ledger.of("a").items()} == {"user": 1, "judge": 2}
    assert {role: used.calls for role, used in asking.ledger.of("b").items()} == {"dedup": 1}
    assert asking.ledger.of("c") == {}
