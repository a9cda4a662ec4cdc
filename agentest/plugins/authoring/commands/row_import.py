"""`agentest import` writes scenarios for rows of data, or for sessions of traces.

Rows stay in their own file, which the scenario file reads with `each`. Sessions become scripts with mocks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from os import environ
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentest.cli.location import project_of
from agentest.cli.options import FeatureChoice, exits, flag, offline_option, option, path_option
from agentest.config.config import Config
from agentest.config.file import find_config, load
from agentest.config.yaml_file import read_yaml
from agentest.plugin import PLUGINS
from agentest.plugins.authoring.scenario_files import (
    agentforce_cases,
    assertion_data,
    assertion_of,
    botium_case,
    file_of_rows,
)
from agentest.plugins.authoring.trace_import import (
    ImportRequest,
    ImportResult,
    TraceRequest,
    check_output,
    import_traces,
    invalid_scenarios,
)
from agentest.plugins.authoring.trace_messages import (
    SHAPES,
    answer_items,
    dialog_items,
    expected_call,
    history_of,
    items_of,
    message_items,
    reply_text,
    values_by_path,
)
from agentest.plugins.authoring.trace_sessions import files_of, has_sessions, speakers
from agentest.plugins.protocols.model_messages import entry, objects
from agentest.runner.prepare import RunRequest, is_configured
from agentest.scenarios.definition import OPTIONS
from agentest.scenarios.rows import read_rows
from agentest.support.errors import ExitCode, UsageError, errors_as
from agentest.support.files import path_from, user_text, write_for_user
from agentest.support.json_text import json_or, json_text, plain
from agentest.support.templates import Template, as_text
from agentest.support.terminal import say, tell_notes
from agentest.support.text import count, quoted_names, snake_case

if TYPE_CHECKING:
    from agentest.models.providers import ModelSpec


_ROLES, _TOOLS = SHAPES["columns"], SHAPES["tools"]
_ROWS = SHAPES["rows"]
_READS = ["get_*", "find_*", "search_*", "list_*", "calculate*", "think"]
_SHORT_CHARS = 60  # a longer answer is not expected word for word


_OF_ROWS = {each: each for each in ("name", "says", "outcome", "split")}
_OF_ROWS |= {"turn": "turns", "rows": "limit"}
_OF_TRACES = {"count": "most", "redact": "redact", "model": "model", "scripts": "scripts"}
"""Options that only rows, and only traces, have → their attributes."""


@click.command("import")
@click.argument("sources", nargs=-1, required=True)
@path_option("--output", "Write to this file, *.sim.yaml or *.sim.py (default: next to the first SOURCE).")
@option("--name", "TEXT", "Name scenarios like 'order {id}' (default: by the columns).")
@option("--turn turns", "TEXT", "Send a user message like '{question}'; repeat for more.", multiple=True)
@option("--says", "TEXT", "Expect a reply that contains a text like '{answer}'.")
@option("--outcome", "TEXT", "Expect an outcome, which a judge decides.")
@option("--column columns", "ROLE=NAME", "Use a column as goal, turn…, or a speaker as user.", multiple=True)
@option("--split", "NAME", "Use this split of a dataset (default: train).")
@option("--rows limit", "N", "Use the first N rows of a dataset.", kind=click.IntRange(min=1))
@option(
    "--as form",
    "FORM",
    "Read traces of this form, like langfuse (default: by their keys).",
    kind=FeatureChoice("trace format"),
)
@option("--count most", "N", "Write at most N scenarios of traces (default: 20).", kind=click.IntRange(min=1))
@option("--redact", "REGEX", "Replace matches in traces, too; repeat for more.", multiple=True)
@flag("--force", "Replace existing files.")
@path_option("--config", "Use this configuration file.")
@option("--model", "MODEL", "Word goals and outcomes by this model (default: `model`).")
@offline_option
@flag("--scripts", "Write scripts, even if a model is configured.")
@exits
def import_(request: ImportRequest, sources: tuple[str, ...]) -> ExitCode:
    """Write a scenario file for rows of data, or for the recorded sessions of an agent.

    Rows: SOURCE is a .csv, .tsv, .jsonl, .json, .yaml or .xml file, such as a suite of another tool, or the
    name of a Hugging Face dataset. Messages, answers and more are found by the names of columns.

    Sessions: SOURCES are traces of OpenTelemetry, Langfuse and others, logs of coding agents, calls or chats,
    lines with messages, or runs of Agentest (`agentest docs import-traces` lists all). Those that differ
    become scenarios with recorded mocks: simulated users with a goal if a model is configured, otherwise
    scripts. Personal data is replaced before anything is sent or written.

    Exit status: 0 every scenario is valid; 2 one is invalid, or nothing was written.
    """
    paths = tuple(path for each in sources for path in files_of(Path(each)))
    recorded = [path for path in paths if request.form or has_sessions(path)]
    if recorded and (rest := sorted({*paths} - {*recorded})):
        raise UsageError(f"{recorded[0]} has recorded sessions, {rest[0]} has none; import each kind alone")
    others = ("rows", "recorded sessions") if recorded else ("traces", "rows of data")
    for word, name in (_OF_ROWS if recorded else _OF_TRACES).items():
        if getattr(request, name):
            raise UsageError(f"--{word}: is for {others[0]}; {sources[0]} has {others[1]}")
    if not recorded:
        if len(sources) > 1 and request.output:
            raise UsageError("--output: is for one file of rows; without it, each has scenarios next to it")
        return max([_report(import_rows(replace(request, source=each))) for each in sources])
    return _report(import_traces(_trace_request(request, Path(sources[0]), paths)))


def _trace_request(request: ImportRequest, source: Path, paths: tuple[Path, ...]) -> TraceRequest:
    """Return what becomes of the sessions in files. Raises UsageError."""
    name, root = f"{source.resolve().stem}.sim.py", project_of(Path.cwd()).root
    has_settings = is_configured(RunRequest(root, request.config))
    settings = load(request.config or find_config(root), dict(environ)).config if has_settings else None
    redact = {**(settings.redact if settings else {}), **{f"match of {one}": one for one in request.redact}}
    return TraceRequest(
        paths=paths,
        form=request.form,
        roles=speakers(request.columns),
        # A stored run is removed one day, so its scenarios belong in the user's folder.
        output=request.output or (Path(name) if source.is_dir() else source.with_name(name)),
        most=request.most or 20,
        redact=redact,
        force=request.force,
        model=None if request.offline or request.scripts else _model(settings, request.model),
    )


def _model(settings: Config | None, named: str | None) -> ModelSpec | None:
    if not named and (settings is None or not any((settings.model, settings.provider, settings.user.model))):
        return None
    from agentest.config.agents.chat_completions import ChatCompletionsAgent
    from agentest.models.providers import resolve

    # A configuration needs an agent, which is never contacted.
    config = settings or Config(agent=ChatCompletionsAgent(endpoint="http://127.0.0.1"))
    return resolve(config, config.user, dict(environ), named)


def _report(done: ImportResult) -> ExitCode:
    tell_notes(done.notes)
    for path in done.files:
        say(f"wrote {path}")
    say(f"{done.summary}. Next: agentest run {done.files[-1]}")
    return ExitCode.PASSED if done.is_valid else ExitCode.ERRORED


def import_rows(request: ImportRequest) -> ImportResult:
    """Write a scenario file, and the rows of a dataset or suite. Raises UsageError before it writes."""
    source, notes = Path(request.source), list[str]()
    is_file = source.exists() or PLUGINS.find("rows format", source.suffix.lower()) is not None
    if is_file and request.limit is not None:
        raise UsageError("--rows is for datasets: a file is used as it is")
    if is_file:
        with errors_as(UsageError, ""):
            cases = _suite(source, notes)
            rows = [dict(row.columns) for row in read_rows(source if cases is None else cases, Path())]
        if grouped := _by_conversation(rows, notes):
            rows = cases = grouped
        data = source
    else:
        (rows, notes), cases = _dataset(request), None
        data = (request.output or Path()).parent / f"{source.name}.jsonl"
    output = request.output or data.with_name(f"{source.stem}.sim.yaml")
    with errors_as(UsageError, "".join(f"{note}. " for note in notes), UsageError):
        columns = _Columns(request, rows)
    options = columns.template()
    if cases is not None and (request.turns or request.says or request.outcome):
        raise UsageError(f"--turn, --says and --outcome are for rows, not for {source.name}; use --column")
    if cases is not None or not columns.fit_template:
        rows, options = list(columns.cases()), {"name": request.name or "{name}", "tags": ["imported"]}
        data = data.with_name(f"{source.stem}.cases.jsonl")
    files = {} if data == source else {data: "".join(f"{json_text(row)}\n" for row in rows)}
    check_output(output, [*files], force=request.force)
    files[output] = file_of_rows(output, path_from(output.parent.absolute(), data.absolute()), options)
    for path, text in files.items():
        write_for_user(path, text.encode())
    total, invalid, problems = invalid_scenarios(output)
    refused = f", {count(invalid, 'row is', 'rows are')} invalid" if invalid else ""
    summary = f"{count(total - invalid, 'scenario')}{refused}"
    notes += [*columns.notes(), *problems]
    checked = {"expect", "expected_outcome", "criteria", "trajectory"}
    if unchecked := sum(checked.isdisjoint((*row, *options)) for row in rows):
        rows_have = count(unchecked, "row has", "rows have")
        notes.append(f"{rows_have} no expected answer: add `expect` or `criteria` to the file")
    return ImportResult(files=tuple(files), summary=summary, notes=tuple(notes), is_valid=not invalid)


def _by_conversation(rows: Sequence[Mapping[str, Any]], notes: list[str]) -> list[dict[str, Any]]:
    """Return the conversations that rows name which are a turn each; [] if each row is its own."""
    groups: dict[str, list[Any]] = {}
    for row in rows:
        given = {**entry(row, "metadata"), **row}.items()
        ids = (each for key, each in given if snake_case(key).replace(" ", "_") in _ROWS["conversations"])
        named = next((str(each) for each in ids if isinstance(each, str | int)), "")
        groups.setdefault(named, []).append(dict(row))
    if "" in groups or len(groups) == len(rows):
        return []
    notes.append(
        f"joined {count(len(rows), 'row')} to {count(len(groups), 'conversation')}, as their ids say"
    )
    return [{"name": named, "turns": each} for named, each in groups.items()]


def _suite(path: Path, notes: list[str]) -> list[Any] | None:
    """Return the cases of a file that has more than rows; None for rows."""
    if path.name.endswith(".convo.txt"):
        return [botium_case(path, notes)]
    ending, document = path.suffix.lower(), None
    if ending == ".xml" and path.exists():
        return agentforce_cases(path)
    if ending in (".yaml", ".yml"):
        document = read_yaml(path, has_dates=False).data
    elif ending in (".json", ".jsonl") and path.exists():
        document = json_or(user_text(path))
    if ending == ".jsonl" or not isinstance(document, Mapping):
        return [*promptfoo_cases({}, document)] if isinstance(document, list) and ending != ".json" else None
    keys = {snake_case(key): key for key in document}
    if "eval_cases" in keys:
        raise UsageError(f"{path.name} is an evaluation set of ADK: run it as it is, by agentest eval {path}")
    for name in _ROWS["lists"]:
        by_name = entry(document, keys.get(name, ""))
        if by_name and all(isinstance(each, dict) for each in by_name.values()):
            document = {**document, keys[name]: [{"name": each, **case} for each, case in by_name.items()]}
    key = next(
        (keys[name] for name in _ROWS["lists"] if isinstance(document.get(keys.get(name)), list | str)), None
    )
    of_one_case = {*_ROLES["goal"], *_ROLES["messages"], *_ROLES["turn"], "inputs"}
    if key is None and of_one_case.isdisjoint(keys):
        lists = {key: each for key, value in document.items() if (each := objects(value))}
        known = {key for key, each in lists.items() if not of_one_case.isdisjoint(map(snake_case, each[0]))}
        key = max(lists, key=lambda key: (key in known, len(lists[key])), default=None)
        what = "cases" if known else "objects"
        notes += [f"the cases of {path.name} are `{key}`, its longest list of {what}"] if lists else []
    if key is None:  # one case, as in a file for each
        return [document]
    listed = document[key] if isinstance(document[key], list) else [document[key]]
    cases = [each for each in listed if not isinstance(each, str)]
    for file in (path.parent / each.removeprefix("file://") for each in listed if isinstance(each, str)):
        cases += _suite(file, notes) or [{"vars": dict(row.columns)} for row in read_rows(file, Path())]
    if others := [each for each in document if each not in (key, "prompts", "defaultTest")]:
        notes.append(f"only `{key}` of {path.name} is read; not used: {quoted_names(others, 8)}")
    return [*promptfoo_cases(document, cases)]


def promptfoo_cases(document: Mapping[str, Any], cases: Iterable[Any]) -> Iterator[Any]:
    """Yield cases. Those of promptfoo have their variables in the assertions, and in the only prompt.

    A variable with a list of values stands for a test with each.
    """
    default, prompts = entry(document, "defaultTest"), document.get("prompts")
    prompt = prompts[0] if isinstance(prompts, list) and len(prompts) == 1 else ""
    for case in _expanded(cases):
        given = {**entry(default, "vars"), **entry(case, "vars")} if isinstance(case, dict) else {}
        kept = (entry(default, "options") | entry(case, "options")).get("disableVarExpansion") is True
        lists = ([one] if kept or objects(one) or type(one) is not list else one for one in given.values())
        for values in product(*lists) if given else ():
            known = dict(zip(given, values, strict=True))
            template = Template([prompt, [*(default.get("assert") or ()), *(case.get("assert") or ())]])
            message, checks = template.filled({name: f"{{{{{name}}}}}" for name in template.names} | known)
            if len(known) == 1 and "{%" in prompt:  # a prompt that repeats the conversation
                known = {"question": next(iter(known.values()))}
            if isinstance(message, str) and message != prompt and not re.search("{[{%]", message):
                used = Template(prompt).names
                known = {name: known[name] for name in known if name not in used} | {"question": message}
            yield {**case, "vars": known, "assert": checks}
        if not given:
            yield case


def _expanded(cases: Iterable[Any]) -> Iterator[Any]:
    """Yield cases, and for a scenario of promptfoo each of its tests with each of its configurations."""
    for case in cases:
        configs = objects(entry(case).get("config"))
        for config, test in product(configs, objects(entry(case).get("tests")) or [{}]) if configs else ():
            checks = [*(config.get("assert") or ()), *(test.get("assert") or ())]
            yield {
                **config,
                **test,
                "vars": {**entry(config, "vars"), **entry(test, "vars")},
                "assert": checks,
            }
        if not configs:
            yield case


def _opened(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    cells = ((key, each.strip()[:1]) for row in rows for key, each in row.items() if isinstance(each, str))
    # A text that looks like JSON is none if others of its column do not.
    texts = {key for key, first in cells if first not in ("", "[", "{")}
    raw = [{key: each for key, each in row.items() if key in texts and isinstance(each, str)} for row in rows]
    opened = (values_by_path({**row, **dict.fromkeys(kept)}) for row, kept in zip(rows, raw, strict=True))
    return [dict(each) | kept for each, kept in zip(opened, raw, strict=True)]


class _Columns:
    """The columns of rows, and what each is for."""

    def __init__(self, request: ImportRequest, rows: Sequence[Mapping[str, Any]]) -> None:
        self._request, self._given, self._file = request, rows, Path(request.source).name.split(".")[0]
        self._rows = _opened(rows)
        self._paths = list(dict.fromkeys(path for row in self._rows for path in row))
        self._left_out = Counter[str]()
        self._roles: dict[str, list[str]] = {}
        heads = {snake_case(path.partition(".")[0].rstrip("0123456789")) for path in self._paths}
        self._tool = next((tool for head, (tool,) in _TOOLS.items() if head in heads), "")
        self._options = [path for path in self._paths if snake_case(path) in OPTIONS and path != "tools"]
        for role, names in _ROLES.items():
            found = self._named(names)
            found = list(filter(self._is_distinct, found)) if role == "name" else found
            self._roles[role] = found if role in _ROWS["several"] else found[:1]
        lists = [path for path in self._roles["turn"] if self._has_list(path)]  # as with openai/evals
        lists = lists or [path for path in self._named(["steps"]) if self._has_list(path, of=dict)]
        self._roles["messages"] = self._roles["messages"] or lists
        self._roles["turn"] = [] if self._roles["messages"] or self._roles["goal"] else self._roles["turn"]
        if self._roles["turn"] == ["input"] and "instruction" in self._paths:  # as in Alpaca's rows
            self._roles["turn"] = ["instruction", "input"]
        if not self._roles["turn"]:
            self._roles["goal"] = self._roles["goal"] or self._named(_ROWS["situations"])
        if not self._roles["turn"] and not self._roles["messages"]:
            self._roles["goal"] = self._roles["goal"] or self._named(_ROWS["other_goals"])
            self._roles["answer"] = [each for each in self._roles["answer"] if each != "label"]
        for each in request.columns:
            role, _, path = each.partition("=")
            if role not in _ROLES or (path and path not in self._paths):
                known = f"roles are {', '.join(_ROLES)}; columns are {quoted_names(self._paths, 8)}"
                raise UsageError(f"--column {each}: write ROLE=COLUMN; {known}")
            self._roles[role] = [path] if path else []
        self._own = [path for path in self._options if not any(path in each for each in self._roles.values())]
        if not (request.turns or any(self._roles[role] for role in ("turn", "messages", "goal"))):
            raise UsageError(
                f"{request.source}: no column is known as the user's message; it has "
                f"{quoted_names(self._paths, 8)}. Name it: --turn '{{COLUMN}}'"
            )

    def _named(self, names: Sequence[str]) -> list[str]:
        used = {path for role, paths in self._roles.items() for path in paths if role != "name"}
        spelled = {path: ".".join(["", *map(snake_case, path.split("."))]) for path in self._paths}
        ends = [(path, re.sub(" _?|-", "_", each)) for path, each in spelled.items()]
        found = dict.fromkeys(path for name in names for path, end in ends if end.endswith(f".{name}"))
        return [path for path in found if path not in used and any(row.get(path) for row in self._rows)]

    def _is_distinct(self, path: str) -> bool:
        values = {str(row.get(path) or "") for row in self._rows}
        return "" not in values and len(values) == len(self._rows)

    def _has_list(self, path: str, of: type = object) -> bool:
        lists = (row[path] for row in self._rows if isinstance(row.get(path), list))
        return any(isinstance(each, of) for value in lists for each in value)

    @property
    def fit_template(self) -> bool:
        """True if placeholders can say it all: each column that is used has a text in every row."""
        if self._request.turns or self._request.says or self._request.outcome:
            return True
        if any(len(paths) > 1 for paths in self._roles.values()):
            return False
        for role, path in ((role, path) for role, paths in self._roles.items() for path in paths):
            if role in (*_ROWS["texts"], "turn", "answer"):
                if not all(isinstance(row.get(path), str | int | float) for row in self._given):
                    return False
            elif role == "history" or (
                role != "name" and (path not in self._options or self._has_list(path, of=dict))
            ):
                return False
        return not (self._tool and self._own) and "tools" not in self._paths

    def template(self) -> dict[str, Any]:
        """Return the options of a scenario for each row, with placeholders."""
        request, given = self._request, set(map(snake_case, self._options))
        column = {role: f"{{{paths[0]}}}" for role, paths in self._roles.items() if paths}
        turns = [*request.turns] or [column[role] for role in ("turn",) if role in column]
        answer = "" if request.says or request.outcome or "expect" in given else column.get("answer", "")
        is_short = all(len(str(row.get(answer[1:-1]) or "")) <= _SHORT_CHARS for row in self._rows)
        says = request.says or (answer if is_short else None)
        named = {role: column[role] for role in _ROWS["texts"] if role in column and role not in given}
        if outcome := request.outcome or (answer and not says and f"The agent's answer means: {answer}"):
            named["expected_outcome"] = outcome
        name = column.get("name", "")
        shown = name if name in ("{name}", "{title}") else f"{name[1:-1]} {name}"
        return {
            "name": request.name or (shown if name else f"{self._file} row {{row}}"),
            **({"turns": turns} if turns else {}),
            **named,
            **({"expect": assertion_data("icontains", says)} if says else {}),
            **({} if "tags" in given else {"tags": ["imported"]}),
        }

    def cases(self) -> Iterator[dict[str, Any]]:
        """Yield the options of the scenario of each row."""
        own = [] if self._tool else self._own  # a column of another tool is no option of ours
        for number, row in enumerate(self._rows, 1):
            name = next((str(row[path]) for path in self._roles["name"]), f"{self._file} row {number}")
            yield {"name": name, **{path: row[path] for path in own if path in row}, **self._case(row)}

    def _case(self, row: Mapping[str, Any]) -> dict[str, Any]:
        values: dict[str, list[Any]] = {}
        for role, paths in self._roles.items():
            found = (row.get(path) for path in paths)
            listed = (value if isinstance(value, list) else [value] for value in found)
            values[role] = [each for value in listed for each in value if each not in (None, "")]
        texts = {role: list(map(as_text, each)) for role, each in values.items()}
        case: dict[str, Any] = {role: "\n".join(texts[role]) for role in _ROWS["texts"]}
        case |= {"knowledge": texts["knowledge"], "criteria": []}
        case["turns"] = ["\n".join(texts["turn"])] if texts["turn"] else []
        case["expect"] = [assertion_data("icontains", each) for each in values["said"]]
        answers = self._add_messages(case, values) if values["messages"] else []
        if earlier := dialog_items(values["history"]):
            case["history"] = [*history_of(earlier)]
            self._left_out.update(item.text for item in earlier if item.kind == "unread")
        given = [each for each in values["answer"] if not isinstance(each, dict) or answer_items(each)]
        values["checks"] += [
            {key: each[key]} for each in values["answer"] if each not in given for key in each
        ]
        answers = list(map(reply_text, given)) or answers
        self._left_out["expected reply beside an expected outcome"] += bool(
            answers and case["expected_outcome"]
        )
        if answers and (case["goal"] or any(len(each) > _SHORT_CHARS for each in answers)):
            meant = f"The agent's answer means: {' Or: '.join(answers)}"
            case["expected_outcome"] = case["expected_outcome"] or meant
        elif answers:
            case["expect"].append(assertion_data("icontains-any", answers))
        case["of_reply"] = {}
        for each in values["criteria"]:
            self._add_criterion(case, each)
        for each in values["checks"]:
            self._add_check(case, each)
        if of_reply := case.pop("of_reply"):
            case["turns"][-1] = {"user_message": case["turns"][-1], "expect": of_reply}
        case["trajectory"] = [*self._trajectories(values["calls"], values["writes"])]
        return {option: value for option, value in case.items() if value}

    def _add_messages(self, case: dict[str, Any], values: dict[str, list[Any]]) -> list[str]:
        """Add the user's last message, after what came before it. Returns the replies that follow."""
        messages = values["messages"]
        if all(isinstance(each, list) for each in messages):  # a list for each turn, as in BFCL's rows
            messages = ["\n\n".join(item.text for item in items_of(each)) for each in messages]
        if all(isinstance(each, str) or "user_message" in map(snake_case, entry(each)) for each in messages):
            case["turns"] = messages
            return []
        if not any(map(message_items, messages)):
            self._add_script(case, objects(messages), values["calls"])
            return []
        steps = items_of(messages)
        self._left_out["message of the system"] += sum(not message_items(each) for each in messages)
        self._left_out.update(item.text for item in steps if item.kind == "unread")
        steps = [item for item in steps if item.kind != "unread"]
        end = max((at for at, item in enumerate(steps, 1) if item.kind == "user"), default=0)
        first = max((at for at, item in enumerate(steps[:end], 1) if item.kind != "user"), default=0)
        case["turns"] = [*filter(None, ["\n\n".join(item.text for item in steps[first:end])])]
        case["history"] = [*history_of(steps[:first])]
        case["then"] = "simulate" if case["goal"] else ""
        made = [{"name": item.text, "args": item.value} for item in steps[end:] if item.kind == "call"]
        values["calls"] = values["calls"] or made
        return [item.text for item in steps[end:] if item.kind == "assistant"]

    def _add_script(self, case: dict[str, Any], steps: Sequence[Any], calls: list[Any]) -> None:
        """Add the turns of steps, each of which is a row: a user's message, what is expected, or both."""
        columns = _Columns(ImportRequest(source=self._request.source), steps)
        for made in map(columns._case, columns._rows):
            case["turns"] += made.get("turns", ())
            turn = len(case["turns"])
            if not turn:
                self._left_out["reply before the user's first message"] += 1
                continue
            case["expect"] += [{**each, "in_turn": turn - 1} for each in made.get("expect", ())]
            meant = [*made.get("criteria", ()), *filter(None, [made.get("expected_outcome")])]
            case["criteria"] += [f"In turn {turn}: {each}" for each in meant]
            calls += [call for each in made.get("trajectory", ()) for call in [*each.values()][-1]]
        case["then"] = "simulate" if case["goal"] else ""
        used = {path for paths in columns._roles.values() for path in paths}
        unused = (path for row in columns._rows for path in row if path not in used)
        self._left_out += columns._left_out + Counter(f"`{path}` of a turn" for path in unused)

    def _add_criterion(self, case: dict[str, Any], value: Any) -> None:
        """Add a criterion, which may be an object: a statement with other keys, or an assertion."""
        given = entry(value)
        statement = next((given[key] for key in _ROWS["statements"] if isinstance(given.get(key), str)), None)
        if given and (statement is None or "type" in given):
            self._add_check(case, value)
        elif not isinstance(statement or value, str):
            self._left_out["criterion that is not a text"] += 1
        elif any(isinstance(each, int | float) and each < 0 for each in given.values()):
            self._left_out["criterion with a negative weight"] += 1
        else:
            case["criteria"].append(statement or value)
            self._left_out.update(f"`{key}` of a criterion" for key in given if given[key] != statement)

    def _add_check(self, case: dict[str, Any], check: Any) -> None:
        """Add an assertion of promptfoo, such as `contains: Paris`; a text alone must be the reply."""
        if not isinstance(check, Mapping):
            check = assertion_of(str(check))
        if pattern := entry(check, "bot_uttered").get("text_matches"):
            check = {"type": "regex", "value": pattern}
        kind = str(check.get("type", next(iter(check), "")))
        check = check if "type" in check else {"type": kind, "value": check.get(kind)}
        value = check.get("value")
        if kind == "assert-set" and "threshold" not in check:
            for each in objects(check.get("assert")):
                self._add_check(case, each)
            return
        if kind in _ROWS["rubrics"]:
            value = value or next((check[key] for key in _ROWS["statements"] if check.get(key)), None)
            check = {key: each for key, each in check.items() if each != value}
        used = "threshold" if kind == "latency" else "value"
        has_variable = "{{" in str(value)
        data = None if has_variable else assertion_data(kind, check.get(used))
        if kind in _ROWS["rubrics"] and value and not has_variable:
            case["criteria"].append(as_text(value))
        elif data and data.keys() <= {"says", "never_says"}:
            case["expect"].append(data)
        elif data and isinstance((case["turns"] or [None])[-1], str):
            for key, each in data.items():
                case["of_reply"].setdefault(key, []).append(each)
        else:
            self._left_out[f"assertion {kind}{' with a variable' * has_variable}"] += 1
            return
        self._left_out.update(f"`{key}` of an assertion" for key in check if key not in ("type", used))

    def _trajectories(self, calls: Sequence[Any], writes: Sequence[Any]) -> Iterator[dict[str, Any]]:
        if calls:
            yield {"match_mode": "contains", "expected": [*map(expected_call, calls)]}
        if self._roles["writes"]:
            by_agent = [each for each in objects(writes) if each.get("requestor") != "user"]
            self._left_out["action of the user"] += len(writes) - len(by_agent)
            made = list(map(expected_call, by_agent))
            changing = [each for each in made if not any(fnmatchcase(each["name"], read) for read in _READS)]
            yield {"reads": _READS, "expected_writes": changing}

    def notes(self) -> Iterator[str]:
        """Yield what each column is for, and what is not used."""
        yield from [f"read as {self._tool}"] if self._tool else ()
        request = self._request
        templates = "".join(filter(None, (*request.turns, request.says, request.outcome, request.name)))
        hidden = ("turn", "answer") if templates else ()
        named = {**self._roles, "options": self._own if self.fit_template or not self._tool else []}
        roles = {role: paths for role, paths in named.items() if paths and role not in hidden}
        shown = "; ".join(f"{role}: {', '.join(paths)}" for role, paths in roles.items())
        yield f"columns by role: {shown or 'none'} (--column ROLE=COLUMN changes one)"
        used = {path for paths in roles.values() for path in paths}
        if unused := [path for path in self._paths if path not in used and f"{{{path}}}" not in templates]:
            yield f"columns that are not used: {quoted_names(unused, 12)}"
        yield from (f"left out {n} × {what}" for what, n in self._left_out.items() if n)


def _dataset(request: ImportRequest) -> tuple[list[dict[str, Any]], list[str]]:
    name = request.source
    if find_spec("datasets") is None:
        raise UsageError(
            f"{name}: there is no such file. To import a Hugging Face dataset of that name, install the "
            "package `datasets`: pip install datasets"
        )
    split = request.split or "train"
    try:
        loaded = import_module("datasets").load_dataset(name, split=split)
        rows = [dict(loaded[number]) for number in range(len(loaded))[: request.limit]]
    except Exception as error:  # noqa: BLE001 - the package may raise anything
        raise UsageError(f"{name}: the dataset cannot be loaded: {type(error).__name__}: {error}") from None
    if not rows:
        raise UsageError(f"{name}: the split {split!r} has no row")
    left_out = [key for key in rows[0] if any(plain(row.get(key)) != row.get(key) for row in rows)]
    notes = [f"columns that are not JSON are left out: {quoted_names(left_out, 8)}"] if left_out else []
    return [{key: value for key, value in row.items() if key not in left_out} for row in rows], notes
