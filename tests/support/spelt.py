"""A secret, however it may be spelt in files that somebody else writes."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote


def spellings(secret: str) -> set[str]:
    """As it is, in a URL, in JSON, in hexadecimal digits, and in base64 wherever it begins."""
    content = secret.encode()
    encoded = set()
    for before in range(3):
        skipped = base64.b64encode(b"\0" * before + content).decode()
        encoded.add(skipped[before + before // 2 :].rstrip("=")[1:-2])  # without what neighbours change
    return {secret, quote(secret, safe=""), json.dumps(secret)[1:-1], content.hex(), *encoded}


def files_with(secrets: Iterable[str], folder: Path) -> list[str]:
    """The files below a folder in which one of the secrets stands, in any spelling."""
    patterns = "\n".join(sorted(form for secret in secrets for form in spellings(secret)))
    command = ["grep", "-rlaF", "-f", "-", str(folder)]
    done = subprocess.run(command, input=patterns, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout.splitlines()
