"""Open models from their resolved specifications."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import field
from types import MappingProxyType
from typing import TYPE_CHECKING

from agentest.config.models import RequestedModel
from agentest.models.admission import Gates, LocalGate, LocalGates
from agentest.models.budget import price_of
from agentest.models.caller import LiveModel, RetryPolicy
from agentest.models.circuit import Places
from agentest.models.limits import DEFAULT_CONCURRENCY, Quota
from agentest.models.openai_adapter import OpenAIChatModel
from agentest.models.port import AnswerSource, ChatModel, Ledger, Model, Models
from agentest.models.providers import ModelSpec, identity, parameters
from agentest.models.structured_output import StructuredModel
from agentest.models.tape import CassetteMode, RecordedModel, Tape
from agentest.plugin import PLUGINS
from agentest.support.errors import ConfigError, errors_as
from agentest.support.http.client import Client, open_client, proxy_for
from agentest.support.lazy_dataclasses import dataclass

if TYPE_CHECKING:
    from agentest.models.response_cache import ResponseCache


@dataclass(slots=True)
class ModelTerms:
    """Gates, recordings and ledger that all models of a run share."""

    gates: Gates = field(default_factory=lambda: LocalGates(20))
    tape: Tape | None = None  # where answers are recorded or replayed
    ledger: Ledger = field(default_factory=Ledger)
    hide: Callable[[str], str] = str  # redacts secrets in judge prompts
    cache: ResponseCache | None = None  # answers of earlier runs, used in place of models


@asynccontextmanager
async def open_models(
    user: ModelSpec | None,
    judge: ModelSpec | None,
    terms: ModelTerms,
    named: Mapping[RequestedModel, ModelSpec] = MappingProxyType({}),
    confirm: ModelSpec | None = None,
) -> AsyncIterator[Models]:
    """Open the models of both roles and the named ones. Roles with the same specification share a model.

    Args:
        confirm: the model that confirms the judge's answers.

    Raises ConfigError for an unknown provider.
    """
    async with AsyncExitStack() as stack:
        opener = _Opener(terms, stack)
        user_model = await opener.model(user) if user else None
        judge_model = user_model
        if judge != user:
            judge_model = await opener.model(judge) if judge else None
        named_models = {}
        for request, spec in named.items():
            with errors_as(ConfigError, f"{request.location}: ", ConfigError):
                named_models[request] = await opener.model(spec)
        yield Models(user_model, judge_model, named_models, await opener.model(confirm) if confirm else None)


class _Opener:
    def __init__(self, terms: ModelTerms, stack: AsyncExitStack) -> None:
        self._terms = terms
        self._stack = stack
        self._clients: dict[str, Client] = {}

    async def model(self, spec: ModelSpec) -> Model:
        return StructuredModel(await self._answers(spec), self._terms.hide)

    async def _answers(self, spec: ModelSpec) -> AnswerSource:
        tape, ledger = self._terms.tape, self._terms.ledger
        live: AnswerSource | None = None
        if tape is None or tape.mode is not CassetteMode.REPLAY:
            live = LiveModel(
                await self._chat_model(spec),
                ledger,
                self._terms.gates.of(spec),
                patience=RetryPolicy(spec.timeout_s, spec.deadline_s, spec.retries),
                price=price_of(spec.name) if spec.priced else None,
            )
            if cache := self._terms.cache:
                from agentest.models.response_cache import CachedModel

                live = CachedModel(cache, ledger, live, identity(spec))
        if tape is None:
            assert live
            return live
        return RecordedModel(tape, ledger, spec.name, {**parameters(spec), **spec.body}, live)

    async def _chat_model(self, spec: ModelSpec) -> ChatModel:
        if not spec.base_url:
            through_litellm: ChatModel = await PLUGINS.hook("models.litellm", "frameworks")(spec)
            return through_litellm
        if spec.base_url not in self._clients:
            opened = open_client(proxy=proxy_for(spec.base_url))
            self._clients[spec.base_url] = await self._stack.enter_async_context(opened)
        return OpenAIChatModel(spec, self._clients[spec.base_url])


def scripted(chat: ChatModel, ledger: Ledger, patience: RetryPolicy) -> Model:
    """Create a model without an endpoint, for tests."""
    gate = LocalGate(chat.name, Places(4 * DEFAULT_CONCURRENCY), quota=Quota(eager=True))
    return StructuredModel(LiveModel(chat, ledger, gate, patience=patience))
