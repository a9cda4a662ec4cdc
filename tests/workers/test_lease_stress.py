"""Leases of several workers at few places, with kills, cancelled calls and failures, on a fake clock."""

from __future__ import annotations

from random import Random

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import TaskGroup
from fake_time import run
from hypothesis import given, settings
from hypothesis import strategies as st
from lease_lab import DELAY_S, Model, Said, Worker

from agentest.models.admission import LocalGates, ModelGate
from agentest.models.caller import LiveModel, RetryPolicy
from agentest.models.limits import Quota
from agentest.models.port import CallKey, Ledger, Question, TransientError
from agentest.models.providers import ModelSpec
from agentest.support.errors import ModelError
from agentest.workers.leases import LeaseCoordinator

_LATEST_S = 7200.0
"""Every call has ended by then. Otherwise it hangs."""
_FAULTS: tuple[ModelError | None, ...] = (
    None,
    TransientError("429: too many requests", throttled=True),
    TransientError("429: too many requests", 2.0, throttled=True),
    TransientError("429: too many requests", 90.0, throttled=True),
    TransientError("503: overloaded", overloaded=True),
    TransientError("no connection"),
    ModelError("400: filtered"),
)


class Stress:
    """Workers and the run's own process, which call two roles of a model that share its places."""

    def __init__(self, random: Random, places: int, workers: int, fault: ModelError | None) -> None:
        self.random = random
        self.fault = fault
        self.share = random.choice([0.01, 0.1, 0.6])
        self.number_of_workers = workers
        self.model = Model(
            lasts=self.lasts, fault=lambda at: self.fault if random.random() < self.share else None
        )
        self.specs = [
            ModelSpec(
                "m", "m", "https://m.example", max_concurrency=places, timeout_s=30, deadline_s=deadline_s
            )
            for deadline_s in (300.0, 60.0)
        ]
        self.kept = 0  # the most leases that workers kept at once
        self.living: dict[Worker, anyio.CancelScope] = {}

    def lasts(self) -> float:
        return self.random.choice([0.001, 0.05, 1.0, 40.0 if self.random.random() < 0.02 else 0.2])

    async def ask(self, gate: ModelGate, spec: ModelSpec) -> None:
        patience = RetryPolicy(spec.timeout_s, spec.deadline_s, spec.retries)
        key, question = CallKey("user", "s", self.random.randrange(9)), [{"role": "user", "content": "?"}]
        with anyio.move_on_after(self.random.choice([0.01, 0.5, 3.0, 1e6, 1e6, 1e6])):
            try:
                await LiveModel(self.model, Ledger(), gate, patience=patience).answer(
                    Question(question, Said, key)
                )
            except ModelError:
                assert self.fault or self.model.asked_at

    async def converse(self, gates: list[ModelGate]) -> None:
        for _ in range(self.random.randrange(1, 15)):
            await anyio.sleep(self.random.choice([0.0, 0.0, 0.05, 2.0]))
            which = self.random.randrange(2)
            await self.ask(gates[which], self.specs[which])
            self.kept = max(self.kept, sum(len(each.gate.unused) for each in self.living))

    async def go(self) -> None:
        async with anyio.create_task_group() as tasks:
            with anyio.fail_after(_LATEST_S):
                await self.run(tasks)
            tasks.cancel_scope.cancel()

    async def run(self, tasks: TaskGroup) -> None:
        gates = LocalGates(20)
        local = [gates.of(spec) for spec in self.specs]
        assert len(gates.gates) == 2
        assert local[0].places is local[1].places
        quota = local[0].quota = local[1].quota = Quota(eager=True)
        desk = LeaseCoordinator(gates)

        async def live(worker: Worker) -> None:
            leased = [worker.gates.of(spec) for spec in self.specs]
            with anyio.CancelScope() as self.living[worker]:
                async with anyio.create_task_group() as conversations:
                    for _ in range(self.random.randrange(1, 8)):
                        conversations.start_soon(self.converse, leased)
                        await anyio.sleep(self.random.choice([0.0, 0.3]))

        async def kill() -> None:
            """Kill a worker and start another one."""
            for _ in range(self.random.randrange(3)):
                await anyio.sleep(self.random.uniform(0.1, 20))
                worker = self.random.choice(list(self.living))
                self.living.pop(worker).cancel()
                worker.sent.cut = worker.heard.cut = True
                await anyio.sleep(DELAY_S)
                worker.leases.close()
                work.start_soon(live, self.worker(desk, tasks))

        async with anyio.create_task_group() as work:
            for _ in range(self.number_of_workers):
                work.start_soon(live, self.worker(desk, tasks))
            await anyio.lowlevel.checkpoint()
            work.start_soon(kill)
            for _ in range(self.random.randrange(3)):
                work.start_soon(self.converse, local)
        await self.ask(local[0], self.specs[0])  # the run's own, beside workers that have nothing to do
        await anyio.sleep(5)
        kept = sum(len(gate.unused) for worker in self.living for gate in worker.gates._gates.values())
        assert local[0].places.in_progress == quota.in_progress == kept

    def worker(self, desk: LeaseCoordinator, tasks: TaskGroup) -> Worker:
        return Worker(desk, self.specs[0], self.model, "w", DELAY_S, tasks)


@given(
    st.integers(0, 2**32), st.sampled_from([1, 2, 3, 5, 12, 40]), st.integers(1, 4), st.sampled_from(_FAULTS)
)
@settings(max_examples=200)
@pytest.mark.slow
def test_no_call_hangs_or_exceeds_the_places(
    seed: int, places: int, workers: int, fault: ModelError | None
) -> None:
    """Whatever happens, every call ends and no more calls than places are in progress."""
    stress = Stress(Random(seed), places, workers, fault)
    run(stress.go)
    assert stress.model.most <= places
