"""`agentest import`: write scenarios for rows of data, or for the sessions of traces.

Rows stay in their own file, which the scenario file reads with `each`. Sessions become scripts with mocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from os import environ
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agentest.cli.location import project_of
from agentest.cli.options import exits, flag, offline_option, option, path_option
from agentest.config.config import Config
from agentest.config.file import find_config, load
from agentest.plugins.authoring.row_import import ImportRequest, import_rows
from agentest.plugins.authoring.trace_import import TraceRequest, import_traces
from agentest.plugins.authoring.trace_sessions import has_sessions
from agentest.runner.prepare import RunRequest, is_configured
from agentest.store.runs.folder import run_file
from agentest.support.errors import ExitCode, UsageError
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.terminal import say, tell

if TYPE_CHECKING:
    from agentest.models.providers import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """The options of `agentest import` that are about recorded sessions."""

    form: str | None = None
    most: int | None = None
    """The most scenarios; None: 20."""
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
@option("--as form", "FORM", "Read traces of this form, like langfuse (default: by their keys).")
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
    paths = tuple(path for source in sources for path in _files(Path(source)))
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
        done = import_traces(request)
        return _report((done.output,), done.summary, done.notes, is_valid=done.is_valid)
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
    imported = import_rows(replace(rows, source=sources[0]))
    return _report(imported.files, imported.summary, imported.notes, is_valid=imported.is_valid)


def _files(source: Path) -> Sequence[Path]:
    """Return the file of a stored run, or the exports in a folder."""
    if not source.is_dir():
        return (source,)
    if any((source / name).is_file() for name in ("run.json", "results.json", "journal.jsonl")):
        return (run_file(str(source.resolve()), source, source),)
    found = sorted(each for ending in ("json", "jsonl") for each in source.rglob(f"*.{ending}"))
    if not found:
        raise UsageError(f"{source} has no .json or .jsonl file")
    return found


def _output(source: Path) -> Path:
    name = f"{source.resolve().stem}.sim.py"
    # A stored run is removed one day, so its scenarios belong in the user's folder.
    return Path(name) if source.is_dir() else source.with_name(name)


def _settings(named: Path | None) -> Config | None:
    """Return the configuration; None if there is none. Raises ConfigError."""
    root = project_of(Path.cwd()).root
    if not is_configured(RunRequest(root, named)):
        return None
    return load(named or find_config(root), dict(environ)).config


def _model(settings: Config | None, named: str | None) -> ModelSpec | None:
    """Return the model that words scenarios; None if none is configured. Raises ConfigError."""
    if not named and (settings is None or not any((settings.model, settings.provider, settings.user.model))):
        return None
    from agentest.config.agents.chat_completions import ChatCompletionsAgent
    from agentest.models.providers import resolve

    # A configuration needs an agent, which is never contacted.
    config = settings or Config(agent=ChatCompletionsAgent(endpoint="http://127.0.0.1"))
    return resolve(config, config.user, dict(environ), named)


def _report(files: Sequence[Path], summary: str, notes: Sequence[str], *, is_valid: bool) -> ExitCode:
    for note in notes:
        tell(f"agentest: {note}")
    for path in files:
        say(f"wrote {path}")
    say(f"{summary}. Next: agentest run {files[-1]}")
    return ExitCode.PASSED if is_valid else ExitCode.ERRORED
