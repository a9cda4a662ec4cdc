"""The creation of reporters, and the delivery of events to them."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from agentest.domain.events import (
    ConversationFinished,
    Event,
    Noted,
    Reporter,
    ReportRequest,
    RunFinished,
    ScenarioAmended,
    ScenarioFinished,
)
from agentest.domain.figures import Forecast
from agentest.plugin import PLUGINS
from agentest.store.runs.folder import report_file
from agentest.support.errors import EventLoopBlocked, OutputError
from agentest.support.files import shown_path
from agentest.support.json_text import encoded
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.redaction import PIECE_END, CredentialFilter, credentials_in, joined
from agentest.support.terminal import tell, with_reminders
from agentest.support.text import turn_name

if TYPE_CHECKING:
    from agentest.domain.results import ScenarioResult
    from agentest.report.content import ComparedRun
    from agentest.store.journal import Journal
    from agentest.store.reader import StoredConversations
    from agentest.store.runs.folder import RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class ReporterContext:
    """Facts about a run that reporters need.

    Attributes:
        root: the folder that scenario files are relative to.
        folder: the folder for reports without a path of their own.
        other_files: the files of the run's other reports, relative to `root`.
        run_id: the id of a stored run.
        next_step: the command that continues an interrupted run.
        rerun: the command that runs what failed again.
        forecast: the expected resources of the run.
        compared: the comparison of the run.
        credentials: show values that look like credentials, because the report stays on this machine.
        texts: texts of a stored run, which show what is a credential wherever it stands.
        journal: stores finished conversations; required if results drop them.
        record: the record of a stored run, whose folder is `folder`.
        command: receives workflow commands of GitHub, one line each; None to print them.
        tell: receives messages during the run, one line each.
    """

    root: Path
    folder: Path
    environ: Mapping[str, str]
    other_files: tuple[str, ...] = ()
    run_id: str = ""
    verbosity: int = 0
    detailed: bool = False
    next_step: str = ""
    rerun: str = ""
    forecast: Forecast | None = None
    compared: ComparedRun | None = None
    credentials: bool = False
    texts: Iterable[bytes] = ()
    journal: Journal | None = None
    record: RunRecord | None = None
    command: Callable[[str], None] | None = None
    tell: Callable[[str], object] = tell

    @property
    def github_workspace(self) -> Path | None:
        """The folder from `$GITHUB_WORKSPACE`."""
        workspace = self.environ.get("GITHUB_WORKSPACE")
        return Path(workspace) if workspace else None


def make_reporters(reports: Iterable[ReportRequest], context: ReporterContext) -> list[Reporter]:
    """Create the requested reporters. The journal comes first, because others read what it has written.

    Raises UsageError for a name that no plug-in has.
    """
    wanted = [replace(each, path=path_of(each, context.folder)) for each in reports]
    made = [_make(each, wanted, context) for each in wanted]
    leaving = [r for r in made if not (context.credentials or getattr(r, "receives_credentials", False))]
    if leaving:
        public = _PublicEvents(context.texts)
        made = [_PublicReporter(each, public) if each in leaving else each for each in made]
    if not any(getattr(each, "replaces_progress_log", False) for each in made):
        made.append(_progress_log(context))
    return [context.journal, *made] if context.journal else made


_ALIKE = bytes.maketrans(b"123456789", b"000000000")
_NOT_ALIKE = re.compile(rb"ya00\.|%00")  # what `_ALIKE` makes of the digits that stand in patterns
_MAX_CLEAN = 20_000


def find_credentials(stored: Iterable[bytes], hide: CredentialFilter) -> None:
    """Let a filter find those in JSON. Of pieces that differ only in digits, one without any is enough."""
    clean: set[bytes] = set()
    for part in stored:
        alike = part.translate(_ALIKE).split(PIECE_END)
        new = {*alike} - clean
        if any(credentials_in(joined(new))) or any(map(_NOT_ALIKE.search, new)):
            pieces = zip(alike, part.split(PIECE_END), strict=True)
            hide(joined({piece for like, piece in pieces if like in new}))
        elif len(clean) < _MAX_CLEAN:
            clean |= new


class _PublicEvents:
    def __init__(self, texts: Iterable[bytes]) -> None:
        self._hide = CredentialFilter()
        self._place = ""  # of the first credential that was found
        self._to_search = 1_000  # turns
        self._last: tuple[Event, Event] | None = None
        self._stored: dict[int, tuple[ScenarioResult, ScenarioResult]] = {}
        """Id of a stored scenario, which the end of the run has again → the scenario and its hidden form."""
        find_credentials(texts, self._hide)

    def __call__(self, event: Event) -> Event:
        if self._last is None or self._last[0] is not event:
            self._last = event, self._hidden(event)
        return self._last[1]

    def _hidden(self, event: Event) -> Event:
        if isinstance(event, ConversationFinished) and isinstance(event.result, bytes):
            return replace(event, result=encoded(self._hide(json.loads(event.result))))
        if isinstance(event, ScenarioFinished | ScenarioAmended):
            hidden = self._scenario(event.result)
            self._place = self._place or (self._hide.note and self._place_in(event.result))
            return replace(event, result=hidden)
        if isinstance(event, RunFinished):
            scenarios = tuple(map(self._scenario, event.result.scenarios))
            result = self._hide(replace(event.result, scenarios=()))
            return RunFinished(replace(result, scenarios=scenarios, hidden=self._hide.note + self._place))
        return self._hide(event)

    def _place_in(self, scenario: ScenarioResult) -> str:
        turns = (turn for each in scenario.conversations for turn in each.conversation.turns)
        for turn in islice(turns, max(0, self._to_search)):
            self._to_search -= 1
            if self._hide(turn) is not turn:
                return f", first in {turn_name(turn.turn_index)} of {self._hide(scenario.name)!r}"
        return ""

    def _scenario(self, scenario: ScenarioResult) -> ScenarioResult:
        """Hide the conversations of a stored run when they are read."""
        if isinstance(scenario.conversations, tuple | list):
            return self._hide(scenario)
        if id(scenario) not in self._stored:
            stored = cast("StoredConversations", scenario.conversations)
            hidden = self._hide(replace(scenario, conversations=()))
            self._stored[id(scenario)] = scenario, replace(hidden, conversations=stored.mapped(self._hide))
        return self._stored[id(scenario)][1]


class _ForeignReporter:
    """A reporter of another package, which is interrupted if it blocks."""

    def __init__(self, reporter: Reporter) -> None:
        self.name = reporter.name
        self._reporter = reporter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reporter, name)

    def on_event(self, event: Event) -> None:
        from agentest.support.function_threads import BlockingTimer

        with suppress(StopIteration):
            BlockingTimer().of(self._pass_on(event)).send(None)

    async def _pass_on(self, event: Event) -> None:
        self._reporter.on_event(event)


class _PublicReporter(_ForeignReporter):
    """A reporter whose report may leave the machine, so that it receives public events."""

    def __init__(self, reporter: Reporter, public: _PublicEvents) -> None:
        super().__init__(reporter)
        self._public = public
        self._hidden: tuple[type[Event], ...] = (ScenarioFinished, ScenarioAmended, RunFinished)
        if not getattr(reporter, "counts_conversations", False):
            self._hidden += (ConversationFinished,)

    def on_event(self, event: Event) -> None:
        self._reporter.on_event(self._public(event) if isinstance(event, self._hidden) else event)


def path_of(report: ReportRequest, folder: Path) -> Path | None:
    """Return the file of a report: the named one, or the usual one in the folder; None if it has none."""
    file = report_file(report.name)
    return report.path or (folder / file if file else None)


def _make(report: ReportRequest, all: Sequence[ReportRequest], context: ReporterContext) -> Reporter:
    feature = PLUGINS.get("reporter", report.name)
    paths = (each.path for each in all if each.name != report.name)
    others = tuple(shown_path(path, context.root) for path in paths if path)
    reporter: Reporter = feature.call(replace(context, other_files=others), report.path)
    return reporter if feature.path.startswith("agentest.") else _ForeignReporter(reporter)


def _progress_log(context: ReporterContext) -> Reporter:
    from agentest.report.progress import ProgressLogReporter

    expected_s = context.forecast.seconds if context.forecast else None
    return ProgressLogReporter(lambda text: context.tell(f"agentest: {text}"), expected_s=expected_s)


def receives(reporter: Reporter, kind: type[Event]) -> bool:
    """Return True if a reporter receives events of this type: those of its `events` if it has any, or all."""
    return kind in getattr(reporter, "events", (kind,))


class Broadcast:
    """Passes events to reporters. A reporter that crashes is reported once and then skipped.

    Args:
        warn: receives a message as soon as a reporter fails.
    """

    def __init__(self, reporters: Sequence[Reporter], warn: Callable[[str], object] = lambda _: None) -> None:
        self._all = reporters
        self._reporters = list(reporters)
        self._warn = warn
        self._receivers: dict[type[Event], list[Reporter]] = {}
        """The reporters of each type of event that was passed on; emptied when a reporter crashes."""
        self.problems: list[str] = []
        self.failed: set[str] = set()  # names of the reporters that crashed
        self.unwritten: list[str] = []
        """The reports for which the disk was full at the end. The caller names them with the other files."""

    def has(self, attribute: str) -> bool:
        """True if a reporter that did not crash has an attribute that is true, such as `prints_outcome`."""
        return any(getattr(each, attribute, False) for each in self._all if each.name not in self.failed)

    def show(self, text: str) -> bool:
        """Let a reporter show a text in its live area, at any time. Returns True if one did."""
        shows = (getattr(reporter, "show", None) for reporter in self._reporters)
        return any(show(text) for show in shows if show)

    def __call__(self, event: Event) -> None:
        kind = type(event)
        if kind not in self._receivers:
            self._receivers[kind] = [each for each in self._reporters if receives(each, kind)]
        is_last = isinstance(event, RunFinished)
        for reporter in self._receivers[kind]:
            try:
                with with_reminders(f"writing the report of {reporter.name}") if is_last else nullcontext():
                    reporter.on_event(event)
            except (Exception, EventLoopBlocked) as error:  # noqa: BLE001 - must not cost the run its results
                self._reporters.remove(reporter)
                self._receivers.clear()
                self.failed.add(reporter.name)
                self.problems.append(f"reporter {reporter.name} failed: {_message(error)}")
                if is_last and isinstance(error, OSError) and error.errno == errno.ENOSPC:
                    self.unwritten.append(f"the report {reporter.name}")
                else:
                    self._warn(self.problems[-1])


def _message(error: BaseException) -> str:
    return str(error) if isinstance(error, OutputError) else f"{type(error).__name__}: {error}"


class NotesReporter:
    """Writes each note immediately. A live display on the same terminal makes room for it."""

    name = "notes"
    events = (Noted,)

    def on_event(self, event: Event) -> None:
        if isinstance(event, Noted):
            tell(f"agentest: {event.text}")
