"""How many workers a run has, and the share of every limit that each gets."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from agentest.llm.providers import ModelSpec
from agentest.run.prepare import Prepared

AUTO = "auto"


_CGROUP_CPU = Path("/sys/fs/cgroup/cpu.max")


def worker_count(prepared: Prepared, wanted: int | str) -> int:
    """How many workers to start: no more than there are conversations and places for them."""
    count = cores() if wanted == AUTO else int(wanted)
    left = sum(unit.conversations - len(unit.kept.conversations) for unit in prepared.plan.left)
    return max(1, min(count, left, prepared.concurrency))


def cores(quota: Path = _CGROUP_CPU) -> int:
    """How many cores this process may use, by its affinity and its container's quota."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        allowed, period = quota.read_text().split()
        return max(1, min(count, int(allowed) // int(period)))
    except (OSError, ValueError):  # no such file, or `max`
        return count


@dataclass(frozen=True, slots=True)
class Share:
    """One worker's share of every limit."""

    index: int
    count: int

    def of(self, whole: int) -> int:
        return whole // self.count + (self.index < whole % self.count)

    def of_limit(self, whole: int | None) -> int | None:
        return None if whole is None else self.of(whole)


def part_of(prepared: Prepared, share: Share) -> Prepared:
    """The prepared run with one worker's share of every limit."""
    options = replace(prepared.request.options, concurrency=share.of(prepared.concurrency))
    return replace(
        prepared,
        request=replace(prepared.request, options=options),
        user=_model_part(prepared.user, share),
        judge=_model_part(prepared.judge, share),
        named={wish: _part(spec, share) for wish, spec in prepared.named.items()},
    )


def _model_part(spec: ModelSpec | None, share: Share) -> ModelSpec | None:
    return spec and _part(spec, share)


def _part(spec: ModelSpec, share: Share) -> ModelSpec:
    return replace(
        spec,
        max_concurrency=share.of_limit(spec.max_concurrency),
        requests_per_minute=share.of_limit(spec.requests_per_minute),
        tokens_per_minute=share.of_limit(spec.tokens_per_minute),
    )
