"""The API of an OpenAPI document, answered by mocks over real HTTP."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest
from aiohttp import web
from openapi_documents import SHOP, answers, document, operation, parameter, written

from agentest import AgentestError, ConfigError, HttpResponse, scenario, sequence
from agentest.agents.port import TurnContext
from agentest.domain.events import Noted
from agentest.domain.results import RunResult, Status
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import ToolCall
from agentest.domain.verdict import run_status
from agentest.scenarios.model import Scenario
from agentest.support.trace_context import turn_of_requests
from agentest.testing import arun_scenarios

JSON = {"content-type": "application/json"}
PACKED = {**JSON, "content-encoding": "gzip"}


@dataclass
class Told:
    """The response to an agent's request."""

    status: int
    body: Any
    headers: Mapping[str, str] = field(default_factory=dict)


async def ask(base: str, asked: str, **more: Any) -> Told:
    """Send a request like `GET /orders`."""
    method, _, path = asked.partition(" ")
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, base + path, **more) as answer,
    ):
        text = await answer.text()
        is_json = answer.content_type == "application/json" and text
        return Told(answer.status, json.loads(text) if is_json else text, answer.headers)


@dataclass
class Held:
    """A run whose agent made requests."""

    result: RunResult
    told: list[Told]
    notes: list[str]

    @property
    def calls(self) -> list[ToolCall]:
        return list(self.result.scenarios[0].conversations[0].conversation.tool_calls)

    @property
    def error(self) -> str:
        conversation = self.result.scenarios[0].conversations[0].conversation
        return str(conversation.failure.message if conversation.failure else "")


def run(
    folder: Path, tools: Any, handler: Any, value: Any = SHOP, scenarios: Any = None, **keys: Any
) -> Held:
    """A run whose agent is a handler; `keys` are those of `rest_mock` and of the run."""
    notes: list[str] = []

    def hear(event: object) -> None:
        if isinstance(event, Noted):
            notes.append(event.text)

    rest = {"openapi": str(written(folder, value)), **keys.pop("rest", {})}
    agent = {"type": "custom", "handler": handler, "rest_mock": rest, **keys.pop("agent", {})}
    told: list[Told] = []

    async def go() -> RunResult:
        with anyio.fail_after(60):
            chosen = scenarios or [scenario("a", turns=["go"], tools=tools)]
            return await arun_scenarios(chosen, agent=agent, on_event=hear, max_concurrency=50, **keys)

    return Held(anyio.run(go), told, notes)


def held(
    folder: Path, tools: Any, *asked: str | tuple[str, dict[str, Any]], value: Any = SHOP, **keys: Any
) -> Held:
    """A conversation whose agent makes requests, one after another, at the address of its conversation."""
    told: list[Told] = []

    async def handler(messages: list[dict[str, Any]], ctx: TurnContext) -> str:
        for each in asked:
            request, more = (each, {}) if isinstance(each, str) else each
            told.append(await ask(str(ctx.rest_url), request, **more))
        return "done"

    made = run(folder, tools, handler, value, **keys)
    made.told += told
    return made


def get_order(id: int) -> Any:
    if id == 404:
        raise HttpResponse(404, "no such order")
    if id == 500:
        raise RuntimeError("the database is down")
    return {"id": id, "total": 3}


def test_a_call_is_answered_as_the_document_says(tmp_path: Path) -> None:
    """Status and form of an answer are the document's, arguments those of path, query and body."""
    one = held(
        tmp_path,
        {
            "get_order": get_order,
            "list_orders": [],
            "place_order": {"id": 7},
            "cancel_order": sequence(None, ""),
            "motto": "Tea!",
        },
        "GET /orders/5",
        "GET /v1/orders?limit=3&tag=a&tag=b",
        ("POST /orders", {"json": {"item": "tea", "quantity": 2}}),
        "DELETE /orders/5",
        "DELETE /orders/6",
        "GET /motto",
    )
    assert [(t.status, t.body) for t in one.told] == [
        (200, {"id": 5, "total": 3}), (200, []), (201, {"id": 7}), (204, ""), (204, ""), (200, "Tea!"),
    ]  # fmt: skip
    assert one.told[-1].headers["content-type"] == "text/plain; charset=utf-8"
    assert [(c.name, c.args) for c in one.calls] == [
        ("get_order", {"id": 5}),
        ("list_orders", {"limit": 3, "tag": ["a", "b"]}),
        ("place_order", {"item": "tea", "quantity": 2}),
        ("cancel_order", {"id": 5}),
        ("cancel_order", {"id": 6}),
        ("motto", {}),
    ]
    assert {(c.seen_by, c.mocked, c.invalid_arguments) for c in one.calls} == {
        (SeenBy.MOCK_SERVER, True, None)
    }
    assert one.notes == []


def test_statuses_and_headers_of_mocks(tmp_path: Path) -> None:
    """A mock may set status and headers: raised, returned, in a sequence, or as its value."""
    slow = HttpResponse(429, {"detail": "slow down"}, headers={"Retry-After": "3"})
    paged = HttpResponse(200, [], headers={"Link": "<?page=2>", "content-type": "application/vnd.shop+json"})
    one = held(
        tmp_path,
        {"get_order": get_order, "motto": sequence(slow, "Tea!"), "list_orders": lambda: paged,
         "cancel_order": HttpResponse(403), "place_order": sequence(HttpResponse(202))},
        "GET /orders/404", "GET /orders/500", "GET /motto", "GET /motto", "GET /orders", "DELETE /orders/1",
        ("POST /orders", {"json": {"item": "tea"}}),
    )  # fmt: skip
    assert [(t.status, t.body) for t in one.told] == [
        (404, {"error": "no such order"}),
        (500, {"error": "the database is down"}),
        (429, {"detail": "slow down"}),
        (200, "Tea!"),
        (200, "[]"),
        (403, {"error": "403 Forbidden"}),
        (202, None),
    ]
    assert one.told[2].headers["retry-after"] == "3"
    assert one.told[4].headers["content-type"] == "application/vnd.shop+json"
    assert [c.error for c in one.calls] == [
        "404 Not Found: no such order", "the database is down",
        '429 Too Many Requests: {"detail": "slow down"}', None, None, "403 Forbidden", None,
    ]  # fmt: skip
    assert one.calls[0].result == {"error": "no such order"}
    assert one.notes == [
        "the answer of the mock of place_order does not match POST /orders of shop.json: the status 202 is "
        "not documented, only 201"
    ]


BAD_RESPONSES: dict[str, tuple[Any, str]] = {
    "no number": (lambda: HttpResponse("404"), "status is '404', expected a number from 200 to 599"),  # type: ignore[arg-type]
    "no status": (lambda: HttpResponse(99), "status is 99"),
    "a broken header": (lambda: HttpResponse(200, headers={"a": "b\nc"}), "is not a header"),
    "a header of ours": (
        lambda: HttpResponse(200, headers={"Content-Length": "3"}),
        "is written by the server",
    ),
    "no JSON": (
        lambda: scenario("a", turns=["b"], tools={"c": HttpResponse(200, object())}),
        "not JSON-serialisable",
    ),
}


@pytest.mark.parametrize("what", BAD_RESPONSES)
def test_invalid_responses(what: str) -> None:
    """A response that cannot be sent is refused where it is created."""
    made, expected = BAD_RESPONSES[what]
    with pytest.raises((ValueError, AgentestError), match=expected):
        made()


def test_what_does_not_fit_is_told(tmp_path: Path) -> None:
    """The agent is answered 400 and what is wrong, the call is invalid, and the conversation goes on."""
    one = held(
        tmp_path,
        {"get_order": get_order, "place_order": {}, "list_orders": []},
        "GET /orders/abc",
        ("POST /orders", {"json": {"quantity": 0}}),
        ("POST /orders", {"data": b"{", "headers": JSON}),
        ("POST /orders", {"data": b"<a/>", "headers": {"content-type": "text/xml"}}),
        ("POST /orders", {"data": b"x", "headers": PACKED}),
        (
            "POST /orders",
            {"data": BytesIO(b'{"item": "%s"}' % (b"x" * 11_000_000)), "headers": JSON},
        ),
        ("POST /orders", {"data": gzip.compress(b" " * 11_000_000), "headers": PACKED}),
        ("POST /orders", {"data": b'{"quantity": "%s"}' % (b"x" * 200_000), "headers": JSON}),
        (
            "POST /orders",
            {"data": gzip.compress(b'{"item": "tea"}'), "headers": PACKED},
        ),
    )
    assert [t.status for t in one.told] == [400, 400, 400, 415, 400, 413, 413, 400, 201]
    assert one.told[0].body == {
        "error": 'path `id`: is "abc", expected integer',
        "detail": [{"loc": ["path", "id"], "msg": 'is "abc", expected integer', "type": "value_error"}],
    }
    assert one.told[1].body["error"].startswith("body: lacks `item`; body `quantity`: 0 is less than")
    assert [bool(c.invalid_arguments) for c in one.calls] == [True] * 8 + [False]
    assert one.calls[-1].args == {"item": "tea"}
    misfit, *_ = [each for each in one.result.scenarios[0].verdict_warnings if each.code == "mock-misfit"]
    assert "correct its mock, or the description of the tools" in misfit.message


def test_the_status_of_fastapi(tmp_path: Path) -> None:
    """If the document has 422, invalid requests get it, also by the mock's own parameters."""

    def find(n: int) -> int:
        return n

    paths = {"/find": {"get": operation("find", parameter("n"), **answers("422", {}))}}
    one = held(tmp_path, {"find": find}, "GET /find?n=x", value=document(paths))
    assert one.told[0].status == 422
    assert one.told[0].body["error"].startswith("arguments: `n`: input should be a valid integer")


def test_unknown_operations(tmp_path: Path) -> None:
    """They get 404 or 405 with the alternatives, and are recorded as invalid calls, with a note."""
    put = "PUT /orders/5", {"json": {"n": 3}}
    one = held(tmp_path, {"get_order": get_order}, "GET /order/5?a=b", put)
    assert [t.status for t in one.told] == [404, 405]
    assert "the nearest path is /orders" in one.told[0].body["error"]
    assert one.told[1].headers["allow"] == "DELETE, GET"
    assert [(c.name, c.args) for c in one.calls] == [
        ("GET /order/5", {"a": "b"}),
        ("PUT /orders/5", {"n": 3}),
    ]
    assert all(c.invalid_arguments for c in one.calls)
    banned = {"match_mode": "contains", "expected": [], "forbidden": ["PUT /orders/5"]}
    ban = [scenario("a", turns=["go"], tools={"get_order": 1}, trajectory=banned)]
    broken = held(tmp_path, {}, "PUT /orders/5", scenarios=ban)
    assert broken.result.scenarios[0].verdict.status is Status.FAILED


def test_mocks_of_what_the_document_does_not_have(tmp_path: Path) -> None:
    """A mock whose name is method and path answers such a request."""
    tools = {"GET /health": {"ok": True}, "POST /pay": HttpResponse(402)}
    one = held(tmp_path, tools, "GET /health?a=b", ("POST /pay", {"json": {"n": 3}}))
    assert [(t.status, t.body) for t in one.told] == [
        (200, {"ok": True}),
        (402, {"error": "402 Payment Required"}),
    ]
    assert [(c.name, c.args, c.mocked) for c in one.calls] == [
        ("GET /health", {"a": "b"}, True),
        ("POST /pay", {"n": 3}, True),
    ]


def test_a_tool_that_nobody_mocks(tmp_path: Path) -> None:
    """It is answered 501, and ends the conversation."""
    one = held(tmp_path, {"get_order": get_order}, "DELETE /orders/5")
    assert one.told[0].status == 501
    assert "the agent called tool 'cancel_order', which has no mock" in one.told[0].body["error"]
    assert "the agent called tool 'cancel_order', which has no mock" in one.error
    assert one.result.scenarios[0].verdict.status is Status.FAILED


def test_without_upstream_the_answer_is_null(tmp_path: Path) -> None:
    """With passthrough and no real API, an unmocked tool answers null."""
    one = held(tmp_path, {}, "GET /orders/5", unmocked_tools="passthrough")
    assert (one.told[0].status, one.told[0].body) == (200, None)
    assert one.calls[0].mocked is False
    assert one.notes == []


def test_the_real_api(tmp_path: Path) -> None:
    """With passthrough it gets unmocked requests unchanged, and its answer is returned unchanged."""
    seen: list[Any] = []

    async def real(request: web.Request) -> web.Response:
        seen.append((request.method, request.raw_path, await request.text(), dict(request.headers)))
        if request.path.endswith("/6"):
            return web.Response(status=418, text="teapot", headers={"x-shop": "yes"})
        return web.json_response({"real": True}, status=203)

    told: list[Told] = []

    async def handler(messages: list[dict[str, Any]], ctx: TurnContext) -> str:
        base = str(ctx.rest_url)
        secret = {"authorization": "Bearer abc", "x-agentest-conversation": ctx.session_id}
        told.append(await ask(base, "DELETE /v1/orders/6?why=a%26b", headers=secret))
        order = gzip.compress(b'{"item": "tea"}')
        told.append(await ask(base, "POST /orders", data=order, headers=PACKED))
        told.append(await ask(base, "GET /orders/5"))
        told.append(await ask(base, "GET /health?x=1"))
        return "done"

    async def go() -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", real)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        rest = {"openapi": str(written(tmp_path, SHOP)), "upstream": f"http://127.0.0.1:{port}/api"}
        agent = {"type": "custom", "handler": handler, "rest_mock": rest}
        chosen = scenario("a", turns=["go"], tools={"get_order": get_order})
        try:
            ran = await arun_scenarios([chosen], agent=agent, unmocked_tools="passthrough")
        finally:
            await runner.cleanup()
        calls = ran.scenarios[0].conversations[0].conversation.tool_calls
        assert [(c.name, c.mocked, c.result) for c in calls] == [
            ("cancel_order", False, "teapot"),
            ("place_order", False, {"real": True}),
            ("get_order", True, {"id": 5, "total": 3}),
            ("GET /health", False, {"real": True}),
        ]
        assert calls[0].error

    anyio.run(go)
    assert [(t.status, t.body) for t in told] == [
        (418, "teapot"), (203, {"real": True}), (200, {"id": 5, "total": 3}), (203, {"real": True}),
    ]  # fmt: skip
    assert told[0].headers["x-shop"] == "yes"
    assert [each[:3] for each in seen] == [
        ("DELETE", "/api/orders/6?why=a%26b", ""),
        ("POST", "/api/orders", '{"item": "tea"}'),
        ("GET", "/api/health?x=1", ""),
    ]
    headers = {name.lower(): value for name, value in seen[0][3].items()}
    assert headers["authorization"] == "Bearer abc"
    assert "x-agentest-conversation" not in headers


def test_a_real_api_that_is_not_there(tmp_path: Path) -> None:
    """The agent is answered 502, the call has failed, and the conversation goes on."""
    rest = {"upstream": "http://127.0.0.1:9/api"}
    one = held(tmp_path, {}, "GET /orders/5", rest=rest, unmocked_tools="passthrough")
    assert one.told[0].status == 502
    assert "could not be reached" in one.told[0].body["error"]
    assert one.calls[0].error


WAYS = ("path", "header", "session", "baggage", "traceparent")


def named(how: str, ctx: TurnContext) -> tuple[str, dict[str, str]]:
    """The address and the headers by which a request names its conversation."""
    turn = turn_of_requests()
    assert turn
    mine = str(ctx.rest_url)
    base = mine.removesuffix(f"/c/{turn.conversation}")
    return {
        "path": (mine, {}),
        "header": (base, {"X-Agentest-Conversation": turn.conversation}),
        "session": (f"{base}/c/{ctx.session_id}", {}),
        "baggage": (base, {"baggage": f"a=b,{turn.baggage}"}),
        "traceparent": (f"{base}/v1", {"traceparent": turn.traceparent}),
    }[how]


@pytest.mark.parametrize("how", WAYS)
def test_each_call_is_its_conversations(how: str, tmp_path: Path) -> None:
    """By each of the names, many conversations at once get their own answers; each broken ban is caught."""

    async def handler(messages: list[dict[str, Any]], ctx: TurnContext) -> str:
        base, headers = named(how, ctx)
        told = [await ask(base, said, headers=headers) for said in messages[-1]["content"].split(";")]
        return " ".join(str(each.body) for each in told)

    def shop(number: int) -> Any:
        last = "DELETE /orders/1" if number % 10 == 7 else "GET /orders/1"
        return scenario(
            f"s{number}",
            turns=[{"user_message": "GET /orders/1", "expect": {"contains": f"'of': {number}}}"}}, last],
            tools={"get_order": lambda args: {"total": 1, "of": number}, "cancel_order": None},
            trajectory={"match_mode": "contains", "expected": ["get_order"], "forbidden": ["cancel_order"]},
        )

    count = 50 if how == "baggage" else 10
    one = run(tmp_path, {}, handler, scenarios=[shop(number) for number in range(count)])
    failed = {s.name for s in one.result.scenarios if s.verdict.status is Status.FAILED}
    assert failed == {f"s{number}" for number in range(7, count, 10)}
    assert len(one.result.with_status(Status.PASSED)) == count * 9 // 10
    assert not one.result.unclaimed


def test_a_call_without_a_conversation(tmp_path: Path) -> None:
    """It gets 409 and makes the run errored; an unknown operation is only noted."""
    told: list[Told] = []

    async def handler(messages: list[dict[str, Any]], ctx: TurnContext) -> str:
        base = str(ctx.rest_url).rpartition("/c/")[0]
        told.append(await ask(base, "GET /c/ffffffffffffffffffffffff/orders/5"))
        told.append(await ask(base, "GET /c/ffffffffffffffffffffffff/orders"))
        return "done"

    one = run(tmp_path, {"get_order": get_order}, handler)
    assert [t.status for t in told] == [409, 409]
    assert "not a conversation of this run" in told[0].body["error"]
    assert run_status(one.result) is Status.ERRORED
    assert not one.calls


def test_an_answer_that_the_document_does_not_have(tmp_path: Path) -> None:
    """It is sent unchanged, with one note per operation."""
    tools = {"get_order": {"id": 1}, "list_orders": {}, "cancel_order": "gone"}
    asked = ["GET /orders/1", "GET /orders/2", "GET /orders", "DELETE /orders/1"]
    one = held(tmp_path, tools, *asked)
    assert [t.status for t in one.told] == [200, 200, 200, 204]
    assert one.notes == [
        f"the answer of the mock of {tool} does not match {what} of shop.json: {problem}"
        for tool, what, problem in (
            ("get_order", "GET /orders/{id}", "body: lacks `total`"),
            ("list_orders", "GET /orders", "body: is {}, expected array"),
            ("cancel_order", "DELETE /orders/{id}", "a response with status 204 has no body"),
        )
    ]


def test_ignored_query_names_are_noted(tmp_path: Path) -> None:
    """An unknown query name is ignored, as by real servers, with one note."""
    one = held(tmp_path, {"list_orders": []}, "GET /orders?limt=3", "GET /orders?limt=4")
    assert [c.args for c in one.calls] == [{}, {}]
    assert one.notes == [
        "`limt` (did you mean `limit`?) in requests of list_orders (GET /orders) is not in shop.json, "
        "and the mock did not receive it"
    ]


def test_the_document_itself(tmp_path: Path) -> None:
    """Agents that make their tools of it find it, with the address of their conversation in it."""
    one = held(tmp_path, {"get_order": get_order}, "GET /openapi.json")
    assert one.told[0].body["paths"].keys() == SHOP["paths"].keys()
    assert "/c/" in one.told[0].body["servers"][0]["url"]
    assert not one.calls


def test_the_document_leads_nowhere_else(tmp_path: Path) -> None:
    """The servers of its paths and operations are left out, too, because agents would call the real API."""
    real = {"servers": [{"url": "https://real.example"}]}
    value = document({"/a": {**real, "get": {**operation("get_order"), **real}}})
    one = held(tmp_path, {"get_order": get_order}, "GET /openapi.json", value=value)
    assert "real.example" not in json.dumps(one.told[0].body)


def test_pages_of_this_machine(tmp_path: Path) -> None:
    """Browsers let pages of this machine read answers, and no others."""
    asks = {"access-control-request-method": "DELETE", "access-control-request-headers": "x-a"}
    one = held(
        tmp_path,
        {"get_order": get_order},
        ("OPTIONS /orders/1", {"headers": {"origin": "http://localhost:3000", **asks}}),
        ("OPTIONS /orders/1", {"headers": {"origin": "https://evil.example", **asks}}),
        ("GET /orders/1", {"headers": {"origin": "http://localhost:3000"}}),
    )
    allowed = [t.headers.get("access-control-allow-origin") for t in one.told]
    assert allowed == ["http://localhost:3000", None, "http://localhost:3000"]
    assert one.told[0].headers["access-control-allow-methods"] == "DELETE"
    assert [c.name for c in one.calls] == ["get_order"]


def test_mocks_without_an_operation(tmp_path: Path) -> None:
    """If mocks are only reachable here, the run does not start: scenario, mock and similar names."""
    agent = {"type": "http", "endpoint": "http://127.0.0.1:9/", "body": {"m": "{{message}} {{rest_url}}"}}
    rest = {"openapi": str(written(tmp_path, SHOP))}

    async def go(chosen: Scenario) -> None:
        await arun_scenarios([chosen], agent={**agent, "rest_mock": rest})

    with pytest.raises(ConfigError) as caught:
        anyio.run(go, scenario("shop", turns=["go"], tools={"get_ordr": 1}))
    assert str(caught.value).startswith("the mock 'get_ordr' of scenario 'shop' (")
    assert "reached by rest_mock alone; the nearest is 'get_order' (GET /orders/{id})" in str(caught.value)
    chosen = scenario("shop", turns=["go"], tools={"GET /health": 1, "DELETE /orders/{id}": 1})
    with pytest.raises(ConfigError, match=r"'DELETE /orders/\{id\}' .* nearest is 'cancel_order'"):
        anyio.run(go, chosen)


def test_a_document_with_errors_ends_the_run_before_it_begins(tmp_path: Path) -> None:
    """The message has the agent and the place."""
    bad = document({"/a": {"get": operation("x", {"in": "query"})}})
    with pytest.raises(ConfigError) as caught:
        held(tmp_path, {"x": 1}, value=bad)
    assert "rest_mock.openapi of agent 'agent': " in str(caught.value)
    assert "paths./a.get.parameters[0]: a parameter needs a `name`" in str(caught.value)


def test_other_agents_get_the_body(tmp_path: Path) -> None:
    """Agents that call another way get the response's body, and a failing tool as such."""
    told: list[Any] = []

    async def handler(messages: Sequence[dict[str, Any]], ctx: TurnContext) -> str:
        told.extend([await ctx.resolve_tool("a", {}) for _ in range(3)])
        return "done"

    async def go() -> RunResult:
        answers = sequence(HttpResponse(404, "gone"), HttpResponse(429, {"n": 1}), HttpResponse(201, "fine"))
        chosen = scenario("a", turns=["go"], tools={"a": answers})
        return await arun_scenarios([chosen], agent={"type": "custom", "handler": handler})

    calls = anyio.run(go).scenarios[0].conversations[0].conversation.tool_calls
    assert told == [{"error": "gone"}, {"n": 1}, "fine"]
    assert [c.error for c in calls] == ["404 Not Found: gone", '429 Too Many Requests: {"n": 1}', None]


def test_credentials_of_the_real_api_are_sent_and_never_shown(tmp_path: Path) -> None:
    """User, password and query keys go with each request; the agent gets none."""
    with_keys = "http://bob:p%40ss-w0rd@127.0.0.1:{}/api?api_key=k3y-of-query&v=2"
    asked = "GET /orders/5"

    async def go() -> list[str]:
        seen: list[str] = []

        async def real(request: web.Request) -> web.Response:
            seen.append(f"{request.path_qs} {request.headers['authorization']}")
            return web.json_response({})

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", real)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            rest = {
                "openapi": str(written(tmp_path, SHOP)),
                "upstream": with_keys.format(runner.addresses[0][1]),
            }

            async def handler(messages: list[dict[str, Any]], ctx: TurnContext) -> str:
                await ask(str(ctx.rest_url), f"{asked}?x=1")
                return "done"

            agent = {"type": "custom", "handler": handler, "rest_mock": rest}
            await arun_scenarios([scenario("a", turns=["go"])], agent=agent, unmocked_tools="passthrough")
        finally:
            await runner.cleanup()
        return seen

    basic = base64.b64encode(b"bob:p@ss-w0rd").decode()
    assert anyio.run(go) == [f"/api/orders/5?api_key=k3y-of-query&v=2&x=1 Basic {basic}"]
    one = held(tmp_path, {}, asked, rest={"upstream": with_keys.format(9)}, unmocked_tools="passthrough")
    told = one.told[0].body["error"]
    assert "rest_mock.upstream http://127.0.0.1:9/api, could not be reached" in told
    assert not [secret for secret in ("bob", "p%40ss", "p@ss", "k3y", basic) if secret in told]
