"""`agentest export`: make test cases of a stored run."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from agentest.cli.location import project_of
from agentest.cli.options import FeatureChoice, choice_option, exits, flag, option, path_option
from agentest.plugins.adk.command import camel_case_option
from agentest.plugins.authoring import export as test_cases
from agentest.plugins.authoring.export import Expecting
from agentest.support.errors import ExitCode
from agentest.support.terminal import Output, say, source, tell_notes


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
