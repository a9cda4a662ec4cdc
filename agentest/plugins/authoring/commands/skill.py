"""`agentest skill`: teach a coding agent to write tests with Agentest."""

from __future__ import annotations

from pathlib import Path

import click

from agentest.cli.options import exits, flag, path_option
from agentest.plugins.authoring.skill_files import LOCATIONS, SkillChange, install_skill, skill_folders
from agentest.support.errors import ExitCode, UsageError
from agentest.support.files import path_from
from agentest.support.terminal import clean, say, tell


@click.group()
def skill() -> None:
    """Teach a coding agent to write, run and repair scenarios."""


@skill.command()
@flag("--claude", "Install for Claude Code, in .claude/skills.")
@flag("--codex", "Install for Codex and others that read .agents/skills.")
@flag("--cursor", "Install for Cursor, in .cursor/skills.")
@path_option("--path", "Install to a folder `agentest` in this folder.")
@flag("--force", "Replace files that you have edited, too.")
@exits
def install(claude: bool, codex: bool, cursor: bool, path: Path | None, force: bool) -> ExitCode:
    """Write the skill to the repository, or update it.

    Without an option it is installed for the coding agents that the repository has files of, or in
    .agents/skills. Files that you have edited stay as they are.

    Exit status: 0 the skill is up to date; 2 a file could not be written, or was edited and left as it is.
    """
    chosen = dict(zip(LOCATIONS, (claude, codex, cursor), strict=True))
    here, edited = Path.cwd(), False
    for folder in skill_folders(tuple(name for name, wanted in chosen.items() if wanted), path, here):
        try:
            files = install_skill(folder, force=force)
        except OSError as error:
            raise UsageError(f"{folder} cannot be written to: {error.strerror or error}") from None
        for file in files:
            say(f"{file.change.value:<9}  {clean(path_from(here, file.path))}")
        edited |= any(file.change is SkillChange.EDITED for file in files)
    if edited:
        tell("agentest: files marked `kept` were edited and not updated; --force replaces them")
        return ExitCode.ERRORED
    say("\nStart your coding agent again, and ask it to test your agent with Agentest.")
    return ExitCode.PASSED
