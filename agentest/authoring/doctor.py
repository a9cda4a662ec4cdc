"""`agentest doctor`: check everything that a run needs, in the order in which the run needs it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, MutableMapping
from pathlib import Path

from agentest.authoring.checks import (
    ROLES,
    Check,
    CheckOutcome,
    Tell,
    agents_to_check,
    bad,
    check_agent,
    check_models,
    check_price,
    good,
    left_open,
    resolved,
)
from agentest.config.config import Config
from agentest.config.file import LoadedConfig
from agentest.runner.plan import Plan, make_plan
from agentest.runner.prepare import CONFIRM, Prepared, RunRequest, configure, discover_scenarios
from agentest.scenarios.discovery import DiscoveredScenarios
from agentest.support.errors import UsageError
from agentest.support.files import path_from, shown_path
from agentest.support.redaction import Redactor, environment_secrets
from agentest.support.text import count


class CheckLog:
    """Collects findings, and removes secrets from them."""

    def __init__(self, tell: Tell, environ: MutableMapping[str, str]) -> None:
        self.bad = 0
        self.redact = Redactor(environment_secrets(environ))
        self._tell = tell

    def __call__(self, check: Check) -> None:
        self.bad += check.mark is CheckOutcome.BAD
        text, advice = self.redact(check.text), self.redact(check.advice)
        self._tell(Check(mark=check.mark, name=check.name, text=text, advice=advice))


async def run_checks(
    request: RunRequest,
    tell: Tell,
    environ: MutableMapping[str, str] = os.environ,
    *,
    say: Callable[[str], object] = lambda _: None,
    expected: Callable[[Prepared], str] = lambda _: "",
) -> int:
    """Run all checks, report each as soon as it is complete, and return the number of failures.

    Agents' servers are started and stopped. Each configured model answers one question, unless the request is
    offline.

    Args:
        say: receives a message about each long wait.
        expected: expected usage of a run, estimated from an earlier one, in words; "" if unknown.
    """
    findings = CheckLog(tell, environ)
    loaded = check_config(request, environ, findings)
    if loaded is None:
        findings(left_open("the rest", "was not looked at: it stands in the configuration"))
        return findings.bad
    findings.redact = loaded.redact.knowing(environment_secrets(environ))
    plan = check_scenarios(request, loaded, findings)
    findings(check_output(loaded.config, request.root))
    if ignored := check_ignored(loaded.config, request.root):
        findings(ignored)
    try:
        agents = agents_to_check(request, loaded, plan)
    except UsageError as error:
        findings(bad("agent", str(error)))
        agents = []
    for agent in agents:
        await check_agent(agent, request, loaded, findings, say)
    if request.options.offline:
        findings(left_open("model", "not asked: --offline"))
        return findings.bad
    specs = resolved(loaded, request, environ, findings)
    await check_models(specs, findings)
    if plan is not None and specs.keys() >= set(ROLES):
        confirm = specs.get(CONFIRM)
        run = Prepared(request, loaded, plan, (), user=specs["user"], judge=specs["judge"], confirm=confirm)
        findings(check_price(plan, loaded.config, specs, expected(run)))
    return findings.bad


_LEAST_FREE_BYTES = 100_000_000
_GB = 1_000_000_000


def check_config(request: RunRequest, environ: MutableMapping[str, str], tell: Tell) -> LoadedConfig | None:
    """Load and check the configuration; return None if it is missing or invalid."""
    try:
        loaded = configure(request, environ)
    except UsageError as error:
        tell(bad("configuration", str(error)))
        return None
    tell(good("configuration", path_from(request.here or request.root, loaded.path)))
    return loaded


def check_scenarios(request: RunRequest, loaded: LoadedConfig, tell: Tell) -> Plan | None:
    """Plan all scenarios that can be loaded; return None if no plan is possible."""
    try:
        discovered = discover_scenarios(request, loaded)
        plan = make_plan(loaded.config, discovered, request.options, request.root)
    except UsageError as error:
        tell(bad("scenarios", str(error)))
        return None
    for check in _scenario_checks(discovered, loaded.config, request.root):
        tell(check)
    return plan


def _scenario_checks(discovered: DiscoveredScenarios, config: Config, root: Path) -> list[Check]:
    checks = [bad("scenarios", _problem_text(*each, root)) for each in discovered.problems]
    usable = [scenario for scenario in discovered.scenarios if not scenario.refused]
    files = len({scenario.file for scenario in usable})
    if usable:
        text = f"{count(len(usable), 'scenario')} in {count(files, 'file')}"
        checks.append(good("scenarios", text))
    elif not checks:
        why = f"none: no file that matches {', '.join(config.include)} (`include`) calls scenario(…)"
        checks.append(bad("scenarios", why, "agentest init writes a first one."))
    return checks


def _problem_text(file: str, line: int, message: str, root: Path) -> str:
    """Format location and reason; of a traceback, the last row has the reason."""
    first, *_, last = [row for row in message.splitlines() if row.strip()] * 2
    why = first if first == last else f"{first}: {last.strip()}"
    return f"{shown_path(file, root)}:{line}: {why}"


def check_output(config: Config, root: Path) -> Check:
    """Check that reports can be written. Leaves no files behind."""
    folder = root / config.output_dir
    existing = next(each for each in (folder, *folder.parents) if each.exists())
    name = shown_path(folder, root)
    try:
        with tempfile.TemporaryFile(dir=existing):
            free = shutil.disk_usage(existing).free
    except OSError as error:
        why = f"{name} cannot be written to: {error.strerror or error}"
        return bad("output", why, "See to its permissions, or name another folder with `output_dir`.")
    text = f"{name} can be written to, {free / _GB:.1f} GB free"
    if free < _LEAST_FREE_BYTES:
        return bad("output", text, "Make room: a run keeps every conversation.")
    return good("output", text)


def check_ignored(config: Config, root: Path) -> Check | None:
    """Check that git ignores the files of runs; return None if it does, or without a repository."""
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
