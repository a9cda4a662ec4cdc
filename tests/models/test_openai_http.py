"""Models over OpenAI's protocol: requests, replies and every kind of failure."""

from __future__ import annotations

import gzip
import json
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import date
from typing import Any

import anyio
import pytest
from model_server import RESET, Answer, ModelServer, Received, completion, error
from project import free_port

from agentest.domain.transcript import Usage
from agentest.models.openai_adapter import OpenAIChatModel, completions_url, usage_of
from agentest.models.port import CallKey, ChatReply, ChatRequest, Level, RequestRefused, TransientError
from agentest.models.providers import ModelSpec
from agentest.support.errors import ModelError, ModelUnavailable
from agentest.support.http.bodies import MAX_BODY_BYTES
from agentest.support.http.client import open_client

KEY = "sk-very-secret-0123456789"
SCHEMA: Mapping[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}}


def request(level: Level = Level.SCHEMA, text: str = "hello") -> ChatRequest:
    return ChatRequest([{"role": "user", "content": text}], "Line", SCHEMA, level, CallKey("user", "s"))


def spec(server: ModelServer, **more: Any) -> ModelSpec:
    return ModelSpec(**{"name": "openai/m", "model": "m", "base_url": server.base_url, **more})


async def with_model(
    server: ModelServer, use: Callable[[OpenAIChatModel], Awaitable[Any]], **more: Any
) -> Any:
    async with open_client() as client:
        return await use(OpenAIChatModel(spec(server, **more), client))


def ask(server: ModelServer, asked: ChatRequest | None = None, **more: Any) -> ChatReply:
    """Make one attempt."""
    reply: ChatReply = anyio.run(
        lambda: with_model(server, lambda model: model.complete(asked or request()), **more)
    )
    return reply


def problem(answer: Answer, kind: type[Exception], **more: Any) -> Any:
    """Return the exception that one attempt raises."""
    with ModelServer(answer) as server, pytest.raises(kind) as caught:
        ask(server, **more)
    return caught.value


def test_the_request() -> None:
    """Model, messages, parameters, extra fields, headers and key are where OpenAI expects them."""
    with ModelServer(completion("hi")) as server:
        ask(
            server,
            api_key=KEY,
            temperature=0.0,
            max_tokens=50,
            headers={"X-Team": "é"},
            body={"seed": 7, "model": "overridden"},
        )
    [received] = server.received
    assert received.path == "/v1/chat/completions"
    assert received.headers["authorization"] == f"Bearer {KEY}"
    assert received.headers["content-type"] == "application/json"
    assert received.headers["x-team"].encode("latin-1").decode() == "é"
    assert received.body == {
        "model": "m",
        "messages": [{"role": "user", "content": "hello"}],
        "temperature": 0.0,
        "max_tokens": 50,
        "seed": 7,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "Line", "strict": True, "schema": SCHEMA},
        },
    }


def test_nothing_is_sent_that_is_not_configured() -> None:
    """Without key and parameters, the request has no authorization header and no parameters."""
    with ModelServer(completion("hi")) as server:
        ask(server, request(Level.PROMPT))
    assert "authorization" not in server.received[0].headers
    assert server.received[0].body.keys() == {"model", "messages"}


def test_a_configured_header() -> None:
    """A configured authorization header replaces the key's, in any case."""
    with ModelServer(completion("hi")) as server:
        ask(server, api_key=KEY, headers={"Authorization": "Token t", "Content-Type": "application/json+x"})
    assert server.received[0].headers["authorization"] == "Token t"
    assert server.received[0].headers["content-type"] == "application/json+x"


@pytest.mark.parametrize(
    ("level", "form"), [(Level.SCHEMA, "json_schema"), (Level.JSON_MODE, "json_object"), (Level.PROMPT, None)]
)
def test_the_levels(level: Level, form: str | None) -> None:
    """Each level requests the answer's format in its own way; the last one does not."""
    with ModelServer(completion("hi")) as server:
        ask(server, request(level))
    assert server.forms == [form]


@pytest.mark.parametrize(
    ("base", "url"),
    [
        ("http://h/v1", "http://h/v1/chat/completions"),
        ("http://h/v1/", "http://h/v1/chat/completions"),
        ("http://h", "http://h/chat/completions"),
        ("http://h/v1/chat/completions", "http://h/v1/chat/completions"),
        ("https://h/d/gpt?api-version=1", "https://h/d/gpt/chat/completions?api-version=1"),
    ],
)
def test_urls(base: str, url: str) -> None:
    """The path is appended to the base URL before its query; a complete URL is used as is."""
    assert completions_url(base) == url


def test_a_lone_surrogate() -> None:
    """A text that UTF-8 cannot encode breaks no request, nor do configured dates with it."""
    with ModelServer(completion("hi")) as server:
        assert ask(server, request(text="a\ud800b"), body={"since": date(2026, 1, 2)}).text == "hi"
    sent = server.received[0].body
    assert (sent["messages"][0]["content"], sent["since"]) == ("a?b", "2026-01-02")


def test_the_reply() -> None:
    """Text, tokens and the answering model's name are read."""
    usage = {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 8}}
    with ModelServer(completion("hi", usage)) as server:
        assert ask(server) == ChatReply("hi", Usage(9, 4, 8), "scripted-1", parameters={})


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("hi", "hi"),
        (None, ""),
        ("", ""),
        (5, ""),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab"),
        ([{"type": "image"}, {"text": None}, "stray", {"text": "b"}], "b"),
    ],
)
def test_forms_of_content(content: Any, text: str) -> None:
    """Content may be text, null or a list of parts; anything else gives no text."""
    with ModelServer(completion(content)) as server:
        assert ask(server).text == text


@pytest.mark.parametrize(
    ("reported", "usage"),
    [
        (None, Usage()),
        ("many", Usage()),
        ([], Usage()),
        ({"prompt_tokens": 3}, Usage(3)),
        ({"prompt_tokens": "3", "completion_tokens": -1}, Usage()),
        ({"prompt_tokens": True, "completion_tokens": 2.5}, Usage()),
        ({"prompt_tokens": 3, "completion_tokens": 1, "prompt_tokens_details": None}, Usage(3, 1)),
        ({"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": None}}, Usage(3)),
    ],
)
def test_usage(reported: Any, usage: Usage) -> None:
    """Missing or non-numeric token counts are zero."""
    assert usage_of(reported) == usage


def test_a_refusal() -> None:
    """A refusal is distinguished from an answer, and its tokens are counted."""
    with ModelServer(completion(None, refusal="I  can't help\nwith that.")) as server:
        reply = ask(server)
    assert (reply.text, reply.refusal) == ("", "I can't help with that.")
    assert reply.usage == Usage(10, 5)


def test_a_content_filter_is_a_refusal() -> None:
    """An empty answer that a filter stopped is not requested again, and the reason is named."""
    choice = {"message": {"role": "assistant", "content": None}, "finish_reason": "content_filter"}
    with ModelServer(Answer(json.dumps({"choices": [choice]}).encode())) as server:
        assert ask(server).refusal == "its provider's content filter stopped it"


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 529])
def test_transient_statuses(status: int) -> None:
    """Statuses worth a retry are transient and include the requested pause."""
    found = problem(error(status, "slow down", {"retry-after": "7"}), TransientError)
    assert f"answered {status}: slow down" in str(found)
    assert found.retry_after == 7
    assert found.throttled is (status in (429, 503, 529))
    assert not found.misaddressed


@pytest.mark.parametrize("status", [429, 503, 529])
@pytest.mark.parametrize(
    ("headers", "body", "wait"),
    [
        ({"retry-after": "7"}, b"<html>busy</html>", 7),
        ({"retry-after-ms": "250"}, b"", 0.25),
        ({"retry-after-ms": "250", "retry-after": "1"}, b"", 0.25),
        ({"retry-after-ms": "soon", "retry-after": "7"}, b"", 7),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1m3s"}, b"", 63),
        ({"ratelimit-remaining": "0", "ratelimit-reset": "9"}, b"", 9),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "{ms}"}, b"", 40),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "{s}"}, b"", 40),
        ({}, b'[{"error": {"details": [{"retryDelay": "34.5s"}]}}]', 34.5),
    ],
)
def test_an_answer_that_asks_to_wait_is_a_quota(
    status: int, headers: dict[str, str], body: bytes, wait: float
) -> None:
    """Whatever the status and wherever the pause is named, the model is up and allows no more for now."""
    then = time.time() + 40
    headers = {name: value.format(ms=int(then * 1000), s=int(then)) for name, value in headers.items()}
    found = problem(Answer(body, status, headers), TransientError)
    assert found.throttled
    assert found.retry_after == pytest.approx(wait, abs=2 if "{" in str(headers) or wait == 40 else 0.01)


@pytest.mark.parametrize("headers", [{}, {"retry-after": "0"}, {"retry-after": "-3"}])
@pytest.mark.parametrize("status", [503, 529])
def test_an_overload_that_asks_for_no_wait_is_a_failure(status: int, headers: dict[str, str]) -> None:
    found = problem(error(status, "overloaded", headers), TransientError)
    assert (found.throttled, found.overloaded) == (False, True)


@pytest.mark.parametrize(
    ("message", "headers", "ends"),
    [
        ("You exceeded your current quota (insufficient_quota)", {"retry-after": "1"}, True),
        ("GenerateRequestsPerDayPerProjectPerModel-FreeTier", {"retry-after": "34"}, True),
        ("Rate limit exceeded: free-models-per-day", {}, True),
        ("Your daily limit is reached", {"retry-after": "0"}, True),
        ("requests per day (RPD): Limit 200", {"retry-after": "432"}, False),
        ("requests per minute", {}, False),
        ("10 requests per minute exceeded (your daily limit is 1000)", {}, False),
        ("a payday loan", {}, False),
    ],
)
def test_a_quota_of_a_day_is_permanent(message: str, headers: dict[str, str], ends: bool) -> None:
    """No pause restores it, unless the provider says when."""
    found = problem(error(429, message, headers), ModelError)
    assert getattr(found, "permanent", False) is ends
    assert message in str(found)


@pytest.mark.parametrize("status", [401, 402, 403, 404, 405, 413, 301, 307])
def test_permanent_statuses(status: int) -> None:
    """A wrong key, a wrong address or a redirect is not retried."""
    assert f"answered {status}: no such thing" in str(
        problem(error(status, "no such thing"), ModelUnavailable)
    )


@pytest.mark.parametrize("status", [400, 415, 422, 501])
def test_refused_statuses(status: int) -> None:
    """A possible refusal of the answer's format has its own error, with the server's message."""
    found = problem(error(status, "response_format is not supported"), RequestRefused)
    assert "response_format is not supported" in str(found)
    assert not found.renamed


@pytest.mark.parametrize(
    "body",
    [
        b"<html><body>502 Bad Gateway</body></html>",
        b"",
        b"{",
        b"[]",
        b"null",
        b"5",
        b'"text"',
        b'{"choices": []}',
        b'{"choices": null}',
        b'{"choices": [{"message": null}]}',
        b'{"choices": [{"message": "hi"}]}',
        b'{"choices": [5]}',
        b'{"choices": {"0": 1}}',
        b'{"error": {"message": "overloaded", "code": 529}}',
        b"\xff\xfe\x00",
        b"[" * 100_000,
    ],
)
def test_status_200_without_an_answer(body: bytes) -> None:
    """An HTML page or any body that is not a chat completion is transient."""
    found = problem(Answer(body), TransientError)
    assert "is not a chat completion" in str(found)
    assert found.misaddressed is not body.startswith(b'{"')
    assert len(str(found)) < 500


@pytest.mark.parametrize(
    ("body", "throttled"),
    [
        ('{"error": {"message": "overloaded"}}', False),
        ('{"error": {"message": "overloaded", "code": 4290}}', False),
        ('{"error": {"message": "overloaded", "code": 429}}', True),
        ('{"error": {"message": "overloaded", "type": "rate_limit_error"}}', True),
        ('data: {"error":{"message":"overloaded","code":"429"}}\n\ndata: [DONE]\n\n', True),
        ('event: error\ndata: {"error":{"type":"rate_limit_error","message":"overloaded"}}\n\n', True),
        ('[{"error": {"message": "overloaded", "status": "RESOURCE_EXHAUSTED"}}]', True),
        ('{"choices": [{"error": {"message": "overloaded", "code": 429}, "message": {}}]}', True),
        ('{"choices": [{"error": {"message": "overloaded", "code": 502}, "message": {}}]}', False),
        ('{"choices": [{"text": "overloaded, \\"code\\": 429"}], "x": "rate_limit_error"}', False),
        ('{"choices": [{"message": {"content": "we got "rate_limit_error", overloaded"', False),
    ],
)
def test_an_error_with_status_200(body: str, throttled: bool) -> None:
    """The error has the message that came with status 200. Some gateways send a 429 that way."""
    found = problem(Answer(body.encode()), TransientError)
    assert "overloaded" in str(found)
    assert found.throttled is throttled
    assert found.misaddressed is (body.count("{") > body.count("}"))


@pytest.mark.parametrize("answer", [RESET, Answer(b'{"choices": [', cut=True)])
def test_broken_connections(answer: Answer) -> None:
    """A connection that breaks before or during the answer is transient."""
    found = problem(answer, TransientError)
    assert "connection" in str(found)
    assert found.misaddressed


def test_an_unreachable_server() -> None:
    """An unreachable server is transient, and the message has its address."""
    nowhere = f"http://127.0.0.1:{free_port()}/v1"
    nobody = pytest.raises(TransientError, match=r"127\.0\.0\.1.*nobody listens there")
    with ModelServer(completion("hi")) as server, nobody as raised:
        ask(server, base_url=nowhere)
    assert raised.value.misaddressed


def test_an_endless_answer() -> None:
    """Reading stops when the body exceeds the limit."""
    answer = Answer(b"x" * (MAX_BODY_BYTES + 1_000_000))
    assert "larger than 10 MB" in str(problem(answer, ModelUnavailable))


def test_a_body_that_unpacks_to_gigabytes() -> None:
    """A compressed body is decompressed only up to the limit."""
    packed = gzip.compress(b" " * 2**20) * 2_000
    tracemalloc.start()
    try:
        found = problem(Answer(packed, headers={"content-encoding": "gzip"}), ModelUnavailable)
        assert tracemalloc.get_traced_memory()[1] < 40_000_000
    finally:
        tracemalloc.stop()
    assert "larger than 10 MB" in str(found)


@pytest.mark.parametrize(
    ("encoding", "message"),
    [
        ("gzip, gzip", "has the content-encoding 'gzip, gzip'; the request allows gzip or deflate"),
        ("br", "has the content-encoding 'br'"),
        ("gzip", "is not gzip"),
    ],
)
def test_invalid_compression(encoding: str, message: str) -> None:
    """Broken compression would be no better at the next attempt, unless an error comes in it."""
    answer = Answer(completion("hi").body, headers={"content-encoding": encoding})
    assert message in str(problem(answer, ModelUnavailable))
    assert message in str(problem(replace(answer, status=503), TransientError))


def test_cut_compression() -> None:
    """The whole answer may come at the next attempt."""
    answer = Answer(gzip.compress(completion("hi").body)[:-9], headers={"content-encoding": "gzip"})
    assert "was cut: its gzip data ended too early" in str(problem(answer, TransientError))


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b'{"error": {"message": "too\\n long"}}', "too long"),
        (b'{"error": "plain"}', "plain"),
        (b'{"detail": "of FastAPI"}', "of FastAPI"),
        (b"<h1>Nope</h1>", "<h1>Nope</h1>"),
        (b"", "(empty)"),
        (b"x" * 5000, "x" * 300),
        (b'{"error": {"message": null}}', '{"error": {"message": null}}'),
    ],
)
def test_texts_of_errors(body: bytes, shown: str) -> None:
    """The error has the server's message or the start of its body, on one line."""
    found = str(problem(Answer(body, 404), ModelUnavailable))
    assert found.partition("answered 404: ")[2].startswith(shown) or shown in found
    assert len(found) < 500
    assert "\n" not in found


@pytest.mark.parametrize("status", [400, 401, 429, 200])
def test_a_key_that_is_repeated(status: int) -> None:
    """A key repeated in the server's answer is redacted."""
    secret = "0123456789abcdef-of-no-known-form"
    body = json.dumps({"error": {"message": f"the key {secret} is wrong"}}).encode()
    found = problem(Answer(body, status), Exception, api_key=secret)
    assert secret not in str(found)
    assert "[redacted] is wrong" in str(found)


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.",
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
        "the request exceeds the available context size. try increasing the context size",
        "prompt is too long: 213000 tokens > 200000 maximum",
        "Input is too long for requested model.",
        "This model's maximum prompt length is 131072 but the request contains 150000 tokens.",
        "The input token count (1048999) exceeds the maximum number of tokens allowed (1048576).",
    ],
)
def test_a_prompt_that_is_too_long(message: str) -> None:
    """No other form of such a request is tried, and the error says what it means."""
    found = problem(error(400, message), ModelUnavailable)
    assert message[:40] in str(found)
    assert "the prompt has more tokens than the model takes" in str(found)


def test_an_answer_that_may_be_too_long() -> None:
    """If the message names `max_tokens`, the request is sent without it."""
    message = "'max_tokens' is too large: 4000. This model's maximum context length is 4096 tokens."
    found = problem(error(400, message), RequestRefused, max_tokens=4000)
    assert found.renamed == {"max_tokens": ""}


# Parameters that a model does not take


def refusing(*names: str, message: str = "Unsupported parameter: '{}'") -> Callable[[Received], Answer]:
    """A model that refuses these parameters, one at a time."""

    def script(received: Received) -> Answer:
        for name in names:
            if name in received.body:
                return error(400, message.format(name), param=name)
        return completion("hi")

    return script


def until_answered(server: ModelServer, asked: ChatRequest, **more: Any) -> list[bool]:
    """Repeat the request without the parameters that refusals name; return whether they name any."""
    refusals: list[bool] = []

    async def use(model: OpenAIChatModel) -> None:
        renamed: dict[str, str] = {}
        for _ in range(5):
            try:
                await model.complete(replace(asked, renamed=renamed))
            except RequestRefused as refused:
                renamed |= refused.renamed
                refusals.append(bool(refused.renamed))
            else:
                return

    anyio.run(lambda: with_model(server, use, **more))
    return refusals


@pytest.mark.parametrize(
    "message",
    [
        "Unsupported value: '{}' does not support 0.2 with this model.",
        "`{}` is deprecated for this model.",
        "{} is not supported",
    ],
)
def test_a_parameter_is_left_out(message: str) -> None:
    """A parameter that a refusal names, in any wording, is left out from then on."""
    with ModelServer(script=refusing("temperature", message=message)) as server:
        assert until_answered(server, request(), temperature=0.2, max_tokens=9) == [True]
    assert [("temperature" in r.body, r.body["max_tokens"]) for r in server.received] == [
        (True, 9),
        (False, 9),
    ]


def test_max_tokens_is_renamed() -> None:
    """`max_tokens` becomes `max_completion_tokens` if the refusal suggests it."""
    message = "Unsupported parameter: '{}'. Use 'max_completion_tokens' instead."
    with ModelServer(script=refusing("max_tokens", message=message)) as server:
        assert until_answered(server, request(), max_tokens=9) == [True]
    assert server.received[-1].body["max_completion_tokens"] == 9
    assert "max_tokens" not in server.received[-1].body


def test_several_parameters_are_left_out() -> None:
    """Several refusals are handled one after another, even of the renamed parameter."""
    names = ("temperature", "max_tokens", "max_completion_tokens")
    with ModelServer(script=refusing(*names, message="no '{}'; try max_completion_tokens")) as server:
        assert until_answered(server, request(), temperature=1.0, max_tokens=9) == [True, True, True]
    assert server.received[-1].body.keys() == {"model", "messages", "response_format"}


def test_a_refusal_that_repeats_the_request() -> None:
    """A refusal of the format that quotes the whole request removes no parameter."""
    detail = [{"loc": ["body", "response_format"], "msg": "not here", "input": {"temperature": 0.2}}]
    with ModelServer(Answer(json.dumps({"detail": detail}).encode(), 422)) as server:
        assert not any(until_answered(server, request(), temperature=0.2))
    assert all(received.body["temperature"] == 0.2 for received in server.received)


def test_concurrent_refusals() -> None:
    """If concurrent requests get the same refusal, all of them are repeated correctly."""
    refusals: list[Mapping[str, str]] = []

    async def use(model: OpenAIChatModel) -> None:
        async def once() -> None:
            try:
                await model.complete(request())
            except RequestRefused as refused:
                refusals.append(refused.renamed)

        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(once)

    with ModelServer(error(400, "no 'temperature' here")) as server:
        anyio.run(lambda: with_model(server, use, temperature=0.2))
    assert refusals == [{"temperature": ""}] * 5


def test_azures_key_header() -> None:
    """The key goes into the header of the endpoint; a version in the base URL stays in the query."""
    with ModelServer(completion("{}")) as server:
        spec = ModelSpec(
            "azure/m", "m", f"{server.base_url}?api-version=1", api_key="k-123456", key_header="api-key"
        )

        async def go() -> None:
            async with open_client() as client:
                await OpenAIChatModel(spec, client).complete(
                    ChatRequest(
                        [{"role": "user", "content": "x"}], "A", {}, Level.PROMPT, CallKey("judge", "s")
                    )
                )

        anyio.run(go)
    (received,) = server.received
    assert received.headers["api-key"] == "k-123456"
    assert "authorization" not in received.headers
    assert received.path.endswith("/chat/completions?api-version=1")
