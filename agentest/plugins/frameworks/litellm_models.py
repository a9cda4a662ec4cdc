"""Call models that do not speak OpenAI's protocol, through litellm. No other module imports litellm."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import anyio.to_thread

from agentest.models.openai_adapter import (
    FILTERED,
    REFUSED,
    failure,
    refusal,
    response_format,
    room_from_headers,
    secrets_of,
    sent_parameters,
    usage_of,
)
from agentest.models.port import ChatReply, ChatRequest, Message, RequestRefused, TransientError, joined
from agentest.models.providers import ModelSpec, parameters
from agentest.support.errors import ConfigError, ModelError, ModelUnavailable
from agentest.support.redaction import Redactor
from agentest.support.text import nearest

_MODE_VARIABLE = "LITELLM_MODE"


async def open_model(spec: ModelSpec) -> LiteLLMChatModel:
    """Open a model. Raises ConfigError if litellm does not know its provider."""
    litellm = await load()
    check_provider(spec, litellm)
    return LiteLLMChatModel(spec, litellm)


async def load() -> Any:
    """Import litellm. It takes seconds, so it happens in a thread and before the first call."""
    return await anyio.to_thread.run_sync(_import)


def _import() -> Any:
    # Without these, litellm uses the network: for prices at import, and for headers when Claude is called.
    for data in ("MODEL_COST_MAP", "ANTHROPIC_BETA_HEADERS"):
        os.environ[f"LITELLM_LOCAL_{data}"] = "True"
    with _no_dotenv():
        import litellm

    litellm.telemetry = False
    litellm.suppress_debug_info = True
    litellm.drop_params = True  # parameters that a model does not accept are dropped and cause no error
    logging.getLogger("LiteLLM").setLevel(logging.ERROR)
    return litellm


@contextmanager
def _no_dotenv() -> Iterator[None]:
    before = os.environ.get(_MODE_VARIABLE)
    os.environ[_MODE_VARIABLE] = "PRODUCTION"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_MODE_VARIABLE]
        else:
            os.environ[_MODE_VARIABLE] = before


def check_provider(spec: ModelSpec, litellm: Any) -> None:
    """Raise ConfigError for a model whose provider litellm does not know."""
    provider = spec.model.partition("/")[0]
    known = {str(getattr(each, "value", each)) for each in litellm.provider_list}
    # For some known providers, litellm would log in.
    if provider in known or "custom_llm_provider" in spec.body:
        return
    try:
        litellm.get_llm_provider(model=spec.model, api_base=spec.body.get("api_base"))
    except Exception:  # noqa: BLE001 - litellm raises many kinds of errors, with texts for its own users
        raise ConfigError(_unknown(spec.name, provider, known)) from None


def _unknown(name: str, provider: str, known: Iterable[str]) -> str:
    close = nearest(provider, sorted(known))
    advice = (
        f"did you mean `{close}/{name.partition('/')[2]}`?"
        if close
        else "write it as provider/model, like openai/gpt-5-mini, or set `provider: openai-compatible`"
    )
    return f"model {name}: there is no provider `{provider}`; {advice}"


class LiteLLMChatModel:
    """One model in litellm's spelling."""

    def __init__(self, spec: ModelSpec, litellm: Any) -> None:
        self.name = spec.name
        self._litellm = litellm
        # Claude caches a prompt only up to a mark; other providers need no marks.
        self._mark_shared = spec.cache and "claude" in spec.model
        self._redact = Redactor(secrets_of(spec))
        self._arguments: dict[str, Any] = {
            "model": spec.model,
            "num_retries": 0,
            "max_retries": 0,
            "timeout": spec.timeout_s,
            **({"api_key": spec.api_key} if spec.api_key else {}),
            **({"extra_headers": dict(spec.headers)} if spec.headers else {}),
            **_with_api_base(spec),
        }
        self._parameters = parameters(spec)

    async def complete(self, request: ChatRequest) -> ChatReply:
        """Make one attempt. Raises TransientError, RequestRefused or ModelUnavailable."""
        parameters = sent_parameters(self._parameters, request)
        messages = _with_cache_marks if self._mark_shared else joined
        try:
            response = await self._litellm.acompletion(
                messages=[dict(each) for each in messages(request.messages)],
                **response_format(request),
                **parameters,
                **self._arguments,
            )
            choice = response.choices[0]
            message = choice.message
            usage = response.usage.model_dump() if getattr(response, "usage", None) else None
        except Exception as error:  # noqa: BLE001 - litellm raises its own errors, openai's, httpx's and others
            translated = _translate_error(error, self._redact)
            if isinstance(translated, RequestRefused):
                own = {name: value for name, value in parameters.items() if name not in self._arguments}
                translated = refusal(str(translated), own, str(translated))
            raise translated from None
        refused = ""
        if not message.content:
            # litellm's value for Claude's `refusal` and Gemini's `SAFETY`.
            filtered = FILTERED if choice.finish_reason == "content_filter" else ""
            refused = str(getattr(message, "refusal", None) or filtered)
        headers = (getattr(response, "_hidden_params", None) or {}).get("additional_headers") or {}
        room = room_from_headers(headers)
        is_cut = choice.finish_reason == "length"
        used, model = usage_of(usage), str(response.model or "")
        return ChatReply(message.content or "", used, model, refused, room, is_cut, parameters)


def _with_api_base(spec: ModelSpec) -> dict[str, Any]:
    base = spec.body.get("api_base")
    if isinstance(base, str) and spec.model.startswith("anthropic/"):
        return {**spec.body, "api_base": base.rstrip("/").removesuffix("/v1")}
    return dict(spec.body)


def _with_cache_marks(messages: Sequence[Message]) -> Sequence[Mapping[str, Any]]:
    """Merge neighbouring messages of one role into parts, and mark where a cached beginning may end.

    Claude accepts four marks: after what all calls share (the first two parts), after what was there in the
    call before, and after what the next call will share (the last two parts before the final one).
    """
    marked: list[dict[str, Any]] = []
    for message in messages:
        part: dict[str, Any] = {"type": "text", "text": message["content"]}
        if marked and marked[-1]["role"] == message["role"]:
            marked[-1]["content"].append(part)
        else:
            marked.append({"role": message["role"], "content": [part]})
    for parts in (each["content"][:-1] for each in marked):
        for part in (*parts[:2], *parts[2:][-2:]):
            part["cache_control"] = {"type": "ephemeral"}
    return marked


def _translate_error(error: Exception, redact: Redactor) -> ModelError:
    status = getattr(error, "status_code", None)
    # litellm reports its own failures with a traceback and a link to its bug tracker.
    text = redact.error(str(error).partition("\nTraceback ")[0] or type(error).__name__)
    if status in REFUSED:
        return RequestRefused(text)
    if not isinstance(status, int):
        if isinstance(error, TimeoutError | ConnectionError):
            return TransientError(text, misaddressed=_has_no_connection(error))
        return ModelUnavailable(text)
    # Most of litellm's errors contain an invented response; the real headers are stored separately.
    made_up = getattr(getattr(error, "response", None), "headers", None)
    headers = getattr(error, "litellm_response_headers", None) or made_up or {}
    translated = failure(text, status, headers, str(error))
    if isinstance(translated, TransientError):
        translated.misaddressed = _has_no_connection(error)
    return translated


def _has_no_connection(error: BaseException | None) -> bool:
    while error is not None:
        refused = isinstance(error, OSError) and not isinstance(error, TimeoutError)
        if refused or type(error).__name__ == "APIConnectionError":
            return True
        error = error.__cause__ or error.__context__
    return False
