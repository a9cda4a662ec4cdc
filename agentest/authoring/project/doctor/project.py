"""What lies on the disk: configuration, scenarios, and where reports go."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

from agentest.authoring.project.doctor.checks import Check, Tell, bad, good, left_open
from agentest.config.config import Config
from agentest.config.file import LoadedConfig
from agentest.runner.plan import Plan, make_plan
from agentest.runner.prepare import Request, configure, discover_scenarios
from agentest.scenarios.discovery import Discovered
from agentest.support.errors import UsageError
from agentest.support.paths import path_from, shown_path
from agentest.support.text import count

_LEAST_FREE_BYTES = 100_000_000
_GB = 1_000_000_000


def check_config(request: Request, environ: MutableMapping[str, str], tell: Tell) -> LoadedConfig | None:
    """The configuration; None where there is none that can be used."""
    try:
        loaded = configure(request, environ)
    except UsageError as error:
        tell(bad("configuration", str(error)))
        return None
    tell(good("configuration", path_from(request.here or request.root, loaded.path)))
    return loaded


def check_scenarios(request: Request, loaded: LoadedConfig, tell: Tell) -> Plan | None:
    """The plan of all scenarios that could be loaded; None where nothing can be planned."""
    try:
        found = discover_scenarios(request, loaded)
        plan = make_plan(loaded.config, found, request.options, request.root)
    except UsageError as error:
        tell(bad("scenarios", str(error)))
        return None
    for check in _scenarios(found, loaded.config, request.root):
        tell(check)
    return plan


def _scenarios(found: Discovered, config: Config, root: Path) -> list[Check]:
    checks = [bad("scenarios", _problem(*each, root)) for each in found.problems]
    usable = [scenario for scenario in found.scenarios if not scenario.refused]
    files = len({scenario.file for scenario in usable})
    if usable:
        told = f"{count(len(usable), 'scenario')} in {count(files, 'file')}"
        checks.append(good("scenarios", told))
    elif not checks:
        why = f"none: no file that matches {', '.join(config.include)} (`include`) calls scenario(…)"
        checks.append(bad("scenarios", why, "agentest init writes a first one."))
    return checks


def _problem(file: str, line: int, message: str, root: Path) -> str:
    """Where and why; of a traceback the last row says it."""
    first, *_, last = [row for row in message.splitlines() if row.strip()] * 2
    why = first if first == last else f"{first}: {last.strip()}"
    return f"{shown_path(file, root)}:{line}: {why}"


def check_output(config: Config, root: Path) -> Check:
    """Whether reports can be written. Nothing is left behind."""
    folder = root / config.output_dir
    there = next(each for each in (folder, *folder.parents) if each.exists())
    shown = shown_path(folder, root)
    try:
        with tempfile.TemporaryFile(dir=there):
            free = shutil.disk_usage(there).free
    except OSError as error:
        why = f"{shown} cannot be written to: {error.strerror or error}"
        return bad("output", why, "See to its permissions, or name another folder with `output_dir`.")
    told = f"{shown} can be written to, {free / _GB:.1f} GB free"
    if free < _LEAST_FREE_BYTES:
        return bad("output", told, "Make room: a run keeps every conversation.")
    return good("output", told)


def check_ignored(config: Config, root: Path) -> Check | None:
    """Whether what runs write stays out of the repository; None where there is none, or it does."""
    if not (root / ".git").exists() or Path(config.output_dir).is_absolute():
        return None
    try:
        text = (root / ".gitignore").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    name = config.output_dir.strip("./")
    if name in text:
        return None
    return left_open("git", f"{config.output_dir} is not in .gitignore", "agentest init adds it.")
