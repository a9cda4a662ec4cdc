"""Mistakes in the configuration of an agent of type http are reported before anything is sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentest.config.agent_types import visibility_of_agent
from agentest.config.agents.http import HttpTemplateAgent
from agentest.config.config import Config
from agentest.config.file import load
from agentest.domain.tool_visibility import ToolVisibility
from agentest.support.errors import ConfigError

LOGIN = {"per": "run", "endpoint": "/login", "save": {"token": "token"}}


def written(tmp_path: Path, agent: dict[str, Any]) -> Path:
    """A file with a configuration that is valid apart from these keys."""
    path = tmp_path / "agentest.config.yaml"
    right = {"type": "http", "endpoint": "http://h/chat", "body": {"m": "{{message}}"}}
    keys = {key: value for key, value in {**right, **agent}.items() if value is not None}
    rows = "".join(f"  {key}: {json.dumps(value)}\n" for key, value in keys.items())
    path.write_text(f"agent:\n{rows}")
    return path


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "reply": ({"reply": "data["}, "agent.reply: is 'data[', which is not JMESPath: it breaks off at its end"),
    "delta": (
        {"delta": 'type == "t" && x'},
        'agent.delta: compares with the key "t"; a text stands in single',
    ),
    "until": ({"poll": {"endpoint": "/j", "until": "a b"}}, "agent.poll.until: is 'a b'"),
    "save": ({"save": {"x": "a["}}, "agent.save.x: is 'a['"),
    "saved name": ({"save": {"my-job": "a"}}, "'my-job' cannot be a placeholder"),
    "saved message": ({"save": {"message": "a"}}, "{{message}} stands for something already"),
    "source": ({"session": {"header": "X", "path": "a"}}, "takes a JMESPath, or one of {header: …}"),
    "source key": ({"session": {"hedder": "X"}}, "unknown key `hedder`; did you mean `header`?"),
    "regex": ({"save": {"x": {"regex": "a"}}}, "has no group"),
    "bad regex": ({"save": {"x": {"regex": "(a"}}}, "which is not a regular expression"),
    "unknown name": (
        {"body": {"m": "{{mesage}}"}},
        "`body` has the placeholder {{mesage}}, which stands for nothing; did you mean `message`?",
    ),
    "unknown in params": ({"params": {"q": "{{x}}"}}, "`params` has the placeholder {{x}}"),
    "unknown in the endpoint": ({"endpoint": "http://h/{{sid}}"}, "`endpoint` has the placeholder {{sid}}"),
    "unknown in poll": (
        {"poll": {"endpoint": "/{{job}}", "until": "x"}},
        "`poll.endpoint` has the placeholder {{job}}",
    ),
    "list without the message": (
        {"body": None, "then": [{"endpoint": "/a", "body": {"x": 1}}]},
        "`then` never sends the user's message: put {{message}}",
    ),
    "first without the message": (
        {"first": {"body": {"x": 1}}},
        "`first` never sends the user's message: put {{message}}",
    ),
    "body beside a list": (
        {"then": {"body": {"m": "{{message}}"}}},
        "`body` is never sent, because `then` has the requests of each turn",
    ),
    "sent before it is saved": (
        {"body": None, "then": [{"endpoint": "/{{run}}", "body": ["{{message}}"]}, {"save": {"run": "id"}}]},
        "`then[0]` sends {{run}} in the first turn before any answer can have saved it",
    ),
    "unknown in a list": (
        {"body": None, "then": [{"body": {"m": "{{message}}", "x": "{{runn}}"}, "save": {"run": "id"}}]},
        "`then[0].body` has the placeholder {{runn}}, which stands for nothing; did you mean `run`?",
    ),
    "condition": (
        {"first": {"body": ["{{message}}"], "if": "chatt", "save": {"chat": "id"}}},
        "`first[0].if` looks at `chatt`, which nothing saves; did you mean `chat`?",
    ),
    "condition of a placeholder": (
        {"first": {"body": ["{{message}}"], "if": "{{nothing}}"}},
        "`first[0].if` has the placeholder {{nothing}}",
    ),
    "condition that is no path": (
        {"first": {"body": "{{message}}", "if": "a b"}},
        "agent.first[0].if: is 'a b'",
    ),
    "key of a request": (
        {"first": {"body": "{{message}}", "iff": "a"}},
        "unknown key `iff`; did you mean `if`?",
    ),
    "until of nothing": (
        {"poll": {"endpoint": "/j", "until": "id == {{job}}"}},
        "`poll.until` has the placeholder {{job}}",
    ),
    "pause without until": (
        {"first": {"body": "{{message}}", "every_ms": 5}},
        "`every_ms` and `quiet_ms` are for a request that is repeated: set `until`, too",
    ),
    "whole address of no answer": (
        {"poll": {"endpoint": "{{message}}"}},
        "`poll.endpoint` has a placeholder where the host stands",
    ),
    "saved later": (
        {"setup": [{"endpoint": "/a/{{id}}"}, {"endpoint": "/b", "save": {"id": "id"}}]},
        "`setup[0].endpoint` has the placeholder {{id}}",
    ),
    "message for a run": (
        {"setup": {"per": "run", "endpoint": "/x", "body": {"s": "{{session_id}}"}}},
        "`setup[0].body` has the placeholder {{session_id}}: a request `per: run` belongs to no conversation",
    ),
    "host": ({"endpoint": "http://{{message}}/x"}, "has a placeholder where the host stands"),
    "fragment": ({"endpoint": "http://h/#x"}, "has a part after `#`"),
    "no url": ({"endpoint": "h/chat"}, "must start with http://"),
    "no endpoint": ({"endpoint": None}, "agent.endpoint: the key is missing"),
    "setup url": ({"setup": {"endpoint": "ftp://h/x"}}, "`setup[0].endpoint` must start with http://"),
    "method": ({"method": "SEND"}, "agent.method: is 'SEND', expected one of GET, POST, PUT, PATCH, DELETE"),
    "nobody hears": (
        {"body": {"m": "hello"}},
        "the request does not contain the user's message: put {{message}}",
    ),
    "nothing sends": (
        {"session": "sid"},
        "`session` reads an id that nothing sends back: put {{session_id}} into",
    ),
    "two ids": (
        {"session": "s", "save": {"session_id": "s"}, "body": {"m": "{{message}}", "s": "{{session_id}}"}},
        "`session` and a saved `session_id` exclude each other",
    ),
    "pasted": ({"body": '{"m": {{message}}}'}, "`body` is a text that should be JSON and is none"),
    "form": (
        {"headers": {"Content-Type": "application/x-www-form-urlencoded"}, "body": ["{{message}}"]},
        "`body` is a form (application/x-www-form-urlencoded) and must be keys and values, not a list",
    ),
    "params": (
        {"params": {"q": {"a": "{{message}}"}}},
        "'q' holds a dict, expected a text, a number or a list",
    ),
    "returned": ({"tool_visibility": "returned"}, "set `tool_calls` to the JMESPath of the calls"),
    "step key": ({"setup": {"endpoint": "/x", "saves": {}}}, "unknown key `saves`; did you mean `save`?"),
    "per": (
        {"setup": {"endpoint": "/x", "per": "turn"}},
        "found 'turn'; input should be 'conversation' or 'run'",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_http_settings_are_explained(name: str, tmp_path: Path) -> None:
    """The message names the file and the key, the problem, and what may have been meant."""
    agent, message = WRONG[name]
    with pytest.raises(ConfigError) as raised:
        load(written(tmp_path, agent), {})
    assert message in str(raised.value)
    assert str(raised.value).startswith(str(tmp_path))


def test_http_settings_in_both_spellings(tmp_path: Path) -> None:
    """Keys may be camelCase at any depth; a single setup request needs no list."""
    agent = {
        "toolCalls": "calls",
        "poll": {"endpoint": "/j", "until": "x", "everyMs": 5},
        "setup": LOGIN,
        "headers": {"Authorization": "Bearer {{token}}"},
        "method": "put",
    }
    config = load(written(tmp_path, agent), {}).config.agent
    assert isinstance(config, HttpTemplateAgent)
    assert config.poll is not None
    assert (config.poll.every_ms, config.poll.method, config.method) == (5, "GET", "PUT")
    assert (config.setup[0].method, config.saved_names) == ("POST", ("token",))


def test_tool_visibility_of_http_agents(tmp_path: Path) -> None:
    """`tool_calls` says where calls are reported; without it they are not visible, and the key is named."""
    unseen, reported = ({}, {"tool_calls": "calls"})
    assert visibility_of_agent(load(written(tmp_path, unseen), {}).config.agent) is ToolVisibility.UNSEEN
    assert "`tool_calls`" in load(written(tmp_path, unseen), {}).config.agent.ways_to_see[0]
    assert visibility_of_agent(load(written(tmp_path, reported), {}).config.agent) is ToolVisibility.REPORTED


def test_state_is_sent_if_a_request_has_it(tmp_path: Path) -> None:
    """If no request has the state, the message says how to add it."""
    with_state = {"body": {"m": "{{message}}", "user": "{{state.user}}"}}
    assert load(written(tmp_path, with_state), {}).config.agent.state_refusal is None
    assert "write {{state.KEY}}" in str(load(written(tmp_path, {}), {}).config.agent.state_refusal)


def test_passwords_in_requests_are_secret(tmp_path: Path) -> None:
    """Passwords in any request are hidden; placeholders are not secrets."""
    agent = {
        "setup": {**LOGIN, "body": {"user": "me", "password": "hunter22"}, "params": {"api_key": "key-1234"}},
        "headers": {"Authorization": "Bearer {{token}}", "X-Api-Key": "other-1234"},
        "body": {"m": "{{message}}", "auth": {"token": "deep-1234"}},
    }
    redact = load(written(tmp_path, agent), {}).redact
    assert redact("hunter22 key-1234 other-1234 deep-1234") == " ".join(["[redacted]"] * 4)
    assert redact("send {{token}} as Bearer") == "send {{token}} as Bearer"


def test_an_override_of_compare() -> None:
    """`body` is merged, the rest replaced, as with the other types."""
    agent = {
        "type": "http",
        "endpoint": "http://h/",
        "body": {"m": "{{message}}", "model": "a"},
        "reply": "x",
    }
    config = Config.model_validate({"agent": agent, "compare": [{"name": "b", "body": {"model": "b"}}]})
    (other,) = config.compare
    assert isinstance(other, HttpTemplateAgent)
    assert (other.body, other.reply) == ({"m": "{{message}}", "model": "b"}, "x")
