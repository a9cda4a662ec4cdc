"""What git says of the user's files, where they are in a repository and git is there."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

_TIMEOUT_S = 2.0
_BY_CI = ("GITHUB_SHA", "CI_COMMIT_SHA", "GIT_COMMIT")
"""Where CI tells the commit to jobs, whose image may have no git."""


def commit_of(folder: Path, environ: Mapping[str, str] = os.environ) -> str | None:
    """The commit that is checked out in a folder; None where nobody knows it."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), "rev-parse", "--verify", "--quiet", "HEAD"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_S,
            env={**environ, "GIT_OPTIONAL_LOCKS": "0"},
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        done = None
    told = done.stdout.decode("ascii", "replace").strip() if done and done.returncode == 0 else ""
    return told or next((environ[name] for name in _BY_CI if environ.get(name)), None)
