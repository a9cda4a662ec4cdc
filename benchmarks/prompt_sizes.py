"""What one conversation asks of models: `python -m benchmarks.prompt_sizes --turns 4`, printed as JSON.

In a process of its own, as it imports Agentest.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from agentest.models.port import ChatRequest
from agentest.scenarios.definition import collect_scenarios, scenario
from agentest.scenarios.model import Scenario
from agentest.testing import ScriptedAgent, ScriptedModel, run_scenarios, tool_call
from benchmarks.answers import REPLY
from benchmarks.workload import GOAL, KNOWLEDGE, LINE, PROFILE, TOOL


def _conversation(turns: int, batch: str) -> list[ChatRequest]:
    """The requests to models that one conversation makes."""

    def reply(body: dict[str, Any]) -> Any:
        last = body["messages"][-1]["role"]
        return REPLY if last == "tool" else tool_call(TOOL, service="haircut", date="next Tuesday")

    model = ScriptedModel(answer=_answer)
    with ScriptedAgent(reply) as agent:
        result = run_scenarios(
            [_scenario()],
            agent=agent,
            model=model,
            max_turns=turns,
            conversations_per_scenario=1,
            judge={"batch": batch},
        )
    if not result.scenarios[0].verdict.passed:
        raise ValueError(f"the conversation did not pass: {result.scenarios[0].verdict}")
    return model.requests


def _scenario() -> Scenario:
    with collect_scenarios():
        return scenario(
            "books a morning slot",
            profile=PROFILE,
            goal=GOAL,
            knowledge=list(KNOWLEDGE),
            tools={TOOL: {"slots": ["09:00", "10:30"]}},
        )


def _answer(request: ChatRequest) -> dict[str, Any]:
    """The best answer of the form that is asked for."""
    defs = request.schema.get("$defs", {})

    def best(schema: Any) -> Any:
        if "$ref" in schema:
            schema = defs[schema["$ref"].rpartition("/")[2]]
        if "properties" in schema:
            return {name: best(inner) for name, inner in schema["properties"].items()}
        if "enum" in schema:  # the best stands last
            return "no failure" if "no failure" in schema["enum"] else schema["enum"][-1]
        if "const" in schema:
            return schema["const"]
        if alternatives := schema.get("anyOf") or schema.get("oneOf"):
            return best(alternatives[0])
        if schema["type"] == "array":
            return []
        return False if schema["type"] == "boolean" else LINE

    answer: dict[str, Any] = best(request.schema)
    return answer


def _sent(requests: Sequence[ChatRequest]) -> dict[str, int]:
    return {"calls": len(requests), "characters": sum(map(len, map(_prompt, requests)))}


def _shared(turn: int, requests: Sequence[ChatRequest]) -> dict[str, float]:
    prompts = [_prompt(r) for r in requests if r.key.role == "judge" and r.key.turn == turn]
    shared = next(at for at, found in enumerate(zip(*prompts, strict=False)) if len(set(found)) > 1)
    mean = sum(map(len, prompts)) / len(prompts)
    return {"judges": len(prompts), "characters": shared, "share": shared / mean}


def _prompt(request: ChatRequest) -> str:
    return "\0".join(message["content"] for message in request.messages)


def main() -> None:
    """Entry point of the process that asks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, required=True)
    turns = parser.parse_args().turns
    sent = {batch: _conversation(turns, batch) for batch in ("off", "turn", "conversation")}
    shared = [_shared(turn, sent["off"]) for turn in range(turns)]
    print(json.dumps({**{batch: _sent(requests) for batch, requests in sent.items()}, "shared": shared}))


if __name__ == "__main__":
    main()
