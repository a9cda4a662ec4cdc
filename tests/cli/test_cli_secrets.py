"""No command prints or writes a secret, in any spelling."""

from __future__ import annotations

import sys
from dataclasses import replace
from urllib.parse import quote

import pytest
from model_server import ModelServer, completion
from project import Project, free_port
from spelled_secrets import (
    BASIC,
    ENVIRONMENT,
    KEY,
    PASSWORD,
    SPELLINGS,
    check_unreachable,
    everything,
    found_in,
    with_secrets,
)

from agentest.testing import Raw, ScriptedAgent, tool_call

SERVER = """
import http.server, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        with open("asked_server.py", "a") as asked:
            print(self.headers["authorization"], file=asked)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"choices": [{"message": {"role": "assistant", "content": "fine"}}]}')
    do_POST = do_GET

http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def test_a_run(project: Project) -> None:
    """A run shows no secret of an endpoint in its header, errors or files."""
    project.scenario(
        'scenario("fine", turns=["hello"])\n'
        'scenario("refused", turns=["refuse"])\n'
        'scenario("moved", turns=["move"])\n'
        "import os\n"
        'def fails(args):\n    raise RuntimeError(os.environ["PLAIN_TOKEN"])\n'
        'scenario("mock", turns=["call"], tools={"t": fails})\n'
    )
    project.write("b.sim.py", 'import os\nraise RuntimeError("no " + os.environ["PLAIN_TOKEN"])\n')

    def answer(body: dict) -> object:
        said = body["messages"][-1]["content"]
        if said == "refuse":
            return Raw("\n".join(SPELLINGS).encode(), status=403)
        if said == "move":
            return Raw(
                b"", status=302, headers={"location": f"http://bot:{quote(PASSWORD)}@127.0.0.1:9/?key=zq"}
            )
        return tool_call("t") if said == "call" else "fine"

    with ScriptedAgent(answer) as agent:
        project.config(with_secrets(agent.endpoint), reporters=["console", "json", "github-actions"])
        env = {**ENVIRONMENT, "GITHUB_STEP_SUMMARY": str(project.root / "summary.md")}
        done = [
            project.run("--verbose", env=env),
            project.run("--workers", "2", env=env),
            project.run("--list", env=env),
            project.run("--dry-run", env=env),
        ]
    assert done[0].returncode == 1, done[0].stderr
    assert "http://[redacted]@127.0.0.1" in done[0].stdout
    assert "?page=2&key=[redacted]" in done[0].stdout
    assert found_in(everything(project, *done)) == []


def test_an_unreachable_agent(project: Project) -> None:
    """The error about an unreachable or refused endpoint shows no secret."""
    check_unreachable(project, "run")


def test_a_server_that_dies(project: Project) -> None:
    """The last output of a server shows no secret, even if shortened inside one."""
    project.scenario('scenario("s", turns=["x"])')
    project.write("server.py", "import os\nprint('x' * 100 + os.environ['PLAIN_TOKEN'] + 'y' * 3995)\n")
    url = f"http://127.0.0.1:{free_port()}/"
    server = {
        "command": f"{sys.executable} server.py",
        "ready": f"{url}?key=${{URL_KEY}}",
        "env": {"A_KEY": "${PLAIN_TOKEN}"},
    }
    project.config("x", agent={"endpoint": with_secrets(url), "server": server})
    done = project.run(env=ENVIRONMENT)
    assert done.returncode == 2
    assert "yyy" in done.stderr
    assert "-93" not in done.stderr
    assert found_in(everything(project, done)) == []


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer ${PLAIN_TOKEN}"}])
def test_a_server_and_an_agent_that_want_a_password(project: Project, headers: dict[str, str]) -> None:
    """A password in an address is sent to a server, too; a configured header takes precedence."""
    project.scenario('scenario("s", turns=["x"])')
    project.write("server.py", SERVER)
    port = free_port()
    url = with_secrets(f"http://127.0.0.1:{port}/")
    server = {"command": f"{sys.executable} server.py {port}", "ready": url}
    project.config("x", agent={"endpoint": url, "headers": headers, "server": server})
    done = project.run(env=ENVIRONMENT)
    assert done.returncode == 0, done.stdout + done.stderr
    sent = f"Bearer {ENVIRONMENT['PLAIN_TOKEN']}" if headers else f"Basic {BASIC}"
    assert (project.root / "asked_server.py").read_text().split("\n") == [f"Basic {BASIC}", sent, ""]
    assert found_in(everything(project, done)) == []


@pytest.mark.parametrize("key", ["endpoint", "server.ready"])
def test_a_password_that_breaks_its_address(project: Project, key: str) -> None:
    """The error about an address with a / in its password shows no part of it."""
    url = "http://bot:${BOT_PASSWORD}@127.0.0.1/"
    server = {"command": "x", "ready": url}
    project.config(
        "x", agent={"endpoint": url} if key == "endpoint" else {"endpoint": "http://h", "server": server}
    )
    done = project.run(env={"BOT_PASSWORD": "zq/91"})
    assert done.returncode == 2
    assert "%2F" in done.stderr
    assert found_in(done.stdout + done.stderr) == []


PYTHON_CONFIGURATIONS = {
    "raises": 'connect("http://x/", headers={"Authorization": "Bearer abcd-zq-1234"})',
    "raises with a token of the environment": 'raise RuntimeError("cannot use " + os.environ["PLAIN_TOKEN"])',
    "raises with an URL": 'raise RuntimeError("http://bot:zq@host/?token=zq&page=2")',
    "has it in its source": 'connect(api_key="zq-1234567")',
    "is not valid": 'config = {"agent": {"endpoint": "ftp://bot:zq@host/?key=zq"}, "zq": 1}["agent"]',
    "has a wrong value": 'config = {"agent": {"endpoint": "http://h/"}, "judge": os.environ["PLAIN_TOKEN"]}',
}


@pytest.mark.parametrize("name", PYTHON_CONFIGURATIONS)
def test_a_configuration_in_python(project: Project, name: str) -> None:
    """The traceback of a Python configuration shows no secret, even in source lines."""
    text = f"import os\ndef connect(*_, **__):\n    raise RuntimeError('no')\n{PYTHON_CONFIGURATIONS[name]}\n"
    project.write("agentest.config.py", text)
    project.write(".env", "PLAIN_TOKEN=zq-plain-93\n")
    done = project.run()
    assert done.returncode == 2
    assert "agentest.config.py" in done.stderr
    assert found_in(done.stdout + done.stderr) == []


def test_literal_secrets_of_a_configuration_in_python(project: Project) -> None:
    """Literal secrets in an endpoint are not shown either."""
    project.scenario('scenario("s", turns=["x"])')
    with ScriptedAgent([Raw(f"wrong: {BASIC} {PASSWORD} {KEY}".encode(), status=403)]) as agent:
        endpoint = with_secrets(agent.endpoint)
        for name, value in ENVIRONMENT.items():
            endpoint = endpoint.replace(f"${{{name}}}", value)
        project.write("agentest.config.py", f"config = {{'agent': {{'endpoint': {endpoint!r}}}}}\n")
        done = project.run("--verbose")
    assert done.returncode == 2, done.stderr
    assert "wrong: [redacted] [redacted] [redacted]" in done.stdout
    assert found_in(everything(project, done)) == []


def test_a_recording(project: Project) -> None:
    """A cassette has no secret, even in a model name that its server derived from the key."""
    project.scenario('scenario("s", turns=["x"], goal="g", metrics=["helpfulness"])')
    said = completion({"reason": "it says zq-plain-93", "value": 4})
    answer = replace(said, body=said.body.replace(b"scripted-1", b"model of zq-plain-93"))
    with ScriptedAgent(["fine"]) as agent, ModelServer(answer) as model:
        options = {"base_url": model.base_url, "api_key": "${PLAIN_TOKEN}"}
        project.config(agent.endpoint, provider="openai-compatible", model="m", provider_options=options)
        done = project.run("--record", env=ENVIRONMENT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "model of [redacted]" in everything(project)
    assert found_in(everything(project, done)) == []
