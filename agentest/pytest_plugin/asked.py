"""What pytest was asked for, by options that not every pytest has."""

from __future__ import annotations

import pytest


def only_shown(config: pytest.Config) -> bool:
    """Whether pytest only shows what it would run: --setup-plan, --setup-only."""
    return bool(config.getoption("setuponly", False) or config.getoption("setupplan", False))


def verbosity(config: pytest.Config) -> int:
    """How often -v was given; without a terminal (`-p no:terminal`) there is no such option."""
    return config.get_verbosity() if hasattr(config.option, "verbose") else 0
