"""`agentest eval`: evaluation sets from the command line's words to a prepared run."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from pydantic import ValidationError

from agentest.config.agent_types import AgentConfig
from agentest.config.agents import ChatCompletionsAgent
from agentest.config.config import Config
from agentest.config.file import LoadedConfig, find, load, secrets_of
from agentest.config.instructions import with_instructions
from agentest.errors import ConfigError, ScenarioError, UsageError
from agentest.evalset.cases import CaseSet, case_entries, unchecked
from agentest.evalset.formats.criteria import CRITERIA_FILE, DEFAULT, Criteria, parse_criteria, read_criteria
from agentest.evalset.formats.reading import (
    ReadSet,
    read_eval_set,
    read_session,
    select,
)
from agentest.evalset.formats.targets import find_eval_sets, parse_target
from agentest.evalset.metrics.own_code import OwnMetric, about_experimental, own_metrics
from agentest.mocks.binding import Mock
from agentest.run.plan import Plan, Unit, agents_under_test, placed
from agentest.run.prepare import Prepared, Request, check_reporters, prepared_for
from agentest.scenarios.definition import parse_tools
from agentest.support.importing import import_file, user_traceback
from agentest.support.redact import HIDDEN, Redactor, environment_secrets


@dataclass(frozen=True, slots=True)
class EvalRequest:
    """What the command line asks for."""

    request: Request
    targets: tuple[str, ...]
    """Files and folders; a file may be followed by `:case1,case2`."""
    criteria: Path | None = None
    """The criteria of all files, in place of what lies beside each."""
    num_runs: int = 1
    initial_session: Path | None = None
    mocks: Path | None = None


def prepare_eval(
    asked: EvalRequest,
    environ: MutableMapping[str, str] = os.environ,
    configured: tuple[LoadedConfig, str | None] | None = None,
) -> Prepared:
    """Read sets, criteria and mocks, and plan the run. Raises UsageError.

    Args:
        configured: the configuration and the name of its agent, where the caller has them already.
    """
    request = asked.request
    check_reporters(request.reporters)
    loaded, agent = configured or load_for(request, environ)
    reads = read_sets(asked)
    tools = load_mocks(asked.mocks) if asked.mocks else {}
    sets = case_sets(reads, asked.criteria, tools, request.root)
    plan = eval_plan(sets, loaded.config, agent, asked.num_runs, request.root)
    notes = [note for read in reads for note in _notes(read, asked.criteria)]
    notes += [note for chosen in sets for note in unchecked(chosen)]
    notes += about_experimental({n: metric for chosen in sets for n, metric in chosen.evaluators.items()})
    return prepared_for(request, loaded, plan, notes, environ)


def _notes(read: ReadSet, criteria: Path | None) -> tuple[str, ...]:
    """What the user should know of a file, and of its own criteria where no others replace them."""
    return (*read.warnings, *read.criteria_notes) if criteria is None else read.warnings


def load_for(
    request: Request, environ: MutableMapping[str, str] = os.environ
) -> tuple[LoadedConfig, str | None]:
    """The configuration and which of its agents is wanted. An agent may be given as a URL, without any."""
    wanted = request.options.agent
    if wanted is None or "://" not in wanted:
        return load(request.config or find(request.root), environ), wanted
    return loaded_with(agent_at(wanted), request.root, request.config, environ), None


def agent_at(url: str) -> ChatCompletionsAgent:
    """An agent that speaks chat completions at a URL. Raises ConfigError."""
    try:
        return ChatCompletionsAgent(endpoint=url)
    except ValidationError as error:
        problem = error.errors()[0]["msg"].removeprefix("Value error, ")
        # A password that ends the address too early, at its /, is no password in the eyes of `redact`.
        url = re.sub("//.*@", f"//{HIDDEN}@", url, flags=re.S)
        raise ConfigError(f"{url!r} is no endpoint of an agent: {problem}") from None


def loaded_with(
    agent: AgentConfig,
    root: Path,
    config: Path | None = None,
    environ: MutableMapping[str, str] = os.environ,
) -> LoadedConfig:
    """The configuration, if there is one, with this agent alone under test. Raises ConfigError."""
    try:
        path = config or find(root)
    except ConfigError:
        alone = with_instructions(Config(agent=agent), root)
        return LoadedConfig(alone, root, Redactor([*environment_secrets(environ), *secrets_of(alone)]))
    loaded = load(path, environ)
    changed = with_instructions(loaded.config.model_copy(update={"agent": agent, "compare": []}), root)
    return replace(loaded, config=changed, redact=loaded.redact.knowing(secrets_of(changed)))


def read_sets(asked: EvalRequest) -> list[ReadSet]:
    """The sets that are asked for, of each only the cases that are wanted. Raises UsageError."""
    session = read_session(asked.initial_session) if asked.initial_session else None
    reads = ((read_eval_set(file, session), cases) for file, cases in _wanted(asked.targets).items())
    return [select(read, tuple(cases)) if cases else read for read, cases in reads]


def _wanted(targets: Sequence[str]) -> dict[Path, dict[str, None]]:
    """File → the cases that are wanted of it (none: all); a file that is named twice is read once."""
    files: dict[Path, tuple[Path, dict[str, None]]] = {}
    for target in targets:
        path_text, cases = parse_target(target)
        path = Path(path_text)
        if path.is_dir() and cases:
            raise UsageError(f"{target}: {path_text} is a folder, and only a file's cases can be named")
        for file in find_eval_sets(path) if path.is_dir() else [path]:
            first, before = files.get(file.resolve(), (file, dict.fromkeys(cases)))
            # Wanted as a whole once, it is wanted as a whole.
            all_of_it = not before or not cases
            files[file.resolve()] = first, {} if all_of_it else before | dict.fromkeys(cases)
    return dict(files.values())


def case_sets(
    reads: Iterable[ReadSet], criteria_file: Path | None, tools: Mapping[str, Mock], root: Path
) -> list[CaseSet]:
    """Sets with their criteria: those of `criteria_file`, else a set's own, else those beside it, else ADK's.

    Raises UsageError. A file is read once, and so is the code that it names.
    """

    @cache
    def in_file(path: Path) -> tuple[Criteria, dict[str, OwnMetric]]:
        return own_metrics(read_criteria(path), root)

    def of(read: ReadSet) -> tuple[Criteria, dict[str, OwnMetric]]:
        beside = read.path.parent / CRITERIA_FILE
        if criteria_file is not None:
            return in_file(criteria_file)
        if read.criteria is not None:
            return parse_criteria(read.criteria, str(read.path), read.path.parent), {}
        return in_file(beside) if beside.is_file() else (DEFAULT, {})

    return [CaseSet(read, criteria, tools, codes) for read in reads for criteria, codes in [of(read)]]


def eval_plan(sets: Sequence[CaseSet], config: Config, agent: str | None, num_runs: int, root: Path) -> Plan:
    """What there is to run. Raises UsageError."""
    names, known = agents_under_test(config, agent)
    told = {name: known[name].instructions for name in names}
    entries = placed(case_entries(sets, names, num_runs, root, told), known)
    units = tuple(entry for entry in entries if isinstance(entry, Unit))
    used = {unit.agent: known[unit.agent] for unit in units}
    return Plan(tuple(entries), used, len(names) > 1, (), units)


def load_mocks(path: Path) -> dict[str, Mock]:
    """The mocks of a Python module: its dict `tools`. Raises UsageError that names the file."""
    if not path.is_file():
        raise ConfigError(f"--mocks: {path} does not exist; name a Python file with a dict `tools`")
    try:
        module = import_file(path)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - the user's module may raise anything, sys.exit() too
        shown, line = user_traceback(error, path)
        raise ScenarioError(f"--mocks: importing {path}:{line} failed\n{shown}") from None
    if not hasattr(module, "tools"):
        raise ScenarioError(f"--mocks: {path} has no `tools`; define a dict from tool name to mock")
    try:
        return parse_tools({"tools": module.tools})
    except ValueError as error:
        raise ScenarioError(f"--mocks: {path}: {error}") from None
