"""Saving a conversation with a person as a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import builders
import pytest

from agentest import scenario
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import ToolCall
from agentest.plugins.adk.formats.set_reader import read_eval_set
from agentest.plugins.adk.set_files import ChangedOnDisk
from agentest.plugins.page.talk.saved_conversation import (
    GOAL,
    ConversationToSave,
    PreparedFile,
    SaveRequest,
    prepare_file,
    write,
)
from agentest.runner.prepare import RunRequest
from agentest.support.errors import UsageError

CAMEL = (
    '{"evalSetId":"s",\r\n\t"x_own": 1.50,\r\n\t"evalCases": [{"evalId": "one", "conversation":'
    ' [{"userContent": {"parts": [{"text": "é"}]}}]}]}'
)


def planned(root: Path, kind: Any, path: str, *calls: ToolCall, **options: Any) -> PreparedFile:
    """The file that would be written for a conversation of one turn with these calls."""
    held = builders.conversation("c1", [builders.turn(tool_calls=calls)])
    by = scenario("books", **({"turns": ["x"]} | options))
    wish = SaveRequest(kind=kind, path=path, name="new")
    (root / "agentest.config.yaml").write_text("agent: {endpoint: 'http://127.0.0.1:9/'}\n")
    talk = ConversationToSave(conversation=held, scenario=by, agent="agent", began=1.0)
    return prepare_file(talk, wish, RunRequest(root))


def test_a_set_keeps_its_form(tmp_path: Path) -> None:
    """A case is added in the spelling of the set, all else stays; a taken id is refused."""
    path = tmp_path / "s.evalset.json"
    path.write_bytes(CAMEL.encode())
    first = planned(tmp_path, "case", "s.evalset.json", builders.tool_call(result={"n": 1}))
    write(first, first.version)
    before, after = json.loads(CAMEL), json.loads(path.read_bytes())
    assert list(after) == list(before)
    *cases, new = after.pop("evalCases")
    assert cases == before.pop("evalCases")
    assert after == before
    assert new["evalId"] == "new"
    assert [case.eval_id for case in read_eval_set(path).eval_set.eval_cases] == ["one", "new"]
    with pytest.raises(UsageError, match="has a case 'new' already"):
        planned(tmp_path, "case", "s.evalset.json")
    with pytest.raises(ChangedOnDisk):
        write(first, first.version)


def test_a_new_scenario_marks_what_is_missing(tmp_path: Path) -> None:
    """Missing parts of the scenario are marked; tools answer as observed, also those of mock servers, and the
    agent's own calls have no mock."""
    calls = (
        builders.tool_call("find", {}, {"n": 1}, seen_by=SeenBy.MOCK_SERVER),
        builders.tool_call("find", {}, {"error": "shut"}, error="shut"),
        builders.tool_call("own", {}, 1, mocked=False, seen_by=SeenBy.AGENT),
    )
    made = planned(tmp_path, "scenario", "new.sim.py", *calls)
    assert 'tools={"find": sequence({"n": 1}, ToolError("shut"))}' in made.preview
    assert f'goal="{GOAL}"' in made.preview
    assert made.preview.count("# TODO") == 5
    assert made.notes == ("1 call that the agent answered itself got no mock: none would reach it",)
    compile(made.preview, "new.sim.py", "exec")
    write(made, None)
    with pytest.raises(UsageError, match=r"there is a scenario 'new' already \(new.sim.py:"):
        planned(tmp_path, "script", "other.sim.py")
    (tmp_path / "new.sim.py").write_text("")
    with pytest.raises(UsageError, match="not overwritten"):
        planned(tmp_path, "script", "new.sim.py")
    with pytest.raises(ChangedOnDisk):
        write(made, None)
    known = {"turns": None, "goal": "Go.", "profile": "P", "knowledge": ["k"]}
    assert planned(tmp_path, "scenario", "b.sim.py", **known).preview.count("# TODO") == 0
