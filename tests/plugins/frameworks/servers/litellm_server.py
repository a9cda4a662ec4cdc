"""LiteLLM's proxy, which speaks Responses and Anthropic Messages, before a model that is the script."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import shop
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse
from serving import options, serve

PROXY = {
    "model_list": [
        {
            "model_name": "*",
            "litellm_params": {
                "model": "custom_openai/*",
                "api_base": "os.environ/UPSTREAM",
                "api_key": "none",
            },
        }
    ],
    "general_settings": {"dangerously_permit_weak_or_unset_master_key": True},
    "litellm_settings": {"num_retries": 0, "telemetry": False},
    "router_settings": {"num_retries": 0, "disable_cooldowns": True},
}
USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}

model = FastAPI()


def text_of(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content or [])


def read(messages: list[dict[str, Any]]) -> tuple[list[str], list[Any]]:
    """The user's texts, and the results since the last of them."""
    texts: list[str] = []
    results: list[Any] = []
    for message in messages:
        if message["role"] == "user":
            texts.append(text_of(message["content"]))
            results = []
        elif message["role"] == "tool":
            results.append(text_of(message["content"]))
    return texts, results


def message_of(step: shop.Call | str) -> dict[str, Any]:
    if isinstance(step, str):
        return {"role": "assistant", "content": step}
    call = {"id": f"call_{uuid.uuid4().hex[:12]}", "type": "function", "index": 0}
    function = {"name": step.name, "arguments": json.dumps(step.args)}
    return {"role": "assistant", "content": None, "tool_calls": [{**call, "function": function}]}


async def chunks(message: dict[str, Any]) -> AsyncIterator[str]:
    """The message as a stream, a text word by word."""
    words = (message["content"] or "").split(" ") if message["content"] else []
    texts = [
        {"role": "assistant", "content": word if at == 0 else f" {word}"} for at, word in enumerate(words)
    ]
    reason = "tool_calls" if "tool_calls" in message else "stop"
    for delta, end in [*((piece, None) for piece in texts or [message]), ({}, reason)]:
        yield _event(choices=[{"index": 0, "delta": delta, "finish_reason": end}])
    yield _event(choices=[], usage=USAGE) + "data: [DONE]\n\n"


def _event(**fields: Any) -> str:
    base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "shop"}
    return f"data: {json.dumps({**base, **fields})}\n\n"


@model.post("/v1/chat/completions")
async def completions(request: Request) -> Any:
    body = await request.json()
    try:
        message = message_of(await shop.think(*read(body["messages"])))
    except RuntimeError as error:
        return JSONResponse({"error": {"message": str(error), "type": "server_error"}}, status_code=500)
    if body.get("stream"):
        return StreamingResponse(chunks(message), media_type="text/event-stream")
    reason = "tool_calls" if "tool_calls" in message else "stop"
    choices = [{"index": 0, "message": message, "finish_reason": reason}]
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "shop",
        "choices": choices,
        "usage": USAGE,
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def become_proxy(port: int) -> None:
    """Start the model next to this process; it ends with our process group."""
    upstream = free_port()
    subprocess.Popen([sys.executable, __file__, "--port", str(upstream), "--only-model"])
    config = Path(tempfile.mkdtemp()) / "litellm.yaml"
    config.write_text(json.dumps(PROXY), encoding="utf-8")  # JSON is YAML
    program = str(Path(sys.executable).parent / "litellm")
    words = [
        program,
        "--config",
        str(config),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--telemetry",
        "False",
    ]
    os.execve(program, words, {**os.environ, "UPSTREAM": f"http://127.0.0.1:{upstream}/v1"})


if __name__ == "__main__":
    chosen = options(only_model=False)
    if chosen.only_model:
        serve(model, chosen.port)
    else:
        become_proxy(chosen.port)
