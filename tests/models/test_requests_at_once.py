"""Concurrent requests to a model, by `concurrency`, place and `max_concurrency`."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import anyio
import pytest
from model_server import ModelServer, Received, completion
from pydantic import BaseModel

from agentest.config.config import Config
from agentest.models.admission import LocalGates
from agentest.models.factory import ModelTerms, open_models
from agentest.models.port import CallKey
from agentest.models.providers import ModelSpec, resolve


def spec_of(environ: dict[str, str] | None = None, **keys: Any) -> ModelSpec:
    config = Config.model_validate({"agent": {"endpoint": "http://h"}, **keys})
    spec = resolve(config, config.judge, {"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k", **(environ or {})})
    assert spec
    return spec


def behind(base_url: str) -> dict[str, Any]:
    return {"provider": "openai-compatible", "model": "m", "provider_options": {"base_url": base_url}}


@pytest.mark.parametrize(
    "keys",
    [
        {"model": "openai/gpt-5-mini"},
        {"model": "anthropic/claude-sonnet-5-5"},
        {"model": "ollama/llama3.2"},
        behind("https://models.example.com/v1"),
        behind("http://127.0.0.1:8080/v1"),
    ],
    ids=lambda keys: str(keys.get("provider_options", keys["model"])),
)
def test_requests_follow_the_conversations(keys: dict[str, Any]) -> None:
    """A model gets three requests per running conversation, or one if it is on this machine."""
    is_local = "ollama" in keys["model"] or "127.0.0.1" in str(keys)
    expected = [1, 2, 5, 20] if is_local else [1, 6, 15, 60]
    assert [spec_of(**keys).requests_at_once(n) for n in (1, 2, 5, 20)] == expected


def test_one_conversation_at_a_time_has_one_request_under_way() -> None:
    """With `concurrency` 1, user and judges share one place, even with different models."""
    keys = behind("https://models.example.com/v1")
    user, judge = spec_of(**keys), spec_of(**keys, judge={"model": "other"})
    alone, two = LocalGates(1), LocalGates(2)
    assert alone.of(user).places is alone.of(judge).places
    assert alone.of(user).places.places == 1
    assert two.of(user).places is not two.of(judge).places


def test_another_key_has_its_own_limits() -> None:
    """Two keys of one model share neither a quota nor the knowledge that a key is refused."""
    keys = behind("https://models.example.com/v1")
    spec = spec_of(**keys)
    gates = LocalGates(20)
    one, other = gates.of(spec), gates.of(replace(spec, api_key="other"))
    assert one.quota is not other.quota
    assert one.circuit is not other.circuit
    assert gates.of(spec) is one


def test_max_concurrency_overrides() -> None:
    """`max_concurrency` takes precedence: the role's own first, then the top level's."""
    for model in ("openai/gpt-5-mini", "ollama/llama3.2"):
        assert spec_of(model=model, max_concurrency=3).requests_at_once(20) == 3
        assert spec_of(model=model, maxConcurrency=300).requests_at_once(20) == 300
        assert spec_of(model=model, max_concurrency=3, judge={"max_concurrency": 7}).requests_at_once(1) == 7


@pytest.mark.parametrize(
    "keys",
    [{"model": "openai/gpt-5-mini"}, behind("http://127.0.0.1:8080/v1")],
    ids=["elsewhere", "on loopback"],
)
@pytest.mark.parametrize("most", [1, 10])
@pytest.mark.parametrize("first", ["user", "judge"])
def test_each_role_keeps_its_own_max_concurrency(keys: dict[str, Any], most: int, first: str) -> None:
    """One role's limit does not affect the other's, whichever is opened first."""
    roles = {"user": spec_of(**keys), "judge": spec_of(**keys, judge={"max_concurrency": most})}
    gates = LocalGates(20)
    gates.of(roles[first])
    places = {role: gates.of(spec).places.places for role, spec in roles.items()}
    assert places == {"user": roles["user"].requests_at_once(20), "judge": most}


class Answer(BaseModel):
    ok: bool


class Meeting:
    """Answers a few requests, and then once the given number has arrived; records the maximum seen."""

    def __init__(self, together: int) -> None:
        self._barrier = threading.Barrier(together)
        self._lock = threading.Lock()
        self._here = self._answered = 0
        self.most = 0

    def __call__(self, _: Received) -> Any:
        with self._lock:
            self._answered += 1
            if self._answered <= 12:  # a model is called by more and more only as it answers
                return completion({"ok": True})
            self._here += 1
            self.most = max(self.most, self._here)
        self._barrier.wait(30)
        with self._lock:
            self._here -= 1
        return completion({"ok": True})


@pytest.mark.parametrize(
    ("keys", "expected"), [({}, 2), ({"max_concurrency": 4}, 4)], ids=["concurrency", "max_concurrency"]
)
def test_the_model_sees_that_many_requests(keys: dict[str, Any], expected: int) -> None:
    """A model on loopback sees `concurrency` requests at once, or `max_concurrency`."""
    meeting = Meeting(expected)

    async def ask_often(spec: ModelSpec) -> None:
        async with (
            open_models(None, spec, ModelTerms(LocalGates(2))) as models,
            anyio.create_task_group() as tasks,
        ):
            assert models.judge
            for n in range(24):
                key = CallKey("judge", "s", n)
                tasks.start_soon(models.judge.ask, [{"role": "user", "content": "ok?"}], Answer, key)

    with ModelServer(script=meeting) as server:
        anyio.run(ask_often, spec_of(**behind(server.base_url), **keys))
    assert meeting.most == expected
