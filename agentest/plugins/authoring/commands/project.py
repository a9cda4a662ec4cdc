"""`agentest init`, `doctor`, `schema`, `skill`, `export`: write a project's files, and check that it can run.

`skill` copies files for coding agents, and never replaces what a user has edited. A skill is a folder with a
SKILL.md, by the open format of agentskills.io, which most coding agents read.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from textwrap import wrap

import click

from agentest.cli.location import Location, project_of, request_of
from agentest.cli.options import (
    FeatureChoice,
    choice_option,
    exits,
    flag,
    model_option,
    offline_option,
    option,
    path_option,
    where,
)
from agentest.cli.run import forecast_of
from agentest.config.file import repository_root
from agentest.domain.figures import format_forecast
from agentest.plugins.adk.command import camel_case_option
from agentest.plugins.authoring import export as test_cases
from agentest.plugins.authoring import new_project
from agentest.plugins.authoring.doctor import Check, CheckOutcome, run_checks
from agentest.plugins.authoring.request_examples import read_curl, read_har
from agentest.runner.plan import Options
from agentest.runner.prepare import Prepared
from agentest.store.runs.folder import RunKind
from agentest.support.errors import ExitCode, UsageError, errors_as
from agentest.support.files import path_from, write_atomically
from agentest.support.interrupts import run_event_loop
from agentest.support.terminal import Output, clean, encodable, say, source, tell, tell_notes
from agentest.support.text import count

_GLYPHS = {CheckOutcome.GOOD: "✓", CheckOutcome.BAD: "✗", CheckOutcome.OPEN: "–"}
_ASCII_MARKS = {CheckOutcome.GOOD: "ok", CheckOutcome.BAD: "BAD", CheckOutcome.OPEN: "-"}
"""Marks for terminals that cannot show the glyphs."""
_WIDTH = 80
_INDENT = "    "
SKILL = "agentest"  # the format wants the folder to have the skill's name
MANIFEST = ".installed.json"  # lists the files that were written, with their hashes
_CODING_AGENTS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "claude": (".claude/skills", (".claude", "CLAUDE.md")),
    "codex": (".agents/skills", (".agents", ".codex", "AGENTS.md")),
    "cursor": (".cursor/skills", (".cursor", ".cursorrules")),
}
"""Coding agent → the folder of its skills in a repository, and the files that show that it is used."""
_SOURCE = Path(__file__).parents[1] / "skill"


@click.command()
@where
@option("--agent", "NAME", "Check only this agent of the configuration.")
@model_option
@offline_option
@flag("--interleave", "Send running agents 4 messages, to see if conversations mix.")
@exits
def doctor(location: Location, interleave: bool, options: Options) -> ExitCode:
    """Check everything that a run needs: configuration, scenarios, agents, keys, models.

    Servers of agents are started and stopped. Each agent over HTTP answers one message, and each model one
    short question. Agents that are started here also run two conversations at once.

    Exit status: 0 a run can start; 2 something needs attention.
    """
    request = request_of(location.enter(), options)
    checks: list[Check] = []

    def report(check: Check) -> None:
        checks.append(check)
        _print_check(check)

    run_doctor = partial(
        run_checks,
        request,
        report,
        say=lambda what: tell(f"agentest: {what}"),
        expected=_forecast_text,
        interleave=interleave,
    )
    bad = run_event_loop(run_doctor)
    if bad:
        what = "it" if bad == 1 else "them"
        say(f"\n{count(bad, 'problem')}: fix {what}, and run agentest doctor again")
        return ExitCode.ERRORED
    doubt = next((check.name for check in checks if check.leaves_doubt), None)
    say(f"\nNo problem was found, but see {doubt!r}" if doubt else "\nReady: agentest run")
    return ExitCode.PASSED


@click.command()
@click.argument("folder", metavar="[DIR]", default=".", type=click.Path(path_type=Path))
@option("--endpoint", "URL", "Detect the protocol of your agent at URL.")
@option("--header headers", "'NAME: VALUE'", "Send this header, too; $NAME is a variable.", multiple=True)
@option("--curl", "TEXT|FILE|-", "Find out how the agent works from curl commands that do.")
@path_option("--har", "Find it out from a recording of a browser.", metavar="FILE")
@flag("--demo", "Add a small agent, to try Agentest without a key.")
@click.option("--ci", type=click.Choice(["github", "gitlab"]), help="Write the workflow that runs it, too.")
@exits
def init(
    folder: Path,
    endpoint: str | None,
    headers: tuple[str, ...],
    curl: str | None,
    har: Path | None,
    demo: bool,
    ci: new_project.CiName | None,
) -> ExitCode:
    """Write a configuration, a first scenario and entries of .gitignore to DIR (default: here).

    Existing files are never replaced. The agent gets some messages, which prove each setting. Secrets in
    headers become variables, whose values go to .env.

    Exit status: 0 all files exist; 2 nothing was written, or not all settings of the agent were proved.
    """
    pairs = [[part.strip() for part in each.partition(":")] for each in headers]
    if wrong := next((name for name, colon, _ in pairs if not colon), ""):
        raise UsageError(f"--header {wrong}: expected 'NAME: VALUE', such as 'Authorization: Bearer $TOKEN'")
    if pairs and not endpoint:
        raise UsageError("--header goes with --endpoint URL; write it into the command of --curl otherwise")
    sent = {name: value for name, _, value in pairs}
    examples = [*(read_curl(curl) if curl else ()), *(read_har(har) if har else ())]
    begun = new_project.begin(folder, endpoint, sent, examples, demo=demo, ci=ci)
    for line in (*_file_lines(begun.files), *_next_steps(folder, begun)):
        say(line)
    tell_notes(begun.notes)
    return ExitCode.PASSED if begun.is_complete else ExitCode.ERRORED


@click.command()
@click.argument("name", type=click.Choice(new_project.SCHEMAS))
@exits
def schema(name: str) -> ExitCode:
    """Print a JSON Schema for editors: of agentest.config.yaml, or of scenario files in YAML.

    `agentest init` keeps copies of both in .agentest.
    """
    Output(sys.stdout).write_bytes(new_project.schema_text(name))
    return ExitCode.PASSED


def _forecast_text(prepared: Prepared) -> str:
    forecast = forecast_of(prepared, RunKind.RUN)
    return format_forecast(forecast, datetime.now().astimezone()) if forecast else ""


def _print_check(check: Check) -> None:
    first, *rest = check.text.splitlines() or [""]
    signs = "".join(_GLYPHS.values())
    marks = _GLYPHS if encodable(signs, sys.stdout.encoding or "utf-8") == signs else _ASCII_MARKS
    lines = [(f"{marks[check.mark]} {check.name}: {first}", "", _INDENT)]
    for row in (*rest, *check.advice.splitlines()):
        indent = _INDENT + " " * (len(row) - len(row.lstrip()))
        lines.append((row.strip(), indent, indent))
    fill = partial(wrap, width=_WIDTH, break_long_words=False, break_on_hyphens=False)
    for text, begin_with, go_on_with in lines:
        for row in fill(text, initial_indent=begin_with, subsequent_indent=go_on_with):
            say(row)


def _file_lines(files: tuple[new_project.WrittenFile, ...]) -> Iterator[str]:
    paths = [clean(path_from(Path.cwd(), file.path)) for file in files]
    width = max(map(len, paths))
    for name, file in zip(paths, files, strict=True):
        yield f"{file.deed:<8}  {name:<{width}}  {clean(file.about)}"


def _next_steps(folder: Path, begun: new_project.InitResult) -> Iterator[str]:
    is_here = folder.absolute().resolve() == Path.cwd().resolve()
    change_folder = "" if is_here else f"cd {shlex.quote(clean(str(folder)))} && "
    yield ""
    if begun.step == "run":
        yield f"Next: {change_folder}agentest run"
        return
    is_well = begun.step == "check" and begun.is_complete
    yield "Next:" if is_well else "Next: complete `agent` in the configuration, then"
    yield f"  {change_folder}agentest doctor"
    yield f"  {change_folder}agentest run"


@click.group()
def skill() -> None:
    """Teach a coding agent to write, run and repair scenarios."""


@skill.command()
@flag("--claude", "Install for Claude Code, in .claude/skills.")
@flag("--codex", "Install for Codex and others that read .agents/skills.")
@flag("--cursor", "Install for Cursor, in .cursor/skills.")
@path_option("--path", "Install to a folder `agentest` in this folder.")
@flag("--force", "Replace files that you have edited, too.")
@exits
def install(claude: bool, codex: bool, cursor: bool, path: Path | None, force: bool) -> ExitCode:
    """Write the skill to the repository, or update it.

    Without an option it is installed for the coding agents that the repository has files of, or in
    .agents/skills. Files that you have edited stay as they are.

    Exit status: 0 the skill is up to date; 2 a file could not be written, or was edited and left as it is.
    """
    here, edited = Path.cwd(), False
    root, wanted = repository_root(here), zip(_CODING_AGENTS.values(), (claude, codex, cursor), strict=True)
    chosen = [folder for (folder, _), is_chosen in wanted if is_chosen]
    if not chosen and path is None:
        known = _CODING_AGENTS.values()
        chosen = [folder for folder, signs in known if any((root / sign).exists() for sign in signs)]
        chosen = chosen or [_CODING_AGENTS["codex"][0]]
    for parent in dict.fromkeys([*(root / each for each in chosen), *([here / path] if path else [])]):
        folder = parent if parent.name == SKILL else parent / SKILL
        with errors_as(UsageError, f"{folder} cannot be written to: ", OSError):
            changes = install_skill(folder, force=force)
        for file, change in changes:
            say(f"{change:<9}  {clean(path_from(here, file))}")
            edited |= change == "kept"
    if edited:
        tell("agentest: files marked `kept` were edited and not updated; --force replaces them")
        return ExitCode.ERRORED
    say("\nStart your coding agent again, and ask it to test your agent with Agentest.")
    return ExitCode.PASSED


def install_skill(folder: Path, *, force: bool = False) -> list[tuple[Path, str]]:
    """Write the files of the skill to its folder, or update them. Raises OSError.

    Args:
        force: replace files that a user has edited.

    Returns each file and what happened to it, in a word; `kept` for one that a user has edited.
    """
    written, hashes = _hashes(folder), dict[str, str]()
    sources = sorted(path for path in _SOURCE.rglob("*.md") if path.is_file())
    contents = {path.relative_to(_SOURCE).as_posix(): path.read_bytes() for path in sources}
    changes: list[tuple[Path, str]] = []
    for name in [*contents, *(written.keys() - contents.keys())]:
        path, new = folder / name, contents.get(name)
        if not new and not (path.is_file() and path.resolve().is_relative_to(folder.resolve())):
            continue
        old = _hash(path.read_bytes()) if path.exists() else None
        wanted = _hash(new) if new else ""
        # The hash of an edited file stays that of what was written, so that the edit is noticed again.
        hashes |= {name: wanted} if new else {}
        change = "unchanged" if old == wanted else "updated" if old else "wrote"
        if old not in (None, wanted, written.get(name)) and not (force and new):
            change = "kept"
            hashes |= {name: written.get(name, "")} if new else {}
        elif new is None:
            path.unlink()
            change = "removed"
        elif change != "unchanged":
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, new)
        changes.append((path, change))
    write_atomically(folder / MANIFEST, (json.dumps({"files": hashes}, indent=2) + "\n").encode())
    return changes


def _hash(content: bytes) -> str:
    return hashlib.sha256(content.replace(b"\r\n", b"\n")).hexdigest()


def _hashes(folder: Path) -> dict[str, str]:
    with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
        stored = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        return {str(name): str(each) for name, each in stored.items()}
    return {}


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
    expect: test_cases.Expecting,
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
