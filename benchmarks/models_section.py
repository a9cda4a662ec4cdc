"""What models cost: CPU per call by each path, what a turn's prompts share, calls per conversation."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from statistics import median
from typing import Any

from agentest.llm.port import ChatRequest
from agentest.scenarios import Scenario, collecting, scenario
from agentest.testing import ScriptedAgent, ScriptedModel, run_scenarios, tool_call
from benchmarks.answers import REPLY
from benchmarks.asking import PATHS
from benchmarks.fakes import REPOSITORY, fakes
from benchmarks.options import Options
from benchmarks.page import machine, ratio, table
from benchmarks.process import Failed, environment
from benchmarks.workload import GOAL, KNOWLEDGE, LINE, PROFILE, TOOL

_CALLS = 400
_IN_FLIGHT = (1, 20)


def section(options: Options) -> str:
    """Measure, and tell it in Markdown."""
    turns = options.work.turns
    alone, batched = (_conversation(turns, batch=batch) for batch in (False, True))
    sent = [_sent("each metric by itself", alone), _sent("`judge: {batch: true}`", batched)]
    return "\n\n".join(
        [
            f"Medians of {options.runs} interleaved runs of {_CALLS} calls, from the question to a validated "
            "answer; the fake model answers at once.",
            table(("", "in flight", "CPU ms per model call", "of direct"), _cpu_rows(options.runs)),
            f"One conversation of {turns} turns with a tool call in each:",
            table(("", "model calls", "characters sent"), sent),
            "The beginning that the prompts of a turn's judges have in common, and its share of a prompt:",
            table(
                ("turn", "judges", "characters shared", "of a prompt"),
                [_shared(turn, alone) for turn in range(turns)],
            ),
            machine(),
        ]
    )


def _cpu_rows(runs: int) -> list[list[str]]:
    cases = [(path, in_flight) for in_flight in _IN_FLIGHT for path in PATHS]
    found: dict[tuple[str, int], list[float]] = {case: [] for case in cases}
    with fakes(0.0, 0.0) as servers:
        for number in range(runs):
            for case in cases if number % 2 == 0 else reversed(cases):
                found[case].append(_cpu_ms(*case, servers.model_port))
    cpu = {case: median(times) for case, times in found.items()}
    return [
        [path, str(in_flight), f"{ms:.2f}", ratio(ms, cpu["direct", in_flight])]
        for (path, in_flight), ms in cpu.items()
    ]


def _cpu_ms(path: str, in_flight: int, port: int) -> float:
    command = [sys.executable, "-m", "benchmarks.asking", f"--path={path}", f"--port={port}"]
    command += [f"--calls={_CALLS}", f"--in-flight={in_flight}"]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment(), capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"{' '.join(command[1:])} ended with {done.returncode}:\n{done.stderr}")
    found: float = json.loads(done.stdout.splitlines()[-1])
    return found


def _conversation(turns: int, *, batch: bool) -> list[ChatRequest]:
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
        raise Failed(f"the conversation did not pass: {result.scenarios[0].verdict}")
    return model.requests


def _scenario() -> Scenario:
    with collecting():
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
        if "enum" in schema:
            return "no failure" if "no failure" in schema["enum"] else max(schema["enum"])
        return False if schema["type"] == "boolean" else LINE

    answer: dict[str, Any] = best(request.schema)
    return answer


def _sent(name: str, requests: Sequence[ChatRequest]) -> list[str]:
    return [name, str(len(requests)), f"{sum(map(len, map(_prompt, requests))):,}"]


def _shared(turn: int, requests: Sequence[ChatRequest]) -> list[str]:
    prompts = [_prompt(r) for r in requests if r.key.role == "judge" and r.key.turn == turn]
    shared = next(at for at, found in enumerate(zip(*prompts, strict=False)) if len(set(found)) > 1)
    mean = sum(map(len, prompts)) / len(prompts)
    return [str(turn), str(len(prompts)), f"{shared:,}", f"{shared / mean:.0%}"]


def _prompt(request: ChatRequest) -> str:
    return "\0".join(message["content"] for message in request.messages)
