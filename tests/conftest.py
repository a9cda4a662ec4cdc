"""Fixtures that several test files share."""

from __future__ import annotations

from pathlib import Path

import pytest
from project import Project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """An empty project of a user."""
    return Project(tmp_path)
