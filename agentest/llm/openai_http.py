"""Models that speak OpenAI's chat-completions protocol, directly over HTTP."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx

from agentest.errors import InvalidAnswer, ModelUnavailable
from agentest.http import CONNECTION_ERRORS, describe, retry_after
from agentest.llm.port import ChatReply, ChatRequest, Level, RequestRefused, TransientError
from agentest.llm.providers import ModelSpec
from agentest.transcript import Usage

_TRANSIENT = {408, 409, 425, 429}
_REFUSED = {400, 415, 422, 501}
_SHOWN_BODY_CHARS = 300


class OpenAIChatModel:
    """One model at one base URL. A parameter that the model does not take is left out from then on."""

    def __init__(self, spec: ModelSpec, client: httpx.AsyncClient) -> None:
        self.name = spec.name
        self._spec = spec
        self._client = client
        self._url = spec.base_url.rstrip("/") + "/chat/completions"
        self._headers = {"content-type": "application/json", **spec.headers}
        if spec.api_key:
            self._headers["authorization"] = f"Bearer {spec.api_key}"
        self._parameters: dict[str, Any] = {
            key: value
            for key, value in (("temperature", spec.temperature), ("max_tokens", spec.max_tokens))
            if value is not None
        }

    async def complete(self, request: ChatRequest) -> ChatReply:
        """One attempt. Raises TransientError, RequestRefused, ModelUnavailable or InvalidAnswer."""
        status, headers, body = await self._post(request)
        while status in _REFUSED and self._leave_out(body):
            status, headers, body = await self._post(request)
        if status == 200:
            return _reply(body)
        problem = f"{self._url} answered {status}: {_excerpt(body)}"
        if status in _TRANSIENT or (status >= 500 and status != 501):
            raise TransientError(problem, retry_after(headers))
        if status in _REFUSED:
            raise RequestRefused(problem)
        raise ModelUnavailable(problem)

    async def _post(self, request: ChatRequest) -> tuple[int, Mapping[str, str], str]:
        payload = {
            **self._spec.body,
            "model": self._spec.model,
            "messages": request.messages,
            **self._parameters,
            **_response_format(request),
        }
        content = json.dumps(payload, ensure_ascii=False).encode()
        try:
            response = await self._client.post(self._url, content=content, headers=self._headers)
        except CONNECTION_ERRORS as error:
            raise TransientError(f"{self._url}: {describe(error)}") from None
        return response.status_code, response.headers, response.text

    def _leave_out(self, body: str) -> bool:
        """Drop or rename the parameter that a refusal names; False when it names none that was sent."""
        for name in list(self._parameters):
            if f"'{name}'" in body or f'"{name}"' in body or f"`{name}`" in body:
                value = self._parameters.pop(name)
                if name == "max_tokens" and "max_completion_tokens" in body:
                    self._parameters["max_completion_tokens"] = value
                return True
        return False


def _response_format(request: ChatRequest) -> dict[str, Any]:
    if request.level is Level.SCHEMA:
        schema = {"name": request.schema_name, "strict": True, "schema": request.schema}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    if request.level is Level.JSON_MODE:
        return {"response_format": {"type": "json_object"}}
    return {}


def _reply(body: str) -> ChatReply:
    try:
        data = json.loads(body)
        message = data["choices"][0]["message"]
    except (ValueError, RecursionError, LookupError, TypeError):
        # A gateway's HTML page or a cut body with status 200: another attempt usually helps.
        raise TransientError(f"the answer is not a chat completion: {_excerpt(body)}") from None
    if not isinstance(message, dict):
        raise TransientError(f"the answer is not a chat completion: {_excerpt(body)}")
    if message.get("refusal") and not message.get("content"):
        raise InvalidAnswer(f"the model refused to answer: {_excerpt(str(message['refusal']))}")
    return ChatReply(_text(message.get("content")), usage_of(data.get("usage")), str(data.get("model") or ""))


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def usage_of(reported: Any) -> Usage:
    """Tokens from a `usage` object; whatever is missing or no number counts as 0."""
    if not isinstance(reported, Mapping):
        return Usage()
    details = reported.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, Mapping) else 0
    return Usage(
        _count(reported.get("prompt_tokens")), _count(reported.get("completion_tokens")), _count(cached)
    )


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _excerpt(body: str) -> str:
    """The error's own message where there is one, else the beginning of the body."""
    try:
        error = json.loads(body)["error"]
        body = error["message"] if isinstance(error, dict) else str(error)
    except (ValueError, RecursionError, LookupError, TypeError):
        pass
    shown = " ".join(str(body).split())
    return shown[:_SHOWN_BODY_CHARS] or "(empty)"
