"""Where a run writes."""

from __future__ import annotations

from pathlib import Path

from agentest.run.prepare import Prepared


def output_dir(prepared: Prepared) -> Path:
    """Where reports are written."""
    return prepared.request.root / prepared.loaded.config.output_dir
