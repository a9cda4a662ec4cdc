"""The forms of records that `agentest import` reads: traces, logs and exports of observability tools.

Of each form, one function recognizes a record and another adds it to the sessions (`ReadRecord`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from agentest.agents.json_reader import read_result
from agentest.plugins.authoring.trace_messages import Item, answer_items, items_of, message_items, step_key
from agentest.plugins.authoring.trace_sessions import CONTINUED, AgentRun, ReadTraces, RecordedSession
from agentest.plugins.protocols.model_messages import entry, objects
from agentest.support.text import snake_case


class _OtlpRow(NamedTuple):
    at: int
    trace: str
    attributes: Mapping[str, Any]
    events: Sequence[tuple[str, Mapping[str, Any]]]
    failed: bool = False


def is_otlp(record: Mapping[str, Any]) -> bool:
    """Return True for a request of an exporter, or for a span of the console exporter."""
    if {"resourceSpans", "resource_spans", "resourceLogs", "resource_logs"} & record.keys():
        return True
    keys = map(str, record.get("attributes") or ())
    is_span = isinstance(record.get("context"), Mapping) or "trace_id" in record
    return is_span and any(key.startswith("gen_ai.") for key in keys) and not is_phoenix(record)


def read_otlp(record: Mapping[str, Any], found: ReadTraces) -> bool:
    """Read spans and logs of OpenTelemetry, with the attributes of GenAI or OpenInference."""
    rows = [*_span_rows(record), *_log_rows(record)]
    for row in rows:
        for attributes in (row.attributes, *(event for _name, event in row.events)):
            keys = ("gen_ai.conversation.id", "session.id", "ai.telemetry.metadata.sessionId")
            if named := next((attributes[key] for key in keys if key in attributes), None):
                found.conversations[row.trace] = str(named)
    for row in sorted(rows, key=lambda row: row.at):
        attributes = row.attributes
        session = found.session(found.conversations.get(row.trace, row.trace))
        session.failed |= row.failed
        for start in ("gen_ai.tool.call", "ai.toolCall"):
            if f"{start}.result" in attributes:
                key = attributes.get(f"{start}.id") or attributes.get("gen_ai.tool.name")
                session.add_result(key, attributes[f"{start}.result"])
        received = items_of(attributes.get("gen_ai.input.messages") or attributes.get("ai.prompt.messages"))
        answered = answer_items(attributes.get("gen_ai.output.messages"))
        if "ai.prompt.messages" in attributes and not answered:
            calls = attributes.get("ai.response.toolCalls")
            answered = answer_items(
                {"content": attributes.get("ai.response.text"), "tool_calls": calls, "role": "ai"}
            )
        for name, event in row.events:
            received += items_of(event.get("gen_ai.input.messages"))
            answered += answer_items(event.get("gen_ai.output.messages"))
            (answered if name == "gen_ai.choice" else received).extend(_event_items(name, event))
        if received or answered:
            found.forms["otlp"] += 1
            session.add(received, answered)
        elif any(str(key).startswith(("llm.", "openinference.")) for key in attributes):
            _openinference(attributes, session, found, row.trace, str(row.at))
        else:
            found.silent_spans += "gen_ai.request.model" in attributes
    return bool(rows)


def _span_rows(record: Mapping[str, Any]) -> Iterator[_OtlpRow]:
    spans = [*_nested(record, "resourceSpans", "scopeSpans", "spans")]
    if "attributes" in record:
        spans.append({**record, **entry(record, "context")})
    for span in spans:
        listed = span.get("events") or span.get("span_events") or ()
        events = [(str(each.get("name")), _attributes(each.get("attributes"))) for each in listed]
        attributes = _attributes(span.get("attributes"))
        attributes = {key: value for _, event in events for key, value in event.items()} | attributes
        status = span.get("status") or {}
        code = status.get("code", status.get("status_code"))
        failed = code in (2, "STATUS_CODE_ERROR", "ERROR")
        start = span.get("startTimeUnixNano") or 0
        trace = str(span.get("traceId", span.get("trace_id", "")))
        named = [
            each
            for each in events
            if each[0].startswith("gen_ai.") and "gen_ai.input.messages" not in each[1]
        ]
        yield _OtlpRow(int(start), trace, attributes, named, failed)


def _nested(value: Mapping[str, Any], key: str, *keys: str) -> Iterator[Any]:
    for each in value.get(key, value.get(snake_case(key))) or ():
        yield from _nested(each, *keys) if keys else (each,)


def _log_rows(record: Mapping[str, Any]) -> Iterator[_OtlpRow]:
    spans: dict[tuple[str, str], list[tuple[int, str, Mapping[str, Any]]]] = {}
    for log in _nested(record, "resourceLogs", "scopeLogs", "logRecords"):
        attributes = _attributes(log.get("attributes"))
        name = log.get("eventName") or attributes.get("event.name") or ""
        at = int(log.get("timeUnixNano") or log.get("observedTimeUnixNano") or 0)
        event = attributes | entry(_attribute(log.get("body")))
        key = str(log.get("traceId") or ""), str(log.get("spanId") or "")
        spans.setdefault(key, []).append((at, str(name), event))
    for (trace, _span), logs in spans.items():
        logs.sort(key=lambda log: log[0])
        yield _OtlpRow(logs[0][0], trace, {}, [(name, event) for _at, name, event in logs])


def _event_items(name: str, event: Mapping[str, Any]) -> list[Item]:
    if name == "gen_ai.choice":
        return answer_items(event.get("message", event))
    role = name.removeprefix("gen_ai.").removesuffix(".message")
    return message_items({**event, "role": role, "content": read_result(event.get("content"))})


def _attributes(given: Any) -> dict[str, Any]:
    if isinstance(given, Mapping):  # of a console exporter
        return dict(given)
    return {each["key"]: _attribute(each.get("value")) for each in given or ()}


def _attribute(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    if "arrayValue" in value:
        return [_attribute(each) for each in value["arrayValue"].get("values", ())]
    if "kvlistValue" in value:
        return {each["key"]: _attribute(each.get("value")) for each in value["kvlistValue"].get("values", ())}
    return next(iter(value.values()), None)


def is_phoenix(record: Mapping[str, Any]) -> bool:
    """Return True for a span with the attributes of OpenInference."""
    attributes = record.get("attributes")
    return "span_kind" in record or (
        isinstance(attributes, Mapping)
        and any(str(key).startswith(("llm", "openinference")) for key in attributes)
    )


def read_phoenix(record: Mapping[str, Any], found: ReadTraces) -> bool:
    """Read a span of OpenInference."""
    context = entry(record.get("context"))
    attributes = record.get("attributes", record)
    flat = dict(_flattened(read_result(attributes)))
    trace = str(record.get("trace_id") or context.get("trace_id") or record.get("context.trace_id") or "")
    if named := flat.get("session.id"):
        found.conversations[trace] = str(named)
    session = found.session(str(named or found.conversations.get(trace, trace)))
    session.failed |= str(record.get("status_code") or "").upper() == "ERROR"
    kind = record.get("span_kind") or flat.get("openinference.span.kind")
    at = str(record.get("start_time") or "")
    return _openinference({**flat, "openinference.span.kind": kind}, session, found, trace, at)


def _flattened(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    is_rows = isinstance(value, list) and any(isinstance(each, Mapping) for each in value)
    if isinstance(value, Mapping) or is_rows:
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _flattened(item, f"{prefix}{key}.")
    elif prefix:
        yield prefix[:-1].removeprefix("attributes."), value


def _openinference(
    attributes: Mapping[str, Any], session: RecordedSession, found: ReadTraces, trace: str, at: str
) -> bool:
    kind = str(attributes.get("openinference.span.kind") or "").upper()
    run = session.runs.setdefault(trace, AgentRun())
    if _is_of_run(run, kind, at, attributes, attributes.get("input.value"), attributes.get("output.value")):
        return True
    if kind == "TOOL":
        found.forms["phoenix"] += 1
        key = attributes.get("tool_call.id") or attributes.get("tool.name")
        session.add_result(key, attributes.get("output.value"))
        return True
    received = _numbered(attributes, "llm.input_messages.")
    answered = _numbered(attributes, "llm.output_messages.")
    if kind != "LLM" and not received:
        found.passed_over[kind] += bool(kind)
        return bool(kind)
    found.forms["phoenix"] += 1
    session.add(
        [item for each in received for item in items_of([each])],
        [item for each in answered for item in answer_items(each)],
    )
    return True


def _is_of_run(
    run: AgentRun, kind: str, at: str, attributes: Mapping[str, Any], given: Any, output: Any
) -> bool:
    given = entry(read_result(given))
    name = attributes.get("tool.name")
    if kind == "AGENT" and isinstance(given.get("task"), str):
        if not run.task or at <= run.at:  # agents that it manages begin later
            run.task, run.output, run.at = given["task"], str(output or ""), at
        return True
    if kind == "TOOL" and name and name != "final_answer":  # with which agents of smolagents reply
        parameters = entry(read_result(attributes.get("tool.parameters")))
        named = dict(zip(parameters, given.get("args") or (), strict=False))
        run.calls.append((at, str(name), {**named, **entry(given.get("kwargs"))}, read_result(output)))
    return kind == "TOOL" and name == "final_answer"


def _numbered(attributes: Mapping[str, Any], prefix: str) -> list[dict[str, Any]]:
    """Return the messages of attributes like `llm.input_messages.0.message.role`."""
    messages: dict[int, dict[str, Any]] = {}
    for key, value in attributes.items():
        number, *path = key.removeprefix(prefix).removeprefix("message.").split(".")
        if not key.startswith(prefix) or not number.isdecimal():
            continue
        message, *_, last = messages.setdefault(int(number), {}), *path
        if "tool_calls" in path:
            at = path.index("tool_calls") + 1
            call = message.setdefault("tool_calls", {}).setdefault(path[at], {})
            (call.setdefault("function", {}) if "function" in path else call)[last] = value
        elif last in ("role", "content", "name", "tool_call_id"):
            message[last] = value
        elif path[-2:] == ["message_content", "text"]:
            message["content"] = f"{message.get('content', '')}{value}"
    for message in messages.values():
        message["tool_calls"] = list(message.get("tool_calls", {}).values())
    return [messages[number] for number in sorted(messages)]


def is_langfuse(record: Mapping[str, Any]) -> bool:
    """Return True for a trace or an observation."""
    kinds = ("GENERATION", "SPAN", "EVENT", "TOOL", "AGENT", "CHAIN", "RETRIEVER")
    return (
        isinstance(record.get("observations"), list)
        or (isinstance(record.get("traces"), list) and "id" in record)
        or (("traceId" in record or "trace_id" in record) and str(record.get("type")).upper() in kinds)
        or ({"sessionId", "timestamp", "input", "output"} <= record.keys())
    )


def read_langfuse(record: Mapping[str, Any], found: ReadTraces) -> bool:
    """Read a session, a trace or an observation of Langfuse."""
    if isinstance(traces := record.get("traces"), list):
        for each in traces:
            read_langfuse({**each, "sessionId": record.get("id")}, found)
        return True
    observations = record.get("observations")
    whole = entry(record.get("trace")) or record  # a download has the trace beside its observations
    is_whole = "observations" in record
    rows = [row for row in observations or (() if is_whole else (record,)) if isinstance(row, Mapping)]
    rows.sort(key=lambda row: str(row.get("startTime") or row.get("start_time") or ""))
    outer = {row.get("parentObservationId") for row in rows if str(row.get("type")).upper() == "GENERATION"}
    for row in (*rows, whole) if is_whole else rows:
        trace = str(row.get("traceId") or row.get("trace_id") or whole.get("id"))
        ids = (each.get(key) for each in (whole, record, row) for key in ("sessionId", "session_id"))
        if named := next(filter(None, ids), None):
            found.conversations[trace] = str(named)
        _langfuse_observation(row, trace, found, is_outer=row.get("id") in outer)
    return bool(rows)


def _langfuse_observation(row: Mapping[str, Any], trace: str, found: ReadTraces, *, is_outer: bool) -> None:
    session = found.session(found.conversations.get(trace, trace))
    session.failed |= str(row.get("level") or "").upper() == "ERROR"
    kind = str(row.get("type") or "").upper()
    at = row.get("startTime") or row.get("start_time") or row.get("timestamp")
    run = session.runs.setdefault(trace, AgentRun())
    attributes = entry(row, "metadata", "attributes")
    if _is_of_run(run, kind, str(at), attributes, row.get("input"), row.get("output")):
        return
    if kind == "TOOL":
        session.add_result(attributes.get("tool.name") or row.get("name"), row.get("output"))
    elif kind in ("GENERATION", ""):
        found.forms["langfuse"] += "observations" not in row and "input" in row
        received, answered = items_of(row.get("input")), answer_items(row.get("output"))
        # The AI SDK's `ai.generateText` has `ai.generateText.doGenerate` for each request.
        name = str(row.get("name")).rpartition(":")[2]
        if not kind or is_outer or (name.startswith("ai.") and name.count(".") == 1):
            found.around += [(trace, received, answered, at)] if trace not in found.exchanged else []
        else:
            found.exchanged.add(trace)
            session.add(received, answered, at)
    else:
        found.passed_over[kind] += 1


def is_langsmith(record: Mapping[str, Any]) -> bool:
    """Return True for a run."""
    return "run_type" in record


def read_langsmith(record: Mapping[str, Any], found: ReadTraces) -> bool:
    """Read a run of LangSmith, with its children."""
    metadata = entry(record, "extra", "metadata")
    named = metadata.get("thread_id") or metadata.get("session_id") or record.get("thread_id")
    trace = str(record.get("trace_id") or record.get("id"))
    if named:
        found.conversations[trace] = str(named)
    session = found.session(found.conversations.get(trace, trace))
    session.failed |= bool(record.get("error"))
    inputs, outputs = record.get("inputs"), record.get("outputs")
    if record.get("run_type") in ("llm", "chat_model"):
        found.forms["langsmith"] += 1
        session.add(items_of(inputs), answer_items(outputs), record.get("start_time"))
    elif record.get("run_type") == "tool":
        output = entry(outputs).get("output", outputs)
        session.add_result(record.get("name"), entry(output).get("content", output))
    else:
        found.passed_over[str(record.get("run_type"))] += 1
    for child in record.get("child_runs") or ():
        read_langsmith({"trace_id": trace, **child}, found)
    return True


def is_openai(record: Mapping[str, Any]) -> bool:
    """Return True for a request with its response, or for a response."""
    of_logs = ("choices", "request", "response", "completion")
    has_message = any(isinstance(read_result(record.get(key)), Mapping | list) for key in of_logs)
    has_lists = "output" in record and isinstance(record.get("input"), list)
    return has_message or has_lists or "previous_response_id" in record


def read_openai(record: Mapping[str, Any], found: ReadTraces) -> bool:
    """Read a request to OpenAI's API, with its response."""
    request = record.get("request") or record.get("body") or record
    response = record.get("response") or record.get("completion") or record
    request, response = read_result(request), read_result(entry(response, "body") or response)
    if isinstance(response, list):  # messages, as in files for Azure's evaluators
        response = {"output": response}
    if not isinstance(request, Mapping) or not isinstance(response, Mapping):
        return False
    received = items_of(request.get("messages", request.get("input", request.get("query"))))
    answered = answer_items({key: response[key] for key in ("choices", "output") if key in response})
    if not received and not answered:
        return False
    found.forms["openai"] += 1
    earlier = request.get("previous_response_id")
    id = _continued(found, earlier, received) or found.here
    session = found.session(id)
    session.add(received, answered)
    if response.get("id"):
        session.responses.add(str(response["id"]))
    return True


def _continued(found: ReadTraces, earlier: Any, received: Sequence[Item]) -> str | None:
    """Return the session that a request continues: by response id, or because it repeats its messages."""
    for session in islice(reversed(found.sessions.values()), CONTINUED):
        if earlier and str(earlier) in session.responses:
            return session.id
        known = [*map(step_key, session.items)]
        if session.file == str(found.path) and known and [*map(step_key, received[: len(known)])] == known:
            return session.id
    return None


def is_adk(record: Mapping[str, Any]) -> bool:
    """Return True for a session."""
    return isinstance(record.get("events"), list) and "context" not in record


def read_adk(record: Mapping[str, Any], found: ReadTraces) -> bool:
    """Read a session of ADK."""
    if not is_adk(record):
        return False
    found.forms["adk"] += 1
    session = found.session(str(record.get("id") or found.here))
    for event in objects(record["events"]):
        if content := entry(event, "content"):
            role = "user" if event.get("author") == "user" else "assistant"
            session.items += message_items({"role": role, "parts": content.get("parts") or []})
            session.failed |= bool(event.get("errorCode") or event.get("error_code"))
    return True


def is_atif(record: Mapping[str, Any]) -> bool:
    """Return True for a trajectory of ATIF, the format of Harbor."""
    return "agent" in record and isinstance(record.get("steps"), list)


def read_atif(record: Mapping[str, Any], found: ReadTraces) -> bool:
    """Read a trajectory of ATIF. A result that names no call is that of the call at its place."""
    if not is_atif(record):
        return False
    found.forms["atif"] += 1
    session = found.session(str(record.get("session_id") or found.here))
    for step in objects(record["steps"]):
        items = message_items({**step, "role": step.get("source"), "content": step.get("message")})
        results = objects(entry(step, "observation").get("results"))
        calls = [item.id for item in items if item.kind == "call"] + [""] * len(results)
        for result, call in zip(results, calls, strict=False):
            given = {"tool_call_id": result.get("source_call_id") or call, "content": result.get("content")}
            items += message_items({"role": "tool", **given})
        session.items += items
    subagents = record.get("subagent_trajectories") or ()
    session.items += [Item("unread", "trajectory of a subagent")] * len(subagents)
    return True


def is_agentest(record: Mapping[str, Any]) -> bool:
    """Return True for a results.json, or for a line of a journal."""
    if "schemaVersion" in record and "scenarios" in record:
        return True
    is_line = record.get("type") in ("run", "conversation", "scenario", "end") or "scope" in record
    return is_line and any(key in record for key in ("schemaVersion", "conversation", "result", "scenario"))


def read_agentest(record: Mapping[str, Any], found: ReadTraces) -> bool:
    """Read a results.json, or a line of a journal. A journal has lines without conversations, too."""
    if "scenarios" in record:
        entries = [inner for each in record["scenarios"] for inner in each.get("agents", (each,))]
        conversations = [each for entry in entries for each in entry.get("conversations", ())]
    else:
        conversations = [each for key in ("conversation", "result") if (each := record.get(key))]
    for conversation in conversations:
        id = str(conversation.get("conversationId") or found.here)
        if id in found.sessions and found.sessions[id].file != str(found.path):
            id = f"{id} of {found.path.parent.name}"
        session = found.session(id)
        session.failed |= conversation.get("passed") is False or bool(conversation.get("error"))
        for turn in conversation.get("turns", ()):
            session.items.append(Item("user", turn.get("userMessage") or ""))
            for at, call in enumerate(turn.get("toolCalls", ())):
                key = f"{turn.get('turnIndex')}.{at}"
                session.items.append(Item("call", call["name"], call.get("args"), key))
                session.items.append(Item("result", call["name"], call.get("result"), key))
            session.items.append(Item("assistant", turn.get("agentMessage") or ""))
        found.forms["agentest"] += 1
    return True


def is_jsonl(record: Mapping[str, Any]) -> bool:
    """Return True for a message, or for an object with messages but no expected answer, as tests have."""
    is_test = any(key in record for key in ("answer", "expected", "expected_output", "ideal", "target"))
    return (isinstance(record.get("messages"), list) and not is_test) or {"role", "content"} <= record.keys()


def read_jsonl(record: Mapping[str, Any], found: ReadTraces) -> bool:
    """Read a message, or an object with messages."""
    keys = ("session_id", "sessionId", "conversation_id", "conversationId", "thread_id", "id")
    named = next((record[key] for key in keys if record.get(key)), None)
    if "messages" in record:
        session = found.session(str(named or found.here))
        session.add(items_of(record["messages"]), ())
    elif "role" in record:
        session = found.session(str(named or found.path.name))
        session.items += items_of([record])
    else:
        return False
    found.forms["jsonl"] += 1
    session.failed |= bool(record.get("error"))
    return True
