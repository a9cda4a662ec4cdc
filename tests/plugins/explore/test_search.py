"""The next variations of an exploration, and those left for later explorations."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from explore_lab import Act, Seen, explored, unit_of

from agentest.config.agents.tools import AgentTool
from agentest.domain.changes import fault, injection
from agentest.domain.end_reason import Ending
from agentest.domain.results import ConversationResult
from agentest.domain.results.exploration import ExploredPart
from agentest.domain.transcript import Conversation, ToolCall, Turn
from agentest.plugins.explore.corpus import (
    Corpus,
    CorpusEntry,
    CoverageCounter,
    SeenElements,
    has_reached,
    reached_outcomes,
    signature,
    with_entries,
)
from agentest.plugins.explore.exploration_run import guesses
from agentest.plugins.explore.fault_sweep import FaultSweep
from agentest.plugins.explore.model import Base, Observation, Variation
from agentest.plugins.explore.mutation_sweep import MutationSweep
from agentest.plugins.explore.search import Search, combined
from agentest.scenarios.definition import build_scenario
from agentest.scenarios.trajectory_parser import call as call_of
from agentest.support.lazy_dataclasses import replace

BOOKING: dict[str, Any] = {
    "turns": ["Please book table 4 for Friday."],
    "tools": {"search": {"table": 4}, "book": {"code": "B-12"}},
}


def booking(*, panics: bool) -> Any:
    """A host who searches and books. It panics only if both tools fail."""

    def brain(seen: Seen) -> Act:
        if "search" not in seen.made:
            return "search", {"day": "Friday"}
        blind = not isinstance(seen.result("search"), dict) or "error" in seen.result("search")
        if "book" not in seen.made:
            return "book", {"table": 4}
        answer = seen.result("book")
        if isinstance(answer, dict) and answer.get("code") == "B-12":
            return "Booked under B-12."
        if blind and panics:
            return ""
        return "Sorry, I do not know whether the table is booked."

    return brain


def parts() -> Any:
    return {ExploredPart.FAULTS: FaultSweep()}


def talk(*calls: ToolCall, reply: str = "Done.", ending: Ending = Ending.SCRIPT) -> Conversation:
    turns = (Turn(0, "Hi", reply, calls),)
    return Conversation("c", turns, ending)


def call(name: str, result: Any = None, **args: Any) -> ToolCall:
    return ToolCall(name, args, result or {"ok": True}, True, 0)


def test_a_signature_names_what_happened_without_values() -> None:
    scenario = build_scenario({"name": "s", **BOOKING}, "/a.sim.py", 1)
    changed = replace(scenario, changes=(fault("timeout", tool="book"),))
    calls = (
        call("search", day="Friday"),
        call("book", {"error": "timed out after 3 s"}, table=4),
        call("nap"),
    )
    elements = signature(changed, talk(*calls, reply="Sorry, that did not work."))
    assert {"search(day:text)→ok", "book(table:number)→timeout", "nap()→ok", "refusal yes"} <= elements
    assert "search(day:text)→ok > book(table:number)→timeout > nap()→ok" in elements
    assert set(reached_outcomes(elements)) == {("search", "ok"), ("book", "timeout"), ("nap", "ok")}
    other = signature(scenario, talk(*calls))
    assert "book(table:number)→error timed out after # s" in other
    assert not any("Friday" in each for each in elements)


def test_replies_that_differ_in_a_number_are_one_element_and_other_replies_are_not() -> None:
    seen = SeenElements()
    scenario = build_scenario({"name": "s", **BOOKING}, "/a.sim.py", 1)
    seen.add(signature(scenario, talk(reply="Your table 4 is booked for Friday at 8.")))
    assert seen.add(signature(scenario, talk(reply="Your table 7 is booked for Friday at 9."))) == 0
    assert seen.add(signature(scenario, talk(reply="Who are you and what do you want from me?"))) == 1
    assert seen.add(signature(scenario, talk(reply="Who?", ending=Ending.SATISFIED))) == 2


@pytest.mark.slow
def test_the_seed_fixes_the_tries_and_one_of_each_fault_and_tool_comes_first() -> None:
    orders: list[list[str]] = []
    for seed in (1, 1, 2):
        orders.append([])
        explored(booking(panics=False), parts(), seed=seed, tried=orders[-1], **BOOKING)
    assert orders[0] == orders[1] != orders[2]
    kinds = ("error", "timeout", "malformed", "slow")
    wanted = {(kind, tool) for kind in kinds for tool in ("search", "book")}
    faults = [each for each in orders[0] if " of " in each and " and " not in each]
    first = {(each.split(" of ")[0], each.split(" of ")[1].split(",")[0]) for each in faults[:26]}
    assert wanted <= first


@pytest.mark.slow
def test_two_changes_are_combined_when_single_ones_are_used_up() -> None:
    tried: list[str] = []
    found = explored(booking(panics=True), parts(), conversations=400, tried=tried, **BOOKING)
    assert [each.oracle for each in found] == ["no_error"]
    assert " and " in next(each for each in tried if "book" in each and "search" in each)
    assert len(set(tried)) == len(tried)
    assert explored(booking(panics=False), parts(), conversations=400, **BOOKING) == []


@pytest.mark.slow
def test_the_corpus_puts_what_failed_first_and_is_merged_by_copying(tmp_path: Path) -> None:
    one, other = Corpus(tmp_path / "one"), Corpus(tmp_path / "other")
    explored(booking(panics=True), parts(), conversations=400, corpus=one, **BOOKING)
    explored(booking(panics=True), parts(), conversations=400, seed=3, corpus=other, **BOOKING)
    for path in (tmp_path / "other").iterdir():
        shutil.copy(path, tmp_path / "one" / path.name)
    names = {each.name for each in (*other.read(), *one.read())}
    assert {path.name for path in (tmp_path / "one").iterdir()} == names
    tried: list[str] = []
    [found] = explored(booking(panics=True), parts(), conversations=60, corpus=one, tried=tried, **BOOKING)
    assert found.conversations_to_find <= 20
    assert " and " in tried[0]
    size = len(names)
    explored(booking(panics=True), parts(), conversations=60, corpus=one, **BOOKING)
    assert len(one.read()) - size <= size / 10  # little is new any more


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"corpus": 2}',
        '{"corpus": 1, "new": "x"}',
        "\x00",
        "[" * 20_000,
        "7",
        '"corpus"',
    ],
)
def test_files_that_are_no_entries_are_reported_and_skipped(tmp_path: Path, content: str) -> None:
    corpus = Corpus(tmp_path)
    entry = CorpusEntry(
        scenario="s", file="a", agent="b", changes=("typos 1",), elements=("reply 00ff",), new=1, cost=2
    )
    corpus.add(entry)
    (tmp_path / "foreign.json").write_text(content)
    data = json.loads((tmp_path / entry.name).read_text())
    for key, value in (("elements", ["reply zz"]), ("cost", 0), ("changes", [1]), ("more", 1)):
        (tmp_path / f"wrong {key}.json").write_text(json.dumps({**data, key: value}))
    assert corpus.read() == [entry]
    assert "5 files of the corpus: foreign.json" in corpus.problems[0].what


def test_a_corpus_that_cannot_be_written_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "corpus").write_text("a file")
    corpus = Corpus(tmp_path / "corpus")
    explored(booking(panics=False), parts(), conversations=40, corpus=corpus, **BOOKING)
    assert [each.what for each in corpus.problems] == ["the corpus"]


def test_entries_of_changes_that_no_longer_exist_are_ignored() -> None:
    scenario = build_scenario({"name": "s", **BOOKING}, "/a.sim.py", 1)
    base = Base(unit_of(scenario), ())
    [single] = [each for each in FaultSweep(only=["timeout"])(base) if each.scenario.faults[0].tool == "book"]
    gone = CorpusEntry(
        scenario="s", file="a.sim.py", agent="agent", changes=("gone", "typos 1"), elements=(), new=3, cost=1
    )
    search = Search([(base, single)], 0, [gone])
    following = search.next()
    assert following is not None
    assert following[1] is single
    assert search.next() is None


def test_changes_that_could_convict_a_right_agent_are_not_combined() -> None:
    scenario = build_scenario({"name": "s", **BOOKING}, "/a.sim.py", 1)
    base = Base(unit_of(scenario), ())

    def of(kind: str, tool: str) -> Variation:
        return next(each for each in FaultSweep(only=[kind])(base) if each.scenario.faults[0].tool == tool)

    mutations = {each.name.split(" ")[0]: each for each in MutationSweep()(base)}
    both = combined(of("timeout", "book"), mutations["typos"])
    assert both is not None
    assert [each.kind for each in both.scenario.faults] == ["timeout"]
    assert both.scenario.turns == mutations["typos"].scenario.turns
    assert both.part is ExploredPart.FAULTS
    assert combined(of("timeout", "book"), of("error", "book")) is None  # the same call
    assert combined(of("permission_denied", "book"), of("error", "search")) is None
    assert combined(mutations["typos"], mutations["case"]) is None
    assert combined(of("timeout", "book"), mutations["correct"]) is None


def test_a_change_that_the_agent_was_never_sent_is_no_try() -> None:
    """Neither a fault of a second call that never came, nor an injection in an answer that was not given."""
    scenario = build_scenario({"name": "s", **BOOKING}, "/a.sim.py", 1)
    base = Base(unit_of(scenario), ())
    plain = next(iter(FaultSweep(only=["timeout"])(base)))

    def reaches(change: Any, *calls: ToolCall, said: str = "Hi") -> bool:
        turns = (Turn(0, said, "Done.", calls),)
        changed = replace(plain, scenario=replace(scenario, changes=(change,)))
        result = ConversationResult(Conversation("c", turns, Ending.SCRIPT))
        return has_reached(Observation(base, changed, result))

    answered = call("book", {"code": "B-12"}, table=4)
    assert reaches(fault("timeout", tool="book"), answered)
    assert not reaches(fault("timeout", tool="book", at=2), answered)
    planted = injection("base64", at="book.code")
    assert reaches(planted, call("book", {"code": f"B-12 {planted.payload}"}, table=4))
    assert not reaches(planted, answered)
    of_user = injection("direct", at="user[0]")
    assert reaches(of_user, said=f"Hi {of_user.payload}")
    assert not reaches(of_user)
    assert not reaches(injection("direct", at="book.description"), answered)


def test_all_of_a_budget_is_searched_if_nothing_fails() -> None:
    tried: list[str] = []
    assert explored(booking(panics=False), parts(), conversations=40, tried=tried, **BOOKING) == []
    assert len(tried) == 40


def test_coverage_counts_outcomes_and_the_rules_that_could_have_been_broken() -> None:
    options = {**BOOKING, "never": [call_of("book", table=9), "goodbye"], "criteria": ["Says the table."]}
    scenario = build_scenario({"name": "s", **options}, "/a.sim.py", 1)
    base = Base(unit_of(scenario), ())
    counter = CoverageCounter(without=["bounded"])
    counter.expect([base], FaultSweep(only=["timeout", "error"])(base))
    before = counter.coverage()
    assert before.tools["book"] == {"ok": 0, "timeout": 0, "error": 0}
    assert "bounded" not in before.rules
    assert {*before.never_exercised} == {*before.rules}
    assert "never book({'table': 9})" in before.rules
    [timeout] = [
        each for each in FaultSweep(only=["timeout"])(base) if each.scenario.faults[0].tool == "book"
    ]
    result = ConversationResult(talk(call("book", {"error": "timed out"}, table=4)))
    counter.add(Observation(base, timeout, result))
    after = counter.coverage()
    assert after.tools["book"] == {"ok": 0, "timeout": 1, "error": 0}
    assert {*after.never_reached} == {
        ("book", "ok"),
        ("book", "error"),
        *(("search", o) for o in ("ok", "timeout", "error")),
    }
    assert {"no_claim", "never book({'table': 9})", "never says 'goodbye'"}.isdisjoint(after.never_exercised)
    assert {"no_repeated_write", "criterion: Says the table."} <= {*after.never_exercised}
    entry = CorpusEntry(
        scenario="s",
        file="a",
        agent="b",
        changes=("x",),
        elements=("book()→error busy", "nap()→ok"),
        new=1,
        cost=2,
    )
    assert with_entries(after, [entry]).tools["book"] == {"ok": 0, "timeout": 1, "error": 1}


@pytest.mark.parametrize("schema", [{"type": "strange"}, {"properties": 5}, {"$ref": "#/$defs/gone"}])
def test_a_schema_that_cannot_be_used_is_reported(schema: dict[str, Any]) -> None:
    """No call can be found to break it, which must not look as if every call fitted."""
    unit = unit_of(build_scenario({"name": "s", **BOOKING}, "/a.sim.py", 1))
    tools = (AgentTool(name="cancel", parameters=schema), AgentTool(name="book", parameters={}))
    traits = replace(unit.traits, tools=replace(unit.traits.tools, configured=tools))
    effects = Base(replace(unit, traits=traits), ()).effects
    assert effects.argument_problem("cancel", {"x": 1}) == ""
    notes = guesses([Base(replace(unit, traits=traits), ())])
    assert [each.what for each in notes if "JSON Schema" in each.why] == ["arguments of 'cancel'"]
    assert not any("JSON Schema" in each.why for each in guesses([Base(unit, ())]))
