"""Histories that agents keep in ways of their own, and answers that only some calls of a tool have."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import anyio
import httpx
import pytest
from aiohttp import web
from anyio.lowlevel import checkpoint
from scripted_provider import FORMS, Chat, Conversation, Json, Provider, Responses, Said
from test_model_gateway import BOTH_WAYS, EACH_FORM, Talk, anyio_backend, gateway, made
from test_model_gateway_faults import Faulty, events, request_of, sent

from agentest.mocks.binding import RecordedAnswer, bind
from agentest.support.errors import MockError

__all__ = ["anyio_backend"]
pytestmark = pytest.mark.anyio


def texts_of(form: str, message: Json) -> str:
    """Return the text in a message of the model; empty for other messages."""
    match form:
        case "chat":
            return (message.get("content") or "") if message["role"] == "assistant" else ""
        case "responses":
            return str(message["content"][0]["text"]) if message.get("type") == "message" else ""
        case "anthropic":
            blocks = message["content"] if message["role"] == "assistant" else []
            return "".join(block.get("text", "") for block in blocks)
    return "".join(part.get("text", "") for part in message["parts"]) if message["role"] == "model" else ""


def assistant(form: str, text: str) -> Json:
    match form:
        case "anthropic":
            thought = {"type": "thinking", "thinking": "x", "signature": "sig:x"}
            return {"role": "assistant", "content": [thought, {"type": "text", "text": text}]}
        case "gemini":
            return {"role": "model", "parts": [{"text": text}]}
    return {"role": "assistant", "content": text}


async def say_and_keep_texts(talk: Talk, form: str, text: str, *, preambles: bool = False) -> str:
    """Let an agent work as usual, and then keep only the texts of the turn."""
    history = talk.agent.history
    start = len(history)
    reply = await talk.say(text)
    await talk.known.end_turn()
    kept = (
        [known for each in history[start + 1 :] if (known := texts_of(form, each))] if preambles else [reply]
    )
    history[start + 1 :] = [assistant(form, each) for each in kept]
    return reply


UNSTORED = pytest.mark.parametrize("form", [form for form in FORMS if form != "stored responses"])


@UNSTORED
@BOTH_WAYS
@pytest.mark.parametrize("preambles", [False, True])
async def test_an_agent_that_loses_real_results_loses_mocked_ones_too(
    form: str, stream: bool, preambles: bool
) -> None:
    async with gateway() as gate, gate.talk(form, "a", stream=stream) as talk:
        replies = [
            await say_and_keep_texts(talk, form, text, preambles=preambles)
            for text in ("look one", "recall", "both two", "recall", "look three", "recall")
        ]

    assert replies[1] == "I recall {'mocked': 'one'}"  # nothing was known of this agent
    assert replies[3] == replies[5] == "I recall "
    assert gate.provider.refused == []
    assert [note.count("memory: turn") for note in gate.notes] == [1]  # "one" was put back before
    assert [call.name for call in talk.calls] == ["find", "find", "send", "find", "find"]


@UNSTORED
@pytest.mark.parametrize(
    ("memory", "recalled"), [("keep", "{'mocked': 'one'} {'mocked': 'two2'}"), ("turn", "")]
)
async def test_the_memory_of_the_model_can_be_set(form: str, memory: str, recalled: str) -> None:
    async with gateway(memory=memory) as gate, gate.talk(form, "a") as talk:
        for text in ("look one", "both two"):
            await say_and_keep_texts(talk, form, text)
        assert await say_and_keep_texts(talk, form, "recall") == f"I recall {recalled}"

    assert gate.provider.refused == []
    assert gate.notes == []


@UNSTORED
@pytest.mark.parametrize(("text", "told"), [("look one", True), ("both one", False)])
async def test_results_that_cannot_be_put_back_are_told(form: str, text: str, told: bool) -> None:
    """Unless the agent loses results of its own tools, too."""
    async with gateway() as gate, gate.talk(form, "a") as talk:
        await talk.say(text)
        await talk.known.end_turn()
        talk.agent.history[1:] = [assistant(form, "The same in other words.")]
        reply = await talk.say("recall")

    assert reply == "I recall "
    assert ["does not know results of mocks from earlier turns" in each for each in gate.notes] == [
        True
    ] * told


@EACH_FORM
@BOTH_WAYS
async def test_an_agent_that_keeps_calls_keeps_mocked_results(form: str, stream: bool) -> None:
    async with gateway() as gate, gate.talk(form, "a", stream=stream) as talk:
        for text in ("both one", "look two"):
            await talk.say(text)
            assert (await talk.known.end_turn()).missing is None
        reply = await talk.say("recall")

    assert [word for word in ("one", "one2", "two") if f"'{word}'" not in reply] == []
    assert gate.notes == []


async def test_a_text_whose_id_the_agent_lost_is_not_sent_twice() -> None:
    """As haystack writes the items of a response: reasoning, calls, then the text, which has no id."""
    async with gateway() as gate, gate.talk("responses", "a") as talk:
        await talk.say("look one")
        kept = [item for item in talk.agent.history if item.get("type") != "message"]
        talk.agent.history[:] = [*kept, {"role": "assistant", "content": "Done."}]
        reply = await talk.say("recall")

    assert "'one'" in reply
    assert [said.text for said in gate.provider.histories[-1] if said.role == "model"] == ["", "Done."]


@EACH_FORM
async def test_what_an_agent_remembers_is_not_questioned_if_nothing_contradicts_it(form: str) -> None:
    async with gateway() as gate, gate.talk(form, "a") as talk:
        for text in ("look one", "recall"):
            reply = await talk.say(text)
            await talk.known.end_turn()

    assert "'one'" in reply
    assert gate.notes == []


@EACH_FORM
@BOTH_WAYS
@pytest.mark.parametrize("real_first", [False, True])
async def test_a_tool_with_a_recorded_answer_is_real_for_other_arguments(
    form: str, stream: bool, real_first: bool
) -> None:
    wanted = ["real", "known"] if real_first else ["known", "real"]

    def reply(history: Sequence[Said]) -> tuple[str, list[tuple[str, Any]]]:
        if history[-1].role == "result":
            return "Done.", []
        return "One moment.", [("send", {"q": word}) for word in wanted]

    recorded = [RecordedAnswer("send", {"q": "known"}, {"mocked": "record"})]
    async with (
        gateway(provider=Provider(reply)) as gate,
        gate.talk(form, "a", stream=stream, mocks={}, recorded=recorded) as talk,
    ):
        assert (await talk.say("go")).endswith("Done.")

    assert talk.agent.ran == [("send", {"q": "real"})]
    assert made(talk.calls) == [("send", word, word == "known") for word in wanted]
    results = [each.result for each in gate.provider.histories[-1] if each.role == "result"]
    assert sorted(map(str, results)) == ["{'mocked': 'record'}", "{'real': 'real'}"]
    assert gate.provider.refused == []


@EACH_FORM
@BOTH_WAYS
async def test_recorded_answers_alone_never_reach_the_agent(form: str, stream: bool) -> None:
    def reply(history: Sequence[Said]) -> tuple[str, list[tuple[str, Any]]]:
        return ("Done.", []) if history[-1].role == "result" else ("", [("send", {"q": "known"})])

    recorded = [RecordedAnswer("send", {"q": "known"}, {"mocked": "record"})]
    async with (
        gateway(provider=Provider(reply)) as gate,
        gate.talk(form, "a", stream=stream, mocks={}, recorded=recorded) as talk,
    ):
        assert [await talk.say(text) for text in ("go", "go again")] == ["Done.", "Done."]

    assert talk.agent.ran == []
    assert gate.provider.refused == []


async def test_text_before_a_mocked_call_does_not_break_structured_output() -> None:
    async def answer(request: web.Request, number: int) -> web.StreamResponse:
        calls = [("find", {"q": "x"})] if number == 1 else []
        return await sent(request, events("chat", "Let me see." if calls else '{"a": 1}', calls))

    async with gateway(provider=Faulty(answer)) as gate, gate.talk("chat", "a"):
        path, body = request_of("chat", stream=True)
        body["response_format"] = {"type": "json_schema", "json_schema": {}}
        response = await gate.client.post(gate.origin + path, json=body)

    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: {")]
    assert Chat().assembled(list(map(json.loads, lines)))["choices"][0]["message"]["content"] == '{"a": 1}'


@pytest.mark.parametrize(
    ("calls", "text", "results"),
    [
        (["one"], "Observation:\n7", [7]),
        (["one"], "Observation:\na\nb\nNew task:\nnext", ["a\nb"]),
        (["one", "two"], "Observation:\n7\n8", [7, 8]),
        (["one", "two"], "Observation:\na\nb\nc", ["a\nb\nc"] * 2),
        (["one"], "Call id: x\nError:\nit broke\nNow let's retry: …", ["it broke"]),
    ],
)
async def test_results_that_smolagents_writes_as_text_are_recorded(
    calls: list[str], text: str, results: list[Any]
) -> None:
    def reply(history: Sequence[Said]) -> tuple[str, list[tuple[str, Any]]]:
        return ("", [("send", {"q": q}) for q in calls]) if len(history) == 1 else ("Done.", [])

    async with gateway(provider=Provider(reply)) as gate, gate.talk("chat", "a") as talk:
        path, body = request_of("chat", stream=False)
        talk.turn = 0
        with talk.known.said("look one"):
            answer = (await gate.client.post(gate.origin + path, json=body)).json()
            made = [
                {"id": each["id"], "type": "function"}
                for each in answer["choices"][0]["message"]["tool_calls"]
            ]
            body["messages"] += [
                {"role": "assistant", "content": [{"type": "text", "text": f"Calling tools:\n{made}"}]},
                {"role": "user", "content": [{"type": "text", "text": text}]},
            ]
            await gate.client.post(gate.origin + path, json=body)
        await talk.known.end_turn()

    assert [each.result for each in talk.calls] == results


@pytest.mark.parametrize("form", ["gemini", "chat"])
async def test_a_result_that_is_lost_when_an_agent_hands_over_is_no_fault_of_the_agent(form: str) -> None:
    """google-adk tells the next agent of the calls of the first one as texts of the user."""

    def reply(history: Sequence[Said]) -> tuple[str, list[tuple[str, Any]]]:
        made = [name for each in history for _, name, _ in each.calls]
        return ("", [("send" if made else "find", {"q": "x"})]) if len(made) < 2 else ("Done.", [])

    async with gateway(provider=Provider(reply)) as gate, gate.talk(form, "a") as talk:
        with talk.known.said("look one"):
            path, body = request_of(form, stream=False)
            await gate.client.post(gate.origin + path, json=body)
            assert await talk.known.error_of(None) is None
            quoted = talk.agent.form.user(
                "For context:\n[shop] called tool `send` with parameters: {'q': 'x'}"
            )
            body["messages" if form == "chat" else "contents"].append(quoted)
            await gate.client.post(gate.origin + path, json=body)
        error = str(await talk.known.error_of(None))

    assert "the result of the mock of 'find' is lost" in error
    assert not talk.known.forgets


@pytest.mark.parametrize("form", ["chat", "responses", "anthropic"])
@pytest.mark.parametrize("told", [True, False])
async def test_a_result_that_is_lost_in_a_history_as_one_text_is_no_fault_of_the_agent(
    form: str, told: bool
) -> None:
    """The OpenAI Agents SDK may nest the history in one text when an agent hands over to another."""
    async with gateway() as gate, gate.talk(form, "a") as talk:
        with talk.known.said("both one"):
            path, body = request_of(form, stream=False, text="both one")
            answer = (await gate.client.post(gate.origin + path, json=body)).json()
            _, [(call_id, name, _)] = talk.agent.form.text_and_calls(answer)
            nested = f"function_call {name} {call_id}, output: real" if told else "The guest wants a table."
            key = "input" if form == "responses" else "messages"
            body[key] = [talk.agent.form.user(f"{nested}\nboth one")]
            await gate.client.post(gate.origin + path, json=body)
        error = str(await talk.known.error_of(None))

    assert ("the result of the mock of 'find' is lost" in error) is told


@EACH_FORM
async def test_both_models_of_a_turn_are_mocked(form: str) -> None:
    async with gateway() as gate, gate.talk(form, "a") as talk:
        second = Conversation(talk.agent.form, talk.agent.base, gate.client)
        talk.turn = 0
        with talk.known.said("look one"):
            replies = [await talk.agent.say("look one"), await second.say("look one")]
        assert await talk.known.error_of(None) is None

    assert replies == ["Done.", "Done."]
    assert made(talk.calls) == [("find", "one", True)] * 2
    assert talk.agent.ran == second.ran == []


@pytest.mark.parametrize("form", ["chat", "anthropic"])
async def test_a_mocked_call_from_a_model_elsewhere_is_noticed_in_the_history(form: str) -> None:
    async with gateway() as gate, gate.talk(form, "a") as talk:
        around = Conversation(talk.agent.form, gate.upstream["anthropic"], gate.client)
        with talk.known.said("look one"):
            await around.say("look one")
            body = around.form.request(around.history[:-1], stream=False)
            response = await gate.client.post(talk.agent.base + around.form.path, json=body)
        with pytest.raises(MockError, match="a call of 'find' that did not pass the gateway"):
            await talk.known.end_turn()

    assert response.status_code == 200
    assert around.ran == [("find", {"q": "one"})]


@EACH_FORM
@BOTH_WAYS
@pytest.mark.parametrize("waits_for", ["the model", "the mock"])
async def test_a_client_that_gives_up_and_repeats_gets_the_answers_of_the_first_request(
    form: str, stream: bool, waits_for: str
) -> None:
    stuck, go_on = anyio.Event(), anyio.Event()

    async def slow(args: Any, ctx: Any) -> Any:
        if waits_for == "the mock":
            stuck.set()
            await go_on.wait()
        return {"mocked": args["q"]}

    class Slow(Provider):
        async def _handle(self, request: web.Request, *, write: bool = True) -> web.StreamResponse:
            if waits_for == "the model" and len(self.histories) == 1 and not stuck.is_set():
                stuck.set()
                await anyio.sleep_forever()
            return await super()._handle(request, write=write)

    mocks = {"find": bind(slow)}
    async with gateway(provider=Slow()) as gate, gate.talk(form, "a", stream=stream, mocks=mocks) as talk:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(talk.say, "look one")
            await stuck.wait()
            tasks.cancel_scope.cancel()
        while not talk.known.unfinished:
            await checkpoint()
        go_on.set()
        talk.agent.history.clear()
        assert await talk.say("look one") == "Done."
        reply = await talk.say("recall")

    assert reply == "I recall {'mocked': 'one'}"
    assert made(talk.calls) == [("find", "one", True)]
    assert gate.provider.refused == []


async def test_the_rounds_of_a_stream_have_one_response_id() -> None:
    def reply(history: Sequence[Said]) -> tuple[str, list[tuple[str, Any]]]:
        return ("Done.", []) if history[-1].role == "result" else ("Let me see.", [("find", {"q": "x"})])

    async with gateway(provider=Provider(reply)) as gate, gate.talk("gemini", "a", stream=True) as talk:
        assert await talk.say("go") == "Let me see.Done."  # the agent's client compares the ids


@pytest.mark.parametrize("memory", ["turn", "keep"])
async def test_an_agent_that_keeps_the_reasoning_of_hidden_rounds(memory: str) -> None:
    async with gateway(memory=memory) as gate, gate.talk("responses", "a", stream=True) as talk:
        for text in ("look one", "both two", "recall"):
            reply = await talk.say(text)
            await talk.known.end_turn()

    assert gate.provider.refused == []
    assert ("'one'" in reply) is (memory == "keep")


async def test_a_model_that_has_to_call_a_tool_may_answer_after_it_repeats_a_call() -> None:
    choices: list[Any] = []

    async def answer(request: web.Request, number: int) -> web.StreamResponse:
        body = await request.json()
        choices.append(body["tool_choice"])
        calls = [("find", {"q": "x"})] if body["tool_choice"] == "required" else []
        return web.json_response(Chat().answer(body, "" if calls else "Done.", calls))

    async with gateway(provider=Faulty(answer)) as gate, gate.talk("chat", "a"):
        path, body = request_of("chat", stream=False)
        response = await gate.client.post(gate.origin + path, json={**body, "tool_choice": "required"})

    assert choices == ["required", "required", "auto"]
    assert response.json()["choices"][0]["message"]["content"] == "Done."


async def test_the_first_id_of_a_streamed_response_names_the_last_one_of_the_provider() -> None:
    asked: list[str] = []

    async def answer(request: web.Request, number: int) -> web.StreamResponse:
        if request.method != "POST":
            asked.append(f"{request.method} {request.path}")
            return web.json_response({})
        made = Responses()
        calls = [("find", {"q": "x"})] if number == 1 else []
        body = made.answer({"model": "m", "include": ["reasoning.encrypted_content"]}, "Done.", calls)
        body["id"] = f"resp_{number}"
        pieces = [f"event: {name}\ndata: {json.dumps(data)}\n\n".encode() for name, data in made.events(body)]
        return await sent(request, pieces)

    async with gateway(provider=Faulty(answer)) as gate, gate.talk("responses", "a"):
        path, body = request_of("responses", stream=True)
        await gate.client.post(gate.origin + path, json=body)
        for method in ("GET", "DELETE"):
            await gate.client.request(method, f"{gate.origin}/openai/v1/responses/resp_1")
        await gate.client.get(f"{gate.origin}/openai/v1/responses/resp_1/input_items")

    assert asked == [
        "GET /v1/responses/resp_2",
        "DELETE /v1/responses/resp_2",
        "GET /v1/responses/resp_2/input_items",
    ]


@EACH_FORM
async def test_the_model_is_released_when_the_agent_goes_away_in_the_middle_of_a_stream(form: str) -> None:
    released = anyio.Event()

    async def hang(request: web.Request, _: int) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in events(form, "A long answer.", [])[:3]:  # with Gemini, the gateway keeps one back
            await response.write(event)
        try:
            await anyio.sleep_forever()
        finally:
            released.set()
        return response

    async with gateway(provider=Faulty(hang)) as gate, gate.talk(form, "a"):
        path, body = request_of(form, stream=True)
        async with gate.client.stream("POST", gate.origin + path, json=body) as response:
            assert response.status_code == 200
        with anyio.fail_after(10):
            await released.wait()
    assert isinstance(response, httpx.Response)
