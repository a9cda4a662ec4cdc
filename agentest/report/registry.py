"""The table of reporters, and the delivery of events to them."""

from __future__ import annotations

import errno
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from agentest.domain.events import Event, Noted, Reporter, ReportRequest, RunFinished
from agentest.domain.forecast import Forecast
from agentest.domain.results import RunResult
from agentest.store.runs.folder import FILES
from agentest.support.errors import OutputError
from agentest.support.files import shown_path
from agentest.support.json_text import Json
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.terminal import Output, tell, with_reminders

if TYPE_CHECKING:
    from agentest.report.content import ComparedRun
    from agentest.store.journal import Journal
    from agentest.store.runs.folder import RunRecord

_PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.EAGAIN)
_PAUSES_S = (0.5, 1.0, 2.0)
_WITHOUT_PROGRESS_LOG = frozenset({"console", "agent"})
"""Reporters that show progress themselves, or whose readers pay for each line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReporterContext:
    """Facts about a run that reporters need.

    Attributes:
        root: the folder that scenario files are relative to.
        folder: the folder for reports without a path of their own, with names from `FILES`.
        run_id: the id of a stored run.
        next_step: the command that continues an interrupted run.
        rerun: the command that runs what failed again.
        forecast: the expected resources of the run.
        compared: the comparison of the run.
        journal: stores finished conversations; required if results drop them.
        record: the record of a stored run, whose folder is `folder`.
        command: receives workflow commands of GitHub, one line each; None to print them.
        tell: receives messages during the run, one line each.
    """

    root: Path
    folder: Path
    environ: Mapping[str, str]
    run_id: str = ""
    verbosity: int = 0
    detailed: bool = False
    next_step: str = ""
    rerun: str = ""
    forecast: Forecast | None = None
    compared: ComparedRun | None = None
    journal: Journal | None = None
    record: RunRecord | None = None
    command: Callable[[str], None] | None = None
    tell: Callable[[str], object] = tell


def make_reporters(reports: Iterable[ReportRequest], setting: ReporterContext) -> list[Reporter]:
    """Create the requested reporters. The journal comes first, because others read what it has written."""
    wanted = list(reports)
    others = [each for each in wanted if each.name != "github-actions"]
    paths = [
        each.path or (setting.folder / FILES[each.name] if each.name in FILES else None) for each in others
    ]
    files = [shown_path(path, setting.root) for path in paths if path]
    make: dict[str, Callable[[Path | None], Reporter]] = {
        "json": partial(_json, setting),
        "junit": partial(_junit, setting),
        "html": partial(_html, setting),
        "github-actions": partial(_github, setting, files),
        "console": partial(_console, setting),
        "agent": partial(_agent, setting),
    }
    made = [make[report.name](report.path) for report in wanted]
    if not any(report.name in _WITHOUT_PROGRESS_LOG and report.path is None for report in wanted):
        made.append(_pulse(setting))
    return [setting.journal, *made] if setting.journal else made


def _json(setting: ReporterContext, path: Path | None) -> Reporter:
    from agentest.report.json import JsonReporter

    options = {"conversations": setting.journal.conversations} if setting.journal else {}
    return JsonReporter(path or setting.folder / FILES["json"], **options)


def _junit(setting: ReporterContext, path: Path | None) -> Reporter:
    from agentest.report.github import repository_path
    from agentest.report.junit import JUnitReporter

    workspace = _workspace(setting)
    junit = path or setting.folder / FILES["junit"]
    return JUnitReporter(junit, lambda file: repository_path(file, setting.root, workspace))


def _html(setting: ReporterContext, path: Path | None) -> Reporter:
    from agentest.plugins.page.html import HtmlReporter
    from agentest.store.run_results import conversations_in_memory
    from agentest.store.runs.folder import with_end
    from agentest.store.runs.past_runs import about, resume_command, trend
    from agentest.store.spans import SpanIndex

    record, folder = setting.record, setting.folder

    def trend_of(result: RunResult) -> Sequence[Json]:
        if record is None:
            return ()
        return trend(folder.parent.parent, record if record.ended else with_end(record, result))

    return HtmlReporter(
        path or folder / FILES["html"],
        setting.journal.conversations if setting.journal else conversations_in_memory,
        setting.run_id,
        about=about(record) if record else None,
        trend=trend_of,
        spans=SpanIndex(folder).of,
        compared=setting.compared,
        next_step=(resume_command(record) if record and setting.run_id else "") or setting.next_step,
        tell=lambda text: setting.tell(f"agentest: {text}"),
    )


def _github(setting: ReporterContext, files: Sequence[str], path: Path | None) -> Reporter:
    """Create the reporter of annotations and summary; with a path, write only the summary, to a new file."""
    from agentest.report.github import GitHubActionsReporter

    write = setting.command or Output(sys.stdout, setting.environ).command
    summary = setting.environ.get("GITHUB_STEP_SUMMARY")
    return GitHubActionsReporter(
        None if path else write,
        setting.root,
        path or (Path(summary) if summary else None),
        workspace=_workspace(setting),
        files=files,
        next_step=setting.next_step,
        compared=setting.compared,
        detailed=setting.verbosity > 0,
    )


def _workspace(setting: ReporterContext) -> Path | None:
    workspace = setting.environ.get("GITHUB_WORKSPACE")
    return Path(workspace) if workspace else None


def _console(setting: ReporterContext, path: Path | None) -> Reporter:
    from agentest.report.console.reporter import ConsoleReporter, FileConsole, open_printer
    from agentest.report.console.text import DisplayOptions

    display = DisplayOptions(verbosity=setting.verbosity, next_step=setting.next_step, rerun=setting.rerun)
    if path:
        return FileConsole(path, display, case_tables=setting.detailed)
    return ConsoleReporter(
        open_printer(setting.environ, sys.stdout),
        display,
        case_tables=setting.detailed,
        forecast=setting.forecast,
    )


def _agent(setting: ReporterContext, path: Path | None) -> Reporter:
    from agentest.report.agent import AgentReporter

    return AgentReporter(path, setting.run_id, setting.next_step)


def _pulse(setting: ReporterContext) -> Reporter:
    from agentest.report.progress import ProgressLogReporter

    expected_s = setting.forecast.seconds if setting.forecast else None
    return ProgressLogReporter(lambda text: setting.tell(f"agentest: {text}"), expected_s=expected_s)


class Broadcast:
    """Passes events to reporters. A reporter that crashes is reported once and then skipped.

    A reporter receives every event, or only those of the types in its `events` if it has that attribute.
    A reporter that writes its whole report at the end and can do so again (`repeats`) is retried by `finish`
    if it failed for a temporary reason.

    Args:
        warn: receives a message as soon as a reporter fails.
    """

    def __init__(self, reporters: Sequence[Reporter], warn: Callable[[str], object] = lambda _: None) -> None:
        self._reporters = list(reporters)
        self._warn = warn
        self._receivers: dict[type[Event], list[Reporter]] = {}
        """The reporters of each type of event that was passed on; emptied when a reporter crashes."""
        self._again: list[tuple[Reporter, Event]] = []
        self.problems: list[str] = []
        self.failed: set[str] = set()
        """Names of the reporters that crashed."""

    def show(self, text: str) -> bool:
        """Let a reporter show a text in its live area, at any time. Returns True if one did."""
        shows = (getattr(reporter, "show", None) for reporter in self._reporters)
        return any(show(text) for show in shows if show)

    def __call__(self, event: Event) -> None:
        kind = type(event)
        if kind not in self._receivers:
            self._receivers[kind] = [r for r in self._reporters if kind in getattr(r, "events", (kind,))]
        for reporter in self._receivers[kind]:
            try:
                self._pass_on(reporter, event)
            except Exception as error:  # noqa: BLE001 - a reporter's trouble must not cost the run its results
                self._reporters.remove(reporter)
                self._receivers.clear()
                if (
                    _may_pass(error)
                    and isinstance(event, RunFinished)
                    and getattr(reporter, "repeats", False)
                ):
                    self._warn(f"reporter {reporter.name} failed: {_message(error)}; it will be tried again")
                    self._again.append((reporter, event))
                else:
                    self._fail(reporter, error)

    def _pass_on(self, reporter: Reporter, event: Event) -> None:
        if not isinstance(event, RunFinished):
            reporter.on_event(event)
            return
        with with_reminders(f"writing the report of {reporter.name}"):
            reporter.on_event(event)

    def finish(self, pause: Callable[[float], object] = time.sleep) -> None:
        """Retry the reporters that could not write their report, with pauses between the attempts."""
        for number, seconds in enumerate(_PAUSES_S if self._again else (), start=1):
            pause(seconds)
            waiting, self._again = self._again, []
            for reporter, event in waiting:
                try:
                    reporter.on_event(event)
                except Exception as error:  # noqa: BLE001 - as above
                    if number < len(_PAUSES_S) and _may_pass(error):
                        self._again.append((reporter, event))
                    else:
                        self._fail(reporter, error)
            if not self._again:
                return

    def _fail(self, reporter: Reporter, error: Exception) -> None:
        self.failed.add(reporter.name)
        self.problems.append(f"reporter {reporter.name} failed: {_message(error)}")
        self._warn(self.problems[-1])


def _may_pass(error: Exception) -> bool:
    """True for errors that may disappear within seconds: a full disk, too many open files."""
    return isinstance(error, OSError) and error.errno in _PASSING


def _message(error: Exception) -> str:
    return str(error) if isinstance(error, OutputError) else f"{type(error).__name__}: {error}"


class NotesReporter:
    """Writes each note immediately. A live display on the same terminal makes room for it."""

    name = "notes"
    events = (Noted,)

    def on_event(self, event: Event) -> None:
        if isinstance(event, Noted):
            tell(f"agentest: {event.text}")
