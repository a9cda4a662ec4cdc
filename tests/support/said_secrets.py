"""Secrets in messages of an agent, a tool and a judge, and a search for them in all output."""

from __future__ import annotations

import base64
import html
import json
import subprocess
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, quote_plus

from model_server import Answer, ModelServer, Received, best, error
from project import Project

from agentest.testing import Raw, ScriptedAgent, tool_call

SECRETS = {
    "BOT_TOKEN": "zq-bot-token-01",
    "CHAT_API_KEY": "sk-zq02abcdefgh",
    "MOCK_PASSWORD": 'zq03 p@ss/"wörd"+x',
    "NESTED_SECRET": "zq04&nested=value/1",
    "NAME_TOKEN": "Zq05NameOfAScenario",
    "JUDGE_API_KEY": "zq06-judge-key-of-the-model",
    "COOKIE_SECRET": "zq07cookieworth",
    "STATE_TOKEN": "zq08.state.token",
    "NUMBER_TOKEN": "910911912913",
    "BASIC_PASSWORD": "zq10-basic-pass",
    "REASON_SECRET": "zq11\\back\\slash",
    "CHUNK_TOKEN": "zq12-split-over-chunks",
}
BASIC = base64.b64encode(f"bot:{SECRETS['BASIC_PASSWORD']}".encode()).decode()
SPELLINGS = {
    spelt
    for secret in (*SECRETS.values(), BASIC)
    for spelt in (
        secret,
        quote(secret),
        quote(secret, safe=""),
        quote_plus(secret),
        json.dumps(secret)[1:-1],
        json.dumps(json.dumps(secret)[1:-1])[1:-1],
        html.escape(secret),
    )
}
INPUTS = ("agentest.config.yaml", ".env", ".sim.py", "agent.py")
HEADERS = {
    "authorization": "Bearer ${BOT_TOKEN}",
    "x-api-key": "${CHAT_API_KEY}",
    "cookie": "session=${COOKIE_SECRET}; theme=dark",
    "x-basic-auth": f"Basic {BASIC}",
}

SCENARIOS = r"""
import os
from dataclasses import dataclass

ENDS = ("TOKEN", "KEY", "SECRET", "PASSWORD")
SECRETS = {name: os.environ[name] for name in os.environ if name.endswith(ENDS)}

@dataclass
class Account:
    password: str

def echo(args):
    return {"env": dict(os.environ), "list": [SECRETS], "number": int(os.environ["NUMBER_TOKEN"])}

def nested(args):
    secret = os.environ["NESTED_SECRET"]
    return {"deep": [{secret: {"x" + secret: [secret, {"key": (secret, Account(secret))}]}}]}

def fails(args):
    raise RuntimeError("no " + os.environ["MOCK_PASSWORD"])

class Own:
    def __str__(self):
        return "own " + os.environ["STATE_TOKEN"]

TOOLS = {"echo": echo, "nested": nested, "fails": fails, "b_zq": 1}
scenario("named " + os.environ["NAME_TOKEN"], turns=["spell"], tags=["tag-" + os.environ["NAME_TOKEN"]])
scenario("spell", turns=[{"user_message": "spell", "expect": {"contains": "never said", "json_schema": {}}}])
scenario("headers", turns=["headers " + os.environ["BOT_TOKEN"]], goal="g")
scenario("echo", turns=["echo"], tools=TOOLS, trajectory={"match_mode": "strict", "expected": []})
scenario("nested", turns=["nested"], tools=TOOLS, trajectory={"expected": [call("nested", x="1")]})
scenario("fails", turns=["fails"], tools=TOOLS)
scenario("args", turns=["args"], tools=TOOLS, trajectory={"forbidden": ["echo"]})
scenario("unknown", turns=["unknown"], tools=TOOLS)
scenario("random", turns=["random"])
scenario("binary", turns=["binary"])
scenario("cut", turns=[{"user_message": "cut", "expect": {"contains": "never said"}}])
scenario("stream", turns=["stream"])
changes = {"echo": lambda args, ctx: ctx.state.update(a=os.environ["STATE_TOKEN"])}
scenario("state", turns=["echo"], tools=changes, final_state={"a": "other"})
scenario("talks", profile="p", goal="say " + os.environ["STATE_TOKEN"], knowledge=[os.environ["BOT_TOKEN"]])
"""


def sse(*pieces: str) -> Raw:
    chunks = [{"choices": [{"index": 0, "delta": {"content": piece}}]} for piece in pieces]
    ends = [{"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}]
    text = "".join(f"data: {json.dumps(each)}\n\n" for each in [*chunks, *ends])
    return Raw(f"{text}data: [DONE]\n\n".encode(), content_type="text/event-stream")


def answer(body: Mapping[str, Any]) -> Any:
    last = body["messages"][-1]
    said = str(last["content"])
    every = "\n".join(sorted(SPELLINGS))
    if last["role"] == "tool":
        return f"the tool said {said}"
    if said == "args":
        return tool_call("echo", **SECRETS, nested={value: [value] for value in SECRETS.values()})
    if said == "unknown":
        return tool_call(f"tool_{SECRETS['BOT_TOKEN']}", a=1)
    if said in ("echo", "nested", "fails"):
        return tool_call(said, secret=SECRETS["CHAT_API_KEY"])
    if said == "random":
        return Raw(bytes(range(256)) * 50 + every.encode())
    if said == "binary":
        return "".join(map(chr, range(1, 256))) + "\0\ud800" + SECRETS["BOT_TOKEN"] + "\0" * 50
    if said == "cut":
        return "x" * 190 + SECRETS["CHUNK_TOKEN"] + "y" * 300
    if said == "stream":
        return sse(*f"the token is {SECRETS['CHUNK_TOKEN']}.") if body.get("stream") else every
    return every


def judge(received: Received) -> Answer:
    text = json.dumps(received.body["messages"])
    if "helpfulness" in text and "fails" in text:
        return error(400, f"wrong key {received.headers['authorization']}")
    good = best(received)
    reason = json.dumps(f"It says {SECRETS['REASON_SECRET']} and {SECRETS['JUDGE_API_KEY']}")[1:-1]
    body = json.loads(good.body)
    message = body["choices"][0]["message"]
    message["content"] = message["content"].replace('"good"', f'"{reason}"')
    return Answer(json.dumps(body).encode())


def configured(project: Project, agent: ScriptedAgent, model: ModelServer, **keys: Any) -> None:
    options = {"base_url": model.base_url, "api_key": "${JUDGE_API_KEY}"}
    project.config(
        agent.endpoint.replace("://", "://bot:${BASIC_PASSWORD}@"),
        agent={"endpoint": agent.endpoint, "headers": HEADERS, "streaming": keys.pop("streaming", False)},
        provider="openai-compatible",
        model="m",
        provider_options=options,
        reporters=["console", "json", "junit", "github-actions", *keys.pop("reporters", ())],
        conversations_per_scenario=1,
        **keys,
    )


def environment(project: Project) -> dict[str, str]:
    return {**SECRETS, "GITHUB_STEP_SUMMARY": str(project.root / "summary.md")}


def everything(project: Project, *done: subprocess.CompletedProcess[str]) -> str:
    """All printed and written text."""
    files = [p for p in project.root.rglob("*") if p.is_file() and not p.name.endswith(INPUTS)]
    return "\n".join([d.stdout + d.stderr for d in done] + [p.read_text(errors="replace") for p in files])


def found_in(text: str) -> list[str]:
    return sorted(secret for secret in SPELLINGS if secret in text)
