"""Every format of evaluation sets can be read, and errors have their location."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from evalset_strategy import eval_sets, json_values
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentest.plugin import Plugin, PluginRegistry
from agentest.plugins.adk.formats.eval_set import (
    Content,
    EvalCase,
    EvalSet,
    FunctionCall,
    IntermediateData,
    Part,
    SessionInput,
    eval_set_json,
    text_of,
    tool_calls,
)
from agentest.plugins.adk.formats.set_reader import (
    FileFormat,
    ReadSet,
    find_eval_sets,
    parse_target,
    read_eval_set,
    read_session,
    select,
)
from agentest.plugins.adk.set_commands import migrate
from agentest.support.errors import UsageError

TURN = {"user_content": {"parts": [{"text": "Where is parcel 7?"}]}}
CAMEL_TURN = {"userContent": {"parts": [{"text": "Where is parcel 7?"}]}}
SESSION = {"app_name": "post", "user_id": "ann", "state": {"city": "Graz"}}

in_one_folder = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    def write(document: object, name: str = "post.test.json") -> Path:
        path = tmp_path / name
        raw = document if isinstance(document, bytes) else json.dumps(document, indent=1).encode()
        path.write_bytes(raw)
        return path

    return write


Written = Callable[..., Path]


def one_case(**case: Any) -> dict[str, Any]:
    return {"eval_set_id": "post", "eval_cases": [{"eval_id": "parcel", "conversation": [TURN], **case}]}


def refused(path: Path) -> list[str]:
    """The lines of the error, each without the name of the file."""
    with pytest.raises(UsageError) as error:
        read_eval_set(path)
    lines = str(error.value).split("\n")
    assert all(line.startswith(str(path)) for line in lines)
    return [line.removeprefix(str(path)) for line in lines]


def error_of(path: Path) -> str:
    """The error about the file, or its path if it has none. Any other exception is raised."""
    try:
        return str(read_eval_set(path).path)
    except UsageError as error:
        return str(error)


def only_case(read: ReadSet) -> EvalCase:
    (case,) = read.eval_set.eval_cases
    return case


def calls_of(case: EvalCase) -> list[list[tuple[str | None, object]]]:
    return [
        [(c.name, c.args) for c in tool_calls(turn.intermediate_data)] for turn in case.conversation or ()
    ]


# --- EvalSet ---------------------------------------------------------------------------------------


@in_one_folder
@given(eval_set=eval_sets())
def test_a_written_set_is_read(tmp_path: Path, eval_set: EvalSet) -> None:
    """Every set with cases and invocations that is written to a file is read from it as it was."""
    path = tmp_path / "a.evalset.json"
    path.write_bytes(eval_set_json(eval_set))
    read = read_eval_set(path)
    assert repr(read.eval_set) == repr(eval_set)
    assert read.form is FileFormat.EVAL_SET
    assert list(read.lines) == [case.eval_id for case in eval_set.eval_cases]


def test_lines_of_cases(written: Written) -> None:
    """Every case knows the line of its id, in either spelling, with any characters in it."""
    text = """{"evalSetId": "post",

    "evalCases": [
      {"evalId": "one \\"x\\"", "conversation": [TURN]}, {"evalId": "eval_id", "conversation": [TURN]},
      {
        "conversation": [TURN],
        "eval_id": "größe"}]}""".replace("TURN", json.dumps(TURN))
    read = read_eval_set(written(text.encode()))
    assert read.lines == {'one "x"': 4, "eval_id": 4, "größe": 7}


def test_spellings_may_be_mixed(written: Written) -> None:
    """One file may use snake_case here and camelCase there."""
    read = read_eval_set(
        written({"evalSetId": "post", "eval_cases": [{"evalId": "a", "conversation": [TURN]}]})
    )
    assert only_case(read).eval_id == "a"


def test_a_byte_order_mark_is_accepted(written: Written) -> None:
    """A file that begins with a byte order mark, as some editors write it, is read."""
    assert only_case(read_eval_set(written(b"\xef\xbb\xbf" + json.dumps(one_case()).encode())))


def test_nulls_as_adk_writes_them(written: Written) -> None:
    """A null means not given, as in files that ADK writes."""
    case = {"conversation_scenario": None, "session_input": None, "rubrics": None, "final_session_state": {}}
    turn = {**TURN, "final_response": None, "intermediate_data": None, "app_details": None}
    turn["user_content"]["parts"][0].update({"function_call": None, "inline_data": None, "thought": None})
    assert only_case(read_eval_set(written(one_case(**case, conversation=[turn])))).session_input is None


@pytest.mark.parametrize("many", [False, True])
def test_cases_without_a_set(written: Written, many: bool) -> None:
    """A case alone in a file, or a list of them, is a set that is called like the file."""
    case = {"evalId": "parcel", "conversation": [CAMEL_TURN]}
    read = read_eval_set(written([case] if many else case))
    assert read.eval_set.eval_set_id == "post"
    assert only_case(read).eval_id == "parcel"
    assert read.form is FileFormat.EVAL_SET


def test_unknown_keys_where_they_are_allowed(written: Written) -> None:
    """Sets, cases, session inputs and events may have unknown keys."""
    event = {"author": "agent", "invocationIndex": 3}
    turn = {**TURN, "intermediate_data": {"invocation_events": [event]}}
    session = {**SESSION, "locale": "de"}
    assert read_eval_set(written({**one_case(conversation=[turn], session_input=session, owner="x"), "v": 2}))


# --- what is wrong ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("turn", "message"),
    [
        ({**TURN, "finalResponse": 5}, "`finalResponse` is 5, expected an object"),
        ({**TURN, "final_respons": {}}, "`final_respons` is not a known key; did you mean `final_response`?"),
        (
            {**CAMEL_TURN, "finalRespons": {}},
            "`finalRespons` is not a known key; did you mean `finalResponse`?",
        ),
        ({**TURN, **CAMEL_TURN}, "`user_content` is given twice, in both spellings"),
        ({**TURN, "RUBRICS": []}, "`RUBRICS` is not a known key; did you mean `rubrics`?"),
        ({"final_response": {}}, "`user_content` is missing"),
        ({"finalResponse": {}}, "`userContent` is missing"),
        (
            {"userContent": {"parts": [{"function_cal": {}}]}},
            "`userContent.parts[0].function_cal` is not a known key; did you mean `functionCall`?",
        ),
        ({**TURN, "intermediate_data": 5}, "`intermediate_data` is 5, expected an object"),
        (
            {**TURN, "intermediate_data": {"tool_uses": [{"name": "a"}, {"nam": "b"}]}},
            "`intermediate_data.tool_uses[1].nam` is not a known key; did you mean `name`?",
        ),
        (
            {**TURN, "intermediate_data": {"tool_uses": [{"name": "a", "args": "b"}]}},
            '`intermediate_data.tool_uses[0].args` is "b", expected an object',
        ),
        (
            {**TURN, "intermediate_data": {"intermediate_responses": [["agent"]]}},
            '`intermediate_data.intermediate_responses[0]` is ["agent"], expected a pair: [author, [parts]]',
        ),
        (
            {**TURN, "intermediate_data": {"data": []}},
            "`intermediate_data.data` is not a known key; known are `intermediate_responses`, "
            "`invocation_events`, `tool_responses`, `tool_uses`",
        ),
        (
            {**TURN, "intermediate_data": {"invocation_events": [{"content": None}]}},
            "`intermediate_data.invocation_events[0].author` is missing",
        ),
        ({**TURN, "duration": "long"}, '`duration` is "long", expected a number'),
        ({**TURN, "rubrics": {}}, "`rubrics` is {}, expected a list"),
        (
            {**TURN, "rubrics": [{"rubric_id": "a", "rubric_content": "b"}]},
            '`rubrics[0].rubric_content` is "b", ',
        ),
    ],
)
def test_errors_name_case_invocation_and_key(written: Written, turn: dict[str, Any], message: str) -> None:
    """An error names file, line, case, invocation and key, what was found, and what was expected."""
    (line,) = refused(written(one_case(conversation=[TURN, turn])))
    assert line.startswith(f":5: case `parcel`, invocation 2: {message}")


def test_an_invocation_is_named_by_its_id(written: Written) -> None:
    """An invocation that has an id is named by it."""
    (line,) = refused(written(one_case(conversation=[{**TURN, "invocation_id": "first", "nonsense_zz": 1}])))
    assert "case `parcel`, invocation `first`: `nonsense_zz` is not a known key; known are " in line


@pytest.mark.parametrize(
    ("document", "messages"),
    [
        ({"eval_set_id": "a", "eval_cases": []}, [": has no cases"]),
        ({"evalSetId": "a", "evalCase": []}, [": `evalCases` is missing; is `evalCase` meant to be it?"]),
        (
            {"eval_set_id": "a", "EVAL_CASES": []},
            [": `eval_cases` is missing; is `EVAL_CASES` meant to be it?"],
        ),
        ({"eval_cases": [{"eval_id": "b", "conversation": [TURN]}]}, [": `eval_set_id` is missing"]),
        ({"eval_set_id": "a", "eval_cases": {}}, [": `eval_cases` is {}, expected a list"]),
        ({"eval_set_id": "a", "eval_cases": [5]}, [": case 1: it is 5, expected an object"]),
        (one_case(eval_id=5), [": case 1: `eval_id` is 5, expected a text"]),
        (one_case(conversation=[]), [":5: case `parcel`: its conversation has no invocations"]),
        (
            one_case(conversation=None, conversatio=[]),
            [
                ":5: case `parcel`: needs exactly one of conversation and conversation_scenario; "
                "it has eval_id, conversation, conversatio"
            ],
        ),
        (
            one_case(session_input={"state": {}}),
            [
                ":5: case `parcel`: `session_input.app_name` is missing",
                ":5: case `parcel`: `session_input.user_id` is missing",
            ],
        ),
        ([], [": has no cases"]),
        ([5], [": invocation 1: it is 5, expected an object"]),
        (
            [{"query": "a", "refrence": "b"}],
            [":3: invocation 1: `refrence` is not a known key; did you mean"],
        ),
        (
            [{"name": "a", "data": [{"query": "b", "expected_tool_use": [{"tool_input": {}}]}]}],
            [":3: case `a`, invocation 1: `expected_tool_use[0].tool_name` is missing"],
        ),
        ({"scenarios": []}, [": has no cases"]),
        (
            {"scenarios": [{"startingPrompt": "Hi", "conversationPlan": "x", "userPersna": "EXPERT"}]},
            [":4: scenario 1: `userPersna` is not a known key; did you mean `userPersona`?"],
        ),
        (
            {"data": [{"name": "a", "query": "b", "expected_tool_cals": []}], "metric": []},
            [
                ":4: case `a`: `expected_tool_cals` is not a known key; did you mean `expected_tool_calls`?",
                ": `metric` is not a known key; did you mean `metrics`?",
            ],
        ),
        (
            {
                "data": [
                    {
                        "name": "a",
                        "query": "b",
                        "expected_tool_calls": ["find"],
                        "expected_tool_args": {"fnd": {}},
                    }
                ]
            },
            [":4: case `a`: `expected_tool_args`: `fnd` is not among the expected calls; did you mean"],
        ),
        (
            {"data": [{"name": "a", "query": "b", "expected_tool_args": {"find": {}}}]},
            [
                ":4: case `a`: `expected_tool_args`: `find` is not among the expected calls; "
                "name it in `expected_tool_calls`"
            ],
        ),
    ],
)
def test_errors_of_every_form(written: Written, document: object, messages: list[str]) -> None:
    """Each format's errors have one line each, in that format's terms."""
    lines = refused(written(document))
    assert len(lines) == len(messages)
    for line, message in zip(lines, messages, strict=True):
        assert line.startswith(message)


def test_duplicate_ids(written: Written) -> None:
    """Two cases with one id are refused, because results could not distinguish them."""
    case = one_case()["eval_cases"][0]
    (line,) = refused(written({"eval_set_id": "a", "eval_cases": [case, case]}))
    assert line.endswith("case `parcel`: 2 cases have this id")


def test_several_problems_together(written: Written) -> None:
    """Five problems of a file are reported together, with the number of others."""
    cases = [{"eval_id": f"case {n}", "conversation": [{**TURN, "x": 1}]} for n in range(8)]
    lines = refused(written({"eval_set_id": "a", "eval_cases": cases}))
    assert ["case 0" in lines[0], "case 4" in lines[4]] == [True, True]
    assert lines[5:] == [": and 3 more problems"]


def test_a_persona_that_nobody_has(written: Written) -> None:
    """A persona's name is case-sensitive; another spelling is refused with the nearest name."""
    led = {"starting_prompt": "Hi", "conversation_plan": "Ask.", "user_persona": "expert"}
    (line,) = refused(written({"scenarios": [led]}))
    assert "scenario 1: `user_persona`: " in line
    assert "'expert'" in line
    assert "EXPERT" in line


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", ": is empty, expected JSON"),
        (b" \n ", ": is empty, expected JSON"),
        (b'{"eval_set_id": "a",\n  }', ":2: is not JSON: trailing comma (line 2, column 3): }"),
        (b'{"eval_set_id": "a",\n "eval_cases": [NaN]}', ":2: is not JSON: expected value (line 2, column "),
        (b'{"a": -Infinity}', ":1: is not JSON: "),
        (b'{"eval_set_id": "\\ud800"}', ":1: is not JSON: "),
        (b'{"eval_set_id": "a"} x', ":1: is not JSON: trailing characters"),
        (b'{"a":\n"\xff"}', ":2: is not UTF-8 text (invalid start byte at byte 7)"),
        ("{}".encode("utf-16"), ":1: is not UTF-8 text"),
        (b"[" * 100_000, ":1: is not JSON: the document is nested too deeply"),
        (b'{"eval_set_id":' * 100_000, ":1: is not JSON: the document is nested too deeply"),
        (b"null", ": is not an evaluation set: found null, expected "),
        (b"{}", ": is not an evaluation set: empty, expected "),
        (b'{"criteria": {}}', ": is not an evaluation set: found the keys `criteria`, expected "),
    ],
)
def test_files_that_are_not_evaluation_sets_are_refused(written: Written, raw: bytes, message: str) -> None:
    """The error has line and column if they are known."""
    (line,) = refused(written(raw))
    assert line.startswith(message)


def test_nested_constants_are_refused(written: Written) -> None:
    """NaN is refused even in a state with any JSON; the text "NaN" is accepted."""
    document = json.dumps(one_case(session_input={**SESSION, "state": {"x": "NaN", "y": 1}}))
    assert read_eval_set(written(document.encode()))
    (line,) = refused(written(document.replace('"y": 1', '"y": NaN').encode()))
    assert "is not JSON" in line


@pytest.mark.parametrize("key", ["session_input", "sessionInput"])
def test_keys_of_a_session_that_nobody_reads_are_told(tmp_path: Path, key: str) -> None:
    """google-adk leaves unknown keys of a session out; so do we, but not without a word."""
    session = {"appName": "a", "user_id": "u", "stat": {"tier": 1}}
    turn = {"user_content": {"parts": [{"text": "Hi"}]}}
    cases = [{"eval_id": "c", "conversation": [turn], key: session}]
    path = tmp_path / "a.test.json"
    path.write_text(json.dumps({"eval_set_id": "s", "eval_cases": cases}))
    (warning,) = read_eval_set(path).warnings
    assert warning.endswith(
        "case `c`: `stat` is not a key of a session and is left out; did you mean `state`?"
    )


def test_what_is_no_file(tmp_path: Path) -> None:
    """A folder, a path that leads nowhere and one that cannot exist are refused by name."""
    for path, message in ((tmp_path, "is a folder"), (tmp_path / "no", "does not exist")):
        assert refused(path)[0].startswith(f": {message}")
    with pytest.raises(UsageError, match="cannot be read"):
        read_eval_set(Path("a\0b"))


@in_one_folder
@given(
    document=json_values
    | st.lists(json_values)
    | st.dictionaries(
        st.sampled_from(
            ["eval_set_id", "eval_cases", "evalCases", "eval_id", "data", "scenarios", "name", "query"]
        ),
        json_values
        | st.lists(
            st.dictionaries(
                st.sampled_from(["eval_id", "conversation", "name", "data", "query"]), json_values
            )
        ),
    )
)
def test_nonsense_is_a_usage_error(tmp_path: Path, document: object) -> None:
    """Any JSON is read, or refused with a UsageError that names the file."""
    path = tmp_path / "nonsense.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    assert str(path) in error_of(path)


# --- legacy ----------------------------------------------------------------------------------------

LEGACY_TURN = {
    "query": "Where is parcel 7?",
    "reference": "In Graz.",
    "expected_tool_use": [{"tool_name": "find", "tool_input": {"id": 7}, "mock_tool_output": "Graz"}],
    "expected_intermediate_agent_responses": [{"author": "finder", "text": "One moment."}],
}


def test_legacy_cases(written: Written) -> None:
    """A list of named cases becomes a set: each entry of `data` is one turn, with its session."""
    cases = [
        {"name": "one", "data": [LEGACY_TURN, {"query": "Thanks."}], "initial_session": SESSION},
        {"name": "two", "data": [LEGACY_TURN], "initial_session": {}},
    ]
    read = read_eval_set(written(cases))
    one, two = read.eval_set.eval_cases
    assert read.form is FileFormat.LEGACY
    assert read.eval_set.eval_set_id == "post"
    assert one.conversation is not None
    assert [text_of(turn.user_content) for turn in one.conversation] == ["Where is parcel 7?", "Thanks."]
    assert [turn.invocation_id for turn in one.conversation] == ["turn-1", "turn-2"]
    assert one.conversation[0].final_response == Content("model", (Part(text="In Graz."),))
    assert one.conversation[0].intermediate_data == IntermediateData(
        (FunctionCall(name="find", args={"id": 7}),),
        intermediate_responses=(("finder", (Part(text="One moment."),)),),
    )
    assert one.session_input == SessionInput("post", "ann", {"city": "Graz"})
    assert two.session_input is None
    assert read.criteria is None


def test_the_legacy_warning(written: Written) -> None:
    """A legacy file warns once, with the command that converts it; other files do not warn."""
    path = written([LEGACY_TURN, LEGACY_TURN])
    (warning,) = read_eval_set(path).warnings
    assert str(path) in warning
    assert "agentest migrate" in warning
    assert read_eval_set(written(one_case())).warnings == ()


@pytest.mark.parametrize(
    "use", [{"tool_name": "find", "tool_input": {"id": 7}}, {"name": "find", "args": {"id": 7}}]
)
def test_a_bare_legacy_list(written: Written, use: dict[str, Any]) -> None:
    """A bare list of turns is one conversation, in ADK's and in ADK-TS's spelling of tool uses."""
    turns = [
        {"query": "a", "expected_tool_use": [use]},
        {"query": "b", "expected_tool_use": []},
        {"query": "c"},
    ]
    read = read_eval_set(written(turns), SESSION)
    case = only_case(read)
    assert read.lines == {"post": 1}
    assert case.eval_id == "post"
    assert calls_of(case) == [[("find", {"id": 7})], [], []]
    assert case.session_input == SessionInput("post", "ann", {"city": "Graz"})


def test_omitted_parts_of_a_legacy_turn(written: Written) -> None:
    """A missing list of tool uses expects nothing, an empty one expects no calls; "" is not a reference."""
    turns = [{"query": "a", "reference": ""}, {"query": "b", "reference": None, "expected_tool_use": []}]
    first, second = only_case(read_eval_set(written(turns))).conversation or ()
    assert first.intermediate_data is None
    assert second.intermediate_data == IntermediateData()
    assert first.final_response is second.final_response is None


def test_reading_depends_on_the_file_alone(written: Written) -> None:
    """A legacy file read twice gives the same set: no clock and no random ids."""
    path = written([LEGACY_TURN])
    assert read_eval_set(path) == read_eval_set(path)


# --- ADK-TypeScript's data -------------------------------------------------------------------------


def data_set(**given: Any) -> dict[str, Any]:
    return {"name": "desk", "data": [{"name": "a", "query": "Hello"}], **given}


def test_the_data_format(written: Written) -> None:
    """Names of calls become tool uses, with arguments only if the file has them."""
    cases = [
        {
            "name": "a",
            "query": "q",
            "expected_tool_calls": ["x", "y", "x"],
            "expected_tool_args": {"x": {"n": 1}},
        },
        {"name": "b", "query": "q", "expected_tool_calls": [], "reference_answer": "shipped"},
        {"name": "c", "query": "q"},
    ]
    read = read_eval_set(written(data_set(data=cases, description="About the desk.")))
    a, b, c = read.eval_set.eval_cases
    assert read.form is FileFormat.DATA
    assert (read.eval_set.eval_set_id, read.eval_set.description) == ("desk", "About the desk.")
    assert calls_of(a) == [[("x", {"n": 1}), ("y", None), ("x", {"n": 1})]]
    assert b.conversation is not None
    assert c.conversation is not None
    assert b.conversation[0].intermediate_data == IntermediateData()
    assert text_of(b.conversation[0].final_response) == "shipped"
    assert c.conversation[0].intermediate_data is None
    assert c.conversation[0].final_response is None
    assert read.lines == {"a": 5, "b": 19, "c": 25}


CALLS = [{"name": "a", "query": "q", "expected_tool_calls": ["x"], "reference_answer": "shipped"}]
RUBRIC = [{"rubric_id": "rubric", "rubric_content": {"text_property": "Is kind."}}]


@pytest.mark.parametrize(
    ("document", "criteria"),
    [
        (data_set(), None),
        (data_set(data=CALLS), {"tool_trajectory_avg_score": 1.0, "reference_answer_match": 1.0}),
        (data_set(metrics=[]), {}),
        (
            data_set(data=CALLS, metrics=["response_match_score"]),
            {
                "response_match_score": 0.8,
                "tool_trajectory_avg_score": {"information": True, "threshold": 1.0},
            },
        ),
        (
            data_set(data=CALLS, metrics=["tool_trajectory_avg_score", "token_usage_v1"]),
            {
                "tool_trajectory_avg_score": 1.0,
                "token_usage_v1": None,
                "reference_answer_match": {"information": True, "threshold": 1.0},
            },
        ),
        (
            data_set(metrics=["safety_v1", "hallucinations_v1", "response_evaluation_score"]),
            {"safety_v1": 1.0, "hallucinations_v1": 0.8, "response_evaluation_score": 4.0},
        ),
        (
            data_set(metrics=["safety_v1"], thresholds={"safety_v1": 0.5, "hallucinations_v1": 0.95}),
            {"safety_v1": 0.5, "hallucinations_v1": {"information": True, "threshold": 0.95}},
        ),
        (
            data_set(data=CALLS, thresholds={"safety_v1": 0.5}),
            {"safety_v1": 0.5, "reference_answer_match": 1.0},
        ),
        (
            data_set(metrics=["rubric_based_tool_use_quality_v1"], rubric="Is kind."),
            {"rubric_based_tool_use_quality_v1": {"threshold": 0.8, "rubrics": RUBRIC}},
        ),
        (
            data_set(metrics=["safety_v1"], rubric="Is kind."),
            {
                "safety_v1": 1.0,
                "rubric_based_final_response_quality_v1": {
                    "information": True,
                    "threshold": 0.8,
                    "rubrics": RUBRIC,
                },
            },
        ),
    ],
)
def test_what_the_data_form_asks_for(written: Written, document: object, criteria: object) -> None:
    """Metrics, thresholds and rubric become criteria; what is not named follows from the cases' data."""
    found = read_eval_set(written(document)).criteria
    assert found == (None if criteria is None else {"criteria": criteria})


def test_a_note_lists_metrics_for_information(written: Written) -> None:
    """There is no note if the file lists all metrics it has data for, or has no list."""
    listed = data_set(data=CALLS, metrics=["safety_v1"], thresholds={"hallucinations_v1": 0.9})
    [note] = read_eval_set(written(listed)).criteria_notes
    names = "`hallucinations_v1`, `tool_trajectory_avg_score`, `reference_answer_match`"
    assert f"`metrics` does not list {names}: scored for information, and fails no case" in note
    for document in (
        data_set(data=CALLS),
        data_set(data=CALLS, metrics=["tool_trajectory_avg_score", "response_match_score"]),
    ):
        assert read_eval_set(written(document)).criteria_notes == ()


# --- scenarios, sessions ---------------------------------------------------------------------------


def test_scenarios(written: Written) -> None:
    """Each scenario becomes a case with its own id and the initial session."""
    led = [{"starting_prompt": f"Hello {n}", "conversation_plan": "Ask."} for n in range(2)]
    read = read_eval_set(written({"scenarios": led}), SESSION)
    first, second = read.eval_set.eval_cases
    assert read.form is FileFormat.SCENARIOS
    assert (first.eval_id, second.eval_id) == ("scenario-1", "scenario-2")
    assert second.conversation_scenario is not None
    assert second.conversation_scenario.starting_prompt == "Hello 1"
    assert first.session_input == second.session_input == SessionInput("post", "ann", {"city": "Graz"})
    assert read.lines == {"scenario-1": 4, "scenario-2": 8}


def test_an_initial_session_is_for_cases_without_one(written: Written) -> None:
    """A case's own session stays; others get the initial session, in an EvalSet too."""
    own = {"eval_id": "own", "conversation": [TURN], "session_input": {"app_name": "x", "user_id": "y"}}
    document = {"eval_set_id": "a", "eval_cases": [own, {"eval_id": "none", "conversation": [TURN]}]}
    first, second = read_eval_set(written(document), SESSION).eval_set.eval_cases
    assert first.session_input == SessionInput("x", "y")
    assert second.session_input == SessionInput("post", "ann", {"city": "Graz"})


@pytest.mark.parametrize("document", [{"state": {"n": 1}}, {"appName": "post", "userId": "ann"}, {}])
def test_initial_sessions(written: Written, document: dict[str, Any]) -> None:
    """Every part of an initial session may be absent, and either spelling is read."""
    session = only_case(
        read_eval_set(written(one_case()), read_session(written(document, "s.json")))
    ).session_input
    state, app = document.get("state", {}), document.get("appName", "")
    assert session == (SessionInput(app, "ann" if app else "", state) if document else None)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], r"is \[\], expected an object"),
        ({"state": 5}, "`state` is 5, expected an object"),
        ({"balance": 5}, "has none of `app_name`, `user_id`, `state`"),
    ],
)
def test_invalid_initial_sessions_are_refused(written: Written, document: object, message: str) -> None:
    """The most common mistake is a state that is not under `state`."""
    path = written(document, "session.json")
    with pytest.raises(UsageError, match=message) as error:
        read_session(path)
    assert str(path) in str(error.value)


# --- targets ---------------------------------------------------------------------------------------


def test_finding_sets(tmp_path: Path) -> None:
    """A folder's tests are found at every depth, in order, and its other sets with `every`."""
    for name in ("b.test.json", "a/c.evalset.json", "a/test_config.json", "d.json", "e.test.json/x.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    every = (tmp_path / "a/c.evalset.json", tmp_path / "b.test.json")
    assert find_eval_sets(tmp_path, every=True) == (every, "")
    found, note = find_eval_sets(tmp_path)
    assert found == every[1:]
    assert note == (
        f"{tmp_path}: 1 file *.evalset.json left out; --all (from Python: every_set=True) runs it, too"
    )


def test_a_folder_without_sets(tmp_path: Path) -> None:
    """A folder without sets, and what is not a folder, are refused."""
    with pytest.raises(UsageError, match="no evaluation sets"):
        find_eval_sets(tmp_path)
    (tmp_path / "a.evalset.json").touch()
    with pytest.raises(UsageError, match=r"but 1 file .*: --all .* runs it"):
        find_eval_sets(tmp_path)
    with pytest.raises(UsageError, match="is not a folder"):
        find_eval_sets(tmp_path / "no")


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("a.json", ("a.json", ())),
        ("a.json:x", ("a.json", ("x",))),
        ("a.json: x ,y,,x", ("a.json", ("x", "y"))),
        ("C:\\sets\\a.json", ("C:\\sets\\a.json", ())),
        ("C:/sets/a.json:x", ("C:/sets/a.json", ("x",))),
        ("there.json:x:y", ("there.json", ("x:y",))),
        ("there:1.json", ("there:1.json", ())),
        ("there:1.json:x", ("there:1.json", ("x",))),
        ("there.json:" + "x" * 300, ("there.json", ("x" * 300,))),
        ("", ("", ())),
    ],
)
def test_targets(tmp_path: Path, text: str, target: tuple[str, tuple[str, ...]]) -> None:
    """A target is a path, optionally with cases after a colon; an existing path is taken literally."""
    for name in ("there.json", "there:1.json"):
        (tmp_path / name).touch()
    assert parse_target(text, tmp_path) == target


def test_a_target_without_its_case() -> None:
    """A colon that no case follows is refused."""
    with pytest.raises(UsageError, match="no case after the colon"):
        parse_target("a.json:,")


def test_selecting_cases(written: Written) -> None:
    """Chosen cases stay in the order of the file; an unknown one is refused with the nearest and all ids."""
    cases = [{"eval_id": name, "conversation": [TURN]} for name in ("lookup", "cancel", "refund")]
    read = read_eval_set(written({"eval_set_id": "a", "eval_cases": cases}))
    chosen = select(read, ["refund", "lookup"]).eval_set.eval_cases
    assert [case.eval_id for case in chosen] == ["lookup", "refund"]
    with pytest.raises(UsageError, match=r"no case `lokup`; did you mean `lookup`\? .* `cancel`, `refund`"):
        select(read, ["lokup"])


# --- migrate ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "document",
    [
        [LEGACY_TURN, {"query": "Thanks."}],
        [{"name": "one", "data": [LEGACY_TURN], "initial_session": SESSION}],
        data_set(data=CALLS),
        {"scenarios": [{"starting_prompt": "Hi", "conversation_plan": "Ask.", "user_persona": "NOVICE"}]},
        {"evalSetId": "a", "evalCases": [{"evalId": "b", "conversation": [CAMEL_TURN]}]},
    ],
)
def test_migrating(written: Written, tmp_path: Path, document: object) -> None:
    """Every form is written as an EvalSet that reads like the old file."""
    old, new = written(document), tmp_path / "sets" / "new.evalset.json"
    notes = migrate(old, new, written(SESSION, "session.json"))
    read = read_eval_set(new)
    assert read.form is FileFormat.EVAL_SET
    assert read.warnings == ()
    assert read.eval_set == read_eval_set(old, SESSION).eval_set
    assert notes[0] == f"{new}: 1 case from {old}"


def test_losses_of_a_migration_are_noted(written: Written, tmp_path: Path) -> None:
    """Criteria get their own file; notes list what google-adk ignores, and unusable names."""
    notes = "\n".join(migrate(written(data_set(data=CALLS)), tmp_path / "new.json"))
    assert json.loads((tmp_path / "test_config.json").read_text()) == {
        "criteria": {"tool_trajectory_avg_score": 1.0, "reference_answer_match": 1.0}
    }
    assert "test_config.json: google-adk does not know reference_answer_match" in notes
    assert "without arguments still match" in notes
    assert ".test.json or .evalset.json" in notes


def test_the_old_file_is_never_overwritten(written: Written, tmp_path: Path) -> None:
    """The migrated file is not overwritten under any of its names, and neither is a folder."""
    old = written([LEGACY_TURN])
    before = old.read_bytes()
    link = tmp_path / "link.test.json"
    link.symlink_to(old)
    for new, message in ((old, "is the file to migrate"), (link, "is the file"), (tmp_path, "is a folder")):
        with pytest.raises(UsageError, match=message):
            migrate(old, new)
    assert old.read_bytes() == before


def test_a_bad_file_is_not_migrated(written: Written, tmp_path: Path) -> None:
    """A file that cannot be read, or not be written as JSON, leaves nothing behind."""
    huge = json.dumps(one_case(session_input={**SESSION, "state": {"n": 1}})).replace('"n": 1', '"n": 1e999')
    for raw in (b"[5]", huge.encode()):
        with pytest.raises(UsageError, match=r"post\.test\.json"):
            migrate(written(raw), tmp_path / "new.test.json")
        assert [path.name for path in tmp_path.iterdir()] == ["post.test.json"]


def test_where_nothing_can_be_written(written: Written, tmp_path: Path) -> None:
    """A new file whose folder cannot be made is a UsageError that names it."""
    new = written([LEGACY_TURN], "file.json") / "new.test.json"
    with pytest.raises(UsageError, match=r"new\.test\.json cannot be written"):
        migrate(written([LEGACY_TURN]), new)


@pytest.mark.parametrize("cases", [False, True])
def test_keys_that_adk_does_not_know(tmp_path: Path, cases: bool) -> None:
    """A legacy file with comments is read with a note; a key that may be misspelled is an error."""
    use = {"tool_name": "t", "tool_input": {"_kept": 1}, "_why": "a"}
    turn = {"query": "x", "reference": "y", "_comment": "b", "expected_tool_use": [use]}
    path = tmp_path / "a.test.json"
    path.write_text(json.dumps([{"name": "c", "data": [turn], "_comment": "c"}] if cases else [turn]))
    read = read_eval_set(path)
    assert read.warnings[1] == f"{path}: ADK does not know the keys `_comment`, `_why`; left out"
    (case,) = read.eval_set.eval_cases
    assert case.conversation is not None
    assert [call.args for call in tool_calls(case.conversation[0].intermediate_data)] == [{"_kept": 1}]
    path.write_text(path.read_text().replace("reference", "referense"))
    with pytest.raises(UsageError, match="did you mean `reference`"):
        read_eval_set(path)


plugin = Plugin("tests")
plugin.format("goldens", f"{__name__}:from_goldens", of="evaluation set")


def from_goldens(document: Any, name: str) -> dict[str, Any] | None:
    rows = document["goldens"] if isinstance(document, dict) and "goldens" in document else document
    if not isinstance(rows, list) or not all("input" in row for row in rows):
        return None
    cases = [
        {"eval_id": row["id"], "conversation": [{"user_content": {"parts": [{"text": row["input"]}]}}]}
        for row in rows
    ]
    return {"eval_set_id": name, "eval_cases": cases}


@pytest.mark.parametrize(
    "document", [{"goldens": [{"id": "a", "input": "Hi"}]}, [{"id": "a", "input": "Hi"}]]
)
def test_a_plugin_reads_another_format(
    document: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object or a list becomes an evaluation set, with the lines of its cases."""
    registry = PluginRegistry([lambda: iter([(__name__, "a test")])])
    monkeypatch.setattr("agentest.plugins.adk.formats.set_reader.PLUGINS", registry)
    path = tmp_path / "goldens.json"
    path.write_text(json.dumps(document))
    read = read_eval_set(path)
    assert [case.eval_id for case in read.eval_set.eval_cases] == ["a"]
    path.write_text(json.dumps({"rows": document}))
    with pytest.raises(UsageError, match="is not an evaluation set: found the keys `rows`"):
        read_eval_set(path)
