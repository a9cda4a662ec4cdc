"""The reply in an agent's finished work: its text, remarks, tool calls and token usage.

Calls are read in the forms of google-adk (function calls in data parts) and LangGraph's server (results
in histories).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from agentest.agents import json_reader as reader
from agentest.agents.port import AgentReply
from agentest.domain.transcript import ARGUMENTS_UNKNOWN, Remark, ToolCall, Usage
from agentest.plugins.protocols.a2a.task import INPUT_REQUIRED, A2aPart, AgentWork, Artifact, Json, as_json
from agentest.plugins.protocols.protocol_client import ReportedResults, agent_call
from agentest.support.errors import AgentError
from agentest.support.json_text import with_integers

_AUTHOR, _EVENT, _USAGE = "adk_author", "adk_event_id", "adk_usage_metadata"
_INTERRUPT_KEYS = ({"id", "value"}, {"id", "value", "response_schema"})
_CALL_TYPES = ("function_call", "functionCall")
_RESPONSE_TYPES = ("function_response", "functionResponse")
_ADK_KEYS = ("adk_app_name", "adk_session_id", "adk_invocation_id")


def check_ended_well(work: AgentWork, credentials: str) -> None:
    """Raise AgentError if the work failed. `credentials` describes those that the agent's card requires."""
    if work.message is not None or work.state in ("completed", INPUT_REQUIRED):
        return
    text = text_of_parts(work.status_message.parts) if work.status_message else ""
    reason = f": {text}" if text else ", and it does not say why"
    match work.state:
        case "rejected":
            raise AgentError(f"the agent rejected the task{reason}")
        case "canceled":
            raise AgentError(f"the agent canceled the task{reason}")
        case "auth-required":
            asks = f"; its card asks for {credentials}" if credentials else ""
            raise AgentError(
                f"the agent's task wants credentials (auth-required){reason}{asks}; `headers` of the agent "
                "are sent with every request"
            )
    raise AgentError(f"the agent's task failed{reason}")


def parts_of(work: AgentWork) -> list[A2aPart]:
    """Return all parts that the agent has sent, in order."""
    parts = [part for message in work.heard for part in message.parts]
    return parts + [part for artifact in work.artifacts.values() for part in artifact.parts]


def reports_all_calls(work: AgentWork) -> bool:
    """Return whether the work comes from a server that reports all calls."""
    of_messages = [data for message in work.heard for data in (message.update, message.metadata)]
    of_artifacts = [artifact.metadata for artifact in work.artifacts.values()]
    metadata = [*work.metadata, *of_messages, *of_artifacts, work.task_metadata]
    by_adk = any(key in entry for entry in metadata for key in _ADK_KEYS)
    return by_adk or any(_results(part) is not None for part in parts_of(work))


def read_reply_text(work: AgentWork, name: str, shown_artifacts: Mapping[str, str]) -> AgentReply:
    """Read the reply's text and remarks. `name` is the author of remarks without one.

    `shown_artifacts`: artifacts → their texts, as far as earlier turns have shown them.
    """
    artifacts = list(_new_artifacts(work, shown_artifacts))
    has_new_artifact = (
        work.message is None
        and work.state != INPUT_REQUIRED
        and any(
            shown_artifacts.get(artifact.id) != text_of_parts(artifact.parts)
            for artifact in work.artifacts.values()
        )
    )
    text, used = _reply_text(work, artifacts, has_new_artifact)
    if not text.strip():
        spoken = [] if has_new_artifact else [text_of_parts(message.parts) for message in work.heard]
        text = next((one for one in reversed(spoken) if one.strip()), "") or _fallback_text(work)
    texts = [
        (_author(message.update) or _author(message.metadata) or name, text_of_parts(message.parts))
        for message in work.heard
    ]
    texts += [(_author(artifact.metadata) or name, one) for artifact, one in artifacts]
    # The metadata of a finished task does not count, because it names only the last author.
    authors = [_author(metadata) for metadata in work.metadata]
    authors += [_author(artifact.metadata) for artifact in work.artifacts.values()]
    return AgentReply(
        text=text or None,
        remarks=tuple(_remarks(texts, {text.strip(), *(one.strip() for one in used.values())})),
        author=next(filter(None, reversed(authors)), None),
        first_token_ms=_first_ms(work, text, used),
    )


def _reply_text(
    work: AgentWork, artifacts: Sequence[tuple[Artifact, str]], has_new_artifact: bool
) -> tuple[str, Mapping[str, str]]:
    if work.message is not None:
        return text_of_parts(work.message.parts), {}
    status_text = text_of_parts(work.status_message.parts) if work.status_message else ""
    if status_text and work.state == INPUT_REQUIRED:
        return status_text, {}
    events = [artifact.id for artifact, _ in artifacts if _EVENT in artifact.metadata]
    used = {artifact.id: text for artifact, text in artifacts if artifact.id not in events[:-1]}
    if used or has_new_artifact:
        return "\n\n".join(used.values()), used
    return status_text, {}


def texts_by_artifact(work: AgentWork) -> dict[str, str]:
    """Return the artifacts that a continuing task has shown so far, with their texts."""
    return {artifact.id: text_of_parts(artifact.parts) for artifact in work.artifacts.values()}


def text_of_parts(parts: Sequence[A2aPart]) -> str:
    """Return the text that parts show the user: joined texts, else data as JSON; then the files."""
    outer = [part for part in parts if not _is_inner(part)]
    text = "".join(part.text for part in outer if part.text)
    if not text:
        text = "\n".join(_data_text(part.data) for part in outer if part.data is not None)
    return "\n".join(filter(None, [text, *(part.file for part in outer if part.file)]))


def _data_text(data: Any) -> str:
    if isinstance(data, Mapping) and data.keys() in _INTERRUPT_KEYS:
        data = data["value"]
    return data if isinstance(data, str) else as_json(data)


def _new_artifacts(work: AgentWork, shown_artifacts: Mapping[str, str]) -> Iterator[tuple[Artifact, str]]:
    for artifact in work.artifacts.values():
        text, before = text_of_parts(artifact.parts), shown_artifacts.get(artifact.id, "")
        text = text.removeprefix(before) if before else text
        if text.strip():
            yield artifact, text


def _fallback_text(work: AgentWork) -> str:
    for part in parts_of(work)[-1:]:
        call, response = _function_of(part, _CALL_TYPES), _function_of(part, _RESPONSE_TYPES)
        if call is not None and work.state == INPUT_REQUIRED:
            return as_json({"name": call["name"], "args": call.get("args", {})})
        if response is not None:
            return as_json(response.get("response"))
    return ""


def _remarks(authored: Sequence[tuple[str, str]], reply: Set[str]) -> Iterator[Remark]:
    texts = [(author, text.strip()) for author, text in authored]
    known: set[tuple[str, str]] = set()
    for at, (author, text) in enumerate(texts):
        grows = at + 1 < len(texts) and texts[at + 1][1].startswith(text)
        is_in_reply = any(full_text.startswith(text) for full_text in reply)
        if text and not grows and not is_in_reply and (author, text) not in known:
            known.add((author, text))
            yield Remark(author, text)


def _author(metadata: Json) -> str:
    return reader.text_at(metadata, _AUTHOR)


def _first_ms(work: AgentWork, reply: str, shown_artifacts: Container[str]) -> float | None:
    pieces = [came for artifact, came in work.came_ms.items() if artifact in shown_artifacts]
    for message in work.heard:
        text = text_of_parts(message.parts).strip()
        if message.at_ms is not None and text and reply.strip().startswith(text):
            pieces.append(message.at_ms)
    return min(pieces, default=None)


def read_usage(work: AgentWork, known: set[str]) -> tuple[Usage, int | None]:
    """Return the tokens that google-adk reports, and the number of model responses.

    A task that is reported only at its end has the tokens of its last response. The number is then None.
    Events in `known` were counted before; those of this work are added.
    """
    reported = [*work.metadata, *(artifact.metadata for artifact in work.artifacts.values())]
    counted = [_tokens(report) for report in reported if _is_new_usage(report, known)]
    if not counted and _is_new_usage(work.task_metadata, known):
        return _tokens(work.task_metadata), None
    return sum(counted, Usage()), len(counted) or None


def _is_new_usage(metadata: Json, known: set[str]) -> bool:
    event = reader.text_at(metadata, _EVENT)
    if not reader.mapping_at(metadata, _USAGE) or event in known:
        return False
    if event:
        known.add(event)
    return True


def _tokens(metadata: Json) -> Usage:
    reported = with_integers(reader.mapping_at(metadata, _USAGE))
    return reader.reported_usage(reported) or Usage()


def _is_inner(part: A2aPart) -> bool:
    return bool(part.metadata.get("adk_thought")) or _adk_type(part) != "" or _results(part) is not None


def _adk_type(part: A2aPart) -> str:
    """Return google-adk's type of a part's data, such as `function_call`; "" for other parts."""
    if not isinstance(part.data, Mapping):
        return ""
    named = (value for key, value in part.metadata.items() if key == "type" or key.endswith("_type"))
    return next((value for value in named if isinstance(value, str)), "")


def _function_of(part: A2aPart, kinds: Sequence[str]) -> Json | None:
    """Return the function call or response in a part of one of these kinds. Raises AgentError."""
    if _adk_type(part) not in kinds:
        return None
    if not reader.text_at(part.data, "name"):
        raise AgentError(f"a `{kinds[0]}` of the agent has no name: {reader.excerpt(part.data)}")
    return dict(part.data)


def read_calls(parts: Sequence[A2aPart], turn_index: int) -> list[ToolCall]:
    """Return the calls in order, each once and with its result. Raises AgentError for unnamed calls."""
    responses = [one for part in parts if (one := _function_of(part, _RESPONSE_TYPES)) is not None]
    results = ReportedResults({**one, "response": with_integers(one.get("response"))} for one in responses)
    reported: dict[tuple[str, str], ToolCall] = {}
    for number, call in enumerate(_reported_calls(parts, turn_index)):
        # The same id with another name is another call.
        key = (call.call_id or f"#{number}", call.name)
        if key not in reported:
            result = results.take(call.name, call.call_id)
            reported[key] = call if result is None else replace(call, result=result)
    without_call = {
        identifier: agent_call(
            name=name,
            args=None,
            turn_index=turn_index,
            result=result,
            invalid_arguments=ARGUMENTS_UNKNOWN,
            call_id=identifier,
        )
        for (identifier, name), result in results.by_id.items()
        if (identifier, name) not in reported
    }
    return [*reported.values(), *without_call.values()]


def _reported_calls(parts: Iterable[A2aPart], turn_index: int) -> Iterator[ToolCall]:
    for part in parts:
        if (call := _function_of(part, _CALL_TYPES)) is not None:
            yield agent_call(
                name=call["name"],
                args=with_integers(call.get("args", {})),
                turn_index=turn_index,
                result=None,
                call_id=reader.text_at(call, "id") or None,
            )
        for result in _results(part) or ():
            name, content = result.get("name"), result.get("content")
            if not isinstance(name, str) or not name:
                raise AgentError(f"a tool result of the agent has no name: {reader.excerpt(result)}")
            yield agent_call(
                name=name,
                args=None,
                turn_index=turn_index,
                result=reader.read_result(content),
                invalid_arguments=ARGUMENTS_UNKNOWN,
                error=str(content) if result.get("status") == "error" else None,
                call_id=reader.text_at(result, "toolCallId") or None,
            )


def _results(part: A2aPart) -> Sequence[Json] | None:
    results = part.data.get("tool_results") if isinstance(part.data, Mapping) else None
    return results if reader.is_list_of_objects(results) else None
