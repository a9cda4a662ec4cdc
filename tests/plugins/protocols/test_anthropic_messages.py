"""Anthropic's Messages: whose call is whose, what is resent, and what is not an answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from talking import Gathering, Held, as_events, as_json, held, looked
from wire import http

from agentest import scenario
from agentest.config.config import Config
from agentest.domain.messages import Attachment, UserText
from agentest.domain.transcript import Usage
from agentest.testing import run_scenarios

AGENT = {"type": "anthropic_messages"}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def use(
    name: str = "pay", identifier: str = "toolu_1", kind: str = "tool_use", /, **given: Any
) -> dict[str, Any]:
    return {"type": kind, "id": identifier, "name": name, "input": given}


def result_of(
    content: Any, identifier: str = "toolu_1", kind: str = "tool_result", /, **more: Any
) -> dict[str, Any]:
    return {"type": kind, "tool_use_id": identifier, "content": content, **more}


def message(*blocks: Any, **more: Any) -> dict[str, Any]:
    head = {"id": "msg_1", "type": "message", "role": "assistant", "stop_reason": "end_turn"}
    return {**head, "content": list(blocks), **more}


def talk(*answers: Any, lines: Any = ("Pay.",), tools: Any = None, **config: Any) -> Held:
    """A conversation with an agent whose messages are these."""
    wired = [answer if isinstance(answer, bytes) else as_json(answer) for answer in answers]
    return held({**AGENT, **config}, lines, *wired, tools=tools, path="/v1/messages")


# Whose call is whose


def test_a_call_is_ours() -> None:
    """Mocks answer, all results go back in one message, and the agent's blocks are resent as they came."""
    thinking = {"type": "thinking", "thinking": "hm", "signature": "sig"}
    asking = message(thinking, text("One moment."), use(amount=5), use("look", "toolu_2"))
    usage = {
        "input_tokens": 10,
        "output_tokens": 5,
        "cache_read_input_tokens": 3,
        "cache_creation_input_tokens": 2,
    }

    def broken() -> None:
        raise RuntimeError("closed")

    before = [{"role": "user", "content": "Rules."}, {"role": "assistant", "content": "Yes."}]
    result = talk(
        asking,
        message(text("Pa"), text("id."), usage=usage),
        message(text("Bye.")),
        lines=("Pay.", "Thanks."),
        tools={"pay": lambda amount: {"paid": amount}, "look": broken},
        headers={"X-Api-Key": "secret", "x-user": "{{session_id}}"},
        body={"model": "m", "system": "You are {{scenario}}.", "messages": before},
    )
    assert result.replies == ["Paid.", "Bye."]
    assert result.calls == [
        ("pay", {"amount": 5}, {"paid": 5}, "caller"),
        ("look", {}, {"error": "closed"}, "caller"),
    ]
    turn = result.conversation.turns[0]
    assert [r.text for r in turn.remarks] == ["One moment."]
    assert turn.usage == Usage(15, 5, 3)
    first, second, third = [request.body for request in result.requests]
    said = [*before, {"role": "user", "content": "Pay."}]
    assert first == {"model": "m", "system": "You are s.", "max_tokens": 4096, "messages": said}
    answers = [
        result_of('{"paid": 5}'),
        result_of('{"error": "closed"}', "toolu_2", is_error=True),
    ]
    said += [{"role": "assistant", "content": asking["content"]}, {"role": "user", "content": answers}]
    assert second["messages"] == said
    said += [{"role": "assistant", "content": [text("Pa"), text("id.")]}]
    assert third["messages"] == [*said, {"role": "user", "content": "Thanks."}]
    headers = result.requests[0].headers
    told = [headers[name] for name in ("x-api-key", "anthropic-version", "x-user")]
    assert told == ["secret", "2023-06-01", "session-1"]


def test_headers_and_tokens_of_the_user_win() -> None:
    """A configured version and token limit take precedence."""
    result = talk(message(text("Hi.")), headers={"Anthropic-Version": "x"}, body={"max_tokens": 5})
    (request,) = result.requests
    assert (request.headers["anthropic-version"], request.body["max_tokens"]) == ("x", 5)


def test_calls_of_the_server_are_its_own() -> None:
    """Tools of the server, and pairs in one message, are recorded with their results and never mocked."""
    blocks = [
        text("Let me see."),
        use("web_search", "s1", "server_tool_use", query="x"),
        result_of([{"type": "web_search_result", "url": "u"}], "s1", "web_search_tool_result"),
        use("ship", "s2", "mcp_tool_use", to="Oslo"),
        result_of([text('{"ok": '), text("1}")], "s2", "mcp_tool_result", is_error=False),
        use("fetch", "s3", "server_tool_use"),
        result_of(
            {"type": "web_fetch_tool_result_error", "error_code": "gone"}, "s3", "web_fetch_tool_result"
        ),
        use(amount=5),
        result_of("ok"),
        use("lost", "s4", "server_tool_use"),
        text("Do"),
        text("ne."),
    ]
    result = talk(message(*blocks))
    assert (result.replies, len(result.requests)) == (["Done."], 1)
    assert [r.text for r in result.conversation.turns[0].remarks] == ["Let me see."]
    failed = {"type": "web_fetch_tool_result_error", "error_code": "gone"}
    assert result.calls == [
        ("web_search", {"query": "x"}, [{"type": "web_search_result", "url": "u"}], "agent"),
        ("ship", {"to": "Oslo"}, {"ok": 1}, "agent"),
        ("fetch", {}, failed, "agent"),
        ("pay", {"amount": 5}, "ok", "agent"),
        ("lost", {}, None, "agent"),
    ]
    assert [c.name for c in result.conversation.tool_calls if c.error] == ["fetch"]
    assert [c.call_id for c in result.conversation.tool_calls] == ["s1", "s2", "s3", "toolu_1", "s4"]


def test_a_mock_that_is_ignored() -> None:
    """A call that the agent answered itself, though a mock was to, is recorded and ends the conversation."""
    result = talk(message(use(), result_of("ok"), text("Paid.")), tools={"pay": "never"})
    assert "agent 'agent' ran tool 'pay' itself: the scenario's mock was ignored" in result.problem
    assert result.calls == [("pay", {}, "ok", "agent")]


def test_a_pause() -> None:
    """A message that pauses is gone on with, and counts as one answer."""
    first = message(
        use("web_search", "s1", "server_tool_use"), stop_reason="pause_turn", usage={"output_tokens": 1}
    )
    rest = message(result_of([], "s1", "web_search_tool_result"), text("Done."), usage={"output_tokens": 2})
    result = talk(first, rest, message(text("Bye.")), lines="ab")
    assert result.replies == ["Done.", "Bye."]
    assert result.calls == [("web_search", {}, [], "agent")]
    assert result.conversation.turns[0].usage == Usage(0, 3)
    assert result.requests[1].body["messages"][-1] == {"role": "assistant", "content": first["content"]}
    whole = [*first["content"], *rest["content"]]
    assert result.requests[2].body["messages"][1] == {"role": "assistant", "content": whole}
    endless = talk(first)
    assert "paused more than 10 times (stop_reason: pause_turn)" in endless.problem
    assert len(endless.requests) == 11


def test_roles_alternate() -> None:
    """After a hand-over without text, the user's text follows the results in one message."""
    result = talk(
        message(use()), message(), message(text("Hi.")), lines=("Pay.", "And?"), tools={"pay": "ok"}
    )
    assert result.replies == ["", "Hi."]
    sent = result.requests[2].body["messages"]
    assert [each["role"] for each in sent] == ["user", "assistant", "user"]
    assert sent[-1]["content"] == [result_of("ok"), text("And?")]


def test_calls_without_id_and_arguments_that_are_none() -> None:
    """A call without an id gets one, and arguments that are not an object are refused as with any agent."""
    asked = {"type": "tool_use", "name": "pay", "input": [1]}
    result = talk(message(asked), message(text("Hm.")), tools={"pay": "never"})
    ((name, args, answer, _),) = result.calls
    assert (name, args) == ("pay", [1])
    assert "not a JSON object" in answer["error"]
    _, assistant, results = result.requests[1].body["messages"]
    assert assistant["content"] == [{**asked, "id": "toolu_msg_1_0", "input": {}}]
    assert results["content"][0]["tool_use_id"] == "toolu_msg_1_0"
    assert results["content"][0]["is_error"] is True


def test_files_of_the_user() -> None:
    """Images and documents are blocks; other files cannot be sent, which blames nobody."""
    files = (
        Attachment(mime_type="image/png", base64="AAAA"),
        Attachment(mime_type="image/png", uri="https://h/a.png"),
        Attachment(mime_type="application/pdf", base64="AAAA", name="a.pdf"),
        Attachment(mime_type="text/csv; charset=utf-8", base64="YSxi"),
    )
    result = talk(message(text("Nice.")), lines=(UserText("Look.", files),))
    (sent,) = result.requests[0].body["messages"]
    pdf = {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}
    assert sent["content"] == [
        text("Look."),
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
        {"type": "image", "source": {"type": "url", "url": "https://h/a.png"}},
        {"type": "document", "source": pdf, "title": "a.pdf"},
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a,b"}},
    ]
    song = UserText("", (Attachment(mime_type="audio/mpeg", base64="AAAA", origin="the case"),))
    problem = talk(message(), lines=(song,)).problem
    assert problem.startswith("internal: the case has a part `inline_data` (audio/mpeg) that cannot be sent")


# What is not an answer


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (
            {"type": "error", "error": {"type": "overloaded_error", "message": "Busy."}},
            "the agent answered with an error: Busy. (overloaded_error)",
        ),
        ({"output": []}, "the agent's answer is not a message: it has no `content`"),
        (
            message(text("Ha"), use(), stop_reason="max_tokens"),
            "cut in the middle of a call (stop_reason: max_tokens): raise body.max_tokens",
        ),
        (
            message(stop_reason="model_context_window_exceeded"),
            "cut before it said anything (stop_reason: model",
        ),
        (
            message(stop_reason="refusal", stop_details={"explanation": "Bad."}),
            "refused to answer, without a text (stop_reason: refusal): Bad.",
        ),
        (message(), "it has neither text nor tool calls"),
        (message({"type": "text"}), "a text block of the agent has no text"),
        (message({"type": "tool_use"}), "a tool_use of the agent has no name"),
        (
            message({"type": "tool_use", "id": "t1"}, result_of("ok", "t1"), text("So.")),
            "a tool_use of the agent has no name",
        ),
        (message(result_of("ok", "t9"), text("So.")), "a tool_result of the agent belongs to no call"),
        (message(text("Pay."), role="user"), "is a message of the role 'user'"),
        (message(content={"a": 1}), "is not a list of blocks"),
        (http(b"<html>"), "a web page, not JSON (is the path right? Anthropic's Messages"),
        (as_json({"type": "error", "error": {"message": "No."}}, "400 No"), "answered 400"),
        (http(b"", "404 No"), "answered 404 (is the path right?"),
    ],
    ids=lambda value: None if isinstance(value, dict | bytes) else value[:30],
)
def test_invalid_answers(answer: Any, problem: str) -> None:
    """A missing part or an error in a message is the agent's error; a wrong address is not."""
    result = talk(answer)
    assert problem in result.problem
    is_elsewhere = "is the path right?" in problem
    assert result.problem.startswith("internal: " if is_elsewhere else "agent: ")


def test_calls_before_an_error_stay() -> None:
    """Calls of the server are recorded even if its answer was cut."""
    pair = [use("web_search", "s1", "server_tool_use"), result_of([], "s1", "web_search_tool_result")]
    assert talk(message(*pair, stop_reason="max_tokens")).calls == [("web_search", {}, [], "agent")]
    paused = message(*pair, stop_reason="pause_turn")
    assert talk(paused, http(b"", "500 No")).calls == [("web_search", {}, [], "agent")]


def test_other_replies() -> None:
    """A refusal with a text is a reply, so is a content that is a text, and one that was cut, with a note."""
    cut = talk(message(text("Ha"), stop_reason="max_tokens"), lines="ab")
    assert cut.replies == ["Ha", "Ha"]
    assert cut.notes == [
        "agent 'agent': answers were cut before their end (stop_reason: max_tokens): raise body.max_tokens"
    ]
    assert talk(message(text("No."), stop_reason="refusal")).replies == ["No."]
    assert talk({"role": "assistant", "content": "Plain."}).replies == ["Plain."]
    counted = talk(message(text("Hi."), {"type": "smell"}))
    assert counted.notes == ["agent 'agent': 1 content block of unknown type 'smell' was ignored"]


# Streams


def streamed(*blocks: dict[str, Any], reason: str = "end_turn") -> list[dict[str, Any]]:
    """The events of a message as Anthropic sends them."""
    start = message(stop_reason=None, usage={"input_tokens": 10, "output_tokens": 1})
    events: list[dict[str, Any]] = [{"type": "message_start", "message": start}, {"type": "ping"}]
    for index, block in enumerate(blocks):
        begun, deltas = _pieces(block)
        events += [{"type": "content_block_start", "index": index, "content_block": begun}]
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events += [{"type": "content_block_stop", "index": index}]
    end = {"delta": {"stop_reason": reason}, "usage": {"output_tokens": 7, "input_tokens": None}}
    return [*events, {"type": "message_delta", **end}, {"type": "message_stop"}]


def _pieces(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    match block:
        case {"type": "text", "text": said}:
            return {**block, "text": ""}, [{"type": "text_delta", "text": piece} for piece in said]
        case {"type": "thinking", "thinking": thought, "signature": signature}:
            signed = {"type": "signature_delta", "signature": signature}
            return {"type": "thinking", "thinking": ""}, [
                {"type": "thinking_delta", "thinking": thought},
                signed,
            ]
        case {"type": "tool_use" | "server_tool_use", "input": given}:
            pieces = json.dumps(given) if given else ""
            return {**block, "input": {}}, [
                {"type": "input_json_delta", "partial_json": piece} for piece in pieces
            ]
    return block, []


def test_a_stream() -> None:
    """Blocks are put together by index, and resent as if they had come whole; the first text is timed."""
    own = [
        use("web_search", "s1", "server_tool_use", query="x"),
        result_of([], "s1", "web_search_tool_result"),
    ]
    blocks = [
        {"type": "thinking", "thinking": "hm", "signature": "sig"},
        *own,
        use(amount=5),
        use("look", "t2"),
    ]
    result = talk(
        as_events(*streamed(*blocks, reason="tool_use")),
        as_events(*streamed(text("Paid, sir."))),
        tools={"pay": "ok", "look": "ok"},
        streaming=True,
    )
    assert result.replies == ["Paid, sir."]
    assert [(name, args, by) for name, args, _, by in result.calls] == [
        ("web_search", {"query": "x"}, "agent"),
        ("pay", {"amount": 5}, "caller"),
        ("look", {}, "caller"),
    ]
    turn = result.conversation.turns[0]
    assert turn.first_token_ms is not None
    assert turn.usage == Usage(20, 14)
    assert result.requests[0].body["stream"] is True
    assert result.requests[1].body["messages"][1] == {"role": "assistant", "content": blocks}
    assert not result.notes


def test_blocks_of_one_index() -> None:
    """A block whose index is given to another one stays, and results may come in a later message."""
    start = {"type": "content_block_start", "index": 0}
    events = [
        {"type": "message_start", "message": message()},
        {**start, "content_block": use("pay", "s1", "server_tool_use", amount=5)},
        {**start, "content_block": text("So.")},
        {"type": "message_stop"},
    ]
    later = as_json(message(result_of("ok", "s1", "web_search_tool_result"), text("Done.")))
    result = talk(as_events(*events), later, lines="ab", streaming=True)
    assert result.replies == ["So.", "Done."]
    assert result.calls == [("pay", {"amount": 5}, None, "agent")]


def test_interleaved_blocks_and_odd_events() -> None:
    """Pieces go to their own block; citations are kept; unknown events are counted."""
    delta = {"type": "content_block_delta"}
    cited = {"type": "citations_delta", "citation": {"url": "u"}}
    start = {"type": "content_block_start", "content_block": text("")}
    events = [
        {"type": "message_start", "message": message()},
        {**start, "index": 0},
        {**start, "index": 1},
        {**delta, "index": 1, "delta": {"type": "text_delta", "text": "b"}},
        {**delta, "index": 0, "delta": {"type": "text_delta", "text": "a"}},
        {**delta, "index": 0, "delta": cited},
        {**delta, "index": 0, "delta": {"type": "smell_delta"}},
        {"type": "odd"},
        {"type": "message_stop"},
    ]
    result = talk(as_events(*events), lines="ab", streaming=True)
    assert result.replies == ["ab", "ab"]
    sent = result.requests[1].body["messages"][1]["content"]
    assert sent == [{**text("a"), "citations": [{"url": "u"}]}, text("b")]
    assert result.notes == [
        "agent 'agent': 2 deltas of unknown type 'smell_delta' were ignored",
        "agent 'agent': 2 events of unknown type 'odd' were ignored",
    ]


PAIR = streamed(use("web_search", "s1", "server_tool_use"), result_of([], "s1", "web_search_tool_result"))[
    :-2
]


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        (PAIR, "the agent's stream was cut: it ended without message_stop"),
        ([*PAIR, "[DONE]"], "the agent's stream was cut"),
        ([*PAIR, {"type": "error", "error": {"type": "api_error", "message": "Boom."}}], "Boom. (api_error)"),
        ([*PAIR, {"error": {"message": "Boom."}}], "answered with an error: Boom."),
        ([*PAIR, "{nonsense"], "is not JSON"),
        ([*PAIR, {"type": "content_block_start", "index": 5}], "has no `content_block`"),
        ([*PAIR, {"type": "content_block_delta", "delta": {}}], "has no `index`"),
    ],
    ids=["cut", "done", "error", "untyped", "json", "block", "index"],
)
def test_broken_streams(events: list[Any], problem: str) -> None:
    """A stream without its end, or with an error, is the agent's error; its calls are on record."""
    result = talk(as_events(*events), streaming=True)
    assert problem in result.problem
    assert result.calls == [("web_search", {}, [], "agent")]


def test_streamed_arguments_that_are_not_json() -> None:
    """They are refused with an error result, and the agent is called again."""
    events = streamed(use(amount=5))
    events[-4] = {**events[-4], "delta": {"type": "input_json_delta", "partial_json": "!"}}
    result = talk(as_events(*events), message(text("Hm.")), tools={"pay": "never"}, streaming=True)
    ((_, args, answer, _),) = result.calls
    assert args == '{"amount": 5!'
    assert "not valid JSON" in answer["error"]
    assert result.replies == ["Hm."]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"messages": [{"role": "system", "content": "x"}]}, "what the system says goes into body.system"),
        ({"messages": "x"}, "must be a list of"),
        ({"system": "{{masage}}"}, "did you mean `message`"),
    ],
    ids=["system", "text", "placeholder"],
)
def test_wrong_settings(body: dict[str, Any], says: str) -> None:
    """An invalid value is refused with the valid ones."""
    with pytest.raises(ValueError, match=says):
        Config.model_validate({"agent": {**AGENT, "endpoint": "http://h", "body": body}})


# Probe


@pytest.mark.parametrize(
    ("path", "answers", "found"),
    [
        ("/x", [as_json({"type": "error", "error": {"type": "a", "message": "b"}}, "400 No")], "/x"),
        ("/", [http(), as_json({"type": "error", "error": {"type": "a", "message": "b"}})], "/v1/messages"),
        ("/x", [as_json({"error": {"type": "a", "message": "b"}}, "400 No")], None),
        ("/x", [http(b"<html>")], None),
    ],
    ids=["error", "server", "other", "page"],
)
def test_the_probe(path: str, answers: list[bytes], found: str | None) -> None:
    """An endpoint whose errors have Anthropic's form speaks it; others do not."""
    settings = found and {"type": "anthropic_messages", "endpoint": found}
    no_document = http(b"", "404 No")
    assert looked("anthropic_messages", path, no_document, *answers) == settings


# Many at once


def shop(request: dict[str, Any]) -> dict[str, Any]:
    """The answers of a stateless agent: it calls `pay` with the user's first text."""
    given = request["messages"]
    last = given[-1]["content"]
    if isinstance(last, str):
        return message(use(who=given[0]["content"]))
    return message(text(f"{last[0]['content']} {len(given)}"))


def test_fifty_conversations_at_once() -> None:
    """Each conversation has its own calls, history and mocks, in an application in this process."""
    names = [f"user {i}" for i in range(50)]
    made = [
        scenario(name, turns=[name, "Again."], tools={"pay": lambda who: f"paid by {who}"}) for name in names
    ]
    result = run_scenarios(made, agent={**AGENT, "app": Gathering(50, shop)}, concurrency=50)
    for each in result.scenarios:
        (one,) = each.conversations
        assert [turn.agent_message for turn in one.conversation.turns] == [
            f"paid by {each.name} 3",
            f"paid by {each.name} 7",
        ]
        assert [c.args for c in one.conversation.tool_calls] == [{"who": each.name}] * 2
