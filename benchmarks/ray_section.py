"""The three engines beside each other, and a Ray cluster of several nodes on this machine."""

from __future__ import annotations

from pathlib import Path

from benchmarks.cluster import Cluster, cluster
from benchmarks.ray_costs import ECHO, counted, overhead, start, throughput
from benchmarks.ray_limits import NODES, limits
from benchmarks.results import Found, Target, machine, ratio, table
from benchmarks.worker_runs import COMPUTING, TALKING, Engine, Ran, on_cluster, spread_run, workers
from benchmarks.workload import Options

_FEW, _MANY = 10_000, 100_000
_SCENARIOS = 1_000
_MOST_MB = 500
_AT_LOSS = 400
_LONG_HEAD = ("", "s", "conversations a second", "driver's peak MB", "journal MB")
_LOST_HEAD = ("", "s", "of none", "conversations that count", "lost or twice")


def section(options: Options) -> Found:
    """Measure, and tell it. A node is killed at the end."""
    with cluster(NODES) as running:
        address = running.address
        speed, speed_targets = throughput(address, options.runs)
        cost = overhead(address)
        begin = start(address, options.runs)
        long, long_targets = _long(address)
        limited, limit_target = limits(address)
        lost, lost_target = _lost(running)
    text = "\n\n".join([speed, cost, begin, long, limited, lost, machine()])
    return Found(text, (*speed_targets, *long_targets, limit_target, lost_target))


def _long(address: str) -> tuple[str, list[Target]]:
    """Very many conversations, as one scenario and as many; one run each, of workers that only answer."""
    engines = {"worker processes": workers(2), "Ray": on_cluster(address, 2)}
    rows, targets, grown = [], [], []
    for name, engine in engines.items():
        few, many = (counted(engine, TALKING, ECHO, count).ran for count in (_FEW, _MANY))
        grown.append((many.watched.driver_peak_mb - few.watched.driver_peak_mb) * 1000 / (_MANY - _FEW))
        rows += [_long_row(engine, _FEW, 1, few), _long_row(engine, _MANY, 1, many)]
        targets.append(_long_target(name, 1, many))
        if name == "Ray":
            divided = counted(engine, TALKING, ECHO, _MANY, scenarios=_SCENARIOS).ran
            rows.append(_long_row(engine, _MANY, _SCENARIOS, divided))
            targets.append(_long_target(name, _SCENARIOS, divided))
    kb = " and ".join(f"{each:.1f}" for each in grown)
    about = (
        f"**{_MANY:,} conversations**: {TALKING.title}; *echoes* as above, as the driver's memory is what "
        f"is looked at; one run each. It keeps a part of each conversation until its scenario ends: {kb} KB."
    )
    return "\n\n".join([about, table(_LONG_HEAD, rows)]), targets


def _long_target(name: str, scenarios: int, ran: Ran) -> Target:
    shape = "one scenario" if scenarios == 1 else f"{scenarios:,} scenarios"
    claim = f"{name}: driver's peak, {_MANY:,} conversations of {shape}"
    return Target(claim, ran.watched.driver_peak_mb, _MOST_MB, "MB")


def _long_row(engine: Engine, conversations: int, scenarios: int, ran: Ran) -> list[str]:
    return [
        f"{engine.title}, {scenarios:,} × {conversations // scenarios:,}",
        f"{ran.duration_s:.0f}",
        f"{conversations / ran.duration_s:,.0f}",
        f"{ran.watched.driver_peak_mb:.0f}",
        f"{ran.journal_mb:.0f}",
    ]


class _Killing:
    """Kills a node when a part of a run's conversations is in its journal."""

    def __init__(self, running: Cluster, after: int) -> None:
        self._running = running
        self._after = after
        self.killed = False

    def __call__(self, _: float, folder: Path) -> None:
        if not self.killed and _lines(folder / ".agentest" / "journal.jsonl") > self._after:
            self.killed = True
            self._running.remove_node()


def _lost(running: Cluster) -> tuple[str, Target]:
    """A run in the middle of which a node is killed, beside one without. Each conversation counts once, or
    the run fails here."""
    engine = on_cluster(running.address, NODES)
    kill = _Killing(running, _AT_LOSS // 3)
    none, one = (spread_run(engine, COMPUTING, _AT_LOSS, while_running=each) for each in (_nothing, kill))
    if not kill.killed:
        raise ValueError("the run ended before a node could be killed")
    rows = [_lost_row("no node killed", none, none), _lost_row(f"one of {NODES} killed", one, none)]
    about = (
        f"**A node killed in the middle**: {_AT_LOSS} conversations, {COMPUTING.title}, {NODES} workers on "
        f"{NODES} nodes; one with its worker is killed when a third is done, and does not come back. A run "
        "counts here only if the journal has each conversation once, and all passed."
    )
    claim = "a node killed in the middle: conversations lost or counted twice"
    lost = abs(_AT_LOSS - one.found["passRate"]["n"])
    return "\n\n".join([about, table(_LOST_HEAD, rows)]), Target(claim, lost, 0, "")


def _lost_row(title: str, ran: Ran, none: Ran) -> list[str]:
    counted = ran.found["passRate"]["n"]
    slower = ratio(ran.duration_s, none.duration_s)
    return [title, f"{ran.duration_s:.1f}", slower, str(counted), str(abs(_AT_LOSS - counted))]


def _nothing(_: float, __: Path) -> None:
    """No node is killed."""


def _lines(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.exists() else 0
