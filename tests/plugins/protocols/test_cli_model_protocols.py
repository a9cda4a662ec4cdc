"""The documented configurations of Responses and Messages on the command line, unchanged."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from project import Project

PAGES = Path(__file__).parents[3] / "docs" / "agents"
APP = """
import json

def pairs(body):
    arguments = json.dumps({"item": "lamp"})
    call = {"type": "function_call", "call_id": "c", "name": "reserve_item", "arguments": arguments}
    output = {"type": "function_call_output", "call_id": "c", "output": "ok"}
    return [call, output, {"type": "message", "content": "Reserved."}]

def responses(body):
    said = body["input"][-1]
    if not body.get("tools"):
        return {"status": "completed", "output": pairs(body)}
    if said.get("type") == "function_call_output":
        return {"output": [{"type": "message", "content": "Free: " + said["output"]}]}
    call = {"type": "function_call", "call_id": "c", "name": body["tools"][0]["name"], "arguments": "{}"}
    return {"output": [call]}

def messages(body):
    said = body["messages"][-1]["content"]
    if not isinstance(said, str):
        return {"content": [{"type": "text", "text": "Free: " + said[0]["content"]}]}
    name = body["tools"][0]["name"]
    return {"content": [{"type": "tool_use", "id": "t", "name": name, "input": {}}]}

ANSWERS = {"/v1/responses": responses, "/v1/messages": messages}

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        return
    body = json.loads((await receive())["body"])
    answer = json.dumps(ANSWERS[scope["path"]](body)).encode()
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})
"""
MOCKED = """
scenario(
    "free",
    turns=[{"user_message": "Is there a place?", "expect": {"contains": "Free: 9:00"}}],
    tools={"check_availability": lambda: "9:00"},
    trajectory={"expected": ["check_availability"], "match_mode": "strict"},
)
"""
BANNED = """
scenario("ban", turns=["Only look."], trajectory={"expected": [], "forbidden": ["reserve_item"]})
"""


@pytest.mark.parametrize(
    ("page", "block", "sim", "status", "seen_by"),
    [
        ("openai-responses.md", 0, BANNED, 1, "agent"),
        ("openai-responses.md", 1, MOCKED, 0, "caller"),
        ("anthropic-messages.md", 0, MOCKED, 0, "caller"),
    ],
    ids=["responses-pairs", "responses-mocked", "messages"],
)
def test_the_pages_configurations(
    page: str, block: int, sim: str, status: int, seen_by: str, tmp_path: Path
) -> None:
    """They work unchanged, with workers and next to another agent; a banned call is detected."""
    text = (PAGES / page).read_text(encoding="utf-8")
    yaml = re.findall(r"^```yaml\n(.*?)^```$", text, re.M | re.S)[block]
    project = Project(tmp_path)
    project.write("shop.py", APP)
    project.scenario(sim)
    here = re.sub(r"endpoint: \S+", "app: shop:app", yaml)
    project.write(
        "agentest.config.yaml", f"{here}compare: [{{name: other, retries: 0}}]\nreporters: [json]\n"
    )
    done = project.run("--workers", "2")
    assert done.returncode == status, done.stdout + done.stderr
    results = json.loads((tmp_path / ".agentest" / "results.json").read_text())
    assert [agent["toolCalls"] for agent in results["agents"].values()] == ["returned", "returned"]
    for each in results["scenarios"][0]["agents"]:
        (conversation,) = each["conversations"]
        ((call,),) = [turn["toolCalls"] for turn in conversation["turns"]]
        assert (call["seenBy"], call["mocked"]) == (seen_by, seen_by == "caller")
        assert not conversation.get("error")
