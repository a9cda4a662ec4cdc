"""How much more an exploration sees than the same changes in random order, at equal cost."""

from __future__ import annotations

from statistics import mean

from benchmarks.process import printed_json
from benchmarks.results import Found, Target, table
from benchmarks.workload import Options

_CONVERSATIONS = 100
_SEEDS = 3
_TEXT = (
    f"Different elements of signatures after {_CONVERSATIONS} conversations of an exploration, and after "
    f"tries in random order of equal cost in messages and calls; {_SEEDS} seeds. No network."
)


def section(_: Options) -> Found:
    """Measure, and return the table."""
    measured: dict[str, list[list[int]]] = printed_json(
        "benchmarks.exploration_growth", f"--conversations={_CONVERSATIONS}", f"--seeds={_SEEDS}"
    )
    rows = [
        [agent, str(seed), str(seen), str(by_chance), f"{seen / by_chance:.2f} ×"]
        for agent, pairs in measured.items()
        for seed, (seen, by_chance) in enumerate(pairs)
    ]
    ratios = [seen / by_chance for pairs in measured.values() for seen, by_chance in pairs]
    target = Target(
        "corpus growth of an exploration, of random order at equal cost", mean(ratios), 1.5, "×", True
    )
    head = ("agent", "seed", "exploration", "random order", "ratio")
    return Found(f"{_TEXT}\n\n{table(head, rows, 2)}", (target,))
