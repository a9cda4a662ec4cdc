"""What the rest of the program knows of a language model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal, Protocol, TypeVar, get_args

from pydantic import BaseModel

from agentest.domain.results import ModelUsage
from agentest.domain.transcript import Usage
from agentest.support.errors import ModelError

Message = Mapping[str, str]
"""`{"role": "system" | "user" | "assistant", "content": text}`."""


def joined(messages: Sequence[Message]) -> list[Message]:
    """The messages with neighbours of one role joined: many models' templates know no such neighbours."""
    result: list[Message] = []
    for message in messages:
        if result and result[-1]["role"] == message["role"]:
            text = f"{result[-1]['content']}\n\n{message['content']}"
            result[-1] = {"role": message["role"], "content": text}
        else:
            result.append(message)
    return result


Role = Literal["user", "judge", "dedup"]
Answer = TypeVar("Answer", bound=BaseModel)


class Level(IntEnum):
    """How the form of an answer is asked for, the strictest first."""

    SCHEMA = 0
    JSON_MODE = 1
    PROMPT = 2


@dataclass(frozen=True, slots=True)
class CallKey:
    """Which question of a run a model is asked: for accounting, and to tell one recording from another."""

    role: Role
    scope: str
    """The scenario, with the agent where several are compared."""
    conversation: int = 0
    turn: int | None = None
    metric: str | None = None
    sample: int = 0


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One request to a model. `schema` is the JSON Schema of the answer, asked for as `level` says."""

    messages: Sequence[Message]
    schema_name: str
    schema: Mapping[str, Any]
    level: Level
    key: CallKey


@dataclass(frozen=True, slots=True)
class ChatReply:
    text: str
    usage: Usage = field(default_factory=Usage)
    model: str = ""
    """The model that answered, by its own account."""
    refusal: str = ""
    """Why the model would not answer, in its own words; then there is no text."""
    hold_s: float | None = None
    """Seconds for which the server takes no more requests, by its rate-limit headers."""


class TransientError(ModelError):
    """Asking again may help: 408, 409, 429, 5xx, a time-out, a broken connection.

    `throttled`: the model is up, but was asked too much (429). `misaddressed`: there may be no model at this
    address, as the connection fails, or what answers does not speak as one.
    """

    def __init__(
        self,
        message: str,
        retry_after: float | None = None,
        *,
        throttled: bool = False,
        misaddressed: bool = False,
    ) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.throttled = throttled
        self.misaddressed = misaddressed


class RequestRefused(ModelError):
    """The model cannot take the request as it is (400, 422): perhaps it does not know the answer's form.

    `mended`: the adapter knows what was wrong and will leave it out; the same request may be made again.
    """

    def __init__(self, message: str, *, mended: bool = False) -> None:
        super().__init__(message)
        self.mended = mended


class ChatModel(Protocol):
    """One model behind one protocol: a single attempt, no retries, no reading of the answer."""

    name: str

    async def complete(self, request: ChatRequest) -> ChatReply:
        """The model's reply.

        Raises TransientError, RequestRefused, or another ModelError that asking again will not mend.
        """
        ...


@dataclass(frozen=True, slots=True)
class Question:
    """What a model is asked: `repair` counts the answers before this one that could not be used."""

    messages: Sequence[Message]
    answer: type[BaseModel]
    key: CallKey
    repair: int = 0


@dataclass(frozen=True, slots=True)
class Answered:
    """What a model wrote to a question, and what it took to get it: every attempt, on every level."""

    text: str
    refusal: str = ""
    model: str = ""
    used: ModelUsage = field(default_factory=ModelUsage)


class Answers(Protocol):
    """Where answers come from: a model, or a recording of one. Reading them is not its business."""

    name: str
    parameters: Mapping[str, Any]
    """What shapes the model's answers besides the question: temperature, max_tokens."""

    async def answer(self, question: Question) -> Answered:
        """The answer. Raises ModelUnavailable; what was used is in the ledger by then."""
        ...


class Model(Protocol):
    """A model as the simulated user, the judges and the deduplication use it."""

    name: str

    async def ask(self, messages: Sequence[Message], answer: type[Answer], key: CallKey) -> Answer:
        """An answer of the given shape. Raises ModelUnavailable or InvalidAnswer after the retries."""
        ...


class Ledger:
    """Counts calls and tokens by scope and role. Only ever added to."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, Role], ModelUsage] = defaultdict(ModelUsage)

    def add(self, key: CallKey, used: ModelUsage) -> None:
        self._entries[key.scope, key.role] += used

    def add_replayed(self, key: CallKey, used: ModelUsage) -> None:
        """Add what a recorded answer took when it was given."""
        self.add(key, used)

    def of(self, scope: str) -> dict[str, ModelUsage]:
        """What a scope used, by role."""
        return {role: self._entries[scope, role] for role in get_args(Role) if (scope, role) in self._entries}
