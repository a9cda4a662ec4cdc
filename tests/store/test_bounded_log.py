"""A log of other programs' output, which keeps its beginning and end."""

from __future__ import annotations

from pathlib import Path

from agentest.store.journal import BoundedLog


def test_the_middle_is_left_out(tmp_path: Path) -> None:
    """A log that gets too long keeps its first and last lines and counts the rest."""
    path, said = tmp_path / "servers" / "api.log", list[str]()
    log = BoundedLog(path, said.append, most=1000)
    lines = [f"row {number}" for number in range(1000)]
    whole = 0
    for line in lines:
        log.add(line)
        whole += len(line) + 1
    log.close()
    log.add("too late")
    kept = path.read_text().splitlines()
    mark = next(at for at, line in enumerate(kept) if "left out" in line)
    assert len(path.read_bytes()) <= 1000
    assert kept[:mark] == lines[:mark]
    assert kept[mark + 1 :] == lines[mark + 1 - len(kept) :]
    rest = len("\n".join(kept[:mark] + kept[mark + 1 :])) + 1
    assert kept[mark] == f"… {whole - rest:,} bytes left out …"
    assert said == []


def test_a_log_that_cannot_be_written(tmp_path: Path) -> None:
    """A failed write is reported once."""
    (tmp_path / "servers").write_text("a file in its place")
    said: list[str] = []
    log = BoundedLog(tmp_path / "servers" / "api.log", said.append)
    log.add("one")
    log.add("two")
    log.close()
    assert len(said) == 1
    assert "api.log is not complete" in said[0]
