"""A JSON file, with errors that say where in it the mistake is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic_core import from_json

from agentest.support.errors import UsageError
from agentest.support.files import user_bytes

_BOM = b"\xef\xbb\xbf"


def read_bytes(path: Path) -> bytes:
    try:
        text = user_bytes(path)
    except FileNotFoundError:
        raise UsageError(f"{path}: does not exist") from None
    except IsADirectoryError:
        raise UsageError(f"{path}: is a folder, expected a JSON file") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # a null character in the path
        raise UsageError(f"{path}: cannot be read: {error}") from None
    return text.removeprefix(_BOM)


def parse_json(path: Path, text: bytes) -> Any:
    """The document. Raises UsageError with line and column where it is not JSON."""
    try:
        text.decode()
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path}:{line}: is not UTF-8 text ({error.reason} at byte {error.start})") from None
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise UsageError(_not_json(path, text, str(error))) from None


def _not_json(path: Path, text: bytes, said: str) -> str:
    reason, _, place = said.partition(" at line ")
    line, _, column = place.partition(" column ")
    if not (line.isdigit() and column.isdigit()):
        return f"{path}: is not JSON: {said}"
    if not text.strip():
        return f"{path}: is empty, expected an evaluation set in JSON"
    if "recursion" in reason:
        reason = "the document is nested too deeply"
    rest = text.split(b"\n")[int(line) - 1][max(int(column) - 1, 0) :][:30].decode(errors="replace").strip()
    return f"{path}:{line}: is not JSON: {reason} (line {line}, column {column})" + (rest and f": {rest}")
