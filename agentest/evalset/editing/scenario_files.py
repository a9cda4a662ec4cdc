"""The scenario files of a project, imported in a process of their own: they are programs.

    python -m agentest.evalset.editing.scenario_files ROOT [CONFIG]

writes a `ScenarioFiles` as JSON to its standard output.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from agentest.config.file import find, load
from agentest.errors import AgentestError
from agentest.scenarios.discovery import Discovered, discover
from agentest.support.paths import shown_path

_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedScenario:
    """A scenario, or a file that has none because of its `error`."""

    file: str
    name: str = ""
    line: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioFiles:
    """What discovery finds. `error`: why it could not look."""

    scenarios: tuple[ListedScenario, ...] = ()
    error: str = ""


def scenario_files(root: Path, config: Path | None) -> ScenarioFiles:
    """What `agentest run` would find in a folder now. It takes as long as importing all of it."""
    command = [sys.executable, "-m", __name__, str(root), *([str(config)] if config else [])]
    # Files and no pipes: what a module has started may hold a pipe open for ever.
    with TemporaryFile() as out, TemporaryFile() as err:
        try:
            subprocess.run(
                command,
                cwd=root,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                timeout=_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return ScenarioFiles(error=f"importing the scenario files took longer than {_LIMIT_S:g} s")
        except OSError as error:
            return ScenarioFiles(error=f"cannot start Python: {error}")
        return _told(_whole(out), _whole(err))


def _whole(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


def _told(out: bytes, err: bytes) -> ScenarioFiles:
    try:
        found = json.loads(out)
    except ValueError:
        said = err.decode(errors="replace").strip()[-2000:]
        return ScenarioFiles(error=f"importing the scenario files ended the process\n{said}".strip())
    scenarios = tuple(ListedScenario(**each) for each in found["scenarios"])
    return ScenarioFiles(scenarios=scenarios, error=found["error"])


def _found(root: Path, config: Path | None) -> ScenarioFiles:
    try:
        path = config or find(root)
        loaded = load(path)
        found = discover(root, loaded.config.include, loaded.config.exclude, config=path)
    except AgentestError as error:
        return ScenarioFiles(error=str(error))
    return ScenarioFiles(scenarios=_listed(found.redacted(loaded.redact), root))


def _listed(found: Discovered, root: Path) -> tuple[ListedScenario, ...]:
    there = [
        ListedScenario(file=shown_path(each.file, root), name=each.name, line=each.line)
        for each in found.scenarios
    ]
    there += [
        ListedScenario(
            file=shown_path(each.file, root), name=each.name or "", line=each.line, error=each.message
        )
        for each in found.broken
    ]
    there += [ListedScenario(file=file, error="defines no scenario") for file in found.empty]
    return tuple(sorted(there, key=lambda each: (each.file, each.line)))


def _main(arguments: list[str]) -> None:
    # What the user's modules print must not get between: only we keep the true standard output.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    root = Path(arguments[0])
    found: dict[str, Any] = asdict(_found(root, Path(arguments[1]) if arguments[1:] else None))
    with out:
        out.write(json.dumps(found).encode())


if __name__ == "__main__":
    _main(sys.argv[1:])
