"""A log of a server's output, which has its last lines."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from agentest.cli.run_output import logs_in


def test_the_last_lines_are_in_two_files_of_limited_size(tmp_path: Path) -> None:
    path, said = tmp_path / "servers" / "api.log", list[str]()
    lines = [f"row {number} \ud800 ü" for number in range(1000)]
    with ExitStack() as stack:
        keep = logs_in(path.parent, said.append, stack, most=1000)
        for line in lines:
            keep("api", line)
    kept = [(tmp_path / "servers" / name).read_bytes() for name in ("api.log.1", "api.log")]
    assert all(len(each) <= 1000 for each in kept)
    last = b"".join(kept).decode().splitlines()
    assert last == [line.replace("\ud800", "\\ud800") for line in lines[-len(last) :]]
    assert said == []


def test_a_log_that_cannot_be_written(tmp_path: Path) -> None:
    """A failed write is reported once."""
    (tmp_path / "servers").write_text("a file in its place")
    said: list[str] = []
    with ExitStack() as stack:
        keep = logs_in(tmp_path / "servers", said.append, stack)
        keep("api", "one")
        keep("api", "two")
    assert len(said) == 1
    assert "api.log cannot be written to" in said[0]
    assert "results" not in said[0]
