"""Cases of evaluation sets have a date."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentest.plugins.adk.formats.set_reader import read_eval_set

MAY = "2024-05-15"


def test_cases_of_evaluation_sets_have_a_date(tmp_path: Path) -> None:
    """The key `agentest` of a case takes it, and refuses what is not a date with its place."""
    case = {
        "eval_id": "c",
        "conversation": [{"user_content": {"parts": [{"text": "Hi"}]}}],
        "agentest": {"date": MAY},
    }
    file = tmp_path / "s.evalset.json"
    file.write_text(json.dumps({"eval_set_id": "s", "eval_cases": [case]}), encoding="utf-8")
    [read] = read_eval_set(file).eval_set.eval_cases
    assert read.agentest is not None
    assert read.agentest.expectations["date"] == MAY
    file.write_text(file.read_text("utf-8").replace(MAY, "May"), encoding="utf-8")
    with pytest.raises(Exception, match=r"date.*expected a date or date-time"):
        read_eval_set(file)
