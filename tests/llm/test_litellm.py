"""The path through litellm: loaded only when it is needed, and translated faithfully, without the network."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from project import clean_environment

from agentest.errors import ConfigError
from agentest.llm.adapters.litellm_adapter import check_provider
from agentest.llm.providers import ModelSpec

PROBE = Path(__file__).parent.parent / "support" / "litellm_probe.py"


def run(*arguments: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=clean_environment(env),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    """What came of every case of the probe."""
    found: dict[str, Any] = json.loads(run(str(PROBE)).splitlines()[-1])
    return found


def test_it_is_not_imported_in_vain() -> None:
    """Nothing that a run without litellm imports brings litellm in, nor the OpenAI package."""
    modules = "agentest.cli.run, agentest.run.runner, agentest.llm.open, agentest.testing, agentest.cli"
    out = run("-c", f"import sys, {modules}; print({{'litellm', 'openai'}} & set(sys.modules))")
    assert out.strip() == "set()"


def test_the_request(told: dict[str, Any]) -> None:
    """The question, the parameters, the key and the schema arrive in the provider's own form."""
    [received] = told["answer"]["received"]
    body = received["body"]
    assert received["path"] == "/v1/messages"
    assert received["headers"]["x-api-key"] == "sk-ant-very-secret-0123456789"
    assert received["headers"]["x-team"] == "blue"
    assert (body["model"], body["max_tokens"], body["temperature"]) == ("claude-sonnet-4-5", 99, 0.0)
    assert "You judge." in json.dumps(body["system"])
    assert "How was it?" in json.dumps(body["messages"])
    assert '"value"' in json.dumps({k: v for k, v in body.items() if k not in ("system", "messages")})


def test_the_reply(told: dict[str, Any]) -> None:
    """Text, tokens (the cached ones among them) and the model's name come back."""
    answer = told["answer"]
    assert json.loads(answer["text"]) == {"reason": "r", "value": 3}
    assert answer["model"] == "claude-scripted"
    assert answer["usage"]["completion_tokens"] == 3
    assert answer["usage"]["cached_tokens"] == 4
    assert answer["usage"]["prompt_tokens"] == 15


@pytest.mark.parametrize("case", ["429", "503", "529", "500", "reset", "page", "openai 429"])
def test_transient_errors(told: dict[str, Any], case: str) -> None:
    """What may pass is transient."""
    assert told[case]["error"] == "TransientError"
    assert told[case]["sure"] is (case == "503")


@pytest.mark.parametrize("case", ["429", "529", "openai 429"])
def test_the_pause_that_was_asked_for(told: dict[str, Any], case: str) -> None:
    """`Retry-After` of the provider gets through."""
    assert told[case]["retry_after"] == 7


@pytest.mark.parametrize("case", ["401", "404"])
def test_permanent_errors(told: dict[str, Any], case: str) -> None:
    """A wrong key or model is no use asking again for."""
    assert told[case]["error"] == "ModelUnavailable"


def test_a_refusal_of_the_form(told: dict[str, Any]) -> None:
    """A 400 is a refusal that another form may mend, with the provider's own words."""
    assert told["400"]["error"] == "RequestRefused"
    assert "output_format is not supported" in told["400"]["text"]


def test_litellm_retries_nothing_itself(told: dict[str, Any]) -> None:
    """Retries are the caller's: an error is the answer to one request."""
    cases = ("answer", "429", "529", "500", "401", "404", "400", "page", "openai", "openai 429")
    assert {case: len(told[case]["received"]) for case in cases} == dict.fromkeys(cases, 1)


def test_no_secret_is_shown(told: dict[str, Any]) -> None:
    """A key that the provider repeats in its error is not shown."""
    assert "the key" in told["401"]["text"]
    assert "very-secret" not in told["401"]["text"]


def test_openai_by_litellm(told: dict[str, Any]) -> None:
    """A model that could be asked directly can be asked through litellm all the same."""
    assert json.loads(told["openai"]["text"]) == {"reason": "r", "value": 3}
    assert told["openai"]["received"][0]["headers"]["authorization"].startswith("Bearer sk-ant-")


def test_a_whole_question(told: dict[str, Any]) -> None:
    """From the configuration to a validated answer: a refused schema, then the schema in the prompt."""
    ladder = told["ladder"]
    assert ladder["value"] == 3
    assert ladder["calls"] == ladder["requests"] > 1


def test_nobody_else_is_asked(told: dict[str, Any]) -> None:
    """Neither importing litellm nor asking through it reaches for anything beyond loopback."""
    assert told["abroad"]["hosts"] == []


@pytest.mark.parametrize("mode", [{}, {"LITELLM_MODE": "DEV"}], ids=["no mode", "DEV"])
def test_no_dotenv_is_read(tmp_path: Path, mode: dict[str, str]) -> None:
    """Importing litellm takes nothing from a `.env` of a folder above, and leaves its mode as it was."""
    (tmp_path / ".env").write_text("STRAY_SECRET=taken\n")
    (tmp_path / "deep" / "down").mkdir(parents=True)
    # Without a file as its main module, what litellm uses looks from the working folder upwards.
    program = (
        "import os, anyio; from agentest.llm.adapters import litellm_adapter as ours; anyio.run(ours.load);"
        "print([os.environ.get(name) for name in ('STRAY_SECRET', 'LITELLM_MODE')])"
    )
    told = run("-c", program, cwd=tmp_path / "deep" / "down", env=mode)
    assert told.splitlines()[-1] == str([None, mode.get("LITELLM_MODE")])


def knowing(*providers: str) -> SimpleNamespace:
    """litellm as far as providers go: it knows these, and a model of its own by its bare name."""

    def get_llm_provider(model: str, api_base: str | None) -> None:
        if model != "meta/llama-2-70b":
            raise ValueError("LLM Provider NOT provided. Pass in the LLM provider you are trying to call.")

    return SimpleNamespace(provider_list=list(providers), get_llm_provider=get_llm_provider)


@pytest.mark.parametrize(
    ("model", "advice"),
    [
        ("opnai/gpt-5", "there is no provider `opnai`; did you mean `openai/gpt-5`"),
        ("Antropic/claude/x", "there is no provider `Antropic`; did you mean `anthropic/claude/x`"),
        ("qqqq/x", "there is no provider `qqqq`; write it as provider/model"),
    ],
)
def test_an_unknown_provider(model: str, advice: str) -> None:
    """A provider that litellm does not know is an error with the nearest name that it does."""
    with pytest.raises(ConfigError, match=advice):
        check_provider(ModelSpec(model, model), knowing("openai", "anthropic", "gemini"))


@pytest.mark.parametrize(
    ("model", "body"),
    [
        ("openai/gpt-5", {}),
        ("meta/llama-2-70b", {}),
        ("gpt-5", {"custom_llm_provider": "openai"}),
    ],
)
def test_whatever_litellm_knows_is_let_through(model: str, body: dict[str, str]) -> None:
    """A known provider, a model that is known by its bare name and a provider in the body are not refused."""
    check_provider(ModelSpec(model, model, body=body), knowing("openai"))


def test_the_real_litellm_is_asked(told: dict[str, Any]) -> None:
    """An unknown provider is told when models are opened, before any question; all that it knows pass."""
    assert told["unknown"]["error"] == (
        "model opnai/gpt-5: there is no provider `opnai`; did you mean `openai/gpt-5`?"
    )
    assert told["unknown"]["refused"] == []
    assert told["unknown"]["known"] > 50
