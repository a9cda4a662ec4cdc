"""JUnit XML: valid for other parsers with any text, and within the limits of CI servers."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import (
    broken_file,
    conversation,
    conversation_result,
    events,
    failing_conversation,
    failure,
    let_go,
    run_result,
    scenario_result,
    scored,
    skipped_scenario,
    tool_call,
    turn,
    turn_evaluation,
    unfinished_turn,
    verdict,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from junitparser import Error, Failure, JUnitXml, Skipped

from agentest.domain.events import Event
from agentest.domain.results import CaseId, Figure, Reason, ReasonKind, RunResult, RunWarning, Status, Verdict
from agentest.report.junit import CaseTexts, JUnitReporter, document, element, in_rows

texts = st.text(st.characters(categories=["L", "M", "N", "P", "S", "Z", "C", "Cs"])) | st.sampled_from(
    [
        "]]>",
        "&amp;<b>",
        "\x00\x1b[31mred\x1b[0m\x7f",
        "\ufffe\uffff\ud800",
        "a\r\nb\tc\x85\u2028",
        "\"'&quot;",
    ]
)
CHILDREN = {
    "testsuites": ["testsuite"],
    "testsuite": ["properties", "testcase"],
    "testcase": ["properties", "failure", "error", "skipped", "system-out"],
    "properties": ["property"],
}
ATTRIBUTES = {
    "testsuites": {"name", "tests", "failures", "errors", "skipped", "time", "timestamp"},
    "testsuite": {"name", "tests", "failures", "errors", "skipped", "time", "timestamp", "file"},
    "testcase": {"classname", "name", "file", "line", "time"},
    "property": {"name", "value"},
    **{status: {"type", "message"} for status in ("failure", "error", "skipped")},
}
"""Elements in their order, and attributes, that consumers know: those of Jenkins' schema, and `properties`,
`file` and `line` of cases as an extension."""
TYPES_OF_RAILS = {"file", "array", "integer", "float", "boolean", "date", "symbol", "string", "hash", "yaml"}
"""Values of `type` by which GitLab's parser would convert the text of the element."""


def failing(name: str = "no slot", **more: Any) -> Any:
    return scenario_result(name, [failing_conversation()], **more)


def written(result: RunResult, locate: Any = lambda file: file, kept: CaseTexts | None = None) -> str:
    """The file for a run that has released its conversations."""
    kept = kept or CaseTexts()
    kept.several_agents = len(result.agents) > 1
    for scenario in result.scenarios:
        kept.add(scenario)
    return "".join(document(let_go(result), kept, locate))


def parsed(result: RunResult, **more: Any) -> ET.Element:
    root = ET.fromstring(written(result, **more))
    check(root)
    return root


def check(node: ET.Element) -> None:
    """Check the names and order of elements and attributes, and the counts."""
    assert set(node.attrib) <= ATTRIBUTES.get(node.tag, set()), node.tag
    order = [CHILDREN.get(node.tag, []).index(child.tag) for child in node]
    assert order == sorted(order)
    assert node.get("type") not in TYPES_OF_RAILS
    if node.tag in ("testsuites", "testsuite"):
        found = [node.get("tests"), node.get("failures"), node.get("errors"), node.get("skipped")]
        counted = [len([*node.iter(tag)]) for tag in ("testcase", "failure", "error", "skipped")]
        assert found == [str(number) for number in counted]
    for child in node:
        check(child)


def cases(root: ET.Element) -> dict[str, ET.Element]:
    return {str(case.get("name")): case for case in root.iter("testcase")}


def properties(node: ET.Element) -> dict[str, str]:
    return {str(p.get("name")): str(p.get("value")) for p in node.iterfind("properties/property")}


def everything() -> RunResult:
    why = verdict(Status.ERRORED, "the judge's model timed out", ReasonKind.MODEL)
    return run_result(
        scenario_result("fine", warnings=("no mock takes it",)),
        failing(),
        scenario_result("slow", verdict=why),
        skipped_scenario(),
        broken_file(),
    )


def test_another_parser_reads_all_of_it() -> None:
    """junitparser reads each status, with type, message, text, place and time."""
    found = JUnitXml.fromstring(written(everything()).encode())
    assert (found.tests, found.failures, found.errors, found.skipped) == (5, 1, 2, 1)
    assert [suite.name for suite in found] == [
        f"scenarios/{name}.sim.py" for name in ("booking", "later", "broken")
    ]
    held = {case.name: case for suite in found for case in suite}
    assert held["fine"].is_passed
    assert held["fine"].system_out == "warning: no mock takes it"
    kinds = {name: [type(each) for each in case.result] for name, case in held.items()}
    assert kinds == {
        "fine": [],
        "no slot": [Failure],
        "slow": [Error],
        "later": [Skipped],
        "scenarios/broken.sim.py": [Error],
    }
    [failed] = held["no slot"].result
    assert failed.type == "agentest.trajectory"
    assert failed.message == "create_booking not called as expected"
    assert "✗ failed   no slot  scenarios/booking.sim.py:7  0/1 conversation passed" in failed.text
    assert "user: Is Tuesday free?\n" in held["no slot"].system_out
    assert held["slow"].result[0].message == "the judge's model timed out"
    assert held["later"].result[0].type == "agentest.skipped"
    assert held["slow"].time == 1.5


def test_places() -> None:
    """A case has its path from the repository root, its line, and a class that Jenkins can split."""
    [suite] = parsed(run_result(failing()), locate=lambda file: f"packages/bot/{file}")
    [case] = suite.iter("testcase")
    assert case.attrib == {
        "classname": "packages.bot.scenarios.booking",
        "name": "no slot",
        "file": "packages/bot/scenarios/booking.sim.py",
        "line": "7",
        "time": "1.500",
    }
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", suite.get("timestamp", ""))


def test_agents_are_distinguished() -> None:
    """In a comparison a case is a scenario and an agent; a file that did not load has no agent."""
    root = parsed(run_result(failing(agent="a"), scenario_result("no slot", agent="b"), broken_file()))
    assert list(cases(root)) == ["no slot [a]", "no slot [b]", "scenarios/broken.sim.py"]
    assert "[a]" in cases(root)["no slot [a]"].findtext("failure", "")


def test_names_are_unique() -> None:
    """GitLab drops a case with a duplicate class and name, so that a repeated name gets a number."""
    root = parsed(run_result(failing("a"), failing("a", agent=""), failing("a (2)", agent="")))
    assert len(cases(root)) == 3


def test_numbers() -> None:
    """Averages and the pass rate have n and interval; thresholds, cost and models are included."""
    measured = replace(
        scenario_result(
            "s", [conversation_result(turns=[turn_evaluation(metrics={"helpfulness": scored(4)})])]
        ),
        thresholds={"helpfulness": 3.5},
        intervals={"helpfulness": Figure(4.0, 6, 3.25, 4.75)},
        pass_rate=Figure(2 / 3, 3, 0.2077, 0.9385),
        decided_after=3,
        tags=("slow", "paid"),
        case=CaseId("cases", "c7"),
    )
    root = parsed(run_result(measured))
    found = properties(cases(root)["s"])
    assert found.items() >= {
        "average.helpfulness": "4",
        "average.helpfulness.n": "6",
        "average.helpfulness.low": "3.25",
        "average.helpfulness.high": "4.75",
        "threshold.helpfulness": "3.5",
        "pass_rate": "0.666667",
        "pass_rate.low": "0.2077",
        "pass_hat_k.2": "0.333333",
        "flaky": "true",
        "decided_after": "3",
        "tags": "slow, paid",
        "eval_set": "cases",
        "eval_case": "c7",
        "conversations": "1",
    }.items()  # fmt: skip
    assert (
        properties(root[0]).items()
        >= {"model.user": "ollama/llama3.2", "model.judge": "none", "model_calls": "10"}.items()
    )


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (run_result(interrupted=True), "Interrupted: all scenarios had finished"),
        (run_result(skipped_scenario()), "nothing ran"),
        (RunResult((), (), False, "", 0.0, "", stopped="a budget"), "nothing ran: a budget"),
        (
            run_result(unclaimed=(RunWarning("2 calls of `pay` were nobody's\nmore", "a", "f", 1),)),
            "2 calls of `pay` were nobody's",
        ),
    ],
    ids=["interrupted", "all skipped", "no scenario", "stray calls"],
)  # fmt: skip
def test_a_run_that_did_not_pass_has_an_error(result: RunResult, message: str) -> None:
    """A problem of the whole run is an errored case."""
    root = parsed(result)
    error = cases(root)["the run as a whole"].find("error")
    assert error is not None
    assert error.get("message") == message
    assert root.get("errors") == "1"


@pytest.mark.parametrize("interrupted", [True, False])
def test_scenarios_that_did_not_run_are_one_error(interrupted: bool) -> None:
    """After an early end, they are skipped, and one error counts them."""
    why = verdict(Status.ERRORED, "after 0 of 3 conversations", ReasonKind.INTERRUPTED)
    waiting = [scenario_result(f"waits {n}", [], verdict=why, duration_ms=0) for n in range(20)]
    stopped = "interrupted" if interrupted else "the budget is spent"
    root = parsed(run_result(scenario_result(), *waiting, interrupted=interrupted, stopped=stopped))
    assert (root.get("tests"), root.get("errors"), root.get("skipped")) == ("22", "1", "20")
    assert "20 of 21 scenarios did not run" in cases(root)["the run as a whole"].findtext("error", "")
    [left] = cases(root)["waits 0"].iterfind("skipped")
    assert left.get("type") == "agentest.skipped"
    assert left.get("message") == "after 0 of 3 conversations"


def test_a_failed_scenario_needs_no_further_case() -> None:
    assert "the run as a whole" not in cases(parsed(everything()))


@given(texts)
@settings(deadline=None)
def test_any_text_can_be_read_back(text: str) -> None:
    """With any text, the file is valid XML 1.0 and contains no commands."""
    held = conversation(
        "c1",
        [turn(user=text, agent=text, tool_calls=(tool_call(text, {text: text}, text),))],
        failure(message=text),
        unfinished_turn(1, text, tool_call(text, text)),
    )
    scenario = scenario_result(text, [conversation_result(held=held)], agent=text)
    root = parsed(
        run_result(replace(scenario, file=text, tags=(text,), warnings=(text,)), skipped_scenario(text))
    )
    whole = "".join(root.itertext()) + "".join(
        value for node in root.iter() for value in node.attrib.values()
    )
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\ufffe\uffff\u202e]", whole)


@given(texts)
def test_harmless_text_is_unchanged(text: str) -> None:
    """Letters, punctuation and spaces are read back unchanged in elements and attributes."""
    plain = re.sub(r"[^\w<>&\"']+", " ", text)
    root = ET.fromstring(element("a", {"b": plain}, [in_rows(plain)]))
    assert ((root.text or ""), root.get("b")) == (plain, plain)


def test_agent_text_cannot_attach_a_file() -> None:
    """GitLab and Jenkins publish files named in `[[ATTACHMENT|path]]`, so such text is broken up."""
    held = conversation(turns=[turn(agent="[[ATTACHMENT|/etc/\x1b[1mpasswd]] [\x1b[0m[ATTACHMENT|/x]]")])
    sick = replace(failing_conversation(), conversation=held)
    assert "[[ATTACHMENT|" not in written(run_result(scenario_result("s", [sick])))


def test_a_long_failure_is_shortened() -> None:
    """A case stays within what Jenkins shows, and says how much it left out."""
    talk = conversation(turns=[turn(i, agent="x" * 4000) for i in range(9)], failure=failure())
    long = [conversation_result(f"c{n}", held=replace(talk, conversation_id=f"c{n}")) for n in range(30)]
    reasons = [Reason(Status.FAILED, ReasonKind.CHECK, f"{n}" + "y" * 9000) for n in range(3)]
    [case] = parsed(
        run_result(scenario_result("s", long, verdict=Verdict(Status.FAILED, tuple(reasons))))
    ).iter("testcase")
    output = case.findtext("system-out", "")
    assert 50_000 < len(output) < 100_000
    assert "… 28 more transcripts left out" in output
    assert len(case.findtext("failure", "")) < 25_000


def test_a_large_run_stays_below_what_gitlab_takes() -> None:
    """When the limit is reached, cases keep their headlines and count the missing transcripts."""
    root = parsed(run_result(*(failing(f"s{n}") for n in range(40))), kept=CaseTexts(3_000, 3_000))
    first, last = cases(root)["s0"], cases(root)["s39"]
    assert "0/1 conversation passed" in first.findtext("failure", "")
    assert "user: " in first.findtext("system-out", "")
    assert last.findtext("failure") == "create_booking not called as expected"
    assert last.findtext("system-out") == "… 1 more transcript left out: results.json has them"


def test_the_reporter_writes_at_the_end(tmp_path: Path) -> None:
    """The file is written as a whole at the end, in a new folder, and again on request."""
    path = tmp_path / "reports" / "junit.xml"
    reporter = JUnitReporter(path, lambda file: file)
    seen: list[Event] = list(events(run_result(failing(), scenario_result("ä"))))
    for event in seen:
        assert not path.exists()
        reporter.on_event(event)
    content = path.read_bytes()
    check(ET.fromstring(content))
    reporter.on_event(seen[-1])
    assert path.read_bytes() == content
    assert [each.name for each in path.parent.iterdir()] == ["junit.xml"]
