"""Fixtures that several test files share."""

from __future__ import annotations

import gc
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from project import Project

QUICK_EXAMPLES = 10
# A busy machine must not fail a test: how long an example takes is no property of the program.
UNTIMED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
# In CI the examples are always the same, so that a failure comes from the change and not from luck.
settings.register_profile("quick", **UNTIMED, max_examples=QUICK_EXAMPLES, derandomize="CI" in os.environ)
settings.register_profile("thorough", **UNTIMED, max_examples=60, derandomize=True)
settings.load_profile("quick")
# Else runs in this process keep answers of models in the working folder. The port of a test's server is used
# again now and then, and then answers of an earlier test would be taken for this one's.
os.environ["CI"] = "true"

SECTION_FOLDERS = {
    "adk": ("adk", "frameworks", "protocols"),
    "browser": ("browser",),
    "frameworks": ("frameworks",),
    "local_model": ("models",),
    "ray": ("ray",),
}
"""The folders in which noxfile.py looks for the tests of these markers."""

# Write bytecode until all tests are collected, whatever the environment says: each test process takes 10 s to
# rewrite the tests, and each command that is not forked compiles the package anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Shells and nohup leave signals ignored in what they run in the background, and commands of tests inherit it.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """An empty project of a user."""
    return Project(tmp_path)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark property tests, so that the session `slow` can run them again with the profile `thorough`.

    Refuse a test that no session would find.
    """
    for item in items:
        for marker, folders in SECTION_FOLDERS.items():
            if item.get_closest_marker(marker) and not {*folders} & {*item.path.parts}:
                raise pytest.UsageError(f"{item.nodeid}: tests marked {marker} belong in {folders}")
        test = getattr(item, "obj", None)
        if getattr(test, "is_hypothesis_test", False):
            item.add_marker(pytest.mark.property)
            _limit_examples(getattr(test, "__func__", test))


def _limit_examples(test: Any) -> None:
    """Keep a property test quick that asks for more examples than the profile `quick` has."""
    attribute = "_hypothesis_internal_use_settings"  # not public: without it the test only takes longer
    own = getattr(test, attribute, None)
    if own and own.max_examples > settings.default.max_examples == QUICK_EXAMPLES:
        setattr(test, attribute, settings(own, max_examples=QUICK_EXAMPLES))


def pytest_collection_finish() -> None:
    """From here on leave no bytecode: tests write modules anew faster than its timestamps can tell."""
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    gc.freeze()  # to look through all tests and modules again and again takes a fifteenth of the time
