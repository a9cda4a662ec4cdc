"""Tables of evaluations control neither GitHub's runner nor a terminal."""

from __future__ import annotations

import json

from project import Project
from steering_texts import GITHUB, HOSTILE, harmless, say_hostile_texts

from agentest.testing import ScriptedAgent


def test_an_evaluation_in_detail(project: Project) -> None:
    """Tables of expected and actual values form no command."""
    case = [
        {
            "query": HOSTILE,
            "expected_tool_use": [{"tool_name": HOSTILE, "tool_input": {HOSTILE: HOSTILE}}],
            "reference": "##[error]x\n" * 3,
        }
    ]
    project.write("a.test.json", json.dumps(case))
    project.write(
        "test_config.json", '{"criteria": {"response_match_score": 1, "tool_trajectory_avg_score": 1}}'
    )
    with ScriptedAgent(say_hostile_texts) as agent:
        project.config(agent.endpoint)
        done = project.agentest("eval", "a.test.json", "--print-detailed-results", env=GITHUB)
    assert done.returncode == 1, done.stderr
    assert "expected" in harmless(done)
