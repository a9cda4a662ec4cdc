"""The reporters of a run, and how events reach them."""

from __future__ import annotations

import errno
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from agentest.domain.events import Event, Noted, Reporter, RunFinished, WantedReport
from agentest.domain.forecast import Forecast
from agentest.domain.results import RunResult
from agentest.store.runs.folder import FILES
from agentest.support.errors import OutputError
from agentest.support.files import shown_path
from agentest.support.json_text import Json
from agentest.support.terminal import Output, reminded, tell

if TYPE_CHECKING:
    from agentest.report.comparison import ComparedRun
    from agentest.report.html import Known
    from agentest.store.journal import Journal
    from agentest.store.runs.record import RunRecord

_PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.EAGAIN)
_PAUSES_S = (0.5, 1.0, 2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What reporters need to know of a run, beside which of them are wanted.

    Attributes:
        root: the folder that files of scenarios are relative to.
        folder: where a report is written that has no path of its own, under the name that `FILES` says.
        run_id: what a kept run is called.
        next_step: the command that runs what an interrupted run has left.
        forecast: what the run may take, by an earlier one.
        compared: what the run is compared with.
        journal: keeps finished conversations; needed where results let them go.
        record: what a kept run is, or was; its folder is `folder`.
        command: receives workflow commands of GitHub, each a line; None: they are printed.
        tell: receives what is said while the run lasts, each a line.
    """

    root: Path
    folder: Path
    environ: Mapping[str, str]
    run_id: str = ""
    verbose: bool = False
    detailed: bool = False
    next_step: str = ""
    forecast: Forecast | None = None
    compared: ComparedRun | None = None
    journal: Journal | None = None
    record: RunRecord | None = None
    command: Callable[[str], None] | None = None
    tell: Callable[[str], object] = tell


def report_file(report: WantedReport, setting: Setting) -> Path | None:
    """The file that a report is written to; None: it is printed."""
    if report.path or report.name not in FILES:
        return report.path
    return setting.folder / FILES[report.name]


def _file_names(reports: Iterable[WantedReport], setting: Setting) -> list[str]:
    """The files that other reports are written to, as seen from the folder of the configuration."""
    files = [report_file(report, setting) for report in reports if report.name != "github-actions"]
    return [shown_path(file, setting.root) for file in files if file]


def make_reporters(reports: Iterable[WantedReport], setting: Setting) -> list[Reporter]:
    """The reporters that are wanted. The journal comes first: others read what it has written."""
    wanted = list(reports)
    make: dict[str, Callable[[Path | None], Reporter]] = {
        "json": partial(_json, setting),
        "junit": partial(_junit, setting),
        "html": partial(_html, setting),
        "github-actions": partial(_github, setting, _file_names(wanted, setting)),
        "console": partial(_console, setting),
    }
    made = [make[report.name](report.path) for report in wanted]
    if not any(report.name == "console" and report.path is None for report in wanted):
        made.append(_pulse(setting))  # the console says itself how far the run is
    return [setting.journal, *made] if setting.journal else made


def _json(setting: Setting, path: Path | None) -> Reporter:
    from agentest.report.json import JsonReporter

    kept = {"conversations": setting.journal.conversations} if setting.journal else {}
    return JsonReporter(path or setting.folder / FILES["json"], **kept)


def _junit(setting: Setting, path: Path | None) -> Reporter:
    from agentest.report.github_annotations import repository_path
    from agentest.report.junit import JUnitReporter

    workspace = _workspace(setting)
    junit = path or setting.folder / FILES["junit"]
    return JUnitReporter(junit, lambda file: repository_path(file, setting.root, workspace))


def _html(setting: Setting, path: Path | None) -> Reporter:
    from agentest.report.html import HtmlReporter
    from agentest.store.results_json import kept_conversations
    from agentest.store.spans import SpanIndex

    return HtmlReporter(
        path or setting.folder / FILES["html"],
        setting.journal.conversations if setting.journal else kept_conversations,
        setting.run_id,
        known=_known(setting.record, setting.folder) if setting.record else None,
        spans=SpanIndex(setting.folder).of,
        compared=setting.compared,
        tell=lambda text: setting.tell(f"agentest: {text}"),
    )


def _known(record: RunRecord, folder: Path) -> Known:
    """What the record of a run in this folder tells beside its results."""
    from agentest.report.html import Known
    from agentest.store.runs.record import with_end
    from agentest.store.runs.verdicts import about, trend

    def ended(result: RunResult) -> Sequence[Json]:
        return trend(folder.parent.parent, record if record.ended else with_end(record, result))

    return Known(about=about(record), trend=ended)


def _github(setting: Setting, files: Sequence[str], path: Path | None) -> Reporter:
    """Annotations and the job's summary; with a path of its own the summary alone, as a new file."""
    from agentest.report.github import GitHubReporter, SummaryReporter

    if path:
        return SummaryReporter(path, files, setting.next_step, setting.compared)
    summary = setting.environ.get("GITHUB_STEP_SUMMARY")
    return GitHubReporter(
        setting.command or Output(sys.stdout, setting.environ).command,
        setting.root,
        Path(summary) if summary else None,
        workspace=_workspace(setting),
        files=files,
        next_step=setting.next_step,
        compared=setting.compared,
    )


def _workspace(setting: Setting) -> Path | None:
    workspace = setting.environ.get("GITHUB_WORKSPACE")
    return Path(workspace) if workspace else None


def _console(setting: Setting, path: Path | None) -> Reporter:
    from agentest.report.console.reporter import FileConsole, make_console_reporter

    if path:
        return FileConsole(path, verbose=setting.verbose, detailed=setting.detailed)
    return make_console_reporter(
        setting.environ,
        setting.verbose,
        detailed=setting.detailed,
        next_step=setting.next_step,
        forecast=setting.forecast,
    )


def _pulse(setting: Setting) -> Reporter:
    from agentest.report.progress import PulseReporter

    expected_s = setting.forecast.seconds if setting.forecast else None
    return PulseReporter(lambda text: setting.tell(f"agentest: {text}"), expected_s=expected_s)


class Broadcast:
    """Passes every event to every reporter. One that crashes is reported once and left out from then on.

    A reporter that writes its whole report at the end, and may do so again (`repeats`), is asked again by
    `finish` where it failed for a reason that may pass.

    Args:
        warn: receives a message at once where a reporter failed.
    """

    def __init__(self, reporters: Sequence[Reporter], warn: Callable[[str], object] = lambda _: None) -> None:
        self._reporters = list(reporters)
        self._warn = warn
        self._again: list[tuple[Reporter, Event]] = []
        self.problems: list[str] = []
        self.failed: set[str] = set()
        """Names of the reporters that crashed."""

    def show(self, text: str) -> bool:
        """Have a reporter show a text in a place of its own, called at any moment; whether one did."""
        shows = (getattr(reporter, "show", None) for reporter in self._reporters)
        return any(show(text) for show in shows if show)

    def __call__(self, event: Event) -> None:
        for reporter in list(self._reporters):
            try:
                self._pass_on(reporter, event)
            except Exception as error:  # noqa: BLE001 - a reporter's trouble must not cost the run its results
                self._reporters.remove(reporter)
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
        with reminded(f"writing the report of {reporter.name}"):
            reporter.on_event(event)

    def finish(self, pause: Callable[[float], object] = time.sleep) -> None:
        """Ask those again that could not write their report; seconds lie between the attempts."""
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
    """Whether the same may succeed a second later: a full disk, no more open files."""
    return isinstance(error, OSError) and error.errno in _PASSING


def _message(error: Exception) -> str:
    return str(error) if isinstance(error, OutputError) else f"{type(error).__name__}: {error}"


class NotesReporter:
    """Writes each note when it comes. A live display on the same terminal moves out of its way."""

    name = "notes"

    def on_event(self, event: Event) -> None:
        if isinstance(event, Noted):
            tell(f"agentest: {event.text}")
