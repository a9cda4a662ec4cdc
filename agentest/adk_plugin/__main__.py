"""`python -m agentest.adk_plugin > agentest_adk.py`."""

from __future__ import annotations

import sys

from agentest.adk_plugin import FOLDER

sys.stdout.write((FOLDER / "agentest_adk.py").read_text(encoding="utf-8"))
