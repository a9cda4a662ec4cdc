"""Show what a command leaves on a terminal, as SVG."""

from __future__ import annotations

import os
import pty
import select
import struct
import subprocess
import termios
from collections.abc import Iterator
from fcntl import ioctl
from html import escape
from itertools import groupby
from pathlib import Path

import pyte

COLUMNS, ROWS = 76, 80
CHARACTER, LINE = 8.43, 18
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


def picture(command: list[str], cwd: Path, env: dict[str, str], shown: str) -> str:
    """Run a command on its own terminal and return what stays there as SVG; `shown` is the typed text."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    stream.feed(f"$ {shown}\r\n".encode())
    for output in _output(command, cwd, env):
        stream.feed(output)
    lines = [_text(row, _spans(screen, row)) for row in range(ROWS)]
    while not lines[-1]:
        lines.pop()
    return _svg(lines)


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


def _svg(lines: list[str]) -> str:
    width, height = COLUMNS * CHARACTER + 32, len(lines) * LINE + 36
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img" '
        'aria-label="agentest run on a terminal"><style>text{white-space:pre}</style>'
        '<rect width="100%" height="100%" rx="8" fill="#161b22"/>'
        f'<g transform="translate(16 10)" fill="{COLORS["default"]}" font-size="14" '
        f"font-family=\"ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace\">"
        f"{''.join(lines)}</g></svg>\n"
    )
