"""Facts about an agent that judges of evaluation sets get: from its settings, the set, and nearby files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from evalset_documents import case, eval_set, invocation

from agentest.config.config import Config
from agentest.plugins.adk.cases import CaseSet
from agentest.plugins.adk.formats.criteria import parse_criteria
from agentest.plugins.adk.formats.eval_set import EVAL_SET
from agentest.plugins.adk.formats.set_reader import FileFormat, ReadSet
from agentest.plugins.adk.metrics.grader import AgentFacts
from agentest.plugins.adk.plan import eval_plan
from agentest.runner.plan import Unit
from agentest.scenarios.options import parse_tools

APP = {
    "agent_details": {
        "a": {
            "name": "a",
            "instructions": "Recorded, secret.",
            "tool_declarations": [{"function_declarations": [{"name": "recorded secret"}]}],
        }
    }
}


def facts(root: Path, agent: dict[str, Any], app: Any = None, **mocks: Any) -> AgentFacts:
    """The facts that the judge of a case gets, without the word `secret`."""
    document = eval_set("s", case("c", invocation("x", "y", **({"app_details": app} if app else {}))))
    read = ReadSet(EVAL_SET.validate_python(document), root / "a.test.json", FileFormat.EVAL_SET, {})
    chosen = CaseSet(read, parse_criteria({"hallucinations_v1": 0.5}, "c"), parse_tools({"tools": mocks}))
    config = Config.model_validate({"agent": {"endpoint": "http://h", **agent}})
    plan = eval_plan([chosen], config, None, 1, root, lambda text: text.replace("secret", "…"))
    [unit] = (entry for entry in plan.entries if isinstance(entry, Unit))
    found: AgentFacts = unit.graders[0].facts  # type: ignore[attr-defined]
    return found


def test_where_facts_come_from(tmp_path: Path) -> None:
    """Settings and requests of the agent count most, then what the set recorded, then servers and mocks."""
    served = {"tools": [{"name": "served", "inputSchema": {"type": "object"}}]}
    (tmp_path / "tools.json").write_text(json.dumps(served))
    sent = {
        "messages": [{"role": "system", "content": "Sent, secret."}],
        "tools": [{"type": "function", "function": {"name": "sent"}}],
    }
    beside = {"mcp_mock": {"port": 20001, "tools": "tools.json"}}
    others = "(the assistant may have other tools: these are known)"
    for agent, app, told in (
        ({"instructions": "Own.", "tools": ["own"], "body": sent}, APP, ("Own.", "own\nsent")),
        ({"body": sent}, APP, ("Sent, ….", "sent")),
        (beside, APP, ("Agent a:\nRecorded, ….", '{"name": "recorded …"}')),
        (beside, None, ("", "served()")),
        ({}, None, ("", "")),
    ):
        found = facts(tmp_path, agent, app)
        assert (found.instructions, found.tools) == told
    assert facts(tmp_path, {}, None, look=1).tools == f"look\n{others}"
