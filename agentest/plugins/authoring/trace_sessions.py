"""Read recorded sessions of an agent from traces, logs and exports of observability tools.

Every form becomes *exchanges*: what a model received and what it answered. The exchanges of a session are
joined to one history, because most models receive the whole conversation again with every request.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from agentest.plugins.authoring.trace_messages import (
    Item,
    answer_items,
    is_call_part,
    items_of,
    joined,
    message_items,
    parsed,
    step_key,
)
from agentest.support.errors import UsageError
from agentest.support.lazy_dataclasses import dataclass

FORMS = ("otlp", "langfuse", "langsmith", "phoenix", "openai", "adk", "agentest", "jsonl")
"""The forms that can be named; without a name they are recognised by their keys."""
_MOST_SESSIONS = 4_000
_CONTINUED = 200
"""The latest sessions, which later records may continue."""
_OF_ONE_SHAPE = 20
_LOOKED_AT = 20
_MOST_DOCUMENT_BYTES = 200_000_000
"""A file that is one JSON document is read as a whole."""


@dataclass(slots=True)
class RecordedSession:
    """One session, as far as the records show it."""

    id: str
    file: str
    items: list[Item] = field(default_factory=list)
    failed: bool = False
    """True if a record of it reports an error."""
    results: dict[str, list[Any]] = field(default_factory=dict)
    """Call id, or name of a tool without one → its results in order, from records of tools."""
    responses: set[str] = field(default_factory=set)
    """Ids of the model's responses."""

    began: str = ""
    """When its first exchange began, as its records write it."""

    def add(self, received: Sequence[Item], answered: Sequence[Item], at: Any = "") -> None:
        """Join an exchange to the history. Exports may have the newest first."""
        if at and self.began and str(at) < self.began:
            self.items = joined([*received, *answered], self.items)
        else:
            self.items = joined(joined(self.items, received), answered)
        self.began = min(filter(None, (self.began, str(at or ""))), default="")

    def add_result(self, key: Any, result: Any) -> None:
        """Note the result that a record of a tool has."""
        self.results.setdefault(str(key or ""), []).append(parsed(result))


@dataclass(slots=True)
class ReadTraces:
    """What was found in the files."""

    sessions: dict[str, RecordedSession] = field(default_factory=dict)
    forms: Counter[str] = field(default_factory=Counter)
    """Form → number of its records."""
    broken_lines: list[str] = field(default_factory=list)
    """`FILE:LINE: problem` of the first ones."""
    broken: int = 0
    conversations: dict[str, str] = field(default_factory=dict)
    """Trace → the session that one of its spans names."""
    silent_spans: int = 0
    """Requests to models without the messages."""
    unknown: Counter[str] = field(default_factory=Counter)
    """Keys of records of unknown form → how many there are."""
    examples: dict[str, str] = field(default_factory=dict)

    alike: int = 0
    """Sessions that were dropped while reading, because others call the same tools."""

    def session(self, id: str, file: str) -> RecordedSession:
        if id not in self.sessions and len(self.sessions) >= _MOST_SESSIONS:
            self._thin()
        return self.sessions.setdefault(id, RecordedSession(id, file))

    def _thin(self) -> None:
        """Drop sessions that others resemble, so that files of any size fit. The latest may continue."""
        seen: Counter[Any] = Counter()
        kept = 0
        for id in list(self.sessions)[:-_CONTINUED]:
            session = self.sessions[id]
            shape = session.failed, *(item.text for item in session.items if item.kind == "call")
            seen[shape] += 1
            kept += seen[shape] <= _OF_ONE_SHAPE
            if seen[shape] > _OF_ONE_SHAPE or kept > _MOST_SESSIONS // 2:
                del self.sessions[id]
                self.alike += 1


def read_traces(paths: Iterable[Path], form: str | None = None) -> ReadTraces:
    """Read all sessions of files. Raises UsageError if a file cannot be read.

    Args:
        form: one of `FORMS`; None recognises each record by its keys.
    """
    found = ReadTraces()
    for path in paths:
        for number, record in enumerate(_records(path, found), 1):
            read = _READERS.get(form or "") or _reader_of(record)
            if read is None or not read(record, path, number, found):
                keys = (
                    ", ".join(sorted(map(str, record))[:6])
                    if isinstance(record, Mapping)
                    else type(record).__name__
                )
                found.unknown[keys] += 1
                found.examples.setdefault(keys, f"{path.name}, record {number}")
    for trace, id in found.conversations.items():  # the span that names the session may be the last one
        if trace != id and (part := found.sessions.pop(trace, None)):
            session = found.session(id, part.file)
            session.add(part.items, ())
            session.failed |= part.failed
            for key, results in part.results.items():
                session.results.setdefault(key, []).extend(results)
    return found


def has_sessions(path: Path) -> bool:
    """Return True if any of the first records of a file is of a known form."""
    try:
        return any(map(_reader_of, islice(_records(path, ReadTraces()), _LOOKED_AT)))
    except UsageError:
        return False


def _records(path: Path, found: ReadTraces) -> Iterator[Any]:
    """Yield the records of a JSON document or of JSON lines, without reading long files at once."""
    try:
        with path.open("rb") as file:
            head = file.readline(_MOST_DOCUMENT_BYTES)
            try:
                first = json.loads(head)
            except (ValueError, RecursionError):
                first = None
            if first is None or (isinstance(first, list) and not file.readline().strip()):
                if path.stat().st_size > _MOST_DOCUMENT_BYTES:
                    raise UsageError(
                        f"{path} is one document of {path.stat().st_size:,} bytes; export it as JSON lines"
                    )
                file.seek(0)
                yield from _unwrapped(_document(file.read(), path, found))
                return
            file.seek(0)
            for number, line in enumerate(file, 1):
                if line.strip():
                    try:
                        yield from _unwrapped(json.loads(line))
                    except (ValueError, RecursionError) as error:
                        _note_broken(found, f"{path}:{number}: {error}")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None


def _document(content: bytes, path: Path, found: ReadTraces) -> Any:
    if not content.strip():
        raise UsageError(f"{path} is empty")
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        lines = content.splitlines()
        parsed = []
        for number, line in enumerate(lines, 1):
            try:
                parsed += [json.loads(line)] if line.strip() else []
            except (ValueError, RecursionError) as problem:
                _note_broken(found, f"{path}:{number}: {problem}")
        if not parsed:
            raise UsageError(f"{path} is not JSON: {error}") from None
        return parsed


def _note_broken(found: ReadTraces, text: str) -> None:
    found.broken += 1
    if len(found.broken_lines) < 3:
        found.broken_lines.append(text)


_LISTS = ("data", "traces", "runs", "sessions", "spans", "observations", "conversations", "items")


def _unwrapped(value: Any) -> Iterator[Any]:
    """Yield the records of a document: its elements, or those of the list that it contains."""
    if isinstance(value, list):
        for each in value:
            yield from _unwrapped(each) if isinstance(each, list) else (each,)
        return
    if isinstance(value, Mapping) and _reader_of(value) is None:
        inner = next((value[key] for key in _LISTS if isinstance(value.get(key), list)), None)
        if inner is not None:
            yield from _unwrapped(inner)
            return
    yield value


Read = Callable[[Mapping[str, Any], Path, int, ReadTraces], bool]
"""Adds a record to the sessions. Returns False if it has not the form."""


class _OtlpRow(NamedTuple):
    """A span, or the log records of one."""

    at: int
    trace: str
    attributes: Mapping[str, Any]
    events: Sequence[tuple[str, Mapping[str, Any]]]
    failed: bool = False


def _otlp(record: Mapping[str, Any], path: Path, _: int, found: ReadTraces) -> bool:
    rows = [*_span_rows(record), *_log_rows(record)]
    for row in rows:
        for attributes in (row.attributes, *(event for _name, event in row.events)):
            if named := attributes.get("gen_ai.conversation.id", attributes.get("session.id")):
                found.conversations[row.trace] = str(named)
    for row in sorted(rows, key=lambda row: row.at):
        attributes = row.attributes
        session = found.session(found.conversations.get(row.trace, row.trace), str(path))
        session.failed |= row.failed
        if "gen_ai.tool.call.result" in attributes:
            key = attributes.get("gen_ai.tool.call.id") or attributes.get("gen_ai.tool.name")
            session.add_result(key, attributes.get("gen_ai.tool.call.result"))
        received = items_of(attributes.get("gen_ai.input.messages"))
        answered = answer_items(attributes.get("gen_ai.output.messages"))
        for name, event in row.events:
            received += items_of(event.get("gen_ai.input.messages"))
            answered += answer_items(event.get("gen_ai.output.messages"))
            (answered if name == "gen_ai.choice" else received).extend(_event_items(name, event))
        if received or answered:
            found.forms["otlp"] += 1
            session.add(received, answered)
        elif any(str(key).startswith(("llm.", "openinference.")) for key in attributes):
            _openinference(attributes, session, found)
        else:
            found.silent_spans += "gen_ai.request.model" in attributes
    return bool(rows)


def _span_rows(record: Mapping[str, Any]) -> Iterator[_OtlpRow]:
    """Yield the spans of a request, or the one that a console exporter wrote."""
    groups = record.get("resourceSpans", record.get("resource_spans")) or ()
    spans = [
        span
        for resource in groups
        for scope in resource.get("scopeSpans", resource.get("scope_spans", ()))
        for span in scope.get("spans", ())
    ]
    if isinstance(record.get("context"), Mapping):
        spans.append({**record, **record["context"]})
    for span in spans:
        events = [
            (str(each.get("name")), _attributes(each.get("attributes"))) for each in span.get("events", ())
        ]
        attributes = _attributes(span.get("attributes"))
        attributes = {key: value for _, event in events for key, value in event.items()} | attributes
        status = span.get("status") or {}
        failed = status.get("code") in (2, "STATUS_CODE_ERROR") or status.get("status_code") == "ERROR"
        start = span.get("startTimeUnixNano") or 0
        trace = str(span.get("traceId", span.get("trace_id", "")))
        named = [
            each
            for each in events
            if each[0].startswith("gen_ai.") and "gen_ai.input.messages" not in each[1]
        ]
        yield _OtlpRow(int(start), trace, attributes, named, failed)


def _log_rows(record: Mapping[str, Any]) -> Iterator[_OtlpRow]:
    """Yield the log records of each span: some instrumentations write messages there."""
    groups = record.get("resourceLogs", record.get("resource_logs")) or ()
    spans: dict[tuple[str, str], list[tuple[int, str, Mapping[str, Any]]]] = {}
    for resource in groups:
        for scope in resource.get("scopeLogs", resource.get("scope_logs", ())):
            for log in scope.get("logRecords", scope.get("log_records", ())):
                attributes = _attributes(log.get("attributes"))
                body = _attribute(log.get("body"))
                name = log.get("eventName") or attributes.get("event.name") or ""
                at = int(log.get("timeUnixNano") or log.get("observedTimeUnixNano") or 0)
                event = {**attributes, **(body if isinstance(body, Mapping) else {})}
                key = str(log.get("traceId") or ""), str(log.get("spanId") or "")
                spans.setdefault(key, []).append((at, str(name), event))
    for (trace, _span), logs in spans.items():
        logs.sort(key=lambda log: log[0])
        yield _OtlpRow(logs[0][0], trace, {}, [(name, event) for _at, name, event in logs])


def _event_items(name: str, event: Mapping[str, Any]) -> list[Item]:
    """Return the steps in an event like `gen_ai.user.message` or `gen_ai.choice`."""
    if name == "gen_ai.choice":
        return answer_items(event.get("message", event))
    role = name.removeprefix("gen_ai.").removesuffix(".message")
    return message_items({**event, "role": role, "content": parsed(event.get("content"))})


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


def _phoenix(record: Mapping[str, Any], path: Path, _: int, found: ReadTraces) -> bool:
    context = record.get("context") if isinstance(record.get("context"), Mapping) else {}
    assert isinstance(context, Mapping)
    attributes = record.get("attributes", record)
    flat = dict(_flattened(parsed(attributes)))
    trace = str(record.get("trace_id") or context.get("trace_id") or record.get("context.trace_id") or "")
    if named := flat.get("session.id"):
        found.conversations[trace] = str(named)
    session = found.session(str(named or found.conversations.get(trace, trace)), str(path))
    session.failed |= str(record.get("status_code") or "").upper() == "ERROR"
    kind = record.get("span_kind") or flat.get("openinference.span.kind")
    return _openinference({**flat, "openinference.span.kind": kind}, session, found)


def _flattened(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flattened(item, f"{prefix}{key}.")
    elif isinstance(value, list) and any(isinstance(each, Mapping) for each in value):
        for at, item in enumerate(value):
            yield from _flattened(item, f"{prefix}{at}.")
    elif prefix:
        yield prefix[:-1].removeprefix("attributes."), value


def _openinference(attributes: Mapping[str, Any], session: RecordedSession, found: ReadTraces) -> bool:
    kind = str(attributes.get("openinference.span.kind") or "").upper()
    if kind == "TOOL":
        found.forms["phoenix"] += 1
        key = attributes.get("tool_call.id") or attributes.get("tool.name")
        session.add_result(key, attributes.get("output.value"))
        return True
    received = _numbered(attributes, "llm.input_messages.")
    answered = _numbered(attributes, "llm.output_messages.")
    if kind != "LLM" and not received:
        return bool(kind)
    found.forms["phoenix"] += 1
    session.add(
        [item for each in received for item in items_of([each])],
        [item for each in answered for item in answer_items(each)],
    )
    return True


def _numbered(attributes: Mapping[str, Any], prefix: str) -> list[dict[str, Any]]:
    """Return messages from attributes such as `llm.input_messages.0.message.tool_calls.0.tool_call.id`."""
    messages: dict[int, dict[str, Any]] = {}
    for key, value in attributes.items():
        if not key.startswith(prefix):
            continue
        number, _, rest = key.removeprefix(prefix).removeprefix("message.").partition(".")
        if not number.isdecimal():
            continue
        message = messages.setdefault(int(number), {})
        rest = rest.removeprefix("message.")
        if rest.startswith("tool_calls."):
            at, _, name = rest.removeprefix("tool_calls.").partition(".")
            calls = message.setdefault("tool_calls", {})
            call = calls.setdefault(at, {"function": {}})
            last = name.removeprefix("tool_call.")
            (call["function"] if last.startswith("function.") else call)[last.removeprefix("function.")] = (
                value
            )
        elif rest in ("role", "content", "name", "tool_call_id"):
            message[rest] = value
        elif rest.endswith("message_content.text"):
            message["content"] = f"{message.get('content', '')}{value}"
    made = [messages[number] for number in sorted(messages)]
    for message in made:
        if isinstance(message.get("tool_calls"), Mapping):
            message["tool_calls"] = list(message["tool_calls"].values())
    return made


def _langfuse(record: Mapping[str, Any], path: Path, _: int, found: ReadTraces) -> bool:
    observations = record.get("observations")
    rows = observations if isinstance(observations, list) else [record]
    rows = [row for row in rows if isinstance(row, Mapping)]
    rows.sort(key=lambda row: str(row.get("startTime") or row.get("start_time") or ""))
    for row in rows:
        trace = row.get("traceId") or row.get("trace_id") or record.get("id")
        if named := record.get("sessionId") or row.get("sessionId") or record.get("session_id"):
            found.conversations[str(trace)] = str(named)
        id = found.conversations.get(str(trace), str(trace))
        session = found.session(id, str(path))
        session.failed |= str(row.get("level") or "").upper() == "ERROR"
        kind = str(row.get("type") or "").upper()
        if kind == "GENERATION" or (row is record and not kind):
            found.forms["langfuse"] += 1
            at = row.get("startTime") or row.get("start_time") or row.get("timestamp")
            session.add(items_of(row.get("input")), answer_items(row.get("output")), at)
        elif kind == "TOOL":
            session.add_result(row.get("name"), row.get("output"))
    return bool(rows)


def _langsmith(record: Mapping[str, Any], path: Path, _: int, found: ReadTraces) -> bool:
    extra = record.get("extra") if isinstance(record.get("extra"), Mapping) else {}
    assert isinstance(extra, Mapping)
    metadata = extra.get("metadata") if isinstance(extra.get("metadata"), Mapping) else {}
    assert isinstance(metadata, Mapping)
    named = metadata.get("thread_id") or metadata.get("session_id") or record.get("thread_id")
    session = found.session(str(named or record.get("trace_id") or record.get("id")), str(path))
    session.failed |= bool(record.get("error"))
    inputs, outputs = record.get("inputs"), record.get("outputs")
    if record.get("run_type") in ("llm", "chat_model"):
        found.forms["langsmith"] += 1
        session.add(items_of(inputs), answer_items(outputs), record.get("start_time"))
    elif record.get("run_type") == "tool":
        output = outputs.get("output", outputs) if isinstance(outputs, Mapping) else outputs
        result = output.get("content", output) if isinstance(output, Mapping) else output
        session.add_result(record.get("name"), result)
    for child in record.get("child_runs") or ():
        _langsmith({"trace_id": session.id, **child}, path, 0, found)
    return True


def _openai(record: Mapping[str, Any], path: Path, number: int, found: ReadTraces) -> bool:
    request = record.get("request") or record.get("body") or record
    response = record.get("response") or record.get("completion") or record
    if isinstance(response, Mapping) and isinstance(response.get("body"), Mapping):
        response = response["body"]
    request, response = parsed(request), parsed(response)
    if not isinstance(request, Mapping) or not isinstance(response, Mapping):
        return False
    received = items_of(request.get("messages", request.get("input")))
    answered = answer_items({key: response[key] for key in ("choices", "output") if key in response})
    if not received and not answered:
        return False
    found.forms["openai"] += 1
    earlier = request.get("previous_response_id")
    id = _continued(found, earlier, received, path) or f"{path.name}:{number}"
    session = found.session(id, str(path))
    session.add(received, answered)
    if response.get("id"):
        session.responses.add(str(response["id"]))
    return True


def _continued(found: ReadTraces, earlier: Any, received: Sequence[Item], path: Path) -> str | None:
    """Return the session that a request continues: by response id, or because it repeats its messages."""
    for session in islice(reversed(found.sessions.values()), _CONTINUED):
        if earlier and str(earlier) in session.responses:
            return session.id
        known = [*map(step_key, session.items)]
        if session.file == str(path) and known and [*map(step_key, received[: len(known)])] == known:
            return session.id
    return None


def _adk(record: Mapping[str, Any], path: Path, number: int, found: ReadTraces) -> bool:
    events = record.get("events")
    if not isinstance(events, list):
        return False
    found.forms["adk"] += 1
    session = found.session(str(record.get("id") or f"{path.name}:{number}"), str(path))
    for event in events:
        content = event.get("content") if isinstance(event, Mapping) else None
        if isinstance(content, Mapping):
            role = "user" if event.get("author") == "user" else content.get("role") or "model"
            parts = content.get("parts") or []
            is_answer = any(is_call_part(part) and "esponse" in "".join(part) for part in parts)
            role = "tool" if is_answer else "assistant" if role not in ("user",) else role
            session.items += message_items({"role": role, "parts": parts})
            session.failed |= bool(event.get("errorCode") or event.get("error_code"))
    return True


def _agentest(record: Mapping[str, Any], path: Path, number: int, found: ReadTraces) -> bool:
    """Read a results.json, or a line of a journal. A journal has lines without conversations, too."""
    if "scenarios" in record:
        entries = [inner for each in record["scenarios"] for inner in each.get("agents", (each,))]
        conversations = [each for entry in entries for each in entry.get("conversations", ())]
    else:
        conversations = [each for key in ("conversation", "result") if (each := record.get(key))]
    for conversation in conversations:
        id = str(conversation.get("conversationId") or f"{path.name}:{number}")
        if id in found.sessions and found.sessions[id].file != str(path):
            id = f"{id} of {path.parent.name}"
        session = found.session(id, str(path))
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


def _jsonl(record: Mapping[str, Any], path: Path, number: int, found: ReadTraces) -> bool:
    keys = ("session_id", "sessionId", "conversation_id", "conversationId", "thread_id", "id")
    named = next((record[key] for key in keys if record.get(key)), None)
    if "messages" in record:
        session = found.session(str(named or f"{path.name}:{number}"), str(path))
        session.add(items_of(record["messages"]), ())
    elif "role" in record:
        session = found.session(str(named or path.name), str(path))
        session.items += items_of([record])
    else:
        return False
    found.forms["jsonl"] += 1
    session.failed |= bool(record.get("error"))
    return True


_READERS: Mapping[str, Read] = {
    "otlp": _otlp,
    "langfuse": _langfuse,
    "langsmith": _langsmith,
    "phoenix": _phoenix,
    "openai": _openai,
    "adk": _adk,
    "agentest": _agentest,
    "jsonl": _jsonl,
}


def _reader_of(record: Any) -> Read | None:
    """Return the reader for a record by its keys; None if its form is unknown."""
    if not isinstance(record, Mapping):
        return None
    if {"resourceSpans", "resource_spans", "resourceLogs", "resource_logs"} & record.keys():
        return _otlp
    if "run_type" in record:
        return _langsmith
    is_line = record.get("type") in ("run", "conversation", "scenario", "end") or "scope" in record
    if ("schemaVersion" in record and "scenarios" in record) or (
        is_line and any(key in record for key in ("schemaVersion", "conversation", "result", "scenario"))
    ):
        return _agentest
    kinds = ("GENERATION", "SPAN", "EVENT", "TOOL", "AGENT", "CHAIN", "RETRIEVER")
    if (
        isinstance(record.get("observations"), list)
        or (("traceId" in record or "trace_id" in record) and str(record.get("type")).upper() in kinds)
        or ({"sessionId", "timestamp", "input", "output"} <= record.keys())
    ):
        return _langfuse
    attributes = record.get("attributes")
    if isinstance(record.get("context"), Mapping) and any(
        str(key).startswith("gen_ai.") for key in (attributes or ())
    ):
        return _otlp
    if "span_kind" in record or (
        isinstance(attributes, Mapping)
        and any(str(key).startswith(("llm", "openinference")) for key in attributes)
    ):
        return _phoenix
    if isinstance(record.get("events"), list) and "context" not in record:
        return _adk
    is_log = any(
        key in record for key in ("choices", "request", "response", "completion", "previous_response_id")
    )
    if is_log or ("input" in record and "output" in record and isinstance(record["input"], list)):
        return _openai
    if isinstance(record.get("messages"), list) or ("role" in record and "content" in record):
        return _jsonl
    return None
