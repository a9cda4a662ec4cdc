"""`agentest skill install`: the files it writes, and edited files that it keeps."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from agentest.cli.main import cli
from agentest.plugins.authoring.commands import project as skill_command

INSTALLED = [
    "SKILL.md",
    "references/patterns.md",
    "references/reading-an-agent.md",
    "references/results.md",
]


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / ".git").mkdir()
    (tmp_path / "service").mkdir()
    monkeypatch.chdir(tmp_path / "service")
    return tmp_path


def install(*words: str) -> Result:
    return CliRunner().invoke(cli, ["skill", "install", *words], standalone_mode=False)


def folders(root: Path) -> set[str]:
    return {path.parent.relative_to(root).as_posix() for path in root.rglob("SKILL.md")}


@pytest.mark.parametrize(
    ("there", "options", "expected"),
    [
        ((), ("--claude",), {".claude/skills/agentest"}),
        ((), ("--codex", "--cursor"), {".agents/skills/agentest", ".cursor/skills/agentest"}),
        ((), (), {".agents/skills/agentest"}),
        (("CLAUDE.md", ".cursor"), (), {".claude/skills/agentest", ".cursor/skills/agentest"}),
        (("AGENTS.md",), (), {".agents/skills/agentest"}),
        ((), ("--path", "tools"), {"service/tools/agentest"}),
        ((), ("--path", "tools/agentest"), {"service/tools/agentest"}),
    ],
)
def test_the_skill_goes_where_the_coding_agent_looks(
    repository: Path, there: tuple[str, ...], options: tuple[str, ...], expected: set[str]
) -> None:
    """At the root of the repository, for the agents that are named or used; nothing else is touched."""
    for name in there:
        (repository / name).mkdir()
    done = install(*options)
    assert done.return_value == 0, done.output
    assert folders(repository) == expected
    for folder in expected:
        written = (path for path in (repository / folder).rglob("*.md"))
        assert sorted(path.relative_to(repository / folder).as_posix() for path in written) == INSTALLED


def test_an_update_keeps_edited_files(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unedited files follow the package; edited ones stay unless --force is given."""
    install("--claude")
    skill = repository / ".claude" / "skills" / "agentest"
    body = (skill / "SKILL.md").read_bytes()
    (skill / "SKILL.md").write_bytes(body.replace(b"\n", b"\r\n"))  # as git may check it out
    assert {row.split()[0] for row in install("--claude").output.splitlines()[:4]} == {"unchanged"}

    newer = tmp_path / "newer"
    (newer / "references").mkdir(parents=True)
    for name in ("SKILL.md", "references/patterns.md", "references/results.md"):
        (newer / name).write_text(f"newer {name}", encoding="utf-8")
    monkeypatch.setattr(skill_command, "_SOURCE", newer)
    (skill / "SKILL.md").write_text("mine", encoding="utf-8")
    for _ in range(2):  # an edit is noticed each time
        done = install("--claude")
        assert done.return_value == 2
        assert "kept       ../.claude/skills/agentest/SKILL.md" in done.stdout
        assert "--force replaces them" in done.stderr
        assert (skill / "SKILL.md").read_text(encoding="utf-8") == "mine"
    assert (skill / "references" / "patterns.md").read_text(
        encoding="utf-8"
    ) == "newer references/patterns.md"
    assert not (skill / "references" / "reading-an-agent.md").exists(), "it was removed from the skill"
    assert install("--claude", "--force").return_value == 0
    assert (skill / "SKILL.md").read_text(encoding="utf-8") == "newer SKILL.md"


def test_unknown_files_are_not_replaced(repository: Path) -> None:
    """Without a valid manifest, existing files count as edited."""
    skill = repository / ".claude" / "skills" / "agentest"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("another skill", encoding="utf-8")
    (skill / skill_command.MANIFEST).write_text(json.dumps({"files": ["../../x"]}), encoding="utf-8")
    assert install("--claude").return_value == 2
    assert (skill / "SKILL.md").read_text(encoding="utf-8") == "another skill"


def test_the_skill_has_the_open_format(repository: Path) -> None:
    """Front matter within the format's limits, a body that is short, and links that lead somewhere."""
    install("--claude")
    skill = repository / ".claude" / "skills" / "agentest"
    _, front, body = (skill / "SKILL.md").read_text(encoding="utf-8").split("---\n", 2)
    values = yaml.safe_load(front)
    assert values["name"] == skill.name
    assert 0 < len(values["description"]) <= 1024
    assert len(values["compatibility"]) <= 500
    assert values.keys() <= {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}
    assert len(body.splitlines()) < 500
    for target in re.findall(r"\]\(([^)]+)\)", body):
        assert (skill / target).is_file(), target
