"""Every model that does not speak OpenAI's protocol, through litellm: the only place that imports it."""

from __future__ import annotations

import logging
import os
from typing import Any

import anyio.to_thread

from agentest.errors import ModelUnavailable
from agentest.llm.openai_http import usage_of
from agentest.llm.port import ChatReply, ChatRequest, Level, RequestRefused, TransientError
from agentest.llm.providers import ModelSpec

_TRANSIENT = {408, 409, 425, 429}
_REFUSED = {400, 415, 422, 501}


async def load() -> Any:
    """The litellm module. Importing it takes seconds, so it is done in a thread, before the first call."""
    return await anyio.to_thread.run_sync(_import)


def _import() -> Any:
    # Without this, importing litellm asks the network for its price list.
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    import litellm

    litellm.telemetry = False
    litellm.suppress_debug_info = True
    litellm.drop_params = True  # parameters that a model does not take are left out, not fatal
    logging.getLogger("LiteLLM").setLevel(logging.ERROR)
    return litellm


class LiteLLMChatModel:
    """One model in litellm's spelling."""

    def __init__(self, spec: ModelSpec, litellm: Any) -> None:
        self.name = spec.name
        self._litellm = litellm
        self._arguments: dict[str, Any] = {
            "model": spec.model,
            "num_retries": 0,
            "max_retries": 0,
            "timeout": spec.timeout_s,
            **{
                key: value
                for key, value in (
                    ("api_key", spec.api_key),
                    ("temperature", spec.temperature),
                    ("max_tokens", spec.max_tokens),
                    ("extra_headers", dict(spec.headers)),
                )
                if value or value == 0
            },
            **spec.body,
        }

    async def complete(self, request: ChatRequest) -> ChatReply:
        """One attempt. Raises TransientError, RequestRefused or ModelUnavailable."""
        try:
            response = await self._litellm.acompletion(
                messages=[dict(m) for m in request.messages], **_response_format(request), **self._arguments
            )
        except Exception as error:  # noqa: BLE001 - litellm raises its own, openai's, httpx's and plain errors
            raise _translated(error) from None
        choice = response.choices[0].message
        usage = response.usage.model_dump() if getattr(response, "usage", None) else None
        return ChatReply(choice.content or "", usage_of(usage), str(response.model or ""))


def _response_format(request: ChatRequest) -> dict[str, Any]:
    if request.level is Level.SCHEMA:
        schema = {"name": request.schema_name, "strict": True, "schema": dict(request.schema)}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    if request.level is Level.JSON_MODE:
        return {"response_format": {"type": "json_object"}}
    return {}


def _translated(error: Exception) -> Exception:
    status = getattr(error, "status_code", None)
    text = f"{type(error).__name__}: {error}"
    if status in _REFUSED:
        return RequestRefused(text)
    if status in _TRANSIENT or (isinstance(status, int) and status >= 500):
        response = getattr(error, "response", None)
        return TransientError(text, _retry_after(response))
    if isinstance(error, TimeoutError | ConnectionError):
        return TransientError(text)
    return ModelUnavailable(text)


def _retry_after(response: Any) -> float | None:
    from agentest.http import retry_after

    headers = getattr(response, "headers", None)
    return retry_after(headers) if headers is not None else None
