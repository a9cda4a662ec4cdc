"""`agentest eval`: turn command-line arguments into a prepared run of evaluation sets."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from pydantic import ValidationError

from agentest.config.agent_types import AgentConfig, advice_for_unseen_calls, visibility_of_agent
from agentest.config.agents.base import AnyAgent
from agentest.config.agents.chat_completions import ChatCompletionsAgent
from agentest.config.config import Config
from agentest.config.fields import requested_reports
from agentest.config.file import LoadedConfig, find_config, load, secrets_of, with_instructions
from agentest.domain.tool_visibility import ToolVisibility
from agentest.mocks.binding import Mock
from agentest.plugins.adk.cases import CaseSet, case_entries, unchecked_notes
from agentest.plugins.adk.formats import set_reader
from agentest.plugins.adk.formats.criteria import (
    CRITERIA_FILE,
    DEFAULT,
    Criteria,
    parse_criteria,
    read_criteria,
)
from agentest.plugins.adk.metrics.custom_metrics import (
    CustomMetricCode,
    experimental_notes,
    prepare_custom_metrics,
)
from agentest.plugins.adk.metrics.grader import AgentFacts
from agentest.plugins.frameworks.adk_settings import AdkModuleAgent, agent_folder
from agentest.runner.known_tools import instructions_of, known_tools, served_tools, tools_of
from agentest.runner.plan import Plan, Unit, agents_under_test, finalized_entries
from agentest.runner.prepare import Prepared, RunRequest, prepared_for
from agentest.scenarios.options import parse_tools
from agentest.support.errors import ConfigError, ScenarioError, UsageError, errors_as
from agentest.support.importing import import_file, user_traceback
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.redaction import HIDDEN, Redactor, environment_secrets
from agentest.support.text import nearest

_NO_AGENT = ChatCompletionsAgent(endpoint="http://localhost")
"""Stands in for the agent of a run that contacts no agent."""


@dataclass(frozen=True, slots=True)
class EvalRequest:
    """The options of `agentest eval`."""

    request: RunRequest
    targets: tuple[str, ...]
    """Files and folders. A file may be followed by `:case1,case2`. The first word may be the agent."""
    criteria: Path | None = None  # a criteria file for all sets, instead of the one next to each
    num_runs: int = 1
    initial_session: Path | None = None
    mocks: Path | None = None
    every_set: bool = False  # if True, folders also run their `*.evalset.json`
    without_agent: bool = False  # if True, no agent is contacted, so none needs to be configured


def prepare_eval(
    eval_request: EvalRequest, configured: tuple[LoadedConfig, str | None] | None = None
) -> Prepared:
    """Read sets, criteria, and mocks, and plan the run. Raises UsageError.

    Args:
        configured: the configuration and the name of its agent, if the caller has loaded them already.
    """
    request = eval_request.request
    requested_reports(request.reports.reporters, request.here or request.root)
    if configured is None:
        configured, targets = load_configuration(eval_request)
        eval_request = replace(eval_request, targets=targets)
    loaded, agent = configured
    reads, notes = read_sets(eval_request)
    tools = load_mocks(eval_request.mocks) if eval_request.mocks else {}
    sets = case_sets(reads, eval_request.criteria, tools, request.root)
    plan = eval_plan(sets, loaded.config, agent, eval_request.num_runs, request.root, loaded.redact)
    for read in reads:  # notes about a file's criteria do not matter if other criteria replace them
        notes += [*read.warnings, *(read.criteria_notes if eval_request.criteria is None else ())]
    notes += dict.fromkeys(note for chosen in sets for note in unchecked_notes(chosen))
    notes += experimental_notes({n: metric for chosen in sets for n, metric in chosen.evaluators.items()})
    return prepared_for(request, loaded, plan, notes)


def load_configuration(
    eval_request: EvalRequest,
) -> tuple[tuple[LoadedConfig, str | None], tuple[str, ...]]:
    """Load the configuration, and tell the agent apart from the targets.

    Returns the configuration with the agent's name, and the targets. An agent that is a URL or a package
    needs no configuration file. Raises UsageError.
    """
    request, first = eval_request.request, eval_request.targets[0]
    url = next((word for word in (request.options.agent, first) if word and "://" in word), None)
    # Check the URL before the configuration, which may be invalid, too.
    at_url = agent_at(url) if url else None
    file, missing = request.config, ""
    try:
        file = file or find_config(request.root)
    except ConfigError as error:  # an agent given by URL needs no file
        missing = str(error)
    loaded = load(file) if file else None
    names = agents_under_test(loaded.config, None)[1] if loaded else {}
    agent: str | AnyAgent | None
    agent, targets = parse_eval_words(eval_request.targets, request.options.agent, names)
    if agent is None and loaded is None and eval_request.without_agent:
        agent = _NO_AGENT
    if isinstance(agent, str) and "://" in agent:
        agent = at_url
    if isinstance(agent, AnyAgent):
        return (loaded_with(agent, request.root, request.config, loaded=loaded), None), targets
    if loaded is None:
        raise ConfigError(f"{missing}\nOr name the agent before the files: agentest eval URL FILE_OR_DIR")
    return (loaded, agent), targets


def agent_at(url: str) -> ChatCompletionsAgent:
    """Return an agent that speaks chat completions at a URL. Raises ConfigError."""
    try:
        return ChatCompletionsAgent(endpoint=url)
    except ValidationError as error:
        problem = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{without_password(url)!r} is not an endpoint of an agent: {problem}") from None


def loaded_with(
    agent: AgentConfig,
    root: Path,
    config: Path | None = None,
    environ: MutableMapping[str, str] = os.environ,
    loaded: LoadedConfig | None = None,
) -> LoadedConfig:
    """Load the configuration, if there is one, with only this agent under test. Raises ConfigError.

    Args:
        loaded: the configuration, if it has been read already.
    """
    try:
        path = config or find_config(root)
    except ConfigError:
        alone = with_instructions(Config(agent=agent), root)
        return LoadedConfig(alone, root, Redactor([*environment_secrets(environ), *secrets_of(alone)]))
    loaded = loaded or load(path, environ)
    changed = with_instructions(loaded.config.model_copy(update={"agent": agent, "compare": []}), root)
    return replace(loaded, config=changed, redact=loaded.redact.knowing(secrets_of(changed)))


def read_sets(eval_request: EvalRequest) -> tuple[list[set_reader.ReadSet], list[str]]:
    """Read the requested sets, with only the requested cases, and return notes about other files.

    Raises UsageError.
    """
    files, notes = _requested_files(eval_request)
    session = set_reader.read_session(eval_request.initial_session) if eval_request.initial_session else None
    reads = ((set_reader.read_eval_set(file, session), cases) for file, cases in files.items())
    return [set_reader.select(read, tuple(cases)) for read, cases in reads], notes


def _requested_files(eval_request: EvalRequest) -> tuple[dict[Path, dict[str, None]], list[str]]:
    """Expand the targets to files, each with its requested cases, none for all; and notes about others."""
    files: dict[Path, tuple[Path, dict[str, None]]] = {}
    notes: list[str] = []
    for target in eval_request.targets:
        path_text, cases = set_reader.parse_target(target)
        path = Path(path_text)
        if path.is_dir() and cases:
            raise UsageError(f"{target}: {path_text} is a folder, and only a file's cases can be named")
        found, note = (
            set_reader.find_eval_sets(path, every=eval_request.every_set) if path.is_dir() else ((path,), "")
        )
        notes += [note] if note else []
        for file in found:
            first, before = files.get(file.resolve(), (file, dict.fromkeys(cases)))
            all_of_it = not before or not cases  # a file that was requested as a whole stays whole
            files[file.resolve()] = first, {} if all_of_it else before | dict.fromkeys(cases)
    return dict(files.values()), notes


def case_sets(
    reads: Iterable[set_reader.ReadSet], criteria_file: Path | None, tools: Mapping[str, Mock], root: Path
) -> list[CaseSet]:
    """Find the criteria of each set: `criteria_file`, else the set's own, else those next to it, else ADK's.

    Each criteria file is read once, and its code is imported once. Raises UsageError.
    """

    @cache
    def in_file(path: Path) -> tuple[Criteria, dict[str, CustomMetricCode]]:
        return prepare_custom_metrics(read_criteria(path), root)

    sets = []
    for read in reads:
        criteria, codes, file = DEFAULT, dict[str, CustomMetricCode](), read.path.parent / CRITERIA_FILE
        if criteria_file is None and read.criteria is not None:
            criteria = parse_criteria(read.criteria, str(read.path), read.path.parent)
        elif criteria_file is not None or file.exists():
            criteria, codes = in_file(criteria_file or file)
        sets.append(CaseSet(read, criteria, tools, codes))
    return sets


def eval_plan(
    sets: Sequence[CaseSet],
    config: Config,
    agent: str | None,
    num_runs: int,
    root: Path,
    redact: Callable[[str], str] = str,
) -> Plan:
    """Plan the run. Raises UsageError.

    Args:
        redact: removes secrets from the facts about the agent that judges get.
    """
    names, known = agents_under_test(config, agent)
    facts = {name: _facts(name, known[name], sets, config, root, redact) for name in names}
    entries = finalized_entries(
        case_entries(sets, names, num_runs, root, facts, redact, config.date), known, root, config
    )
    units = tuple(entry for entry in entries if isinstance(entry, Unit))
    used = {unit.agent: known[unit.agent] for unit in units}
    return Plan(tuple(entries), used, len(names) > 1, (), units)


def _facts(
    name: str,
    agent: AgentConfig,
    sets: Sequence[CaseSet],
    config: Config,
    root: Path,
    redact: Callable[[str], str],
) -> AgentFacts:
    mocks = {name: mock for chosen in sets for name, mock in chosen.tools.items()}
    served = served_tools(agent, root, config.output_dir, (), mocks)
    tools = redact(known_tools(tools_of(agent, served), mocks).text)
    can_call_tools = agent.tools is not None or agent.sent_tools
    return AgentFacts(
        instructions=redact(instructions_of(agent)),
        tools=tools if can_call_tools else "",
        mock_server_tools="" if can_call_tools else tools,
        unseen=advice_for_unseen_calls(name, agent)
        if visibility_of_agent(agent) is ToolVisibility.UNSEEN
        else "",
    )


def load_mocks(path: Path) -> dict[str, Mock]:
    """Load the dict `tools` from a Python module. Raises UsageError, which names the file."""
    if not path.is_file():
        raise ConfigError(f"--mocks: {path} does not exist; name a Python file with a dict `tools`")
    try:
        module = import_file(path)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - the user's module may raise anything, sys.exit() too
        traceback, line = user_traceback(error, path)
        raise ScenarioError(f"--mocks: importing {path}:{line} failed\n{traceback}") from None
    if not hasattr(module, "tools"):
        raise ScenarioError(f"--mocks: {path} has no `tools`; define a dict from tool name to mock")
    with errors_as(ScenarioError, f"--mocks: {path}: "):
        return parse_tools({"tools": module.tools})


_IN_JAVASCRIPT = ("agent.ts", "agent.js", "agent.mjs", "agent.cjs")


def parse_eval_words(
    words: Sequence[str], option: str | None, names: Collection[str]
) -> tuple[str | AdkModuleAgent | None, tuple[str, ...]]:
    """Return the agent and the targets. Raises UsageError for an unknown word, or for two agents.

    The agent is a name, a URL, or a package; None for the configured one.

    Args:
        option: the value of `--agent`.
        names: the agents in the configuration.
    """
    if not all(word.strip() for word in words):  # as a path, it would mean the whole working directory
        raise UsageError(
            "one of the words is empty (a variable without a value?); name the files or folders of "
            "evaluation sets, or . for the working directory"
        )
    first, rest = words[0], words[1:]
    leading = _leading_agent(first, rest, names)
    if leading is None:
        late = next(
            (word for word in rest if "://" in word or (word in names and not Path(word).exists())), None
        )
        if late and not _set_file_of_id(late, Path()):
            raise UsageError(
                f"{without_password(late)} is an agent, and stands after files; name it first: "
                "agentest eval AGENT FILE_OR_DIR"
            )
        agent: str | AdkModuleAgent | None = option
        if option and option not in names and "://" not in option and agent_folder(option):
            agent = AdkModuleAgent(module=option)
        return agent, _resolve_set_ids(words, Path())
    if option is not None:
        named = f"{without_password(first)}, and --agent {without_password(option)}"
        raise UsageError(f"two agents are named: {named}; leave one of them out")
    if not rest:
        raise UsageError(
            f"{without_password(first)} is an agent; name the files or folders of evaluation sets after it: "
            "agentest eval AGENT FILE_OR_DIR"
        )
    return leading, _resolve_set_ids(rest, agent_folder(first) or Path())


def without_password(url: str) -> str:
    """Return the URL without its password, for messages. The URL may be malformed.

    A password that contains a / ends the authority part early, so `redact` would miss it.
    """
    scheme, slashes, rest = url.partition("//")
    _, at, rest = rest.rpartition("@")
    return f"{scheme}//{HIDDEN}@{rest}" if slashes and at else url


def _leading_agent(first: str, rest: Sequence[str], names: Collection[str]) -> str | AdkModuleAgent | None:
    """Return the agent if the first word names one; None if it is a target. Raises UsageError."""
    if "://" in first:
        return first
    is_package = bool(agent_folder(first))
    if _is_target(first, names) and not (is_package and rest):
        _refuse_unusable_folder(first, rest)
        return None
    if first in names:
        return first
    if is_package:
        return AdkModuleAgent(module=first)
    if any(mark in first for mark in (".json", "/", "\\")):
        return None  # reading the target reports that it does not exist
    known = ", ".join(f"`{name}`" for name in sorted(names))
    close = nearest(first, names)
    hint = f"did you mean `{close}`?" if close else f"the configuration has {known}"
    if not names:
        hint = "no configuration names any; give a URL, or a folder whose agent.py has a root_agent"
    raise UsageError(f"{first} is neither a file nor a folder, and no agent: {hint}")


def _is_target(word: str, names: Collection[str]) -> bool:
    path = Path(set_reader.parse_target(word)[0])
    if path.is_dir():
        return not (word in names or agent_folder(word)) or bool(set_reader.eval_sets_in(path))
    return path.exists() or _set_file_of_id(word, Path()) is not None


def _refuse_unusable_folder(first: str, rest: Sequence[str]) -> None:
    folder = Path(first)
    if not rest or not folder.is_dir():
        return
    script = next((name for name in _IN_JAVASCRIPT if (folder / name).is_file()), None)
    if script:
        raise UsageError(
            f"{first} contains an agent in another language ({script}), which does not run in this process: "
            "start it behind a server, and name its URL or its configured name in place of the folder"
        )
    if not set_reader.eval_sets_in(folder):
        raise UsageError(
            f"{first} is neither an agent (no root_agent in its agent.py or __init__.py) nor a folder with "
            "evaluation sets. Without it, the configured agent is tested"
        )


def _resolve_set_ids(targets: Sequence[str], folder: Path) -> tuple[str, ...]:
    return tuple(_set_file_of_id(target, folder) or target for target in targets)


def _set_file_of_id(target: str, folder: Path) -> str | None:
    name, cases = set_reader.parse_target(target)
    file = folder / f"{name}{set_reader.EVAL_SET_SUFFIX}"
    if Path(name).exists() or not file.is_file():
        return None
    return f"{file}:{','.join(cases)}" if cases else str(file)
