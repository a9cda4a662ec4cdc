"""The litellm adapter: imported only if needed, exact in translation, tested without the network."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from project import clean_environment
from provider_wire import KEY

from agentest.judging.judge_input import JudgeQuestion
from agentest.judging.questions import joint_messages
from agentest.models.port import CallKey, ChatRequest, Level, TransientError
from agentest.models.providers import ModelSpec
from agentest.plugins.frameworks.litellm_models import LiteLLMChatModel, check_provider
from agentest.support.errors import ConfigError

SUPPORT = str(Path(__file__).parents[2] / "support")


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


def below_a_dotenv(folder: Path) -> Path:
    """A folder whose parent has a `.env`."""
    (folder / ".env").write_text("STRAY_SECRET=taken\n")
    deep = folder / "deep" / "down"
    deep.mkdir(parents=True)
    return deep


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Results of every case of the probe, which runs with `-c` so that litellm would look for a `.env` from
    the working folder up."""
    program = f"import sys; sys.path.insert(0, {SUPPORT!r}); import litellm_probe; litellm_probe.main()"
    out = run("-c", program, cwd=below_a_dotenv(tmp_path_factory.mktemp("probe")))
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def wire(told: dict[str, Any]) -> dict[str, Any]:
    """Results of the questions in the wire formats of Claude and Gemini."""
    facts: dict[str, Any] = told["wire"]
    return facts


@pytest.mark.slow
def test_it_is_not_imported_unless_used() -> None:
    """A run without litellm imports neither litellm nor the OpenAI package."""
    modules = (
        "agentest.cli.run, agentest.runner.executor, agentest.models.factory, agentest.testing, agentest.cli"
    )
    out = run("-c", f"import sys, {modules}; print({{'litellm', 'openai'}} & set(sys.modules))")
    assert out.strip() == "set()"


@pytest.mark.slow
def test_the_request(told: dict[str, Any]) -> None:
    """Question, parameters, key and schema arrive in the provider's format."""
    [received] = told["answer"]["received"]
    body = received["body"]
    assert received["path"] == "/v1/messages"
    assert received["headers"]["x-api-key"] == "sk-ant-very-secret-0123456789"
    assert received["headers"]["x-team"] == "blue"
    assert (body["model"], body["max_tokens"], body["temperature"]) == ("claude-sonnet-4-5", 99, 0.0)
    assert "You judge." in json.dumps(body["system"])
    assert "How was it?" in json.dumps(body["messages"])
    assert '"value"' in json.dumps({k: v for k, v in body.items() if k not in ("system", "messages")})


@pytest.mark.slow
def test_the_reply(told: dict[str, Any]) -> None:
    """Text, tokens (including cached ones) and the model's name are returned."""
    answer = told["answer"]
    assert json.loads(answer["text"]) == {"reason": "r", "value": 3}
    assert answer["model"] == "claude-scripted"
    assert answer["usage"]["completion_tokens"] == 3
    assert answer["usage"]["cached_tokens"] == 4
    assert answer["usage"]["prompt_tokens"] == 15


@pytest.mark.parametrize("case", ["429", "503", "529", "500", "reset", "page", "nowhere", "openai 429"])
@pytest.mark.slow
def test_transient_errors(told: dict[str, Any], case: str) -> None:
    """Temporary failures are transient; without a server or model, the address may be wrong."""
    assert told[case]["error"] == "TransientError"
    assert told[case]["misaddressed"] is (case in ("reset", "page", "nowhere"))


@pytest.mark.parametrize("case", ["429", "529", "openai 429"])
@pytest.mark.slow
def test_retry_after(told: dict[str, Any], case: str) -> None:
    """The provider's `Retry-After` is passed on."""
    assert told[case]["retry_after"] == 7


@pytest.mark.parametrize("case", ["401", "404"])
@pytest.mark.slow
def test_permanent_errors(told: dict[str, Any], case: str) -> None:
    """A wrong key or model is not retried."""
    assert told[case]["error"] == "ModelUnavailable"


@pytest.mark.slow
def test_a_refusal_of_the_schema(told: dict[str, Any]) -> None:
    """A 400 is a refusal that another answer format may avoid, with the provider's message."""
    assert told["400"]["error"] == "RequestRefused"
    assert "output_format is not supported" in told["400"]["text"]


@pytest.mark.slow
def test_litellm_retries_nothing_itself(told: dict[str, Any]) -> None:
    """An error is returned after one request, because the caller retries."""
    cases = ("answer", "429", "529", "500", "401", "404", "400", "page", "openai", "openai 429")
    assert {case: len(told[case]["received"]) for case in cases} == dict.fromkeys(cases, 1)


@pytest.mark.slow
def test_no_secret_is_shown(told: dict[str, Any]) -> None:
    """A key repeated in the provider's error is redacted."""
    assert "the key" in told["401"]["text"]
    assert "very-secret" not in told["401"]["text"]


@pytest.mark.slow
def test_openai_by_litellm(told: dict[str, Any]) -> None:
    """A model with a direct adapter can also be called through litellm."""
    assert json.loads(told["openai"]["text"]) == {"reason": "r", "value": 3}
    assert told["openai"]["received"][0]["headers"]["authorization"].startswith("Bearer sk-ant-")


@pytest.mark.slow
def test_a_whole_question(told: dict[str, Any]) -> None:
    """From configuration to a validated answer: a refused schema, then the schema in the prompt."""
    ladder = told["ladder"]
    assert ladder["value"] == 3
    assert ladder["calls"] == ladder["requests"] > 1


@pytest.mark.slow
def test_no_other_host_is_contacted(told: dict[str, Any]) -> None:
    """Importing and using litellm contacts only loopback addresses."""
    assert told["guard"] == "192.0.2.1 is not loopback"
    assert told["abroad"] == []


@pytest.mark.slow
def test_no_dotenv_is_read(told: dict[str, Any]) -> None:
    """Importing litellm reads no `.env` of a parent folder and leaves LITELLM_MODE unchanged."""
    assert told["environment"] == [None, None]


@pytest.mark.slow
def test_no_dotenv_is_read_for_developers_of_litellm(tmp_path: Path) -> None:
    """LITELLM_MODE=DEV, which makes litellm read `.env`, does not change that."""
    program = (
        "import os, anyio; from agentest.plugins.frameworks.litellm_models import load; anyio.run(load);"
        "print([os.environ.get(name) for name in ('STRAY_SECRET', 'LITELLM_MODE')])"
    )
    found = run("-c", program, cwd=below_a_dotenv(tmp_path), env={"LITELLM_MODE": "DEV"})
    assert found.splitlines()[-1] == str([None, "DEV"])


def knowing(*providers: str) -> SimpleNamespace:
    """A stand-in for litellm that knows these providers, and one model by its bare name."""

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
    """A provider litellm does not know is an error with the nearest known name."""
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
def test_providers_that_litellm_knows_are_accepted(model: str, body: dict[str, str]) -> None:
    """Known providers, models known by bare name and a provider in the body are accepted."""
    check_provider(ModelSpec(model, model, body=body), knowing("openai"))


@pytest.mark.slow
def test_the_real_litellm_checks_providers(told: dict[str, Any]) -> None:
    """An unknown provider is reported when models are opened; all that litellm knows pass."""
    error = "model opnai/gpt-5: there is no provider `opnai`; did you mean `openai/gpt-5`?"
    assert told["unknown"]["errors"] == [error, f"test_config.json: criteria.safety_v1: {error}"]
    assert told["unknown"]["refused"] == []
    assert told["unknown"]["known"] > 50


@pytest.mark.slow
def test_answers_of_handlers(told: dict[str, Any]) -> None:
    """Real litellm and openai objects are read as a handler's answer without a warning."""
    assert told["handler answers"] == [["Hi", "find", '{"q": 1}', tokens] for tokens in (7, 0, 7, 0)]


# --- Claude and Gemini, end to end over their own wire formats

BOTH = pytest.mark.parametrize("model", ["claude", "gemini"])


def bodies(case: dict[str, Any]) -> list[dict[str, Any]]:
    return [received["body"] for received in case["received"]]


@pytest.mark.parametrize("case", ["claude", "old claude", "gemini"])
@pytest.mark.slow
def test_a_structured_answer(wire: dict[str, Any], case: str) -> None:
    """A valid answer comes from the first request, which has the schema in the provider's format."""
    assert [(t["value"], t["calls"]) for t in wire[case]["told"]] == [(5, 1)] * len(wire[case]["told"])
    body = bodies(wire[case])[0]
    form = {
        "claude": lambda: body["output_format"]["schema"],
        "old claude": lambda: body["tools"][0]["input_schema"],
        "gemini": lambda: body["generationConfig"]["response_json_schema"],
    }[case]()
    assert form["properties"]["value"]["enum"] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("case", ["claude", "old claude"])
@pytest.mark.slow
def test_the_shared_part_is_marked_for_claude(wire: dict[str, Any], case: str) -> None:
    """The only cache mark ends the part that all judges of a turn share; the question follows."""
    turn, question = bodies(wire[case])[0]["messages"][0]["content"]
    assert turn["cache_control"] == {"type": "ephemeral"}
    assert turn["text"].startswith("<data>")
    assert json.dumps(bodies(wire[case])[0]).count("cache_control") == 1
    assert "cache_control" not in question


@pytest.mark.parametrize(
    ("turns", "marked"),
    [(1, [0, 1, 2, 3]), (2, [0, 1, 3, 4]), (5, [0, 1, 6, 7])],
    ids=["first", "second", "fifth"],
)
def test_four_parts_of_a_long_prompt_are_marked_for_claude(turns: int, marked: list[int]) -> None:
    """The marks end what all calls share, what the call before had, and what the next call will have."""
    sent: dict[str, Any] = {}

    async def acompletion(**request: Any) -> None:
        sent.update(request)
        raise ConnectionError("enough")

    context = ("policy", "case", *(f"turn {n}" for n in range(turns)), "The turn to judge: the last one.")
    request = ChatRequest(
        joint_messages([JudgeQuestion("relevance", 0)], context), "a", {}, Level.PROMPT, CallKey("judge", "s")
    )
    claude = LiteLLMChatModel(
        ModelSpec("c", "anthropic/claude-sonnet-5-5"), SimpleNamespace(acompletion=acompletion)
    )
    with pytest.raises(TransientError):
        anyio.run(claude.complete, request)
    parts = sent["messages"][1]["content"]
    assert len(parts) == turns + 4
    assert [n for n, part in enumerate(parts) if "cache_control" in part] == marked


@BOTH
@pytest.mark.slow
def test_the_shared_part_is_read_from_the_cache(wire: dict[str, Any], model: str) -> None:
    """The second judge of a turn finds most of its prompt cached, and usage counts these tokens."""
    tokens = wire[model]["usage"]["tokens"]
    assert tokens["cached_tokens"] > 0.9 * tokens["prompt_tokens"] / 2
    assert tokens["prompt_tokens"] > 1000
    assert wire[model]["usage"]["cost"] > 0


@pytest.mark.slow
def test_without_marks_nothing_is_cached(wire: dict[str, Any]) -> None:
    """`judge: {cache: false}` sends no mark, and Claude caches nothing."""
    case = wire["claude uncached"]
    assert "cache_control" not in json.dumps(bodies(case))
    assert case["usage"]["tokens"]["cached_tokens"] == 0


@pytest.mark.parametrize(("model", "completion"), [("claude", 7), ("gemini", 7 + 5)])
@pytest.mark.slow
def test_completion_tokens_are_counted(wire: dict[str, Any], model: str, completion: int) -> None:
    """All generated tokens count, including Gemini's thoughts."""
    assert wire[model]["usage"]["tokens"]["completion_tokens"] == 2 * completion


@BOTH
@pytest.mark.slow
def test_a_schema_that_is_refused(wire: dict[str, Any], model: str) -> None:
    """After a 400 about the schema, it moves to the prompt. After a second one, this is remembered."""
    case = wire[f"{model} ladder"]
    assert [t["value"] for t in case["told"]] == [5, 5, 5]
    first, second, last = case["told"]
    assert first["calls"] == second["calls"] > 1
    assert last["calls"] == 1
    assert "JSON Schema" in json.dumps(bodies(case)[-1])


@pytest.mark.parametrize(("case", "pause_s"), [("claude 429", 1.0), ("gemini 429", 1.2)])
@pytest.mark.slow
def test_requested_pauses(wire: dict[str, Any], case: str, pause_s: float) -> None:
    """After a 429 no request is sent before the time in Claude's header or Gemini's body."""
    assert wire[case]["told"] == [{"value": 5, "calls": 2}]
    assert wire[case]["took_s"] >= pause_s
    assert wire[case]["usage"]["retries"] == 1


@pytest.mark.parametrize(("case", "failures"), [("claude 5xx", 2), ("gemini 503", 1)])
@pytest.mark.slow
def test_failures_that_pass(wire: dict[str, Any], case: str, failures: int) -> None:
    """Requests that get 529, 500 or 503 are retried until there is an answer."""
    assert wire[case]["told"] == [{"value": 5, "calls": failures + 1}]
    assert len(wire[case]["received"]) == failures + 1


@pytest.mark.slow
def test_failures_that_stay(wire: dict[str, Any]) -> None:
    """A model that stays overloaded past the deadline is an error with the model's message."""
    (answer,) = wire["claude 529 for ever"]["told"]
    assert 2 <= answer["calls"] < 20
    assert "Overloaded" in answer["error"]


@BOTH
@pytest.mark.slow
def test_a_wrong_key(wire: dict[str, Any], model: str) -> None:
    """A wrong key costs one call with the question and one with another; the error does not show it."""
    (answer,) = wire[f"{model} 401"]["told"]
    assert (answer["calls"], answer["kind"]) == (2, "ModelUnavailable")
    assert "AuthenticationError" in answer["error"]
    assert "wrong-key" not in answer["error"]


@pytest.mark.slow
def test_a_model_that_hangs(wire: dict[str, Any]) -> None:
    """A request that times out is retried, and then is an error."""
    case = wire["claude hangs"]
    (answer,) = case["told"]
    assert "no answer within 2 s, all attempts together" in answer["error"]
    assert 2 <= len(case["received"]) < 9
    assert case["took_s"] < 30


@pytest.mark.parametrize("case", ["claude refuses", "gemini blocks"])
@pytest.mark.slow
def test_a_model_that_refuses(wire: dict[str, Any], case: str) -> None:
    """An answer stopped by a content filter is not retried, and the error says so."""
    (answer,) = wire[case]["told"]
    assert answer["calls"] == 1
    assert "content filter" in answer["error"]


@pytest.mark.slow
def test_answers_that_litellm_cannot_read(wire: dict[str, Any]) -> None:
    """The error is one line, without litellm's traceback and links."""
    (answer,) = wire["claude nonsense"]["told"]
    assert "Traceback" not in answer["error"]
    assert "\n" not in answer["error"]


@pytest.mark.slow
def test_a_base_url_with_its_version(wire: dict[str, Any]) -> None:
    """`base_url` may end with `/v1`, as Anthropic's own does."""
    assert wire["claude by /v1"]["told"] == [{"value": 5, "calls": 1}]
    assert wire["claude by /v1"]["received"][0]["path"] == "/v1/messages"


@pytest.mark.slow
def test_a_whole_run(wire: dict[str, Any]) -> None:
    """`agentest run` with Gemini as the user and Claude as the judge answers and counts every call."""
    run = wire["run"]
    summary = run["results"]["summary"]
    assert run["status"] == 0
    (scenario,) = run["results"]["scenarios"]
    assert scenario["status"] == "passed"
    assert [len(c["turns"]) for c in scenario["conversations"]] == [2, 2]
    # Two turns each: a user's message and a judge's call; a call about the goal, one about the user's role.
    by_role = summary["usage"]["byRole"]
    assert {role: used["calls"] for role, used in by_role.items()} == {"user": 4, "judge": 8}
    assert run["requests"] == {"gemini": 4, "claude": 8}
    assert run["marks"] == 8
    assert by_role["judge"]["cachedTokens"] > 0
    assert KEY not in json.dumps(run["results"])


@pytest.mark.slow
def test_no_warnings(wire: dict[str, Any]) -> None:
    """litellm prints no warnings to users."""
    assert wire["warnings"] == []


@pytest.mark.slow
def test_a_temperature_that_claude_refuses_is_left_out(wire: dict[str, Any]) -> None:
    """The request is repeated without a temperature. After two such refusals, requests have none."""
    found = wire["claude without temperature"]
    assert ["value" in told for told in found["told"]] == [True, True, True]
    assert ["temperature" in each["body"] for each in found["received"]] == [True, False, True, False, False]
