"""What an agent has told of its work on one message: a task as far as it has come, or a message."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from agentest.agents.a2a.reader import (
    Artifact,
    Json,
    Kind,
    Message,
    Part,
    Status,
    kind_of,
    list_at,
    mapping_at,
    name_of_kind,
    read_artifact,
    read_message,
    read_status,
    text_at,
)
from agentest.support.errors import AgentError

INPUT_REQUIRED = "input-required"
_ENDS = ("completed", "failed", "canceled", "rejected")
_PAUSES = (INPUT_REQUIRED, "auth-required")

OnUnknown = Callable[[str, str], None]
"""Receives what something of unknown type is (`event`, `part`), and the type that it calls itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """A message of the agent on the way, and when it came in milliseconds; None: with all the others."""

    message: Message
    metadata: Json = field(default_factory=dict)
    """Of the update that brought it."""
    at_ms: float | None = None


@dataclass(slots=True)
class Work:
    """Everything told about one message of the user, in order. Changed by what comes."""

    on_unknown: OnUnknown
    task_id: str = ""
    context_id: str = ""
    status: Status | None = None
    message: Message | None = None
    """The answer of an agent that makes no task of it."""
    heard: list[Heard] = field(default_factory=list)
    artifacts: dict[str, Artifact] = field(default_factory=dict)
    came_ms: dict[str, float] = field(default_factory=dict)
    """Artifact → when its first piece came."""
    metadata: list[Json] = field(default_factory=list)
    """Of the updates, in order."""
    task_metadata: Json = field(default_factory=dict)
    closed: bool = False
    """Whether a stream has said that no more comes."""
    known: set[str] = field(default_factory=set)
    """Ids of messages that were told before, in earlier turns as well."""

    @property
    def state(self) -> str:
        """The task's state; "" as long as none is known."""
        return self.status.state if self.status else ""

    @property
    def ended(self) -> bool:
        """Whether the agent has nothing more to do before the user says something."""
        return self.message is not None or self.state in (*_ENDS, *_PAUSES)

    def take(self, result: Any, at_ms: float | None = None) -> None:
        """Add a result. Raises AgentError for what is none of A2A's."""
        kind, value = kind_of(result)
        match kind:
            case Kind.TASK:
                self.take_task(value, at_ms)
            case Kind.MESSAGE:
                self._take_message(value, at_ms)
            case Kind.STATUS if self._is_mine(value):
                self._take_status(value, at_ms)
            case Kind.ARTIFACT if self._is_mine(value):
                self._take_artifact(value, at_ms)
            case None:
                self.on_unknown("event", name_of_kind(value))

    def take_task(self, value: Json, at_ms: float | None = None) -> None:
        """Take over a task as it is now, which has all its artifacts and its history. Raises AgentError."""
        if "status" not in value:
            raise AgentError(f"the agent's task has no status, and the keys {', '.join(map(str, value))}")
        self._check_is_mine(text_at(value, "id"))
        self._place(text_at(value, "id"), value)
        self.task_metadata = mapping_at(value, "metadata")
        for item in _this_turn([read_message(item) for item in list_at(value, "history")]):
            if item.task_id in ("", self.task_id):
                self._hear(Heard(message=item, at_ms=at_ms), again=True)
        self.artifacts = {}
        for item in list_at(value, "artifacts"):
            self._add(read_artifact(item), False, at_ms)
        self._set(read_status(value["status"]), {}, at_ms, again=True)
        # A task that waits may be told once more before it goes on.
        self.closed = self.state in _ENDS

    def _take_message(self, value: Json, at_ms: float | None) -> None:
        self.message = read_message(value)
        self._place("", value)
        self._hear(Heard(message=self.message, at_ms=at_ms))
        self.closed = True

    def _take_status(self, value: Json, at_ms: float | None) -> None:
        self._place(text_at(value, "taskId"), value)
        metadata = mapping_at(value, "metadata")
        self.metadata.append(metadata)
        self._set(read_status(value.get("status")), metadata, at_ms)
        final = value.get("final")
        # 1.0 has no `final`; 0.3 may ask for input and go on working.
        self.closed = final is True or self.state in _ENDS or (final is None and self.ended)

    def _take_artifact(self, value: Json, at_ms: float | None) -> None:
        self._place(text_at(value, "taskId"), value)
        self.metadata.append(mapping_at(value, "metadata"))
        self._add(read_artifact(value.get("artifact")), value.get("append") is True, at_ms)

    def _is_mine(self, value: Json) -> bool:
        """Whether an update is about this task: what is said of another one is none of this reply."""
        other = text_at(value, "taskId")
        if self.task_id in ("", other) or not other:
            return True
        self.on_unknown("update", "of another task")
        return False

    def _check_is_mine(self, task_id: str) -> None:
        if self.task_id and task_id not in ("", self.task_id):
            raise AgentError(
                f"the agent told of the task {task_id}, where it is at work on {self.task_id}: that is no "
                "answer to this message"
            )

    def _place(self, task_id: str, value: Json) -> None:
        self.task_id = task_id or self.task_id
        self.context_id = text_at(value, "contextId") or self.context_id

    def _set(self, status: Status, metadata: Json, at_ms: float | None, again: bool = False) -> None:
        self.status = status
        if status.message is not None:
            self._hear(Heard(message=status.message, metadata=metadata, at_ms=at_ms), again)

    def _hear(self, new: Heard, again: bool = False) -> None:
        """Keep a message of the agent, once. A task, told `again`, repeats what was told before."""
        message = new.message
        if message.of_user or message.id in self.known:
            return
        if again and not message.id and any(heard.message == message for heard in self.heard):
            return
        if message.id:
            self.known.add(message.id)
        self._count_unknown(message.parts)
        self.heard.append(new)

    def _add(self, artifact: Artifact, append: bool, at_ms: float | None) -> None:
        self._count_unknown(artifact.parts)
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

    def _count_unknown(self, parts: tuple[Part, ...]) -> None:
        for part in parts:
            if part.unknown:
                self.on_unknown("part", part.unknown)


def _this_turn(history: list[Message]) -> Iterator[Message]:
    """What was said after the user's last message: some servers tell all of the conversation every time."""
    asked = max((at for at, message in enumerate(history) if message.of_user), default=-1)
    yield from history[asked + 1 :]
