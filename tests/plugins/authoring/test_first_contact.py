"""`agentest init` with agents as teams write them: what it writes is right, or it says that it is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
import yaml
from project import Project
from stand_ins import NOT_FOUND, Asked, Given, StandIn, standing_in
from team_agents import (
    AGENTS,
    STRICT_ROLES,
    Chats,
    cookies,
    forgetful,
    own_events,
    shared,
    strict_roles,
)

from agentest.plugins.authoring.answer_reading import TrialAnswer

REMEMBERS = """\
asked = "What is my name?"
told = {"user_message": asked, "expect": {"says": "Cleo"}}
scenario("knows the name", turns=["My name is Cleo.", told])
scenario("knows nobody", turns=[{"user_message": asked, "expect": {"never_says": ["Cleo", "Ada"]}}])
"""
PATHS = {
    "session-first": "/api/chat",
    "ids-in-path": "/v1/conversations",
    "cookies": "/chat",
    "form": "/ask",
    "plain-text": "/talk",
    "json-lines": "/generate",
    "own-events": "/api/assistant/stream",
    "json-rpc": "/rpc",
    "graphql": "/graphql",
    "job-queue": "/api/jobs",
    "bearer": "/v2/reply",
    "login-first": "/chats",
    "own-history": "/complete",
    "strict-roles": "/tasks",
    "shared": "/chat",
    "never-says": "/chat",
}


UNKNOWN = "No field that keeps a conversation was found, so every message begins a new one"
KEEPS = "each remembered its own name, and not the other's"
BY_ADDRESS = {"cookies", "json-lines", "plain-text"}  # found by their address alone


def check_right(project: Project) -> None:
    """A scenario of two messages, beside one with a new conversation, passes."""
    (project.root / "scenarios/first.sim.py").unlink()
    project.scenario(REMEMBERS)
    done = project.run("--offline")
    assert done.returncode == 0, (project.root / "agentest.config.yaml").read_text("utf-8") + done.stdout


@pytest.mark.parametrize("name", AGENTS)
def test_the_request_that_works_becomes_the_configuration(name: str, project: Project) -> None:
    """What `--curl` writes passes a scenario that needs a memory, or the exit status is not 0."""
    make, curl = AGENTS[name]
    with standing_in(make()) as url:
        (project.root / "requests.txt").write_text(curl.replace("$URL", url), encoding="utf-8")
        done = project.agentest("init", "--curl", "requests.txt")
        shown = " ".join((done.stdout + done.stderr).split())
        if name in ("shared", "never-says"):
            assert done.returncode == 2, shown
            assert ("share one" if name == "shared" else "not recognized: the answer says that") in shown
            return
        assert done.returncode == 0, shown
        assert KEEPS in shown
        config = (project.root / "agentest.config.yaml").read_text(encoding="utf-8")
        check_right(project)
    assert "t0p-s3cret-value" not in config + shown
    assert "geheim-1234" not in config + shown


@pytest.mark.parametrize("name", AGENTS)
def test_an_address_alone_gives_a_right_configuration_or_none(name: str, project: Project) -> None:
    """Exit status 0 means that a scenario with a memory passes, or that `init` says that nothing is kept."""
    make, _ = AGENTS[name]
    with standing_in(make()) as url:
        done = project.agentest("init", "--endpoint", f"{url}{PATHS[name]}")
        if done.returncode:
            assert name not in BY_ADDRESS, done.stderr
            assert "agentest init --curl" in done.stderr
        elif UNKNOWN in done.stderr:
            assert project.run("--offline").returncode == 0, done.stderr
        else:
            assert KEEPS in done.stderr
            check_right(project)


def test_an_empty_object_is_sent_as_it_is_given(project: Project) -> None:
    """A server that parses each body refuses a request without one."""
    make, _ = AGENTS["session-first"]
    agent = make()

    def strict(request: Asked) -> Given | None:
        return (
            Given({"error": "bad json"}, 400)
            if request.method == "POST" and not request.body
            else agent(request)
        )

    with standing_in(strict) as url:
        first = f"curl {url}/api/sessions -H 'Content-Type: application/json' -d '{{}}'"
        body = '{"session_id": "b1946ac9-2f5e", "message": "Where is order 17?"}'
        then = f"curl {url}/api/chat -H 'Content-Type: application/json' -d '{body}'"
        done = project.agentest("init", "--curl", f"{first}\n{then}")
        assert done.returncode == 0, done.stderr
        check_right(project)
    text = (project.root / "agentest.config.yaml").read_text(encoding="utf-8")
    assert yaml.safe_load(text)["agent"]["setup"][0]["body"] == {}


def recorded(method: str, url: str, answer: str, body: Any = None) -> dict[str, Any]:
    """An entry of a browser's recording."""
    headers = [{"name": ":path", "value": "/"}, {"name": "User-Agent", "value": "Mozilla/5.0"}]
    sent = {"mimeType": "application/json", "text": json.dumps(body)} if body else {"mimeType": ""}
    request = {"method": method, "url": url, "headers": headers, "postData": sent}
    return {"request": request, "response": {"status": 200, "content": {"mimeType": answer}}}


def test_the_recording_of_a_browser_becomes_the_configuration(project: Project) -> None:
    """Parts of pages are left out, and later messages of the same conversation are not sent before each."""
    make, _ = AGENTS["session-first"]
    agent, asked = make(), list[str]()

    def answer(request: Asked) -> Given | None:
        asked.append(request.path)
        return agent(request)

    with standing_in(answer) as url:
        texts = [
            {"session_id": "b1946ac9-2f5e", "message": text} for text in ("Where is order 17?", "Thanks!")
        ]
        entries = [
            recorded("GET", f"{url}/", "text/html"),
            recorded("OPTIONS", f"{url}/api/chat", "application/json"),
            recorded("POST", f"{url}/api/sessions", "application/json"),
            *(recorded("POST", f"{url}/api/chat", "application/json", text) for text in texts),
        ]
        project.write("shop.har", json.dumps({"log": {"entries": entries}}))
        done = project.agentest("init", "--har", "shop.har")
        assert done.returncode == 0, done.stderr
        agent_of_file = yaml.safe_load((project.root / "agentest.config.yaml").read_text(encoding="utf-8"))[
            "agent"
        ]
        check_right(project)
    assert agent_of_file["setup"] == [{"endpoint": "/api/sessions", "save": {"session_id": "session.id"}}]
    assert set(asked) == {"/api/sessions", "/api/chat"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "is not a recording of a browser"),
        ("<html>", "is not a recording of a browser"),
        ('{"log": {"entries": []}}', "has no request that sends or fetches data"),
    ],
)
def test_another_file_is_no_recording(text: str, said: str, project: Project) -> None:
    project.write("shop.har", text)
    done = project.agentest("init", "--har", "shop.har")
    assert done.returncode == 2
    assert said in done.stderr
    assert not (project.root / "agentest.config.yaml").exists()


@pytest.mark.parametrize(
    ("by_login", "by_body", "headers", "said", "status"),
    [
        (False, False, None, "Left out the recorded cookies `theme`, `sid`: the agent answers without", 0),
        (
            True,
            False,
            "login=${AGENT_COOKIE_LOGIN}",
            "share the recorded cookies `login`: without, the agent answers 401",
            0,
        ),
        (True, True, "login=${AGENT_COOKIE_LOGIN}", "Two conversations at once share one", 2),
    ],
    ids=["session", "login-and-session", "session-of-the-login"],
)
def test_recorded_cookies_are_sent_only_if_the_agent_needs_them(
    by_login: bool, by_body: bool, headers: str | None, said: str, status: int, project: Project
) -> None:
    """A recorded session would make all conversations one. The values of others are in .env alone."""
    agent, chats = cookies(), Chats()

    def answer(request: Asked) -> Given | None:
        if by_login and "login=t0p-s3cret-value" not in request.headers.get("cookie", ""):
            return Given({"detail": "Not authenticated"}, 401)
        if by_body:
            return Given({"answer": chats.say("login", request.json["question"], begins=True)})
        return agent(request)

    login = "login=t0p-s3cret-value; " if by_login else ""
    begun = agent(Asked("POST", "/chat", {}, b'{"question": "Hello"}'))
    session = begun.headers["set-cookie"].partition(";")[0] if begun else ""
    recorded = f"theme=dark; {session}"
    with standing_in(answer) as url:
        curl = f"curl {url}/chat -b '{login}{recorded}' --json '{{\"question\": \"Where is order 17?\"}}'"
        done = project.agentest("init", "--curl", curl)
        shown = " ".join((done.stdout + done.stderr).split())
        assert done.returncode == status, shown
        assert said in shown
        text = (project.root / "agentest.config.yaml").read_text(encoding="utf-8")
        assert yaml.safe_load(text)["agent"].get("headers") == (headers and {"Cookie": headers})
        assert (project.root / ".env").exists() == by_login
        assert session not in shown + text
        assert "s3cret" not in shown + text
        if status == 0:
            check_right(project)


def test_what_was_sent_and_what_came_is_shown(project: Project) -> None:
    """A request that does not work is shown with its answer and the settings so far. Nothing is written."""
    make, curl = AGENTS["bearer"]
    with standing_in(make()) as url:
        wrong = curl.replace("$URL", url).replace("t0p-s3cret-value", "another-value-1")
        done = project.agentest("init", "--curl", wrong)
    assert done.returncode == 2
    assert "not recognized: " in done.stderr
    assert "answered 401" in done.stderr
    assert f"sent POST {url}/v2/reply" in done.stderr
    assert "came 401" in done.stderr
    headers = '  headers: {Authorization: "Bearer ${AGENT_TOKEN}"'
    assert f"agent:\n  type: http\n  endpoint: {url}/v2/reply\n{headers}" in done.stderr
    assert "\n  reply: reply # the path" in done.stderr
    assert "another-value-1" not in done.stderr
    assert not (project.root / "agentest.config.yaml").exists()


IN_WORDS = """\
BASE=$URL/v1
CONTENT_TYPE="application/json"
curl -X POST ${BASE}/conversations
curl $BASE/conversations/$CONVERSATION_ID/messages -H "Content-Type: $CONTENT_TYPE" \\
     -d '{"content": {"type": "text", "text": "Where is it?"}}'"""


@pytest.mark.parametrize(
    ("name", "requests"),
    [
        ("ids-in-path", IN_WORDS),
        ("job-queue", f"{AGENTS['job-queue'][1]}\ncurl $URL/api/jobs/$JOB_ID"),
    ],
)
def test_variables_of_a_readme_are_read(name: str, requests: str, project: Project) -> None:
    """Those that it sets have their values. Those in a path that nothing sets are ids of answers."""
    with standing_in(AGENTS[name][0]()) as url:
        project.write("requests.txt", requests.replace("$URL", url))
        done = project.agentest("init", "--curl", "requests.txt")
        assert done.returncode == 0, done.stderr
        assert KEEPS in done.stderr
        check_right(project)


def test_a_refused_second_message_is_not_called_ready(project: Project) -> None:
    """Roles that nobody guesses: the agent's words are shown, and the exit status is 2."""
    with standing_in(strict_roles("consultant")) as url:
        done = project.agentest("init", "--curl", STRICT_ROLES.replace("$URL", url))
    assert done.returncode == 2, done.stderr
    assert "A conversation of two messages failed: " in done.stderr
    assert "speaker is customer or consultant" in done.stderr
    assert "Next: complete `agent`" in done.stdout


@pytest.mark.parametrize(
    ("state", "others"),
    [
        ("done", ["failed", "error"]),
        ("SUCCEEDED", ["FAILED", "ERROR"]),
        ("Succeeded", ["Failed", "Error"]),
        ("failed", ["error"]),
    ],
)
def test_a_job_that_fails_ends_the_wait(state: str, others: list[str]) -> None:
    """Its state is spelled like that of a job that succeeds."""
    until = TrialAnswer(200, {}, [{"state": state}], "").until["until"]
    assert until.split(" || ") == [f"state == '{each}'" for each in (state, *others)]


def _own_form(request: Asked) -> Given:
    said = {"plain": f"You said: {request.json['message']}"}
    return Given({"convo": uuid4().hex, "said": said, "did": []})


def _wants_utterance(request: Asked) -> Given:
    if "utterance" not in request.json:
        return Given({"fault": "missing field: utterance"}, 400)
    return Given({"said": f"You said: {request.json['utterance']}"})


def _names_in_words(request: Asked) -> Given:
    return Given({"reply": f'Fill "message" for Zorviks and Quelnaria: {request.json["message"]}'})


def _own_kinds(request: Asked) -> Given:
    words = [{"t": "part", "v": f"{word} "} for word in f"You said {request.json['prompt']}".split()]
    lines = [{"t": "meta"}, *words, {"t": "usage", "v": "in=12 out=7"}]
    return Given(
        "".join(f"{json.dumps(line)}\n" for line in lines), 200, {"content-type": "application/jsonl"}
    )


@pytest.mark.parametrize(
    ("answer", "written"),
    [
        (_own_form, {"body": {"message": "{{message}}"}, "reply": "said.plain"}),
        (_wants_utterance, {"body": {"utterance": "{{message}}"}, "reply": "said"}),
        (_names_in_words, {"body": {"message": "{{message}}"}, "reply": "reply"}),
        (_own_kinds, {"body": {"prompt": "{{message}}"}, "delta": "t == 'part' && v"}),
    ],
    ids=["id-first", "field-in-error", "names-in-words", "kinds-of-its-own"],
)
def test_a_form_of_its_own_is_read(answer: Any, written: dict[str, Any], project: Project) -> None:
    """Ids are not replies, errors name fields, and only whole words and quoted messages accuse an agent."""
    with standing_in(answer) as url:
        done = project.agentest("init", "--endpoint", f"{url}/chat")
        assert done.returncode == 0, done.stderr
        agent = yaml.safe_load((project.root / "agentest.config.yaml").read_text(encoding="utf-8"))["agent"]
        assert agent == {"type": "http", "endpoint": f"{url}/chat", **written}
        assert done.stderr.count("message to /chat, as http, ") == 0
        other = project.agentest("init", "--endpoint", f"{url}/")
        again = project.agentest("init", "--endpoint", f"{url}/chat")
    assert (again.returncode, other.returncode) == (0, 2)
    assert "Next: complete `agent`" in other.stdout
    assert other.stderr.startswith("agentest: For this agent, write in agentest.config.yaml: agent: {")


def by_field() -> StandIn:
    """Everybody without a `conversationId` is in one conversation."""
    chats = Chats()

    def answer(request: Asked) -> Given:
        chat = request.json.get("conversationId", "everybody")
        return Given({"reply": chats.say(chat, request.json["message"], begins=True)})

    return answer


def by_answer() -> StandIn:
    """Every message without the id of an answer begins a conversation."""
    chats = Chats()

    def answer(request: Asked) -> Given:
        chat = request.json.get("thread_id") or chats.begin()
        return Given({"thread": {"id": chat}, "answer": chats.say(chat, request.json["question"])})

    return answer


@pytest.mark.parametrize(
    ("make", "body", "session"),
    [
        (by_field, {"message": "{{message}}", "conversationId": "{{session_id}}"}, None),
        (by_answer, {"question": "{{message}}", "thread_id": "{{session_id}}"}, "thread.id"),
    ],
)
def test_the_field_of_the_conversation_is_found(
    make: Callable[[], StandIn], body: dict[str, str], session: str | None, project: Project
) -> None:
    """The usual names are tried, and the ids that answers have."""
    with standing_in(make()) as url:
        done = project.agentest("init", "--endpoint", f"{url}/chat")
        assert done.returncode == 0, done.stderr
        assert KEEPS in done.stderr
        agent = yaml.safe_load((project.root / "agentest.config.yaml").read_text(encoding="utf-8"))["agent"]
        assert (agent["body"], agent.get("session")) == (body, session)
        check_right(project)


@pytest.mark.parametrize("end", ["as always.", "as {}."])
def test_a_reply_path_that_was_disproved_is_not_written(end: str, project: Project) -> None:
    """A text of which only an id changes is no reply: the agent is not green before its path is written."""

    with standing_in(
        lambda _: Given({"convo": uuid4().hex, "said": f"Accepted {end.format(uuid4())}"})
    ) as url:
        done = project.agentest("init", "--endpoint", f"{url}/chat")
        checked = project.agentest("doctor", "--offline")
    assert (done.returncode, checked.returncode) == (2, 2)
    config = yaml.safe_load((project.root / "agentest.config.yaml").read_text(encoding="utf-8"))
    assert "reply" not in config["agent"]
    assert "no reply was found" in checked.stdout


@pytest.mark.parametrize(
    ("header", "written"),
    [
        ("X-Foo: sk-live-1234567890ab", "${AGENT_X_FOO}"),
        ("X-Session-Id: eyJhbGciOiJIUzI1NiJ9.e30.x", "${AGENT_X_SESSION_ID}"),
        ("Authorization: Bearer sk-live-1234567890ab$WORD", "Bearer ${AGENT_TOKEN}"),
        ("X-Api-Key: abcdef123456$WORD", "${AGENT_X_API_KEY}"),
        ("Cookie: sid=$WORD; csrf=abcdef123456", "sid=${WORD}; csrf=${AGENT_COOKIE_CSRF}"),
        ("Cookie: sid=$WORD", "sid=${WORD}"),
        ("Authorization: $WORD", "${WORD}"),
        ("Tenant: north", "north"),
    ],
)
def test_a_secret_in_a_header_becomes_a_variable(header: str, written: str, project: Project) -> None:
    """Its value goes to .env, where a run finds it, and not into the configuration."""
    name, _, sent = header.partition(": ")
    sent = sent.replace("$WORD", "wort")
    agent = cookies()
    with standing_in(
        lambda asked: agent(asked) if asked.headers.get(name.lower()) == sent else NOT_FOUND
    ) as url:
        arguments = ("init", "--endpoint", f"{url}/chat", "--header", header)
        done = project.agentest(*arguments, env={"WORD": "wort"})
        assert done.returncode == 0, done.stderr
        config = yaml.safe_load((project.root / "agentest.config.yaml").read_text(encoding="utf-8"))
        assert config["agent"]["headers"] == {name: written}
        assert project.run("--offline", env={"WORD": "wort"}).returncode == 0
    env = project.root / ".env"
    assert env.exists() == ("AGENT_" in written)
    assert not env.exists() or sent.removeprefix("Bearer ").rpartition("csrf=")[2] in env.read_text(
        encoding="utf-8"
    )
    assert not env.exists() or env.stat().st_mode & 0o777 == 0o600


def test_a_header_is_sent_and_written_with_its_variable(project: Project) -> None:
    """The value is neither in the configuration nor in the output."""

    def answer(request: Asked) -> Given | None:
        if request.headers.get("authorization") != "Bearer t0p-s3cret-value":
            return Given({"detail": "Not authenticated"}, 401)
        return agent(request) if request.path == "/chat" else NOT_FOUND

    agent = cookies()
    with standing_in(answer) as url:
        arguments = ("init", "--endpoint", f"{url}/chat", "--header")
        env = {"SHOP_TOKEN": "t0p-s3cret-value"}
        done = project.agentest(*arguments, "Authorization: Bearer $SHOP_TOKEN", env=env)
        assert done.returncode == 0, done.stderr
        text = (project.root / "agentest.config.yaml").read_text(encoding="utf-8")
        assert "Authorization: Bearer ${SHOP_TOKEN}" in text
        assert "s3cret" not in text + done.stdout + done.stderr
        assert project.run("--offline", env=env).returncode == 0
        unset = project.agentest(*arguments, "Authorization: Bearer $NOWHERE").stderr
    assert "$NOWHERE has no value" in unset


ONE_THREAD = {
    "body": {"userInput": "{{message}}", "threadId": "th_1"},
    "delta": "event == 'token' && content",
}
KEPT = "✓ conversations: two conversations at once, each given a code word: each repeated its own"


@pytest.mark.parametrize(
    ("make", "path", "more", "arguments", "said", "status"),
    [
        (cookies, "/chat", {"body": {"question": "{{message}}"}}, ["--interleave"], KEPT, 0),
        (shared, "/chat", {}, ["--interleave"], "✗ conversations: two conversations at once share state", 2),
        (
            own_events,
            "/api/assistant/stream",
            ONE_THREAD,
            ["--interleave"],
            "at once share state: a reply repeats",
            2,
        ),
        (
            forgetful,
            "/",
            {},
            ["--interleave"],
            "– conversations: No field that keeps a conversation was found, so",
            0,
        ),
        (forgetful, "/", {}, [], "– conversations: its requests name no conversation: without a cookie", 0),
    ],
    ids=["kept", "shared", "one-thread", "forgetful", "not-tried"],
)
def test_doctor_shows_what_keeps_a_conversation(
    make: Any, path: str, more: dict[str, Any], arguments: list[str], said: str, status: int, project: Project
) -> None:
    """Two conversations with a word each show it, and what nothing shows is not called ready."""
    with standing_in(make()) as url:
        agent = {"type": "http", "endpoint": f"{url}{path}", "body": {"message": "{{message}}"}, **more}
        project.config("", agent=agent)
        project.scenario(REMEMBERS)
        done = project.agentest("doctor", "--offline", *arguments)
    shown = " ".join(done.stdout.split())
    assert said in shown, shown
    assert done.returncode == status, shown
    assert ("No problem was found, but see 'conversations'" in shown) == (make is forgetful)
