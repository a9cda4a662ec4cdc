"""The forms of records that `agentest import` reads: traces, logs and exports of observability tools.

Of each form, one function recognizes a record, and another adds it to the sessions or returns False.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

from agentest.agents.json_reader import read_result
from agentest.plugins.authoring.trace_messages import (
    KEYS,
    OF_SUBAGENT,
    SHAPES,
    Item,
    answer_items,
    first_of,
    is_message,
    items_of,
    message_items,
    opened,
    role_of,
)
from agentest.plugins.authoring.trace_sessions import (
    CONTINUED,
    AgentRun,
    ReadTraces,
    RecordedSession,
    is_before,
    step_key,
)
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
    if {"body", "attributes", "traceId"} <= record.keys():  # a log of AgentCore
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
        received += items_of(_numbered(attributes, "gen_ai.prompt."))
        answered = answer_items(attributes.get("gen_ai.output.messages"))
        answered += answer_items(_numbered(attributes, "gen_ai.completion."))
        if "ai.prompt.messages" in attributes and not answered:
            calls = attributes.get("ai.response.toolCalls")
            answered = answer_items(
                {"content": attributes.get("ai.response.text"), "tool_calls": calls, "role": "ai"}
            )
        for name, event in row.events:
            received += items_of(event.get("gen_ai.input.messages") or event.get("input"))
            answered += answer_items(event.get("gen_ai.output.messages") or event.get("output"))
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
    if "attributes" in record and "body" not in record:
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
    alone = [record] if "body" in record else []
    for log in (*_nested(record, "resourceLogs", "scopeLogs", "logRecords"), *alone):
        attributes = _attributes(log.get("attributes"))
        name = log.get("eventName") or attributes.get("event.name") or ""
        at = int(log.get("timeUnixNano") or log.get("observedTimeUnixNano") or 0)
        body = log.get("body")
        event = attributes | entry(body if log is record else _attribute(body))
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
    received = items_of(_numbered(attributes, "llm.input_messages."))
    answered = answer_items(_numbered(attributes, "llm.output_messages."))
    if kind != "LLM" and not received:
        found.passed_over[kind] += bool(kind)
        return bool(kind)
    found.forms["phoenix"] += 1
    session.add(received, answered)
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


def _numbered(attributes: Mapping[str, Any], prefix: str) -> Any:
    """Return the messages of attributes like `llm.input_messages.0.message.role`."""
    root: dict[str, Any] = {}
    for key, value in attributes.items():
        if key.startswith(prefix):
            *path, last = key.removeprefix(prefix).split(".")
            at = root
            for part in path:
                at = inside if isinstance(inside := at.setdefault(part, {}), dict) else {}
            at[last] = value
    return _listed(root)


def _listed(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if all(map(str.isdecimal, value)):
        return [_listed(value[key]) for key in sorted(value, key=int)]
    return {key: _listed(each) for key, each in value.items()}


_SPANS = SHAPES["spans"]
_KINDS = {word: kind for kind, words in SHAPES["span_kinds"].items() for word in words}
_MODEL_OPS = ("chat.completions", "responses.create", "messages.create", "generate_content", "converse")


def _at(record: Mapping[str, Any], name: str) -> Any:
    """Return the first value that a record gives at the paths with this name."""
    for path in _SPANS[name]:
        if path == "session_id" and "run_type" in record:
            continue  # the project in LangSmith
        *keys, last = path.split("/")
        value = (entry(record, *keys) if keys else record).get(last)
        if value not in (None, ""):
            return value
    return None


def _kind(record: Mapping[str, Any]) -> str:
    """Return what a span is: `llm`, `tool`, `other`, or "" for what is no span."""
    operation = str(record.get("op_name") or "")  # of Weave
    if operation:
        return "llm" if any(name in operation for name in _MODEL_OPS) else "other"
    return _KINDS.get(str(_at(record, "kind")).strip('"').upper(), "other" if "run_type" in record else "")


def is_langfuse(record: Mapping[str, Any]) -> bool:
    """Return True for a session, a trace or a span of an observability tool."""
    return (
        isinstance(_at(record, "children"), list)
        or (isinstance(record.get("traces"), list) and "id" in record)
        or "run_type" in record
        or (_at(record, "trace") is not None and _kind(record) != "")
        or ({"sessionId", "timestamp", "input", "output"} <= record.keys())
    )


def read_langfuse(record: Mapping[str, Any], found: ReadTraces) -> bool:
    """Read a session, a trace or a span of Langfuse, LangSmith, Braintrust, Weave, Opik or MLflow."""
    if isinstance(traces := record.get("traces"), list):
        for each in traces:
            read_langfuse({**each, "sessionId": record.get("id")}, found)
        return True
    children = _at(record, "children")
    whole = entry(record, "trace") or entry(record, "info") or record  # beside its observations
    is_whole = isinstance(children, list) and not _kind(record)
    rows = sorted(objects(children), key=lambda row: str(_at(row, "began") or ""))
    rows = [*rows, dict(whole)] if is_whole else [dict(record), *rows]
    outer = {_at(row, "parent") for row in rows if str(row.get("type")).upper() == "GENERATION"}
    named = _at(whole, "session") or _at(record, "session")
    for row in rows:
        trace = str(_at(row, "trace") or whole.get("trace_id") or whole.get("id") or record.get("id"))
        if id := named or _at(row, "session"):
            found.conversations[trace] = str(id)
        _read_span(row, trace, found, is_outer=row.get("id") in outer)
        for child in objects(row.get("child_runs") if row in rows[1 - is_whole :] else None):
            read_langfuse({"trace_id": trace, **child}, found)
    return bool(rows)


def _read_span(row: Mapping[str, Any], trace: str, found: ReadTraces, *, is_outer: bool) -> None:
    session = found.session(found.conversations.get(trace, trace))
    session.failed |= bool(row.get("error") or row.get("exception"))
    session.failed |= str(row.get("level") or row.get("status") or "").upper() == "ERROR"
    kind, at = _kind(row), _at(row, "began")
    run = session.runs.setdefault(trace, AgentRun())
    attributes, given, output = entry(row, "metadata", "attributes"), _at(row, "input"), _at(row, "output")
    if _is_of_run(run, str(row.get("type")).upper(), str(at), attributes, given, output):
        return
    name = str(row.get("name") or entry(row, "span_attributes").get("name"))
    if kind == "tool":
        output = entry(read_result(output)).get("output", output)
        session.add_result(attributes.get("tool.name") or name, entry(output).get("content", output))
        return
    received, answered = items_of(given) or _only_text(given, "user"), answer_items(output)
    answered = answered or _only_text(output, "assistant")
    # The AI SDK's `ai.generateText` has `ai.generateText.doGenerate` for each request.
    last = name.rpartition(":")[2]
    is_sdk = last.startswith("ai.") and last.count(".") == 1
    if kind == "llm" and not is_outer and not is_sdk:
        found.forms["spans"] += 1
        found.exchanged.add(trace)
        session.add(received, answered, at)
    elif kind == "llm" or _at(row, "parent") is None:
        found.forms["spans"] += kind == "" and bool(received) and _at(row, "children") is None
        found.around += [(trace, received, answered, at)] if trace not in found.exchanged else []
    else:
        found.passed_over[str(_at(row, "kind") or row.get("op_name"))] += 1


def _only_text(value: Any, role: str) -> list[Item]:
    """Return the only text of a span's input or output that is an object, such as {"question": …}."""
    texts = [each for each in entry(read_result(value)).values() if isinstance(each, str) and each]
    return [Item(role, texts[0])] if len(texts) == 1 else []


def is_openai(record: Mapping[str, Any]) -> bool:
    """Return True for a request with its response, or for a response."""
    values = [read_result(record.get(key)) for key in ("request", "response", "completion")]
    values += [each for each in objects(record.get("choices")) if {"message", "delta", "text"} & each.keys()]
    has_message = any(isinstance(value, Mapping) or objects(value) for value in values)
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
    given = request.get("messages", request.get("input", request.get("query")))
    received = items_of({"role": "user", **given} if "text" in entry(given) else given)
    answered = answer_items({key: response[key] for key in ("choices", "output") if key in response})
    if not received and not answered:
        return False
    found.forms["openai"] += 1
    earlier = request.get("previous_response_id")
    named = session_of(record) or session_of(entry(request, "context"))
    id = named or _continued(found, earlier, received) or found.here
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


_OWN_ID = ("call_id", "id", "uuid")  # of a record that is a whole session
_OF_ROWS = (
    *("question", "input", "inputs", "prompt", "query", "turns", "conversation", "conversations", "history"),
    *("chat_history", "dialog", "dialogue", "steps", "user_input", "vars", "test_case_conversation_turns"),
)
_OF_TESTS = tuple(SHAPES["rows"]["of_tests"])
_OF_MESSAGES = [key for name in ("calls", "results", "nested", "text") for key in KEYS[name]]
_MOST_DEPTH = 4
_LOOKED_AT = 8  # messages of a list, to tell what it is


def session_of(record: Mapping[str, Any], more: Sequence[str] = ()) -> str | None:
    """Return the session that a record, or one around it, names. `more`: further keys."""
    for key in _session_keys(tuple(record), tuple(more)):
        value = record[key]
        value = value.get("id") if isinstance(value, dict) else value
        if isinstance(value, str | int) and value != "":
            return str(value)
    inside = (record[key] for key in ("metadata", "call", "message", "payload") if entry(record, key))
    return next(filter(None, (session_of(each, more if "call" in record else ()) for each in inside)), None)


@lru_cache(4096)
def _session_keys(keys: tuple[str, ...], more: tuple[str, ...]) -> Sequence[str]:
    known = {snake_case(str(key)).replace(" ", "_"): key for key in keys}
    if {"event", "events"}.isdisjoint(known):
        known.pop("sender_id", None)  # a session only in Rasa: other tools have one for each speaker
    return [known[name] for name in (*KEYS["session"], *more) if name in known]


def _lists(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, list[Any]]]:
    """Yield the lists of objects in a record with their paths, also those that are JSON within a text."""
    value = read_result(value)
    if isinstance(value, list) and objects(value):
        yield path, value
    elif isinstance(value, Mapping) and depth < _MOST_DEPTH:
        if (leaf := value.get("current_node", value.get("currentId"))) and (
            nodes := entry(value, "mapping") or entry(value, "messages")
        ):  # a tree of messages, of which one branch was shown
            branch: list[Any] = []
            while (node := entry(nodes, str(leaf))) and len(branch) < len(nodes):
                branch.append(node)
                leaf = node.get("parent", node.get("parentId"))
            yield f"{path}.mapping".lstrip("."), branch[::-1]
            return
        own = _OF_MESSAGES if not depth and is_message(value) else ()
        for key, each in value.items():
            if key not in own and key not in ("tools", "functions") and isinstance(each, str | list | dict):
                yield from _lists(each, f"{path}.{key}".lstrip("."), depth + 1)


def _messages(record: Mapping[str, Any], roles: Mapping[str, str]) -> tuple[str, list[Any]]:
    """Return the longest list of messages in a record, and its path."""
    known = [
        (path, each, sum(is_message(one, roles) for one in each[:_LOOKED_AT]))
        for path, each in _lists(record)
    ]
    path, best, number = max(known, key=lambda one: (one[2], len(one[1])), default=("", [], 0))
    if not number and isinstance(record.get("messages"), list):
        return "messages", record["messages"]
    return (path, best) if number else ("", [])


def is_jsonl(record: Mapping[str, Any]) -> bool:
    """Return True for a message, or for an object with messages but without what tests have."""
    keys = [snake_case(str(key)) for key in record]
    if any(key.startswith(_OF_TESTS) for key in keys):
        return False
    if session_of(record, ("call_id",)) is not None:
        messages = (one for _, each in _lists(record) for one in each[:_LOOKED_AT])
        given = record if is_message(record) else record.get("messages")
        return isinstance(given, dict | list) or any(map(is_message, messages))
    path, _ = _messages(record, {})
    if path.startswith("messages"):
        return True
    listed = (objects(record.get(key)) for key in SHAPES["rows"]["lists"])
    rows = [record, *(each[0] for each in listed if each and not is_message(each[0]))]
    if path:
        is_of_test = any(isinstance(row.get(key), str) for row in rows for key in _OF_ROWS)
        return not is_of_test and path.partition(".")[0] not in _OF_ROWS
    return is_message(record) and ("role" in keys or "type" in keys or "kind" in keys)


def read_jsonl(record: Mapping[str, Any], found: ReadTraces) -> bool:
    """Read a message, or an object with messages of an agent, a model, or a platform for chats and calls."""
    if any(str(key).startswith("rejected") for key in record):
        return False  # two replies to compare
    path, messages = _messages(record, found.roles)
    named = None if session_of(record) else next(map(session_of, objects(messages)), None)
    if named and any(session_of(each) not in (None, named) for each in objects(messages)):
        return sum(read_jsonl(each, found) for each in objects(messages)) > 0
    if path:
        session = found.session(session_of(record, _OWN_ID) or found.here)
        ends = objects(messages)[:: max(1, len(objects(messages)) - 1)]
        times = [first_of(opened(each), "time") for each in ends] or [None]
        messages = messages[::-1] if is_before(times[-1], times[0]) else messages
        first, status = entry(record, "source"), entry(record, "status", "message")
        last = [{**each, "role": "agent"} for each in objects(record.get("artifacts")) if not status]
        messages = [*([first] if is_message(first) else []), *messages, *([status] if status else []), *last]
        subagents = record.get("subagent_trajectories") or ()
        session.items += [Item("unread", "trajectory of a subagent", OF_SUBAGENT)] * len(subagents)
    elif named := session_of(record) or (found.path.name if is_message(record, found.roles) else None):
        session, messages, path = found.session(named), [record], "messages"
    else:
        return False
    found.forms["jsonl" if path == "messages" else f"`{path}`"] += 1
    session.failed |= bool(record.get("error"))
    for message in messages:
        given = opened(message) if isinstance(message, Mapping) else {}
        session.failed |= bool(given.get("error_code"))
        items = message_items(message, found.roles, given, found.words)
        if not items and role_of(given, found.roles)[1] != "system":
            found.passed_over[str(given.get("type") or given.get("event") or "empty")] += 1
        session.insert(items, first_of(given, "time") if messages == [record] else None)
    return True
