"""Write a module of mocks: its source, and the files with answers that are too long for it."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentest.authoring.mock_functions import (
    FROM_FILE,
    IN_TURN,
    NOT_RECORDED,
    MockSource,
    call_shown,
    mock_of,
)
from agentest.authoring.recorded_calls import RecordedTool
from agentest.scenarios.python_formatting import SourceItem, literal, rows
from agentest.support.errors import UsageError
from agentest.support.files import write_atomically
from agentest.support.text import shortened

_OF_TYPING = ("Any", "Literal", "NoReturn")
_OF_AGENTEST = ("HttpResponse", "MockContext", "MockError", "sequence")
_HELPERS = (NOT_RECORDED, IN_TURN, FROM_FILE)
_NEEDS = {
    NOT_RECORDED: ("Any", "MockError"),
    IN_TURN: ("Any", "MockContext"),
    FROM_FILE: ("Any", "json", "Path"),
}
_COMMENT_CHARS = 80
_TAKEN = frozenset({"tools", "json", "Path", *_OF_TYPING, *_OF_AGENTEST, *dir(builtins)})

_SOURCE = {
    NOT_RECORDED: '''def _not_recorded(tool: str, /, **args: Any) -> MockError:
    """Ends the conversation: what the real tool answers to this call is not known."""
    call = ", ".join(f"{name}={value!r}" for name, value in args.items())
    return MockError(f"no answer was recorded for {tool}({call}); add it to {__file__}")''',
    IN_TURN: '''def _in_turn(ctx: MockContext, call: str, *answers: Any) -> Any:
    """The next answer to the same call; each conversation begins with the first, the last is repeated."""
    number = ctx.state.get(call, 0)
    ctx.state[call] = number + 1
    answer = answers[min(number, len(answers) - 1)]
    if isinstance(answer, Exception):
        raise answer
    return answer''',
    FROM_FILE: '''def _answer_in(file: str) -> Any:
    """A long answer, which has a file of its own."""
    return json.loads((Path(__file__).parent / file).read_text(encoding="utf-8"))''',
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MockModule:
    """The files to write."""

    source: str
    files: dict[str, str] = field(default_factory=dict)
    """Path relative to the module's folder → content."""


def module_of(tools: Sequence[RecordedTool], stem: str) -> MockModule:
    """Return the module with these mocks.

    Args:
        stem: file name without `.py`, which is also the name of the folder of long answers.
    """
    files = _AnswerFiles(f"{stem}_answers")
    names = _function_names(tools)
    mocks = [mock_of(tool, name, files) for tool, name in zip(tools, names, strict=True)]
    used = _with_needs({name for mock in mocks for name in mock.names})
    parts = [
        [_module_docstring(stem)],
        *_imports(used),
        *(list(mock.function) for mock in mocks if mock.function),
        *([_SOURCE[name]] for name in _HELPERS if name in used),
        list(_dict(tools, mocks)),
    ]
    return MockModule(source=_join_parts(parts), files=files.kept)


def _join_parts(parts: Sequence[Sequence[str]]) -> str:
    """Join the parts with two blank lines around functions and one elsewhere."""
    text = ""
    for i, part in enumerate(parts):
        source = "\n".join(part)
        wide = source.startswith("def ") or (i > 0 and parts[i - 1][0].startswith("def "))
        text += ("\n\n\n" if wide else "\n\n") * bool(text) + source
    return text + "\n"


def _module_docstring(stem: str) -> str:
    return (
        '"""Mocks that answer as the real tools did when `agentest record-tools` recorded them.\n\n'
        "The file is yours: rename, shorten and change what is here. In a scenario:\n\n"
        f"    from {stem} import tools\n\n"
        '    scenario("…", tools=tools, …)\n"""'
    )


def _with_needs(used: Iterable[str]) -> set[str]:
    known = {"Any", *used}
    return known | {need for name in known for need in _NEEDS.get(name, ())}


def _imports(used: set[str]) -> Iterator[list[str]]:
    standard = ["import json"] if "json" in used else []
    standard += ["from pathlib import Path"] if "Path" in used else []
    standard.append("from typing import " + ", ".join(name for name in _OF_TYPING if name in used))
    yield standard
    if ours := [name for name in _OF_AGENTEST if name in used]:
        yield ["from agentest import " + ", ".join(ours)]


def _dict(tools: Sequence[RecordedTool], mocks: Sequence[MockSource]) -> Iterator[str]:
    if not tools:
        yield "tools: dict[str, Any] = {}"
        return
    yield "tools: dict[str, Any] = {"
    for tool, mock in zip(tools, mocks, strict=True):
        if not mock.function:
            shown = shortened(call_shown(tool.name, tool.cases[0].args), _COMMENT_CHARS)
            yield f"    # {shown}"
        yield from rows(SourceItem(mock.value, f"{literal(tool.name)}: "), 4, ",")
    yield "}"


def _function_names(tools: Sequence[RecordedTool]) -> list[str]:
    """Return a function name for each tool, similar to the tool's name."""
    names: list[str] = []
    for tool in tools:
        base = re.sub(r"\W+", "_", tool.name, flags=re.ASCII).strip("_") or "tool"
        base = f"tool_{base}" if base[0].isdigit() else base
        base = f"{base}_" if keyword.iskeyword(base) or base in _TAKEN else base
        name, number = base, 1
        while name in names:
            number += 1
            name = f"{base}_{number}"
        names.append(name)
    return names


class _AnswerFiles:
    """Long answers by path."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.kept: dict[str, str] = {}

    def keep(self, tool: str, text: str) -> str:
        for name, kept in self.kept.items():
            if kept == text:
                return name
        base = re.sub(r"[^A-Za-z0-9_-]+", "_", tool)[:60].strip("_") or "tool"
        name = f"{self._folder}/{base}_{len(self.kept) + 1}.json"
        self.kept[name] = text
        return name


DEFAULT = "recorded_tools.py"
_SCENARIO_ENDING = ".sim.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class MockTargets:
    """The paths to write to."""

    module: Path
    scenario: Path | None = None
    force: bool = False
    """If True, existing files are replaced."""

    @property
    def stem(self) -> str:
        return self.module.stem

    @property
    def tool_list(self) -> Path:
        """Return the default path of the list of an MCP server's tools."""
        return self.module.with_suffix(".mcp.json")


def targets(
    output: Path | None,
    scenario: Path | None,
    folder: Path,
    shown: Callable[[Path], str],
    *,
    force: bool | None,
) -> MockTargets:
    """Choose the files to write. Raises UsageError before the real tools are called, if that is not possible.

    Args:
        output: path of the module; None for next to the scenario file, else in `folder`.
        shown: formats a path as the user would write it.
        force: True if existing files may be replaced; None if the command has no such option.
    """
    module = output or (scenario.parent if scenario else folder) / DEFAULT
    _check_names(module, scenario, shown)
    if force is None:
        _check_moved(module, shown)
    elif not force:
        _check_free(module, "--output", shown)
        if scenario:
            _check_free(scenario, "--scenario", shown)
    for path in (module, scenario or module):
        if not path.parent.is_dir():
            raise UsageError(f"{shown(path)}: the folder {shown(path.parent)} does not exist; make it first")
    return MockTargets(module=module, scenario=scenario, force=bool(force))


def _check_names(module: Path, scenario: Path | None, shown: Callable[[Path], str]) -> None:
    if module.suffix != ".py" or not module.stem.isidentifier() or keyword.iskeyword(module.stem):
        raise UsageError(
            f"--output: {shown(module)} cannot be imported; name a Python module, like {DEFAULT}"
        )
    if scenario is None:
        return
    if not scenario.name.endswith(_SCENARIO_ENDING):
        raise UsageError(
            f"--scenario: {shown(scenario)} would never be found; its name must end in {_SCENARIO_ENDING}"
        )
    if scenario.parent.resolve() != module.parent.resolve():
        raise UsageError(
            f"--scenario: {shown(scenario)} cannot import {shown(module)} from another folder; leave "
            "--output out, or name the same folder"
        )


def _check_free(path: Path, option: str, shown: Callable[[Path], str]) -> None:
    if path.exists():
        raise UsageError(
            f"{option}: {shown(path)} exists already, and nothing was recorded; --force replaces it, "
            f"{option} names another file"
        )


def _check_moved(path: Path, shown: Callable[[Path], str]) -> None:
    if path.exists():
        raise UsageError(
            f"--record-tools: {shown(path)} exists already, and nothing was recorded; give that file another "
            "name first"
        )


def write_module(module: MockModule, at: MockTargets) -> None:
    """Write the module and its long answers. Raises UsageError."""
    for name, text in module.files.items():
        _write(at.module.parent / name, text)
    _write(at.module, module.source)


def write_text(path: Path, text: str) -> None:
    """Write a file. Raises UsageError."""
    _write(path, text)


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, text.encode())
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from None
