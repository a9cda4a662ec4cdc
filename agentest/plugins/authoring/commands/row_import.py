"""`agentest import` writes scenarios for rows of data or sessions of traces; `agentest export` for a run.

Rows stay in their own file, which the scenario file reads with `each`. Sessions become scripts with mocks.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from os import environ
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentest.cli.location import project_of
from agentest.cli.options import (
    FeatureChoice,
    choice_option,
    exits,
    flag,
    offline_option,
    option,
    path_option,
)
from agentest.config.config import Config
from agentest.config.file import find_config, load
from agentest.plugin import PLUGINS
from agentest.plugins.adk.command import camel_case_option
from agentest.plugins.authoring import export as test_cases
from agentest.plugins.authoring.export import Expecting
from agentest.plugins.authoring.scenario_files import scenario_file
from agentest.plugins.authoring.trace_import import (
    ImportResult,
    TraceRequest,
    check_output,
    import_traces,
    invalid_scenarios,
)
from agentest.plugins.authoring.trace_sessions import files_of, has_sessions
from agentest.runner.prepare import RunRequest, is_configured
from agentest.scenarios.definition import OPTIONS
from agentest.scenarios.discovery import DATA_ENDINGS
from agentest.scenarios.python_formatting import StringLiteral, call_of, node, split_source
from agentest.scenarios.rows import read_rows
from agentest.support.errors import ExitCode, UsageError
from agentest.support.files import path_from, write_for_user
from agentest.support.json_text import NotJson, check_plain
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.terminal import Output, say, source, tell_notes
from agentest.support.text import count, quoted_names, snake_case

if TYPE_CHECKING:
    from agentest.models.providers import ModelSpec


_MESSAGES = [
    "question",
    "input",
    "prompt",
    "query",
    "user_message",
    "message",
    "instruction",
    "utterance",
    "user",
    "request",
    "text",
]
_ANSWERS = [
    "answer",
    "expected",
    "expected_output",
    "output",
    "reference",
    "response",
    "target",
    "ideal",
    "completion",
    "label",
]
_NAMES = ["name", "title", "id", "uid", "key", "case", "test"]
_SHORT_CHARS = 60  # a longer answer is not expected word for word


_SPLIT = "train"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """The options of `agentest import` that are about recorded sessions."""

    form: str | None = None
    most: int | None = None  # the most scenarios; None: 20
    redact: tuple[str, ...] = ()
    config: Path | None = None
    model: str | None = None
    offline: bool = False
    scripts: bool = False


@click.command("import")
@click.argument("sources", nargs=-1, required=True)
@path_option("--output", "Write to this file, *.sim.yaml or *.sim.py (default: next to the first SOURCE).")
@option("--name", "TEXT", "Name scenarios like 'order {id}' (default: by the columns).")
@option("--turn turns", "TEXT", "Send a user message like '{question}'; repeat for more.", multiple=True)
@option("--says", "TEXT", "Expect a reply that contains a text like '{answer}'.")
@option("--outcome", "TEXT", "Expect an outcome, which a judge decides.")
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
def import_(rows: ImportRequest, traces: TraceOptions, sources: tuple[str, ...]) -> ExitCode:
    """Write a scenario file for rows of data, or for the recorded sessions of an agent.

    Rows: SOURCE is a .csv, .tsv, .jsonl or .json file, or the name of a Hugging Face dataset, whose rows are
    stored next to the scenario file. Without options, messages and answers are found by the names of columns.

    Sessions: SOURCES are exports of OpenTelemetry (GenAI), Langfuse, LangSmith or Phoenix, logs of the OpenAI
    API, sessions of ADK, lines with messages, or runs of Agentest. Those that differ become scenarios with
    recorded mocks: simulated users with a goal if a model is configured, otherwise scripts. Personal data is
    replaced before anything is sent or written.

    Exit status: 0 every scenario is valid; 2 one is invalid, or nothing was written.
    """
    paths = tuple(path for each in sources for path in files_of(Path(each)))
    if traces.form or (all(path.is_file() for path in paths) and all(map(has_sessions, paths))):
        given = (rows.name, rows.turns, rows.says, rows.outcome, rows.split, rows.limit)
        if any(given):
            raise UsageError(
                f"{paths[0]} has recorded sessions; --name, --turn, --says and others are for rows"
            )
        settings = _settings(traces.config)
        request = TraceRequest(
            paths=paths,
            form=traces.form,
            output=rows.output or _output(Path(sources[0])),
            most=traces.most or 20,
            redact={
                **(settings.redact if settings else {}),
                **{f"match of {each}": each for each in traces.redact},
            },
            force=rows.force,
            model=None if traces.offline or traces.scripts else _model(settings, traces.model),
        )
        return _report(import_traces(request))
    if len(sources) > 1:
        raise UsageError(
            f"{sources[1]}: rows are imported from one file; the sessions of traces from several"
        )
    of_traces = {
        "count": traces.most,
        "redact": traces.redact,
        "model": traces.model,
        "scripts": traces.scripts,
    }
    if only := next((name for name, value in of_traces.items() if value), None):
        raise UsageError(f"--{only}: is for traces; {sources[0]} has rows of data")
    return _report(import_rows(replace(rows, source=sources[0])))


def _output(source: Path) -> Path:
    name = f"{source.resolve().stem}.sim.py"
    # A stored run is removed one day, so its scenarios belong in the user's folder.
    return Path(name) if source.is_dir() else source.with_name(name)


def _settings(named: Path | None) -> Config | None:
    root = project_of(Path.cwd()).root
    if not is_configured(RunRequest(root, named)):
        return None
    return load(named or find_config(root), dict(environ)).config


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportRequest:
    """What to import. Templates have placeholders for columns; None derives them from the columns."""

    source: str = ""  # a file of rows, or the name of a Hugging Face dataset
    output: Path | None = None
    name: str | None = None
    turns: tuple[str, ...] = ()
    says: str | None = None
    outcome: str | None = None
    split: str | None = None  # the split of a dataset, `train` by default
    limit: int | None = None
    force: bool = False


def import_rows(request: ImportRequest) -> ImportResult:
    """Write a scenario file, and the rows of a dataset. Raises UsageError before anything is written."""
    source, notes = Path(request.source), list[str]()
    is_file = source.exists() or PLUGINS.find("rows format", source.suffix.lower()) is not None
    if is_file:
        try:
            rows = [dict(row.columns) for row in read_rows(source, Path())]
        except ValueError as error:
            raise UsageError(str(error)) from None
        if request.limit is not None:
            raise UsageError("--rows is for datasets: a file is used as it is")
        data = source
    else:
        rows, notes = _dataset(request)
        data = (request.output or Path()).parent / f"{source.name}.jsonl"
    output = request.output or data.with_name(f"{source.stem}.sim.yaml")
    options = _options(request, rows)
    check_output(output, () if is_file else (data,), force=request.force)
    written = [] if is_file else [(data, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))]
    written.append((output, _text(output, path_from(output.parent.absolute(), data.absolute()), options)))
    for path, text in written:
        write_for_user(path, text.encode())
    total, invalid, problems = invalid_scenarios(output)
    summary = count(total - invalid, "scenario")
    if invalid:
        summary += f", {count(invalid, 'row is', 'rows are')} invalid"
    expected = [key for key in ("expect", "expected_outcome") if key in options]
    notes += problems
    notes += [] if expected else ["no column has the expected answer: add `expect` or `criteria` to the file"]
    return ImportResult(
        files=tuple(path for path, _ in written), summary=summary, notes=tuple(notes), is_valid=not invalid
    )


def _options(request: ImportRequest, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    given = {snake_case(column) for column in columns}.intersection(OPTIONS)
    turns = list(request.turns)
    if not turns and not given & {"turns", "goal"}:
        message = _column(columns, _MESSAGES)
        if message is None:
            raise UsageError(
                f"{request.source}: no column is known as the user's message; it has "
                f"{quoted_names(columns, 8)}. Name it: --turn '{{COLUMN}}'"
            )
        turns = [f"{{{message}}}"]
    answer = None if request.says or request.outcome or "expect" in given else _column(columns, _ANSWERS)
    is_short = all(len(str(row.get(answer or "") or "")) <= _SHORT_CHARS for row in rows)
    says = request.says or (f"{{{answer}}}" if answer and is_short else None)
    outcome = request.outcome or (f"The agent's answer means: {{{answer}}}" if answer and not says else None)
    return {
        "name": request.name or _name(columns, rows),
        **({"turns": turns} if turns else {}),
        **({"expect": {"says": {"text": says, "ignore_case": True}}} if says else {}),
        **({"expected_outcome": outcome} if outcome else {}),
        **({} if "tags" in given else {"tags": ["imported"]}),
    }


def _column(columns: Iterable[str], usual: Sequence[str]) -> str | None:
    by_name = {snake_case(column).replace(" ", "_"): column for column in columns}
    return next((by_name[name] for name in usual if name in by_name), None)


def _name(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    for usual in _NAMES:
        column = _column(columns, [usual])
        values = [str(row.get(column) or "") for row in rows] if column else [""]
        if all(values) and len(set(values)) == len(values):
            return f"{{{column}}}" if usual in ("name", "title") else f"{column} {{{column}}}"
    return "row {row}"


def _text(output: Path, data: str, options: Mapping[str, Any]) -> str:
    about = f"Written by `agentest import`. The rows stay in {data}: {{column}} stands for a row's value."
    if output.name.endswith(DATA_ENDINGS):
        others = {key: value for key, value in options.items() if key != "name"}
        entry = {"name": options["name"], "each": data, **others}
        return scenario_file([entry], f"# {about}\n")
    others = {key: node(value) for key, value in options.items()}
    call = call_of("scenario.each", [StringLiteral(data)], others)
    return f'"""{about}"""\n\nfrom agentest import scenario\n\n{split_source(call)}\n'


def _dataset(request: ImportRequest) -> tuple[list[dict[str, Any]], list[str]]:
    name = request.source
    if find_spec("datasets") is None:
        raise UsageError(
            f"{name}: there is no such file. To import a Hugging Face dataset of that name, install the "
            "package `datasets`: pip install datasets"
        )
    try:
        loaded = import_module("datasets").load_dataset(name, split=request.split or _SPLIT)
        limit = len(loaded) if request.limit is None else min(request.limit, len(loaded))
        rows = [dict(loaded[number]) for number in range(limit)]
    except Exception as error:  # noqa: BLE001 - the package may raise anything
        raise UsageError(f"{name}: the dataset cannot be loaded: {type(error).__name__}: {error}") from None
    if not rows:
        raise UsageError(f"{name}: the split {request.split or _SPLIT!r} has no row")
    left_out = [column for column in rows[0] if any(not _is_json(row.get(column)) for row in rows)]
    notes = [f"columns that are not JSON are left out: {quoted_names(left_out, 8)}"] if left_out else []
    return [{key: value for key, value in row.items() if key not in left_out} for row in rows], notes


def _is_json(value: Any) -> bool:
    try:
        check_plain(value)
    except NotJson:
        return False
    return True


@click.command()
@click.argument("run")
@choice_option(
    "--to form",
    FeatureChoice("export format"),
    "Write an evaluation set, scenarios in Python, or scenarios in YAML.",
    required=True,
)
@option("--scenario scenarios", "TEXT", "Select names with TEXT.", multiple=True)
@option("--conversation ids", "ID", "Select a conversation by its id.", multiple=True)
@choice_option(
    "--expect",
    ["calls", "scenario"],
    "Expect the same calls (default), or what the scenario's file expects.",
    default="calls",
)
@path_option("--output", "Write to this file (default: standard output).")
@camel_case_option
@flag("--force", "Replace an existing file.")
@exits
def export(
    run: str,
    form: str,
    scenarios: tuple[str, ...],
    ids: tuple[str, ...],
    expect: Expecting,
    output: Path | None,
    camel_case: bool,
    force: bool,
) -> ExitCode:
    """Turn the finished conversations of RUN into test cases.

    The cases are an evaluation set of ADK, or scripted scenarios whose mocks repeat the recorded results.
    RUN is an id (agentest runs) or its beginning, `latest`, a folder, a results.json or a journal.jsonl.
    """
    project = project_of(Path.cwd())
    file = project.run_file(run)
    exported = test_cases.export(
        file, form, scenarios, ids, output, camel_case=camel_case, expect=expect, root=project.root
    )
    tell_notes(exported.notes)
    if output is None:
        Output(sys.stdout).write_bytes(source(exported.content.decode()))
    else:
        test_cases.write(exported, output, force=force)
        say(f"{output}: {exported.summary}")
    return ExitCode.PASSED
