"""`agentest import`: write a scenario file for rows of data, which stay in their file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agentest.plugin import PLUGINS
from agentest.scenarios.definition import OPTIONS
from agentest.scenarios.discovery import DATA_ENDINGS, discover_file
from agentest.scenarios.python_formatting import StringLiteral, call_of, node, split_source
from agentest.scenarios.rows import read_rows
from agentest.scenarios.serialization import scenario_file
from agentest.support.errors import UsageError
from agentest.support.files import path_from, write_atomically
from agentest.support.importing import Imports
from agentest.support.json_text import NotJson, check_plain
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import count, quoted_names, snake_case

_MESSAGES = [
    "question",
    "input",
    "prompt",
    "query",
    "user_message",
    "message",
    "instruction",
    "utterance",
    "user",
    "request",
    "text",
]
_ANSWERS = [
    "answer",
    "expected",
    "expected_output",
    "output",
    "reference",
    "response",
    "target",
    "ideal",
    "completion",
    "label",
]
_NAMES = ["name", "title", "id", "uid", "key", "case", "test"]
"""Usual names of columns, best first."""
_SHORT_CHARS = 60
"""A longer answer is not expected word for word."""


_SPLIT = "train"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportRequest:
    """What to import. Templates have placeholders for columns; None derives them from the columns."""

    source: str = ""
    """A file of rows, or the name of a Hugging Face dataset."""
    output: Path | None = None
    name: str | None = None
    turns: tuple[str, ...] = ()
    says: str | None = None
    outcome: str | None = None
    split: str | None = None
    """The split of a dataset, `train` by default."""
    limit: int | None = None
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportResult:
    """The written files, a summary, and notes for the user."""

    files: tuple[Path, ...]
    summary: str
    notes: tuple[str, ...]
    is_valid: bool
    """True if every row makes a valid scenario."""


def import_rows(request: ImportRequest) -> ImportResult:
    """Write a scenario file, and the rows of a dataset. Raises UsageError before anything is written."""
    source, notes = Path(request.source), list[str]()
    is_file = source.exists() or PLUGINS.find("rows format", source.suffix.lower()) is not None
    if is_file:
        try:
            rows = [dict(row.columns) for row in read_rows(source, Path())]
        except ValueError as error:
            raise UsageError(str(error)) from None
        if request.limit is not None:
            raise UsageError("--rows is for datasets: a file is used as it is")
        data = source
    else:
        rows, notes = _dataset(request)
        data = (request.output or Path()).parent / f"{source.name}.jsonl"
    output = request.output or data.with_name(f"{source.stem}.sim.yaml")
    if not output.name.endswith((".sim.py", *DATA_ENDINGS)):
        raise UsageError(f"--output: {output} would not be found; its name must end in .sim.yaml or .sim.py")
    options = _options(request, rows)
    for path in (output, *([] if is_file else [data])):
        if path.exists() and not request.force:
            raise UsageError(f"{path} exists already; --force replaces it")
    written = [] if is_file else [(data, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))]
    written.append((output, _text(output, path_from(output.parent.absolute(), data.absolute()), options)))
    for path, text in written:
        try:
            write_atomically(path, text.encode())
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror}") from None
    found = discover_file(output.resolve(), Imports())
    notes += [message for _, _, message in found.problems]
    invalid = sum(bool(each.refused) for each in found.scenarios) + len(found.broken)
    summary = count(len(found.scenarios) - invalid, "scenario")
    if invalid:
        summary += f", {count(invalid, 'row is', 'rows are')} invalid"
    expected = [key for key in ("expect", "expected_outcome") if key in options]
    notes += [] if expected else ["no column has the expected answer: add `expect` or `criteria` to the file"]
    return ImportResult(
        files=tuple(path for path, _ in written), summary=summary, notes=tuple(notes), is_valid=not invalid
    )


def _options(request: ImportRequest, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the template of a scenario: what was requested, else what the names of the columns suggest."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    given = {snake_case(column) for column in columns}.intersection(OPTIONS)
    turns = list(request.turns)
    if not turns and not given & {"turns", "goal"}:
        message = _column(columns, _MESSAGES)
        if message is None:
            raise UsageError(
                f"{request.source}: no column is known as the user's message; it has "
                f"{quoted_names(columns, 8)}. Name it: --turn '{{COLUMN}}'"
            )
        turns = [f"{{{message}}}"]
    answer = None if request.says or request.outcome or "expect" in given else _column(columns, _ANSWERS)
    is_short = all(len(str(row.get(answer or "") or "")) <= _SHORT_CHARS for row in rows)
    says = request.says or (f"{{{answer}}}" if answer and is_short else None)
    outcome = request.outcome or (f"The agent's answer means: {{{answer}}}" if answer and not says else None)
    return {
        "name": request.name or _name(columns, rows),
        **({"turns": turns} if turns else {}),
        **({"expect": {"says": {"text": says, "ignore_case": True}}} if says else {}),
        **({"expected_outcome": outcome} if outcome else {}),
        **({} if "tags" in given else {"tags": ["imported"]}),
    }


def _column(columns: Iterable[str], usual: Sequence[str]) -> str | None:
    by_name = {snake_case(column).replace(" ", "_"): column for column in columns}
    return next((by_name[name] for name in usual if name in by_name), None)


def _name(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a template of unique names: a column with different values, else the number of the row."""
    for usual in _NAMES:
        column = _column(columns, [usual])
        values = [str(row.get(column) or "") for row in rows] if column else [""]
        if all(values) and len(set(values)) == len(values):
            return f"{{{column}}}" if usual in ("name", "title") else f"{column} {{{column}}}"
    return "row {row}"


def _text(output: Path, data: str, options: Mapping[str, Any]) -> str:
    about = f"Written by `agentest import`. The rows stay in {data}: {{column}} stands for a row's value."
    if output.name.endswith(DATA_ENDINGS):
        others = {key: value for key, value in options.items() if key != "name"}
        entry = {"name": options["name"], "each": data, **others}
        return scenario_file([entry], f"# {about}\n")
    others = {key: node(value) for key, value in options.items()}
    call = call_of("scenario.each", [StringLiteral(data)], others)
    return f'"""{about}"""\n\nfrom agentest import scenario\n\n{split_source(call)}\n'


def _dataset(request: ImportRequest) -> tuple[list[dict[str, Any]], list[str]]:
    """Load rows of a Hugging Face dataset. Raises UsageError."""
    name = request.source
    if find_spec("datasets") is None:
        raise UsageError(
            f"{name}: there is no such file. To import a Hugging Face dataset of that name, install the "
            "package `datasets`: pip install datasets"
        )
    try:
        loaded = import_module("datasets").load_dataset(name, split=request.split or _SPLIT)
        limit = len(loaded) if request.limit is None else min(request.limit, len(loaded))
        rows = [dict(loaded[number]) for number in range(limit)]
    except Exception as error:  # noqa: BLE001 - the package may raise anything
        raise UsageError(f"{name}: the dataset cannot be loaded: {type(error).__name__}: {error}") from None
    if not rows:
        raise UsageError(f"{name}: the split {request.split or _SPLIT!r} has no row")
    left_out = [column for column in rows[0] if any(not _is_json(row.get(column)) for row in rows)]
    notes = [f"columns that are not JSON are left out: {quoted_names(left_out, 8)}"] if left_out else []
    return [{key: value for key, value in row.items() if key not in left_out} for row in rows], notes


def _is_json(value: Any) -> bool:
    try:
        check_plain(value)
    except NotJson:
        return False
    return True
