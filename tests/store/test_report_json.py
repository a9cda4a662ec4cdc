"""`results.json`: its format and schema, and that agent data cannot corrupt it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from builders import (
    MATCHED,
    MISSED,
    broken_file,
    conversation,
    conversation_result,
    error_group,
    failing_conversation,
    failure,
    labelled_failure,
    run_result,
    scenario_result,
    scored,
    skipped_scenario,
    tool_call,
    turn,
    turn_evaluation,
    unfinished_turn,
)
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from stored import to_json

from agentest.domain.end_reason import Ending
from agentest.domain.events import RunFinished, ScenarioFinished
from agentest.domain.results import (
    CheckResult,
    ErrorExample,
    MetricResult,
    QuotaUse,
    Reason,
    ReasonKind,
    RunResult,
    ScenarioResult,
    Severity,
    Skipped,
    Status,
    TrajectoryResult,
    TurnEvaluation,
    UniqueError,
    Unscored,
    Verdict,
)
from agentest.domain.transcript import Blame, TimeSpent
from agentest.report.json import JsonReporter
from agentest.store.codec import CODECS
from agentest.store.run_results import run_of
from agentest.support.files import atomic_writer, write_atomically
from agentest.support.json_text import json_document, plain, well_formed

SCHEMA = json.loads(files("agentest").joinpath("schemas/results.schema.json").read_text(encoding="utf-8"))
METRIC_FORMS: dict[str, MetricResult] = {
    "number": scored(4),
    "fraction": scored(3.5, samples=(3, 3.5, 4)),
    "endless": scored(float("inf")),
    "label": scored("no failure", samples=("no failure", "repetition")),
    "unscored": Unscored("the judge timed out"),
    "skipped": Skipped("no model configured"),
}
texts = st.text(st.characters(categories=[*("L", "M", "N", "P", "S", "Z", "C"), "Cs"]))


def problems(document: Any) -> list[str]:
    validator = Draft202012Validator(SCHEMA)
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(document)]


def written(result: RunResult) -> dict[str, Any]:
    """Return the document as read from the file. Constants that are not JSON are refused."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    document: dict[str, Any] = json.loads(json_document(to_json(result)), parse_constant=refuse)
    return document


def rich_conversation() -> Any:
    """A conversation with every field set."""
    calls = (
        tool_call(),
        tool_call("send_email", "[1", {"error": "x"}, invalid_arguments="not JSON", mocked=False),
    )
    return conversation_result(
        turns=[
            turn_evaluation(
                0,
                METRIC_FORMS,
                trajectory=MATCHED,
                checks=(CheckResult(check="contains", passed=True, summary="ok"),),
            )
        ],
        metrics={"goal_completion": scored(0), **METRIC_FORMS},
        held=conversation(
            turns=[turn(tool_calls=calls, latency_ms=0.12345)],
            failure=failure(),
            unfinished=unfinished_turn(1, "Book it.", tool_call(turn_index=1, error="boom")),
        ),
        trajectory=MISSED,
        failures=[labelled_failure(), labelled_failure("c1-F2", turn_index=None)],
    )


def with_example() -> UniqueError:
    """A group of errors with a turn that shows it."""
    example = ErrorExample(
        conversation_id="c1",
        turn_index=0,
        user_message="Is Tuesday free?",
        agent_message="Yes.",
        tool_calls=("look() → 5",),
    )
    return replace(error_group(), examples=(example,))


def test_results_without_examples_are_read() -> None:
    """Results of earlier versions, whose errors have no examples, can be read."""
    document = written(run_result(*everything()))
    for scenario in document["scenarios"]:
        for error in scenario["errors"]:
            del error["examples"]
    assert problems(document) == []
    (error,) = document["scenarios"][1]["errors"]
    assert CODECS.read(UniqueError, error) == error_group()


def test_scenarios_without_conversations_have_no_rates() -> None:
    document = to_json(run_result(skipped_scenario(), broken_file()))
    assert "passRate" not in document["summary"]
    for scenario in document["scenarios"]:
        assert not {"intervals", "passRate", "passHatK", "flaky"} & scenario.keys()


def everything() -> list[ScenarioResult]:
    return [
        scenario_result(),
        scenario_result("rich", [rich_conversation()], errors=[with_example()], thresholds={"number": 4.5}),
        scenario_result("rich", [conversation_result(metrics=METRIC_FORMS)], agent="other"),
        broken_file(),
        skipped_scenario(),
        scenario_result("nothing finished", []),
    ]


@pytest.mark.parametrize("comparison", [False, True])
@pytest.mark.parametrize("interrupted", [False, True])
def test_schema_describes_every_run(comparison: bool, interrupted: bool) -> None:
    """Every kind of run, scenario, conversation and metric matches the schema, in both modes."""
    result = run_result(*everything(), comparison=comparison, interrupted=interrupted)
    Draft202012Validator.check_schema(SCHEMA)
    assert problems(written(result)) == []


def test_schema_describes_an_empty_run() -> None:
    """A run without scenarios matches the schema and does not pass."""
    document = written(RunResult((), (), False, "2026-01-02T03:04:05Z", 0.0, "0.1.0"))
    assert problems(document) == []
    assert document["summary"]["passed"] is False


@pytest.mark.parametrize(
    "spoil",
    [
        lambda d: d.update(extra=1),
        lambda d: d.update(mode="comparison"),
        lambda d: d["summary"].update(perAgent={}),
        lambda d: d["scenarios"][0].pop("averages"),
        lambda d: d["scenarios"][0].update(status="ok"),
        lambda d: d["scenarios"][0]["conversations"][0].update(score=1),
        lambda d: d["scenarios"][0]["conversations"][0]["turns"][0].update(latencyMs="fast"),
        lambda d: d["scenarios"][0]["conversations"][0]["evaluation"].update(goalCompletion={"value": 1}),
    ],
)
def test_schema_is_strict(spoil: Callable[[Any], object]) -> None:
    """A document with an extra key, a missing key or a wrong type does not match the schema."""
    document = written(run_result())
    spoil(document)
    assert problems(document)


def test_contract_keys() -> None:
    """The keys of the contract exist, spelled the same."""
    document = written(run_result(*everything()))
    scenario = document["scenarios"][1]
    talk = scenario["conversations"][0]
    assert {"schemaVersion", "summary", "scenarios"} <= document.keys()
    assert {"passed", "totalScenarios", "passedScenarios", "failedScenarios"} <= document["summary"].keys()
    assert {"erroredScenarios", "durationMs", "llmCalls", "agentCalls", "usage"} <= document["summary"].keys()
    assert {"name", "file", "line", "status", "passed", "conversations", "averages"} <= scenario.keys()
    assert {"conversationId", "error", "turns", "evaluation", "trajectory"} <= talk.keys()
    assert {"name", "args", "result", "mocked", "turnIndex"} <= talk["turns"][0]["toolCalls"][0].keys()
    assert scenario["errors"][0].keys() == {"label", "severity", "occurrences", "explanation", "examples"} | {
        "description",
        "count",
    }
    assert talk["trajectory"]["missingCalls"] == ["create_booking"]
    turn = talk["perTurnTrajectory"][0].keys()
    assert {"turnIndex", "matched", "reason", "missingCalls", "extraCalls"} <= turn
    assert {"orderingIssues", "forbiddenCalls"} <= turn
    assert talk["evaluation"]["goalCompletion"] == {"value": 0, "reason": "It answers."}


def test_metric_forms() -> None:
    """A score has value and reason, and samples if there are several; others have a reason."""
    document = written(run_result(scenario_result("rich", [rich_conversation()])))
    metrics = document["scenarios"][0]["conversations"][0]["evaluation"]["turnEvaluations"][0]["metrics"]
    assert metrics == {
        "number": {"value": 4, "reason": "It answers."},
        "fraction": {"value": 3.5, "reason": "It answers.", "samples": [3, 3.5, 4]},
        "endless": {"value": "Infinity", "reason": "It answers."},
        "label": {"value": "no failure", "reason": "It answers.", "samples": ["no failure", "repetition"]},
        "unscored": {"error": "the judge timed out"},
        "skipped": {"skipped": "no model configured"},
    }


def test_goal_completion_is_separate() -> None:
    """`goal_completion` is separate from the other conversation metrics, and null if not judged."""
    with_goal = conversation_result(metrics={"goal_completion": scored(1), "politeness": scored(3)})
    without = conversation_result(metrics={})
    [result] = written(run_result(scenario_result("s", [with_goal, without])))["scenarios"]
    first, second = (c["evaluation"] for c in result["conversations"])
    assert first["goalCompletion"]["value"] == 1
    assert list(first["conversationMetrics"]) == ["politeness"]
    assert second["goalCompletion"] is None


def test_counts() -> None:
    """The summary counts scenarios by status, and sums calls and tokens."""
    failing = scenario_result("b", [failing_conversation()])
    summary = written(run_result(scenario_result("a"), failing, broken_file(), skipped_scenario()))["summary"]
    assert summary == {
        "changes": {"newlyFailing": [], "newlyFixed": [], "stillFailing": []},
        "passed": False,
        "totalScenarios": 4,
        "passedScenarios": 1,
        "failedScenarios": 1,
        "erroredScenarios": 1,
        "skippedScenarios": 1,
        "durationMs": 3200.0,
        "llmCalls": 20,
        "agentCalls": 2,
        "passRate": {
            "value": 0.5,
            "n": 2,
            "low": pytest.approx(0.0945, abs=1e-4),
            "high": pytest.approx(0.9055, abs=1e-4),
        },
        "usage": {
            "promptTokens": 2000,
            "completionTokens": 220,
            "cachedTokens": 100,
            "totalTokens": 2220,
            "cost": 0.0,
            "byRole": {
                "user": {
                    "calls": 4,
                    "retries": 0,
                    "promptTokens": 200,
                    "completionTokens": 40,
                    "cachedTokens": 0,
                    "cost": 0.0,
                },
                "judge": {
                    "calls": 16,
                    "retries": 2,
                    "promptTokens": 1800,
                    "completionTokens": 180,
                    "cachedTokens": 100,
                    "cost": 0.0,
                },
            },
        },
        "time": {
            "totalMs": 2000.0,
            "agentMs": 241.0,
            "userMs": 400.0,
            "toolsMs": 3.0,
            "judgesMs": 1200.0,
            "ownMs": 156.0,
        },
        "slowestTurns": [
            {"latencyMs": 120.5, "scenario": name, "agent": "booking", "conversationId": "c1", "turnIndex": 0}
            for name in "ab"
        ],
        "warnings": [],
    }


def test_quotas() -> None:
    """A quota that held up the run has what was used of it, and says how; reading it gives the same."""
    quota = QuotaUse("n", 20, 900, 3, 4000.0, 300.0)
    document = written(run_result(quotas=(QuotaUse("m", 20, 900), quota)))
    assert problems(document) == []
    [stored] = document["summary"]["quotas"]
    message = stored.pop("message")
    assert message.startswith("n: 3 of 20 requests refused; requests waited 4.0 s")
    used = {"model": "n", "requests": 20, "tokens": 900, "refused": 3}
    assert stored == {**used, "waitedMs": 4000.0, "learntPerMinute": 300.0}
    assert run_of(document).quotas == (quota,)


def test_slowest_turns() -> None:
    """The five slowest turns are listed, slowest first, with scenario and agent."""
    slow = conversation_result(
        "c2", held=conversation("c2", [turn(i, latency_ms=10.0 * i) for i in range(9)])
    )
    result = run_result(scenario_result("a"), scenario_result("b", [slow], agent="other"))
    found = written(result)["summary"]["slowestTurns"]
    assert [(each["latencyMs"], each["turnIndex"]) for each in found] == [
        (120.5, 0),
        (80.0, 8),
        (70.0, 7),
        (60.0, 6),
        (50.0, 5),
    ]
    expected = {"scenario": "b", "agent": "other", "conversationId": "c2"}
    assert {key: found[1][key] for key in expected} == expected


def test_time_of_a_conversation() -> None:
    """A conversation lists its waiting times; the rest is Agentest's own time, never negative."""
    over = TimeSpent(total_ms=100.0, agent_ms=99.9999, judges_ms=0.5)
    held = [conversation_result("c1"), replace(conversation_result("c2"), time=over)]
    [result] = written(run_result(scenario_result("s", held)))["scenarios"]
    first, second = (talk["time"] for talk in result["conversations"])
    assert (first["agentMs"], first["userMs"], first["ownMs"]) == (120.5, 200.0, 78.0)
    assert (second["agentMs"], second["ownMs"]) == (100.0, 0.0)


def test_passed_is_the_verdict() -> None:
    """The summary passes exactly if the run did; an interrupted run does not."""
    assert written(run_result())["summary"]["passed"] is True
    assert written(run_result(interrupted=True))["summary"]["passed"] is False


def test_comparison_groups_by_name() -> None:
    """In a comparison, results of a scenario with all agents are grouped, in the order of the run."""
    names = [("a", "one"), ("b", "one"), ("a", "two"), ("b", "two")]
    scenarios = [scenario_result(name, agent=agent) for name, agent in names[:3]]
    failing = scenario_result("b", [failing_conversation()], agent="two")
    document = written(run_result(*scenarios, failing, comparison=True))
    assert document["mode"] == "comparison"
    assert [(s["name"], [a["agent"] for a in s["agents"]]) for s in document["scenarios"]] == [
        ("a", ["one", "two"]),
        ("b", ["one", "two"]),
    ]
    assert document["summary"]["perAgent"]["two"] == {
        "passed": False,
        "totalScenarios": 2,
        "passedScenarios": 1,
        "failedScenarios": 1,
        "erroredScenarios": 0,
        "skippedScenarios": 0,
        "llmCalls": 20,
        "agentCalls": 2,
        "passRate": {
            "value": 0.5,
            "n": 2,
            "low": pytest.approx(0.0945, abs=1e-4),
            "high": pytest.approx(0.9055, abs=1e-4),
        },
    }
    assert document["summary"]["perAgent"]["one"]["passed"] is True


def test_failures_first() -> None:
    """`failures` has the texts of all reasons, failures before errors."""
    reasons = (
        Reason(Status.ERRORED, ReasonKind.MODEL, "the model was away"),
        Reason(Status.FAILED, ReasonKind.CHECK, "contains: it does not"),
    )
    [result] = written(run_result(scenario_result(verdict=Verdict(Status.FAILED, reasons))))["scenarios"]
    assert result["failures"] == ["contains: it does not", "the model was away"]


@pytest.mark.parametrize("blame", list(Blame))
def test_error_of_a_conversation(blame: Blame) -> None:
    """An interrupted conversation has the reason, its source and the unfinished turn."""
    held = conversation(
        turns=[], failure=failure(blame, "cut"), unfinished=unfinished_turn(0, "Hi", tool_call())
    )
    [result] = written(run_result(scenario_result("s", [conversation_result(held=held)])))["scenarios"]
    [talk] = result["conversations"]
    assert (talk["error"], talk["errorSource"], talk["endedBy"]) == ("cut", blame.value, Ending.ERROR.value)
    assert talk["unfinishedTurn"]["toolCalls"][0]["name"] == "check_availability"
    assert talk["passed"] is False


@pytest.mark.parametrize("severity", list(Severity))
def test_severity_is_lower_case(severity: Severity) -> None:
    """Severities are lower-case words."""
    document = written(run_result(scenario_result(errors=[error_group(severity=severity)])))
    assert document["scenarios"][0]["errors"][0]["severity"] == severity.name.lower()


def test_times_are_rounded() -> None:
    """Latencies and durations have three decimals."""
    document = written(run_result(scenario_result("s", [rich_conversation()], duration_ms=1.23456)))
    [result] = document["scenarios"]
    assert result["durationMs"] == 1.235
    assert result["conversations"][0]["turns"][0]["latencyMs"] == 0.123


class Oddity:
    def __str__(self) -> str:
        return "odd"


def cycle() -> dict[str, Any]:
    value: dict[str, Any] = {"name": "x"}
    value["self"] = value
    return value


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"x": float("nan"), "y": [float("-inf")]}, {"x": "NaN", "y": ["-Infinity"]}),
        ({1: (True, None, 2.5)}, {"1": [True, None, 2.5]}),
        ({"when": Oddity()}, {"when": "odd"}),
        (cycle(), {"name": "x", "self": "…"}),
    ],
)
def test_arguments_that_are_not_json(given: Any, expected: Any) -> None:
    """Arguments that JSON cannot represent are written in the nearest form."""
    assert plain(given) == expected


def test_deeply_nested_arguments() -> None:
    """Arguments nested deeper than the stack are written down to a limit."""
    held = conversation(turns=[turn(tool_calls=(tool_call(args=nested(sys.getrecursionlimit() * 2)),))])
    result = run_result(scenario_result("deep", [conversation_result(held=held)]))
    assert problems(written(result)) == []


def test_a_shared_value_is_not_a_cycle() -> None:
    """A value that occurs twice is written twice."""
    shared = [1]
    assert plain({"a": shared, "b": shared}) == {"a": [1], "b": [1]}


@given(texts)
def test_any_text_is_written(text: str) -> None:
    """For any agent text, the file is valid UTF-8 and JSON with the same text, apart from lone surrogates."""
    held = conversation(turns=[turn(agent=text, tool_calls=(tool_call(text, {text: text}, text),))])
    result = run_result(scenario_result(text, [conversation_result(held=held)]))
    document = json.loads(json_document(to_json(result)).encode())
    [talk] = document["scenarios"][0]["conversations"]
    assert document["scenarios"][0]["name"] == well_formed(text)
    assert talk["turns"][0]["agentMessage"] == well_formed(text)
    assert problems(document) == []


@given(st.text())
def test_valid_text_is_unchanged(text: str) -> None:
    assert well_formed(text) == text


def test_surrogates() -> None:
    """A lone surrogate becomes U+FFFD; a split pair becomes its character."""
    assert well_formed("a\ud83db") == "a\ufffdb"
    assert well_formed("\ud83d" + "\ude00") == "😀"


def test_file(tmp_path: Path) -> None:
    """After the run the file exists in a new folder, and nothing else does."""
    path = tmp_path / "deep" / "out" / "results.json"
    reporter = JsonReporter(path)
    reporter.on_event(ScenarioFinished(scenario_result()))
    assert not path.exists()
    reporter.on_event(RunFinished(run_result(scenario_result("größer"))))
    content = path.read_bytes()
    assert content.endswith(b"}\n")
    assert "größer".encode() in content
    assert b'\n  "schemaVersion": 3' in content
    assert [p.name for p in path.parent.iterdir()] == ["results.json"]


@pytest.mark.parametrize("comparison", [False, True])
def test_file_is_the_document(comparison: bool, tmp_path: Path) -> None:
    """The file, written in pieces, equals the document, with one line per conversation."""
    result = run_result(*everything(), comparison=comparison)
    JsonReporter(tmp_path / "results.json").on_event(RunFinished(result))
    content = (tmp_path / "results.json").read_text(encoding="utf-8")
    assert json.loads(content) == written(result)
    assert sum(line.startswith('{"conversationId": "c1"') for line in content.splitlines()) == 3


def test_file_is_replaced_whole(tmp_path: Path) -> None:
    """If writing fails, the old file is unchanged and no partial file remains."""
    path = tmp_path / "results.json"
    path.write_text("old")
    with pytest.raises(TypeError), atomic_writer(path) as file:
        file.writelines([b"new", None])  # type: ignore[list-item]
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["results.json"]


def test_links_of_others_are_not_followed(tmp_path: Path) -> None:
    """A symlink at a predictable name is not followed; one in the file's place is replaced."""
    mine = tmp_path / "mine"
    mine.write_text("mine")
    path = tmp_path / "results.json"
    for name in ("results.json", f"results.json.{os.getpid()}.tmp", "results.json.tmp"):
        (tmp_path / name).symlink_to(mine)
    write_atomically(path, b"new")
    assert (mine.read_text(), path.read_text(), path.is_symlink()) == ("mine", "new", False)


def test_names_of_temporary_files_differ(tmp_path: Path) -> None:
    """Two writers of one file, even in one process, use different temporary files."""
    path = tmp_path / "results.json"
    with atomic_writer(path) as first, atomic_writer(path) as second:
        first.write(b"first")
        second.write(b"second")
    assert path.read_bytes() == b"first"  # whoever closes last


@pytest.mark.parametrize("folder", [0o755, 0o700])
def test_permissions_are_those_of_any_file(tmp_path: Path, folder: int) -> None:
    """The file has the permissions that the umask gives; in a private folder, it is private."""
    tmp_path.chmod(folder)
    write_atomically(tmp_path / "results.json", b"{}")
    (tmp_path / "other").touch(0o666 & folder)
    assert (tmp_path / "results.json").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_place_is_taken(tmp_path: Path) -> None:
    """If the file cannot be replaced, no temporary file remains."""
    (tmp_path / "results.json").mkdir()
    with pytest.raises(OSError):
        write_atomically(tmp_path / "results.json", b"{}")
    assert [p.name for p in tmp_path.iterdir()] == ["results.json"]


def test_warnings_and_undecided_checks() -> None:
    """The document has a scenario's warnings, and undecided checks have a reason."""
    check = CheckResult(check="regex", passed=False, summary="could not be told", error="no answer")
    untold = TrajectoryResult(matched=False, summary="could not be told", error="no answer")
    held = conversation_result(turns=[TurnEvaluation(0, {}, untold, (check,))], trajectory=untold)
    found = scenario_result(conversations=[held], warnings=("look",))
    document = written(run_result(found, scenario_result("other")))
    first, second = document["scenarios"]
    assert (first["warnings"], second["warnings"]) == (["look"], [])
    assert (first["status"], first["passed"]) == ("errored", False)
    (told,) = first["conversations"]
    assert told["trajectory"]["error"] == told["perTurnTrajectory"][0]["error"] == "no answer"
    assert told["evaluation"]["turnEvaluations"][0]["checks"][0]["error"] == "no answer"
    assert problems(document) == []
