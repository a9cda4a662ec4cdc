"""Readers for the values that an A2A agent sends, which return one form for both versions.

Every reader accepts both spellings, because servers mix them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from agentest.agents.json_reader import excerpt, is_list_of_objects, mapping_at, text_at
from agentest.support.errors import AgentError
from agentest.support.lazy_dataclasses import dataclass

_NOTHING: Mapping[str, Any] = {}

Json = Mapping[str, Any]


TASK, MESSAGE, STATUS, ARTIFACT = "task", "message", "statusUpdate", "artifactUpdate"
"""Kinds of results, as the keys of 1.0."""
_OLD_KINDS = {"task": TASK, "message": MESSAGE, "status-update": STATUS, "artifact-update": ARTIFACT}


@dataclass(frozen=True, slots=True, kw_only=True)
class A2aPart:
    """A part of a message or an artifact."""

    text: str | None = None
    data: Any = None
    file: str = ""  # a description of the file; "" for a part without a file
    unknown: str = ""  # the type that a part of unknown kind names
    metadata: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class A2aMessage:
    """A message of either side."""

    parts: tuple[A2aPart, ...]
    of_user: bool = False
    id: str = ""
    task_id: str = ""
    context_id: str = ""
    metadata: Json = field(default_factory=dict)
    update: Json = field(default_factory=dict, compare=False)
    """The metadata of the update that contained the message."""
    at_ms: float | None = field(default=None, compare=False)
    """When the message arrived, in milliseconds; None if the response was not a stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A result of a task, or a piece of it."""

    id: str
    parts: tuple[A2aPart, ...]
    metadata: Json = field(default_factory=dict)


def kind_of(result: Any) -> tuple[str | None, Json]:
    """Return a result's kind, None if unknown, and its content. Raises AgentError."""
    if not isinstance(result, Mapping):
        raise AgentError(f"the agent's answer is neither a task nor a message of A2A: {excerpt(result)}")
    for kind in (TASK, MESSAGE, STATUS, ARTIFACT):
        if isinstance(result.get(kind), Mapping) and not {"parts", "id", "taskId"} & result.keys():
            return kind, result[kind]
    if isinstance(result.get("kind"), str):
        return _OLD_KINDS.get(result["kind"]), result
    if "artifact" in result:
        return ARTIFACT, result
    if "status" in result:
        return TASK if "id" in result else STATUS, result
    return MESSAGE if "parts" in result else None, result


def _name_of_kind(value: Json) -> str:
    return str(value.get("kind") or next(iter(value), "{}"))


def read_message(value: Any, update: Json = _NOTHING, at_ms: float | None = None) -> A2aMessage:
    """Read a message that arrived in an update with this metadata. Raises AgentError."""
    if not isinstance(value, Mapping):
        raise AgentError(f"a message of the agent is not an object: {excerpt(value)}")
    return A2aMessage(
        parts=_parts(value, "message"),
        of_user=str(value.get("role", "")).lower().endswith("user"),
        id=text_at(value, "messageId"),
        task_id=text_at(value, "taskId"),
        context_id=text_at(value, "contextId"),
        metadata=mapping_at(value, "metadata"),
        update=update,
        at_ms=at_ms,
    )


def read_artifact(value: Any) -> Artifact:
    """Read an artifact. Raises AgentError."""
    if not isinstance(value, Mapping):
        raise AgentError(f"an artifact of the agent is not an object: {excerpt(value)}")
    return Artifact(
        id=text_at(value, "artifactId"),
        parts=_parts(value, "artifact"),
        metadata=mapping_at(value, "metadata"),
    )


def list_at(value: Json, key: str) -> list[Any]:
    """Return the list at a key; empty if the key is missing. Raises AgentError for any other value."""
    value_at_key = value.get(key)
    if value_at_key is None:
        return []
    if not isinstance(value_at_key, list):
        raise AgentError(f"`{key}` of the agent's answer is not a list: {excerpt(value_at_key)}")
    return value_at_key


def _parts(value: Json, owner: str) -> tuple[A2aPart, ...]:
    found = value.get("parts")
    parts = [] if found is None else found
    if not is_list_of_objects(parts):
        raise AgentError(f"the `parts` of the agent's {owner} are not a list of objects: {excerpt(parts)}")
    return tuple(map(_part, parts))


def _part(part: Json) -> A2aPart:
    metadata = mapping_at(part, "metadata")
    text = part.get("text")
    if isinstance(text, str):
        return A2aPart(text=text, metadata=metadata)
    if text is not None:
        raise AgentError(f"the `text` of a part of the agent's answer is not a text: {excerpt(part)}")
    if part.get("data") is not None:
        return A2aPart(data=part["data"], metadata=metadata)
    if file := _file(part):
        return A2aPart(file=file, metadata=metadata)
    return A2aPart(unknown=_name_of_kind(part), metadata=metadata)


def _file(part: Json) -> str:
    file = mapping_at(part, "file") or part
    if not any(isinstance(file.get(key), str) for key in ("raw", "bytes", "url", "uri")):
        return ""
    keys = (("filename", "name"), ("mediaType", "mimeType"), ("url", "uri"))
    words = [text_at(file, new) or text_at(file, old) for new, old in keys]
    return f"[file: {', '.join(filter(None, words)) or 'without a name'}]"


def as_json(value: Any) -> str:
    """Return data as JSON text."""
    return json.dumps(value, ensure_ascii=False)


INPUT_REQUIRED = "input-required"
_FINAL_STATES = ("completed", "failed", "canceled", "rejected")
_WAITING_STATES = (INPUT_REQUIRED, "auth-required")

OnUnknown = Callable[[str, str], None]
"""Called for a value of unknown type with `event` or `part`, and the type that the value names."""


@dataclass(slots=True)
class AgentWork:
    """The agent's work on one user message, in order. `take` adds what the agent sends."""

    on_unknown: OnUnknown
    task_id: str = ""
    context_id: str = ""
    state: str = ""  # the task's state; "" while it is unknown
    status_message: A2aMessage | None = None  # the message of the task's last status
    message: A2aMessage | None = None  # the reply of an agent that did not create a task
    heard: list[A2aMessage] = field(default_factory=list)
    artifacts: dict[str, Artifact] = field(default_factory=dict)
    came_ms: dict[str, float] = field(default_factory=dict)
    """Artifact → when its first piece arrived, in milliseconds."""
    metadata: list[Json] = field(default_factory=list)  # the metadata of the updates, in order
    task_metadata: Json = field(default_factory=dict)
    closed: bool = False  # True if the stream has ended the work
    known: set[str] = field(default_factory=set)
    """Ids of messages that the agent has sent before, in this turn or an earlier one."""

    @property
    def ended(self) -> bool:
        """True if the agent has replied, or its task has ended or waits for the user."""
        return self.message is not None or self.state in (*_FINAL_STATES, *_WAITING_STATES)

    def take(self, result: Any, at_ms: float | None = None) -> None:
        """Add a result. Raises AgentError for a value that A2A does not define."""
        kind, value = kind_of(result)
        if kind == TASK:
            self.take_task(value, at_ms)
        elif kind == MESSAGE:
            self.message = read_message(value, at_ms=at_ms)
            self._set_ids("", value)
            self._add_message(self.message)
            self.closed = True
        elif kind is None:
            self.on_unknown("event", _name_of_kind(value))
        elif self.task_id and text_at(value, "taskId") not in ("", self.task_id):
            self.on_unknown("update", "of another task")
        else:
            self._take_update(kind, value, at_ms)

    def take_task(self, value: Json, at_ms: float | None = None) -> None:
        """Replace the work with a task's current state, artifacts and history. Raises AgentError."""
        if "status" not in value:
            raise AgentError(f"the agent's task has no status, and the keys {', '.join(map(str, value))}")
        task_id = text_at(value, "id")
        if self.task_id and task_id not in ("", self.task_id):
            raise AgentError(
                f"the agent reported the task {task_id} instead of {self.task_id}, so it did not answer this "
                "message"
            )
        self._set_ids(task_id, value)
        self.task_metadata = mapping_at(value, "metadata")
        history = [read_message(item, at_ms=at_ms) for item in list_at(value, "history")]
        # Some servers always send the whole conversation.
        last_user = max((at for at, message in enumerate(history) if message.of_user), default=-1)
        for message in history[last_user + 1 :]:
            if message.task_id in ("", self.task_id):
                self._add_message(message, may_repeat=True)
        self.artifacts = {}
        for item in list_at(value, "artifacts"):
            self._add_artifact(read_artifact(item), False, at_ms)
        self._set_status(value["status"], {}, at_ms, may_repeat=True)
        self.closed = self.state in _FINAL_STATES  # a waiting task may be reported again before it continues

    def _take_update(self, kind: str, value: Json, at_ms: float | None) -> None:
        self._set_ids(text_at(value, "taskId"), value)
        metadata = mapping_at(value, "metadata")
        self.metadata.append(metadata)
        if kind == ARTIFACT:
            self._add_artifact(read_artifact(value.get("artifact")), value.get("append") is True, at_ms)
            return
        self._set_status(value.get("status"), metadata, at_ms)
        final = value.get("final")
        # 1.0 has no `final`; a 0.3 task may request input and continue in the same stream.
        self.closed = final is True or self.state in _FINAL_STATES or (final is None and self.ended)

    def _set_ids(self, task_id: str, value: Json) -> None:
        self.task_id = task_id or self.task_id
        self.context_id = text_at(value, "contextId") or self.context_id

    def _set_status(self, status: Any, update: Json, at_ms: float | None, may_repeat: bool = False) -> None:
        state = status.get("state") if isinstance(status, Mapping) else None
        if not isinstance(state, str) or not state:
            raise AgentError(f"a task of the agent has no state: {excerpt(status)}")
        # In the spelling of 0.3, such as `input-required`.
        plain = state.removeprefix("TASK_STATE_").lower().replace("_", "-")
        self.state, value = "canceled" if plain == "cancelled" else plain, status.get("message")
        self.status_message = None if value is None else read_message(value, update, at_ms)
        if self.status_message is not None:
            self._add_message(self.status_message, may_repeat)

    def _add_message(self, message: A2aMessage, may_repeat: bool = False) -> None:
        if message.of_user or message.id in self.known:
            return
        if may_repeat and not message.id and message in self.heard:
            return
        if message.id:
            self.known.add(message.id)
        self._report_unknown_parts(message.parts)
        self.heard.append(message)

    def _add_artifact(self, artifact: Artifact, append: bool, at_ms: float | None) -> None:
        self._report_unknown_parts(artifact.parts)
        if at_ms is not None:
            self.came_ms.setdefault(artifact.id, at_ms)
        old = self.artifacts.get(artifact.id) if append else None
        if old is not None:
            artifact = Artifact(
                id=artifact.id,
                parts=(*old.parts, *artifact.parts),
                metadata={**old.metadata, **artifact.metadata},
            )
        self.artifacts[artifact.id] = artifact

    def _report_unknown_parts(self, parts: tuple[A2aPart, ...]) -> None:
        for part in parts:
            if part.unknown:
                self.on_unknown("part", part.unknown)
