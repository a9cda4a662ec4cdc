"""Find evaluation sets in folders, and read files in any format, with errors that locate problems."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from agentest.plugin import PLUGINS
from agentest.plugins.adk.formats import other_formats
from agentest.plugins.adk.formats.eval_set import EvalSet, SessionInput
from agentest.plugins.adk.formats.problems import (
    MAX_PROBLEMS,
    EvalSetError,
    FileProblem,
    FormatNames,
    InvalidDocument,
    format_value,
    get,
    line_texts,
    validated,
)
from agentest.support.errors import UsageError, errors_as
from agentest.support.files import read_user_bytes
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import did_you_mean, first_names, nearest, snake_case

MAX_IDS = 20  # maximum number of case ids that an error lists

_TEXT = rb'"\s*:\s*"((?:[^"\\]|\\.)*)"'


class FileFormat(StrEnum):
    """The formats of evaluation set files."""

    EVAL_SET = "eval_set"
    LEGACY = "legacy"
    DATA = "data"  # ADK-TypeScript's format
    SCENARIOS = "scenarios"


@dataclass(frozen=True, slots=True)
class ReadSet:
    """An evaluation set and the file it was read from.

    Attributes:
        lines: eval_id → the line of its id in the file, from 1; 1 if unknown.
        criteria: the file's own criteria in the form of a `test_config.json`; None if it has none.
        warnings: notes about the file, one sentence each.
        criteria_notes: notes about `criteria`, which matter only if no other criteria replace them.
    """

    eval_set: EvalSet
    path: Path
    form: FileFormat
    lines: Mapping[str, int]
    criteria: Mapping[str, Any] | None = None
    warnings: tuple[str, ...] = ()
    criteria_notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Shape:
    form: FileFormat
    type: Any
    names: FormatNames
    convert: Callable[[Any, str], EvalSet]
    criteria: Callable[[Any], Mapping[str, Any] | None] = lambda _: None


EVAL_SET_NAMES = FormatNames("eval_cases", case_id="eval_id", invocations="conversation", line="eval_id")
_CASE_NAMES = FormatNames(case_id="name", invocations="data", line="name")
_TURN_NAMES = FormatNames(word="invocation", line="query")
_DATA_NAMES = FormatNames("data", case_id="name", line="name")
_SCENARIO_NAMES = FormatNames("scenarios", word="scenario", line="starting_prompt")
_EVAL_SET = _Shape(FileFormat.EVAL_SET, EvalSet, EVAL_SET_NAMES, lambda eval_set, _: eval_set)
_LEGACY_CASES = _Shape(
    FileFormat.LEGACY, tuple[other_formats.LegacyCase, ...], _CASE_NAMES, other_formats.from_legacy_cases
)
_LEGACY_TURNS = _Shape(
    FileFormat.LEGACY, tuple[other_formats.LegacyTurn, ...], _TURN_NAMES, other_formats.from_legacy_turns
)
_DATA = _Shape(
    FileFormat.DATA, other_formats.DataSet, _DATA_NAMES, other_formats.from_data, other_formats.data_criteria
)
_SCENARIOS = _Shape(
    FileFormat.SCENARIOS, other_formats.ScenariosFile, _SCENARIO_NAMES, other_formats.from_scenarios
)
_SESSION_KEYS = ("app_name", "user_id", "state", "session_id")


def read_eval_set(path: Path, initial_session: Mapping[str, Any] | None = None) -> ReadSet:
    """Read a file in any format. Raises EvalSetError, which lists up to five problems, or UsageError.

    Args:
        initial_session: `{app_name?, user_id?, state?}`, the session of cases without their own. It applies
            to every format; google-adk accepts it for legacy files only.
    """
    session = _session(initial_session, "initial session") if initial_session else None
    read = parse_eval_set(path, read_bytes(path))
    if not session:
        return read
    cases = (
        case if case.session_input else replace(case, session_input=session)
        for case in read.eval_set.eval_cases
    )
    return replace(read, eval_set=replace(read.eval_set, eval_cases=tuple(cases)))


def parse_eval_set(path: Path, text: bytes) -> ReadSet:
    """Parse the content of a file. Raises EvalSetError and UsageError as `read_eval_set` does.

    Args:
        text: the content without its byte order mark.
    """
    read = _read(path, text)
    set_problems = list(_problems_of_set(read.eval_set))
    if set_problems:
        lines = [read.lines[case.eval_id] for case in read.eval_set.eval_cases]
        raise EvalSetError(_problem_text(path, set_problems, len(set_problems), lines), set_problems)
    return read


def read_session(path: Path) -> Mapping[str, Any]:
    """Read an initial session file: `{app_name?, user_id?, state?}`. Raises UsageError."""
    session = parse_json(path, read_bytes(path))
    if not isinstance(session, dict):
        raise UsageError(
            f"{path}: is {format_value(session)}, expected an object: {{app_name, user_id, state}}"
        )
    _session(session, str(path))
    return session


def select(read: ReadSet, cases: Sequence[str]) -> ReadSet:
    """Return the set with only these cases, in file order; () for all. Raises UsageError for others."""
    known = [case.eval_id for case in read.eval_set.eval_cases]
    for name in cases:
        if name not in known:
            close = nearest(name, known)
            hint = f"; did you mean `{close}`?" if close else "."
            raise UsageError(f"{read.path}: there is no case `{name}`{hint} Its cases: {_listed(known)}")
    chosen = tuple(case for case in read.eval_set.eval_cases if not cases or case.eval_id in cases)
    return replace(read, eval_set=replace(read.eval_set, eval_cases=chosen))


def _listed(names: Iterable[object]) -> str:
    return first_names([f"`{name}`" for name in names], MAX_IDS)


def _read(path: Path, text: bytes) -> ReadSet:
    document = _converted(_wrapped_in_set(parse_json(path, text), set_name(path)), set_name(path))
    shape, extras = _shape(path, document), tuple[str, ...]()
    if shape.form is FileFormat.LEGACY:
        document, extras = other_formats.without_extras(document)
    try:
        parsed = validated(shape.type, document, shape.names)
    except InvalidDocument as error:
        lines = _lines_of_texts(text, line_texts(document, shape.names), shape.names.line)
        raise EvalSetError(_problem_text(path, error.problems, error.count, lines), error.problems) from None
    eval_set, warnings, notes = shape.convert(parsed, set_name(path)), [], tuple[str, ...]()
    if shape.form is FileFormat.LEGACY:
        warnings.append(
            f"{path}: is in the legacy form; `agentest migrate OLD NEW` converts it to an EvalSet"
        )
    if shape is _EVAL_SET:
        warnings += _session_notes(path, document)
    if extras:
        keys = f"key{'s' * (len(extras) > 1)} {_listed(extras)}"
        warnings.append(f"{path}: ADK does not know the {keys}; left out")
    if isinstance(parsed, other_formats.DataSet) and (unlisted := other_formats.unlisted_metrics(parsed)):
        names = ", ".join(f"`{name}`" for name in unlisted)
        notes = (f"{path}: `metrics` does not list {names}: scored for information, and fails no case",)
    lines_of_cases = _case_lines(text, eval_set, shape)
    return ReadSet(eval_set, path, shape.form, lines_of_cases, shape.criteria(parsed), tuple(warnings), notes)


def _session_notes(path: Path, document: Mapping[str, Any]) -> Iterator[str]:
    for case in get(document, "eval_cases"):
        for key in get(case, "session_input") or ():
            if snake_case(key) not in _SESSION_KEYS:
                yield (
                    f"{path}: case `{get(case, 'eval_id')}`: `{key}` is not a key of a session and is left "
                    f"out; {did_you_mean(key, _SESSION_KEYS)}"
                )


def _converted(document: Any, name: str) -> Any:
    if isinstance(document, dict) and _known_shape(document):
        return document  # any list may be a legacy set
    formats = PLUGINS.all("evaluation set format").values()
    return next((made for each in formats if (made := each.call(document, name)) is not None), document)


def _wrapped_in_set(document: Any, name: str) -> Any:
    cases = document if isinstance(document, list) else [document]
    alone = any(isinstance(case, dict) and "eval_id" in _keys(case) for case in cases)
    if alone and not (isinstance(document, dict) and "eval_cases" in _keys(document)):
        return {"eval_set_id": name, "eval_cases": cases}
    return document


def _keys(document: Mapping[Any, Any]) -> set[str]:
    return {snake_case(str(key)) for key in document}


def _known_shape(document: Any) -> _Shape | None:
    if isinstance(document, list):
        named = any(isinstance(entry, dict) and "data" in entry for entry in document)
        return _LEGACY_CASES if named else _LEGACY_TURNS
    keys = _keys(document) if isinstance(document, dict) else ()
    shapes = {"eval_cases": _EVAL_SET, "scenarios": _SCENARIOS, "data": _DATA, "eval_set_id": _EVAL_SET}
    return next((shape for key, shape in shapes.items() if key in keys), None)


def _shape(path: Path, document: Any) -> _Shape:
    if shape := _known_shape(document):
        return shape
    found = f"found {format_value(document)}"
    if isinstance(document, dict):
        found = f"found the keys {_listed(document)}" if document else "empty"
    raise UsageError(
        f"{path}: is not an evaluation set: {found}, expected an object with `eval_cases`, "
        "`data` or `scenarios`, or a list of legacy cases"
    )


def _problems_of_set(eval_set: EvalSet) -> Iterator[FileProblem]:
    if not eval_set.eval_cases:
        yield FileProblem(None, "has no cases")
    times = Counter(case.eval_id for case in eval_set.eval_cases)
    reported: set[str] = set()
    for index, case in enumerate(eval_set.eval_cases):
        if times[case.eval_id] > 1 and case.eval_id not in reported:
            reported.add(case.eval_id)
            problem = f"{times[case.eval_id]} cases have this id"
            yield FileProblem(index, f"case `{case.eval_id}`: {problem}", ("eval_id",), problem)
        if case.conversation == ():
            problem = "its conversation has no invocations"
            yield FileProblem(index, f"case `{case.eval_id}`: {problem}", ("conversation",), problem)


def _problem_text(path: Path, entries: Iterable[FileProblem], count: int, lines: Sequence[int]) -> str:
    rows = []
    for entry in islice(entries, MAX_PROBLEMS):
        line = lines[entry.case] if entry.case is not None and entry.case < len(lines) else 0
        rows.append(f"{path}{f':{line}' if line else ''}: {entry.message}")
    more = [f"{path}: and {count - MAX_PROBLEMS} more problems"] if count > MAX_PROBLEMS else []
    return "\n".join([*rows, *more])


def _case_lines(text: bytes, eval_set: EvalSet, shape: _Shape) -> dict[str, int]:
    cases = eval_set.eval_cases
    located = [  # by its id, or by the first message of a simulated user
        case.conversation_scenario.starting_prompt
        if shape.form is FileFormat.SCENARIOS and case.conversation_scenario
        else case.eval_id
        for case in cases
    ]
    lines = _lines_of_texts(text, located, shape.names.line)
    return {case.eval_id: line or 1 for case, line in zip(cases, lines, strict=True)}


def _lines_of_texts(text: bytes, wanted: Sequence[str], key: str) -> list[int]:
    lines: defaultdict[str, list[int]] = defaultdict(list)
    line, counted_to = 1, 0
    first, _, rest = key.encode().partition(b"_")
    spellings = b"(?:_" + rest + b"|" + rest.title() + b")" if rest else b""
    for match in re.finditer(b'"' + first + spellings + _TEXT, text):
        line += text.count(b"\n", counted_to, match.start())
        counted_to = match.start()
        lines[from_json(b'"' + match[1] + b'"')].append(line)
    return [lines[name].pop(0) if lines.get(name) else 0 for name in wanted]


def _session(data: Mapping[str, Any], where: str) -> SessionInput | None:
    try:
        read = validated(other_formats.InitialSession, data)
    except InvalidDocument as error:
        raise UsageError(_problem_text(Path(where), error.problems, error.count, ())) from None
    if data and _keys(data).isdisjoint(_SESSION_KEYS):
        raise UsageError(
            f"{where}: has none of `app_name`, `user_id`, `state`, `session_id`; "
            "values of the session go under `state`"
        )
    return other_formats.session_input(read)


BOM = b"\xef\xbb\xbf"


def read_bytes(path: Path) -> bytes:
    try:
        text = read_user_bytes(path)
    except FileNotFoundError:
        raise UsageError(f"{path}: does not exist") from None
    except IsADirectoryError:
        raise UsageError(f"{path}: is a folder, expected a JSON file") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # the path contains a null character
        raise UsageError(f"{path}: cannot be read: {error}") from None
    return text.removeprefix(BOM)


def parse_json(path: Path, text: bytes) -> Any:
    """Parse JSON. Raises UsageError with line and column."""
    try:
        text.decode()
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path}:{line}: is not UTF-8 text ({error.reason} at byte {error.start})") from None
    with errors_as(lambda problem: UsageError(_not_json(path, text, problem)), ""):
        return from_json(text, allow_inf_nan=False)


def _not_json(path: Path, text: bytes, message: str) -> str:
    reason, _, position = message.partition(" at line ")
    line, _, column = position.partition(" column ")
    if not (line.isdigit() and column.isdigit()):
        return f"{path}: is not JSON: {message}"
    if not text.strip():
        return f"{path}: is empty, expected JSON"
    if "recursion" in reason:
        reason = "the document is nested too deeply"
    rest = text.split(b"\n")[int(line) - 1][max(int(column) - 1, 0) :][:30].decode(errors="replace").strip()
    return f"{path}:{line}: is not JSON: {reason} (line {line}, column {column})" + (rest and f": {rest}")


TEST_SUFFIX = ".test.json"  # suffix of sets that a folder runs by default
EVAL_SET_SUFFIX = ".evalset.json"  # suffix of sets that a folder runs only with `--all`
SUFFIXES = (TEST_SUFFIX, EVAL_SET_SUFFIX)

_DRIVE = re.compile(r"[A-Za-z]:[\\/]")


def find_eval_sets(folder: Path, *, every: bool = False) -> tuple[tuple[Path, ...], str]:
    """Find `*.test.json` below a folder; with `every`, also `*.evalset.json`. Raises UsageError if none.

    Returns the files, sorted by path, and which were left out and how to include them; "" if none were.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder}: is not a folder")
    files = eval_sets_in(folder)
    if not files:
        raise UsageError(f"{folder}: no evaluation sets in it; their names end in {' or '.join(SUFFIXES)}")
    wanted = tuple(file for file in files if every or file.name.endswith(TEST_SUFFIX))
    others = len(files) - len(wanted)
    left_out = f"{others} file{'s' * (others > 1)} *{EVAL_SET_SUFFIX}"
    how = f"--all (from Python: every_set=True) runs {'it' if others == 1 else 'them'}"
    if not wanted:
        raise UsageError(f"{folder}: no *{TEST_SUFFIX} in it, but {left_out}: {how}")
    return wanted, f"{folder}: {left_out} left out; {how}, too" if others else ""


def eval_sets_in(folder: Path) -> list[Path]:
    """Find all evaluation sets below a folder, sorted by path."""
    return sorted(
        Path(parent, name)
        for parent, _, names in os.walk(folder)
        for name in names
        if name.endswith(SUFFIXES)
    )


def parse_target(text: str, root: Path = Path()) -> tuple[str, tuple[str, ...]]:
    """Split a target into a path and case ids (() for all): `orders.test.json:lookup,cancel`.

    A path that exists as written below `root` is not split. Raises UsageError if no case follows the colon.
    """
    splits = [(text, None), *_splits_at_colon(text)]
    path, wanted = splits[1] if len(splits) > 1 else splits[0]
    for split in splits:
        with suppress(OSError):  # such as a name that is too long for a file: it is a list of cases
            if split[0] and (root / split[0]).exists():
                path, wanted = split
                break
    if wanted is None:
        return path, ()
    cases = tuple(dict.fromkeys(name.strip() for name in wanted.split(",") if name.strip()))
    if not cases:
        raise UsageError(f"{text}: no case after the colon; write {path}:case1,case2 or {path}")
    return path, cases


def set_name(path: Path) -> str:
    """Return the default name of a set: its file's name without the suffix."""
    for suffix in (*SUFFIXES, ".json"):
        if path.name.endswith(suffix) and path.name != suffix:
            return path.name.removesuffix(suffix)
    return path.name


def _splits_at_colon(text: str) -> Iterator[tuple[str, str]]:
    first = 2 if _DRIVE.match(text) else 1
    for colon in range(len(text) - 1, first - 1, -1):
        if text[colon] == ":":
            yield text[:colon], text[colon + 1 :]
