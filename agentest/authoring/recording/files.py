"""Where recorded mocks are written: checked before anything is recorded, and never over what is there."""

from __future__ import annotations

import keyword
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agentest.authoring.recording.module import Module
from agentest.support.errors import UsageError
from agentest.support.files import write_atomically

DEFAULT = "recorded_tools.py"
_SCENARIO_ENDING = ".sim.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """The files to write."""

    module: Path
    scenario: Path | None = None
    force: bool = False
    """Whether files that are there already are replaced."""

    @property
    def stem(self) -> str:
        return self.module.stem

    @property
    def tool_list(self) -> Path:
        """Where the list of an MCP server's tools is kept, unless the configuration says."""
        return self.module.with_suffix(".mcp.json")


def targets(
    output: Path | None,
    scenario: Path | None,
    folder: Path,
    shown: Callable[[Path], str],
    *,
    force: bool | None,
) -> Targets:
    """What will be written. Raises UsageError where that is not possible: real tools need not run for it.

    Args:
        output: the module; None: beside the scenario file, else in `folder`.
        shown: a path as the user would write it.
        force: whether files that are there may be replaced; None: the command has no options to say so.
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
    return Targets(module=module, scenario=scenario, force=bool(force))


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


def write_module(module: Module, at: Targets) -> None:
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
