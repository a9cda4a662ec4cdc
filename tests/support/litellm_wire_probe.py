"""Call the APIs of `provider_wire` through litellm, for `litellm_probe`."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

import anyio
from model_server import Answer, ModelServer, Received
from provider_wire import KEY, Anthropic, Gemini, anthropic_error, gemini_error

CLAUDE, OLD_CLAUDE = "anthropic/claude-sonnet-4-5", "anthropic/claude-3-5-haiku-20241022"
GEMINI = "gemini/gemini-2.5-flash"
CONTEXT = "<data>\n" + "A conversation of some length. " * 40 + "\n</data>"

Script = Callable[[Received], Answer]


async def asked(
    model: str,
    script: Script,
    *,
    questions: Sequence[str] = ("How was it?",),
    path: str = "",
    key: str = KEY,
    **judge: Any,
) -> dict[str, Any]:
    """Ask a judge several questions; only the server is a stand-in, from the configuration on."""
    from agentest.config.config import Config
    from agentest.judging.answers import ScaleAnswer
    from agentest.judging.questions import judge_messages
    from agentest.models.factory import ModelTerms, open_models
    from agentest.models.port import CallKey
    from agentest.models.providers import resolve
    from agentest.support.errors import ModelError

    with ModelServer(script=script) as server:
        options = {"base_url": server.origin + path, "api_key": key}
        config = Config.model_validate(
            {
                "agent": {"endpoint": "http://localhost"},
                "model": model,
                "provider_options": options,
                "judge": {"temperature": 0, **judge},
            }
        )
        spec, terms, told = resolve(config, config.judge, {}), ModelTerms(), []
        began = perf_counter()
        async with open_models(None, spec, terms) as models:
            assert models.judge is not None
            for question in questions:
                before = terms.ledger.of("s").get("judge")
                try:
                    messages = judge_messages((CONTEXT, "The turn to judge: turn 0."), question)
                    found = await models.judge.ask(messages, ScaleAnswer, CallKey("judge", "s"))
                    told.append({"value": found.value})
                except ModelError as error:
                    told.append({"error": str(error), "kind": type(error).__name__})
                used = terms.ledger.of("s")["judge"]
                told[-1] |= {"calls": used.calls - (before.calls if before else 0)}
        used = terms.ledger.of("s")["judge"]
        return {
            "told": told,
            "usage": asdict(used),
            "took_s": perf_counter() - began,
            "received": [asdict(received) for received in server.received],
        }


def hanging(_: Received) -> Answer:
    """Give no answer until after any timeout."""
    threading.Event().wait(60)
    return Answer()


def slow_down(**headers: str) -> Answer:
    return anthropic_error(429, "Number of requests has exceeded your limit", "rate_limit_error", headers)


def refusing() -> Answer:
    """Claude's answer to a request that it refuses."""
    body = {
        "id": "msg_2",
        "type": "message",
        "role": "assistant",
        "model": "claude-wire",
        "content": [],
        "stop_reason": "refusal",
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 1},
    }
    return Answer(json.dumps(body).encode())


def without_temperature() -> Script:
    """A Claude that accepts no temperature."""
    claude = Anthropic()

    def script(received: Received) -> Answer:
        if "temperature" in received.body:
            return anthropic_error(400, "temperature: is deprecated for this model", "invalid_request_error")
        return claude(received)

    return script


def blocked() -> Answer:
    """Gemini's answer to a request that it refuses."""
    usage = {"promptTokenCount": 9, "totalTokenCount": 9}
    body = {
        "promptFeedback": {"blockReason": "SAFETY"},
        "usageMetadata": usage,
        "modelVersion": "gemini-wire",
    }
    return Answer(json.dumps(body).encode())


async def questions() -> dict[str, Any]:
    """Every case that is a question to one model."""
    overloaded = anthropic_error(529, "Overloaded", "overloaded_error")
    broken = anthropic_error(500, "Internal server error", "api_error")
    exhausted = gemini_error(429, "You exceeded your quota", "RESOURCE_EXHAUSTED", retry_in="1.2s")
    busy = gemini_error(503, "The model is overloaded", "UNAVAILABLE")
    two = ("How helpful was it?", "How long was it?")
    three = (*two, "Once more?")
    v1, beta = {"path": "/v1"}, {"path": "/v1beta"}
    return {
        "claude": await asked(CLAUDE, Anthropic(), questions=two),
        "claude uncached": await asked(CLAUDE, Anthropic(), questions=two, cache=False),
        "claude by /v1": await asked(CLAUDE, Anthropic(), **v1),
        "old claude": await asked(OLD_CLAUDE, Anthropic()),
        "claude ladder": await asked(CLAUDE, Anthropic(without_formats=True), questions=three),
        "claude 429": await asked(CLAUDE, Anthropic([slow_down(**{"retry-after": "1"})])),
        "claude 5xx": await asked(CLAUDE, Anthropic([overloaded, broken])),
        "claude 529 for ever": await asked(CLAUDE, Anthropic([overloaded] * 99), deadline_ms=2000),
        "claude 401": await asked(CLAUDE, Anthropic(), key="a-wrong-key-9876543210"),
        "claude hangs": await asked(CLAUDE, hanging, timeout_ms=400, deadline_ms=2000),
        "claude refuses": await asked(CLAUDE, Anthropic([refusing()])),
        "claude without temperature": await asked(CLAUDE, without_temperature(), questions=three),
        "claude nonsense": await asked(CLAUDE, Anthropic([Answer(b"{}")] * 99), deadline_ms=2000),
        "gemini blocks": await asked(GEMINI, Gemini([blocked()]), **beta),
        "gemini": await asked(GEMINI, Gemini(), questions=two, **beta),
        "gemini ladder": await asked(GEMINI, Gemini(without_schemas=True), questions=three, **beta),
        "gemini 429": await asked(GEMINI, Gemini([exhausted]), **beta),
        "gemini 503": await asked(GEMINI, Gemini([busy]), **beta),
        "gemini 401": await asked(GEMINI, Gemini(), key="a-wrong-key-9876543210", **beta),
    }


def whole_run() -> dict[str, Any]:
    """Run `agentest run` with Gemini as the user and Claude as the judge."""
    from agentest.cli.main import cli
    from agentest.testing import ScriptedAgent, tool_call

    claude, gemini = ModelServer(script=Anthropic()), ModelServer(script=Gemini())
    with (
        tempfile.TemporaryDirectory() as made,
        claude,
        gemini,
        ScriptedAgent([tool_call("look", day="friday"), "Nine."]) as agent,
    ):
        user = {"base_url": gemini.origin + "/v1beta", "api_key": KEY}
        judge = {"base_url": claude.origin, "api_key": KEY}
        config = {
            "agent": {"endpoint": agent.endpoint},
            "user": {"model": GEMINI, "provider_options": user},
            "judge": {"model": CLAUDE, "provider_options": judge},
            "conversations_per_scenario": 2,
            "max_turns": 2,
            "reporters": ["console", "json"],
        }
        os.chdir(made)
        Path("agentest.config.yaml").write_text(json.dumps(config), encoding="utf-8")
        Path("a.sim.py").write_text(
            'from agentest import scenario\nscenario("books", goal="Book.", tools={"look": {"free": "9"}})\n',
            encoding="utf-8",
        )
        out, sys.stdout = sys.stdout, sys.stderr
        try:
            cli.main(["run"])
        except SystemExit as ended:
            status = ended.code
        finally:
            sys.stdout = out
        results = json.loads(Path(".agentest/results.json").read_text("utf-8"))
        os.chdir("/")
        marks = sum("cache_control" in json.dumps(received.body) for received in claude.received)
        return {
            "status": status,
            "results": results,
            "requests": {"gemini": len(gemini.received), "claude": len(claude.received)},
            "marks": marks,
        }


def facts() -> dict[str, Any]:
    """Return the results of all cases."""
    with warnings.catch_warnings(record=True) as warned:
        told = anyio.run(questions)
        told["run"] = whole_run()
    told["warnings"] = sorted({str(warning.message)[:200] for warning in warned})
    return told
