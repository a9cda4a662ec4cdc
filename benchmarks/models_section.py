"""What models cost: CPU per call by each path, what a turn's prompts share, calls per conversation."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from benchmarks.fakes import fakes
from benchmarks.process import printed_json
from benchmarks.results import Found, machine, ratio, table
from benchmarks.workload import Options

_PATHS = ("direct", "litellm")
_CALLS = 400
_IN_FLIGHT = (1, 20)


def section(options: Options) -> Found:
    """Measure, and tell it."""
    turns = options.work.turns
    told = printed_json("benchmarks.prompt_sizes", f"--turns={turns}")
    sent = [
        _sent("each metric by itself", told["off"]),
        _sent("`judge: {batch: turn}`", told["turn"]),
        _sent("`judge: {batch: conversation}`", told["conversation"]),
    ]
    parts = [
        f"Medians of {options.runs} interleaved runs of {_CALLS} calls, from the question to a validated "
        "answer; the fake model answers at once.",
        table(("", "in flight", "CPU ms per model call", "of direct"), _cpu_rows(options.runs)),
        f"One conversation of {turns} turns with a tool call in each:",
        table(("", "model calls", "characters sent"), sent),
        "The beginning that the prompts of a turn's judges have in common, and its share of a prompt:",
        table(
            ("turn", "judges", "characters shared", "of a prompt"),
            [_shared(turn, shared) for turn, shared in enumerate(told["shared"])],
        ),
        machine(),
    ]
    return Found("\n\n".join(parts))


def _cpu_rows(runs: int) -> list[list[str]]:
    cases = [(path, in_flight) for in_flight in _IN_FLIGHT for path in _PATHS]
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
    size = f"--calls={_CALLS}", f"--in-flight={in_flight}"
    return float(printed_json("benchmarks.model_client", f"--path={path}", f"--port={port}", *size))


def _sent(name: str, told: Mapping[str, int]) -> list[str]:
    return [name, str(told["calls"]), f"{told['characters']:,}"]


def _shared(turn: int, told: Mapping[str, Any]) -> list[str]:
    return [str(turn), str(told["judges"]), f"{told['characters']:,}", f"{told['share']:.0%}"]
