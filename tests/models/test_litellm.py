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
from provider_wire import KEY

from agentest.models.litellm_adapter import check_provider
from agentest.models.providers import ModelSpec
from agentest.support.errors import ConfigError

SUPPORT = str(Path(__file__).parent.parent / "support")


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
    """A folder, with a `.env` in one above it."""
    (folder / ".env").write_text("STRAY_SECRET=taken\n")
    deep = folder / "deep" / "down"
    deep.mkdir(parents=True)
    return deep


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What came of every case of the probe. Where its main module is no file, what litellm uses looks for a
    `.env` from the working folder upwards."""
    program = f"import sys; sys.path.insert(0, {SUPPORT!r}); import litellm_probe; litellm_probe.main()"
    out = run("-c", program, cwd=below_a_dotenv(tmp_path_factory.mktemp("probe")))
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def wire(told: dict[str, Any]) -> dict[str, Any]:
    """What came of the questions in the wire formats of Claude and Gemini."""
    facts: dict[str, Any] = told["wire"]
    return facts


@pytest.mark.slow
def test_it_is_not_imported_in_vain() -> None:
    """Nothing that a run without litellm imports brings litellm in, nor the OpenAI package."""
    modules = (
        "agentest.cli.run, agentest.runner.executor, agentest.models.factory, agentest.testing, agentest.cli"
    )
    out = run("-c", f"import sys, {modules}; print({{'litellm', 'openai'}} & set(sys.modules))")
    assert out.strip() == "set()"


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_reply(told: dict[str, Any]) -> None:
    """Text, tokens (the cached ones among them) and the model's name come back."""
    answer = told["answer"]
    assert json.loads(answer["text"]) == {"reason": "r", "value": 3}
    assert answer["model"] == "claude-scripted"
    assert answer["usage"]["completion_tokens"] == 3
    assert answer["usage"]["cached_tokens"] == 4
    assert answer["usage"]["prompt_tokens"] == 15


@pytest.mark.parametrize("case", ["429", "503", "529", "500", "reset", "page", "nowhere", "openai 429"])
@pytest.mark.slow
def test_transient_errors(told: dict[str, Any], case: str) -> None:
    """What may pass is transient; the address may be wrong where nobody, or no model, answers."""
    assert told[case]["error"] == "TransientError"
    assert told[case]["misaddressed"] is (case in ("reset", "page", "nowhere"))


@pytest.mark.parametrize("case", ["429", "529", "openai 429"])
@pytest.mark.slow
def test_the_pause_that_was_asked_for(told: dict[str, Any], case: str) -> None:
    """`Retry-After` of the provider gets through."""
    assert told[case]["retry_after"] == 7


@pytest.mark.parametrize("case", ["401", "404"])
@pytest.mark.slow
def test_permanent_errors(told: dict[str, Any], case: str) -> None:
    """A wrong key or model is no use asking again for."""
    assert told[case]["error"] == "ModelUnavailable"


@pytest.mark.slow
def test_a_refusal_of_the_form(told: dict[str, Any]) -> None:
    """A 400 is a refusal that another form may mend, with the provider's own words."""
    assert told["400"]["error"] == "RequestRefused"
    assert "output_format is not supported" in told["400"]["text"]


@pytest.mark.slow
def test_litellm_retries_nothing_itself(told: dict[str, Any]) -> None:
    """Retries are the caller's: an error is the answer to one request."""
    cases = ("answer", "429", "529", "500", "401", "404", "400", "page", "openai", "openai 429")
    assert {case: len(told[case]["received"]) for case in cases} == dict.fromkeys(cases, 1)


@pytest.mark.slow
def test_no_secret_is_shown(told: dict[str, Any]) -> None:
    """A key that the provider repeats in its error is not shown."""
    assert "the key" in told["401"]["text"]
    assert "very-secret" not in told["401"]["text"]


@pytest.mark.slow
def test_openai_by_litellm(told: dict[str, Any]) -> None:
    """A model that could be asked directly can be asked through litellm all the same."""
    assert json.loads(told["openai"]["text"]) == {"reason": "r", "value": 3}
    assert told["openai"]["received"][0]["headers"]["authorization"].startswith("Bearer sk-ant-")


@pytest.mark.slow
def test_a_whole_question(told: dict[str, Any]) -> None:
    """From the configuration to a validated answer: a refused schema, then the schema in the prompt."""
    ladder = told["ladder"]
    assert ladder["value"] == 3
    assert ladder["calls"] == ladder["requests"] > 1


@pytest.mark.slow
def test_nobody_else_is_asked(told: dict[str, Any]) -> None:
    """Neither importing litellm nor asking through it reaches for anything beyond loopback; it would fail."""
    assert told["guard"] == "192.0.2.1 is not loopback"
    assert told["abroad"] == []


@pytest.mark.slow
def test_no_dotenv_is_read(told: dict[str, Any]) -> None:
    """Importing litellm takes nothing from a `.env` of a folder above, and leaves its mode as it was."""
    assert told["environment"] == [None, None]


@pytest.mark.slow
def test_no_dotenv_is_read_for_developers_of_litellm(tmp_path: Path) -> None:
    """Nor where its mode says that it should."""
    program = (
        "import os, anyio; from agentest.models import litellm_adapter as ours; anyio.run(ours.load);"
        "print([os.environ.get(name) for name in ('STRAY_SECRET', 'LITELLM_MODE')])"
    )
    found = run("-c", program, cwd=below_a_dotenv(tmp_path), env={"LITELLM_MODE": "DEV"})
    assert found.splitlines()[-1] == str([None, "DEV"])


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


@pytest.mark.slow
def test_the_real_litellm_is_asked(told: dict[str, Any]) -> None:
    """An unknown provider is told when models are opened, before any question; all that it knows pass."""
    error = "model opnai/gpt-5: there is no provider `opnai`; did you mean `openai/gpt-5`?"
    assert told["unknown"]["errors"] == [error, f"test_config.json: criteria.safety_v1: {error}"]
    assert told["unknown"]["refused"] == []
    assert told["unknown"]["known"] > 50


@pytest.mark.slow
def test_answers_of_handlers(told: dict[str, Any]) -> None:
    """The real objects of litellm and openai are read as a handler's answer, without a warning."""
    assert told["handler answers"] == [["Hi", "find", '{"q": 1}', tokens] for tokens in (7, 0, 7, 0)]


# --- Claude and Gemini, end to end over their own wire formats

BOTH = pytest.mark.parametrize("model", ["claude", "gemini"])


def bodies(case: dict[str, Any]) -> list[dict[str, Any]]:
    return [received["body"] for received in case["received"]]


@pytest.mark.parametrize("case", ["claude", "old claude", "gemini"])
@pytest.mark.slow
def test_an_answer_of_the_form(wire: dict[str, Any], case: str) -> None:
    """A valid answer comes with the first request, in which the form stands as the provider wants it."""
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
    """The turn, which all its judges share, ends with the one cache mark; the question comes after it."""
    turn, question = bodies(wire[case])[0]["messages"][0]["content"]
    assert turn["cache_control"] == {"type": "ephemeral"}
    assert turn["text"].startswith("<data>")
    assert json.dumps(bodies(wire[case])[0]).count("cache_control") == 1
    assert "cache_control" not in question


@BOTH
@pytest.mark.slow
def test_what_is_shared_is_read_from_the_cache(wire: dict[str, Any], model: str) -> None:
    """The second judge of a turn finds most of its prompt cached, and that is counted among its tokens."""
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
    """All that a model wrote is counted, Gemini's thoughts among it."""
    assert wire[model]["usage"]["tokens"]["completion_tokens"] == 2 * completion


@BOTH
@pytest.mark.slow
def test_a_form_that_is_refused(wire: dict[str, Any], model: str) -> None:
    """A 400 about the form leads to one that works, with the schema in the prompt, and is remembered."""
    case = wire[f"{model} ladder"]
    assert [t["value"] for t in case["told"]] == [5, 5]
    first, *_, last = case["told"]
    assert first["calls"] > 1
    assert last["calls"] == 1
    assert "JSON Schema" in json.dumps(bodies(case)[-1])


@pytest.mark.parametrize(("case", "pause_s"), [("claude 429", 1.0), ("gemini 429", 1.2)])
@pytest.mark.slow
def test_the_pause_that_either_asks_for(wire: dict[str, Any], case: str, pause_s: float) -> None:
    """After a 429 nobody asks before the time that Claude's header or Gemini's body names."""
    assert wire[case]["told"] == [{"value": 5, "calls": 2}]
    assert wire[case]["took_s"] >= pause_s
    assert wire[case]["usage"]["retries"] == 1


@pytest.mark.parametrize(("case", "failures"), [("claude 5xx", 2), ("gemini 503", 1)])
@pytest.mark.slow
def test_failures_that_pass(wire: dict[str, Any], case: str, failures: int) -> None:
    """After 529, 500 and 503 it is asked again until there is an answer."""
    assert wire[case]["told"] == [{"value": 5, "calls": failures + 1}]
    assert len(wire[case]["received"]) == failures + 1


@pytest.mark.slow
def test_failures_that_stay(wire: dict[str, Any]) -> None:
    """A model that stays overloaded for a whole deadline is an error, which tells what it said."""
    (answer,) = wire["claude 529 for ever"]["told"]
    assert 2 <= answer["calls"] < 20
    assert "Overloaded" in answer["error"]


@BOTH
@pytest.mark.slow
def test_a_wrong_key(wire: dict[str, Any], model: str) -> None:
    """A wrong key is tried once with the question and once with another, and the error says so without
    showing it."""
    (answer,) = wire[f"{model} 401"]["told"]
    assert (answer["calls"], answer["kind"]) == (2, "ModelUnavailable")
    assert "AuthenticationError" in answer["error"]
    assert "wrong-key" not in answer["error"]


@pytest.mark.slow
def test_a_model_that_hangs(wire: dict[str, Any]) -> None:
    """A request without an answer ends by the time-out, is made again, and then is an error."""
    case = wire["claude hangs"]
    (answer,) = case["told"]
    assert "no answer within 2 s, all attempts together" in answer["error"]
    assert 2 <= len(case["received"]) < 9
    assert case["took_s"] < 30


@pytest.mark.parametrize("case", ["claude refuses", "gemini blocks"])
@pytest.mark.slow
def test_a_model_that_refuses(wire: dict[str, Any], case: str) -> None:
    """An answer that a content filter stopped is not asked for again, and the error says why."""
    (answer,) = wire[case]["told"]
    assert answer["calls"] == 1
    assert "content filter" in answer["error"]


@pytest.mark.slow
def test_what_litellm_stumbles_over(wire: dict[str, Any]) -> None:
    """An answer that litellm cannot read is an error of one line, without its traceback and links."""
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
    """`agentest run` with Gemini as the user and Claude as the judge: every call is answered and counted."""
    run = wire["run"]
    summary = run["results"]["summary"]
    assert run["status"] == 0
    (scenario,) = run["results"]["scenarios"]
    assert scenario["status"] == "passed"
    assert [len(c["turns"]) for c in scenario["conversations"]] == [2, 2]
    # Two turns each: a user's message and a judge's call; a call about the goal. Nothing failed.
    by_role = summary["usage"]["byRole"]
    assert {role: used["calls"] for role, used in by_role.items()} == {"user": 4, "judge": 6}
    assert run["requests"] == {"gemini": 4, "claude": 6}
    assert run["marks"] == 6
    assert by_role["judge"]["cachedTokens"] > 0
    assert KEY not in json.dumps(run["results"])


@pytest.mark.slow
def test_no_warnings(wire: dict[str, Any]) -> None:
    """Users see no warning of litellm's."""
    assert wire["warnings"] == []


@pytest.mark.slow
def test_a_temperature_that_claude_refuses_is_left_out(wire: dict[str, Any]) -> None:
    """The question is asked again without it, and the next one never has it."""
    found = wire["claude without temperature"]
    assert ["value" in told for told in found["told"]] == [True, True]
    assert ["temperature" in received["body"] for received in found["received"]] == [True, False, False]
