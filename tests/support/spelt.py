"""Spellings of a secret in foreign files."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote


def spellings(secret: str) -> set[str]:
    """The secret unchanged, in a URL, in JSON, in hexadecimal, and in base64 at any offset."""
    content = secret.encode()
    encoded = set()
    for before in range(3):
        skipped = base64.b64encode(b"\0" * before + content).decode()
        encoded.add(skipped[before + before // 2 :].rstrip("=")[1:-2])  # without what neighbours change
    return {secret, quote(secret, safe=""), json.dumps(secret)[1:-1], content.hex(), *encoded}


def files_with(secrets: Iterable[str], folder: Path) -> list[str]:
    """The files in a folder that contain one of the secrets in any spelling."""
    patterns = "\n".join(sorted(form for secret in secrets for form in spellings(secret)))
    command = ["grep", "-rlaF", "-f", "-", str(folder)]
    done = subprocess.run(command, input=patterns, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout.splitlines()
