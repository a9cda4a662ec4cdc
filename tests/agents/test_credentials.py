"""Expiring credentials: header values from commands, and requests signed for AWS."""

from __future__ import annotations

import hashlib
import hmac
import json
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote_to_bytes

import anyio
import pytest
from http_agents import held, opened
from stand_ins import Asked, Given, completion_of, standing_in

from agentest.config import Config
from agentest.domain.transcript import Conversation
from agentest.support.errors import ConfigError

COUNTING = """
import pathlib, sys
runs = pathlib.Path(sys.argv[1])
runs.write_text(runs.read_text() + "x" if runs.exists() else "x")
print(f"token-number-{len(runs.read_text())}")
"""
"""Prints another token each time."""
CHAT = "/v1/chat/completions"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def token(runs: Path, **more: Any) -> dict[str, Any]:
    return {"command": [sys.executable, "-c", COUNTING, str(runs)], **more}


def agent(url: str, **settings: Any) -> Any:
    return Config.model_validate({"agent": {"endpoint": f"{url}{CHAT}", "retries": 0, **settings}}).agent


async def many(
    agent: Any, number: int = 1, *lines: str, secrets: list[str] | None = None
) -> list[Conversation]:
    """Run this many conversations concurrently."""
    done: list[Conversation] = []
    async with opened(agent, secrets=secrets) as client, anyio.create_task_group() as tasks:

        async def one(index: int) -> None:
            done.append(await held(client, *(lines or ("Hello.",)), number=index))

        for index in range(number):
            tasks.start_soon(one, index)
    return done


def replies(conversations: list[Conversation]) -> set[str | None]:
    assert not [each.failure for each in conversations if each.failure]
    return {turn.agent_message for each in conversations for turn in each.turns}


def with_valid(valid: list[str], seen: list[str]) -> Any:
    """An agent that accepts the first token of a list, and repeats it."""

    def answer(asked: Asked) -> Given:
        seen.append(asked.headers.get("authorization", ""))
        return completion_of(seen[-1]) if seen[-1] == valid[0] else Given({"error": "expired"}, 401)

    return answer


def test_conversations_share_one_run_of_the_command_and_its_value_is_secret(runs: Path) -> None:
    seen: list[str] = []
    secrets: list[str] = []
    with standing_in(with_valid(["Bearer token-number-1"], seen)) as url:
        settings = agent(url, headers={"Authorization": token(runs), "x-plain": "as-it-is"})
        done = anyio.run(lambda: many(settings, 20, secrets=secrets))
    assert replies(done) == {"Bearer token-number-1"}
    assert len(done) == 20
    assert runs.read_text() == "x"
    assert "token-number-1" in secrets


def test_a_token_that_expires_in_the_middle_is_renewed_once_for_all(runs: Path) -> None:
    valid, seen = ["Bearer token-number-1"], list[str]()
    answer = with_valid(valid, seen)

    def expiring(asked: Asked) -> Given:
        if len(seen) == 20:
            valid[0] = "Bearer token-number-2"
        return answer(asked)  # type: ignore[no-any-return]

    with standing_in(expiring) as url:
        done = anyio.run(lambda: many(agent(url, headers={"Authorization": token(runs)}), 20, "One.", "Two."))
    assert replies(done) == {"Bearer token-number-1", "Bearer token-number-2"}
    assert runs.read_text() == "xx"


def test_a_token_that_is_never_accepted_is_renewed_once(runs: Path) -> None:
    with standing_in(with_valid(["nothing"], [])) as url:
        done = anyio.run(lambda: many(agent(url, headers={"Authorization": token(runs)}), 5))
    assert all("answered 401" in str(each.failure) for each in done)
    assert runs.read_text() == "xx"


def test_a_value_older_than_every_s_is_renewed_before_it_is_sent(runs: Path) -> None:
    seen: list[str] = []

    def answer(asked: Asked) -> Given:
        seen.append(asked.headers["x-token"])
        return completion_of("Yes.")

    with standing_in(answer) as url:
        headers = {"X-Token": token(runs, every_s=1e-9, prefix="T ")}
        anyio.run(lambda: many(agent(url, headers=headers), 1, "One.", "Two."))
    assert seen == ["T token-number-2", "T token-number-3"]


def test_a_custom_api_sends_the_value_to_its_own_server_alone(runs: Path) -> None:
    asked: list[Asked] = []
    with (
        standing_in(lambda _: Given({"id": 7, "reply": "Yes."}), asked) as url,
        standing_in(lambda _: Given({"id": 7}), asked) as other,
    ):
        settings = agent(
            url,
            type="http",
            headers={"Authorization": token(runs)},
            body={"m": "{{message}}", "s": "{{s}}"},
            reply="reply",
            setup=[
                {"endpoint": f"{other}/new", "save": {"s": "id"}},
                {"endpoint": "/own", "save": {"t": "id"}},
            ],
        )
        replies(anyio.run(lambda: many(settings)))
    assert [(each.path, each.headers.get("authorization")) for each in asked] == [
        ("/new", None),
        ("/own", "Bearer token-number-1"),
        (CHAT, "Bearer token-number-1"),
    ]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import sys; sys.exit('not logged in')", "exited with status 1:\nnot logged in"),
        ("raise SystemExit(3)", "exited with status 3, and wrote nothing to standard error"),
        ("import sys; print('try a login', file=sys.stderr)", "printed nothing; it must print the value"),
        ("print('hunter-2-hunter'); print('b')", "printed 2 lines; it must print the value, on one line"),
        ("print('hunter-2-hunter-\\u1234')", "printed characters that no header may have"),
        ("import threading; threading.Event().wait()", "did not finish within 0.5 s"),
    ],
)
def test_a_command_without_a_value_stops_the_run_and_is_explained(code: str, said: str) -> None:
    command = {
        "command": [sys.executable, "-X", "utf8", "-c", code],
        "timeout_s": 0.5 if "wait" in code else 30,
    }
    settings = agent("http://127.0.0.1:9", headers={"Authorization": command})
    with pytest.raises(ConfigError) as raised:
        anyio.run(lambda: many(settings))
    assert str(raised.value).startswith("agent 'agent': headers.Authorization: the command `")
    assert said in str(raised.value)
    assert "hunter-2" not in str(raised.value).partition("` ")[2]


def test_a_text_runs_in_a_shell_and_its_output_may_have_the_scheme() -> None:
    with standing_in(with_valid(["Token abcdefgh"], [])) as url:
        settings = agent(url, headers={"authorization": {"command": "echo Token abc | sed s/c/cdefgh/"}})
        assert replies(anyio.run(lambda: many(settings))) == {"Token abcdefgh"}


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ({"command": ""}, "is empty"),
        ({"command": []}, "is empty"),
        ({"command": "x", "every_s": 0}, "greater than 0"),
        ({"command": "x", "prefix": "a\nb"}, "has a line break"),
        ({"comand": "x"}, "command"),
    ],
)
def test_settings_of_a_command_are_checked(header: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        agent("http://127.0.0.1:9", headers={"Authorization": header})


# Signatures

KEY, SECRET, SESSION = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG", "session+token/of=aws"


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_SESSION_TOKEN": SESSION,
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)


def expected_signature(asked: Asked) -> str:
    """Compute the signature as AWS documents it, from the received request."""
    authorization = asked.headers["authorization"]
    scope = authorization.partition("Credential=")[2].partition(",")[0].partition("/")[2]
    signed = authorization.partition("SignedHeaders=")[2].partition(",")[0]
    path, _, query = asked.path.partition("?")
    pairs = [pair.partition("=") for pair in query.split("&") if pair]
    canonical = "\n".join(
        [
            asked.method,
            quote(path, safe="/-_.~"),
            "&".join(
                sorted(
                    f"{quote(unquote_to_bytes(n), safe='-_.~')}={quote(unquote_to_bytes(v), safe='-_.~')}"
                    for n, _, v in pairs
                )
            ),
            *(f"{name}:{' '.join(asked.headers[name].split())}" for name in signed.split(";")),
            "",
            signed,
            hashlib.sha256(asked.body).hexdigest(),
        ]
    )
    text = "\n".join(
        [
            "AWS4-HMAC-SHA256",
            asked.headers["x-amz-date"],
            scope,
            hashlib.sha256(canonical.encode()).hexdigest(),
        ]
    )
    key = f"AWS4{SECRET}".encode()
    for part in (*scope.split("/"), text):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key.hex()


def test_requests_are_signed_for_aws(aws: None) -> None:
    asked: list[Asked] = []
    secrets: list[str] = []

    def answer(request: Asked) -> Given:
        is_right = request.headers["authorization"].endswith(f"Signature={expected_signature(request)}")
        return (
            Given({"reply": json.loads(request.body)["prompt"]}) if is_right else Given({"m": "wrong"}, 403)
        )

    with standing_in(answer, asked) as url:
        config = {
            "type": "http",
            "endpoint": f"{url}/runtimes/arn%3Aaws%3Aagent%2Fmy-bot-ü/invocations",
            "params": {"qualifier": "DEFAULT", "a b": "x/y+ü"},
            "headers": {"X-Session": "{{session_id}}"},
            "body": {"prompt": "{{message}}"},
            "reply": "reply",
            "sign": {"aws": {"service": "bedrock-agentcore", "region": "eu-west-1"}},
        }
        settings = Config.model_validate({"agent": config}).agent
        done = anyio.run(lambda: many(settings, 10, "Grüße.", "Again.", secrets=secrets))
    assert replies(done) == {"Grüße.", "Again."}
    assert "/eu-west-1/bedrock-agentcore/aws4_request" in asked[0].headers["authorization"]
    assert "x-session" in asked[0].headers["authorization"]
    assert asked[0].headers["x-amz-security-token"] == SESSION
    assert {SECRET, SESSION} <= set(secrets)


def test_signing_without_botocore_names_the_extra(aws: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    settings = agent("http://127.0.0.1:9", sign={"aws": {"service": "bedrock-agentcore"}})
    with pytest.raises(ConfigError, match=r"pip install 'agentest-sim\[aws\]'"):
        anyio.run(lambda: many(settings))


@pytest.mark.parametrize(
    ("sign", "variable", "said"),
    [
        ({"profile": "nobody"}, "AWS_REGION", "nobody"),
        ({}, "AWS_REGION", "write `region`, or set AWS_REGION"),
        ({"region": "eu-west-1"}, "AWS_ACCESS_KEY_ID", "found no credentials"),
    ],
)
def test_missing_parts_of_a_signature_are_named(
    sign: Any, variable: str, said: str, aws: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(variable, raising=False)
    settings = agent("http://127.0.0.1:9", sign={"aws": {"service": "bedrock-agentcore", **sign}})
    with pytest.raises(ConfigError, match=said):
        anyio.run(lambda: many(settings))
