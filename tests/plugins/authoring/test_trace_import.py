"""`agentest import` of traces: every form gives the same session, without personal data."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from time import process_time
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from model_server import ModelServer, completion, model_keys

from agentest.plugin import Plugin, PluginRegistry
from agentest.plugins.authoring.commands.row_import import import_
from agentest.plugins.authoring.personal_data import PersonalData
from agentest.plugins.authoring.trace_import import TraceRequest, import_traces
from agentest.plugins.authoring.trace_messages import Item
from agentest.plugins.authoring.trace_sessions import ReadTraces, joined, read_traces
from agentest.scenarios.discovery import discover_file
from agentest.support.errors import UsageError
from agentest.support.importing import Imports

ASKED, FOUND, CANCEL, DONE = "Where is order 17?", "It is shipped.", "Cancel it.", "Cancelled."
CALLS = (
    ("c1", "get_order", {"id": "17"}, {"status": "shipped"}),
    ("c2", "cancel_order", {"id": "17"}, {"ok": True}),
)
"""The session that every form below records: two questions, a read and a write."""


def openai_messages() -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You help."}]
    for (id, name, args, result), user, agent in zip(CALLS, (ASKED, CANCEL), (FOUND, DONE), strict=True):
        call = {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(args)}}
        messages += [
            {"role": "user", "content": user},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": id, "content": json.dumps(result)},
            {"role": "assistant", "content": agent},
        ]
    return messages


def exchanges() -> list[tuple[list[dict[str, Any]], dict[str, Any]]]:
    """The model's requests and responses."""
    messages = openai_messages()
    return [(messages[:at], each) for at, each in enumerate(messages) if each["role"] == "assistant"]


def gen_ai(message: dict[str, Any]) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    if message["role"] == "tool":
        result = json.loads(message["content"])
        return {
            "role": "tool",
            "parts": [{"type": "tool_call_response", "id": message["tool_call_id"], "response": result}],
        }
    if message["content"]:
        parts.append({"type": "text", "content": message["content"]})
    for call in message.get("tool_calls", ()):
        made = call["function"]
        arguments = json.loads(made["arguments"])
        parts.append({"type": "tool_call", "id": call["id"], "name": made["name"], "arguments": arguments})
    return {"role": message["role"], "parts": parts}


def otlp() -> str:
    spans = []
    for at, (received, answered) in enumerate(exchanges()):
        values = {
            "gen_ai.conversation.id": "s-1",
            "gen_ai.input.messages": json.dumps([*map(gen_ai, received)]),
            "gen_ai.output.messages": json.dumps([gen_ai(answered)]),
        }
        attributes = [{"key": key, "value": {"stringValue": value}} for key, value in values.items()]
        spans.append(
            {"traceId": f"t{at}", "name": "chat", "startTimeUnixNano": str(at), "attributes": attributes}
        )
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": list(reversed(spans))}]}]})


def langfuse() -> str:
    rows = [
        {"type": "GENERATION", "startTime": f"2026-01-0{at + 1}", "input": received, "output": answered}
        for at, (received, answered) in enumerate(exchanges())
    ]
    return json.dumps({"data": [{"id": "t", "sessionId": "s-1", "observations": rows}]})


def langchain(message: dict[str, Any]) -> dict[str, Any]:
    kind = {"system": "System", "user": "Human", "assistant": "AI", "tool": "Tool"}[message["role"]]
    fields: dict[str, Any] = {"content": message["content"] or ""}
    if message["role"] == "tool":
        fields["tool_call_id"] = message["tool_call_id"]
    fields["tool_calls"] = [
        {
            "id": call["id"],
            "name": call["function"]["name"],
            "args": json.loads(call["function"]["arguments"]),
        }
        for call in message.get("tool_calls", ())
    ]
    return {"lc": 1, "type": "constructor", "id": ["langchain", f"{kind}Message"], "kwargs": fields}


def langsmith() -> str:
    rows = [
        {
            "id": str(at),
            "run_type": "llm",
            "inputs": {"messages": [[*map(langchain, received)]]},
            "outputs": {"generations": [[{"text": "", "message": langchain(answered)}]]},
            "extra": {"metadata": {"thread_id": "s-1"}},
        }
        for at, (received, answered) in enumerate(exchanges())
    ]
    return "\n".join(map(json.dumps, rows))


def langsmith_threads() -> str:
    """Only the outermost run of each trace names the thread."""
    runs = [
        {
            "id": f"chain {at}",
            "trace_id": f"t{at}",
            "run_type": "chain",
            "extra": {"metadata": {"thread_id": "s-1"}},
            "child_runs": [{**json.loads(row), "trace_id": f"t{at}", "extra": {}}],
        }
        for at, row in enumerate(langsmith().splitlines())
    ]
    return "\n".join(map(json.dumps, runs))


def phoenix() -> str:
    def flat(prefix: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for at, message in enumerate(messages):
            for key in ("role", "content", "tool_call_id"):
                if message.get(key):
                    found[f"{prefix}.{at}.message.{key}"] = message[key]
            for n, call in enumerate(message.get("tool_calls", ())):
                start = f"{prefix}.{at}.message.tool_calls.{n}.tool_call"
                found[f"{start}.id"] = call["id"]
                found |= {f"{start}.function.{key}": value for key, value in call["function"].items()}
        return found

    rows = []
    for received, answered in exchanges():
        attributes = {
            "session.id": "s-1",
            **flat("llm.input_messages", received),
            **flat("llm.output_messages", [answered]),
        }
        rows.append({"span_kind": "LLM", "context": {"trace_id": "t"}, "attributes": attributes})
    return json.dumps(rows)


def openai() -> str:
    rows = [
        {
            "request": {"model": "m", "messages": received},
            "response": {"id": str(at), "choices": [{"message": answered}]},
        }
        for at, (received, answered) in enumerate(exchanges())
    ]
    return "\n".join(map(json.dumps, rows))


def responses() -> str:
    """The API that stores the conversation: each request has only new items."""
    rows, earlier, received = [], None, list[Any]()
    for at, message in enumerate(openai_messages()):
        if message["role"] == "assistant":
            output: list[dict[str, Any]] = [
                {"type": "function_call", "call_id": call["id"], **call["function"]}
                for call in message.get("tool_calls", ())
            ]
            if message["content"]:
                text = [{"type": "output_text", "text": message["content"]}]
                output.append({"type": "message", "role": "assistant", "content": text})
            request = {"input": received, "previous_response_id": earlier}
            rows.append({"request": request, "response": {"id": f"r{at}", "output": output}})
            earlier, received = f"r{at}", []
        elif message["role"] == "tool":
            result = {"call_id": message["tool_call_id"], "output": message["content"]}
            received.append({"type": "function_call_output", **result})
        else:
            received.append(message)
    return "\n".join(map(json.dumps, rows))


def adk() -> str:
    events: list[dict[str, Any]] = []
    for (id, name, args, result), user, agent in zip(CALLS, (ASKED, CANCEL), (FOUND, DONE), strict=True):
        called = {"functionCall": {"id": id, "name": name, "args": args}}
        answered = {"functionResponse": {"id": id, "name": name, "response": result}}
        events += [
            {"author": "user", "content": {"role": "user", "parts": [{"text": user}]}},
            {"author": "shop", "content": {"role": "model", "parts": [called]}},
            {"author": "shop", "content": {"role": "user", "parts": [answered]}},
            {"author": "shop", "content": {"role": "model", "parts": [{"text": agent}]}},
        ]
    return json.dumps({"id": "s-1", "appName": "shop", "userId": "u", "events": events})


def atif(names_calls: bool = True) -> str:
    steps: list[dict[str, Any]] = [{"step_id": 1, "source": "system", "message": "You help."}]
    for (id, name, args, result), user, agent in zip(CALLS, (ASKED, CANCEL), (FOUND, DONE), strict=True):
        call = {"tool_call_id": id, "function_name": name, "arguments": args}
        done = {"source_call_id": id if names_calls else None, "content": json.dumps(result)}
        steps += [
            {"source": "user", "message": user},
            {"source": "agent", "message": "", "tool_calls": [call], "observation": {"results": [done]}},
            {"source": "agent", "message": agent, "reasoning_content": "Hm."},
        ]
    made = {"schema_version": "ATIF-v1.6", "session_id": "s-1", "agent": {"name": "a", "version": "1"}}
    return json.dumps({**made, "steps": steps}, indent=2)


def atif_without_ids() -> str:
    return atif(names_calls=False)


def jsonl() -> str:
    return json.dumps({"session_id": "s-1", "messages": openai_messages()})


def message_lines() -> str:
    return "\n".join(json.dumps({"session_id": "s-1", **each}) for each in openai_messages())


def imported(folder: Path, content: str, **more: Any) -> tuple[list[Any], Any]:
    path = folder / "traces.json"
    path.write_text(content)
    result = import_traces(TraceRequest(paths=(path,), output=folder / "out.sim.py", force=True, **more))
    return list(discover_file(result.files[0], Imports()).scenarios), result


def conversation_of_a_run() -> dict[str, Any]:
    turns = [
        {
            "turnIndex": at,
            "userMessage": user,
            "agentMessage": agent,
            "toolCalls": [{"name": name, "args": args, "result": result, "mocked": True, "turnIndex": at}],
        }
        for at, ((_, name, args, result), user, agent) in enumerate(
            zip(CALLS, (ASKED, CANCEL), (FOUND, DONE), strict=True)
        )
    ]
    return {"conversationId": "s-1", "turns": turns, "passed": True, "error": None}


def results() -> str:
    scenario = {"name": "orders", "agent": "shop", "conversations": [conversation_of_a_run()]}
    return json.dumps({"schemaVersion": 3, "summary": {}, "scenarios": [scenario]}, indent=1)


def journal() -> str:
    lines = [
        {"type": "run", "schemaVersion": 3, "planned": []},
        {"type": "conversation", "scenario": "orders", "number": 1, "conversation": conversation_of_a_run()},
        {"type": "scenario", "scenario": {"name": "orders"}},
    ]
    return "\n".join(map(json.dumps, lines))


FORMS = [
    otlp,
    langfuse,
    langsmith,
    langsmith_threads,
    phoenix,
    openai,
    responses,
    adk,
    atif,
    atif_without_ids,
    jsonl,
    message_lines,
    results,
    journal,
]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_session_with_mocks_and_its_writes(
    form: Callable[[], str], tmp_path: Path
) -> None:
    """The users' texts become the script, results the mocks, and the write is expected."""
    (scenario,), result = imported(tmp_path, form())
    assert result.is_valid
    assert [turn.user_message for turn in scenario.turns] == [ASKED, CANCEL]
    assert {name: scenario.tools[name] for name in sorted(scenario.tools)} == {
        name: answer for _, name, _, answer in reversed(CALLS)
    }
    (trajectory,) = scenario.trajectory
    assert trajectory.match_mode == "contains"
    assert [(each.name, each.args) for each in trajectory.expected] == [("cancel_order", {"id": "17"})]


EXPORTS = Path(__file__).parent / "exports"
"""The same session, recorded by the tools themselves against a model on loopback."""


@pytest.mark.parametrize(
    "names",
    [
        ("otlp_logs", "otlp_spans"),
        *(("phoenix_spans",), ("langsmith_runs",), ("adk_session",), ("langfuse_ai_sdk",)),
        ("smolagents_spans",),
    ],
    ids=lambda names: names[0],
)
def test_real_exports_give_the_same_session(names: Sequence[str], tmp_path: Path) -> None:
    """OpenTelemetry's instrumentation writes messages to logs; the span that names the session comes last.

    The AI SDK's spans have calls of their own form, and one span around each request. Agents of smolagents
    ask their model for plans, which no user wrote.
    """
    paths = tuple(EXPORTS / f"{name}.json" for name in names)
    result = import_traces(TraceRequest(paths=paths, output=tmp_path / "out.sim.py"))
    (scenario,) = discover_file(result.files[0], Imports()).scenarios
    assert "session s-1)" in scenario.name
    assert [turn.user_message for turn in scenario.turns] == [ASKED, CANCEL]
    assert scenario.tools == {name: answer for _, name, _, answer in CALLS}
    assert "cancel_order" in str(scenario.trajectory)


def test_spans_around_requests_count_only_where_there_are_no_requests(tmp_path: Path) -> None:
    """Some exports have the AI SDK's outer span as a generation, too, and some have nothing else."""
    traces = json.loads((EXPORTS / "langfuse_ai_sdk.json").read_text())
    spans = [row for each in traces for row in each["observations"] if row["type"] == "SPAN"]
    for row in spans:
        row["type"] = "GENERATION"
    rows = [row | {"sessionId": "s-1"} for each in traces for row in each["observations"]]
    session = {"id": "s-1", "traces": [each["trace"] for each in traces], "comments": []}
    for content in (traces, rows, session):
        (scenario,), _ = imported(tmp_path, json.dumps(content))
        assert [turn.user_message for turn in scenario.turns] == [ASKED, CANCEL]
        assert {*scenario.tools} >= {"get_order"}
        assert "session s-1)" in scenario.name


def test_spans_of_the_ai_sdk_are_read_without_langfuse(tmp_path: Path) -> None:
    """Their attributes have the messages in a form of their own."""
    spans = []
    for at, (received, answered) in enumerate(exchanges()):
        calls = [
            {
                "toolCallId": each["id"],
                "toolName": each["function"]["name"],
                "input": each["function"]["arguments"],
            }
            for each in answered.get("tool_calls", ())
        ]
        values = {"ai.prompt.messages": json.dumps(received), "ai.telemetry.metadata.sessionId": "s-1"}
        values |= {"ai.response.toolCalls": json.dumps(calls)} if calls else {}
        values |= {"ai.response.text": answered["content"] or "", "gen_ai.request.model": "m"}
        attributes = [{"key": key, "value": {"stringValue": value}} for key, value in values.items()]
        spans.append({"traceId": "t", "startTimeUnixNano": str(at), "attributes": attributes})
    (scenario,), _ = imported(tmp_path, json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}))
    assert [turn.user_message for turn in scenario.turns] == [ASKED, CANCEL]
    assert {*scenario.tools} == {"get_order", "cancel_order"}


def test_what_a_scenario_cannot_have_is_reported(tmp_path: Path) -> None:
    """A greeting, a picture, an unanswered message, a stray result; and what is read is not expected."""
    messages = [
        {"role": "assistant", "content": "Welcome!"},
        {"role": "critic", "content": "Be brief."},
        {
            "role": "user",
            "content": [{"type": "text", "text": ASKED}, {"type": "image_url", "image_url": {}}],
        },
        *openai_messages()[2:5],
        {"role": "tool", "tool_call_id": "lost", "name": "track", "content": "{}"},
        {"role": "user", "content": "Hello?"},
    ]
    (scenario,), result = imported(tmp_path, json.dumps({"id": "s", "messages": messages}))
    assert [turn.user_message for turn in scenario.turns] == [ASKED, "Hello?"]
    assert not scenario.trajectory
    for note in (
        "1 × step of the agent before the user's first message",
        "1 × part of a user's message that is not text (image_url)",
        "1 × message of unknown role (critic)",
        "1 × result of track without its call",
        "1 session ended without a reply; the last message is sent, too",
    ):
        assert any(note in each for each in result.notes), (note, result.notes)


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("with_observations", [False, True])
def test_traces_of_one_turn_each_are_joined_in_the_order_of_time(
    newest_first: bool, with_observations: bool, tmp_path: Path
) -> None:
    """Agents that store the conversation send each message alone; exports may have the newest first."""
    rows = []
    for at, (user, agent) in enumerate(((ASKED, FOUND), (CANCEL, DONE), ("Thanks.", "Bye."))):
        trace = {"id": f"t{at}", "sessionId": "s-1", "timestamp": f"2026-01-0{at + 1}", "metadata": {}}
        talk = {"input": [{"role": "user", "content": user}], "output": agent}
        observed = {"type": "GENERATION", "startTime": trace["timestamp"], **talk}
        rows.append({**trace, "observations": [observed]} if with_observations else {**trace, **talk})
    ordered = list(reversed(rows)) if newest_first else rows
    (scenario,), _ = imported(tmp_path, "\n".join(map(json.dumps, ordered)))
    assert [turn.user_message for turn in scenario.turns] == [ASKED, CANCEL, "Thanks."]


def test_spans_without_messages_are_explained(tmp_path: Path) -> None:
    """The instrumentation records messages only if configured."""
    with pytest.raises(UsageError, match="4 model requests had no messages"):
        import_traces(TraceRequest(paths=(EXPORTS / "otlp_spans.json",), output=tmp_path / "out.sim.py"))


def test_sessions_that_show_nothing_new_are_left_out(tmp_path: Path) -> None:
    """Thirty refunds, one of which fails, give two scenarios, and the failing one expects no call."""
    lines = []
    for n in range(30):
        result = {"error": "closed"} if n == 21 else {"ok": True}
        call = {"id": "a", "function": {"name": "refund", "arguments": json.dumps({"order": n})}}
        messages = [
            {"role": "user", "content": f"Refund order {n}"},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "a", "content": json.dumps(result)},
            {"role": "assistant", "content": "Well."},
        ]
        lines.append(json.dumps({"id": f"s{n}", "messages": messages}))
    scenarios, result = imported(tmp_path, "\n".join(lines))
    assert [bool(each.trajectory) for each in scenarios] == [True, False]
    assert "session s21" in scenarios[1].name
    assert result.summary == "2 scenarios from 30 sessions"


def test_personal_data_gets_stand_ins_that_still_match(tmp_path: Path) -> None:
    """User messages and tool results have the same stand-ins; no original text remains."""
    private = {
        "customer_name": "Anna Schmidt",
        "email": "anna.schmidt@gmail.com",
        "iban": "DE89 3704 0044 0532 0130 00",
        "card": "4111 1111 1111 1111",
        "ip": "203.0.113.77",
        "phone": "+49 170 1234567",
    }
    said = (
        "I am Anna Schmidt: " + ", ".join(private.values()) + ". Key sk-proj-abcdefgh12345678. Ticket T-77."
    )
    call = {
        "id": "a",
        "function": {"name": "find_customer", "arguments": json.dumps({"email": private["email"]})},
    }
    messages = [
        {"role": "user", "content": said},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": json.dumps(private)},
        {"role": "assistant", "content": "Hello Anna!"},
    ]
    imported(tmp_path, json.dumps({"id": "s", "messages": messages}), redact={"ticket": r"T-\d+"})
    written = (tmp_path / "out.sim.py").read_text()
    for text in (*private.values(), "Anna", "sk-proj", "T-77"):
        assert text not in written
    (stand_in,) = {*re.findall(r"person\d+@example\.com", written)}
    assert written.count(stand_in) >= 3
    assert re.search(r"DE\d\d \d{4} \d{4} \d{4} \d{4} \d\d", written)


_SAID = [
    ("My password is Tulpe2024!, CVV 123, born on 12 March 1985, NI number AB 12 34 56 C, 22 baker street.",
     ["Tulpe2024", "123", "12 March 1985", "AB 12 34 56 C", "22 baker"]),
    ("My Aadhaar is 2345 6789 0123, PIN: 4711, passport number C01X00T47, I live at 12, MG Road.",
     ["2345 6789", "4711", "C01X00T47", "MG Road"]),
    ("Mein Passwort ist Geheim77, geboren am 12.03.1985, Kennzeichen B-MA 1234, Hauptstraße 12",
     ["Geheim77", "12.03.1985", "B-MA 1234", "Hauptstraße"]),
    ("Mot de passe : Soleil#9, née le 12/03/1985, 12 rue de la Paix, plaque AB-123-CD",
     ["Soleil#9", "12/03/1985", "la Paix", "AB-123-CD"]),
    ("Mi contraseña es Luna2020, nacido el 12 de marzo de 1985, DNI 12345678Z, placa 1234 BCD, Calle Mayor 5",
     ["Luna2020", "12 de marzo", "12345678Z", "1234 BCD", "Mayor"]),
    ("La mia password è Sole2020, nata il 12/03/1985, codice fiscale RSSMRA85T10A562S, Via Roma 12",
     ["Sole2020", "12/03/1985", "RSSMRA85T10A562S", "Roma"]),
    ("Moje hasło to Kot2024x, PESEL 85031212345, nr rejestracyjny WA 12345, ul. Długa 12/4, ur. 12.03.1985",
     ["Kot2024x", "85031212345", "WA 12345", "Długa", "12.03.1985"]),
    ("Minha senha é Sol2024!, nascido em 12/03/1985, CPF 123.456.789-09, Rua das Flores, 123",
     ["Sol2024", "12/03/1985", "123.456.789-09", "Flores"]),
    ("Мой пароль: Солнце24, родился 12.03.1985, ул. Ленина, 12, паспорт 4509 123456",
     ["Солнце24", "12.03.1985", "Ленина", "4509 123456"]),
    ("我的密码是Mima2024，出生日期1985年3月12日，身份证号 110101198503121234，住在南京路100号",
     ["Mima2024", "1985年3月12日", "110101198503121234", "南京路"]),
]  # fmt: skip


@pytest.mark.parametrize(
    "form", [otlp, langfuse, langsmith, phoenix, openai, responses, adk, atif, jsonl, journal]
)
@pytest.mark.parametrize(("said", "values"), _SAID)
def test_nothing_personal_is_written_in_any_language_and_form(
    said: str, values: list[str], form: Callable[[], str], tmp_path: Path
) -> None:
    """Not in the name of the scenario either, which begins with the user's first message."""
    for output in ("out.sim.py", "out.sim.yaml"):
        (tmp_path / "traces.json").write_text(form().replace(ASKED, said))
        result = import_traces(TraceRequest(paths=(tmp_path / "traces.json",), output=tmp_path / output))
        written = (tmp_path / output).read_text() + "\n".join(result.notes)
        assert result.is_valid
        assert not [value for value in values if value in written]


_KEYS = {
    **{
        "password": "hunter2hunter",
        "Passwort": "Geheim77",
        "contraseña": "Luna",
        "customerPin": "4711",
        "cvc": 321,
    },
    **{"dateOfBirth": "1985-03-12", "Geburtsdatum": "12.03.1985", "fechaNacimiento": "12/03/1985"},
    **{"pesel": "85031212340", "aadhaar_number": "234567890123", "dni": "12345678A", "niNumber": "AB123456C"},
    **{
        "passport_no": "C01X00T47",
        "licensePlate": "KR 5XY12",
        "straße": "Am Markt",
        "ulica": "Długa",
        "姓名": "王小明",
    },
}


@pytest.mark.parametrize(("key", "value"), _KEYS.items())
def test_a_key_says_what_its_value_is_and_equal_values_get_equal_stand_ins(key: str, value: Any) -> None:
    """Its value is found in the texts of the session, too."""
    personal = PersonalData()
    personal.learn({key: value})
    hidden = personal.hidden({key: value, "note": f"it is {value}!"})
    assert str(value) not in str(hidden)
    assert hidden["note"] == f"it is {hidden[key]}!"


def test_a_date_of_birth_is_found_in_other_forms_and_in_answers() -> None:
    """The same numbers get the same stand-ins. A date of another year stays."""
    personal = PersonalData()
    personal.learn({"dob": "1985-03-12"})
    year, month, day = personal.text("1985-03-12").split("-")
    shown = personal.text("12/03/1985, 12.3.85, March 12, 1985, 2026-03-12")
    assert shown == f"{day}/{month}/{year}, {day}.{int(month)}.{year[2:]}, March {day}, {year}, 2026-03-12"
    personal.learn_answer("And your passport number and password?", "Tulpe")
    personal.learn_answer("Your passport number?", "it's C01X00T47, thanks")
    assert not re.search("Tulpe|C01X", personal.text("Tulpe or C01X00T47"))


@pytest.mark.parametrize(
    "text",
    ["Your password is wrong", "I forgot my password, please reset it", "The boarding pass is AB12",
     "PIN was reset", "Order 12345678901 is late", "born to run 12", "a 12 hours road trip"],
)  # fmt: skip
def test_words_about_personal_data_stay(text: str) -> None:
    """They name no value; the number of an order is not a PESEL unless its check digit fits."""
    personal = PersonalData()
    personal.learn(text)
    assert personal.text(text) == text


def test_what_looks_personal_and_was_kept_is_listed(tmp_path: Path) -> None:
    """The user decides; what was replaced, and numbers of orders by their keys, are not listed."""
    said = "Ask for Jane Roe, 12/03/1971, file 7712345678. My PIN: 4711."
    result = imported(tmp_path, jsonl().replace(ASKED, said))[1]
    (note,) = [each for each in result.notes if "perhaps personal" in each]
    assert all(each in note for each in ("'Jane Roe'", "'12/03/1971'", "'7712345678'", "--redact"))


PEOPLE = (
    *("Anna Schmidt", "José García-López", "Mary-Jane O'Brien", "李小龙", "王芳", "Иван Петров", "محمد علي"),
    *("Björn Åkesson", "Will Rose", "Nguyễn Văn An", "Ngozi Okonkwo", "Jean-Luc D’Arcy"),
)


@pytest.mark.parametrize("name", PEOPLE)
def test_a_name_that_a_tool_returned_is_hidden_wherever_it_occurs(name: str) -> None:
    """In addresses of pages, as a possessive, in other cases, dashes and orders, and within JSON."""
    personal = PersonalData()
    personal.learn({"data": [{"customer": {"name": other}} for other in PEOPLE]})
    first, *_, last = (name, name) if " " not in name else name.split()
    spellings = [
        *(name, f"{name}'s order", f"/users/{name.lower().replace(' ', '-')}/x", name.upper(), name.lower()),
        *(f"?n={name.replace(' ', '%20')}", f"@{name.replace(' ', '_')}", f"user_{name.replace(' ', '')}"),
        *(f"{last}, {first}", f"Dear {last}!", name.replace("-", "\u2011"), json.dumps({"z": [name]})),
    ]
    shown = [json.loads(personal.text(json.dumps(each, ensure_ascii=False))) for each in spellings]
    for text in shown[:-1]:
        assert not any(part.lower() in text.lower().split("%20")[0] for part in name.split() if len(part) > 2)
    assert len({*map(personal.text, PEOPLE)}) == len(PEOPLE)
    assert name not in str(personal.hidden({"by": {name: {"orders": 1}}}))


@pytest.mark.slow
def test_a_list_of_thousands_of_names_takes_linear_time() -> None:
    """It took 31 s of processor time once."""
    names = [f"{a}{b}{c}o {c}{b}{a}son" for a in _SYLLABLES for b in _SYLLABLES for c in _SYLLABLES]
    personal = PersonalData()
    personal.learn([{"customer_name": name} for name in names])
    began = process_time()
    hidden = personal.text("; ".join(names))
    assert process_time() - began < 5
    assert len({*hidden.split("; ")}) == len(names) == 4096
    assert not {*re.findall(r"\w+", hidden.lower())} & {part for name in names for part in name.split()}


_SYLLABLES = [a + b for a in "bdgklmnr" for b in "ae"]
_NUMBERS = [
    *("+1 415 555 2671", "(415) 555-2671", "415.555.2671", "+44 (0)20 7946 0958", "07700 900123"),
    *(
        "030/1234567",
        "0049 170 1234567",
        "01 23 45 67 89",
        "01.23.45.67.89",
        "+91 98765 43210",
        "03-1234-5678",
    ),
    *("DE89 3704 0044 0532 0130 00", "de89370400440532013000", "FR14 2004 1010 0505 0001 3M02 606"),
    *(
        "4111 1111 1111 1111",
        "078-05-1120",
        "2001:db8:85a3::8a2e:370:7334",
        "12 Main Street",
        "Hauptstraße 5",
    ),
]
_KEPT = [
    *(
        "2026-01-05",
        "05.01.2026",
        "01/02/2026",
        "2026-01-05T10:00:00Z",
        "12:30:45",
        "$1,299.00",
        "1.299,00 €",
    ),
    *("order 1042", "ORD-2024-00123", "#0012345678", "AB12CDEF3456", "v1.2.3", "1700000000000", "123-456"),
    *("1Z999AA10123456784", "10:00-12:00", "Hi there! I'm Very happy", "This is the Premium Plan"),
]


@pytest.mark.parametrize("private", _NUMBERS)
def test_numbers_and_addresses_in_messages_are_hidden(private: str) -> None:
    """This covers five countries, with and without spaces; the surrounding text stays."""
    hidden = PersonalData().text(f"It is {private}, thanks.")
    assert private not in hidden
    assert hidden.startswith("It is ")
    assert hidden.endswith(", thanks.")


@pytest.mark.parametrize("text", _KEPT)
def test_dates_prices_and_order_numbers_stay(text: str) -> None:
    """They are what a test is about."""
    personal = PersonalData()
    personal.learn(text)
    assert personal.text(text) == text


@pytest.mark.parametrize(
    "said",
    [
        "my name is Peter Novak and",
        "I'm Peter Novak.",
        "This is Peter Novak",
        "Hello Peter!",
        "Regards,\nPeter",
    ],
)
def test_a_user_who_introduces_themselves_gets_another_name(said: str) -> None:
    """No tool returned the name."""
    personal = PersonalData()
    personal.learn(said)
    assert "Peter" not in personal.text(said)


@pytest.mark.parametrize("said", ["Peter Novak", "peter novak.", "It's Peter Novak, order 5", "sure, Novak"])
def test_the_answer_to_a_question_about_a_name_is_a_name(said: str) -> None:
    """The answer about a product's name is not."""
    asked, other = PersonalData(), PersonalData()
    asked.learn_answer("May I have your full name, please?", said)
    assert "novak" not in asked.text(f"{said} Novak").lower()
    other.learn_answer("What is the name of the product?", said)
    assert other.text(said) == said
    asked.learn_answer("What is the name on the booking?", "I do not know")
    assert asked.text("I do not know") == "I do not know"


def test_an_order_number_that_looks_like_a_phone_number_stays() -> None:
    """The key decides what a number is, also for numbers that are not text."""
    personal = PersonalData()
    known = {"orderId": "0012345678", "phoneNumber": 4155552671, "total": 129900}
    personal.learn(known)
    hidden = personal.hidden(known)
    assert (hidden["orderId"], hidden["total"]) == ("0012345678", 129900)
    assert hidden["phoneNumber"] != 4155552671
    assert personal.text("4155552671") == str(hidden["phoneNumber"])


@given(st.text(max_size=200))
def test_texts_without_personal_data_stay_and_equal_ones_stay_equal(text: str) -> None:
    """Hiding twice changes nothing more."""
    personal = PersonalData()
    hidden = personal.text(text)
    assert personal.text(text) == hidden
    if not any(each.isdecimal() for each in text) and "@" not in text and len(text) < 8:
        assert hidden == text


_KINDS = st.sampled_from(["user", "assistant"])
_ITEMS = st.lists(st.tuples(_KINDS, st.sampled_from("abcd")).map(lambda pair: Item(*pair)), max_size=8)


@given(_ITEMS, st.integers(0, 8))
def test_a_history_is_joined_once(items: list[Item], cut: int) -> None:
    """Requests that repeat the conversation add only what is new."""
    assert joined(items[:cut], items) == items
    assert joined(items, items) == items


def test_what_another_agent_of_the_conversation_has_received_is_not_doubled() -> None:
    """It lacks answers of the first agent, and has a message more often than that."""
    first = [Item("user", "Hi"), Item("assistant", "Yes?"), Item("user", "More"), Item("assistant", "One")]
    more = [Item("user", "More"), Item("assistant", "Two")]
    assert joined(first, [first[0], first[2], *more]) == [*first, *more]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[{"colour": 1, "size": 2}]', "unknown form: 1 with colour, size (traces.json, record 1)"),
        ("{broken", "is not JSON"),
        (
            '{"messages": [{"role": "assistant", "content": "Hi"}]}',
            "no session with a user's message was found",
        ),
        (" \n", "traces.json is empty"),
    ],
)
def test_other_files_are_explained(content: str, message: str, tmp_path: Path) -> None:
    """The error says what was recognized and what was not, and nothing is written."""
    with pytest.raises(UsageError, match=re.escape(message)):
        imported(tmp_path, content)
    assert not (tmp_path / "out.sim.py").exists()


def test_broken_lines_are_counted_and_the_rest_is_read(tmp_path: Path) -> None:
    """The note names the first broken lines."""
    (_,), result = imported(tmp_path, "{half\n" + jsonl())
    assert any("left out 1 broken line" in note and "traces.json:1" in note for note in result.notes)


def test_the_command_tells_traces_from_rows(tmp_path: Path) -> None:
    """The same command imports rows; options of rows are refused for traces."""
    path = tmp_path / "log.jsonl"
    path.write_text(jsonl())
    done = CliRunner().invoke(import_, [str(path)], standalone_mode=False)
    assert "1 scenario from 1 session" in done.output
    refused = CliRunner().invoke(import_, [str(path), "--force", "--name", "x"], standalone_mode=False)
    assert "recorded sessions" in refused.output + str(refused.exception)


def test_a_stored_run_is_a_source_and_the_configuration_names_more_personal_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of a run is named; the scenarios are written into the user's folder."""
    monkeypatch.chdir(tmp_path)
    run = tmp_path / ".agentest" / "runs" / "r1"
    run.mkdir(parents=True)
    (run / "journal.jsonl").write_text(journal().replace("order 17?", "order 17 of CUST-9?"))
    agent = "agent: {endpoint: 'http://localhost:1/v1/chat/completions'}\n"
    (tmp_path / "agentest.config.yaml").write_text(agent + "redact:\n  customer id: CUST-\\d+\n")
    done = CliRunner().invoke(import_, [str(run)], standalone_mode=False)
    assert "1 scenario from 1 session" in done.output, done.output
    assert "1 customer id" in done.output + done.stderr
    assert "CUST-9" not in (tmp_path / "r1.sim.py").read_text()


def wording(goal: str, *, goal_from: int = 1, fact: str = "order 17", fact_from: int = 1) -> dict[str, Any]:
    def sourced(text: str, *messages: int) -> dict[str, Any]:
        return {"messages": messages, "text": text}

    return {
        "name": "an order is cancelled",
        "goal": sourced(goal, goal_from, 3),
        "profile": sourced("Short sentences", 1),
        "knowledge": [sourced(fact, fact_from)],
        "expected_outcome": sourced("The agent cancelled order 17.", 1, 4),
    }


def import_with_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch, content: str, *answers: Any, output: str = "log.sim.py"
) -> tuple[Any, str, list[dict[str, Any]]]:
    """Return the only scenario, the source and output of the command, and what the model received."""
    monkeypatch.chdir(folder)
    (folder / "log.jsonl").write_text(content)
    with ModelServer(*map(completion, answers)) as model:
        settings = {"agent": {"endpoint": "http://localhost:1/v1/chat/completions"}, **model_keys(model)}
        (folder / "agentest.config.yaml").write_text(json.dumps(settings))
        done = CliRunner().invoke(import_, ["log.jsonl", "--output", output], standalone_mode=False)
    assert done.exception is None, done.exception
    (scenario,) = discover_file(folder / output, Imports()).scenarios
    shown = (folder / output).read_text() + done.output + done.stderr
    return scenario, shown, [received.body for received in model.received]


@pytest.mark.parametrize(
    ("output", "comment"),
    [
        ("log.sim.py", "    # from messages 1, 3\n    goal="),
        ("log.sim.yaml", "  # from messages 1, 3\n  goal:"),
    ],
)
def test_a_model_words_a_simulated_user_and_each_statement_names_its_message(
    output: str, comment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model receives no personal data; mocks and expected calls stay."""
    content = jsonl().replace(ASKED, ASKED + " I'm Peter Novak, peter@novak.example.")
    answer = wording("Cancel order 17")
    scenario, shown, asked = import_with_model(tmp_path, monkeypatch, content, answer, output=output)
    assert (scenario.goal, scenario.knowledge) == ("Cancel order 17", ("order 17",))
    assert scenario.expected_outcome == "The agent cancelled order 17."
    assert not scenario.turns
    assert {*scenario.tools} == {"get_order", "cancel_order"}
    assert [each.name for each in scenario.trajectory[0].expected] == ["cancel_order"]
    assert comment in shown
    assert "1 model call" in shown
    assert "ovak" not in json.dumps(asked) + shown


@pytest.mark.parametrize(
    ("answers", "goal", "calls"),
    [
        ([wording("Cancel", fact="order 99"), wording("Cancel order 17")], "Cancel order 17", 2),
        ([wording("Cancel", goal_from=2), wording("Cancel", fact_from=9)], "", 2),
        (["no JSON"], "", 3),
    ],
    ids=["repaired", "cites wrong messages twice", "never answers in the form"],
)
def test_what_a_model_invents_is_repaired_once_or_the_script_stays(
    answers: list[Any], goal: str, calls: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number that no message has, a goal that the agent brought up, a message that is not there."""
    scenario, shown, asked = import_with_model(tmp_path, monkeypatch, jsonl(), *answers)
    assert scenario.goal == goal
    assert bool(scenario.turns) == (not goal)
    assert ("1 scenario stayed a script" in shown) == (not goal)
    assert len(asked) == calls


def test_scripts_and_offline_call_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A configured model is not contacted."""
    import_with_model(tmp_path, monkeypatch, jsonl(), wording("Cancel"))
    for option in ("--scripts", "--offline"):
        done = CliRunner().invoke(import_, ["log.jsonl", "--force", option], standalone_mode=False)
        assert done.exception is None
        assert "turns=" in (tmp_path / "log.sim.py").read_text()


def test_no_session_of_a_big_file_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "big.jsonl"
    path.write_text("".join(jsonl().replace('"s-1"', f'"s-{at}"') + "\n" for at in range(4_100)))
    assert len(read_traces([path]).sessions) == 4_100


plugin = Plugin("tests")
plugin.format("acme", f"{__name__}:read_acme", of="trace", recognize=f"{__name__}:is_acme")
plugin.format("broken", f"{__name__}:read_broken", of="trace")


def is_acme(record: dict[str, Any]) -> bool:
    return "question" in record


def read_acme(record: dict[str, Any], found: ReadTraces) -> bool:
    session = found.session(record.get("talk") or found.here)
    session.add([Item("user", record["question"])], [Item("assistant", record["answer"])])
    found.forms["acme"] += 1
    return True


def read_broken(record: dict[str, Any], found: ReadTraces) -> bool:
    raise KeyError("answer")


@pytest.fixture
def plugged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add this module to the plug-ins."""
    sources = [lambda: iter([("agentest.plugins.authoring.plugin", "built in"), (__name__, "a test")])]
    monkeypatch.setattr("agentest.plugins.authoring.trace_sessions.PLUGINS", PluginRegistry(sources))


@pytest.mark.usefixtures("plugged")
def test_a_plugin_adds_a_form(tmp_path: Path) -> None:
    """Its records are recognized before ours, which take almost anything with messages."""
    lines = [
        {"talk": "t1", "question": ASKED, "answer": FOUND, "messages": []},
        {"talk": "t1", "question": CANCEL, "answer": DONE},
        {"question": "Hello?", "answer": "Hello."},
    ]
    path = tmp_path / "acme.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    found = read_traces([path])
    assert found.forms == {"acme": 3}
    texts = {id: [item.text for item in each.items] for id, each in found.sessions.items()}
    assert texts == {"t1": [ASKED, FOUND, CANCEL, DONE], "acme.jsonl:3": ["Hello?", "Hello."]}


@pytest.mark.usefixtures("plugged")
def test_a_form_that_fails_names_its_plugin_and_line(tmp_path: Path) -> None:
    """The error shows the plug-in's author the place, and users the plug-in."""
    path = tmp_path / "acme.jsonl"
    path.write_text(json.dumps({"question": "Hello?"}))
    where = rf"\({re.escape(__file__)}:\d+\)"
    with pytest.raises(
        UsageError, match=rf"'broken' of plug-in 'tests' {where} failed: KeyError: .* {where}"
    ):
        read_traces([path], "broken")


@pytest.mark.usefixtures("plugged")
def test_an_unknown_form_is_refused(tmp_path: Path) -> None:
    """`agentest import` has refused it before, with the names of those that there are."""
    with pytest.raises(UsageError, match="there is no trace format 'acmee'"):
        read_traces([tmp_path / "acme.jsonl"], "acmee")


@pytest.mark.slow
def test_many_people_take_linear_time() -> None:
    """Four times as many traces of as many people take about four times as long, not sixteen times."""

    def seconds(people: int) -> float:
        personal, began = PersonalData(), process_time()
        texts = [f"My name is {name(n)} {name(n * 7 + 3)}. It is about my order." for n in range(people)]
        for text in texts:
            personal.learn(text)
        assert all(name(n) not in personal.text(text) for n, text in enumerate(texts))
        return process_time() - began

    def name(number: int) -> str:
        return "".join(chr(97 + number // 26**place % 26) for place in range(4)).capitalize() + "an"

    assert seconds(2400) < 9 * seconds(600)
