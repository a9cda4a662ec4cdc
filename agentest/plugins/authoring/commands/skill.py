"""`agentest skill`: teach a coding agent to write tests with Agentest.

It copies the files of the skill, and never replaces what a user has edited. A skill is a folder with a
SKILL.md, by the open format of agentskills.io, which most coding agents read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from pathlib import Path

import click

from agentest.cli.options import exits, flag, path_option
from agentest.config.file import repository_root
from agentest.support.errors import ExitCode, UsageError
from agentest.support.files import path_from, write_atomically
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.terminal import clean, say, tell

NAME = "agentest"  # the format wants the folder to have the skill's name
MANIFEST = ".installed.json"  # lists the files that were written, with their hashes
LOCATIONS: Mapping[str, str] = {
    "claude": ".claude/skills",
    "codex": ".agents/skills",
    "cursor": ".cursor/skills",
}
"""Coding agent → the folder of its skills in a repository."""
_SIGNS: Mapping[str, tuple[str, ...]] = {
    "claude": (".claude", "CLAUDE.md"),
    "codex": (".agents", ".codex", "AGENTS.md"),
    "cursor": (".cursor", ".cursorrules"),
}
_SOURCE = Path(__file__).parents[1] / "skill"


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


class SkillChange(Enum):
    """What happened to a file of the skill."""

    WRITTEN = "wrote"
    UPDATED = "updated"
    UNCHANGED = "unchanged"
    EDITED = "kept"  # a user has edited it, so it was left as it is
    REMOVED = "removed"  # it is not part of the skill any more


@dataclass(frozen=True, slots=True)
class SkillFile:
    """A file of an installed skill."""

    path: Path
    change: SkillChange


def skill_folders(names: tuple[str, ...], path: Path | None, here: Path) -> list[Path]:
    """Return the folders to install the skill to.

    Args:
        names: coding agents from `LOCATIONS`; by default those that the repository has files of, or else all
            that read the open location.
        path: another folder of skills; None for the agents' own ones.
        here: the user's folder; skills are installed at the root of its repository.
    """
    root = repository_root(here)
    if not names and path is None:
        names = tuple(name for name, signs in _SIGNS.items() if any((root / sign).exists() for sign in signs))
        names = names or ("codex",)
    folders = [root / LOCATIONS[name] for name in names]
    if path:
        folders.append(here / path)
    return [folder if folder.name == NAME else folder / NAME for folder in dict.fromkeys(folders)]


def install_skill(folder: Path, *, force: bool = False) -> list[SkillFile]:
    """Write the files of the skill to its folder, or update them. Raises OSError.

    Args:
        force: replace files that a user has edited.
    """
    written = _hashes(folder)
    contents = {path.relative_to(_SOURCE).as_posix(): path.read_bytes() for path in _source_files()}
    files: list[SkillFile] = []
    hashes: dict[str, str] = {}
    for name, content in contents.items():
        path = folder / name
        before = path.read_bytes() if path.exists() else None
        change = _change(before, content, written.get(name))
        if change is SkillChange.EDITED and force:
            change = SkillChange.UPDATED
        if change in (SkillChange.WRITTEN, SkillChange.UPDATED):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, content)
        # The hash of an edited file stays that of what was written, so that the edit is noticed again.
        hashes[name] = written.get(name, "") if change is SkillChange.EDITED else _hash(content)
        files.append(SkillFile(path, change))
    for name in written.keys() - contents.keys():
        old = folder / name
        if old.resolve().is_relative_to(folder.resolve()) and old.is_file():
            edited = _hash(old.read_bytes()) != written[name]
            if not edited:
                old.unlink()
            files.append(SkillFile(old, SkillChange.EDITED if edited else SkillChange.REMOVED))
    write_atomically(folder / MANIFEST, (json.dumps({"files": hashes}, indent=2) + "\n").encode())
    return files


def _source_files() -> list[Path]:
    return sorted(path for path in _SOURCE.rglob("*.md") if path.is_file())


def _change(before: bytes | None, content: bytes, written: str | None) -> SkillChange:
    if before is None:
        return SkillChange.WRITTEN
    if _hash(before) == _hash(content):
        return SkillChange.UNCHANGED
    return SkillChange.UPDATED if _hash(before) == written else SkillChange.EDITED


def _hash(content: bytes) -> str:
    return hashlib.sha256(content.replace(b"\r\n", b"\n")).hexdigest()


def _hashes(folder: Path) -> dict[str, str]:
    with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
        stored = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        return {str(name): str(each) for name, each in stored.items()}
    return {}
