"""`scenario.each`: one scenario for each row of data, with placeholders in every option."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from agentest import HttpResponse, Scenario, ToolError, call, scenario, sequence, text
from agentest.mocks.binding import MockSequence
from agentest.plugin import Plugin, PluginRegistry, core_plugin
from agentest.scenarios.definition import collect_scenarios
from agentest.scenarios.discovery import (
    DiscoveredScenarios,
    discover,
    parse_path_choice,
    select_by_path,
)
from agentest.scenarios.rows import read_rows
from agentest.scenarios.trajectory import ExpectedCall
from agentest.support.errors import ScenarioError

ROWS = [{"id": 17, "status": "sent"}, {"id": 18, "status": "lost"}]


def found_in(root: Path, files: Mapping[str, str]) -> DiscoveredScenarios:
    for name, content in files.items():
        encoding = "utf-16" if name.startswith("wide") else "utf-8"
        (root / name).write_text(content, encoding, errors="surrogateescape")
    return discover(root, ["*.sim.py"], [])


def defined(rows: Any, name: str = "row {id}", **template: Any) -> list[Scenario]:
    template = {"goal": "g", **template}
    return scenario.each(rows, name, **template)


def test_each_row_fills_every_text_at_any_depth() -> None:
    """Placeholders are replaced in texts, keys, mocks, calls, matchers, errors and patterns."""
    [first, second] = scenario.each(
        ROWS,
        "order {id} is {status}",
        turns=["Where is {id}?", {"user_message": "{status}?", "expect": {"says": "{status}"}}],
        tools={
            "get_{id}": {"orders": [{"id": "{id}", "note": "order {id}"}]},
            "pay": sequence(ToolError("no order {id}"), HttpResponse(404, {"id": "{id}"})),
        },
        trajectory={"expected": [call("get", id="{id}", status=text("{status}", ignore_case=True))]},
        expect={"never_says": re.compile(r"\d{4} {status}", re.IGNORECASE)},
        final_state={"orders.{id}.status": "{status}"},
        tags=["{status}"],
    )
    assert (first.name, second.name) == ("order 17 is sent", "order 18 is lost")
    assert [turn.user_message for turn in first.turns] == ["Where is 17?", "sent?"]
    assert first.turns[1].expect is not None
    assert first.turns[1].expect.says == ("sent",)
    assert first.tools["get_17"] == {"orders": [{"id": 17, "note": "order 17"}]}
    pay = second.tools["pay"]
    assert isinstance(pay, MockSequence)
    assert [str(pay.steps[0]), pay.steps[1].body] == ["no order 18", {"id": 18}]
    [expected] = second.trajectory[0].expected or ()
    assert isinstance(expected, ExpectedCall)
    assert expected.args == {"id": 18, "status": text("lost", ignore_case=True)}
    assert second.expect[0].wanted.pattern == r"\d{4} lost"
    assert second.final_state == {"orders.18.status": "lost"}
    assert second.tags == ("lost",)


def test_the_template_is_not_changed() -> None:
    """Values without a placeholder are shared, and those with one stay as they were written."""
    mock = ToolError("no {id}")
    tools: dict[str, Any] = {"plain": {"a": [1]}, "fails": mock}
    defined(ROWS, tools=tools)
    assert str(mock) == "no {id}"
    assert tools == {"plain": {"a": [1]}, "fails": mock}


def test_columns_and_a_function_give_options() -> None:
    """A column named like an option gives it, in either spelling; a function comes last."""
    [first, second] = defined(
        [{"id": 1, "maxTurns": 3, "tags": ["a"]}, {"id": 2, "max_turns": None}],
        max_turns=9,
        options=lambda row: {"knowledge": [f"I am {row['id']}"], "tags": ["made"]},
    )
    assert (first.max_turns, second.max_turns) == (3, 9)
    assert (first.tags, second.tags) == (("made",), ("made",))
    assert second.knowledge == ("I am 2",)


def test_a_column_that_a_placeholder_uses_is_data() -> None:
    """`state` and `date` of an order are data if the template uses them."""
    [made] = defined([{"id": 1, "state": "NY", "date": "tomorrow"}], goal="Send it to {state} {date}")
    assert (made.goal, made.state, made.date) == ("Send it to NY tomorrow", None, None)


def test_paths_reach_into_columns_and_other_braces_stay() -> None:
    """`{a.b}` reads a nested value; JSON, quantifiers and `{{date}}` are left alone."""
    [made] = defined(
        [{"id": 1, "order": {"id": 5}}],
        goal='{order.id} {"id": {4}}',
        user_prompt_template="{{goal}} on {{date}} for {order.id}",
    )
    assert made.goal == '5 {"id": {4}}'
    assert made.user_prompt_template == "{{goal}} on {{date}} for 5"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows.csv", "\ufeffid,goal,tags,max_turns,parallel\r\n17,'a,x,3,true\r\n"),
        ("rows.csv", 'id;goal;tags;max_turns;parallel\n\n17;"\'a";"[""x""]";3;true\n'),
        ("rows.tsv", "id\tgoal\ttags\tmax_turns\tparallel\n17\t'a\tx\t3\ttrue\n"),
        ("rows.jsonl", '{"id": "17", "goal": "\'a", "tags": ["x"], "max_turns": 3, "parallel": true}\n\n'),
        ("rows.json", '[{"id": "17", "goal": "\'a", "tags": ["x"], "max_turns": 3, "parallel": true}]'),
        # As other programs write them: JSON Lines under another name, and tables of Excel and pandas.
        ("rows.ndjson", '{"id": "17", "goal": "\'a", "tags": ["x"], "max_turns": 3, "parallel": true}\n'),
        ("wide.csv", "id\tgoal\ttags\tmax_turns\tparallel\r\n17\t'a\tx\t3\ttrue\r\n"),
        ("rows.csv", "sep=;\nid;goal;tags;max_turns;parallel\n17;'a;x;3;true\n"),
        ("rows.csv", "id|goal|tags|max_turns|parallel\n17|'a|x|3|true\n"),
        ("rows.csv", ",id,goal,tags,max_turns,parallel,\n0,17,'a,x,3,true,\n"),
        ("rows.csv", 'id;"a, b, c, d, e, f";goal;tags;max_turns;parallel\n17;;\'a;x;3;true\n'),
        ("rows.csv", f"id,goal,tags,max_turns,parallel,log\n17,'a,x,3,true,{'z' * 200_000}\n"),
    ],
)
def test_rows_are_read_from_files(tmp_path: Path, name: str, content: str) -> None:
    """Cells of CSV that give options are read as JSON if they are JSON; other cells are texts."""
    found = found_in(
        tmp_path,
        {
            name: content,
            "a.sim.py": f"from agentest import scenario\nscenario.each({name!r}, 'row {{id}}')\n",
        },
    )
    assert found.problems == []
    [made] = found.scenarios
    assert (made.name, made.goal, made.tags, made.max_turns, made.parallel) == (
        "row 17",
        "'a",
        ("x",),
        3,
        True,
    )
    assert tmp_path / name in found.files


ORDERS = 'id,question\n17,Where is it?\n18,"Two\nlines"\n19,\n'


@pytest.mark.parametrize(
    ("content", "call_", "said"),
    [
        (
            ORDERS,
            "'o.csv', 'o {idd}', goal='g'",
            "scenario 'o {idd}', all 3 rows: name: there is no column `idd`; did you mean `id`?",
        ),
        (ORDERS, "'o.csv', 'o', goal='g'", "o.csv:3: name: is that of o.csv:2, too"),
        (
            ORDERS,
            "'o.csv', 'o {id}', goal='g', expect={'says': '{question}'}",
            "o.csv:5: expect.says",
        ),
        (ORDERS, "'o.csv', 'o {id}', goal='g', tags=['{{id}}']", "write {id}, with single braces"),
        (ORDERS, "'o.csv', 'o {id}', gaol='g'", "unknown option `gaol`; did you mean `goal`?"),
        (
            ORDERS,
            "'o.csv', 'o {id}', options=lambda r: 1 / 0",
            "options: the function raised ZeroDivisionError",
        ),
        (ORDERS, "'o.csv', 'o {id}', options=lambda r: 7", "options: expected the function to return a dict"),
        (ORDERS, "'oo.csv', 'o {id}', goal='g'", "there is no such file; did you mean o.csv?"),
        (ORDERS, "'o.xlsx', 'o {id}', goal='g'", "rows are read from .csv, .tsv, .jsonl, .json"),
        ("id,id\n1,2\n", "'o.csv', 'o {id}', goal='g'", "o.csv:1: two columns are named 'id'"),
        ("sep=;\nid;b\n1\n", "'o.csv', 'o {id}', goal='g'", "o.csv:3: has 1 cells, but the header has 2"),
        (
            "version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
            "'o.csv', 'o {id}', goal='g'",
            "o.csv: cannot be read: it is a pointer of Git LFS; get the file itself: git lfs pull",
        ),
        (
            "id\n\udce9\n",
            "'o.csv', 'o {id}', goal='g'",
            "it is not UTF-8 text (invalid continuation byte at byte 3); save it as UTF-8",
        ),
        ("id,b\n1\n", "'o.csv', 'o {id}', goal='g'", "o.csv:2: has 1 cells, but the header has 2"),
        ('id\n"1\n', "'o.csv', 'o {id}', goal='g'", "the CSV does not parse: unexpected end of data"),
        ("id\n", "'o.csv', 'o {id}', goal='g'", "o.csv: has no row"),
        ("", "[], 'o {id}', goal='g'", "rows: is empty"),
        ("", "[{'id': None}], 'o {id}', goal='g'", "name: the column `id` has no value in this row"),
        (
            "",
            "[{'o': {'id': None}}], 'o {o.id}', goal='g'",
            "name: the column `o.id` has no value in this row",
        ),
        ("", "[{7: 1}], 'o {id}', goal='g'", "row 1: expected a dict from column to value"),
        ("", "[{'id': object()}], 'o {row}', goal='is {id}'", "goal: the column `id` is an object"),
        ("", "[{'id': 1}], {'a': 1}, goal='g'", "name: expected a text, found {'a': 1}"),
        (ORDERS, "'o.csv', 'o {id}', turns=['{question}']", "o.csv:5: turns[0]: is empty in this row"),
        ("", "7, 'o {id}', goal='g'", "rows: expected a list of dicts, or the path of a file, found 7"),
    ],
)
def test_a_mistake_names_file_row_and_column(tmp_path: Path, content: str, call_: str, said: str) -> None:
    """The message begins with the line of the call; the other scenarios of the file still run."""
    source = f"from agentest import scenario\n\nscenario.each({call_})\nscenario('other', goal='g')\n"
    found = found_in(tmp_path, {"o.csv": content, "a.sim.py": source})
    assert found.broken == ()
    assert any(line == 3 and said in message for _, line, message in found.problems), found.problems
    assert not found.scenarios[-1].refused


def test_a_mistake_outside_a_discovery_raises() -> None:
    """As for `scenario()`, the error has file and line."""
    with pytest.raises(
        ScenarioError, match=r"test_rows.py:\d+: scenario 'row \{id\}', all 2 rows: max_turns: "
    ):
        defined(ROWS, max_turns=0)


def test_a_line_selects_the_scenarios_of_all_rows(tmp_path: Path) -> None:
    """`PATH:LINE` selects every row of the call; `PATH::NAME` selects one."""
    source = (
        f"from agentest import scenario\nscenario.each(\n    {json.dumps(ROWS)},\n    'o {{id}}', goal='g')\n"
    )
    found = found_in(tmp_path, {"a.sim.py": source + "scenario('other', goal='g')\n"})

    def selected(place: str) -> list[str]:
        choice = parse_path_choice(f"a.sim.py{place}", tmp_path)
        return [each.name for each in select_by_path(found.scenarios, choice)]

    assert selected(":3") == ["o 17", "o 18"]
    assert selected("::o 18") == ["o 18"]


def test_rows_of_an_iterator_are_registered_once() -> None:
    """Any iterable of rows works, and each scenario is registered once."""
    with collect_scenarios() as found:
        made = defined(iter(ROWS))
    assert found == made


plugin = Plugin("tests")
plugin.format(".ini", f"{__name__}:ini_rows", of="rows")


def ini_rows(path: Path) -> Iterator[dict[str, str]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        key, value = line.split("=")
        yield {"key": key, "value": {"0": "zero", "1": "one"}[value]}


@pytest.fixture
def ini(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this module be a plug-in."""
    registry = PluginRegistry([core_plugin, lambda: iter([(__name__, "a test")])])
    monkeypatch.setattr("agentest.scenarios.rows.PLUGINS", registry)


@pytest.mark.usefixtures("ini")
def test_a_plugin_reads_rows_of_another_format(tmp_path: Path) -> None:
    """The ending of the file names the format, in any case of letters."""
    (tmp_path / "a.INI").write_text("x=1\ny=0\n", encoding="utf-8")
    names = [each.name for each in defined(str(tmp_path / "a.INI"), "{key} is {value}")]
    assert names == ["x is one", "y is zero"]


@pytest.mark.usefixtures("ini")
@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("x=2", r"a\.ini: rows format '\.ini' of plug-in 'tests' \(.*\) failed: KeyError: '2' \(.*:\d+\)"),
        ("x", "not enough values to unpack"),
        ("", "a.ini: has no row"),
    ],
)
def test_a_plugin_that_cannot_read_rows(tmp_path: Path, content: str, said: str) -> None:
    """Its errors name the plug-in and the line, unless they are about the file."""
    (tmp_path / "a.ini").write_text(content, encoding="utf-8")
    with pytest.raises(ScenarioError, match=said):
        defined(str(tmp_path / "a.ini"))


def test_json_lines_are_read_whatever_the_name_of_the_file(tmp_path: Path) -> None:
    """Many data sets are JSON Lines in files that end in `.json`; one object alone is no list of rows."""
    path = tmp_path / "rows.json"
    path.write_text('{"id": 1}\n\n{"id": 2}\n', encoding="utf-8")
    assert [(each.columns, each.location) for each in read_rows(path, tmp_path)] == [
        ({"id": 1}, "rows.json:1"),
        ({"id": 2}, "rows.json:3"),
    ]
    path.write_text('{"id": 1}\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"rows.json: expected a list of objects, found"):
        read_rows(path, tmp_path)
