"""Agentest: a test runner for AI agents, black-box over HTTP.

    from agentest import scenario, sequence, call

The names are loaded when they are first used, so that `agentest --help` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from agentest.config import Config as Config
    from agentest.errors import AgentestError as AgentestError
    from agentest.evaluate.custom import ConversationMetric as ConversationMetric
    from agentest.evaluate.custom import QualitativeMetric as QualitativeMetric
    from agentest.evaluate.custom import QuantitativeMetric as QuantitativeMetric
    from agentest.results import Score as Score
    from agentest.scenarios import Scenario as Scenario
    from agentest.scenarios import call as call
    from agentest.scenarios import scenario as scenario
    from agentest.scenarios import sequence as sequence

_HOME = {
    "AgentestError": "agentest.errors",
    "Config": "agentest.config",
    "ConversationMetric": "agentest.evaluate.custom",
    "QualitativeMetric": "agentest.evaluate.custom",
    "QuantitativeMetric": "agentest.evaluate.custom",
    "Scenario": "agentest.scenarios",
    "Score": "agentest.results",
    "call": "agentest.scenarios",
    "scenario": "agentest.scenarios",
    "sequence": "agentest.scenarios",
}
__all__ = [*sorted(_HOME), "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'agentest' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value
