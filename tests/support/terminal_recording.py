"""Record a command on a terminal as an animated SVG."""

from __future__ import annotations

import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass
from fcntl import ioctl
from html import escape
from itertools import groupby
from pathlib import Path

import pyte

COLUMNS, ROWS = 90, 30
CHARACTER, LINE = 8.43, 18
SLOWER = 12
"""The run takes well under a second: each picture is shown so many times as long."""
SHORTEST, LAST = 0.12, 8.0
"""Seconds that a picture, and the last one, is shown at least."""
COLORS = {
    "default": "#d0d4dc",
    "red": "#ff7b72",
    "green": "#56d364",
    "brown": "#e3b341",
    "cyan": "#76e3ea",
    "blue": "#79c0ff",
    "magenta": "#d2a8ff",
}
"""pyte's names of colors; it calls yellow brown."""


@dataclass(frozen=True)
class Frame:
    """What the screen shows, as SVG text elements, and for how long."""

    lines: str
    seconds: float


def record(command: list[str], cwd: Path, env: dict[str, str], shown: str) -> str:
    """Run a command on its own terminal and return the recording as SVG; `shown` is the typed text."""
    return _svg(list(_merged(_typed(shown) + list(_frames(command, cwd, env, shown)))))


def _frames(command: list[str], cwd: Path, env: dict[str, str], shown: str) -> Iterator[Frame]:
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    stream.feed(f"$ {shown}\r\n".encode())
    before = time.monotonic()
    for output in _output(command, cwd, env):
        now = time.monotonic()
        yield Frame(_lines(screen), max(SHORTEST, (now - before) * SLOWER))
        before = now
        stream.feed(output)
    yield Frame(_lines(screen), LAST)


def _output(command: list[str], cwd: Path, env: dict[str, str]) -> Iterator[bytes]:
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    terminal = {**env, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
    process = subprocess.Popen(command, cwd=cwd, env=terminal, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    try:
        while select.select([ours], [], [], 60)[0]:
            try:
                yield os.read(ours, 65536)
            except OSError:  # Linux reports the end of a terminal so
                break
    finally:
        process.wait(60)
        os.close(ours)


def _typed(shown: str) -> list[Frame]:
    return [Frame(_text(0, [(f"$ {shown[:n]}", "default", False)]), 0.07) for n in range(len(shown) + 1)]


def _merged(frames: list[Frame]) -> Iterator[Frame]:
    for lines, same in groupby(frames, key=lambda frame: frame.lines):
        yield Frame(lines, sum(frame.seconds for frame in same))


def _lines(screen: pyte.Screen) -> str:
    return "".join(_text(row, _spans(screen, row)) for row in range(ROWS))


def _spans(screen: pyte.Screen, row: int) -> list[tuple[str, str, bool]]:
    cells = [screen.buffer[row][column] for column in range(COLUMNS)]
    styled = groupby(cells, key=lambda cell: (cell.fg if cell.fg in COLORS else "default", cell.bold))
    return [("".join(cell.data for cell in part), color, bold) for (color, bold), part in styled]


def _text(row: int, spans: list[tuple[str, str, bool]]) -> str:
    if not "".join(text for text, _, _ in spans).strip():
        return ""
    parts = []
    column = 0
    for text, color, bold in spans:
        if text.strip():
            weight = ' font-weight="700"' if bold else ""
            paint = "" if color == "default" else f' fill="{COLORS[color]}"'
            parts.append(
                f'<tspan x="{column * CHARACTER:.1f}"{paint}{weight}>{escape(text.rstrip())}</tspan>'
            )
        column += len(text)
    return f'<text y="{(row + 1) * LINE}">{"".join(parts)}</text>'


def _svg(frames: list[Frame]) -> str:
    total = sum(frame.seconds for frame in frames)
    width, height = COLUMNS * CHARACTER + 32, ROWS * LINE + 36
    groups, rules = [], []
    start = 0.0
    for number, frame in enumerate(frames):
        first, last = start / total * 100, (start + frame.seconds) / total * 100
        rules.append(
            f"@keyframes f{number}{{0%,{first:.3f}%{{opacity:0}}"
            f"{first + 0.001:.3f}%,{last:.3f}%{{opacity:1}}{min(100, last + 0.001):.3f}%,100%{{opacity:0}}}}"
            f"#f{number}{{animation:f{number} {total:.2f}s step-end infinite;opacity:0}}"
        )
        groups.append(f'<g id="f{number}">{frame.lines}</g>')
        start += frame.seconds
    still = f"g g{{animation:none!important}}#f{len(frames) - 1}{{opacity:1!important}}"
    still = f"@media (prefers-reduced-motion:reduce){{{still}}}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img" '
        'aria-label="agentest run on a terminal">'
        f"<style>text{{white-space:pre}}{''.join(rules)}{still}</style>"
        f'<rect width="100%" height="100%" rx="8" fill="#161b22"/>'
        f'<g transform="translate(16 10)" fill="{COLORS["default"]}" font-size="14" '
        f"font-family=\"ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace\">"
        f"{''.join(groups)}</g></svg>\n"
    )
