"""The shop's agent as a program. Its log is on the standard error output. It fails with status 3.

argument TEXT   the reply on the standard output; texts of $SESSION_ID are kept in the folder $SESSIONS
stdin           the same, the text on the standard input
json            {"messages": [{"role", "content"}]} → {"reply": "…", "tool_calls": [{name, args, result}]}
jsonl           a process a conversation, lines in and out: {"text": "…"} →
                {"type": "tool", name, args, result}…, {"type": "done", "text": "…"}
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import shop


def run(texts: list[str]) -> tuple[str, list[dict[str, Any]]]:
    calls: list[dict[str, Any]] = []
    while isinstance(step := shop.think_in_thread(texts, [call["result"] for call in calls]), shop.Call):
        calls.append({"name": step.name, "args": step.args, "result": shop.run_tool(step)})
    return step, calls


def as_text(text: str) -> None:
    path = Path(os.environ.get("SESSIONS", "."), f"{os.environ.get('SESSION_ID', 'session')}.json")
    texts = [*(json.loads(path.read_text()) if path.exists() else []), text.strip()]
    path.write_text(json.dumps(texts))
    print(run(texts)[0])


def as_json() -> None:
    messages = json.load(sys.stdin)["messages"]
    reply, calls = run([message["content"] for message in messages if message["role"] == "user"])
    print(json.dumps({"reply": reply, "tool_calls": calls}))


def as_lines() -> None:
    texts: list[str] = []
    for line in sys.stdin:
        texts.append(json.loads(line)["text"])
        reply, calls = run(texts)
        for call in calls:
            print(json.dumps({"type": "tool", **call}), flush=True)
        print(json.dumps({"type": "done", "text": reply}), flush=True)


def main(form: str, *words: str) -> None:
    print("the shop is open", file=sys.stderr)
    match form:
        case "argument":
            as_text(words[0])
        case "stdin":
            as_text(sys.stdin.read())
        case "json":
            as_json()
        case "jsonl":
            as_lines()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except RuntimeError as error:
        print(f"it went wrong: {error}", file=sys.stderr)
        sys.exit(3)
