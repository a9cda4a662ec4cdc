"""The key `watch` of a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentest.cli.watch import parse_watch_entries

THERE = (
    "src/a.py",
    "src/deep/b.ts",
    "src/__pycache__/a.pyc",
    "src/node_modules/x.js",
    "one.toml",
    "conf/a.json",
)


@pytest.mark.parametrize(
    ("entry", "named"),
    [
        ("src", {"src/a.py", "src/deep/b.ts"}),
        ("./src/", {"src/a.py", "src/deep/b.ts"}),
        ("src/**/*.ts", {"src/deep/b.ts"}),
        ("src/*", {"src/a.py"}),
        ("*.toml", {"one.toml"}),
        ("one.toml", {"one.toml"}),
        ("../agents/conf", {"conf/a.json"}),
        ("typo", set()),
    ],
)
def test_files_folders_and_patterns(tmp_path: Path, entry: str, named: set[str]) -> None:
    """An entry is a file, a folder with its content, or a pattern; files written by tools are ignored."""
    root = tmp_path / "agents"
    for name in THERE:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    found = parse_watch_entries([entry], root)
    assert {path.relative_to(root).as_posix() for path in found.files} == named
    assert {name for name in THERE if found.has(root / name)} == named
    assert found.missing == ([] if named else [entry])


def test_the_output_folder_is_not_watched(tmp_path: Path) -> None:
    """The folder that runs write to is not watched, even inside a watched folder."""
    (tmp_path / ".agentest").mkdir()
    (tmp_path / ".agentest" / "results.json").touch()
    found = parse_watch_entries(["."], tmp_path, [tmp_path / ".agentest"])
    assert found.files == frozenset()
    assert found.has(tmp_path / "new.py")
