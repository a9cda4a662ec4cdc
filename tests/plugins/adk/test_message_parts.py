"""Files in a user's message: sent in each protocol's form, or refused by name, and never dropped."""

from __future__ import annotations

import json
from typing import Any

import pytest
from evalset_documents import case, eval_set, invocation
from pydantic import TypeAdapter
from wire import http, wire

from agentest.adk import EvalCaseResult, EvalSet, LocalEvalService
from agentest.agents.chat_completions import to_wire
from agentest.agents.port import AgentReply, TurnContext
from agentest.conversation.turn_loop import ConversationSpec, TurnLoop
from agentest.conversation.user import ScriptedUser
from agentest.domain.messages import Attachment, UserText
from agentest.domain.transcript import AttachedFile, Blame, Conversation
from agentest.mocks.resolver import MockResolver
from agentest.plugins.adk.formats.eval_set import EVAL_SET, Blob, Content, Part, invocation_json, user_message
from agentest.plugins.protocols.adk_server.client import AdkClient
from agentest.plugins.protocols.adk_server.settings import AdkAgent
from agentest.support.errors import CannotSend
from agentest.support.http.address_guard import AddressGuard
from agentest.support.http.client import open_client
from agentest.testing import ScriptedAgent

pytestmark = pytest.mark.anyio
PNG, BYTES = "iVBORw==", b"\x89PNG"
IMAGE = {"inlineData": {"mimeType": "image/png", "data": PNG, "displayName": "lamp.png"}}
AUDIO = {"inline_data": {"mime_type": "audio/mpeg", "data": "QUJD"}}
PDF = {"inline_data": {"mime_type": "application/pdf", "data": "QUI"}}
LINK = {"file_data": {"mime_type": "image/jpeg", "file_uri": "https://example.org/lamp.jpg"}}
STORED = {"fileData": {"mimeType": "application/pdf", "fileUri": "gs://bucket/bill.pdf"}}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def asking(*parts: Any) -> Any:
    return invocation("", "Seen.", user_content={"role": "user", "parts": [*parts]})


def parsed(*cases: Any) -> EvalSet:
    return EVAL_SET.validate_python(eval_set("pictures", *cases))


async def evaluated(agent: Any, *cases: Any) -> list[EvalCaseResult]:
    service = LocalEvalService(agent)
    held = [result async for result in service.perform_inference({"eval_set": parsed(*cases)})]
    request = {"inference_results": held, "criteria": {"response_match_score": 1.0}}
    return [result async for result in service.evaluate(request)]


async def test_files_reach_a_chat_completions_agent() -> None:
    """Images, audio and other files are content parts; the next turn sends them again, in the history."""
    asked = case("a", asking({"text": "What is it?"}, IMAGE, AUDIO, PDF, LINK), invocation("Sure?", "Seen."))
    with ScriptedAgent(["Seen."]) as agent:
        (result,) = await evaluated(agent.endpoint, asked)
    assert result.final_eval_status.name == "PASSED"
    first = agent.requests[0]["messages"][0]["content"]
    assert first == [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
        {"type": "input_audio", "input_audio": {"data": "QUJD", "format": "mp3"}},
        {
            "type": "file",
            "file": {"filename": "attachment.pdf", "file_data": "data:application/pdf;base64,QUI="},
        },
        {"type": "image_url", "image_url": {"url": "https://example.org/lamp.jpg"}},
    ]
    assert [m["content"] for m in agent.requests[1]["messages"]] == [first, "Seen.", "Sure?"]
    turns = result.scenario.conversations[0].conversation.turns
    assert turns[0].user_message == (
        "What is it?\n[attached: lamp.png, image/png, 4 bytes]\n[attached: audio/mpeg, 3 bytes]\n"
        "[attached: application/pdf, 2 bytes]\n[attached: image/jpeg, https://example.org/lamp.jpg]"
    )
    assert turns[0].attachments[0] == AttachedFile("image/png", "lamp.png", 4)
    assert turns[1].attachments == ()


async def test_a_message_of_an_image_alone() -> None:
    """A case whose user sends only an image runs; a handler gets the same content parts."""
    seen: list[Any] = []

    def handler(messages: list[dict[str, Any]], ctx: object) -> str:
        del ctx
        seen.append(messages[-1]["content"])
        return "Seen."

    (result,) = await evaluated(handler, case("a", asking(IMAGE)))
    assert result.final_eval_status.name == "PASSED"
    assert seen == [[{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}]]
    (turn,) = result.scenario.conversations[0].conversation.turns
    assert turn.user_message == "[attached: lamp.png, image/png, 4 bytes]"


async def test_an_address_that_has_no_form_is_nobodys_failure() -> None:
    """A file that chat completions cannot hold by its address errs its case, by name; the next one runs."""
    with ScriptedAgent(["Seen."]) as agent:
        refused, fine = await evaluated(
            agent.endpoint, case("a", asking({"text": "Read."}, STORED)), case("b", asking(IMAGE))
        )
    assert refused.final_eval_status.name == "NOT_EVALUATED"
    assert fine.final_eval_status.name == "PASSED"
    (reason, *_) = refused.scenario.verdict.reasons
    assert "user_content of invocation 1 has a part `file_data` (application/pdf, gs://bucket/bill.pdf)" in (
        reason.message
    )
    assert "as `inline_data`" in reason.message
    assert len(agent.requests) == 1


async def test_files_reach_an_adk_server() -> None:
    """ADK gets the parts as they are, by address too, in the spelling that all its servers read."""
    said = user_message(Content("user", (Part(text="See"), *_parts(IMAGE, STORED))), "1")
    event = {"author": "x", "content": {"role": "model", "parts": [{"text": "Seen."}]}}
    answers = [http(b'{"id": "s"}'), http(json.dumps([event]).encode())]
    async with wire(*answers) as server, open_client(AddressGuard()) as client:
        config = AdkAgent(type="adk", endpoint=f"http://127.0.0.1:{server.port}", app_name="x")
        agent = AdkClient(config, client, 10.0)
        reply = await agent.reply([said], TurnContext("c", "s", 0, print, session_id="s"))
    assert reply.text == "Seen."
    (sent,) = (r.body["new_message"] for r in server.requests if "new_message" in r.body)
    assert sent["parts"] == [
        {"text": "See"},
        IMAGE,
        {"fileData": {"mimeType": "application/pdf", "fileUri": "gs://bucket/bill.pdf"}},
    ]


def _parts(*documents: Any) -> tuple[Part, ...]:
    return TypeAdapter(tuple[Part, ...]).validate_python(documents)


class _TextOnly:
    """An agent of a type that knows nothing of files."""

    name = "old"

    async def reply(self, messages: Any, ctx: Any) -> AgentReply:
        del messages, ctx
        return AgentReply("never asked")


async def test_a_client_without_file_support_gets_no_files() -> None:
    """The conversation is errored without a call to the agent."""
    file = Attachment(mime_type="image/png", base64=PNG, origin="user_content of invocation 7")
    loop = TurnLoop(
        ConversationSpec("c-1", "c", 5),
        _TextOnly(),
        ScriptedUser(["Hi", UserText("See", (file,))]),
        MockResolver({}, scenario="c", conversation_id="c-1"),
    )
    held: Conversation = await loop.run()
    assert [turn.agent_message for turn in held.turns] == ["never asked"]
    assert held.failure is not None
    assert held.failure.blame is Blame.INTERNAL
    assert held.failure.message.startswith("user_content of invocation 7 sends a file along, and agent 'old'")


def test_bytes_are_read_in_either_alphabet_and_kept_out_of_results() -> None:
    """Bytes, standard and URL-safe base64 with or without padding are the same; results have none of them."""
    for data in (b"hi>\xff", "aGk+/w==", "aGk-_w==", "aGk-_w"):
        assert Blob("a/b", data).data == "aGk+/w=="  # type: ignore[arg-type]
    document = asking({"text": "x"}, IMAGE)
    found = parsed(case("a", document)).eval_cases[0].conversation
    assert found is not None
    assert PNG not in json.dumps(invocation_json(found[0]))
    assert invocation_json(found[0])["userContent"]["parts"][1] == {
        "inlineData": {"mimeType": "image/png", "displayName": "lamp.png"}
    }


@pytest.mark.parametrize("uri", ["gs://b/c.png", "file:///c.png", "lamp.png"])
def test_images_are_sent_by_addresses_that_a_model_can_follow(uri: str) -> None:
    """An image at an address of another scheme is refused by name."""
    with pytest.raises(CannotSend, match=r"image/png.*https://, http:// or data:"):
        to_wire([UserText("", (Attachment(mime_type="image/png", uri=uri, origin="x"),))])
