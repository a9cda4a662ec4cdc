"""`agentest import`: a scenario file for rows of data, whose columns are found by their names."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agentest.plugins.authoring.commands.row_import import ImportRequest, import_, import_rows
from agentest.plugins.authoring.trace_import import ImportResult
from agentest.scenarios.discovery import discover_file
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
    assert (made.summary, made.notes) == ("2 scenarios", ())
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
    assert [each.name for each in scenarios] == ["row 1", "row 2"]
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
    assert made.notes == ("no column has the expected answer: add `expect` or `criteria` to the file",)


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
    assert made.notes == ("columns that are not JSON are left out: 'image'",)
    assert [each.turns[0].user_message for each in scenarios] == ["org/trivia 0?", "org/trivia 1?"]
    assert len((tmp_path / "trivia.jsonl").read_text().splitlines()) == 2
    with pytest.raises(UsageError, match="cannot be loaded: ValueError: unknown split train"):
        import_rows(ImportRequest(source="org/trivia"))
