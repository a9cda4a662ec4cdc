"""Text for terminals and GitHub's runner: foreign text cannot control either."""

from __future__ import annotations

import ast
import io
import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich import box
from rich.console import Console
from rich.table import Table
from runner_commands import STEERING, commands

import agentest
from agentest.report.console.printer import Printer, open_console
from agentest.report.console.text import ConsoleLine
from agentest.support.errors import OutputError
from agentest.support.terminal import (
    Output,
    clean,
    clean_rows,
    disarm_commands,
    is_github_runner,
    source,
    without_colours,
)

GITHUB = {"GITHUB_ACTIONS": "true"}
PIECES = (
    *(
        "::",
        ":",
        "#",
        "##",
        "[",
        "]",
        "##[",
        "::error::x",
        "##[set-output name=a]b",
        "##[stop-commands]x",
        "::x::",
    ),
    *(
        " ",
        "\t",
        "\n",
        "\r",
        "\r\n",
        "\x0b",
        "\x85",
        "\xa0",
        "\u3000",
        "\u2028",
        "\x1b",
        "\x1b[31m",
        "\x9b31m",
    ),
    *("\u200d", "\ufeff", "\u00ad", "\ufe0f", "\u202e", "\U000e0041", "\x00", "x", "\\", "é"),
    *("\u0489", "\u0591", "\u0600"),
)
hostile = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=12).map("".join)


@given(hostile)
@example("##[stop-commands]x")
@example("\n \u3000::error::x")
@example("#\u200d#\ufeff[x]")
@example("#\u0489#[error]x")
@example(":\u0591:error::x")
def test_disarmed_text_has_no_command(text: str) -> None:
    """For any text, the CI runner finds no command in any line after it is disarmed."""
    assert commands(disarm_commands(text)) == []


@given(hostile)
def test_disarmed_text_differs_only_by_backslashes(text: str) -> None:
    """Disarmed text has extra backslashes, and text without marks is unchanged."""
    shown = disarm_commands(text)
    assert shown.replace("\\", "") == text.replace("\\", "")
    assert disarm_commands(shown) == shown
    if "#" not in text and ":" not in text:
        assert shown == text


@given(hostile)
def test_clean_text_is_one_safe_row(text: str) -> None:
    """Clean text is one row without terminal controls; several rows stay rows."""
    assert not STEERING.search(clean(text))
    assert "\n" not in clean(text)
    assert not STEERING.search(clean_rows(text))
    assert clean_rows(text).count("\n") == text.count("\n")


@given(
    st.recursive(
        hostile, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(hostile, inner, max_size=3)
    )
)
def test_disarmed_json_has_the_same_value(value: object) -> None:
    """JSON has the same value afterwards, without commands or terminal controls."""
    shown = source(json.dumps(value, indent=2, ensure_ascii=False))
    assert json.loads(shown) == value
    assert commands(shown) == []
    assert not STEERING.search(shown)


@given(hostile)
def test_disarmed_python_has_the_same_value(text: str) -> None:
    """This is also true of exported Python."""
    from agentest.scenarios.python_formatting import literal

    shown = source(literal(text))
    assert ast.literal_eval(shown) == text
    assert commands(shown) == []


@given(st.lists(hostile, min_size=1, max_size=4))
def test_layout_does_not_form_a_command(texts: list[str]) -> None:
    """Harmless texts do not form a command together, as parts, chunks or table cells."""
    stream = io.StringIO()
    printer = Printer(open_console(GITHUB, stream))
    printer.write([ConsoleLine(("#", *texts), (tuple(texts), ("#", "#"), ("[x]", *texts)))])
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=True)
    table.add_column(printer.text(["#"]))
    for text in texts:
        table.add_row(printer.text([text]))
    printer.write_table(table)
    assert commands(stream.getvalue()) == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("::error::x", "\\::error::x"),
        ("a\n  ::error::x", "a\n  \\::error::x"),
        ("say ##[group]x", "say ##\\[group]x"),
        ("std::vector, a::b", "std::vector, a::b"),
        ("# Title [x] ## more", "# Title [x] ## more"),
    ],
)
def test_only_commands_are_changed(text: str, shown: str) -> None:
    """A command gets one backslash; text that is only similar is unchanged."""
    assert disarm_commands(text) == shown


@pytest.mark.slow
def test_cleaning_time_is_linear() -> None:
    """Text of any length is cleaned in one pass: quadratic time would take very long."""
    for piece in PIECES:
        text = piece * (100_000 // len(piece))
        assert disarm_commands(clean_rows(text)) is not None
        assert disarm_commands(text) is not None


@pytest.mark.parametrize("value", ["true", "1", "True"])
def test_commands_are_disarmed_under_github_actions(value: str) -> None:
    """Commands are disarmed only if GITHUB_ACTIONS is set."""
    assert is_github_runner({"GITHUB_ACTIONS": value})
    assert not any(is_github_runner({"GITHUB_ACTIONS": other}) for other in ("", "0", "false"))
    assert not is_github_runner({"CI": "true"})
    stream = io.StringIO()
    Output(stream, {}).write("##[group]x")
    Output(stream, {"GITHUB_ACTIONS": value}).write("##[group]x")
    assert stream.getvalue() == "##[group]x##\\[group]x"


def test_our_own_commands_are_printed() -> None:
    """Intended commands stay commands, under the CI runner too."""
    stream = io.StringIO()
    Output(stream, GITHUB).command("::notice file=a,line=1,title=t::m")
    assert [found.name for found in commands(stream.getvalue())] == ["notice"]


def test_colours_are_removed_from_server_output() -> None:
    """Other control sequences are made visible later."""
    assert without_colours("\x1b[32mINFO\x1b[0m \x1b[2J") == "INFO \x1b[2J"


def test_a_closed_pipe_is_ignored() -> None:
    """If the reader of a pipe has gone, output is dropped without an error."""
    ours, theirs = os.pipe()
    os.close(ours)
    with os.fdopen(theirs, "w") as stream:
        output = Output(stream, {})
        for _ in range(3):
            output.write("x" * 100_000)
            output.flush()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_reported_once() -> None:
    """A failed write is reported once; closing the stream does not fail again."""
    with open("/dev/full", "w") as stream:
        output = Output(stream, {})
        output.write("x")
        with pytest.raises(OutputError, match="cannot be written to: No space left on device"):
            output.flush()
        output.write("y")
        output.flush()


def test_only_one_module_writes_to_the_standard_streams() -> None:
    """No module except `terminal` writes to them."""
    package = Path(agentest.__file__).parent
    told = re.compile(r"sys\.(?:stdout|stderr)\.(?:write|buffer)|click\.(?:s?echo|secho)|(?<![\w.])print\(")
    writers = ("terminal.py", "patterns.py", "adk_plugin.py", "agentest_adk.py", "function_tools.py")
    found = [
        f"{path.relative_to(package)}: {match[0]}"
        for path in sorted(package.rglob("*.py"))
        # `patterns` is a process whose output we alone read, the command of mock servers hands a stream to
        # MCP, and the plugin and `function_tools` run in the agent's process.
        if path.name not in writers and path != package / "plugins" / "servers" / "command.py"
        if package / "docs" not in path.parents
        for match in told.finditer(path.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_our_console_is_a_rich_console() -> None:
    """Width, encoding and terminal are those of the stream behind it."""
    console = open_console(GITHUB, io.StringIO())
    assert isinstance(console, Console)
    assert not console.is_terminal
