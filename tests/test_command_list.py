"""The commands of Agentest with all its plug-ins."""

from __future__ import annotations

from click.testing import CliRunner

from agentest.cli.main import cli


def help_of(*words: str) -> str:
    done = CliRunner().invoke(cli, [*words, "--help"], prog_name="agentest", terminal_width=80)
    assert done.exit_code == 0
    return done.output


def test_help_names_the_first_commands() -> None:
    """A new user finds the two commands that need no setup."""
    assert "agentest init demo --demo" in help_of()


SECTIONS = {
    "Run and compare": ["run", "runs", "show", "ui", "compare", "explore", "merge"],
    "Start": ["init", "doctor", "docs", "chat", "schema"],
    "Write tests": ["record-tools", "mock-server", "export", "import", "generate", "coverage"],
    "Coding agents": ["skill", "mcp"],
    "Judges": ["judge", "label", "calibrate", "show-prompts"],
    "ADK evaluation sets": ["eval", "eval-set", "migrate"],
    "Plug-ins": ["plugins"],
}
"""The commands of each section, in the order of the help."""


def test_commands_are_in_sections() -> None:
    """Every command is listed once, in order, and no row is cut or wrapped."""
    told = help_of()
    assert all(len(row) <= 80 for row in told.splitlines())
    assert "..." not in told.partition("\n")[2]
    found: dict[str, list[str]] = {}
    for row in told[told.index("Run and compare:") :].partition("To try it")[0].splitlines():
        if row.endswith(":"):
            found[row.strip(" :")] = []
        elif row.strip():
            found[list(found)[-1]].append(row.split()[0])
    assert found == SECTIONS
    assert list(found) == list(SECTIONS)
    assert sorted(cli.commands) == sorted(name for rows in SECTIONS.values() for name in rows)
