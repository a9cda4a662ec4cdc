"""Tools by which frameworks receive the model's final answer need no mock; tools that look like them do."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from scripted_provider import Chat, Json, Provider, Refused, Said
from test_model_gateway import BOTH_WAYS, Gateway, Talk, gateway, made

pytestmark = pytest.mark.anyio

TYPE = {"type": "object", "properties": {"q": {"type": "string"}}, "additionalProperties": False}
FUNCTION = {"additionalProperties": False, "properties": {"q": {"type": "string"}}, "type": "object"}
PYDANTIC_AI = "The final response which ends this conversation"
OUTPUT_TOOLS = {
    "final_answer": "Provides a final answer to the given problem.",
    "final_result": PYDANTIC_AI,
    "final_result_Table": f"Table: {PYDANTIC_AI}",
    "set_model_response": "Set your final response using the required output schema.\n\nUse this tool.",
    "Table": "IMPORTANT: This StructuredOutputTool should only be invoked as the last and final tool before "
    "returning the completed result to the caller. <description></description>",
    "json": "Respond with a JSON object.",
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class OfferingChat(Chat):
    """An agent that has to call a tool, and whose output tool is `name`."""

    def __init__(self, name: str, description: str = "", parameters: Json = TYPE) -> None:
        self.tool = {"name": name, "description": description, "parameters": parameters}

    def request(self, history: list[Json], *, stream: bool) -> Json:
        body = super().request(history, stream=stream)
        return {
            **body,
            "tools": [*body["tools"], {"type": "function", "function": self.tool}],
            "tool_choice": "required",
        }

    def text_and_calls(self, answer: Json) -> tuple[str, list[tuple[str, str, Json]]]:
        text, calls = super().text_and_calls(answer)
        ends = [arguments["q"] for _, name, arguments in calls if name == self.tool["name"]]
        return (ends[0], []) if ends else (text, calls)

    def received(self, answer: Json) -> list[Json]:
        message = super().received(answer)
        done = [
            {"role": "tool", "tool_call_id": call["id"], "content": "Final result processed."}
            for call in message[0].get("tool_calls") or ()
            if call["function"]["name"] == self.tool["name"]
        ]
        return [*message, *done]


def provider_of(form: OfferingChat) -> Provider:
    """A model that calls `find`, with the same arguments twice, and then the output tool."""

    def reply(history: Sequence[Said]) -> tuple[str, list[tuple[str, Any]]]:
        since = max(i for i, each in enumerate(history) if each.role == "user")
        if sum(each.role == "model" for each in history[since:]) < 2:
            return "", [("find", {"q": "one"})]
        return "", [(form.tool["name"], {"q": "It is found."})]

    return Provider(reply)


async def say(gate: Gateway, talk: Talk, form: OfferingChat, texts: Sequence[str]) -> list[str]:
    talk.agent.form = form
    return [await talk.say(text) for text in texts]


@BOTH_WAYS
@pytest.mark.parametrize("name", OUTPUT_TOOLS)
async def test_an_output_tool_needs_no_mock_and_its_call_is_not_recorded(name: str, stream: bool) -> None:
    form = OfferingChat(name, OUTPUT_TOOLS[name])
    provider = provider_of(form)
    async with (
        gateway(allows_real=False, provider=provider) as gate,
        gate.talk("chat", "a", stream=stream) as talk,
    ):
        assert await say(gate, talk, form, ["look one", "and again"]) == ["It is found."] * 2
        await talk.serving.check()

    assert made(talk.calls) == [("find", "one", True)] * 4
    assert provider.refused == []
    assert [each.role for each in provider.histories[-1]] == [
        *("user", "model", "result", "model", "result", "model", "result"),
        *("user", "model", "result", "model", "result"),
    ]


@BOTH_WAYS
@pytest.mark.parametrize(
    "form",
    [
        OfferingChat("final_answer", "Sends the final answer to the customer."),
        OfferingChat("publish", PYDANTIC_AI),
        OfferingChat("final_result"),
        OfferingChat("final_result", PYDANTIC_AI, FUNCTION),
        OfferingChat("Table", "A table."),
    ],
    ids=["another description", "another name", "no description", "a function", "a class"],
)
async def test_a_tool_that_may_be_real_never_runs(form: OfferingChat, stream: bool) -> None:
    provider = provider_of(form)
    async with (
        gateway(allows_real=False, provider=provider) as gate,
        gate.talk("chat", "a", stream=stream) as talk,
    ):
        with pytest.raises(Refused, match="has no mock"):
            await say(gate, talk, form, ["look one"])
        with pytest.raises(Exception, match="has no mock"):
            await talk.serving.check()

    name = form.tool["name"]
    assert f"write model_gateway.output_tools: [{name}]" in gate.notes[0]


async def test_an_output_tool_may_be_named() -> None:
    form = OfferingChat("Table", "A table.")
    async with (
        gateway(allows_real=False, provider=provider_of(form), output_tools=["Table"]) as gate,
        gate.talk("chat", "a") as talk,
    ):
        assert await say(gate, talk, form, ["look one"]) == ["It is found."]

    assert made(talk.calls) == [("find", "one", True)] * 2
    assert gate.notes == []


async def test_an_output_tool_that_the_scenario_names_is_a_tool_like_any_other() -> None:
    form = OfferingChat("final_answer", OUTPUT_TOOLS["final_answer"])
    async with gateway(provider=provider_of(form)) as gate, gate.talk("chat", "a") as talk:
        talk.known.named = {"final_answer"}
        await say(gate, talk, form, ["look one"])

    assert [call.name for call in talk.calls] == ["find", "find", "final_answer"]


async def test_mocked_results_are_kept_where_the_output_is_written_as_text() -> None:
    class TextChat(OfferingChat):
        def received(self, answer: Json) -> list[Json]:
            return [
                {"role": "assistant", "content": json.dumps({"q": "It is found."}, separators=(",", ":"))}
            ]

    form = TextChat("json", OUTPUT_TOOLS["json"])
    provider = provider_of(form)
    async with gateway(allows_real=False, provider=provider) as gate, gate.talk("chat", "a") as talk:
        await say(gate, talk, form, ["look one", "look one"])

    assert [each.role for each in provider.histories[-1]] == [
        *("user", "model", "result", "model", "result", "model"),
        *("user", "model", "result", "model", "result"),
    ]
