"""`adk api_server` with the plugin by which mocks answer: the real tools' own log is the truth."""

from __future__ import annotations

from pathlib import Path

import pytest
from framework_lab import MARKS, Served, calls_of, conversation, run, statuses

pytestmark = MARKS

SERVER = ("google_adk/bin/adk", "api_server", "adk_plugin_apps", "--port", "{port}")
MEMORY = ("--session_service_uri", "memory://")
PLUGIN = ("--extra_plugins", "agentest_adk.MockTools")


def served(*options: str, streaming: bool = False, **config: object) -> Served:
    return Served(
        id="google_adk",
        type="adk",
        page="adk-agents",
        after="## Mocks behind its server",
        command=(*SERVER, *MEMORY, *options),
        ready="/list-apps",
        agent={"app_name": "shop", "streaming": streaming},
        config=config,
    )


def really_run(folder: Path) -> list[str]:
    log = folder / "servers" / "real.log"
    return log.read_text(encoding="utf-8").split("\n")[:-1] if log.exists() else []


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])
def test_mocks_answer(streaming: bool, tmp_path: Path) -> None:
    """Fifty conversations at once, sub-agents, long-running tools: mocks answer, bugs are caught."""
    project = run(served(*PLUGIN, streaming=streaming, concurrency=50), tmp_path, "adk_plugin")
    failed = {name for name, status in statuses(project).items() if status != "passed"}
    assert failed == {"breaks a ban", "has no mock"}
    assert "'reserve', which has no mock" in str(conversation(project, "has no mock")["error"])
    calls = calls_of(project, "many 7")
    assert sorted(c["args"]["item"] for c in calls) == ["a7", "b7", "c7"]
    assert {(c["seenBy"], *c["alsoSeenBy"], c["mocked"]) for c in calls} == {("mock-server", "agent", True)}
    assert really_run(tmp_path) == []


def test_real_tools_where_they_may_run(tmp_path: Path) -> None:
    """With passthrough nested agents get their conversation's mocks; real tools are reported."""
    project = run(served(*PLUGIN, unmocked_tools="passthrough"), tmp_path, "adk_plugin_real")
    assert {name for name, status in statuses(project).items() if status != "passed"} == {"falls"}
    (real,) = calls_of(project, "real")
    assert (real["result"], real["mocked"]) == ("really looked for lamp", False)
    assert "the lamp fell" in str(conversation(project, "falls"))
    assert really_run(tmp_path) == ["looked for lamp"]


def test_without_the_plugin(tmp_path: Path) -> None:
    """If it is missing, a mocked tool that really ran makes the scenario errored."""
    project = run(served(), tmp_path, "adk_plugin")
    found = statuses(project)
    assert {found[f"many {n}"] for n in range(50)} == {"errored"}
    held = [each for found in project.results["scenarios"] for each in found["conversations"]]
    assert any("--extra_plugins agentest_adk.MockTools" in str(each["error"]) for each in held)


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])
def test_confirmations(streaming: bool, tmp_path: Path) -> None:
    """A tool that needs a confirmation, or its mock, runs only after a yes."""
    settings = served(*PLUGIN, streaming=streaming, unmocked_tools="passthrough")
    project = run(settings, tmp_path, "adk_approvals")
    failed = {name for name, status in statuses(project).items() if status != "passed"}
    assert failed == {"waits", "breaks a ban"}
    made = {
        name: [(c["approval"], c["result"]) for c in calls_of(project, name)] for name in statuses(project)
    }
    assert made == {
        "grants": [("granted", "a mock")],
        "grants the real one": [("granted", "really paid lamp")],
        "agrees": [("granted", "a mock")],
        "waits": [("pending", None)],
        **{name: [("denied", None)] for name in ("denies", "denies the real one", "refuses", "breaks a ban")},
    }
    assert really_run(tmp_path) == ["paid lamp"]
