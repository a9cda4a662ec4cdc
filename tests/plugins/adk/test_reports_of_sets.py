"""Evaluation sets in JUnit reports."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

from evalset_documents import case, criteria, eval_set, invocation, text
from project import Project

from agentest.testing import ScriptedAgent


def cases(path: Path) -> dict[str, str]:
    """Name → what a consumer of the report takes the case for."""
    found = {}
    for node in ET.parse(path).iter("testcase"):
        kinds = [child.tag for child in node if child.tag in ("failure", "error", "skipped")]
        found[str(node.get("name"))] = kinds[0] if kinds else "passed"
    return found


def test_evaluation_sets(project: Project) -> None:
    """A case of an evaluation set is a case of the suite of its file."""
    price = case("price", invocation("How much is it?", "It is ten euros."))
    broken = case("broken", invocation("Hello?", "Good day."))
    project.write("sets/orders.test.json", text(eval_set("orders", price, broken)))
    project.write("sets/test_config.json", text(criteria(response_match_score=0.8)))
    with ScriptedAgent(lambda body: "It is ten euros.") as agent:
        done = project.agentest(
            "eval",
            agent.endpoint,
            "sets/orders.test.json",
            "--reporter",
            "junit",
        )
    assert done.returncode == 1, done.stderr
    path = project.root / ".agentest" / "junit.xml"
    assert cases(path) == {"price": "passed", "broken": "failure"}
    [node] = ET.parse(path).iterfind("testsuite/testcase[@name='broken']")
    assert (node.get("classname"), node.get("file")) == ("sets.orders", "sets/orders.test.json")
    properties = {p.get("name"): p.get("value") for p in node.iter("property")}
    assert properties.keys() >= {"eval_set", "average.response_match_score", "threshold.response_match_score"}


def test_cases_are_split_and_merged(project: Project) -> None:
    """Shards of evaluation sets are merged as those of scenarios are."""
    parts = (case(name, invocation(name, name)) for name in ("one", "two"))
    project.write("n.test.json", text(eval_set("n", *parts)))
    with ScriptedAgent(lambda body: str(body["messages"][-1]["content"])) as agent:
        project.config(agent.endpoint, reporters=["json"])
        for n in (1, 2):
            project.agentest("eval", "n.test.json", "--shard", f"{n}/2")
    shards = sorted(path.name for path in (project.root / ".agentest" / "runs").iterdir())
    assert project.agentest("merge", *shards, "--reporter", "json").returncode == 0
    assert project.results["summary"]["passedScenarios"] == 2
    assert "passed (eval, shard 2/2)" in project.agentest("runs").stdout
