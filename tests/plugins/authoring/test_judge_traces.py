"""`agentest judge` with recorded sessions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jsonschema import validate
from model_server import ModelServer, completion
from project import Project

from agentest.testing import ScriptedAgent

SCHEMA = Path(__file__).parents[3] / "agentest" / "schemas" / "results.schema.json"


def call(name: str, **args: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(args)}
    return {"role": "assistant", "tool_calls": [{"id": name, "type": "function", "function": function}]}


def session(id: str, *messages: dict[str, Any]) -> str:
    said = [each if "role" in each else {"role": "assistant", **each} for each in messages]
    return json.dumps({"session_id": id, "messages": said})


ASKED = {"role": "user", "content": "Refund me."}
REFUNDED = {"role": "tool", "tool_call_id": "refund", "content": '{"ok": true}'}
TRACES = "\n".join(
    (
        session("s-1", ASKED, call("refund", amount=0), REFUNDED, {"content": "Done."}),
        session("s-2", ASKED, {"content": "How much?"}, {"role": "user", "content": "12."}),
        session("s-3", ASKED, call("refund", amount=12), REFUNDED),
    )
)
REFUND = """scenario(
    "refund", turns=["x"], goal="Get it.", state={}, final_state={"a": 1}, tools={"refund": 1},
    never=[call("refund", amount=0)], metrics=["helpfulness"],
)
scenario("other", turns=["x"])"""


def judge_traces(project: Project, *options: str) -> tuple[dict[str, Any], str]:
    project.write("week.jsonl", TRACES)
    done = project.agentest("judge", "week.jsonl", *options)
    found: dict[str, Any] = json.loads((project.root / ".agentest" / "judged.json").read_text())
    validate(found, json.loads(SCHEMA.read_text()))
    assert done.returncode == (0 if found["summary"]["passed"] else 1), done.stdout + done.stderr
    return found, done.stderr


def test_sessions_of_traces_are_judged(project: Project) -> None:
    """The selected scenario judges them, without its script, mocks and states; the agent is not there."""
    project.scenario(REFUND)
    project.config("http://127.0.0.1:9/")
    found, notes = judge_traces(project, "--scenario", "=refund")
    [refund] = found["scenarios"]
    assert [each["passed"] for each in refund["conversations"]] == [False, True, True]
    assert [each["conversationId"][-2:] for each in refund["conversations"]] == ["-1", "-2", "-3"]
    assert [len(each["turns"]) for each in refund["conversations"]] == [1, 1, 1]
    assert {each["endedBy"] for each in refund["conversations"]} == {"recorded"}
    [reason] = refund["failures"]
    assert "forbidden calls were made: refund" in reason
    assert "1 session ended without a reply; the last message is not judged" in notes
    [base] = (each.name for each in (project.root / ".agentest" / "runs").iterdir())
    judge_traces(project, "--scenario", "=refund")
    assert "pass rate   0.67   0.67" in project.agentest("compare", base, "latest").stdout


def test_a_session_that_was_not_read_completely_is_errored(project: Project) -> None:
    """No ban passes on calls of unknown speakers, of subagents or of unknown form. Notes do not count."""
    done = {"content": "Done."}
    note = {"role": "system", "content": "Be brief."}
    meta = {"role": "user", "content": "<system-reminder>Be brief.</system-reminder>", "isMeta": True}
    hosted = {"content": [{"type": "web_search_call", "action": {}}, {"type": "text", "text": "Done."}]}
    used = {"content": [{"type": "mcp_tool_use", "id": "1", "name": "refund", "input": {"amount": 0}}]}
    rows = {
        "passed": [(ASKED, note, meta, done)],
        "failed": [(ASKED, used, done)],
        "errored": [
            (ASKED, {"role": "critic", "content": "I called refund."}, done),
            ({"role": "Ann", "content": "Refund me."}, done),
            (ASKED, {"role": "assistant", "isSidechain": True, **call("refund", amount=0)}, done),
            (ASKED, {"role": "mcp_call", "name": "refund", "arguments": "{}"}, done),
            (ASKED, hosted),
            (ASKED, {"role": "tool", "tool_call_id": "lost", "name": "refund", "content": "{}"}, done),
            (call("refund", amount=0), REFUNDED, ASKED, done),
        ],
    }
    sessions = [row for each in rows.values() for row in each]
    traces = "\n".join(session(f"s-{n}", *row) for n, row in enumerate(sessions, 1))
    project.scenario(REFUND)
    project.config("http://127.0.0.1:9/")
    project.write("week.jsonl", traces)
    assert project.agentest("judge", "week.jsonl", "--scenario", "=refund", "--offline").returncode == 1
    [refund] = json.loads((project.root / ".agentest" / "judged.json").read_text())["scenarios"]
    judged = refund["conversations"]
    assert [each["passed"] for each in judged] == [True, *[False] * 8], judged
    assert [bool(each["error"]) for each in judged] == [False, False, *[True] * 7], judged
    told = [each["error"] for each in judged[2:]]
    role = "write user, assistant, tool or system in place of the role"
    assert told[0].endswith(
        "session s-3 was not read completely, so calls can be missing: "
        f"1 × message of unknown role (critic) ({role})"
    )
    for words, text in zip(
        ("(Ann)", "of a subagent", "(mcp_call)", "form (web_search_call)", "result of refund", "before the"),
        told[1:],
        strict=True,
    ):
        assert words in text


def test_sessions_without_a_scenario(project: Project) -> None:
    """The metrics of the configuration judge them, though the project has no scenario."""
    with ModelServer(script=lambda _: completion({"reason": "r", "value": 2})) as server:
        options = {"base_url": server.base_url, "api_key": "sk-of-the-test"}
        named = {"provider": "openai-compatible", "model": "m", "provider_options": options}
        keys = {"thresholds": {"helpfulness": 3, "verbosity": 1}, "judge": {"batch": False}}
        project.config("http://127.0.0.1:9/", **named, **keys)
        found, notes = judge_traces(project, "--sample", "2", "--metric", "helpfulness")
        again = project.agentest("judge", "latest", "--sample", "1", "--offline")
    assert "--metric leaves out verbosity, so no threshold on it is checked" in notes
    assert "took 1 of 2 sessions" in again.stderr, again.stderr
    [recorded] = found["scenarios"]
    assert (recorded["name"], recorded["status"], len(recorded["conversations"])) == (
        "recorded sessions",
        "failed",
        2,
    )
    assert recorded["averages"]["helpfulness"] == 2


def test_only_the_agent_with_conversations_is_needed(project: Project) -> None:
    """Sessions count for the first agent of a comparison, and an agent without conversations is skipped."""
    project.scenario('scenario("s", turns=["x"])')
    with ScriptedAgent(["fine"]) as agent:
        project.config(agent.endpoint)
        assert project.run().returncode == 0
    project.config("http://127.0.0.1:9/", compare=[{"name": "large", "body": {"model": "large"}}])
    [recorded] = judge_traces(project, "--offline")[0]["scenarios"]
    assert [(each["agent"], each["status"]) for each in recorded["agents"]] == [("agent", "passed")]
    done = project.agentest("judge", ".agentest/results.json", "--offline")
    assert done.returncode == 0, done.stdout + done.stderr
    [again] = json.loads((project.root / ".agentest" / "judged.json").read_text())["scenarios"]
    assert [each["status"] for each in again["agents"]] == ["passed", "skipped"]


def test_the_seed_chooses_the_sample(project: Project) -> None:
    """The same seed takes the same sessions, others take others."""
    project.config("http://127.0.0.1:9/")

    def sessions(seed: str) -> list[str]:
        found, notes = judge_traces(project, "--sample", "1", "--seed", seed, "--offline")
        assert f"took 1 of 3 sessions (--seed {seed})" in notes
        return [each["turns"][0]["agentMessage"] for each in found["scenarios"][0]["conversations"]]

    taken = [sessions(str(seed)) for seed in range(4)]
    assert sessions("0") == taken[0]
    assert len({*map(str, taken)}) > 1


def test_what_was_not_read_is_in_every_sample(project: Project) -> None:
    """A broken line can be the session that fails, whichever sessions are taken."""
    project.config("http://127.0.0.1:9/")
    project.write("broken.jsonl", TRACES + '\n{"mess\n')
    for seed in range(3):
        done = project.agentest("judge", "broken.jsonl", "--sample", "1", "--seed", str(seed), "--offline")
        assert done.returncode == 2, done.stdout
        assert "took 1 of 3 sessions" in done.stderr
        assert "left out 1 broken line" in done.stdout, done.stdout


def test_a_folder_is_read_without_what_programs_store_in_it(project: Project) -> None:
    """Judging a folder twice reads the same sessions: results in hidden folders are none."""
    project.config("http://127.0.0.1:9/")
    project.write("week.jsonl", TRACES)
    for _ in range(2):
        done = project.agentest("judge", ".", "--metric", "helpfulness", "--offline")
        found = json.loads((project.root / ".agentest" / "judged.json").read_text())
        assert len(found["scenarios"][0]["conversations"]) == 3, done.stderr


def test_what_cannot_be_judged_as_sessions(project: Project) -> None:
    """Several scenarios, files without sessions, and unknown forms are refused."""
    project.scenario(REFUND)
    project.config("http://127.0.0.1:9/")
    project.write("week.jsonl", TRACES)
    project.write("empty.jsonl", '{"x": 1}')
    unclear = 'scenario("unclear", turns=["x"], gaol="y")\nscenario("later", turns=["x"], skip="not now")'
    project.scenario(unclear, "b.sim.py")
    for words, expected in (
        (["week.jsonl", "--file", "a.sim"], "2 scenarios selected: 'other', 'refund'; select one"),
        (["week.jsonl", "empty.jsonl", "--as", "langfuze"], "is not one of"),
        (["empty.jsonl", "--sample", "2"], "no session with a user's message and a reply was found"),
        (["week.jsonl", "--seed", "2"], "--seed chooses the sessions of --sample N: add it"),
        (["lates", "--sample", "2"], "found no run, file or folder 'lates'"),
        (["week.jsonl", "--scenario", "=unclear"], "unclear (errored): "),
        (["week.jsonl", "--scenario", "=later"], "b.sim.py:3: later (skipped): not now"),
        (["empty.jsonl"], "empty.jsonl is not a results.json or a journal"),
        (["week.jsonl", "none.jsonl"], "none.jsonl cannot be read"),
    ):
        done = project.agentest("judge", *words)
        assert done.returncode == 2
        assert expected in done.stderr, done.stderr
