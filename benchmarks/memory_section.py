"""How a run grows with its conversations: peak memory and CPU per call of long runs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.fakes import fakes
from benchmarks.options import Options
from benchmarks.page import machine, table
from benchmarks.process import Sample
from benchmarks.programs import Bench
from benchmarks.workload import Workload

_CONVERSATIONS, _PER_SCENARIO, _TURNS = 1000, 10, 8
_FEWER = 10
_CONCURRENCY = 100
_PATIENCE_S = 150
TARGET_MB = 500
_HEAD = ("", "at once", "calls", "wall s", "CPU s", "CPU ms per call", "peak MB", f"of {TARGET_MB} MB")


@dataclass(frozen=True, slots=True)
class Long:
    """One long run."""

    work: Workload
    concurrency: int
    sample: Sample

    def row(self) -> list[str]:
        sample, calls = self.sample, self.work.calls
        kind = "scripted" if self.work.scripted else "simulated and judged"
        return [
            f"{self.work.conversations:,} conversations × {self.work.turns} turns, {kind}",
            f"{self.concurrency:,}",
            f"{calls:,}",
            f"{sample.wall_s:.1f}",
            f"{sample.cpu_s:.1f}",
            f"{sample.cpu_s * 1000 / calls:.2f}",
            f"{sample.peak_mb:.0f}",
            f"{sample.peak_mb / TARGET_MB:.0%}",
        ]


def section(options: Options) -> str:
    """Measure, and tell it in Markdown. Each run once: they are long."""
    full = replace(
        options.work,
        scenarios=_CONVERSATIONS // _PER_SCENARIO,
        conversations_per_scenario=_PER_SCENARIO,
        turns=_TURNS,
        scripted=True,
    )
    fewer = replace(full, scenarios=full.scenarios // _FEWER)
    with fakes(full.agent_s, full.model_s) as servers:

        def run(work: Workload, concurrency: int) -> Long:
            return Long(work, concurrency, Bench(servers, work).agentest(concurrency))

        scripted = [run(fewer, _CONCURRENCY), run(full, _CONCURRENCY), run(full, _CONVERSATIONS)]
        judged = [run(replace(fewer, scripted=False), _CONCURRENCY)]
        expected_s = judged[0].sample.wall_s * _FEWER
        if expected_s <= _PATIENCE_S:
            judged.append(run(replace(full, scripted=False), _CONCURRENCY))
    notes = [_growth(scripted[0], scripted[1])]
    if len(judged) > 1:
        notes.append(_growth(*judged))
    else:
        notes.append(f"All {_CONVERSATIONS:,} judged conversations were left out: about {expected_s:.0f} s.")
    rows = [found.row() for found in (*scripted, *judged)]
    return "\n\n".join(["One run each.", table(_HEAD, rows), " ".join(notes), machine()])


def _growth(small: Long, large: Long) -> str:
    conversations = large.work.conversations - small.work.conversations
    each_kb = (large.sample.peak_mb - small.sample.peak_mb) * 1000 / conversations
    kind = "scripted" if large.work.scripted else "judged"
    return f"One more {kind} conversation takes {each_kb:.0f} KB."
