"""`servers` in the configuration: both forms, and errors with their location."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentest.config.file import load
from agentest.support.errors import ConfigError

AGENT = "agent: {endpoint: 'http://127.0.0.1:9/v1'}\n"
ONE = "command: x, ready: 'tcp://h:1'"
WRONG = {
    "unknown key": (
        f"servers: [{{{ONE}, redy: 1}}]",
        ":2: servers[0].redy: unknown key `redy`; did you mean `ready`?",
    ),
    "under a name": ("servers: {db: {command: x}}", ":2: servers.db.ready: the key is missing"),
    "no list": (f"servers: {{{ONE}}}", "is one server; write a list of servers (`- command: …`)"),
    "a text": ("servers: npm start", "found 'npm start'; expected a list"),
    "same ready": (f"servers: [{{{ONE}}}, {{{ONE}}}]", "two servers have the same `ready`, tcp://h:1"),
    "same name": (
        f"servers: [{{{ONE}, name: a}}, {{command: y, ready: 'tcp://h:2', name: a}}]",
        "two servers are named 'a'",
    ),
    "two names": (
        f"servers: {{a: {{{ONE}, name: b}}}}",
        "'a' has the `name` 'b', too; leave one of them out",
    ),
    "an address": (
        "servers: [{command: 'x {{mcp_url}}', ready: 'tcp://h:1'}]",
        "{{mcp_url}} is known to an agent's own server alone",
    ),
    "misplaced": (
        f"server: {{{ONE}}}",
        "it is a key of `agent`; to start more processes",
    ),
    "twice": (
        f"servers: [{{{ONE}}}]\nagents: {{b: {{endpoint: 'http://h/v1', server: {{{ONE}}}}}}}",
        "`servers` and the `server` of agent 'b' start what answers at tcp://h:1",
    ),
    "time": (f"servers: {{db: {{{ONE}, timeoutS: -3}}}}", "servers.db.timeout_s: found -3"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_servers_are_explained(tmp_path: Path, name: str) -> None:
    """A mistake in `servers` is one message with its place and what to write."""
    text, said = WRONG[name]
    path = tmp_path / "agentest.config.yaml"
    path.write_text(AGENT + text)
    with pytest.raises(ConfigError) as caught:
        load(path, {})
    assert said in str(caught.value)


def test_a_list_and_a_mapping_are_the_same_servers(tmp_path: Path) -> None:
    """This holds in either spelling; their secrets are hidden."""
    path = tmp_path / "agentest.config.yaml"
    server = "command: x, ready: 'tcp://h:1', timeoutS: 3, watch: src, env: {DB_PASSWORD: hunter2hunter2}"
    found = []
    for text in (f"servers: [{{name: db, {server}}}]", f"servers: {{db: {{{server}}}}}"):
        path.write_text(AGENT + text)
        loaded = load(path, {})
        assert loaded.redact("it is hunter2hunter2") == "it is [redacted]"
        found.append(loaded.config.servers)
    assert found[0] == found[1]
    (one,) = found[0]
    assert (one.name, one.timeout_s, one.watch) == ("db", 3, ["src"])
