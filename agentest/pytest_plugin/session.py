"""pytest hooks that collect, run and report scenarios."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, field
from pathlib import Path
from typing import Any, TextIO

import pytest
from _pytest._code.code import ReprEntryNative, ReprExceptionInfo, ReprFileLocation, ReprTraceback
from _pytest.pathlib import bestrelpath

from agentest.domain.results import ScenarioResult, Status
from agentest.pytest_plugin.project import (
    PytestProject,
    ScenarioDidNotPass,
    ScenarioFile,
    ScenarioItem,
    headline,
    is_setup_only,
    open_project,
    verbosity,
)
from agentest.pytest_plugin.scenario_run import BackgroundRun, PytestRuns
from agentest.report.console.scenario import block
from agentest.report.content import questioned_verdicts
from agentest.scenarios.discovery import ENDINGS, is_scenario_name
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.terminal import clean, clean_for_log

_WORKER_OUTPUT = "agentest"


def register(config: pytest.Config) -> None:
    config.pluginmanager.register(SessionHooks(config), "agentest-session")


class SessionHooks:
    """Collects scenarios, executes the selected ones as one run, and reports each when it has finished."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._reporting = False
        self._reported: set[ScenarioItem] = set()
        self._other_output = OtherThreadsOutput(config.pluginmanager.getplugin("capturemanager"))
        self._terminal = TerminalWriter()
        self._reports = RunReports()
        self._examples: dict[str, str] = {}
        """Headline → the first item with it, which alone shows the details."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Validate the configuration before collection. Raises pytest.UsageError."""
        self.project: PytestProject = open_project(session.config)
        self._runs = PytestRuns(self.project, self._terminal)
        self._placeholder = _Placeholder.from_parent(session, name="between scenarios")

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_file(
        self, file_path: Path, parent: pytest.Collector
    ) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
        """Collect scenario files only as scenarios, even if another plugin collects them as tests."""
        others = yield
        named = file_path.name.endswith(ENDINGS) and parent.session.isinitpath(file_path)
        if not (is_scenario_name(file_path.name) and (named or self.project.has(file_path))):
            return others
        return [ScenarioFile.from_parent(parent, path=file_path, project=self.project, runs=self._runs)]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Run all selected scenarios when the first is due, and report each when it has finished.

        A pytest-xdist worker reports items in the order in which it received them.
        """
        in_pytest_order = hasattr(self._config, "workerinput") or is_setup_only(self._config)
        if not isinstance(item, ScenarioItem) or self._reporting or in_pytest_order:
            return None
        if item not in self._reported:
            self._reporting = True
            item.session._setupstate.teardown_exact(self._placeholder)
            try:
                with self._other_output if self._capture else nullcontext():
                    self._report_each(item.session)
            finally:
                self._reporting = False
        # Tear down the fixtures that the next item does not share.
        item.session._setupstate.teardown_exact(nextitem)
        return True

    def _report_each(self, session: pytest.Session) -> None:
        for item in self._as_they_finish(session.items):
            self._reported.add(item)
            self._config.hook.pytest_runtest_protocol(item=item, nextitem=self._placeholder)
            if session.shouldfail or session.shouldstop:
                with self._captured():
                    self._runs.stop()
                return

    @property
    def _capture(self) -> Any:
        capture: Any = self._config.pluginmanager.getplugin("capturemanager")
        return capture if capture and capture.is_globally_capturing() else None

    def _as_they_finish(self, items: Sequence[pytest.Item]) -> Iterator[ScenarioItem]:
        wanted = [item for item in items if isinstance(item, ScenarioItem)]
        running = self._runs.begin_all(wanted)
        yield from (item for item in wanted if item.key not in running)
        while True:
            with self._captured():
                key = self._runs.next()
            if key is None:
                return
            yield running[key]

    @contextmanager
    def _captured(self) -> Iterator[None]:
        capture = self._capture
        if capture is None:
            yield
            return
        capture.resume_global_capture()
        try:
            yield
        finally:
            capture.suspend_global_capture(in_=False)
            self._other_output.pieces += capture.read_global_capture()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[Any]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Put the scenario's result into pytest's report."""
        if self._reporting and self._capture:
            self._other_output.replace_streams()
        report = yield
        if isinstance(item, ScenarioItem):
            apply_result(report, item, call, self._examples)
            if self._reporting:  # output of other scenarios
                self._other_output.pieces += [text for _, text in report.sections]
                report.sections.clear()
                item._report_sections.clear()
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Stop the run after Ctrl-C, or if another test ended the session."""
        # A second Ctrl-C leaves the exit status as it was before the first one.
        is_intended = session.shouldfail or session.shouldstop or hasattr(self._config, "workerinput")
        try:
            self._runs.stop(interrupted=exitstatus == pytest.ExitCode.INTERRUPTED or not is_intended)
        except KeyboardInterrupt:
            self._terminal("agentest: interrupted again, so pytest waits no longer; servers end without it")
        reports = self._reports
        for run in self._runs.ended:
            reports.add(run)
        if (output := getattr(self._config, "workeroutput", None)) is not None:
            output[_WORKER_OUTPUT] = {**asdict(reports), "said": self._other_output.pieces}
        elif (reports.unclaimed or reports.incomplete) and session.exitstatus == pytest.ExitCode.OK:
            # Fail the session: a call could not be assigned to a scenario, or a requested report is
            # missing.
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_unconfigure(self) -> None:
        """Close the terminal output."""
        self._terminal.close()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Collect the notes and output of a pytest-xdist worker."""
        worker_output = dict(getattr(node, "workeroutput", {}).get(_WORKER_OUTPUT, {}))
        self._other_output.pieces += worker_output.pop("said", ())
        if worker_output:
            self._reports.merge(RunReports(**worker_output))

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        """Assign all scenarios to one worker, so that they are one run."""
        from agentest.pytest_plugin.xdist import scheduler

        return scheduler(config, log, lambda path: self.project.has(config.rootpath / path))

    def pytest_report_header(self) -> str:
        """Return the header line: the configuration and the models."""
        prepared = self.project.models
        models = dict.fromkeys(name for name in prepared.model_names.values() if name)
        model_text = f"model {', '.join(models)}" if models else "offline: no model is called"
        path = bestrelpath(self._config.rootpath, self.project.loaded.path)
        return f"agentest: {path}, {model_text}"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print notes that concern the whole run."""
        failed = any(terminalreporter.stats.get(kind) for kind in ("failed", "error"))
        rows = [*dict.fromkeys(self._reports.notes), *self._reports.unclaimed]
        if rows:
            terminalreporter.section("agentest")
            terminalreporter.write_line("\n".join(rows))
        if failed and (output := "".join(self._other_output.pieces)):
            terminalreporter.section("agentest: captured output of scenarios")
            terminalreporter.write(output)
        for command in self._reports.commands:
            terminalreporter.ensure_newline()
            terminalreporter.write_line(command)


@dataclass(slots=True)
class RunReports:
    """What pytest prints at the end about all runs, also those of other processes."""

    notes: list[str] = field(default_factory=list)
    unclaimed: list[str] = field(default_factory=list)  # tool calls that belonged to no conversation
    commands: list[str] = field(default_factory=list)
    incomplete: bool = False

    def add(self, run: BackgroundRun) -> None:
        """Add a run that has ended, with the warnings that put its verdicts in doubt."""
        self.merge(RunReports(notes=run.notes, commands=run.commands, incomplete=run.incomplete))
        for each in questioned_verdicts(run.result) if run.result else ():
            self.notes += [f"warning: {each.head}", *(f"  {row}" for row in each.rows())]
        self.unclaimed += [warning.message for warning in run.result.unclaimed] if run.result else []

    def merge(self, other: RunReports) -> None:
        """Add the reports of another process."""
        self.notes += other.notes
        self.unclaimed += other.unclaimed
        self.commands += other.commands
        self.incomplete |= other.incomplete


def apply_result(
    report: pytest.TestReport, item: ScenarioItem, call: pytest.CallInfo[Any], examples: dict[str, str]
) -> None:
    """Put the scenario's result into the report of an item's phase."""
    result = item.result
    if result is None:
        return
    raised = call.excinfo.value if call.excinfo else None
    if isinstance(raised, ScenarioDidNotPass):
        report.longrepr = _console_traceback(result, item, examples)
    elif report.skipped and result.verdict.status is Status.SKIPPED:
        reason = "; ".join(reason.message for reason in result.verdict.reasons)
        report.longrepr = (str(item.path), result.line, f"Skipped: {reason}")
    telling = "call" if result.verdict.status in (Status.PASSED, Status.FAILED) else "setup"
    report.duration = result.duration_ms / 1000 if report.when == telling else 0.0


class _Placeholder(pytest.Item):
    """Placeholder for the next item, because the order in which scenarios finish is unknown."""

    def runtest(self) -> None:
        """Do nothing; the item never runs."""


def _console_traceback(result: ScenarioResult, item: ScenarioItem, examples: dict[str, str]) -> Any:
    first = examples.setdefault(headline(result), item.nodeid)
    if first != item.nodeid and verbosity(item.config) < 1:
        rows = f"as in {first}"
    else:
        rows = block(result, verbose=verbosity(item.config) > 1)
    entries = ReprTraceback([ReprEntryNative([rows + "\n"])], None, style="native")
    location = ReprFileLocation(str(item.path), result.line, headline(result))
    return ReprExceptionInfo(reprtraceback=entries, reprcrash=location)


_STREAMS = ("stdout", "stderr")
_CAPTURE_ATTRIBUTES = ("_old", "tmpfile")


class OtherThreadsOutput:
    """Stores what other threads print while this thread reports scenarios.

    This includes the phases of items: pytest truncates its capture file without synchronization and
    would lose output of other threads.

    Args:
        capturing: pytest's capture manager. It restores its own streams around each phase of an item, so
            those are replaced too.
    """

    def __init__(self, capturing: object) -> None:
        self.pieces: list[str] = []
        self._captures = list(_captures(capturing))

    def __enter__(self) -> OtherThreadsOutput:
        self.replace_streams()
        for capture in self._captures:
            for name in _CAPTURE_ATTRIBUTES:
                setattr(capture, name, self._wrapped(getattr(capture, name)))
        return self

    def __exit__(self, *error: object) -> None:
        for capture in self._captures:
            for name in _CAPTURE_ATTRIBUTES:
                setattr(capture, name, _unwrapped(getattr(capture, name)))
        for name in _STREAMS:
            setattr(sys, name, _unwrapped(getattr(sys, name)))

    def replace_streams(self) -> None:
        """Replace the standard streams again, because each phase of an item resets them."""
        for name in _STREAMS:
            setattr(sys, name, self._wrapped(getattr(sys, name)))

    def _wrapped(self, stream: TextIO | _ThreadStream) -> _ThreadStream:
        return stream if isinstance(stream, _ThreadStream) else _ThreadStream(stream, self.pieces)


class TerminalWriter:
    """Writes lines to the terminal immediately, from any thread. Create it while pytest does not capture."""

    def __init__(self) -> None:
        self._file: int | None = None
        with suppress(OSError):  # standard error is closed
            self._file = os.dup(2)

    def __call__(self, text: str) -> None:
        """Write a line. Write errors are ignored."""
        if self._file is not None:
            # pytest may have printed an unfinished line of dots.
            row = f"\n{clean_for_log(clean(text))}\n".encode("utf-8", "backslashreplace")
            with suppress(OSError):
                os.write(self._file, row)

    def close(self) -> None:
        """Close the stream; later lines are dropped."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _unwrapped(stream: TextIO | _ThreadStream) -> TextIO:
    return stream.real if isinstance(stream, _ThreadStream) else stream


def _captures(capturing: object) -> Iterator[Any]:
    both = getattr(capturing, "_global_capturing", None)
    for side in (getattr(both, "out", None), getattr(both, "err", None)):
        capture = getattr(side, "syscapture", side)
        if all(hasattr(capture, name) for name in _CAPTURE_ATTRIBUTES):
            yield capture


class _ThreadStream:
    """A stream that passes on output of the thread that created it and stores all other output."""

    def __init__(self, real: TextIO, output: list[str]) -> None:
        self.real = real
        self._said = output
        self._owner = threading.get_ident()

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """Return the real stream's class, because pytest checks the type of the stream that it truncates."""
        return type(self.real)

    def write(self, text: str) -> int:
        """Write the text, or store it if another thread wrote it."""
        if threading.get_ident() == self._owner:
            return self.real.write(text)
        self._said.append(text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)
