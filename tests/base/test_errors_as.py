"""Errors that one context manager rewords."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from agentest.support.errors import ConfigError, UsageError, errors_as


def test_the_beginning_comes_before_the_message() -> None:
    with pytest.raises(ConfigError) as raised, errors_as(ConfigError, "agent 'x': "):
        raise ValueError("app is missing")
    assert str(raised.value) == "agent 'x': app is missing"
    assert raised.value.__suppress_context__


def test_errors_of_the_system_are_named_without_number_and_path(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as raised, errors_as(UsageError, "x cannot be read: ", OSError):
        (tmp_path / "x").read_bytes()
    assert str(raised.value) == "x cannot be read: No such file or directory"
    with pytest.raises(UsageError) as raised, errors_as(UsageError, "", (OSError, RuntimeError)):
        raise OSError(errno.EINVAL, "it is a device, not a file")
    assert str(raised.value) == "it is a device, not a file"


def test_other_errors_pass() -> None:
    with pytest.raises(TypeError, match="as it is"), errors_as(ConfigError, "agent 'x': "):
        raise TypeError("as it is")
