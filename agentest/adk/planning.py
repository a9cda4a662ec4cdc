"""`agentest eval`: evaluation sets from the command line's words to a prepared run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from pydantic import ValidationError

from agentest.adk.cases import CaseSet, case_entries, unchecked
from agentest.adk.formats.criteria import CRITERIA_FILE, DEFAULT, Criteria, parse_criteria, read_criteria
from agentest.adk.formats.reading import (
    ReadSet,
    read_eval_set,
    read_session,
    select,
)
from agentest.adk.formats.targets import FoundSets, find_eval_sets, parse_target
from agentest.adk.metrics.facts import AgentFacts
from agentest.adk.metrics.own_code import OwnMetric, about_experimental, own_metrics
from agentest.adk.words import read_words, without_password
from agentest.config.agent_types import AgentConfig, sight_of
from agentest.config.agents.base import AnyAgent
from agentest.config.agents.chat_completions import ChatCompletionsAgent
from agentest.config.config import Config
from agentest.config.file import LoadedConfig, find, load, secrets_of
from agentest.config.instructions import with_instructions
from agentest.config.ways_to_see import ways_to_see
from agentest.domain.tool_visibility import Sight
from agentest.mocks.binding import Mock
from agentest.runner.about import told_instructions, tools_of
from agentest.runner.known_tools import ServedBeside, known_tools
from agentest.runner.plan import Plan, Unit, agents_under_test, placed
from agentest.runner.prepare import Prepared, Request, asked_reports, prepared_for
from agentest.scenarios.tools import parse_tools
from agentest.support.errors import ConfigError, ScenarioError, UsageError
from agentest.support.importing import import_file, user_traceback
from agentest.support.redact import Redactor, environment_secrets

_NOBODY = ChatCompletionsAgent(endpoint="http://localhost")
"""Stands for the agent of a run that talks to nobody."""


@dataclass(frozen=True, slots=True)
class EvalRequest:
    """What the command line asks for."""

    request: Request
    targets: tuple[str, ...]
    """Files and folders; a file may be followed by `:case1,case2`. The first may be the agent."""
    criteria: Path | None = None
    """The criteria of all files, in place of what lies beside each."""
    num_runs: int = 1
    initial_session: Path | None = None
    mocks: Path | None = None
    every_set: bool = False
    """Whether folders run their `*.evalset.json`, too."""
    without_agent: bool = False
    """Whether nobody is talked to, so that the agent may be missing."""


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
    asked_reports(request)
    if configured is None:
        configured, targets = load_for(asked, environ)
        asked = replace(asked, targets=targets)
    loaded, agent = configured
    wanted = _wanted(asked)
    reads = _read(asked, wanted)
    tools = load_mocks(asked.mocks) if asked.mocks else {}
    sets = case_sets(reads, asked.criteria, tools, request.root)
    plan = eval_plan(sets, loaded.config, agent, asked.num_runs, request.root, loaded.redact)
    notes = [*wanted.notes, *(note for read in reads for note in _notes(read, asked.criteria))]
    notes += dict.fromkeys(note for chosen in sets for note in unchecked(chosen))
    notes += about_experimental({n: metric for chosen in sets for n, metric in chosen.evaluators.items()})
    return prepared_for(request, loaded, plan, notes, environ)


def _notes(read: ReadSet, criteria: Path | None) -> tuple[str, ...]:
    """What the user should know of a file, and of its own criteria where no others replace them."""
    return (*read.warnings, *read.criteria_notes) if criteria is None else read.warnings


def load_for(
    asked: EvalRequest, environ: MutableMapping[str, str] = os.environ
) -> tuple[tuple[LoadedConfig, str | None], tuple[str, ...]]:
    """The configuration, which of its agents is wanted, and the targets.

    An agent that is given by URL or as a package needs no configuration. Raises UsageError.
    """
    request, first = asked.request, asked.targets[0]
    url = next((word for word in (request.options.agent, first) if word and "://" in word), None)
    at_url = agent_at(url) if url else None  # before the configuration: it may be wrong, too
    file = _configuration_file(request)
    loaded = load(file, environ) if isinstance(file, Path) else None
    names = agents_under_test(loaded.config, None)[1] if loaded else {}
    words = read_words(asked.targets, request.options.agent, names)
    agent: str | AnyAgent | None = words.agent
    if agent is None and loaded is None and asked.without_agent:
        agent = _NOBODY
    if isinstance(agent, str) and "://" in agent:
        agent = at_url
    if isinstance(agent, AnyAgent):
        return (loaded_with(agent, request.root, request.config, environ, loaded), None), words.targets
    if loaded is None:
        raise ConfigError(f"{file}\nOr name the agent before the files: agentest eval URL FILE_OR_DIR")
    return (loaded, agent), words.targets


def _configuration_file(request: Request) -> Path | ConfigError:
    """The file, or why there is none: an agent that is named by its URL needs none."""
    try:
        return request.config or find(request.root)
    except ConfigError as error:
        return error


def agent_at(url: str) -> ChatCompletionsAgent:
    """An agent that speaks chat completions at a URL. Raises ConfigError."""
    try:
        return ChatCompletionsAgent(endpoint=url)
    except ValidationError as error:
        problem = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{without_password(url)!r} is no endpoint of an agent: {problem}") from None


def loaded_with(
    agent: AgentConfig,
    root: Path,
    config: Path | None = None,
    environ: MutableMapping[str, str] = os.environ,
    loaded: LoadedConfig | None = None,
) -> LoadedConfig:
    """The configuration, if there is one, with this agent alone under test. Raises ConfigError.

    Args:
        loaded: the configuration, where it has been read already.
    """
    try:
        path = config or find(root)
    except ConfigError:
        alone = with_instructions(Config(agent=agent), root)
        return LoadedConfig(alone, root, Redactor([*environment_secrets(environ), *secrets_of(alone)]))
    loaded = loaded or load(path, environ)
    changed = with_instructions(loaded.config.model_copy(update={"agent": agent, "compare": []}), root)
    return replace(loaded, config=changed, redact=loaded.redact.knowing(secrets_of(changed)))


def read_sets(asked: EvalRequest) -> list[ReadSet]:
    """The sets that are asked for, of each only the cases that are wanted. Raises UsageError."""
    return _read(asked, _wanted(asked))


def _read(asked: EvalRequest, wanted: _Wanted) -> list[ReadSet]:
    session = read_session(asked.initial_session) if asked.initial_session else None
    reads = ((read_eval_set(file, session), cases) for file, cases in wanted.files.items())
    return [select(read, tuple(cases)) if cases else read for read, cases in reads]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """File → the cases that are wanted of it (none: all), and what was left out."""

    files: Mapping[Path, Mapping[str, None]]
    notes: Sequence[str]


def _wanted(asked: EvalRequest) -> _Wanted:
    """The files that the targets stand for; one that is named twice is read once."""
    files: dict[Path, tuple[Path, dict[str, None]]] = {}
    notes: list[str] = []
    for target in asked.targets:
        path_text, cases = parse_target(target)
        path = Path(path_text)
        if path.is_dir() and cases:
            raise UsageError(f"{target}: {path_text} is a folder, and only a file's cases can be named")
        found = find_eval_sets(path, every=asked.every_set) if path.is_dir() else FoundSets((path,))
        notes += [found.note] if found.note else []
        for file in found.files:
            first, before = files.get(file.resolve(), (file, dict.fromkeys(cases)))
            # Wanted as a whole once, it is wanted as a whole.
            all_of_it = not before or not cases
            files[file.resolve()] = first, {} if all_of_it else before | dict.fromkeys(cases)
    return _Wanted(dict(files.values()), notes)


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
        return in_file(beside) if beside.exists() else (DEFAULT, {})

    return [CaseSet(read, criteria, tools, codes) for read in reads for criteria, codes in [of(read)]]


def eval_plan(
    sets: Sequence[CaseSet],
    config: Config,
    agent: str | None,
    num_runs: int,
    root: Path,
    redact: Callable[[str], str] = str,
) -> Plan:
    """What there is to run. Raises UsageError.

    Args:
        redact: takes secrets out of what judges are told of the agent.
    """
    names, known = agents_under_test(config, agent)
    told = {name: _facts(name, known[name], sets, root, redact) for name in names}
    entries = placed(case_entries(sets, names, num_runs, root, told, redact, config.date), known, root)
    units = tuple(entry for entry in entries if isinstance(entry, Unit))
    used = {unit.agent: known[unit.agent] for unit in units}
    return Plan(tuple(entries), used, len(names) > 1, (), units)


def _facts(
    name: str, agent: AgentConfig, sets: Sequence[CaseSet], root: Path, redact: Callable[[str], str]
) -> AgentFacts:
    """What the settings of an agent say of it; beside it, what mock servers and mocks tell of its tools."""
    mocks = {name: mock for chosen in sets for name, mock in chosen.tools.items()}
    beside = ServedBeside(servers=agent.mock_servers, root=root, mocked=frozenset(mocks))
    tools = redact(known_tools(tools_of(agent, beside), mocks).text)
    told = agent.tools is not None or agent.sent_tools
    return AgentFacts(
        instructions=redact(told_instructions(agent)),
        tools=tools if told else "",
        tools_beside="" if told else tools,
        unseen=ways_to_see(name, agent) if sight_of(agent) is Sight.UNSEEN else "",
    )


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
