"""`agentest import`: a scenario file for rows of data, whose columns are found by their names."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agentest.domain.transcript import Turn
from agentest.judging.reply_checks import check_reply, check_turn_sayings
from agentest.plugins.authoring.commands.row_import import import_, import_rows
from agentest.plugins.authoring.trace_import import ImportRequest, ImportResult
from agentest.scenarios.discovery import discover_file
from agentest.scenarios.expectations import Expect
from agentest.scenarios.model import Scenario
from agentest.support.errors import UsageError
from agentest.support.importing import Imports


def imported(source: Path | str, **options: Any) -> tuple[ImportResult, tuple[Scenario, ...]]:
    made = import_rows(ImportRequest(source=str(source), **options))
    found = discover_file(made.files[-1], Imports())
    assert found.broken == ()
    return made, found.scenarios


def file(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


QUESTIONS = "id,Question,answer\n7,Where is it?,Paris\n8,Who is it?,Ann\n"


@pytest.mark.parametrize("output", [None, "tests/qa.sim.py", "tests/qa.sim.yaml"])
def test_columns_are_found_by_their_names(tmp_path: Path, output: str | None) -> None:
    """Both forms of the file define the same scenarios, wherever it is."""
    data = file(tmp_path, "qa.csv", QUESTIONS)
    made, scenarios = imported(data, output=tmp_path / output if output else None)
    assert made.files == (tmp_path / (output or "qa.sim.yaml"),)
    roles = "columns by role: name: id; turn: Question; answer: answer (--column ROLE=COLUMN changes one)"
    assert (made.summary, made.notes) == ("2 scenarios", (roles,))
    assert [(each.name, each.turns[0].user_message) for each in scenarios] == [
        ("id 7", "Where is it?"),
        ("id 8", "Who is it?"),
    ]
    assert str(scenarios[0].expect[0].wanted) == "text('Paris', ignore_case=True)"
    assert scenarios[0].data_file is not None
    assert Path(scenarios[0].data_file).resolve() == data


def test_long_answers_are_left_to_a_judge_and_equal_ids_to_the_number(tmp_path: Path) -> None:
    """A long answer is not expected word for word; without a distinct column the row's number is the name."""
    rows = [{"id": 1, "input": "a", "output": "x" * 90}, {"id": 1, "input": "b", "output": "y"}]
    data = file(tmp_path, "rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    _, scenarios = imported(data)
    assert [each.name for each in scenarios] == ["rows row 1", "rows row 2"]
    assert scenarios[1].expected_outcome == "The agent's answer means: y"
    assert scenarios[1].expect == ()


def test_options_decide_and_rows_with_options_need_none(tmp_path: Path) -> None:
    """Templates of the command line come first; rows that have `turns` need no message."""
    data = file(tmp_path, "qa.csv", QUESTIONS)
    _, scenarios = imported(
        data, name="q{id}", turns=("Hi.", "{Question}"), says="{answer}!", outcome="Says {answer}."
    )
    assert [turn.user_message for turn in scenarios[0].turns] == ["Hi.", "Where is it?"]
    assert (scenarios[0].name, scenarios[0].expected_outcome) == ("q7", "Says Paris.")
    assert "Paris!" in str(scenarios[0].expect[0].wanted)
    made, scenarios = imported(
        file(tmp_path, "t.json", '[{"turns": ["a", "b"], "name": "n", "tags": ["z"]}]')
    )
    assert (scenarios[0].name, len(scenarios[0].turns), scenarios[0].tags) == ("n", 2, ("z",))
    assert made.notes[1:] == ("1 row has no expected answer: add `expect` or `criteria` to the file",)


def test_rows_that_check_nothing_are_reported(tmp_path: Path) -> None:
    """A row without an answer would pass with any reply: it is invalid, and the command exits with 2."""
    file(tmp_path, "qa.csv", QUESTIONS + "9,Why?,\n")
    done = CliRunner().invoke(import_, [str(tmp_path / "qa.csv")], standalone_mode=False)
    assert int(done.return_value) == 2
    assert "2 scenarios, 1 row is invalid" in done.stdout
    assert "qa.csv:4: expect.says: is empty, which every reply contains" in done.stderr


@pytest.mark.parametrize(
    ("name", "text", "options", "said"),
    [
        ("a.csv", "a,b\n1,2\n", {}, "it has 'a', 'b'. Name it: --turn '{COLUMN}'"),
        ("a.csv", "question\n", {}, "a.csv: has no row"),
        ("a.txt", "question\nx\n", {}, "rows are read from .csv, .tsv, .jsonl, .json"),
        ("a.csv", "question\nx\n", {"output": "a.yaml"}, "its name must end in .sim.yaml or .sim.py"),
        ("a.csv", "question\nx\n", {"output": "here.sim.py"}, "exists already; --force replaces it"),
        ("a.csv", "question\nx\n", {"limit": 3}, "--rows is for datasets"),
        ("none.csv", None, {}, "there is no such file"),
        ("org/set", None, {}, "install the package `datasets`: pip install datasets"),
    ],
)
def test_what_cannot_be_imported_is_one_message(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    text: str | None,
    options: dict[str, Any],
    said: str,
) -> None:
    """Nothing is written."""
    monkeypatch.chdir(tmp_path)
    file(tmp_path, "here.sim.py", "")
    if text is not None:
        file(tmp_path, name, text)
    before = sorted(tmp_path.iterdir())
    if output := options.get("output"):
        options = {**options, "output": tmp_path / output}
    with pytest.raises(UsageError) as error:
        import_rows(ImportRequest(source=name, **options))
    assert said in str(error.value)
    assert sorted(tmp_path.iterdir()) == before


DATASETS = """\
def load_dataset(name, split):
    if split != "test":
        raise ValueError(f"unknown split {split}")
    return [{"question": f"{name} {n}?", "answer": str(n), "image": object()} for n in range(5)]
"""


@pytest.fixture
def datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package `datasets` that is installed."""
    (tmp_path / "installed").mkdir()
    file(tmp_path / "installed", "datasets.py", DATASETS)
    monkeypatch.syspath_prepend(str(tmp_path / "installed"))
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("datasets", None)


@pytest.mark.usefixtures("datasets")
def test_rows_of_a_dataset_are_stored_next_to_the_scenarios(tmp_path: Path) -> None:
    """Columns that are not JSON are left out with a note; errors of the package are one message."""
    made, scenarios = imported("org/trivia", split="test", limit=2)
    assert [path.name for path in made.files] == ["trivia.jsonl", "trivia.sim.yaml"]
    assert made.notes[0] == "columns that are not JSON are left out: 'image'"
    assert [each.turns[0].user_message for each in scenarios] == ["org/trivia 0?", "org/trivia 1?"]
    assert len((tmp_path / "trivia.jsonl").read_text().splitlines()) == 2
    with pytest.raises(UsageError, match="cannot be loaded: ValueError: unknown split train"):
        import_rows(ImportRequest(source="org/trivia"))


ORDER = {"name": "get_order", "args": {"id": "17"}}
PROMPTFOO = {
    "providers": ["openai:gpt"],
    "tests": [
        {
            "description": "capital",
            "vars": {"question": "Capital of France?"},
            "assert": [
                {"type": "icontains", "value": "paris"},
                {"type": "not-contains", "value": "Lyon"},
                {"type": "llm-rubric", "value": "Is short."},
                {"type": "rouge-n", "threshold": 9},
            ],
        }
    ],
}
TASK = {
    "id": "t1",
    "user_scenario": {
        "persona": None,
        "instructions": {
            "domain": "retail",
            "reason_for_call": "Return the lamp.",
            "known_info": "The order is W1.",
            "task_instructions": "Insist once.",
        },
    },
    "evaluation_criteria": {
        "actions": [
            {"requestor": "assistant", "name": "get_order", "arguments": {"id": "W1"}},
            {
                "requestor": "assistant",
                "name": "return_items",
                "arguments": {"id": "W1", "why": "broken"},
                "compare_args": ["id", "note"],
            },
            {"requestor": "assistant", "name": "send_mail", "arguments": {"to": "x"}, "compare_args": []},
            {"requestor": "user", "name": "toggle", "arguments": {}},
        ],
        "communicate_info": ["12.50"],
        "nl_assertions": ["The agent is polite."],
    },
}
SUITES: dict[str, tuple[str, Any, dict[str, Any], list[str]]] = {
    "DeepEval goldens": (
        "a.json",
        [
            {
                "input": "Where is order 17?",
                "expected_output": "Shipped",
                "context": ["c"],
                "expected_tools": [{"name": "get_order", "input_parameters": {"id": "17"}}],
            }
        ],
        {
            "turns": ["Where is order 17?"],
            "expect": [{"says": {"text": "Shipped", "ignore_case": True}}],
            "trajectory": [{"match_mode": "contains", "expected": [ORDER]}],
        },
        ["columns that are not used: 'context'"],
    ),
    "LangSmith examples": (
        "a.jsonl",
        [
            {
                "id": "e1",
                "inputs": {"question": "Capital?"},
                "outputs": {"answer": "Paris"},
                "metadata": {"x": 1},
            }
        ],
        {"turns": ["Capital?"], "expect": [{"says": {"text": "Paris", "ignore_case": True}}]},
        ["columns that are not used: 'metadata.x'"],
    ),
    "promptfoo": (
        "a.yaml",
        PROMPTFOO,
        {
            "name": "capital",
            "turns": ["Capital of France?"],
            "expect": [
                {"says": {"text": "paris", "ignore_case": True}},
                {"never_says": {"text": "Lyon", "ignore_case": False}},
            ],
            "criteria": ["Is short."],
        },
        ["only `tests` of a.yaml is read; not used: 'providers'", "left out 1 × assertion rouge-n"],
    ),
    "promptfoo's table": (
        "a.csv",
        "question,__expected,__expected2\n2+2?,4,llm-rubric: Is short\n",
        {
            "turns": ["2+2?"],
            "expect": [{"says": {"regex": r"^\s*4\s*$", "ignore_case": False}}],
            "criteria": ["Is short"],
        },
        [],
    ),
    "openai/evals": (
        "a.jsonl",
        [
            {
                "input": [
                    {"role": "system", "content": "Be brief."},
                    {"role": "user", "content": "Hi"},
                    {"role": "assistant", "content": "Hello"},
                    {"role": "user", "content": "2+2?"},
                ],
                "ideal": ["4", "four"],
            }
        ],
        {
            "history": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}],
            "turns": ["2+2?"],
            "expect": [
                {
                    "says": {
                        "one_of": [{"text": "4", "ignore_case": True}, {"text": "four", "ignore_case": True}]
                    }
                }
            ],
        },
        ["left out 1 × message of the system"],
    ),
    "MLflow": (
        "a.json",
        [
            {
                "inputs": {"goal": "Set up tracking.", "persona": "A beginner.", "user_id": "u"},
                "expectations": {"expected_response": "Explains it.", "guidelines": ["Be kind."]},
            }
        ],
        {
            "goal": "Set up tracking.",
            "profile": "A beginner.",
            "expected_outcome": "The agent's answer means: Explains it.",
            "criteria": ["Be kind."],
        },
        ["columns that are not used: 'inputs.user_id'"],
    ),
    "LiveKit": (
        "scenarios.yaml",
        {
            "name": "desk",
            "scenarios": [
                {"id": "s1", "label": "late", "instructions": "Ask.", "agent_expectations": "Offers 14:00."}
            ],
        },
        {"name": "s1", "goal": "Ask.", "expected_outcome": "Offers 14:00."},
        [
            "only `scenarios` of scenarios.yaml is read; not used: 'name'",
            "columns that are not used: 'label'",
        ],
    ),
    "LangWatch": (
        "a.yaml",
        [{"name": "n", "description": "Is hungry.", "criteria": ["No meat"]}],
        {"name": "n", "goal": "Is hungry.", "criteria": ["No meat"]},
        [],
    ),
    "tau2": (
        "tasks.json",
        [TASK],
        {
            "name": "t1",
            "goal": "Return the lamp.\nInsist once.",
            "knowledge": ["The order is W1."],
            "criteria": ["The agent is polite."],
            "expect": [{"says": {"text": "12.50", "ignore_case": True}}],
            "trajectory": [
                {
                    "reads": ["get_*", "find_*", "search_*", "list_*", "calculate*", "think"],
                    "expected_writes": [
                        {"name": "return_items", "args": {"id": "W1"}},
                        {"name": "send_mail"},
                    ],
                }
            ],
        },
        ["columns that are not used: 'user_scenario.instructions.domain'", "left out 1 × action of the user"],
    ),
}


READ_AS = {
    "DeepEval goldens": "DeepEval goldens",
    "LangSmith examples": "LangSmith examples",
    "promptfoo": "promptfoo tests",
    "promptfoo's table": "promptfoo tests",
    "openai/evals": "samples of openai/evals",
    "MLflow": "an evaluation dataset of MLflow",
    "LiveKit": "LiveKit scenarios",
    "tau2": "tau2 tasks",
}


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("ending", ["py", "yaml"])
def test_suites_of_other_tools(tmp_path: Path, suite: str, ending: str) -> None:
    """Each case becomes a scenario with its user and all its expectations; what is dropped is told."""
    name, content, expected, told = SUITES[suite]
    if name.endswith(".jsonl"):
        content = "".join(json.dumps(row) + "\n" for row in content)
    data = file(tmp_path, name, content if isinstance(content, str) else json.dumps(content))
    made, scenarios = imported(data, output=tmp_path / f"made.sim.{ending}")
    (case,) = map(json.loads, made.files[0].read_text(encoding="utf-8").splitlines())
    assert {
        "name": f"{name.split('.')[0]} row 1" if "id" not in str(content) else case["name"],
        **expected,
    } == case
    assert len(scenarios) == 1
    assert not scenarios[0].refused
    named = [note for note in made.notes if note.startswith("read as ")]
    assert named == [f"read as {each}" for each in [READ_AS.get(suite)] if each]
    others = [note for note in made.notes if not note.startswith("columns by role") and note not in named]
    assert others == told


def says(text: str, word: str = "says", ignore_case: bool = False, form: str = "text") -> dict[str, Any]:
    return {word: {form: text, "ignore_case": ignore_case}}


PERSON = {"type": "object", "required": ["name"]}


@pytest.mark.parametrize(
    ("assertion", "expected", "good", "bad"),
    [
        ("Paris", says(r"^\s*Paris\s*$", form="regex"), "Paris", "Paris, France"),
        ("answer: 42", says(r"^\s*answer:\ 42\s*$", form="regex"), "answer: 42", "42"),
        ("equals: Paris", says(r"^\s*Paris\s*$", form="regex"), " Paris\n", "paris"),
        ("contains: Paris", says("Paris"), "In Paris.", "In paris."),
        ("icontains: Paris", says("Paris", ignore_case=True), "In paris.", "In Lyon."),
        ("not-contains: Paris", says("Paris", "never_says"), "In paris.", "In Paris."),
        ("not-icontains: Paris", says("Paris", "never_says", True), "In Lyon.", "In paris."),
        ("starts-with: 1.5", says(r"^1\.5", form="regex"), "1.5 m", "x 1.5 m"),
        ("ends-with: m.", says(r"m\.\Z", form="regex"), "12 m.", "m. 12"),
        ("not-starts-with: No", says("^No", "never_says", form="regex"), "Yes. No", "No."),
        (r"regex: \d+ m$", says(r"\d+ m$", form="regex"), "is 12 m", "12 m tall"),
        ("contains-all: a, B", {"says": [says("a")["says"], says("B")["says"]]}, "a B", "a b"),
        (
            'icontains-any: "a, b", C',
            {"says": {"one_of": [says(each, ignore_case=True)["says"] for each in ("a, b", "C")]}},
            "c",
            "a b",
        ),
        (
            {"type": "not-contains-any", "value": ["a", 5]},
            {"never_says": [says("a")["says"], says("5")["says"]]},
            "b",
            "55",
        ),
        ("is-json", {"json_schema": [{}]}, "[1]", "is-json"),
        ({"type": "is-json", "value": PERSON}, {"json_schema": [PERSON]}, '{"name": 1}', "{}"),
        (f"is-json: {json.dumps(PERSON)}", {"json_schema": [PERSON]}, '{"name": 1}', "{}"),
        ({"type": "equals", "value": {"a": 1}}, {"json_schema": [{"const": {"a": 1}}]}, '{"a":1}', "{}"),
        ("latency(500)", {"max_latency_ms": [500]}, "any", None),
    ],
)
def test_assertions_of_promptfoo_decide_the_same(
    tmp_path: Path, assertion: Any, expected: dict[str, Any], good: str, bad: str | None
) -> None:
    """What promptfoo accepts passes, and what it refuses fails."""
    data = file(tmp_path, "a.json", json.dumps([{"question": "Q?", "assert": [assertion]}]))
    made, (scenario,) = imported(data)
    case = json.loads(made.files[0].read_text())
    of_reply = {"json_schema", "max_latency_ms"} & expected.keys()
    assert case.get("expect") == (None if of_reply else [expected])
    assert case["turns"] == [{"user_message": "Q?", "expect": expected} if of_reply else "Q?"]
    assert not [note for note in made.notes if "left out" in note]
    for reply, passes in ((good, True), (bad, False)):
        if reply is not None:
            turn = Turn(0, "Q?", reply, latency_ms=9)
            found = [
                *check_reply(scenario.turns[0].expect or Expect(), turn),
                *asyncio.run(check_turn_sayings(scenario.expect, [turn])),
            ]
            assert [each.passed for each in found if not each.passed] == ([] if passes else [False])


@pytest.mark.parametrize(
    ("assertion", "told"),
    [
        ("contains-json", "assertion contains-json"),
        ("not-is-json", "assertion not-is-json"),
        ("not-contains-all: a, b", "assertion not-contains-all"),
        ("contains-any: ,", "assertion contains-any"),
        ("is-json: file://schema.json", "assertion is-json"),
        (r"regex: (?<year>\d+)", "assertion regex"),
        ("contains: {{answer}}", "assertion contains with a variable"),
        ("fn: output.length > 1", "assertion fn"),
        ("similar(0.8): Paris", "assertion similar"),
        ("latency", "assertion latency"),
        ("llm-rubric(0.8): Is short.", "`threshold` of an assertion"),
    ],
)
def test_assertions_without_a_counterpart_are_told(tmp_path: Path, assertion: str, told: str) -> None:
    """None of them becomes the expected text."""
    data = file(tmp_path, "a.json", json.dumps([{"question": "Q?", "assert": [assertion]}]))
    made, (scenario,) = imported(data)
    assert (scenario.expect, f"left out 1 × {told}" in made.notes) == ((), True)


def test_a_column_gets_the_role_that_the_command_gives(tmp_path: Path) -> None:
    """A role can be moved to another column or left out; an unknown one is an error with the columns."""
    data = file(tmp_path, "a.csv", "question,who,persona,answer\nWhere?,A guest,P,Here\n")
    made, (found,) = imported(data, columns=("profile=who",), output=tmp_path / "a.sim.py")
    assert (found.profile, found.turns[0].user_message) == ("A guest", "Where?")
    assert made.notes[-1] == "columns that are not used: 'persona'"
    made, (found,) = imported(data, columns=("profile=",), output=tmp_path / "b.sim.py")
    assert (found.profile, made.notes[-1]) == ("", "columns that are not used: 'who', 'persona'")
    for wrong in ("profile=whom", "role=who"):
        with pytest.raises(UsageError, match=f"--column {wrong}: write ROLE=COLUMN; .*'question', 'who'"):
            imported(data, columns=(wrong,))


def test_several_files_of_rows_each_get_scenarios(tmp_path: Path) -> None:
    """An output is for one file."""
    paths = [str(file(tmp_path, name, QUESTIONS)) for name in ("a.csv", "b.csv")]
    refused = CliRunner().invoke(import_, [*paths, "--output", "x.sim.yaml"], standalone_mode=False)
    assert "--output: is for one file of rows" in refused.stderr
    done = CliRunner().invoke(import_, paths, standalone_mode=False)
    assert int(done.return_value) == 0
    assert [discover_file(tmp_path / f"{name}.sim.yaml", Imports()).broken for name in "ab"] == [(), ()]


def test_recorded_sessions_are_not_imported_as_rows(tmp_path: Path) -> None:
    """Several files are all of rows or all of sessions; nothing is written before that is known."""
    asked = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    sessions = file(tmp_path, "s.json", json.dumps([{"id": "1", "messages": asked}]))
    table = file(tmp_path, "a.csv", QUESTIONS)
    for paths in ([str(sessions), str(table)], [str(table), str(sessions)]):
        refused = CliRunner().invoke(import_, paths, standalone_mode=False)
        assert f"{sessions} has recorded sessions, {table} has none; import each kind alone" in refused.stderr
    assert {*tmp_path.iterdir()} == {sessions, table}
