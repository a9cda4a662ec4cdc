"""Saving a stored conversation as a case or scenario of the project."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import page_at
import pytest
import sample_run
from ui_server import Client, with_server

from agentest.plugins.adk.formats.set_reader import read_eval_set


def saving(root: Path, scenario: Any, *bodies: dict[str, Any]) -> list[tuple[int, Any]]:
    """The server's answers to each request about a scenario's first conversation."""
    run = page_at.keep_runs(root, [sample_run.sample_run()])[0]
    said: list[tuple[int, Any]] = []

    async def work(client: Client) -> None:
        named = {
            "name": scenario.name,
            "agent": "booking",
            "id": scenario.conversations[0].conversation.conversation_id,
        }
        for body in bodies:
            said.append(await client.ask("POST", f"/api/runs/{run}/save?{urlencode(named)}", **body))

    with_server(root, work)
    return said


def test_a_case_is_shown_first_and_written_then(tmp_path: Path) -> None:
    """Nothing is written until that is wanted; `agentest eval` reads what is; no configuration is needed."""
    wish = {"as": "case", "name": "good", "path": "talks.evalset.json"}
    shown, written, again = saving(
        tmp_path, sample_run.wrong_calls(), wish, wish | {"write": True}, wish | {"name": "two"}
    )
    assert (shown[0], shown[1]["written"], written[1]["written"]) == (200, False, True)
    assert "did not pass" in shown[1]["notes"][0]
    read = read_eval_set(tmp_path / "talks.evalset.json").eval_set
    assert [case.eval_id for case in read.eval_cases] == ["good"]
    assert again[1]["version"]
    assert json.loads(again[1]["text"])["eval_id"] == "two"


@pytest.mark.parametrize(
    ("wish", "says"),
    [
        ({"as": "case", "name": "a", "path": "../out.evalset.json"}, "outside of the project"),
        ({"as": "case", "name": "", "path": "a.evalset.json"}, "give the case an id"),
        ({"as": "case", "name": "a", "path": "a.json"}, "must end in"),
        ({"as": "poem", "name": "a", "path": "a.json"}, "`as`: expected one of"),
        ({"as": "case", "name": 1, "path": "a.json"}, "`name` must be a text"),
        ({"as": "script", "name": "a", "path": "a.sim.py"}, "config"),
        ({"as": "case", "name": "a", "path": "x" * 300 + ".evalset.json"}, "a name of 313 bytes, and 255"),
        ({"as": "case", "name": "a", "path": "a/" * 3000 + "a.evalset.json"}, "is longer than 4,000 bytes"),
        ({"as": "case", "name": "a", "path": "a\nb.evalset.json"}, "another control character"),
        ({"as": "case", "name": "a", "path": "a\x1b[31m.evalset.json"}, "another control character"),
        ({"as": "case", "name": "a", "path": "a\0.evalset.json"}, "another control character"),
    ],
    ids=[
        "outside",
        "nameless",
        "ending",
        "kind",
        "type",
        "no configuration",
        "long name",
        "long path",
        "line break",
        "escape",
        "NUL",
    ],
)
def test_what_cannot_be_saved_is_said(tmp_path: Path, wish: dict[str, Any], says: str) -> None:
    """Each with the reason, and nothing is written."""
    [(status, answer)] = saving(tmp_path, sample_run.wrong_calls(), wish | {"write": True})
    assert status == 400
    assert says in answer["error"]
    assert [each.name for each in tmp_path.iterdir()] == [".agentest"]


def test_a_scripted_scenario_is_written_where_runs_find_it(tmp_path: Path) -> None:
    """With the project's configuration; a name that a scenario has is refused."""
    (tmp_path / "agentest.config.yaml").write_text("agent: {endpoint: 'http://localhost:1'}\n")
    wish = {"as": "script", "name": "as it was", "path": "kept.sim.py", "write": True}
    first, second = saving(tmp_path, sample_run.wrong_calls(), wish, wish | {"path": "other.sim.py"})
    assert first[0] == 200
    assert "as it was" in (tmp_path / "kept.sim.py").read_text()
    assert "already (kept.sim.py:" in second[1]["error"]


def test_an_unfinished_conversation_is_not_saved(tmp_path: Path) -> None:
    """The answer has the error that ended it."""
    broken = next(
        each
        for each in sample_run.sample_run().scenarios
        if each.conversations and each.conversations[0].conversation.failure
    )
    [(status, answer)] = saving(tmp_path, broken, {"as": "case", "name": "a", "path": "a.evalset.json"})
    assert status == 400
    assert "which did not finish" in answer["error"]
