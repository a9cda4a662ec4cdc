"""Call loopback servers through litellm, and print the results as JSON.

In its own process, because litellm takes seconds to import and prints warnings, and to block all but
loopback.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import warnings
from dataclasses import asdict
from typing import Any

import anyio
import litellm_wire_probe
from model_server import RESET, Answer, ModelServer, Received, completion, error

KEY = "sk-ant-very-secret-0123456789"
LOOPBACK = ("127.0.0.1", "::1", "localhost", "0.0.0.0")
ABROAD: list[str] = []


def stay_home(event: str, arguments: tuple[Any, ...]) -> None:
    """Block and record every connection and name lookup beyond loopback."""
    if event in ("socket.connect", "socket.getaddrinfo"):
        where = arguments[1] if event == "socket.connect" else arguments
        host = where[0] if isinstance(where, tuple) else None
        host = host.decode() if isinstance(host, bytes) else host
        if host and host not in LOOPBACK:
            ABROAD.append(str(host))
            raise OSError(f"{host} is not loopback")


def message(text: str) -> Answer:
    """An answer in Anthropic's format."""
    body = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-scripted",
        "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn",
        "usage": {
            "input_tokens": 11,
            "output_tokens": 3,
            "cache_read_input_tokens": 4,
            "cache_creation_input_tokens": 0,
        },
    }
    return Answer(json.dumps(body).encode())


def failing(status: int, text: str) -> Answer:
    """An error in Anthropic's format."""
    body = {"type": "error", "error": {"type": "error", "message": text}}
    return Answer(json.dumps(body).encode(), status, {"retry-after": "7"})


NOWHERE = Answer()
"""Of a server that is not there."""

CASES: dict[str, tuple[str, Answer]] = {
    "answer": ("anthropic/claude-sonnet-4-5", message('{"reason": "r", "value": 3}')),
    "429": ("anthropic/claude-sonnet-4-5", failing(429, "slow down")),
    "503": ("anthropic/claude-sonnet-4-5", failing(503, "no upstream")),
    "529": ("anthropic/claude-sonnet-4-5", failing(529, "overloaded")),
    "500": ("anthropic/claude-sonnet-4-5", failing(500, "broken")),
    "401": ("anthropic/claude-sonnet-4-5", failing(401, f"the key {KEY} is wrong")),
    "404": ("anthropic/claude-sonnet-4-5", failing(404, "no such model")),
    "400": ("anthropic/claude-sonnet-4-5", failing(400, "output_format is not supported")),
    "reset": ("anthropic/claude-sonnet-4-5", RESET),
    "nowhere": ("anthropic/claude-sonnet-4-5", NOWHERE),
    "page": ("anthropic/claude-sonnet-4-5", Answer(b"<html>")),
    "openai": ("openai/gpt-4o", completion({"reason": "r", "value": 3})),
    "openai 429": ("openai/gpt-4o", error(429, "slow down", {"retry-after": "7"})),
}


async def attempt(adapter: Any, name: str, answer: Answer) -> dict[str, Any]:
    """Make one attempt, and return its result from the adapter."""
    from agentest.models.port import CallKey, ChatRequest, Level
    from agentest.models.providers import ModelSpec
    from agentest.support.errors import ModelError

    schema = {"type": "object", "properties": {"value": {"type": "integer"}}, "required": ["value"]}
    asked = [{"role": "system", "content": "You judge."}, {"role": "user", "content": "How was it?"}]
    with ModelServer(answer) as server:
        spec = ModelSpec(
            name,
            name,
            api_key=KEY,
            temperature=0.0,
            max_tokens=99,
            timeout_s=20,
            headers={"X-Team": "blue"},
            body={"api_base": "http://127.0.0.1:9" if answer is NOWHERE else server.origin},
        )
        model = adapter.LiteLLMChatModel(spec, await adapter.load())
        request = ChatRequest(asked, "Rating", schema, Level.SCHEMA, CallKey("judge", "s"))
        try:
            told: dict[str, Any] = asdict(await model.complete(request))
        except ModelError as failure:
            told = {"error": type(failure).__name__, "text": str(failure)}
            told["retry_after"] = getattr(failure, "retry_after", None)
            told["misaddressed"] = getattr(failure, "misaddressed", None)
        received = [asdict(r) for r in server.received]
    return {**told, "received": received}


async def laddered(adapter: Any) -> dict[str, Any]:
    """Ask a whole question with all layers above the adapter, through `open_models`."""
    from agentest.config.config import Config
    from agentest.judging.answers import ScaleAnswer
    from agentest.models.admission import LocalGates
    from agentest.models.factory import ModelTerms, open_models
    from agentest.models.port import CallKey
    from agentest.models.providers import resolve

    def script(received: Received) -> Answer:
        if "output_format" in received.body or "output_config" in received.body:
            return failing(400, "output_format is not supported")
        return message('Surely: {"reason": "r", "value": 3}')

    with ModelServer(script=script) as server:
        options = {"base_url": server.origin, "api_key": KEY}
        config = Config.model_validate(
            {
                "agent": {"endpoint": "http://h"},
                "model": "anthropic/claude-sonnet-4-5",
                "provider_options": options,
            }
        )
        spec, terms = resolve(config, config.judge, {}), ModelTerms(LocalGates(4))
        async with open_models(None, spec, terms) as models:
            assert models.judge is not None
            asked = [{"role": "user", "content": "How was it?"}]
            answer = await models.judge.ask(asked, ScaleAnswer, CallKey("judge", "s"))
        return {
            "value": answer.value,
            "calls": terms.ledger.of("s")["judge"].calls,
            "requests": len(server.received),
        }


async def unknown(adapter: Any) -> dict[str, Any]:
    """Return the results of an unknown provider and of all known ones."""
    from agentest.config.models import RequestedModel
    from agentest.models.admission import LocalGates
    from agentest.models.factory import ModelTerms, open_models
    from agentest.models.providers import ModelSpec
    from agentest.support.errors import ConfigError

    litellm, refused = await adapter.load(), []
    for name in (str(getattr(each, "value", each)) for each in litellm.provider_list):
        try:
            adapter.check_provider(ModelSpec(f"{name}/m", f"{name}/m"), litellm)
        except ConfigError:
            refused.append(name)
    nobody, told = ModelSpec("opnai/gpt-5", "opnai/gpt-5"), []
    wish = RequestedModel("judge", "opnai/gpt-5", file="test_config.json", key="criteria.safety_v1")
    for judge, named in ((nobody, {}), (None, {wish: nobody})):
        try:
            async with open_models(None, judge, ModelTerms(LocalGates(4)), named):
                pass
        except ConfigError as error:
            told.append(str(error))
    return {"errors": told, "refused": refused, "known": len(litellm.provider_list)}


async def cases() -> dict[str, Any]:
    """Run every case of the adapter in order."""
    from agentest.plugins.frameworks import litellm_models as litellm_adapter

    told = {name: await attempt(litellm_adapter, *case) for name, case in CASES.items()}
    return {**told, "ladder": await laddered(litellm_adapter), "unknown": await unknown(litellm_adapter)}


def handler_answers() -> list[Any]:
    """Read handler answers that are objects of litellm or openai."""
    import litellm
    from openai.types.chat import ChatCompletion

    from agentest.agents.python_agent import read_answer

    call = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"q": 1}'}}
    message = {"role": "assistant", "content": "Hi", "tool_calls": [call]}
    choices = [{"index": 0, "finish_reason": "stop", "message": message}]
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    theirs = litellm.ModelResponse(choices=choices, usage=usage)
    ours = ChatCompletion.model_validate(
        {
            "id": "x",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": choices,
            "usage": usage,
        }
    )
    with warnings.catch_warnings(action="error"):
        answers = (theirs, theirs.choices[0].message, ours, ours.choices[0].message)
        read = [read_answer(answer) for answer in answers]
    return [
        [r.text, r.tool_requests[0].name, r.tool_requests[0].arguments, r.usage.total_tokens] for r in read
    ]


def main() -> None:
    """Run everything in one process, so that litellm is imported once."""
    sys.addaudithook(stay_home)
    told = anyio.run(cases)
    told["wire"] = litellm_wire_probe.facts()
    told["handler answers"] = handler_answers()
    told["abroad"] = list(ABROAD)
    told["environment"] = [os.environ.get(name) for name in ("STRAY_SECRET", "LITELLM_MODE")]
    try:
        socket.create_connection(("192.0.2.1", 443), timeout=1)
        told["guard"] = "open"
    except OSError as error:
        told["guard"] = str(error)
    print(json.dumps(told))
