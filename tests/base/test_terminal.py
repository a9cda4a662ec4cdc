"""Text for a terminal and for GitHub's runner: nothing that others wrote steers who reads it."""

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
from agentest.report.console.reporter import open_console
from agentest.report.console.text import ConsoleLine, Printer
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
def test_no_text_is_a_command(text: str) -> None:
    """Whatever a text is made of, the runner finds no command in it once it is disarmed, in no line of it."""
    assert commands(disarm_commands(text)) == []


@given(hostile)
def test_disarmed_text_differs_by_backslashes_alone(text: str) -> None:
    """What is disarmed is the text with a backslash here and there, and without marks it is as it was."""
    shown = disarm_commands(text)
    assert shown.replace("\\", "") == text.replace("\\", "")
    assert disarm_commands(shown) == shown
    if "#" not in text and ":" not in text:
        assert shown == text


@given(hostile)
def test_clean_text(text: str) -> None:
    """A clean text is one row that holds nothing a terminal obeys; rows stay rows."""
    assert not STEERING.search(clean(text))
    assert "\n" not in clean(text)
    assert not STEERING.search(clean_rows(text))
    assert clean_rows(text).count("\n") == text.count("\n")


@given(
    st.recursive(
        hostile, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(hostile, inner, max_size=3)
    )
)
def test_documents_keep_their_meaning(value: object) -> None:
    """JSON is the same value afterwards, and holds neither a command nor what steers a terminal."""
    shown = source(json.dumps(value, indent=2, ensure_ascii=False))
    assert json.loads(shown) == value
    assert commands(shown) == []
    assert not STEERING.search(shown)


@given(hostile)
def test_python_keeps_its_meaning(text: str) -> None:
    """So is Python, as our export writes it."""
    from agentest.scenarios.python_formatting import literal

    shown = source(literal(text))
    assert ast.literal_eval(shown) == text
    assert commands(shown) == []


@given(st.lists(hostile, min_size=1, max_size=4))
def test_layout_forms_no_command(texts: list[str]) -> None:
    """Texts that are harmless alone form no command together: as parts, chunks or cells of a table."""
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
def test_what_is_changed(text: str, shown: str) -> None:
    """A command gets one backslash, at its mark; what only looks a little like one stays."""
    assert disarm_commands(text) == shown


def test_long_texts_take_time_in_proportion() -> None:
    """What an agent makes as long as it likes is cleaned in one pass: its square would take very long."""
    for piece in PIECES:
        text = piece * (100_000 // len(piece))
        assert disarm_commands(clean_rows(text)) is not None
        assert disarm_commands(text) is not None


@pytest.mark.parametrize("value", ["true", "1", "True"])
def test_the_runner_is_known_by_its_variable(value: str) -> None:
    """Only where GITHUB_ACTIONS says so are commands disarmed."""
    assert is_github_runner({"GITHUB_ACTIONS": value})
    assert not any(is_github_runner({"GITHUB_ACTIONS": other}) for other in ("", "0", "false"))
    assert not is_github_runner({"CI": "true"})
    stream = io.StringIO()
    Output(stream, {}).write("##[group]x")
    Output(stream, {"GITHUB_ACTIONS": value}).write("##[group]x")
    assert stream.getvalue() == "##[group]x##\\[group]x"


def test_commands_of_ours() -> None:
    """What is written as a command is one, under the runner too."""
    stream = io.StringIO()
    Output(stream, GITHUB).command("::notice file=a,line=1,title=t::m")
    assert [found.name for found in commands(stream.getvalue())] == ["notice"]


def test_colours_of_a_log_go() -> None:
    """A server's colours are taken out of what it printed; any other sequence stays to be made visible."""
    assert without_colours("\x1b[32mINFO\x1b[0m \x1b[2J") == "INFO \x1b[2J"


def test_nobody_reads_on() -> None:
    """When the reader of a pipe has gone, what is written is dropped without an error, then and later."""
    ours, theirs = os.pipe()
    os.close(ours)
    with os.fdopen(theirs, "w") as stream:
        output = Output(stream, {})
        for _ in range(3):
            output.write("x" * 100_000)
            output.flush()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk() -> None:
    """What cannot be written is told of once; closing the stream does not fail a second time."""
    with open("/dev/full", "w") as stream:
        output = Output(stream, {})
        output.write("x")
        with pytest.raises(OutputError, match="cannot be written to: No space left on device"):
            output.flush()
        output.write("y")
        output.flush()


def test_there_is_one_door() -> None:
    """No module but `terminal` writes to the standard streams by itself."""
    package = Path(agentest.__file__).parent
    told = re.compile(r"sys\.(?:stdout|stderr)\.(?:write|buffer)|click\.(?:s?echo|secho)|(?<![\w.])print\(")
    found = [
        f"{path.relative_to(package)}: {match[0]}"
        for path in sorted(package.rglob("*.py"))
        # `patterns` is a process whose output we alone read, `mcp_bridge` hands a stream to MCP, and
        # the plugin runs in the agent's process.
        if path.name
        not in ("terminal.py", "patterns.py", "mcp_bridge.py", "adk_plugin.py", "agentest_adk.py")
        for match in told.finditer(path.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_a_console_of_ours_is_a_rich_console() -> None:
    """Width, encoding and terminal are those of the stream behind it."""
    console = open_console(GITHUB, io.StringIO())
    assert isinstance(console, Console)
    assert not console.is_terminal
