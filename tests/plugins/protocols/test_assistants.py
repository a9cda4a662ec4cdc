"""Agents of OpenAI's Assistants API and of Azure AI Foundry: threads, runs, and tools that are polled."""

from __future__ import annotations

import json
from typing import Any

import hurrying
import pytest
from aiohttp import web
from http_agents import Handler, served

from agentest import scenario
from agentest.domain.results import RunResult, Status, WarningCode
from agentest.domain.tool_visibility import Approval
from agentest.domain.transcript import Conversation
from agentest.testing import arun_scenarios

Thing = dict[str, Any]
ENDED = {
    "fail": {"status": "failed", "last_error": {"code": "rate_limit_exceeded", "message": "Too much."}},
    "expire": {"status": "expired", "last_error": None},
    "cut": {"status": "incomplete", "incomplete_details": {"reason": "max_completion_tokens"}},
    "stop": {"status": "cancelled"},
    "odd": {"status": "requires_action", "required_action": {"type": "dance"}},
}
CALLS = {"two": ["stock", "price"], "one": ["stock"]}


class Server:
    """Speaks the API. The user's word decides what a run does."""

    def __init__(self, *, prefix: str = "/v1", version: str | None = None, lists_steps: bool = True) -> None:
        self.threads: dict[str, list[Thing]] = {}
        self.runs: dict[str, Thing] = {}
        self.steps: dict[str, list[Thing]] = {}
        self.asked: list[str] = []
        self.given: list[Thing] = []
        """The bodies of runs."""
        self._version = version
        at = f"{prefix}/threads"
        self.routes: dict[str, Handler] = {
            f"POST {at}": self.create,
            f"POST {at}/{{t}}/messages": self.message,
            f"POST {at}/{{t}}/runs": self.run,
            f"GET {at}/{{t}}/runs/{{r}}": self.poll,
            f"POST {at}/{{t}}/runs/{{r}}/submit_tool_outputs": self.submit,
            f"POST {at}/{{t}}/runs/{{r}}/cancel": self.cancel,
            f"GET {at}/{{t}}/messages": self.messages,
        }
        if lists_steps:
            self.routes[f"GET {at}/{{t}}/runs/{{r}}/steps"] = self.listed_steps

    def _check(self, request: web.Request) -> None:
        self.asked.append(f"{request.method} {request.path_qs}")
        assert request.headers["openai-beta"] == "assistants=v2"
        assert request.query.get("api-version") == self._version

    async def create(self, request: web.Request) -> web.Response:
        self._check(request)
        name = f"thread_{len(self.threads)}"
        self.threads[name] = []
        return web.json_response({"id": name, "object": "thread"})

    async def message(self, request: web.Request) -> web.Response:
        self._check(request)
        said = await request.json()
        assert said["role"] == "user"
        self.threads[request.match_info["t"]].append({**said, "run_id": None})
        return web.json_response({"id": "msg", "object": "thread.message"})

    async def run(self, request: web.Request) -> web.StreamResponse:
        self._check(request)
        body = await request.json()
        self.given.append(body)
        if body["assistant_id"] != "asst_1":
            return web.json_response({"error": {"message": "No assistant found"}}, status=404)
        run = {"id": f"run_{len(self.runs)}", "object": "thread.run", "status": "queued"}
        self.runs[run["id"]], self.steps[run["id"]] = run, []
        return await self._answer(request, run, body)

    async def _answer(self, request: web.Request, run: Thing, body: Thing) -> web.StreamResponse:
        if not body.get("stream"):
            return web.json_response(run)
        thread = request.match_info["t"]
        before = len(self.threads[thread])
        events: list[tuple[str, Thing]] = [("thread.run.queued", dict(run))]
        self._go_on(thread, run)
        self._go_on(thread, run)
        for message in self.threads[thread][before:]:
            events += [
                ("thread.message.delta", {"object": "thread.message.delta", "delta": {}}),
                ("thread.message.completed", message),
            ]
        if self._word(thread) != "break":
            events.append((f"thread.run.{run['status']}", run))
        text = "".join(f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in events)
        return web.Response(text=f"{text}event: done\ndata: [DONE]\n\n", content_type="text/event-stream")

    def _word(self, thread: str) -> str:
        said = [each["content"] for each in self.threads[thread] if each["role"] == "user"]
        return str(said[-1]).split()[0]

    def _go_on(self, thread: str, run: Thing) -> None:
        if run["status"] == "queued":
            run["status"] = "in_progress"
            return
        word = self._word(thread)
        if word == "wait" or run["status"] != "in_progress":
            return
        if word in ENDED:
            run.update(ENDED[word])
        elif word in CALLS and "outputs" not in run:
            calls = [
                {
                    "id": f"call_{n}",
                    "type": "function",
                    "function": {"name": name, "arguments": '{"item": "lamp"}'},
                }
                for n, name in enumerate(CALLS[word])
            ]
            action = {"type": "submit_tool_outputs", "submit_tool_outputs": {"tool_calls": calls}}
            run.update(status="requires_action", required_action=action)
        elif word == "approve" and "approved" not in run:
            call = {
                "id": "call_m",
                "type": "mcp",
                "name": "pay",
                "server_label": "shop",
                "arguments": '{"n": 5}',
            }
            action = {"type": "submit_tool_approval", "submit_tool_approval": {"tool_calls": [call]}}
            run.update(status="requires_action", required_action=action)
        else:
            self._complete(thread, run, word)

    def _complete(self, thread: str, run: Thing, word: str) -> None:
        said = [each["content"] for each in self.threads[thread] if each["role"] == "user"]
        outputs = run.get("outputs", run.get("approved", "none"))
        if word == "code":
            call = {
                "id": "c",
                "type": "code_interpreter",
                "code_interpreter": {"input": "1+1", "outputs": [2]},
            }
            self.steps[run["id"]].append({"step_details": {"type": "tool_calls", "tool_calls": [call]}})
        if run.get("approved"):
            call = {"id": "call_m", "type": "mcp", "name": "pay", "arguments": '{"n": 5}', "output": "paid"}
            self.steps[run["id"]].append({"step_details": {"type": "tool_calls", "tool_calls": [call]}})
        for text in ("One moment.", f"{'|'.join(said)} {outputs}"):
            part = {"type": "text", "text": {"value": text, "annotations": []}}
            self.threads[thread].append(
                {
                    "id": f"msg_{len(self.threads[thread])}",
                    "object": "thread.message",
                    "role": "assistant",
                    "run_id": run["id"],
                    "content": [part],
                }
            )
        run.update(status="completed", usage={"prompt_tokens": 10, "completion_tokens": 3})

    async def poll(self, request: web.Request) -> web.Response:
        self._check(request)
        run = self.runs[request.match_info["r"]]
        self._go_on(request.match_info["t"], run)
        return web.json_response(run)

    async def submit(self, request: web.Request) -> web.StreamResponse:
        self._check(request)
        body, run = await request.json(), self.runs[request.match_info["r"]]
        assert run["status"] == "requires_action"
        if "tool_approvals" in body:
            run["approved"] = body["tool_approvals"][0]["approve"]
        else:
            given = {each["tool_call_id"]: each["output"] for each in body["tool_outputs"]}
            wanted = run["required_action"]["submit_tool_outputs"]["tool_calls"]
            assert list(given) == [call["id"] for call in wanted]
            run["outputs"] = ",".join(given.values())
        run.update(status="queued", required_action=None)
        return await self._answer(request, run, body)

    async def cancel(self, request: web.Request) -> web.Response:
        self._check(request)
        self.runs[request.match_info["r"]]["status"] = "cancelled"
        return web.json_response(self.runs[request.match_info["r"]])

    async def messages(self, request: web.Request) -> web.Response:
        self._check(request)
        assert request.query["order"] == "asc"
        return web.json_response({"object": "list", "data": self.threads[request.match_info["t"]]})

    async def listed_steps(self, request: web.Request) -> web.Response:
        self._check(request)
        return web.json_response({"object": "list", "data": self.steps[request.match_info["r"]]})


def ran(server: Server, *scenarios: Any, path: str = "/v1", **settings: Any) -> RunResult:
    timeout_ms = settings.pop("request_timeout_ms", 5000)

    async def go() -> RunResult:
        async with served(server.routes) as url:
            agent = {"type": "assistants", "endpoint": f"{url}{path}", "assistant_id": "asst_1", "poll_ms": 1}
            return await arun_scenarios(scenarios, agent={**agent, **settings}, request_timeout_ms=timeout_ms)

    result: RunResult = hurrying.run(go)
    return result


def talk(server: Server, *turns: Any, **options: Any) -> Conversation:
    settings = {
        key: options.pop(key) for key in ("streaming", "body", "request_timeout_ms") if key in options
    }
    result = ran(server, scenario("s", turns=[*turns], **options), **settings)
    return result.scenarios[0].conversations[0].conversation


BOTH_WAYS = pytest.mark.parametrize("streaming", [False, True], ids=["polled", "streamed"])
STOCK = {"stock": lambda item: {"left": 7}, "price": 3}


@BOTH_WAYS
def test_parallel_calls_are_answered_by_mocks_and_the_thread_remembers(streaming: bool) -> None:
    server = Server()
    conversation = talk(server, "two", "hello", tools=STOCK, streaming=streaming, body={"temperature": 0})
    assert conversation.failure is None
    first, second = conversation.turns
    assert [(call.name, call.args, call.result) for call in first.tool_calls] == [
        ("stock", {"item": "lamp"}, {"left": 7}),
        ("price", {"item": "lamp"}, 3),
    ]
    assert first.agent_message == 'two {"left": 7},3'
    assert (second.agent_message, second.tool_calls) == ("two|hello none", ())
    assert [remark.text for remark in second.remarks] == ["One moment."]
    assert (first.usage.prompt_tokens, first.usage.completion_tokens) == (10, 3)
    assert list(server.threads) == ["thread_0"]
    assert server.given[0] == {
        "assistant_id": "asst_1",
        "temperature": 0,
        **({"stream": True} if streaming else {}),
    }
    assert (first.first_token_ms is not None) is streaming


@BOTH_WAYS
@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("fail", "the run ended as 'failed': Too much. (rate_limit_exceeded)"),
        ("expire", "the run expired (it waited too long for the results of tools)"),
        ("cut", "the run is incomplete (max_completion_tokens)"),
        ("stop", "the run ended as 'cancelled'"),
        ("odd", 'requires an action that is not a result of functions: {"type": "dance"}'),
    ],
)
def test_a_run_that_does_not_complete_is_the_agents_error(word: str, said: str, streaming: bool) -> None:
    conversation = talk(Server(), word, streaming=streaming)
    assert conversation.failure is not None
    assert said in conversation.failure.message
    assert "/v1/threads/thread_0: " in conversation.failure.message


def test_a_stream_that_is_cut_is_an_error() -> None:
    conversation = talk(Server(), "break", streaming=True)
    assert "stream was cut" in str(conversation.failure)


def test_a_run_without_an_end_is_cancelled() -> None:
    server = Server()
    conversation = talk(server, "wait", request_timeout_ms=100)
    assert "the run is still 'in_progress' after 0.1 s (request_timeout_ms)" in str(conversation.failure)
    assert server.asked[-1].startswith("POST /v1/threads/thread_0/runs/run_0/cancel")


def test_calls_that_the_server_makes_are_recorded() -> None:
    conversation = talk(Server(), "code", trajectory={"forbidden": ["code_interpreter"]})
    (call,) = conversation.tool_calls
    assert (call.name, call.args, call.result) == ("code_interpreter", {"input": "1+1"}, [2])


def test_a_server_without_steps_leaves_bans_undecided() -> None:
    result = ran(
        Server(lists_steps=False), scenario("s", turns=["hello"], trajectory={"forbidden": ["code"]})
    )
    assert result.scenarios[0].verdict.status is Status.ERRORED
    assert "lists no steps" in str(result.scenarios[0].verdict.reasons)


@pytest.mark.parametrize("approve", [True, {"pay": False}])
@BOTH_WAYS
def test_foundry_asks_for_approval_and_needs_its_version(approve: Any, streaming: bool) -> None:
    server = Server(prefix="/api/projects/shop", version="v1")
    result = ran(
        server,
        scenario("s", turns=["approve", "hello"], approve=approve),
        path="/api/projects/shop/",
        api_version="v1",
        streaming=streaming,
    ).scenarios[0]
    assert not [each for each in result.verdict_warnings if each.code is WarningCode.VACUOUS_CHECK]
    conversation = result.conversations[0].conversation
    assert conversation.turns[0].agent_message == f"approve {approve is True}"
    (call,) = conversation.tool_calls
    expected = Approval.GRANTED if approve is True else Approval.DENIED
    assert (call.name, call.args, call.approval) == ("pay", {"n": 5}, expected)


def test_an_approval_without_an_answer_names_it() -> None:
    assert "write approve={'pay': True}" in str(talk(Server(), "approve").failure)


@BOTH_WAYS
def test_twenty_conversations_at_once_mix_nothing(streaming: bool) -> None:
    server = Server()
    each = [
        scenario(f"s{n}", turns=[f"two {n}", f"hello {n}"], tools={"stock": n, "price": -n})
        for n in range(20)
    ]
    result = ran(server, *each, streaming=streaming)
    for n, found in enumerate(result.scenarios):
        turns = found.conversations[0].conversation.turns
        assert [turn.agent_message for turn in turns] == [f"two {n} {n},{-n}", f"two {n}|hello {n} none"]
    assert len(server.threads) == 20


def test_a_wrong_assistant_errs_the_run() -> None:
    result = ran(Server(), scenario("s", turns=["hello"]), assistant_id="asst_2")
    assert result.scenarios[0].verdict.status is Status.ERRORED
    assert "is `assistant_id` right?" in str(result.scenarios[0].verdict.reasons)


@pytest.mark.parametrize("key", ["assistant_id", "stream"])
def test_fields_that_agentest_sets_are_refused(key: str) -> None:
    with pytest.raises(Exception, match=f"`{key}` is"):
        ran(Server(), scenario("s", turns=["hello"]), body={key: "x"})
