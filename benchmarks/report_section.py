"""report.html of 10,000 conversations: how long it takes to write, and until its first rows are painted."""

from __future__ import annotations

import importlib.util
import random
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from agentest.domain.end_reason import Ending
from agentest.domain.events import RunFinished
from agentest.domain.figures import totals_of, with_figures
from agentest.domain.results import (
    ConversationResult,
    Deduplication,
    RunResult,
    ScenarioResult,
    Score,
    Severity,
    TrajectoryResult,
    TurnEvaluation,
)
from agentest.domain.tool_visibility import ToolVisibility
from agentest.domain.transcript import Conversation, Turn
from agentest.domain.verdict import averages, decide
from agentest.plugins.page.report import HtmlReporter
from benchmarks.process import Failed
from benchmarks.results import Found, Target, machine, table
from benchmarks.workload import Options

_SHAPES = {"10,000 scenarios × 1": (10_000, 1), "40 × 250": (40, 250), "1 × 10,000": (1, 10_000)}
_TURNS, _WORDS, _FAILING = 3, 40, 7
_MOST_S = 1.0
_HEAD = ("", "written, s CPU", "file, MB", "without transcript", "first rows painted, ms", "all there, ms")
_PAINTED = """new Promise((found) => {
  const look = () => document.querySelector("main tbody tr")
    ? requestAnimationFrame(() => requestAnimationFrame(() => found(performance.now())))
    : setTimeout(look, 1);
  look();
})"""
_ALL_THERE = "performance.getEntriesByType('navigation')[0].domInteractive"


def section(options: Options) -> Found:
    """Measure, and tell it."""
    with tempfile.TemporaryDirectory(prefix="agentest-bench-") as made:
        files = {name: _write(Path(made) / f"{n}.html", *_SHAPES[name]) for n, name in enumerate(_SHAPES)}
        shown = _shown({name: file.path for name, file in files.items()}, options.runs)
    rows = [[name, *file.cells(), *(f"{ms:.0f}" for ms in shown[name])] for name, file in files.items()]
    slowest_s = max(painted for painted, _ in shown.values()) / 1000
    targets = (Target("first rows of 10,000 conversations painted", slowest_s, _MOST_S, "s"),)
    text = f"Medians of {options.runs} openings from the disk, in Chromium."
    return Found("\n\n".join([text, table(_HEAD, rows), machine()]), targets)


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    cpu_s: float
    megabytes: float
    left_out: str

    def cells(self) -> list[str]:
        return [f"{self.cpu_s:.1f}", f"{self.megabytes:.1f}", self.left_out]


def _write(path: Path, scenarios: int, each: int) -> _File:
    said: list[str] = []
    result = _run(scenarios, each)
    began = time.process_time()
    HtmlReporter(path, run_id="20260102-030405-678-abcd", tell=said.append).on_event(RunFinished(result))
    spent = time.process_time() - began
    left_out = said[0].partition("transcripts of ")[2].partition(" of ")[0] if said else "0"
    return _File(path, spent, path.stat().st_size / 1e6, left_out)


def _shown(files: Mapping[str, Path], runs: int) -> dict[str, tuple[float, float]]:
    """Name → milliseconds until the first rows were painted, and until the file was parsed. Raises Failed."""
    chromium = shutil.which("chromium")
    if not (chromium and importlib.util.find_spec("playwright")):
        raise Failed("the section of the page needs Chromium and Playwright")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        taken = {name: [_open(browser, path) for _ in range(runs)] for name, path in files.items()}
        browser.close()
    return {
        name: (median(rows for rows, _ in each), median(parsed for _, parsed in each))
        for name, each in taken.items()
    }


def _open(browser: Any, path: Path) -> tuple[float, float]:
    """One opening, by the page's own clock."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, bypass_csp=True)
    page = context.new_page()
    page.goto(path.as_uri(), wait_until="commit")
    painted = page.evaluate(_PAINTED)
    page.wait_for_load_state("load")
    parsed = page.evaluate(_ALL_THERE)
    context.close()
    return painted, parsed


def _run(scenarios: int, each: int) -> RunResult:
    rng = random.Random(16)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(3_000)]
    return RunResult(
        scenarios=tuple(_scenario(number, each, rng, words) for number in range(scenarios)),
        agents=("booking",),
        comparison=False,
        started_at="2026-01-02T03:04:05Z",
        duration_ms=60_000.0,
        version="0",
        visibilities={"booking": ToolVisibility.RETURNED},
    )


def _scenario(number: int, each: int, rng: random.Random, words: list[str]) -> ScenarioResult:
    held = [_conversation(f"{number}-{n}", (number + n) % _FAILING == 0, rng, words) for n in range(each)]
    result = ScenarioResult(
        f"customer {number} asks for a table by the window",
        "booking",
        f"scenarios/area_{number % 40}.sim.py",
        number + 1,
        decide(held, Deduplication(()), {}, Severity.CRITICAL),
        conversations=held,
        averages=averages(held),
        totals=totals_of(held),
        tags=("booking", f"area {number % 40}"),
        planned=each,
    )
    return with_figures(result, held)


def _conversation(id: str, fails: bool, rng: random.Random, words: list[str]) -> ConversationResult:
    def text() -> str:
        return " ".join(rng.choices(words, k=_WORDS))

    turns = tuple(Turn(index, text(), text(), latency_ms=120.5) for index in range(_TURNS))
    return ConversationResult(
        Conversation(id, turns, Ending.SATISFIED),
        tuple(TurnEvaluation(turn.turn_index, dict(_scores(rng, text))) for turn in turns),
        trajectory=TrajectoryResult(matched=not fails, summary=text() if fails else "as expected"),
    )


def _scores(rng: random.Random, text: Any) -> Iterator[tuple[str, Score]]:
    return ((name, Score(rng.randint(1, 5), text())) for name in ("helpfulness", "coherence", "relevance"))
