"""Fingerprints that show whether a scenario, or anything that affects its result, changed between two runs.

A fingerprint covers the scenario's file, the user's modules and the relevant configuration without its
secrets. It ignores settings such as reports and concurrency.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from agentest.config.config import Config
from agentest.runner.plan import Unit, unmocked_tools_setting
from agentest.runner.prepare import Prepared
from agentest.runner.selection import with_units
from agentest.support.files import read_user_bytes
from agentest.support.importing import imported_files
from agentest.support.json_text import CODE, canonical
from agentest.version import __version__

_CONFIGURED = ("request_timeout_ms", "custom_metrics", "fail_on_error_severity", "servers")
_OF_ROLES = {"user": ("check",), "judge": ("samples", "batch", "skip_decided")}
_OF_MODELS = ("name", "temperature", "max_tokens", "sampling", "base_url")
_FILE_MODULE_NAME = re.compile(rb"\bagentest_file_(\w+)_[0-9a-f]{10}\b")
"""The generated module name of a file (`importing.module_name`), which depends on the file's path."""


def with_fingerprints(prepared: Prepared) -> Prepared:
    """Return the run with a fingerprint for each unit."""
    files = _FileContents(prepared)
    redact = prepared.loaded.redact
    common = _shared_digest(prepared, files)
    # An agent's settings are long and the same for all of its units.
    agents = {name: redact(canonical(agent)) for name, agent in prepared.plan.agents.items()}

    def marked(unit: Unit) -> Unit:
        own = redact(canonical(_unit_values(unit, prepared)))
        parts = (common, own, agents[unit.agent], files.digest(files.of(unit)))
        return replace(unit, fingerprint=_content_hash("\n".join(parts).encode("utf-8", "surrogatepass")))

    return replace(prepared, plan=with_units(prepared.plan, marked))


class _FileContents:
    """The contents of files, each read once."""

    def __init__(self, prepared: Prepared) -> None:
        self._root = prepared.request.root
        self._digests: dict[Path, str] = {}
        scenarios = {Path(unit.scenario.file).resolve() for unit in prepared.plan.units}
        config = prepared.loaded.path.resolve()
        modules = {file.resolve() for file in prepared.files | imported_files()}
        # A scenario file from which nothing was selected is still a scenario file by name.
        self.modules = {
            file for file in modules if file != config and file not in scenarios and not _is_scenarios(file)
        }

    def of(self, unit: Unit) -> set[Path]:
        """Return the file of a unit; for a case of an evaluation set, also its `test_config.json`."""
        file = Path(unit.scenario.file)
        return {file, file.with_name("test_config.json")} if unit.scenario.case else {file}

    def digest(self, files: Iterable[Path]) -> str:
        """Return one text for the contents of files, independent of the project's location."""
        return "\n".join(sorted(map(self._digest, files)))

    def _digest(self, file: Path) -> str:
        if file not in self._digests:
            try:
                content = _content_hash(read_user_bytes(self._root / file, most=None))
            except OSError:
                content = ""
            self._digests[file] = f"{file.name} {content}"
        return self._digests[file]


def _is_scenarios(file: Path) -> bool:
    return file.name.endswith(".sim.py")


def _shared_digest(prepared: Prepared, files: _FileContents) -> str:
    """Return the part that is the same for all units."""
    config = prepared.loaded.config
    settings = canonical({name: getattr(config, name) for name in _CONFIGURED} | _roles(config))
    agents = canonical(dict(prepared.plan.agents))
    specs = (prepared.user, prepared.judge, *([prepared.confirm] if prepared.confirm else []))
    models = [spec and [getattr(spec, name) for name in _OF_MODELS] for spec in specs]
    # The code that a Python configuration defines itself is in no other file.
    own_code = prepared.loaded.path.suffix == ".py" and CODE in settings + agents
    code = {*files.modules, *({prepared.loaded.path} if own_code else ())}
    text = "\n".join([__version__, settings, canonical(models), canonical(prepared.model_names)])
    return prepared.loaded.redact(text) + files.digest(code) + files.digest(_named_files(prepared))


def _roles(config: Config) -> dict[str, object]:
    return {
        role: [getattr(getattr(config, role), name) for name in names] for role, names in _OF_ROLES.items()
    }


def _named_files(prepared: Prepared) -> set[Path]:
    """Return the files that agents' settings name, such as tool lists and instructions."""
    found = set()
    for agent in prepared.plan.agents.values():
        for held in (agent, *(value for _, value in agent if hasattr(value, "__dict__"))):
            named = (getattr(held, name, None) for name in ("openapi", "tools", "instructions_file"))
            found |= {Path(each) for each in named if isinstance(each, str | Path)}
    return found


def _unit_values(unit: Unit, prepared: Prepared) -> list[object]:
    scenario = unit.scenario
    unmocked = unmocked_tools_setting(prepared.loaded.config, prepared.request.options)
    judged = [unit.metrics, unit.thresholds, unit.graders, unit.information, unit.max_turns]
    said = [scenario.name, scenario.session, scenario.plan, scenario.date, unit.slug, unmocked]
    return [*said, *judged]


def _content_hash(content: bytes) -> str:
    return hashlib.sha256(_FILE_MODULE_NAME.sub(rb"\1", content)).hexdigest()[:32]
