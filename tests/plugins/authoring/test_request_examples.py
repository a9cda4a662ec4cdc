"""Read requests from curl commands and from a browser's recording, with their secrets in variables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from stand_ins import Asked, Given, standing_in

from agentest.plugins.authoring.new_project import begin
from agentest.plugins.authoring.request_examples import hidden, read_curl, read_har
from agentest.support.errors import UsageError

CHAT = "http://shop.test/chat"
BODY = '{"text":"hi"}'


@pytest.mark.parametrize(
    "command",
    [
        f"curl {CHAT} -d '{BODY}'",
        f"curl -x http://proxy.test:3128 -e http://page.test/ -A my.browser/1 {CHAT} -d '{BODY}'",
        f"curl -o out.json --cacert ca.pem -c jar.txt -b jar.txt -sSkL -m 10 {CHAT} --json '{BODY}'",
        f"$ curl {CHAT} -d '{BODY}'",
        f"LANG=C sudo curl.exe {CHAT} -d '{BODY}'",
    ],
)
def test_the_request_of_a_command(command: str) -> None:
    """No other host than that of the request is its address, whatever the options."""
    (example,) = read_curl(command)
    request = example.request
    assert (request["origin"], request["method"], request["path"]) == ("http://shop.test", "POST", ["chat"])
    assert request["body"] == {"text": "hi"}
    assert request["headers"] == {}


@pytest.mark.parametrize(
    ("command", "body"),
    [
        (f'curl {CHAT} -d \'{{"text":\n  "Hello (you)"\n}}\'', {"text": "Hello (you)"}),
        (f'curl {CHAT} --data-raw $\'{{"text":"it\\\'s \\ud83d\\ude00"}}\'', {"text": "it's \U0001f600"}),
        (f"curl {CHAT} -d ''", None),
    ],
)
def test_bodies(command: str, body: object) -> None:
    (example,) = read_curl(command)
    assert example.request["body"] == body
    assert example.request["method"] == "POST"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (f"curl {CHAT} -d", "--curl cannot be read: argument -d/--data/--data-ascii: expected one argument"),
        (f"Invoke-WebRequest -Uri {CHAT} -Body '{BODY}'", "--curl has no curl command"),
        (f'curl -u "$SHOP_KEY:" {CHAT} -d x=1', "$SHOP_KEY has no value"),
    ],
)
def test_commands_that_cannot_be_read(command: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        read_curl(command)
    assert said in str(error.value)


def test_variables_of_logins_have_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_KEY", "k3y")
    (example,) = read_curl(f'curl -u "$SHOP_KEY:" {CHAT} -d x=1')
    assert example.request["headers"]["authorization"] == "Basic azN5Og=="
    (example,) = read_curl(f'token=$(cat key.txt)\ncurl -H "Authorization: Bearer $token" {CHAT} -d x=1')
    assert example.variable == ""  # `cat` gives the value, not this request
    monkeypatch.setenv("token", "t0ken-1234")
    variables: dict[str, str] = {}
    assert hidden(example.request["headers"], variables)["authorization"] == "Bearer ${token}"
    assert variables == {"token": "t0ken-1234"}


def test_two_secrets_of_one_name_have_a_variable_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one of a chat is never sent to the login, and the environment's own is neither."""
    monkeypatch.setenv("AGENT_TOKEN", "of-something-else")
    variables: dict[str, str] = {}
    sent = [{"authorization": f"{scheme} s3cret-{scheme}"} for scheme in ("Basic", "Bearer", "Basic")]
    names = [each["authorization"] for each in hidden(sent, variables)]
    assert names == ["Basic ${AGENT_TOKEN_2}", "Bearer ${AGENT_TOKEN_3}", "Basic ${AGENT_TOKEN_2}"]
    assert variables == {"AGENT_TOKEN_2": "s3cret-Basic", "AGENT_TOKEN_3": "s3cret-Bearer"}


def test_a_recording_has_requests_that_nothing_is_sent_for(tmp_path: Path) -> None:
    """Addresses of the browser itself, and requests that delete, are left out."""
    sent = [("GET", "data:application/json,{}"), ("DELETE", f"{CHAT}/1"), ("POST", CHAT)]
    entries = [
        {
            "request": {"method": method, "url": url, "headers": [], "postData": {"text": BODY}},
            "response": {"content": {"mimeType": "application/json"}},
        }
        for method, url in sent
    ]
    (tmp_path / "shop.har").write_text(json.dumps({"log": {"entries": entries}}), encoding="utf-8")
    assert [each.request["method"] for each in read_har(tmp_path / "shop.har")] == ["POST"]


def test_secrets_go_to_their_own_host_and_to_no_file_but_env(tmp_path: Path) -> None:
    """The login is at another host than the chat, whose agent repeats what it received."""
    asked: list[tuple[str, str]] = []

    def login(request: Asked) -> Given:
        asked.append(("login", request.headers["authorization"]))
        return Given({"access_token": f"t0ken-{len(asked)}-abcd"})

    def chat(request: Asked) -> Given:
        asked.append(("chat", request.headers["authorization"]))
        return Given({"reply": f"{request.json['text'][::-1]} with {request.headers['x-api-key']}"})

    (tmp_path / ".env").write_text("MY_AGENT_X_API_KEY=other\nAGENT_TOKEN=old\n", encoding="utf-8")
    with standing_in(login) as login_url, standing_in(chat) as chat_url:
        commands = (
            f"T=$(curl -u me:pa55word {login_url}/token -d grant_type=client | jq .access_token)\n"
            f"curl {chat_url}/chat -H \"Authorization: Bearer $T\" -H 'x-api-key: k3y-of-mine' -d '{BODY}'"
        )
        begun = begin(tmp_path, examples=read_curl(commands))
    assert {(who, kind) for who, (kind, _) in ((who, text.split()) for who, text in asked)} == {
        ("login", "Basic"),
        ("chat", "Bearer"),
    }
    config = (tmp_path / "agentest.config.yaml").read_text(encoding="utf-8")
    assert f"endpoint: {login_url}/token" in config
    assert "k3y-of-mine" not in "".join((config, *begun.notes))
    variables = (tmp_path / ".env").read_text(encoding="utf-8")
    assert "\nAGENT_X_API_KEY=k3y-of-mine\n" in variables
    assert "AGENT_TOKEN=old" in variables
    assert "it has other values of AGENT_TOKEN: check which are right" in [each.about for each in begun.files]
