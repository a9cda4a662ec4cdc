"""Model limits over all processes of `--workers`, as the model's server sees them."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import dataclass, field
from itertools import count

import pytest
from model_server import Answer, ModelServer, Received, best, error, model_keys
from project import DEADLINE_S, Project

from agentest.testing import ScriptedAgent

WORKERS = ("--workers", "2")


@dataclass
class Watched:
    """A model that gives good answers after a delay, and records its request times and concurrency."""

    lasts_s: float = 0.02
    asked_at: list[float] = field(default_factory=list)
    most: int = 0
    _here: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, request: Received) -> Answer:
        with self._lock:
            self.asked_at.append(time.monotonic())
            self._here += 1
            self.most = max(self.most, self._here)
        threading.Event().wait(self.lasts_s)
        with self._lock:
            self._here -= 1
        return best(request)


def scenarios(project: Project, count: int, more: str = "") -> None:
    project.scenario(f"for n in range({count}):\n    scenario(f's{{n}}', goal='Get help.'{more})")


@pytest.mark.slow
def test_concurrent_requests_of_all_workers(project: Project) -> None:
    """Two workers together reach exactly `max_concurrency` concurrent requests."""
    scenarios(project, 12)
    model = Watched()
    with ScriptedAgent(["sure"]) as agent, ModelServer(script=model) as server:
        project.config(agent.endpoint, max_concurrency=3, **model_keys(server))
        done = project.run(*WORKERS, "--concurrency", "12")
    assert done.returncode == 0, done.stdout + done.stderr
    assert model.most == 3


@pytest.mark.slow
def test_request_rate_of_all_workers(project: Project) -> None:
    """Two workers together use about `requests_per_minute`, and no more."""
    scenarios(project, 6)
    model, rate = Watched(0.0), 1200
    with ScriptedAgent(["sure"]) as agent, ModelServer(script=model) as server:
        role = {"requests_per_minute": rate}
        project.config(agent.endpoint, user=role, judge={**role, "batch": False}, **model_keys(server))
        done = project.run(*WORKERS, "--concurrency", "6")
    assert done.returncode == 0, done.stdout + done.stderr
    burst = rate // 10
    later = len(model.asked_at) - 1 - burst
    took = model.asked_at[-1] - model.asked_at[0]
    assert later > 20
    assert took >= 0.95 * later * 60 / rate


@pytest.mark.parametrize("most", [7, 90])
def test_exactly_the_allowed_calls_are_made(project: Project, most: int) -> None:
    """All workers share `--max-llm-calls`, spend it on whole conversations, and one message says so."""
    scenarios(project, 20, ", metrics=[]")  # a judge is asked many things at a time, a user one
    with ScriptedAgent(["sure"]) as agent, ModelServer(script=Watched(0.005)) as server:
        project.config(agent.endpoint, **model_keys(server))
        done = project.run(*WORKERS, "--max-llm-calls", str(most), "--concurrency", "3")
        assert most - 2 <= len(server.received) <= most  # a conversation takes three
    assert done.returncode == 2
    assert done.stderr.count("--max-llm-calls") == 1


def test_a_key_that_is_refused_is_tried_a_few_times_by_all_workers(project: Project) -> None:
    """If a model refuses the key, only a few requests are made over all workers."""
    scenarios(project, 40)
    with ScriptedAgent(["sure"]) as agent, ModelServer(error(401, "no such key")) as server:
        project.config(agent.endpoint, **model_keys(server))
        done = project.run(*WORKERS, "--concurrency", "4")
        assert len(server.received) <= 8
    assert done.returncode == 2


@pytest.mark.slow
def test_an_outage_is_reported_once(project: Project) -> None:
    """Both workers wait for a model that is down, with one message."""
    scenarios(project, 10)
    asked, over = count(1), threading.Event()

    def outage(request: Received) -> Answer:
        if next(asked) >= 30 and not over.is_set():
            return error(503, "no upstream", {})
        return best(request)

    with ScriptedAgent(["sure"]) as agent, ModelServer(script=outage) as server:
        project.config(agent.endpoint, **model_keys(server))
        process = project.start(*WORKERS)
        assert process.stderr is not None
        told = process.stderr.readline()
        assert "waiting for it, at most" in told
        threading.Timer(2, over.set).start()  # so long, another worker would have said it, too
        told += process.stderr.read()
        told += process.communicate(timeout=DEADLINE_S)[0]
    assert process.returncode == 0, told
    begin, end = "waiting for it, at most", "answers again"
    assert re.findall(f"{begin}|{end}", told) == [begin, end]
