"""Google ADK's evaluation: file formats, metrics, and Python classes, on top of Agentest's runner.

    from agentest.adk import AgentEvaluator, EvaluationFailed, Evaluator, LocalEvalService

The plug-in `adk` hands the names in, and `adk.pyi` has them for type checkers. Each is imported when it is
first used.
"""

from __future__ import annotations

from typing import Any

_RUNS_ALREADY = "give the agent's URL, or the agent itself, to AgentEvaluator.evaluate or LocalEvalService"
_ELSEWHERE = {"AgentBuilder": _RUNS_ALREADY, "InMemoryRunner": _RUNS_ALREADY}


def __getattr__(name: str) -> Any:
    from agentest.plugin import public_name

    return public_name(__name__, name, "adk", **_ELSEWHERE)
