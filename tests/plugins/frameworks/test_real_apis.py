"""Servers with a public API and bots on channels, by the configurations in the documentation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from framework_lab import MARKS, Served, assert_own_tools, configuration, run
from project import free_port

pytestmark = MARKS


@pytest.mark.parametrize(
    ("api", "heading", "kind"),
    [
        ("chatkit", "## ChatKit", "http"),
        ("gradio", "## Gradio", "http"),
        ("graphql", "## GraphQL subscriptions", "websocket"),
    ],
)
def test_a_server_with_a_public_api(tmp_path: Path, api: str, heading: str, kind: str) -> None:
    """Concurrent conversations stay separate, and the server's own calls are unseen."""
    command = ("known_apis/bin/python", "known_apis.py", "--port", "{port}", "--api", api)
    without = ("tool_calls", "tool_visibility")
    served = Served(
        id=api, type=kind, page="agents/known-apis", after=heading, command=command, without=without
    )
    assert_own_tools(run(served, tmp_path, "own_tools"), "unseen")


@pytest.mark.parametrize(
    ("api", "heading"),
    [("slack", "## Slack"), ("bot_framework", "## Teams"), ("twilio", "## Twilio")],
)
def test_a_bot_that_replies_by_calls(tmp_path: Path, api: str, heading: str) -> None:
    """The channel's own library checks each request and sends each reply."""
    port = free_port()
    command = ("known_apis/bin/python", "channel_bots.py", "--port", "{port}", "--api", api)
    channel = f"http://127.0.0.1:{port}" + ("/of-the-test" if api == "twilio" else "")
    page: dict[str, Any] = {"id": api, "type": "http", "page": "agents/reply-webhooks", "after": heading}
    shown = configuration(Served(**page))["agent"]
    webhook = json.dumps(shown["reply_webhook"]).replace("${SLACK_BOT_TOKEN}", "xoxb-1")
    webhook = webhook.replace("${REPLY_SECRET}", "of-the-test")
    agent: dict[str, Any] = {"reply_webhook": {**json.loads(webhook), "port": port}}
    if "serviceUrl" in shown["body"]:
        agent["body"] = {**shown["body"], "serviceUrl": channel}
    served = Served(
        **page, command=(*command, "--channel", channel), agent=agent, config={"request_timeout_ms": 20_000}
    )
    assert_own_tools(run(served, tmp_path, "own_tools"), "unseen")
