"""From resolved specifications to models that can be asked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import anyio

from agentest.http import open_client, proxy_for
from agentest.llm import litellm_adapter
from agentest.llm.live import LiveAnswers
from agentest.llm.openai_http import OpenAIChatModel
from agentest.llm.port import ChatModel, Ledger, Model
from agentest.llm.providers import ModelSpec
from agentest.llm.structured import StructuredModel


@dataclass(frozen=True, slots=True)
class Models:
    """The models of a run; None for a role that is offline."""

    user: Model | None = None
    judge: Model | None = None


@asynccontextmanager
async def open_models(
    user: ModelSpec | None, judge: ModelSpec | None, ledger: Ledger, max_calls: int
) -> AsyncIterator[Models]:
    """Open the models of the two roles; the same one for both where they are specified alike.

    At most `max_calls` requests are under way at once, both roles together.
    """
    limiter = anyio.CapacityLimiter(max_calls)
    async with AsyncExitStack() as stack:

        async def opened(spec: ModelSpec) -> Model:
            chat = await _chat_model(spec, stack)
            return StructuredModel(
                LiveAnswers(chat, ledger, limiter, timeout_s=spec.timeout_s, retries=spec.retries)
            )

        user_model = await opened(user) if user else None
        judge_model = user_model if judge == user else await opened(judge) if judge else None
        yield Models(user_model, judge_model)


async def _chat_model(spec: ModelSpec, stack: AsyncExitStack) -> ChatModel:
    if not spec.base_url:
        return litellm_adapter.LiteLLMChatModel(spec, await litellm_adapter.load())
    client = await stack.enter_async_context(open_client(proxy=proxy_for(spec.base_url)))
    return OpenAIChatModel(spec, client)
