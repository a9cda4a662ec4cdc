"""Readers for the values that an A2A agent sends, which return one form for both versions.

Every reader accepts both spellings, because servers mix them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from agentest.agents.json_reader import shown
from agentest.support.errors import AgentError

_PREFIX = "TASK_STATE_"
_NO_DATA = object()

Json = Mapping[str, Any]


class ResultKind(StrEnum):
    """The kind of a result."""

    TASK = "task"
    MESSAGE = "message"
    STATUS = "statusUpdate"
    ARTIFACT = "artifactUpdate"


_OLD_KINDS = {
    "task": ResultKind.TASK,
    "message": ResultKind.MESSAGE,
    "status-update": ResultKind.STATUS,
    "artifact-update": ResultKind.ARTIFACT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class A2aPart:
    """A part of a message or an artifact."""

    text: str | None = None
    data: Any = _NO_DATA
    file: str = ""
    """A description of the file; "" for a part without a file."""
    unknown: str = ""
    """The type that a part of unknown kind names."""
    metadata: Json = field(default_factory=dict)

    @property
    def has_data(self) -> bool:
        """True if the part has data, which may be null."""
        return self.data is not _NO_DATA


@dataclass(frozen=True, slots=True, kw_only=True)
class A2aMessage:
    """A message of either side."""

    parts: tuple[A2aPart, ...]
    of_user: bool = False
    id: str = ""
    task_id: str = ""
    context_id: str = ""
    metadata: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A result of a task, or a piece of it."""

    id: str
    parts: tuple[A2aPart, ...]
    metadata: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStatus:
    """The status of a task. `state` has the spelling of 0.3, such as `input-required`."""

    state: str
    message: A2aMessage | None = None


def kind_of(result: Any) -> tuple[ResultKind | None, Json]:
    """Return a result's kind, None if unknown, and its content. Raises AgentError."""
    if not isinstance(result, Mapping):
        raise AgentError(f"the agent's answer is neither a task nor a message of A2A: {shown(result)}")
    for kind in ResultKind:
        if isinstance(result.get(kind.value), Mapping) and not {"parts", "id", "taskId"} & result.keys():
            return kind, result[kind.value]
    named = result.get("kind")
    if isinstance(named, str):
        return _OLD_KINDS.get(named), result
    return _by_form(result), result


def _by_form(result: Json) -> ResultKind | None:
    if "artifact" in result:
        return ResultKind.ARTIFACT
    if "status" in result:
        return ResultKind.TASK if "id" in result else ResultKind.STATUS
    return ResultKind.MESSAGE if "parts" in result else None


def name_of_kind(result: Json) -> str:
    """Return the name that a result of unknown kind gives itself."""
    return str(result.get("kind") or next(iter(result), "{}"))


def read_status(value: Any) -> TaskStatus:
    """Read a status. Raises AgentError."""
    state = value.get("state") if isinstance(value, Mapping) else None
    if not isinstance(state, str) or not state:
        raise AgentError(f"a task of the agent has no state: {shown(value)}")
    plain = state.removeprefix(_PREFIX).lower().replace("_", "-")
    message = value.get("message")
    return TaskStatus(
        state="canceled" if plain == "cancelled" else plain,
        message=None if message is None else read_message(message),
    )


def read_message(value: Any) -> A2aMessage:
    """Read a message. Raises AgentError."""
    if not isinstance(value, Mapping):
        raise AgentError(f"a message of the agent is not an object: {shown(value)}")
    return A2aMessage(
        parts=_parts(value, "message"),
        of_user=str(value.get("role", "")).lower().endswith("user"),
        id=text_at(value, "messageId"),
        task_id=text_at(value, "taskId"),
        context_id=text_at(value, "contextId"),
        metadata=mapping_at(value, "metadata"),
    )


def read_artifact(value: Any) -> Artifact:
    """Read an artifact. Raises AgentError."""
    if not isinstance(value, Mapping):
        raise AgentError(f"an artifact of the agent is not an object: {shown(value)}")
    return Artifact(
        id=text_at(value, "artifactId"),
        parts=_parts(value, "artifact"),
        metadata=mapping_at(value, "metadata"),
    )


def list_at(value: Json, key: str) -> list[Any]:
    """Return the list at a key; empty if the key is missing. Raises AgentError for any other value."""
    found = value.get(key)
    if found is None:
        return []
    if not isinstance(found, list):
        raise AgentError(f"`{key}` of the agent's answer is not a list: {shown(found)}")
    return found


def mapping_at(value: Json, key: str) -> Json:
    """Return the object at a key; empty if there is none."""
    found = value.get(key)
    return found if isinstance(found, Mapping) else {}


def text_at(value: Json, key: str) -> str:
    """Return the text at a key; "" if there is none."""
    found = value.get(key)
    return found if isinstance(found, str) else ""


def _parts(value: Json, owner: str) -> tuple[A2aPart, ...]:
    found = value.get("parts")
    parts = [] if found is None else found
    if not isinstance(parts, list) or not all(isinstance(part, Mapping) for part in parts):
        raise AgentError(f"the `parts` of the agent's {owner} are not a list of objects: {shown(parts)}")
    return tuple(map(_part, parts))


def _part(part: Json) -> A2aPart:
    metadata = mapping_at(part, "metadata")
    text = part.get("text")
    if isinstance(text, str):
        return A2aPart(text=text, metadata=metadata)
    if text is not None:
        raise AgentError(f"the `text` of a part of the agent's answer is not a text: {shown(part)}")
    if part.get("data") is not None:
        return A2aPart(data=part["data"], metadata=metadata)
    if file := _file(part):
        return A2aPart(file=file, metadata=metadata)
    return A2aPart(unknown=str(part.get("kind") or next(iter(part), "{}")), metadata=metadata)


def _file(part: Json) -> str:
    """Describe a file as `[file: name, type, address]`; "" for a part without a file."""
    file = mapping_at(part, "file") or part
    if not any(isinstance(file.get(key), str) for key in ("raw", "bytes", "url", "uri")):
        return ""
    keys = (("filename", "name"), ("mediaType", "mimeType"), ("url", "uri"))
    words = [text_at(file, new) or text_at(file, old) for new, old in keys]
    return f"[file: {', '.join(filter(None, words)) or 'without a name'}]"


def as_json(value: Any) -> str:
    """Return data as JSON text."""
    return json.dumps(value, ensure_ascii=False)
