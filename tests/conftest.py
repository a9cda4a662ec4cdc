"""Fixtures that several test files share."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from project import Project

# A busy machine must not fail a test: how long an example takes is no property of the program.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """An empty project of a user."""
    return Project(tmp_path)
