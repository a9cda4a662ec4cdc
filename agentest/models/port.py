"""The interface to language models: requests, answers, errors and the ledger."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from enum import IntEnum
from math import inf
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar, get_args

from pydantic import BaseModel, ConfigDict

from agentest.domain.results import ModelUsage
from agentest.domain.transcript import Usage
from agentest.support.errors import ModelError
from agentest.support.lazy_dataclasses import dataclass

if TYPE_CHECKING:
    from agentest.config.models import RequestedModel

Message = Mapping[str, str]  # `{"role": "system" | "user" | "assistant", "content": text}`


def joined(messages: Sequence[Message]) -> list[Message]:
    """Join neighbouring messages of one role, because many models' chat templates reject them."""
    result: list[Message] = []
    for message in messages:
        if result and result[-1]["role"] == message["role"]:
            text = f"{result[-1]['content']}\n\n{message['content']}"
            result[-1] = {"role": message["role"], "content": text}
        else:
            result.append(message)
    return result


Role = Literal["user", "judge", "dedup", "agent"]
"""What a model is asked for. `agent`: the agent's own model, behind the model gateway."""
Answer = TypeVar("Answer", bound=BaseModel)


class StructuredAnswer(BaseModel):
    """An answer of a model. Docstrings are not sent to it as a `description`."""

    model_config = ConfigDict(
        defer_build=True, json_schema_extra=lambda schema: schema.pop("description", None)
    )


_NO_TOKENS = Usage()
_NO_USAGE = ModelUsage()


class Level(IntEnum):
    """Ways to request the form of an answer, strictest first."""

    SCHEMA = 0
    JSON_MODE = 1
    PROMPT = 2


@dataclass(frozen=True, slots=True)
class CallKey:
    """The identity of a question within a run, for accounting and for recordings."""

    role: Role
    scope: str  # the scenario, with the agent if several are compared
    conversation: int = 0
    turn: int | None = None
    metric: str | None = None
    sample: int = 0


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One request to a model. `schema` is the answer's JSON Schema, requested as `level` says."""

    messages: Sequence[Message]
    schema_name: str
    schema: Mapping[str, Any]
    level: Level
    key: CallKey
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Parameters that the endpoint does not accept → the name to send them under; "": not at all."""
    max_tokens: int | None = None  # limit of the answer, in place of the configured one


class Room(NamedTuple):
    """What a provider still allows: requests, tokens, and the seconds until it allows any if that is none."""

    requests: float = inf
    tokens: float = inf
    pause_s: float = 0.0
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None


@dataclass(frozen=True, slots=True)
class ChatReply:
    text: str
    usage: Usage = _NO_TOKENS
    model: str = ""  # the model that answered, as it reports itself
    refusal: str = ""
    """Why the model refused to answer, in its own words. In that case there is no text."""
    room: Room | None = None  # what the server's rate-limit headers say is left; None if they say nothing
    is_cut: bool = False
    """True if the answer ends where its limit of tokens was reached (`finish_reason: length`)."""
    parameters: Collection[str] = ()  # names of the parameters with which the request was sent


class TransientError(ModelError):
    """A failure that a retry may fix: 408, 409, 429, 5xx, a timeout, a broken connection.

    `throttled`: the model is up but received too many requests (429, or a 503 that asks to wait).
    `misaddressed`: there may be no model at this address, because the connection fails or the server does not
    respond like one. `late`: no answer came within `timeout_ms`. `overloaded`: the server answered with a
    status of 500 or above.
    """

    def __init__(
        self,
        message: str,
        retry_after: float | None = None,
        *,
        throttled: bool = False,
        misaddressed: bool = False,
        late: bool = False,
        overloaded: bool = False,
    ) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.throttled = throttled
        self.misaddressed = misaddressed
        self.late = late
        self.overloaded = overloaded


class RequestRefused(ModelError):
    """The model rejected the request (400, 422), perhaps because it does not support the response format.

    `renamed`: parameters of the request that the message names, as in `ChatRequest`.
    """

    def __init__(self, message: str, renamed: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.renamed = renamed or {}


class ChatModel(Protocol):
    """One model behind one protocol. It makes single attempts without retries, and parses no answers."""

    name: str

    async def complete(self, request: ChatRequest) -> ChatReply:
        """Return the model's reply.

        Raises TransientError, RequestRefused, or another ModelError that a retry will not fix.
        """


@dataclass(frozen=True, slots=True)
class Question:
    """A question to a model. `repair` counts earlier answers that could not be used."""

    messages: Sequence[Message]
    answer: type[BaseModel]
    key: CallKey
    repair: int = 0
    timeless: Sequence[Message] | None = None
    """The messages without the times that the run inserted, to identify the question; None: as they are."""


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """A model's answer to a question, with the usage of every attempt on every level."""

    text: str
    refusal: str = ""
    model: str = ""
    used: ModelUsage = _NO_USAGE


class AnswerSource(Protocol):
    """A source of answers: a model, or a recording of one. It does not parse them."""

    name: str

    async def answer(self, question: Question) -> ModelAnswer:
        """Return the answer, after its usage is in the ledger. Raises ModelUnavailable."""


class Model(Protocol):
    """A model as the simulated user, the judges and failure grouping use it."""

    name: str

    async def ask(self, messages: Sequence[Message], answer: type[Answer], key: CallKey) -> Answer:
        """Return an answer with the given shape. Raises ModelUnavailable or InvalidAnswer after retries."""


@dataclass(frozen=True, slots=True)
class Models:
    """The models of a run. A role without a model is None."""

    user: Model | None = None
    judge: Model | None = None
    named: Mapping[RequestedModel, Model] = field(default_factory=dict)
    """Models that scenario files request in place of the role's model."""
    confirm: Model | None = None  # confirms judge answers that would fail a scenario
    recordings: Any = None
    """The `models.tape.Tape` of the run, for what agents ask their own models; None if there is none."""

    def user_for(self, requested: RequestedModel | None) -> Model | None:
        """Return the model that plays the user for a file that requests this model."""
        return (self.named.get(requested) if requested else None) or self.user


class Ledger:
    """Counts calls and tokens by scope and role, and on request of one question. Counts only increase."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, Role], ModelUsage] = defaultdict(ModelUsage)
        self._watched: dict[CallKey, list[ModelUsage]] = {}
        """The usage since each `watch` that has not ended; the last one comes last."""

    def add(self, key: CallKey, used: ModelUsage) -> None:
        self._entries[key.scope, key.role] += used
        if self._watched and key in self._watched:
            self._watched[key] = [each + used for each in self._watched[key]]

    def watch(self, key: CallKey) -> None:
        """Measure the usage of one question, whether it is answered or not."""
        self._watched.setdefault(key, []).append(ModelUsage())

    def taken(self, key: CallKey) -> ModelUsage:
        """Return the usage added for this key since the last `watch`, which ends."""
        watched = self._watched.get(key, [])
        used = watched.pop() if watched else ModelUsage()
        if not watched:
            self._watched.pop(key, None)
        return used

    def add_replayed(self, key: CallKey, used: ModelUsage) -> None:
        """Add the usage that a replayed answer had when it was recorded."""
        self.add(key, used)

    def total(self) -> ModelUsage:
        """Return the usage of all scopes and roles."""
        return sum(self._entries.values(), ModelUsage())

    def of(self, scope: str) -> dict[str, ModelUsage]:
        """Return a scope's usage by role."""
        return {role: self._entries[scope, role] for role in get_args(Role) if (scope, role) in self._entries}
