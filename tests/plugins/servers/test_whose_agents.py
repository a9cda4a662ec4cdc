"""Which process runs which agents' servers, when workers run the conversations."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from agentest.runner.agents import (
    in_worker,
    known_ports,
    part_of,
    shared_ports,
    with_known_ports,
    with_ports,
)
from agentest.runner.plan import Options
from agentest.runner.prepare import Prepared, RunRequest, prepare

OWN = {"command": "x {port}", "ready": "tcp://h:{port}"}
AGENTS: dict[str, dict[str, Any]] = {
    "fixed": {"endpoint": "http://h:1/v1"},
    "free": {"endpoint": "http://h:{port}/v1", "server": OWN},
    "own": {"endpoint": "http://h:{port}/v1", "server": {**OWN, "per_worker": True}, "traces": True},
    "twin": {"endpoint": "http://h:{port}/v2", "server": {**OWN, "per_worker": True}, "traces": True},
    "program": {"type": "command", "command": ["cat"], "mcp_mock": True},
    "program at a port": {"type": "command", "command": ["cat"], "mcp_mock": {"port": 7}},
    "plain program": {"type": "command", "command": ["cat"]},
}


def run_of(folder: Path, engine: str | None = None) -> Prepared:
    """A run with all of these agents, and one server for all."""
    config = {"agent": AGENTS["fixed"], "agents": AGENTS, "servers": [{"command": "y", "ready": "tcp://h:2"}]}
    (folder / "agentest.config.yaml").write_text(
        "\n".join(f"{k}: {json.dumps(v)}" for k, v in config.items())
    )
    text = "\n".join(f"scenario({name!r}, turns=['hi'], agent={name!r})" for name in AGENTS)
    (folder / "a.sim.py").write_text(f"from agentest import scenario\n{text}\n")
    return prepare(RunRequest(folder, options=Options(engine=engine)), {})


@pytest.mark.parametrize("engine", ["workers", "ray"])
def test_who_looks_after_whom(tmp_path: Path, engine: str) -> None:
    """Each agent, and each server, is looked after once; what lives on Ray's nodes has its servers there."""
    run = run_of(tmp_path, engine)
    here, there = part_of(run, per_worker=False), part_of(run, per_worker=True)
    assert {*there.plan.agents} == {"own", "twin", *(["program"] if engine == "ray" else [])}
    assert {*here.plan.agents} == AGENTS.keys() - there.plan.agents.keys()
    assert [own.agents for own in there.managed_servers.servers] == [("own", "twin")]
    assert [own.agents for own in here.managed_servers.servers] == [(), ("free",)]
    assert here.plan.units == there.plan.units == run.plan.units


def test_ports(tmp_path: Path) -> None:
    """A port of all workers is chosen once, and travels; one of each worker's own is chosen there."""
    run = run_of(tmp_path)
    with shared_ports(run) as shared, ExitStack() as workers:
        ports = known_ports(shared)
        (port,) = ports.values()
        assert shared.plan == run.plan
        made_anew = with_known_ports(run, ports)
        found = []
        for worker in (1, 2):
            # Both keep theirs: what one gave back could be the other's by chance.
            known = workers.enter_context(with_ports(in_worker(made_anew, worker)))
            agents = known.plan.agents
            assert agents["free"].address == f"http://h:{port}/v1"
            assert agents["own"].address == agents["twin"].address.replace("v2", "v1")
            (own,) = part_of(known, per_worker=True).managed_servers.servers
            assert own.server == agents["own"].server
            assert (own.log, own.printed.name) == (f"{own.name}-worker-{worker}", own.name)
            found.append(agents["own"].address)
            with with_ports(known) as again:
                assert again == known
        assert len({*found, agents["free"].address}) == 3
