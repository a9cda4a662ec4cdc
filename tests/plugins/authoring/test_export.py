"""Finished conversations as evaluation sets and as scripted scenarios."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import builders
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stored import to_json

from agentest import scenario
from agentest.domain.end_reason import Ending
from agentest.domain.results import RunResult
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import AttachedFile, Conversation, Remark, ToolCall, Turn
from agentest.plugin import Plugin, PluginRegistry
from agentest.plugins.adk.cases import recorded_case
from agentest.plugins.adk.formats.eval_set import (
    EVAL_SET,
    EvalSet,
    eval_set_json,
    text_of,
    tool_calls,
    tool_responses,
)
from agentest.plugins.authoring.export import (
    Exported,
    ExportedConversation,
    ExportFormat,
    ExportTask,
    export,
    read_earlier,
    select,
    write,
)
from agentest.plugins.authoring.scenario_files import scenario_file
from agentest.scenarios.definition import collect_scenarios
from agentest.scenarios.discovery import discover_file
from agentest.scenarios.model import Scenario
from agentest.scenarios.python_formatting import literal
from agentest.scenarios.source_code import export_script as script_of_scenarios
from agentest.scenarios.source_code import exported_name, scripted_scenario
from agentest.scenarios.trajectory import ExpectedCall
from agentest.store.adk_results import unwrapped
from agentest.support.errors import UsageError
from agentest.support.importing import Imports
from agentest.support.json_text import json_document
from agentest.testing import Raw, ScriptedAgent, run_scenarios

RUFF = [sys.executable, "-m", "ruff"]
QUICK = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
prose = st.lists(
    st.one_of(
        texts, st.sampled_from(["it's", 'a "quote"', "line\nbreak", "back\\slash", "Größe", "日本語", "🙂"])
    ),
    max_size=25,
).map(" ".join)
names = st.one_of(
    st.sampled_from(["lookup_order", "refund", "class", "ünï", "say hi"]), st.text("abc_1 ", min_size=1)
).filter(str.strip)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | prose,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(texts | st.just("__debug__"), inner, max_size=4)
    ),
    max_leaves=8,
)
arguments = st.dictionaries(names | texts, json_values, max_size=3)
outcomes = st.one_of(json_values, prose.filter(bool).map(RuntimeError))
calls = st.tuples(names, arguments | st.sampled_from(["[1]", "{broken"]), outcomes)
stories = st.lists(
    st.tuples(prose, st.lists(calls, max_size=3), prose.filter(str.strip)), min_size=1, max_size=3
)


def results(tmp_path: Path, result: RunResult) -> Path:
    """A results.json as a run writes it."""
    path = tmp_path / "results.json"
    path.write_text(json_document(to_json(result)), encoding="utf-8")
    return path


def held(*turns: Turn, id: str = "s-1", name: str = "s") -> ExportedConversation:
    return ExportedConversation(
        scenario=name, agent="agent", conversation=Conversation(id, turns, Ending.SCRIPT), passed=True
    )


def export_script(conversations: Sequence[ExportedConversation]) -> str:
    """A script that repeats these conversations."""
    named = [(exported_name(each.scenario, each.conversation), each.conversation) for each in conversations]
    return script_of_scenarios([scripted_scenario(name, conversation) for name, conversation in named])


def run_of(*conversations: Any, name: str = "s") -> RunResult:
    found = [builders.conversation_result(held=each) for each in conversations]
    return builders.run_result(builders.scenario_result(name, found))


def scenarios_of(source: str) -> list[Scenario]:
    with collect_scenarios() as found:
        exec(compile(source, "exported.sim.py", "exec"), {})
    return found


def scenarios_of_data(source: str, folder: Path) -> Sequence[Scenario]:
    (folder / "exported.sim.yaml").write_text(source, encoding="utf-8")
    found = discover_file(folder / "exported.sim.yaml", Imports())
    assert found.problems == []
    return found.scenarios


# --- the round trip --------------------------------------------------------------------------------------


def agent_answers(story: Sequence[Any]) -> Iterator[Any]:
    """An agent's answers in a story: its calls in order, then its reply."""
    for _, made, reply in story:
        for name, args, _ in made:
            text = args if isinstance(args, str) else json.dumps(args)
            yield {"type": "function", "function": {"name": name, "arguments": text}}
        yield reply


def original(story: Sequence[Any]) -> Scenario:
    """The scenario in which a story happens, with mocks that are functions."""
    told: dict[str, list[Any]] = {}
    for _, made, _ in story:
        for name, args, outcome in made:
            told.setdefault(name, []).extend([outcome] if isinstance(args, dict) else [])

    def mock(name: str) -> Any:
        def answer(args: dict[str, Any], ctx: Any) -> Any:
            outcome = told[name][ctx.call_index]
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        return answer

    return scenario(
        "a story", turns=[said for said, _, _ in story], tools={name: mock(name) for name in told}
    )


def transcript(result: RunResult) -> list[Any]:
    conversation = result.scenarios[0].conversations[0].conversation
    return [
        (
            turn.user_message,
            turn.agent_message,
            [(c.name, json.dumps(c.args), c.result) for c in turn.tool_calls],
        )
        for turn in conversation.turns
    ]


@pytest.mark.parametrize(
    "text", ["\x85", "a\u2028b", " \r\n x", "\ufeff", "yes", "017", "{a: 1}", "# x", "a\n\n b\n"]
)
def test_texts_in_yaml_read_back_as_they_were(tmp_path: Path, text: str) -> None:
    """YAML folds line breaks and converts words, so texts are checked to be unchanged."""
    file = scenario_file([{"name": "s", "turns": [text], "tools": {"t": {text: [text]}}}])
    [found] = scenarios_of_data(file, tmp_path)
    assert (found.turns[0].user_message, found.tools["t"]) == (text, {text: [text]})


@QUICK
@given(stories, st.sampled_from(["scenario", "yaml"]))
def test_an_exported_scenario_passes_against_the_same_agent(
    tmp_path_factory: pytest.TempPathFactory, story: Any, form: Any
) -> None:
    """Run, exported and run again, a conversation is the same. It passes if its arguments are readable."""
    path = tmp_path_factory.mktemp("run")
    with ScriptedAgent(list(agent_answers(story))) as agent:
        first = run_scenarios([original(story)], agent=agent)
        source = export(results(path, first), form).content.decode()
        exported = scenarios_of(source) if form == "scenario" else scenarios_of_data(source, path)
        second = run_scenarios(exported, agent=agent, strict=False)
    played = first.scenarios[0].conversations[0].conversation
    readable = all(call.invalid_arguments is None for call in played.tool_calls)
    assert second.scenarios[0].verdict.passed is readable, (second.scenarios[0].verdict, source)
    assert transcript(second) == transcript(first)


def test_an_exported_scenario_notices_another_agent(tmp_path: Path) -> None:
    """An agent that makes another call, one more or one fewer, fails the exported scenario."""

    def say(*days: str) -> list[Any]:
        return [
            *(
                {"type": "function", "function": {"name": "book", "arguments": json.dumps({"day": d})}}
                for d in days
            ),
            "Booked.",
        ]

    books = scenario("books", turns=["Friday, please."], tools={"book": {"id": "B1"}})
    with ScriptedAgent(say("friday")) as agent:
        source = export(results(tmp_path, run_scenarios([books], agent=agent)), "scenario").content.decode()
    for days, passes in ((["friday"], True), (["monday"], False), (["friday", "friday"], False), ([], False)):
        with ScriptedAgent(say(*days)) as agent:
            (found,) = run_scenarios(scenarios_of(source), agent=agent).scenarios
        assert found.verdict.passed is passes, days


@QUICK
@given(stories)
def test_an_exported_evaluation_set_holds_what_happened(story: Any) -> None:
    """Every message, call and answer of a conversation is in the case that is read back."""
    turns = [
        Turn(
            index,
            said,
            reply,
            tuple(
                ToolCall(n, a, o if not isinstance(o, Exception) else None, True, index) for n, a, o in made
            ),
            remarks=(Remark("helper", "one moment"),),
        )
        for index, (said, made, reply) in enumerate(story)
    ]
    made_set = EvalSet("mine", (recorded_case(held(*turns).conversation, 12.5),), creation_timestamp=12.5)
    read: EvalSet = EVAL_SET.validate_json(eval_set_json(made_set))
    assert read == made_set
    (case,) = read.eval_cases
    assert case.conversation is not None
    for turn, invocation in zip(turns, case.conversation, strict=True):
        # `text_of` leaves out empty parts.
        assert text_of(invocation.user_content) == turn.user_message
        assert text_of(invocation.final_response) == turn.agent_message
        data = invocation.intermediate_data
        assert [c.name for c in tool_calls(data)] == [c.name for c in turn.tool_calls]
        for call, told, answer in zip(turn.tool_calls, tool_calls(data), tool_responses(data), strict=True):
            assert told.args == (
                call.args if isinstance(call.args, dict) else {"invalid_arguments": call.args}
            )
            assert isinstance(answer.response, dict)
            assert unwrapped(answer.response) == call.result
            assert told.id == answer.id


# --- how the source looks --------------------------------------------------------------------------------


def ruff(folder: Path, *arguments: str) -> None:
    """All sources of a folder at once: starting ruff costs more than what it does."""
    done = subprocess.run(
        [*RUFF, *arguments, "--isolated", "--no-cache", str(folder)], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()


def test_the_source_is_formatted(tmp_path: Path) -> None:
    """`ruff format` changes nothing, whatever its line length, and `ruff check` finds nothing."""
    sources = []

    @QUICK
    @given(stories, prose.filter(str.strip))
    def make(story: Any, name: str) -> None:
        turns = [Turn(0, said, reply, tuple(call_of(*each) for each in made)) for said, made, reply in story]
        sources.append(export_script([held(*turns, name=name), held(*turns[:1], id="s-2")]))
        ast.parse(sources[-1])

    make()
    for number, source in enumerate(sources):
        (tmp_path / f"made_{number}.py").write_bytes(source.encode())
    for length in ("88", "100"):
        ruff(tmp_path, "format", "--diff", "--line-length", length)
    ruff(tmp_path, "check", "--select", "E4,E7,E9,F,W,I,B,UP,C4,SIM,RUF", "--ignore", "RUF001,RUF003,RUF100")


def call_of(name: str, args: Any, outcome: Any) -> ToolCall:
    """A call with its result, or with the error that it ended in."""
    if isinstance(outcome, Exception):
        return ToolCall(name, args, {"error": str(outcome)}, True, 0, error=str(outcome) or None)
    return ToolCall(name, args, outcome, True, 0)


def test_long_texts_are_written_in_pieces() -> None:
    """Prose is split between words to the line length; nothing is lost."""
    said = "Where is my order? " * 12
    source = export_script([held(builders.turn(user=said))])
    assert max(map(len, source.splitlines())) <= 88
    assert scenarios_of(source)[0].turns[0].user_message == said


@given(texts)
def test_literals_are_what_they_stand_for(text: str) -> None:
    """A literal evaluates to its text, and nothing in it could steer a terminal."""
    assert ast.literal_eval(literal(text)) == text
    assert literal(text).isprintable()


def test_a_whole_file() -> None:
    """The file for a failing tool, a tool with two answers and names that are not identifiers."""
    calls = (
        ToolCall("lookup", {"id": 1}, {"error": "timed out"}, True, 0, error="timed out"),
        ToolCall("lookup", {"id": 1}, {"status": "sent"}, True, 0),
        ToolCall("notify", {"e-mail": "a@b.c"}, None, True, 0),
        ToolCall("pay", "{broken", {"error": "no JSON"}, True, 0, invalid_arguments="no JSON"),
        ToolCall("list", {}, [], True, 0),
        ToolCall("list", {}, [], True, 0),
        ToolCall("flag", {}, 1, True, 0),
        ToolCall("flag", {}, True, True, 0),
        ToolCall("down", {}, {"error": "gone"}, True, 0, error="gone"),
    )
    source = export_script(
        [held(builders.turn(user="Where?", tool_calls=calls), name="late order", id="late-1")]
    )
    assert (
        source
        == '''\
"""Exported conversations: what users said, tools answered and the agent called."""

from agentest import ToolError, call, exactly, scenario, sequence

scenario(
    "late order (late-1)",
    turns=["Where?"],
    tools={
        "lookup": sequence(ToolError("timed out"), {"status": "sent"}),
        "notify": None,
        "pay": None,
        "list": [],
        "flag": sequence(1, True),
        "down": sequence(ToolError("gone")),
    },
    trajectory={
        "match_mode": "strict",
        "expected": [
            call("lookup", id=1),
            call("lookup", id=1),
            exactly(call("notify", {"e-mail": "a@b.c"})),
            "pay",
            call("list"),
            call("list"),
            call("flag"),
            call("flag"),
            call("down"),
        ],
    },
    tags=["exported"],
)
'''
    )


@pytest.mark.parametrize("name", ["class", "__debug__", "e-mail", "\ufb01", "", "2nd"])
def test_names_that_cannot_stand_before_an_equals_sign(name: str) -> None:
    """Arguments of such names are written as a dict, and compared exactly."""
    call = builders.tool_call("x", {name: 1, "plain": 2})
    (made,) = scenarios_of(export_script([held(builders.turn(tool_calls=(call,)))]))
    assert made.trajectory[0].expected == (ExpectedCall("x", {name: 1, "plain": 2}, "exact"),)


def test_only_what_is_used_is_imported() -> None:
    """A conversation without tools needs `scenario` alone, and expects no calls."""
    source = export_script([held(builders.turn(user="Hello"))])
    assert "from agentest import scenario\n" in source
    assert '"expected": []' in source


# --- what is exported ------------------------------------------------------------------------------------

FAILED = builders.conversation("c2", [], builders.failure(message="the agent answered with status 500"))


def test_unfinished_conversations_are_left_out_with_a_note(tmp_path: Path) -> None:
    """The note has the reason; the others are exported."""
    path = results(tmp_path, run_of(builders.conversation("c1"), FAILED))
    exported = export(path, "evalset")
    assert [case.eval_id for case in EVAL_SET.validate_json(exported.content).eval_cases] == ["c1"]
    assert exported.notes == ("left out c2, which did not finish: the agent answered with status 500",)


def test_conversations_with_files_are_left_out_and_told(tmp_path: Path) -> None:
    """Results do not keep the files that a user sent: a test made of the rest would be another one."""
    sent = builders.conversation("c2", [builders.turn(attachments=(AttachedFile("image/png", "a.png", 4),))])
    exported = export(results(tmp_path, run_of(builders.conversation("c1"), sent)), "evalset")
    assert exported.notes == ("left out c2, whose user sent files along: results do not keep them",)


def test_the_initial_session_state(tmp_path: Path) -> None:
    """A script starts with the same state; a set would need more, and a note says so."""
    began = replace(builders.conversation("c1"), initial_state={"tier": "gold"})
    path = results(tmp_path, run_of(began, builders.conversation("c2")))
    first, second = scenarios_of(export(path, "scenario").content.decode())
    assert first.session is not None
    assert (first.session.state, second.session) == ({"tier": "gold"}, None)
    (note,) = export(path, "evalset").notes
    assert note.startswith("c1: its session began with a state (tier), which is left out; write it into the")


def test_tools_that_the_agent_ran_itself_have_no_mocks() -> None:
    """They are expected calls; a mock would not reach them, so that the scenario would be refused."""
    ran = ToolCall("look", {"at": 1}, {"ok": True}, mocked=False, turn_index=0, seen_by=SeenBy.AGENT)
    (found,) = scenarios_of(export_script([held(builders.turn(tool_calls=(ran,)))]))
    assert not found.tools
    assert found.trajectory is not None
    assert [one.name for one in found.trajectory[0].expected or ()] == ["look"]


def test_the_spelling_of_adk_ts(tmp_path: Path) -> None:
    """In camelCase, the set is the same; a script has no other spelling."""
    path = results(tmp_path, run_of(builders.conversation("c1")))
    camel, snake = export(path, "evalset", camel_case=True).content, export(path, "evalset").content
    assert b'"toolUses"' in camel
    assert b"_" not in camel
    assert EVAL_SET.validate_json(camel) == EVAL_SET.validate_json(snake)
    with pytest.raises(UsageError, match=r"--camel-case is about evaluation sets.*--to evalset"):
        export(path, "scenario", camel_case=True)


def test_nothing_left_is_an_error(tmp_path: Path) -> None:
    """If no conversation finished, the error has each reason."""
    with pytest.raises(
        UsageError, match=r"no conversation is left(.|\n)*c2, which did not finish: the agent"
    ):
        export(results(tmp_path, run_of(FAILED)), "evalset")


def test_a_failed_conversation_is_noted(tmp_path: Path) -> None:
    """It is exported because it finished, with a warning against using it as an example."""
    result = builders.run_result(builders.scenario_result("s", [builders.failing_conversation("c1")]))
    exported = export(results(tmp_path, result), "scenario")
    (note,) = exported.notes
    assert "did not pass" in note
    assert "c1" in note


def test_filters(tmp_path: Path) -> None:
    """Filters are parts of names in any case, or exact ids; one without a match gets a suggestion."""
    result = builders.run_result(
        builders.scenario_result("Late order", [builders.conversation_result("late-1")]),
        builders.scenario_result("Refund", [builders.conversation_result("refund-1")]),
    )
    path = results(tmp_path, result)

    def ids(names: Any, wanted: Any) -> list[str]:
        chosen = select(read_earlier(path, names), wanted).conversations
        return [each.conversation.conversation_id for each in chosen]

    assert ids((), ()) == ["late-1", "refund-1"]
    assert ids(("LATE",), ()) == ["late-1"]
    assert ids((), ("refund-1",)) == ["refund-1"]
    for filters, message in (
        ((("refunt",), ()), "has no scenario named 'refunt'; did you mean `Refund`"),
        ((("late", "refunt"), ()), "did you mean `Refund`"),
        (((), ("late-2",)), "did you mean `late-1`"),
        ((("late",), ("refund-1",)), "no conversation 'refund-1' of these scenarios; valid are: `late-1`"),
    ):
        with pytest.raises(UsageError, match=message):
            ids(*filters)


def test_comparisons_are_exported_too(tmp_path: Path) -> None:
    """Conversations of all agents of a comparison are cases, under ids of their own."""
    result = builders.run_result(
        builders.scenario_result("s", [builders.conversation_result("s@a-1")], agent="a"),
        builders.scenario_result("s", [builders.conversation_result("s@b-1")], agent="b"),
        comparison=True,
    )
    exported = export(results(tmp_path, result), "evalset")
    assert [c.eval_id for c in EVAL_SET.validate_json(exported.content).eval_cases] == ["s@a-1", "s@b-1"]


def test_a_tool_without_a_name_has_no_mock(tmp_path: Path) -> None:
    """Such a conversation is left out with a note, or is an error if it is the only one."""
    odd = builders.conversation("odd", [builders.turn(tool_calls=(builders.tool_call(" "),))])
    path = results(tmp_path, run_of(builders.conversation("c1"), odd))
    exported = export(path, "scenario")
    assert exported.notes == ("left out odd: the agent called a tool without a name",)
    assert len(scenarios_of(exported.content.decode())) == 1
    with pytest.raises(UsageError, match="without a name"):
        export(path, "scenario", ids=("odd",))


def test_the_set_is_named_like_its_file(tmp_path: Path) -> None:
    """This is as in ADK; a name that no folder search would find is noted."""
    path = results(tmp_path, run_of(builders.conversation("c1")))
    named = export(path, "evalset", output=tmp_path / "refunds.evalset.json")
    assert EVAL_SET.validate_json(named.content).eval_set_id == "refunds"
    assert named.notes == ()
    assert "ends in .sim.py" in export(path, "scenario", output=tmp_path / "x.py").notes[0]


def test_an_existing_file_is_kept(tmp_path: Path) -> None:
    """It is replaced only on request, and a failed write is an error."""
    exported = export(results(tmp_path, run_of(builders.conversation("c1"))), "scenario")
    output = tmp_path / "new" / "a.sim.py"
    write(exported, output, force=False)
    with pytest.raises(UsageError, match="--force"):
        write(exported, output, force=False)
    write(exported, output, force=True)
    assert output.read_bytes() == exported.content
    with pytest.raises(UsageError, match="cannot be written"):
        write(exported, output / "below.sim.py", force=False)


def test_agents_that_break_the_protocol_leave_nothing_to_export(tmp_path: Path) -> None:
    """A conversation that an agent error ended is refused with that error."""
    with ScriptedAgent([Raw(b"no", status=500)]) as agent:
        result = run_scenarios([scenario("s", turns=["x"])], agent=agent)
    with pytest.raises(UsageError, match="500"):
        export(results(tmp_path, result), "scenario")


@pytest.mark.parametrize(
    ("form", "value"),
    [
        *((form, value) for form in ("evalset", "scenario") for value in ("NaN", "1e999")),
        ("scenario", "[" * 200 + "]" * 200),
    ],
)
def test_values_that_no_run_writes_are_refused(tmp_path: Path, form: Any, value: str) -> None:
    """A hand-written results.json cannot break the export."""
    call = builders.tool_call("x", {"a": "HERE"})
    path = results(tmp_path, run_of(builders.conversation("c1", [builders.turn(tool_calls=(call,))])))
    path.write_text(path.read_text(encoding="utf-8").replace('"HERE"', value), encoding="utf-8")
    with pytest.raises(UsageError, match="cannot be exported"):
        export(path, form)


# --- formats of plug-ins ---------------------------------------------------------------------------------


def only_texts(task: ExportTask) -> Exported:
    said = [turn.user_message for each in task.conversations for turn in each.conversation.turns]
    return Exported("\n".join(said).encode(), f"{len(said)} messages", task.notes)


TEXTS = ExportFormat(endings=(".txt",), make=only_texts)
plugin = Plugin("tests")
plugin.format("texts", f"{__name__}:TEXTS", of="export")


def test_a_plugin_adds_a_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found by its name, and a file that would not be found again is remarked upon."""
    registry = PluginRegistry([lambda: iter([(__name__, "a test")])])
    monkeypatch.setattr("agentest.plugins.authoring.export.PLUGINS", registry)
    file = results(tmp_path, run_of(held(Turn(0, "Hello?", "Hello.")).conversation))
    made = export(file, "texts", output=tmp_path / "a.text")
    assert made.content == b"Hello?"
    assert made.notes[-1] == f"{tmp_path / 'a.text'}: is found in a folder only when its name ends in .txt"
    with pytest.raises(UsageError, match="there is no export format 'text'"):
        export(file, "text")
