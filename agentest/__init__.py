"""Agentest: a test runner for AI agents, black-box over HTTP.

    from agentest import scenario, sequence, call

The names are loaded when they are first used, so that `agentest --help` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentest.version import __version__ as __version__

if TYPE_CHECKING:
    from agentest.config.config import Config as Config
    from agentest.errors import AgentestError as AgentestError
    from agentest.evaluate.custom import ConversationMetric as ConversationMetric
    from agentest.evaluate.custom import QualitativeMetric as QualitativeMetric
    from agentest.evaluate.custom import QuantitativeMetric as QuantitativeMetric
    from agentest.results import Score as Score
    from agentest.scenarios.definition import Scenario as Scenario
    from agentest.scenarios.definition import call as call
    from agentest.scenarios.definition import scenario as scenario
    from agentest.scenarios.definition import sequence as sequence

_HOME = {
    "AgentestError": "agentest.errors",
    "Config": "agentest.config.config",
    "ConversationMetric": "agentest.evaluate.custom",
    "QualitativeMetric": "agentest.evaluate.custom",
    "QuantitativeMetric": "agentest.evaluate.custom",
    "Scenario": "agentest.scenarios.definition",
    "Score": "agentest.results",
    "call": "agentest.scenarios.definition",
    "scenario": "agentest.scenarios.definition",
    "sequence": "agentest.scenarios.definition",
}
__all__ = [*sorted(_HOME), "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'agentest' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value
