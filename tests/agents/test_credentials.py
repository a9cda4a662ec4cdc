"""Credentials that are made during a run: values that commands print, and signatures for AWS."""

from __future__ import annotations

import hashlib
import hmac
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from stored import to_json
from test_command_agent import runs
from test_grpc import Salon
from test_grpc import run as run_grpc
from test_realtime import RealtimeServer, message, server
from test_realtime import run as run_realtime

from agentest import scenario
from agentest.config import Config
from agentest.domain.results import RunResult, Status
from agentest.support.errors import ConfigError
from agentest.testing import run_scenarios

REPLY = b'{"choices": [{"message": {"role": "assistant", "content": "Hello."}}]}'


class Guarded:
    """A chat-completions agent that answers requests whose headers it accepts, and others with 401."""

    def __init__(
        self, accepts: Callable[[BaseHTTPRequestHandler, bytes], bool], moved: str = "", reply: str = "Hello."
    ) -> None:
        answer = REPLY.replace(b"Hello.", reply.encode())
        self.seen: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(handler) -> None:
                body = handler.rfile.read(int(handler.headers["content-length"]))
                self.seen.append(handler.headers.get("authorization", ""))
                status = 307 if moved else 200 if accepts(handler, body) else 401
                handler.send_response(status)
                handler.send_header("content-type", "application/json")
                handler.send_header("content-length", str(len(answer)))
                if moved:
                    handler.send_header("location", moved)
                handler.end_headers()
                handler.wfile.write(answer)

            def log_message(handler, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}/v1/chat/completions?x=1"

    def __enter__(self) -> Guarded:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def accepting(*tokens: str) -> Callable[[BaseHTTPRequestHandler, bytes], bool]:
    return lambda handler, _: handler.headers.get("authorization") in [f"Bearer {each}" for each in tokens]


class Printing:
    """A command that prints token-1, then token-2, and so on."""

    def __init__(self, folder: Path, code: str = "print(f'token-{n}')") -> None:
        self._count = folder / "count"
        script = folder / "print_token.py"
        script.write_text(
            f"import pathlib, sys\np = pathlib.Path({str(self._count)!r})\n"
            f"n = len(p.read_text()) + 1 if p.exists() else 1\np.write_text('x' * n)\n{code}\n"
        )
        self.command = [sys.executable, str(script)]

    @property
    def times(self) -> int:
        return len(self._count.read_text()) if self._count.exists() else 0


@pytest.fixture
def printing(tmp_path: Path) -> Printing:
    return Printing(tmp_path)


def run(endpoint: str, header: Any = None, conversations: int = 1, **agent: Any) -> RunResult:
    headers = {"Authorization": header} if header else {}
    config = Config.model_validate({"agent": {"endpoint": endpoint, "headers": headers, **agent}})
    made = scenario(
        "s",
        turns=["hi", {"user_message": "and?", "expect": {"contains": "Hello"}}],
        conversations_per_scenario=conversations,
    )
    return run_scenarios([made], config=config)


def status(result: RunResult) -> Status:
    return result.scenarios[0].verdict.status


def problem(result: RunResult) -> str:
    failure = result.scenarios[0].conversations[0].conversation.failure
    return failure.message if failure else ""


def test_one_value_serves_all_conversations(printing: Printing) -> None:
    """Twenty conversations at once run the command once, and the value stands in no result."""
    with Guarded(accepting("token-1")) as agent:
        result = run(agent.endpoint, {"command": printing.command}, conversations=20)
    assert (status(result), printing.times, len(agent.seen)) == (Status.PASSED, 1, 40)
    assert "token-1" not in str(to_json(result))


def test_a_command_that_does_not_end_leaves_no_process(tmp_path: Path) -> None:
    """A shell is ended together with what it has started."""
    script = "sleep 60 & echo $! > child; wait"
    command = {"command": ["sh", "-c", f"cd {tmp_path}; {script}"], "timeout_s": 0.5}
    with Guarded(accepting()) as agent:
        result = run(agent.endpoint, command)
    assert "has not ended after 0.5 s" in problem(result)
    assert not runs(int((tmp_path / "child").read_text()))


@pytest.mark.parametrize("value", ["Basic dXNlcjpzZWNyZXQtd29yZA==", "Token abcdef-123456"])
def test_every_part_of_a_value_is_redacted(printing: Printing, tmp_path: Path, value: str) -> None:
    """The agent repeats what it received, also decoded."""
    told = {"Basic": "secret-word", "Token": "abcdef-123456"}[value.split()[0]]
    command = Printing(tmp_path, f"print({value!r})").command
    with Guarded(lambda *_: True, reply=told) as agent:
        result = run(agent.endpoint, {"command": command})
    shown = str(to_json(result))
    assert "[redacted]" in shown
    assert told not in shown


def test_a_value_is_made_anew_after_its_time(printing: Printing) -> None:
    with Guarded(accepting("token-1", "token-2")) as agent:
        result = run(agent.endpoint, {"command": printing.command, "every_s": 1e-9})
    assert (status(result), agent.seen) == (Status.PASSED, ["Bearer token-1", "Bearer token-2"])


def test_a_value_is_made_anew_after_a_401(printing: Printing) -> None:
    """A token that expired is replaced once for all conversations, and no turn fails."""
    with Guarded(accepting("token-2")) as agent:
        result = run(agent.endpoint, {"command": printing.command}, conversations=20)
    assert (status(result), printing.times) == (Status.PASSED, 2)


def test_a_401_that_stays_is_the_agents_answer(printing: Printing) -> None:
    """The command runs once more, not for every conversation."""
    with Guarded(accepting()) as agent:
        result = run(agent.endpoint, {"command": printing.command}, conversations=10)
    assert "answered 401" in problem(result)
    assert printing.times <= 11
    assert status(result) is Status.ERRORED


def test_other_servers_do_not_get_the_value(printing: Printing) -> None:
    with Guarded(accepting("never")) as other, Guarded(accepting(), moved=other.endpoint) as agent:
        run(agent.endpoint, {"command": printing.command})
    assert set(agent.seen) == {"Bearer token-1"}
    assert set(other.seen) == {""}


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("sys.exit('no login')", "ended with status 1: no login"),
        ("", "printed 0 lines, and a header value is one"),
        ("print('a\\nb')", "printed 2 lines"),
        ("print('a\\x07')", "printed no header value"),
    ],
)
def test_a_command_that_fails_errs_all_and_runs_once(tmp_path: Path, code: str, expected: str) -> None:
    printing = Printing(tmp_path, code)
    with Guarded(accepting("x")) as agent:
        result = run(agent.endpoint, {"command": printing.command}, conversations=5)
    assert f"headers.Authorization: the command `{sys.executable} " in problem(result)
    assert expected in problem(result)
    assert (status(result), printing.times, agent.seen) == (Status.ERRORED, 1, [])


def test_a_command_that_hangs_or_is_missing() -> None:
    hangs = {
        "command": [sys.executable, "-c", "import threading; threading.Event().wait()"],
        "timeout_s": 0.05,
    }
    with Guarded(accepting("x")) as agent:
        assert "has not ended after 0.05 s" in problem(run(agent.endpoint, hangs))
        assert "cannot be started" in problem(run(agent.endpoint, {"command": "no-such-program-anywhere x"}))


def test_settings() -> None:
    """A text is split into words, and a mistake is named with its key."""
    config = Config.model_validate(
        {
            "agent": {
                "endpoint": "http://h",
                "headers": {"A": "b", "C": {"command": "gcloud auth 'x y'", "everyS": 5}},
            }
        }
    )
    assert config.agent.fixed_headers == {"A": "b"}
    assert config.agent.headers["C"].words == ["gcloud", "auth", "x y"]
    for wrong in ({"command": ""}, {"command": "x", "every_s": 0}, {"comand": "x"}, {}):
        with pytest.raises(ValueError, match=r"headers\.C"):
            Config.model_validate({"agent": {"endpoint": "http://h", "headers": {"C": wrong}}})


def test_websockets_get_the_value(printing: Printing) -> None:
    talking = RealtimeServer(lambda items: [message("Hello.")])

    async def talk(socket: Any, request: web.Request) -> None:
        assert request.headers["authorization"] == "Bearer token-1"
        await talking.talk(socket, request)

    with server(talk) as url:
        result = run_realtime(
            url, scenario("s", turns=["hi"]), headers={"Authorization": {"command": printing.command}}
        )
    assert status(result) is Status.PASSED


def test_grpc_gets_the_value(printing: Printing, tmp_path: Path) -> None:
    salon = Salon(tmp_path)
    with salon.serving() as endpoint:
        header = {"Authorization": {"command": printing.command}}
        result = run_grpc(endpoint, "hi", "expired", headers=header, retries=0)
    assert status(result) is Status.PASSED
    sent = [each["authorization"] for each in salon.metadata]
    assert sent == ["Bearer token-1", "Bearer token-1", "Bearer token-2"]


# Signatures


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def signature_holds(handler: BaseHTTPRequestHandler, body: bytes) -> bool:
    """Compute the signature as AWS documents it, and compare."""
    given = handler.headers["authorization"]
    fields = dict(part.strip().split("=", 1) for part in given.removeprefix("AWS4-HMAC-SHA256 ").split(","))
    _, day, region, service, _ = fields["Credential"].split("/")
    path, _, query = handler.path.partition("?")
    names = fields["SignedHeaders"].split(";")
    headers = "".join(f"{name}:{handler.headers[name].strip()}\n" for name in names)
    digest = hashlib.sha256(body).hexdigest()
    request = "\n".join(["POST", path, query, headers, ";".join(names), digest])
    scope = f"{day}/{region}/{service}/aws4_request"
    hashed = hashlib.sha256(request.encode()).hexdigest()
    text = "\n".join(["AWS4-HMAC-SHA256", handler.headers["x-amz-date"], scope, hashed])
    key = b"AWS4very-secret-key-of-aws"
    for part in (day, region, service, "aws4_request"):
        key = _hmac(key, part)
    expected = _hmac(key, text).hex()
    return (region, service, fields["Signature"]) == ("eu-west-1", "bedrock-agentcore", expected)


@contextmanager
def aws(monkeypatch: pytest.MonkeyPatch, folder: Path, **variables: str) -> Iterator[None]:
    nothing = {"AWS_SHARED_CREDENTIALS_FILE": str(folder / "none"), "AWS_CONFIG_FILE": str(folder / "no")}
    for name, value in {**nothing, "AWS_EC2_METADATA_DISABLED": "true", **variables}.items():
        monkeypatch.setenv(name, value)
    yield


KEYS = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "very-secret-key-of-aws"}
SIGNED = {"service": "bedrock-agentcore", "region": "eu-west-1"}


def test_requests_are_signed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with (
        aws(monkeypatch, tmp_path, **KEYS, AWS_SESSION_TOKEN="session-token"),
        Guarded(signature_holds) as agent,
    ):
        result = run(agent.endpoint, conversations=3, aws_sigv4=SIGNED)
    assert status(result) is Status.PASSED
    assert "very-secret-key" not in str(to_json(result))


def test_what_a_signature_lacks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with Guarded(accepting()) as agent, aws(monkeypatch, tmp_path):
        _check_what_a_signature_lacks(agent, monkeypatch, tmp_path)


def _check_what_a_signature_lacks(agent: Guarded, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no AWS credentials"):
        run(agent.endpoint, aws_sigv4=SIGNED)
    with aws(monkeypatch, tmp_path, **KEYS), pytest.raises(ConfigError, match="region: none is configured"):
        run(agent.endpoint, aws_sigv4={"service": "x"})
    with pytest.raises(ConfigError, match=r"profile: .*gone"):
        run(agent.endpoint, aws_sigv4={**SIGNED, "profile": "gone"})
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    with pytest.raises(ConfigError, match=r"agentest-sim\[aws\]"):
        run(agent.endpoint, aws_sigv4=SIGNED)
