"""Fixtures that several test files share."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from project import Project

# A busy machine must not fail a test: how long an example takes is no property of the program.
UNTIMED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("quick", **UNTIMED, max_examples=40)
# As CI runs them: always the same examples, so that what fails there comes of the change and not of luck.
settings.register_profile("thorough", **UNTIMED, max_examples=60, derandomize=True)
settings.load_profile("quick")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As a shell leaves it for what it runs in the background: commands that tests interrupt would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """An empty project of a user."""
    return Project(tmp_path)
