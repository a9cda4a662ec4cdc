"""`agentest init` from outside: what it writes runs, and it writes over nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
from threading import Thread
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator
from model_server import Answer, ModelServer, completion, error
from project import Project, free_port
from wire import closed_port

from agentest.plugins.authoring.new_project import (
    begin,
    ci_text,
)

CONFIG = "agentest.config.yaml"


def written(project: Project, *arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    done = project.agentest("init", *arguments)
    assert done.returncode == status, done.stdout + done.stderr
    return done


def agent_of(folder: Path) -> dict[str, Any]:
    """The agent in the configuration of a folder."""
    found: dict[str, Any] = yaml.safe_load((folder / CONFIG).read_text(encoding="utf-8"))["agent"]
    return found


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def at_free_port(config: Path) -> None:
    """Give the demo's agent a port that no other test has: it chooses one by the folder alone."""
    port = str(agent_of(config.parent)["server"]["command"]).rpartition(" ")[2]
    config.write_text(config.read_text(encoding="utf-8").replace(port, str(free_port())), encoding="utf-8")


def test_the_demo_is_green_and_init_writes_nothing_twice(project: Project) -> None:
    """Two commands in an empty folder pass offline; a second init changes nothing and says so."""
    done = written(project, "new/demo", "--demo", "--ci", "github")
    assert done.stdout.rstrip().endswith("Next: cd new/demo && agentest run")
    folder = project.root / "new" / "demo"
    names = {CONFIG, "demo_agent.py", "scenarios/first.sim.py", ".gitignore"}
    schemas = {".agentest/config.schema.json", ".agentest/scenarios.schema.json"}
    assert contents(folder).keys() == names | schemas | {".github/workflows/agentest.yml"}
    [comment, reference] = (folder / CONFIG).read_text(encoding="utf-8").splitlines()[0].split("=")
    assert comment == "# yaml-language-server: $schema"
    assert (folder / reference).read_text(encoding="utf-8") == project.agentest("schema", "config").stdout
    at_free_port(folder / CONFIG)
    before = contents(folder)
    again = written(project, "new/demo", "--demo", "--ci", "github")
    assert contents(folder) == before
    assert again.stdout.count("stays") == len(before)
    later = written(project, "new/demo", "--ci", "gitlab")
    assert later.stdout.endswith("Next:\n  cd new/demo && agentest doctor\n  cd new/demo && agentest run\n")
    run = Project(folder).run("--reporter", "console", "--reporter", "json")
    assert run.returncode == 0, run.stdout + run.stderr
    assert "2 passed (2 scenarios, 4 conversations)" in run.stdout
    calls = [
        [c["name"] for t in conversation["turns"] for c in t["toolCalls"]]
        for conversation in Project(folder).scenario_result("guest asks for the opening hours, then books")[
            "conversations"
        ]
    ]
    assert calls == [["opening_hours", "book_table"]]


def test_schemas_have_the_names_of_plug_ins(project: Project) -> None:
    """An editor does not mark what the project's own plug-ins add, and still marks what nobody adds."""
    project.config("http://localhost:1/v1", plugins=["mine"])
    features = ("agent_type('acme', settings='a:A', client='a:a', help='An agent.')",)
    features += ("reporter('slack', 'a:b', help='Post it.')", "change('shout', 'a:c')")
    lines = [
        "from agentest.plugin import Plugin",
        "plugin = Plugin('mine')",
        *(f"plugin.{f}" for f in features),
    ]
    project.write("mine.py", "\n".join(lines))
    config = json.loads(project.agentest("schema", "config").stdout)
    scenarios = json.loads(project.agentest("schema", "scenarios").stdout)

    def is_valid(schema: Any, **keys: Any) -> bool:
        return not [*Draft7Validator(schema).iter_errors(keys)]

    assert is_valid(config, agent={"type": "acme", "word": "x"}, reporters=["slack", "junit=x.xml"])
    assert not is_valid(config, agent={"type": "acmee"})
    assert not is_valid(config, agent={"type": "acme"}, reporters=["slac"])
    story = {"name": "s", "goal": "g"}
    assert is_valid(scenarios, scenarios=[{**story, "mutate": ["shout", "typos"]}])
    assert not is_valid(scenarios, scenarios=[{**story, "mutate": ["shouted"]}])


@pytest.mark.parametrize(
    ("planted", "instead", "said"),
    [
        ("from {result['opens']}", "from 17:00", "18:00"),
        (
            'return "book_table", wanted',
            'return "Booked, R-17."',
            "book_table not called",
        ),
    ],
    ids=["wrong-hours", "no-booking"],
)
def test_the_demo_detects_bugs(project: Project, planted: str, instead: str, said: str) -> None:
    """A bug in the demo's agent fails its scenarios, for that reason."""
    written(project, "--demo")
    at_free_port(project.root / CONFIG)
    agent = project.root / "demo_agent.py"
    text = agent.read_text(encoding="utf-8")
    assert planted in text
    agent.write_text(text.replace(planted, instead), encoding="utf-8")
    run = project.run()
    assert run.returncode == 1, run.stdout + run.stderr
    assert said in " ".join(run.stdout.split())


def chat(received: Any) -> Any:
    """An endpoint of chat completions that wants to know its model."""
    if received.path != "/v1/chat/completions" or "messages" not in received.body:
        return error(400, "Missing required parameter: 'messages'.", param="messages")
    if received.body.get("model") != "small-1":
        return error(404, "no such model")
    return completion("Hello there.")


@contextmanager
def serving(
    gets: dict[str, Any],
    posts: dict[str, Any],
    status: int = 200,
    refusal: int = 404,
    there: str = "",
    refused: Any = None,
) -> Iterator[str]:
    """A server of JSON: path → value; all other requests are refused, all but those at `there` with 404."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(gets)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])) or b"{}")
            self.answer(posts if body else {})

        def answer(self, values: dict[str, Any]) -> None:
            known = self.path in values
            content = json.dumps(values.get(self.path, refused or {})).encode()
            self.send_response(status if known else refusal if there in ("", self.path) else 404)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


SHOP = {
    "paths": {
        "/ask": {
            "post": {
                "requestBody": {
                    "content": {
                        "application/json": {
                            "schema": {
                                "properties": {"question": {}, "session_id": {}},
                                "required": ["question"],
                            }
                        }
                    }
                },
                "responses": {
                    "200": {"content": {"application/json": {"schema": {"properties": {"answer": {}}}}}}
                },
            }
        }
    }
}


def test_an_api_of_its_own_is_configured_and_green(project: Project) -> None:
    """The server's document of its chat becomes the configuration, and the first scenario passes."""
    with serving({"/openapi.json": SHOP}, {"/ask": {"answer": "Hello."}}) as url:
        done = written(project, "--endpoint", url)
        agent = agent_of(project.root)
        run = project.run()
    assert agent == {
        "type": "http",
        "endpoint": f"{url}/ask",
        "body": {"question": "{{message}}", "session_id": "{{session_id}}"},
        "reply": "answer",
    }
    assert "type: http" in done.stdout
    assert run.returncode == 0, run.stdout + run.stderr
    assert "1 passed" in run.stdout


def test_missing_fields_are_added_to_the_body(project: Project) -> None:
    """The errors of a server without a document name the required fields, and its scenario passes."""

    def script(received: Any) -> Answer:
        missing = [name for name in ("query", "session_id", "shop") if name not in received.body]
        detail = [{"type": "missing", "loc": ["body", name], "msg": "Field required"} for name in missing]
        answer = {"detail": detail} if missing else {"reply": f"You said {received.body['query']}"}
        return Answer(json.dumps(answer).encode(), 422 if missing else 200)

    with ModelServer(script=script) as server:
        url = f"{server.origin}/chat"
        done = written(project, "--endpoint", url)
        run = project.run()
    assert "The agent requires `shop`, and its value is made up." in done.stderr
    body = {"query": "{{message}}", "session_id": "{{session_id}}", "shop": "agentest-1"}
    assert agent_of(project.root) == {"type": "http", "endpoint": url, "body": body, "reply": "reply"}
    assert run.returncode == 0, run.stdout + run.stderr


def test_a_required_field_that_keeps_the_conversation_is_found_by_trying(project: Project) -> None:
    """Its name says nothing, but two conversations with a value each remember their own name."""
    names: dict[str, str] = {}

    def script(received: Any) -> Answer:
        if missing := [name for name in ("query", "shelf") if name not in received.body]:
            detail = [{"type": "missing", "loc": ["body", name], "msg": "Field required"} for name in missing]
            return Answer(json.dumps({"detail": detail}).encode(), 422)
        shelf, query = received.body["shelf"], received.body["query"]
        if query.startswith("My name is "):
            names[shelf] = query
        return Answer(json.dumps({"reply": f"You said {query} {names.get(shelf)}"}).encode(), 200)

    with ModelServer(script=script) as server:
        done = written(project, "--endpoint", f"{server.origin}/chat")
    assert "The conversation is `shelf`: each remembered its own name" in done.stderr
    assert "made up" not in done.stderr
    assert agent_of(project.root)["body"] == {"query": "{{message}}", "shelf": "{{session_id}}"}


def test_chat_completions_with_the_model_that_the_server_lists(project: Project) -> None:
    """The endpoint is also found from its server's address, and the listed model is used."""

    with ModelServer(script=chat) as server:
        written(project, "--endpoint", f"{server.base_url}/chat/completions", status=2)
        assert agent_of(project.root) == {
            "type": "chat_completions",
            "endpoint": f"{server.base_url}/chat/completions",
        }
    models = {"object": "list", "data": [{"id": "small-1"}]}
    answer = json.loads(completion("Hello there.").body)
    with serving({"/v1/models": models}, {"/v1/chat/completions": answer}) as url:
        written(project, "models", "--endpoint", url)
        agent = agent_of(project.root / "models")
        run = Project(project.root / "models").run()
    assert agent["endpoint"] == f"{url}/v1/chat/completions"
    assert agent["body"] == {"model": "small-1"}
    assert run.returncode == 0, run.stdout + run.stderr


CARD = {"/openapi.json": SHOP}
NO_MODEL = {"error": {"message": "Missing required parameter: 'model'.", "type": "x", "param": "model"}}
NO_TENANT = {"detail": [{"type": "missing", "loc": ["header", "tenant"], "msg": "Field required"}]}


@pytest.mark.parametrize(
    ("path", "status", "answer", "agent_type", "code", "said"),
    [
        ("/v1/responses", 400, NO_MODEL, "responses", 2, "asks for the name of a model: write it as `body"),
        ("/ask", 422, NO_TENANT, "http", 2, "asks for the header `tenant`"),
        ("/other", 500, {}, "chat_completions", 2, "At another path of this server: type: http"),
        ("/nowhere", 404, {}, "http", 0, "/ask; nothing was found at /nowhere"),
    ],
    ids=["model", "header", "another-agent", "wrong-path"],
)
def test_the_agent_is_the_one_at_the_path(
    path: str, status: int, answer: Any, agent_type: str, code: int, said: str, project: Project
) -> None:
    """Other endpoints of the server count only if the path has none; missing parts of requests are reported,
    also by doctor."""
    posts = {"/ask": {"answer": "Hello."}} if path == "/nowhere" else {}
    with serving(CARD, posts, refusal=status, there=path, refused=answer) as url:
        done = written(project, "--endpoint", url + path, status=code)
        examined = project.agentest("doctor")
    assert agent_of(project.root)["type"] == agent_type
    assert said in done.stderr
    is_complete = path == "/nowhere"
    assert ("Next: agentest run" in done.stdout) == is_complete
    if agent_type != "chat_completions" and not is_complete:
        assert examined.returncode == 2
        assert "rite " in examined.stdout


@pytest.mark.parametrize(
    ("gets", "posts", "expected"),
    [
        ({"/list-apps": ["shop", "help"]}, {}, {"type": "adk", "app_name": "shop"}),
        ({"/info": {"langgraph_py_version": "1"}}, {}, {"type": "langgraph"}),
    ],
    ids=["adk", "langgraph"],
)
def test_servers_of_frameworks_are_found(
    project: Project, gets: dict[str, Any], posts: dict[str, Any], expected: dict[str, Any]
) -> None:
    """A server that identifies itself gets its type, with the keys it needs, though it answers nothing."""
    with serving(gets, posts) as url:
        written(project, "--endpoint", url, status=2)
    agent = agent_of(project.root)
    assert agent == {"type": expected["type"], "endpoint": url, **expected}


def test_names_from_a_server_are_plain_text(project: Project) -> None:
    """They cannot add variables or lines to the configuration."""
    name = "${SECRET_TOKEN}\nmodel: evil"
    with serving({"/list-apps": [name]}, {}) as url:
        written(project, "--endpoint", url, status=2)
    text = (project.root / CONFIG).read_text(encoding="utf-8")
    assert yaml.safe_load(text).keys() == {"agent", "reporters"}
    assert agent_of(project.root)["app_name"] == "$" + name


@pytest.mark.parametrize(
    ("status", "refused", "said"),
    [
        (
            405,
            {},
            "with 405: {}; no POST is taken there; is the path right? If it takes GET, write",
        ),
        (401, {}, "was not recognized: it answered a message with 401: {}; are the credentials right?"),
        (
            422,
            {"detail": "thread and\ninput.q"},
            "was not recognized: it answered a message with 422: thread and input.q; ",
        ),
    ],
)
def test_an_unknown_protocol_is_reported(status: int, refused: Any, said: str, project: Project) -> None:
    """The files have the server's answer and lines for a custom API; the exit status is 2."""
    with serving({}, {}, refusal=status, refused=refused) as url:
        done = written(project, "--endpoint", f"{url}/bot", status=2)
    assert said in done.stderr
    text = (project.root / CONFIG).read_text(encoding="utf-8")
    assert "#   type: http\n#   endpoint: " in text
    assert "model_gateway" not in text, "nothing is known of its calls"
    assert agent_of(project.root) == {"type": "chat_completions", "endpoint": f"{url}/bot"}
    assert "doctor" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--endpoint", "localhost:8000"], "must start with http:// or https://"),
        (["--endpoint", "http://me:hunter2@localhost"], "contains a credential"),
        (["--endpoint", "http://169.254.169.254/x"], "is refused"),
        (["--endpoint", "http://127.0.0.1:{port}/x"], "nobody answers at"),
        (["--endpoint", "http://127.0.0.1:{port}", "--demo"], "exclude each other"),
        (["--ci", "jenkins"], "is not one of"),
        (["taken"], "is a file, and a folder is expected"),
        (["taken/below"], "cannot be written"),
    ],
    ids=["no-scheme", "credential", "metadata", "nobody", "both", "other-ci", "file", "below-file"],
)
def test_errors_write_nothing(project: Project, arguments: list[str], said: str) -> None:
    """The status is 2, one message says what to do, and the folder is unchanged."""
    project.write("taken", "mine")
    port = closed_port()
    done = written(project, *(word.format(port=port) for word in arguments), status=2)
    assert said in done.stderr
    assert "hunter2" not in done.stderr
    assert "Traceback" not in done.stderr
    assert contents(project.root) == {"taken": b"mine"}


def test_a_run_without_a_project_names_the_command(project: Project) -> None:
    """If configuration, agent or scenario is missing, the message names the command to write it."""
    assert "Write one: agentest init, or agentest init --endpoint URL" in project.run().stderr
    project.write(CONFIG, "concurrency: 3\n")
    assert 'agent: {endpoint: "http://HOST:PORT/PATH"}, or run agentest init' in project.run().stderr
    project.config("http://127.0.0.1:9/")
    assert "agentest init writes a first one" in project.run().stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_to(project: Project) -> None:
    """One message names the file that could not be written."""
    project.root.chmod(0o500)
    try:
        assert "cannot be written" in written(project, status=2).stderr
    finally:
        project.root.chmod(0o700)


def test_existing_files_are_not_changed(project: Project) -> None:
    """The user's files are named and left alone; a line of .gitignore is added once."""
    project.write("agentest.config.py", "config = {'agent': {'endpoint': 'http://localhost:1'}}\n")
    project.write("tests/mine.sim.py", "# mine\n")
    project.write(".gitignore", "/.env\r\nbuild")
    (project.root / ".git").mkdir()
    done = written(project, "--ci", "gitlab")
    assert (project.root / ".gitignore").read_bytes() == b"/.env\r\nbuild\r\n.agentest/\r\n"
    stay = {line.split()[1] for line in done.stdout.splitlines() if line.startswith("stays")}
    assert stay == {"agentest.config.py", "tests/mine.sim.py"}
    assert not (project.root / "scenarios").exists()
    refused = written(project, "--demo", status=2)
    assert "name another folder" in refused.stderr


def test_a_configuration_that_is_complete_is_not_called_incomplete(tmp_path: Path) -> None:
    """The detected agent is mentioned only if the configuration has none like it."""
    with serving({"/list-apps": ["shop"]}, {}) as url:
        own = f"agent: {{type: adk, endpoint: '{url}', app_name: shop, name: mine}}\n"
        for text, is_named in ((own, False), ("agents: {a: {endpoint: 'http://localhost:1'}}\n", True)):
            (tmp_path / CONFIG).write_text(text)
            done = begin(tmp_path, url)
            assert done.step == "check"
            assert any("app_name: shop" in note for note in done.notes) is is_named


def test_workflows_keep_existing_files(project: Project) -> None:
    """They are at the repository's root and run in the project's folder, with valid commands."""
    (project.root / ".git").mkdir()
    mine = project.write(".gitlab-ci.yml", "build: {script: [make]}\n")
    written(project, "my agent", "--ci", "github")
    done = written(project, "my agent", "--ci", "gitlab")
    assert mine.read_text() == "build: {script: [make]}\n"
    assert "- local: .gitlab/agentest.gitlab-ci.yml" in done.stderr
    github = yaml.safe_load((project.root / ".github/workflows/agentest.yml").read_text())["jobs"]["agentest"]
    assert github["defaults"]["run"]["working-directory"] == "my agent"
    *_, run, upload = github["steps"]
    assert upload["with"]["path"] == "my agent/.agentest"
    assert run["run"].startswith("agentest run --reporter console --reporter github-actions")
    gitlab = yaml.safe_load((project.root / ".gitlab/agentest.gitlab-ci.yml").read_text())["agentest"]
    assert gitlab["script"][0] == "cd 'my agent'"
    assert gitlab["artifacts"]["reports"] == {"junit": "my agent/.agentest/junit.xml"}
    assert "working-directory" not in ci_text("github", PurePosixPath())


def test_the_demo_agent_runs_alone(project: Project) -> None:
    """It needs nothing but Python: it starts without the packages that Agentest has."""
    written(project, "--demo")
    done = subprocess.run(
        [sys.executable, "-I", "-S", "demo_agent.py", "--help"],
        cwd=project.root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_another_word_for_an_option_names_ours(project: Project) -> None:
    done = project.agentest("init", "--url", "http://localhost")
    assert done.returncode == 2
    assert "No such option '--url': use `--endpoint`." in done.stderr
