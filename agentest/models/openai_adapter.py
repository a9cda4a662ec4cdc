"""Call models that speak OpenAI's chat-completions protocol, directly over HTTP."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from math import inf
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from pydantic_core import PydanticSerializationError, to_json

from agentest.domain.transcript import Usage
from agentest.models.port import ChatReply, ChatRequest, Level, RequestRefused, Room, TransientError, joined
from agentest.models.providers import ModelSpec, parameters
from agentest.support.errors import ModelError, ModelUnavailable
from agentest.support.http.bodies import CODINGS, UnusableBody
from agentest.support.http.client import Client, Headers
from agentest.support.http.retries import CONNECTION_ERRORS, describe, retry_after, time_at_server
from agentest.support.json_text import json_or
from agentest.support.redaction import Redactor, header_secrets, url_secrets
from agentest.version import __version__

HOPELESS = frozenset({401, 402, 403, 404})
"""Status codes for a wrong key, account or model, which fail every request."""
_OUT_OF_CREDIT = re.compile(r"insufficient_quota|PerDay")
_DAILY = re.compile(r"\A(?!.*minute).*\b(?:per[ _-]day|daily)\b", re.I | re.S)  # some texts name all limits
"""Found in 429s about a quota that no pause of a run restores, the second one if they ask for no pause."""
_TRANSIENT = frozenset({408, 409, 425, 429})
REFUSED = frozenset({400, 415, 422, 501})
_THROTTLED = re.compile(r"429\b|rate_limit|RESOURCE_EXHAUSTED")
"""Codes of errors about a quota that some gateways send with status 200."""
_EVENT = re.compile(r"(?:event:[^\n]*\n)?data:([^\n]*)")  # of a stream, although none was requested
_BUSY = frozenset({503, 529})  # some providers answer requests beyond a quota like that, and ask to wait
# Gemini sends the retry delay in the body, not in a header.
_GEMINI_RETRY = re.compile(r'"retryDelay":\s*"(\d+(?:\.\d+)?)s"')
FILTERED = "its provider's content filter stopped it"
_PATH = "/chat/completions"
_SHOWN_BODY_CHARS = 300


class OpenAIChatModel:
    """One model at one base URL."""

    def __init__(self, spec: ModelSpec, client: Client) -> None:
        self.name = spec.name
        self._spec = spec
        self._client = client
        self._url = completions_url(spec.base_url)
        self._headers = _headers(spec)
        self._redact = Redactor(secrets_of(spec))
        self._parameters = parameters(spec)

    async def complete(self, request: ChatRequest) -> ChatReply:
        """Make one attempt. Raises TransientError, RequestRefused or ModelUnavailable."""
        sent = sent_parameters(self._parameters, request)
        payload = {
            **self._spec.body,
            "model": self._spec.model,
            "messages": joined(request.messages),
            **sent,
            **response_format(request),
        }
        try:
            content = to_json(payload)
        except PydanticSerializationError:  # half a surrogate pair in a configured body, which UTF-8 lacks
            content = json.dumps(payload, ensure_ascii=False, default=str).encode(errors="replace")
        try:
            response = await self._client.send_direct("POST", self._url, self._headers, content)
            try:
                body = (await response.read()).decode("utf-8", errors="replace")
            except UnusableBody as error:
                if response.is_success:
                    raise ModelUnavailable(f"{self._url}: {describe(error)}") from None
                body = describe(error)
            finally:
                await response.aclose()
        except CONNECTION_ERRORS as error:
            problem = f"{self._url}: {describe(error)}"
            raise TransientError(problem, misaddressed=True) from None
        status = response.status_code
        if 200 <= status < 300:
            return self._reply(body, room_from_headers(response.headers), sent)
        problem = self._problem(f" answered {status}", body)
        if status in REFUSED:
            raise refusal(problem, sent, _error_summary(body))
        raise failure(problem, status, response.headers, body)

    def _problem(self, what: str, body: str) -> str:
        return f"{self._url}{what}: {_shortened(_error_summary(self._redact(body)))}"

    def _reply(self, body: str, room: Room | None, sent: Collection[str]) -> ChatReply:
        data = json_or(body)
        try:
            choice = data["choices"][0]
            message, reason = choice["message"], choice.get("finish_reason")
            content, refusal = message.get("content"), message.get("refusal")
            if not content and choice.get("error"):  # a gateway says that its provider failed
                raise LookupError
        except (LookupError, TypeError, AttributeError):
            # A gateway's HTML page or a truncated body with status 200 usually disappears on retry. Only JSON
            # may come from a model, even as an error.
            problem = self._problem(": the answer is not a chat completion", body)
            error = _error_of(body)
            codes = [error.get(key) for key in ("code", "status", "type")] if isinstance(error, dict) else []
            busy, nobody = any(map(_THROTTLED.match, map(str, codes))), not (error or isinstance(data, dict))
            raise TransientError(problem, throttled=busy, misaddressed=nobody) from None
        usage, model = usage_of(data.get("usage")), str(data.get("model") or "")
        refusal = refusal or (FILTERED if reason == "content_filter" else "")
        refused = _shortened(self._redact(str(refusal))) if refusal and not content else ""
        text = _text(content)
        if not (text or refused):  # errors show reasoning, in the form of servers without a field for it
            thought = message.get("reasoning_content") or message.get("reasoning")
            text = f"<think>{_shortened(str(thought))}</think>" if thought else ""
        return ChatReply(text, usage, model, refused, room, reason == "length", sent)


def failure(problem: str, status: int, headers: Mapping[str, str], body: str) -> ModelError:
    """Return the error for a response whose status is neither a success nor in `REFUSED`."""
    wait = retry_after(headers)
    if wait is None:
        match, room = _GEMINI_RETRY.search(body), room_from_headers(headers)
        wait = float(match[1]) if match else (room and room.pause_s) or None
    is_spent = status == 429 and (_OUT_OF_CREDIT.search(body) or (not wait and _DAILY.search(body)))
    if is_spent or (status not in _TRANSIENT and status < 500):
        return ModelUnavailable(problem, permanent=bool(is_spent) or status in HOPELESS)
    throttled = status == 429 or (status in _BUSY and (wait or 0.0) > 0)
    return TransientError(problem, wait, throttled=throttled, overloaded=status >= 500)


def completions_url(base_url: str) -> str:
    """Return the URL to post to. A query (Azure's `?api-version=…`) and a complete URL stay."""
    parts = urlsplit(base_url)
    path = parts.path.rstrip("/")
    return urlunsplit(parts._replace(path=path if path.endswith(_PATH) else path + _PATH))


def secrets_of(spec: ModelSpec) -> list[str]:
    """Return texts to redact if a server repeats them in an error."""
    key = [spec.api_key] if spec.api_key else []
    return [*key, *header_secrets(dict(spec.headers)), *url_secrets(spec.base_url or "")]


def _headers(spec: ModelSpec) -> Headers:
    headers = {
        "accept": "application/json",
        "accept-encoding": ", ".join(CODINGS),
        "content-type": "application/json",
        "user-agent": f"agentest/{__version__}",
    }
    if spec.api_key:
        bearer = spec.key_header == "authorization"
        headers[spec.key_header] = f"Bearer {spec.api_key}" if bearer else spec.api_key
    headers |= {name.lower(): value for name, value in spec.headers.items()}
    return list(headers.items())


def response_format(request: ChatRequest) -> dict[str, Any]:
    """Return the parameter that requests the response format of the request's level."""
    if request.level is Level.SCHEMA:
        schema = {"name": request.schema_name, "strict": True, "schema": dict(request.schema)}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    if request.level is Level.JSON_MODE:
        return {"response_format": {"type": "json_object"}}
    return {}


def sent_parameters(configured: Mapping[str, Any], request: ChatRequest) -> dict[str, Any]:
    """Return the parameters to send, without those that the endpoint does not accept."""
    limit = {} if request.max_tokens is None else {"max_tokens": request.max_tokens}
    sent = {}
    for name, value in {**configured, **limit}.items():
        while name in request.renamed:
            name = request.renamed[name]
        if name:
            sent[name] = value
    return sent


_TOO_LONG = re.compile(
    r"context[_ ](?:length|size|window)|(?:prompt|input) is too long|prompt length|"
    r"token count .{0,40}exceeds",
    re.I,
)
"""Found in messages about a prompt that is longer than the model's window."""


def refusal(problem: str, sent: Mapping[str, Any], complaint: str) -> ModelError:
    """Return the error for a rejected request: another form may be accepted, unless the prompt is too long.

    Args:
        sent: the parameters of the request; the first one that the complaint names is not sent again, or
            under the name that it wants instead.
    """
    for name in sent:
        if re.search(rf"\b{name}\b", complaint):
            other = "max_completion_tokens"
            is_renamed = name == "max_tokens" and other in complaint
            return RequestRefused(problem, {name: other if is_renamed else ""})
    if _TOO_LONG.search(complaint):
        advice = "choose a model with a larger context, or shorten prompts (`max_turns`, `judge.context`)"
        return ModelUnavailable(f"{problem}; the prompt has more tokens than the model takes: {advice}")
    return RequestRefused(problem)


def _text(content: Any) -> str:
    if isinstance(content, list):
        texts = (part.get("text") for part in content if isinstance(part, dict))
        return "".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def usage_of(reported: Any) -> Usage:
    """Read the tokens of a `usage` object. Missing and non-numeric values count as 0."""
    if not isinstance(reported, dict):
        return Usage()
    details = reported.get("prompt_tokens_details")
    prompt, completion = reported.get("prompt_tokens"), reported.get("completion_tokens")
    cached = details.get("cached_tokens") if isinstance(details, dict) else 0
    return Usage(*[n if type(n) is int and n > 0 else 0 for n in (prompt, completion, cached)])


def _error_of(body: str) -> Any:
    """Return what a body says is wrong, usually an object with `message`; None if it says nothing."""
    event = _EVENT.match(body)
    data = json_or(event[1] if event else body)
    data = data[0] if isinstance(data, list) and data else data
    if isinstance(data, dict) and isinstance(data.get("choices"), list):
        data = next(iter(data["choices"]), None)
    return data.get("error") or data.get("detail") if isinstance(data, dict) else None


def _error_summary(body: str) -> str:
    error = _error_of(body)
    parts = list[Any]()
    for item in error if isinstance(error, list) else [error]:
        if isinstance(item, dict):
            parts += [item.get("message"), item.get("param"), item.get("msg"), item.get("loc")]
        else:
            parts.append(item)
    return " ".join(str(part) for part in parts if part) or body


def _shortened(text: str) -> str:
    return " ".join(text.split())[:_SHOWN_BODY_CHARS] or "(empty)"


_ALLOWANCES = {
    "x-ratelimit-{}-requests": "requests",
    "x-ratelimit-{}-tokens": "tokens",
    "x-ratelimit-{}": "requests",
    "ratelimit-{}": "requests",
    "anthropic-ratelimit-requests-{}": "requests",
    "anthropic-ratelimit-tokens-{}": "tokens",
    "anthropic-ratelimit-input-tokens-{}": "tokens",
    "anthropic-ratelimit-output-tokens-{}": "tokens",
}
_HEADER_KEYS = ("remaining", "limit", "reset")
_MINUTE_S = 60.0
_RATE_LIMIT = "ratelimit"  # part of all rate-limit header names
_FROM_LITELLM = "llm_provider-"  # litellm's prefix for the provider's own headers
_UNITS_S = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_PART = re.compile(r"(?<![0-9])([0-9]+(?:\.[0-9]+)?)(ms|us|µs|ns|[dhms])")
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")


def room_from_headers(headers: Mapping[str, str], now: datetime | None = None) -> Room | None:
    """Return what the provider's rate-limit headers say is left; None if they say nothing.

    Args:
        headers: response headers, with lower-case names or in a case-insensitive mapping.
        now: reference for absolute times; defaults to the server's time.
    """
    if _RATE_LIMIT not in "\n".join(headers).lower():
        return None
    now = now or datetime.fromtimestamp(time_at_server(headers), UTC)
    left, rates = {"requests": inf, "tokens": inf}, dict[str, float]()
    pauses = [0.0]
    for name, kind in _ALLOWANCES.items():
        for prefix in ("", _FROM_LITELLM):
            said = (headers.get(prefix + name.format(key), "").strip() for key in _HEADER_KEYS)
            remaining, limit, reset = said
            if _NUMBER.fullmatch(remaining):
                left[kind] = min(left[kind], float(remaining))
                if not float(remaining):
                    pauses.append(_seconds_until(reset, now))
            # A longer reset is that of an allowance for a day. Answers have less than half of the tokens.
            is_of_minute = reset and _seconds_until(reset, now) <= _MINUTE_S
            if is_of_minute and kind in name and "output" not in name and _NUMBER.fullmatch(limit):
                rates[kind] = min(rates.get(kind, inf), float(limit))
    room = Room(left["requests"], left["tokens"], max(pauses), rates.get("requests"), rates.get("tokens"))
    return None if room == Room() else room


def _seconds_until(reset: str, now: datetime) -> float:
    if _NUMBER.fullmatch(reset):
        seconds = float(reset) / (1000 if float(reset) > 1e12 else 1)
        return seconds if seconds < 1e9 else seconds - now.timestamp()
    if reset and not _PART.sub("", reset):
        return sum(float(number) * _UNITS_S[unit] for number, unit in _PART.findall(reset))
    try:
        time = datetime.fromisoformat(reset)
    except ValueError:
        return 0.0
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return (time - now).total_seconds()
