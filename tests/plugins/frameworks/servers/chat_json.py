"""The shop's agent as a program: {"messages"} in, {"reply", "tool_calls": [{name, args, result}]} out."""

from __future__ import annotations

import json
import sys
from typing import Any

import shop

texts = [message["content"] for message in json.load(sys.stdin)["messages"] if message["role"] == "user"]
calls: list[dict[str, Any]] = []
while isinstance(step := shop.think_in_thread(texts, [call["result"] for call in calls]), shop.Call):
    calls.append({"name": step.name, "args": step.args, "result": shop.run_tool(step)})
print(json.dumps({"reply": step, "tool_calls": calls}))
