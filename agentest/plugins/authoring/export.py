"""`agentest export`: write conversations of a results.json as an evaluation set or a scenario file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

from agentest.domain.metrics import TRAJECTORY_METRICS
from agentest.domain.reasons import conversation_passed
from agentest.domain.transcript import Conversation
from agentest.plugin import PLUGINS
from agentest.plugins.adk.cases import recorded_case
from agentest.plugins.adk.formats.eval_set import CAMEL_CASE, AgentestKeys, EvalSet, eval_set_json
from agentest.plugins.adk.formats.set_reader import read_eval_set
from agentest.plugins.authoring.scenario_files import as_data, export_data
from agentest.scenarios.discovery import DATA_ENDINGS, discover_file, matches_name
from agentest.scenarios.model import Scenario, ScriptedTurn
from agentest.scenarios.source_code import (
    export_script,
    exported_name,
    has_nameless_call,
    missing,
    scripted_scenario,
    value_of,
)
from agentest.store.reader import read_results, usable
from agentest.support.errors import UsageError
from agentest.support.files import write_for_user
from agentest.support.importing import Imports
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.redaction import CredentialFilter
from agentest.support.text import count, did_you_mean

Expecting = Literal["calls", "scenario"]
_SET_ID = "exported"
_COMPARED_BY_CRITERIA = (
    "the cases hold the calls and replies that were, too: name in a test_config.json next to them which "
    "criteria compare with these"
)


@dataclass(frozen=True, slots=True)
class Exported:
    """The content of an exported file, its description, and notes for the user."""

    content: bytes
    summary: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportTask:
    """The content to write, for the `make` of a format."""

    path: Path  # the results from which the conversations are
    started: float
    conversations: tuple[ExportedConversation, ...]
    notes: tuple[str, ...]  # notes for the user about the conversations
    output: Path | None  # where the content will be written
    camel_case: bool

    def unwritable(self, error: Exception) -> UsageError:
        """Return the error for values that no run writes: infinite numbers and unpaired surrogates."""
        return UsageError(
            f"{self.path} contains a value that cannot be exported: {error}; leave its conversation out, "
            "with --scenario or --conversation"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportFormat:
    """A format of exported conversations."""

    endings: tuple[str, ...]  # names of files by which they are found in a folder
    make: Callable[[ExportTask], Exported]
    """Returns the content. Raises UsageError."""
    written: Callable[[Any], Any] = as_data
    """Returns the form of an expectation, for `--expect scenario`. Raises ValueError if it has none."""
    of_cases: bool = False
    """True if the content is an evaluation set, which has camelCase and no expectations of turns."""


def export(
    path: Path,
    form: str,
    scenarios: tuple[str, ...] = (),
    ids: tuple[str, ...] = (),
    output: Path | None = None,
    *,
    camel_case: bool = False,
    expect: Expecting = "calls",
    root: Path = Path(),
) -> Exported:
    """Convert finished conversations of a results.json to an evaluation set or a scenario file.

    Args:
        scenarios, ids: filters: parts of scenario names, and ids of conversations.
        output: where the content will be written; names the evaluation set.
        camel_case: write the keys of an evaluation set in camelCase, as ADK-TS does.
        expect: what to expect: the same calls, or what the scenario file expects.
        root: the folder to which scenario files in results are relative.

    Raises UsageError.
    """
    if form == "scenario" and output and output.name.endswith(DATA_ENDINGS):
        form = "yaml"
    chosen: ExportFormat = PLUGINS.get("export format", form).load(of=ExportFormat)
    if camel_case and not chosen.of_cases:
        raise UsageError("--camel-case is about evaluation sets: use it with --to evalset")
    earlier = read_earlier(path)
    selection = select(earlier, scenarios, ids)
    if expect == "scenario":
        expectations = find(selection.conversations, root, earlier.started)
        conversations, notes = with_expectations(selection.conversations, expectations, chosen)
        if chosen.of_cases and any(each.expected for each in conversations):
            notes.append(_COMPARED_BY_CRITERIA)
        selection = Selection(conversations, (*selection.notes, *expectations.notes, *notes))
    made = chosen.make(
        ExportTask(
            path=path,
            started=earlier.started,
            conversations=selection.conversations,
            notes=selection.notes,
            output=output,
            camel_case=camel_case,
        )
    )
    if output and not output.name.endswith(chosen.endings):
        note = f"{output}: is found in a folder only when its name ends in {' or '.join(chosen.endings)}"
        return replace(made, notes=(*made.notes, note))
    return made


def write(exported: Exported, output: Path, *, force: bool) -> None:
    """Write the file. Raises UsageError if it exists, unless `force` is set."""
    if output.exists() and not force:
        raise UsageError(f"--output: {output} exists already; --force replaces it")
    write_for_user(output, exported.content, "--output")


def _evaluation_set(task: ExportTask) -> Exported:
    # ADK names its files after the set.
    set_id = (task.output.name.split(".")[0] if task.output else "") or _SET_ID
    try:
        cases = tuple(
            recorded_case(each.conversation, task.started, _case_keys(each.expected))
            for each in task.conversations
        )
        made = EvalSet(set_id, cases, creation_timestamp=task.started)
        content = eval_set_json(made, camel_case=task.camel_case)
    except (ValueError, RecursionError) as error:
        raise task.unwritable(error) from None
    notes = list(task.notes)
    for each in task.conversations:
        if each.conversation.initial_state:  # a session needs more data
            keys = ", ".join(each.conversation.initial_state)
            notes.append(
                f"{each.conversation.conversation_id}: its session began with a state ({keys}), which is "
                "left out; write it into the case: session_input with app_name, user_id and state"
            )
    summary = count(len(task.conversations), "case")
    return Exported(content, summary, (*notes, *[CAMEL_CASE] * task.camel_case))


def _case_keys(expected: Scenario | None) -> AgentestKeys | None:
    if expected is None:
        return None
    trajectory, expect = ([as_data(part) for part in each] for each in (expected.trajectory, expected.expect))
    return AgentestKeys(
        trajectory=(trajectory if len(trajectory) > 1 else trajectory[0]) if trajectory else None,
        expect=(expect if len(expect) > 1 else expect[0]) if expect else None,
        thresholds=dict(expected.thresholds) or None,
        date=expected.date,
    )


def _script(write: Callable[[Sequence[Scenario]], str], task: ExportTask) -> Exported:
    exportable = tuple(each for each in task.conversations if not has_nameless_call(each.conversation))
    if not exportable:
        raise UsageError(f"{task.path}: the agent called tools without a name, which no mock can answer")
    notes = [
        f"left out {each.conversation.conversation_id}: the agent called a tool without a name"
        for each in task.conversations
        if each not in exportable
    ]
    try:
        names = [exported_name(each.scenario, each.conversation) for each in exportable]
        scenarios = [
            scripted_scenario(name, each.conversation, each.expected)
            for name, each in zip(names, exportable, strict=True)
        ]
        content = write(scenarios).encode()
    except (ValueError, RecursionError) as error:
        raise task.unwritable(error) from None
    return Exported(content, count(len(exportable), "scenario"), (*task.notes, *notes))


_UNCHANGING = "exported tools answer as they did, and change no state"
_OTHERS = "they are not about one conversation, or a judge's"


@dataclass(frozen=True, slots=True)
class SourceExpectations:
    """Expectations by file and scenario name, and notes for the user."""

    expected: Mapping[tuple[str, str], Scenario]
    notes: tuple[str, ...]


def find(conversations: Iterable[ExportedConversation], root: Path, started: float) -> SourceExpectations:
    """Find the expectations in a run's scenario files, which are imported, and in its evaluation sets."""
    sources = dict.fromkeys((each.file, each.scenario, each.eval_id) for each in conversations)
    files = _RunFiles(root, started)
    expected: dict[tuple[str, str], Scenario] = {}
    notes: list[str] = []
    for file, name, eval_id in sources:
        try:
            expected[file, name] = files.case(file, eval_id) if eval_id else files.scenario(file, name)
        except UsageError as error:
            notes.append(f"{name}: {error}; the same calls are expected instead")
    return SourceExpectations(expected, (*notes, *files.notes))


class _RunFiles:
    """The files of a run, each read once. `notes` lists files that have changed since."""

    def __init__(self, root: Path, started: float) -> None:
        self._root = root
        self._started = started
        self._imports = Imports()
        self._scenarios: dict[str, Sequence[Scenario]] = {}
        self._cases: dict[str, Mapping[str, AgentestKeys | None]] = {}
        self.notes: list[str] = []

    def scenario(self, file: str, name: str) -> Scenario:
        if file not in self._scenarios:
            discovered = discover_file(self._path(file), self._imports, root=self._root)
            if discovered.broken:
                raise UsageError(f"{file} cannot be loaded: {discovered.broken[0].message}")
            self._scenarios[file] = discovered.scenarios
        for scenario in self._scenarios[file]:
            if scenario.name == name and scenario.refused:
                raise UsageError(f"the scenario cannot be loaded: {scenario.refused}")
            if scenario.name == name:
                return scenario
        raise UsageError(f"{file} has no scenario of that name any more")

    def case(self, file: str, eval_id: str) -> Scenario:
        if file not in self._cases:
            cases = read_eval_set(self._path(file)).eval_set.eval_cases
            self._cases[file] = {case.eval_id: case.agentest for case in cases}
        if eval_id not in self._cases[file]:
            raise UsageError(f"{file} has no case {eval_id!r} any more")
        expected = (self._cases[file][eval_id] or AgentestKeys()).expectations
        return Scenario(
            name=eval_id,
            file=file,
            line=0,
            trajectory=expected.get("trajectory", ()),
            expect=expected.get("expect", ()),
            final_state=expected.get("final_state"),
            thresholds=expected.get("thresholds", {}),
            date=expected.get("date"),
        )

    def _path(self, file: str) -> Path:
        path = self._root / file
        if not path.is_file():
            raise UsageError(f"{file} is not there any more")
        if path.stat().st_mtime > self._started > 0:
            self.notes.append(f"{file} was changed after the run began: its current content is written")
        return path


def with_expectations(
    conversations: Sequence[ExportedConversation], expectations: SourceExpectations, form: ExportFormat
) -> tuple[tuple[ExportedConversation, ...], list[str]]:
    """Return the conversations with their expectations, as far as they can be written, and notes."""
    notes: dict[str, None] = {}
    completed: list[ExportedConversation] = []
    for each in conversations:
        expected = expectations.expected.get((each.file, each.scenario))
        if expected is not None:
            expected, left_out = writable(expected, len(each.conversation.turns), form)
            notes |= dict.fromkeys(f"{each.scenario}: {note}" for note in left_out)
        completed.append(replace(each, expected=expected))
    return tuple(completed), list(notes)


def writable(expected: Scenario, turns: int, form: ExportFormat) -> tuple[Scenario | None, tuple[str, ...]]:
    """Return a scenario with the expectations that a form can write of it, and why others are left out.

    The scenario is None if none is left.

    Args:
        turns: how many turns the conversation had.
    """
    expected, notes = _about_conversation(expected, turns)

    def is_writable(key: str, value: Any) -> bool:
        try:
            form.written(value)
        except ValueError as error:
            notes.append(f"{key} is left out: {error}")
            return False
        return True

    def kept(key: str, values: Iterable[Any]) -> tuple[Any, ...]:
        return tuple(value for at, value in enumerate(values) if is_writable(f"{key}[{at}]", value))

    of_turns: list[ScriptedTurn] = []
    for at, turn in enumerate(expected.turns):
        if form.of_cases and (turn.trajectory or turn.expect):
            notes.append(f"what turns[{at}] must hold is left out: a case has no place for it")
            turn = ScriptedTurn(turn.user_message)
        expect = turn.expect if turn.expect and is_writable(f"turns[{at}].expect", turn.expect) else None
        trajectory = kept(f"turns[{at}].trajectory", turn.trajectory)
        of_turns.append(ScriptedTurn(turn.user_message, trajectory, expect))
    state = expected.final_session_state
    if state and form.of_cases:
        notes.append("final_session_state is left out: a case has a key of its own for it")
    has_state = bool(state) and not form.of_cases and is_writable("final_session_state", state)
    trajectory, said = kept("trajectory", expected.trajectory), kept("expect", expected.expect)
    if not (trajectory or said or has_state or any(each.trajectory or each.expect for each in of_turns)):
        return None, (*notes, "says nothing that can be written: the same calls are expected")
    state = state if has_state else None
    found = replace(expected, turns=tuple(of_turns), trajectory=trajectory, expect=said)
    return replace(found, final_session_state=state), tuple(notes)


def _about_conversation(expected: Scenario, turns: int) -> tuple[Scenario, list[str]]:
    """Return a scenario without expectations that are about more than its calls and replies, and notes."""
    notes = [
        f"{key} is left out: {_UNCHANGING}" for key in ("final_state", "check") if getattr(expected, key)
    ]
    thresholds = {key: value for key, value in expected.thresholds.items() if key in TRAJECTORY_METRICS}
    if others := [key for key in expected.thresholds if key not in thresholds]:
        notes.append(f"thresholds ({', '.join(others)}) is left out: {_OTHERS}")
    said = tuple(each for each in expected.expect if each.in_turn is None or -turns <= each.in_turn < turns)
    if len(said) < len(expected.expect):
        notes.append(f"expect in a later turn is left out: the conversation had {count(turns, 'turn')}")
    return replace(expected, expect=said, thresholds=thresholds), notes


EVALSET = ExportFormat(endings=(".evalset.json", ".test.json"), make=_evaluation_set, of_cases=True)
SCENARIO = ExportFormat(endings=(".sim.py",), make=partial(_script, export_script), written=value_of)
YAML = ExportFormat(endings=DATA_ENDINGS, make=partial(_script, export_data))
_MAX_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedConversation:
    """A conversation of an earlier run, with the names that identify it."""

    scenario: str
    conversation: Conversation
    agent: str
    passed: bool
    criteria: int = 0  # number of criteria by which it was judged
    file: str = ""  # the scenario file or evaluation set, relative to the folder of the configuration
    eval_id: str = ""  # for a case of an evaluation set
    expected: Scenario | None = None  # whose expectations it gets; None: the same calls


@dataclass(frozen=True, slots=True)
class EarlierResults:
    """The content of a results.json."""

    path: Path
    started: float  # start in seconds since 1970; 0 if unknown
    conversations: tuple[ExportedConversation, ...]
    hidden: str = ""  # how many values that look like credentials are hidden; "" if none is


@dataclass(frozen=True, slots=True)
class Selection:
    """The conversations to export, and notes for the user."""

    conversations: tuple[ExportedConversation, ...]
    notes: tuple[str, ...]


def read_earlier(path: Path) -> EarlierResults:
    """Read the conversations of a results.json. Raises UsageError."""
    run, hide = read_results(path), CredentialFilter()
    conversations = tuple(
        ExportedConversation(
            scenario=scenario.name,
            agent=scenario.agent,
            conversation=hide(usable(result.conversation)),
            passed=conversation_passed(result),
            criteria=len(result.criteria),
            file=scenario.file,
            eval_id=scenario.case.eval_id if scenario.case else "",
        )
        for scenario in run.scenarios
        for result in scenario.conversations
    )
    try:
        started = datetime.fromisoformat(run.started_at).timestamp()
    except (ValueError, OverflowError, OSError):
        started = 0.0
    return EarlierResults(path, started, conversations, hide.note)


def select(earlier: EarlierResults, scenarios: Sequence[str], ids: Sequence[str]) -> Selection:
    """Return the finished conversations that match the filters; () is no filter. Raises UsageError."""
    if not earlier.conversations:
        raise UsageError(f"{earlier.path} contains no conversation; run the scenarios first: agentest run")
    _check_filters(earlier, scenarios, ids)
    chosen = [
        each
        for each in earlier.conversations
        if (not scenarios or matches_name(each.scenario, scenarios))
        and (not ids or each.conversation.conversation_id in ids)
    ]
    if not chosen:
        raise UsageError(
            f"{earlier.path} contains no conversation that fits both --scenario and --conversation"
        )
    finished = [each for each in chosen if missing(each.conversation) is None]
    if not finished:
        raise UsageError(
            f"{earlier.path}: no conversation is left to export\n"
            + "\n".join(_left_out_notes(chosen, len(chosen)))
        )
    hidden = [earlier.hidden] if earlier.hidden else []
    notes = (*hidden, *_left_out_notes(chosen, _MAX_SHOWN), *_content_notes(finished))
    return Selection(tuple(finished), notes)


def _content_notes(finished: Sequence[ExportedConversation]) -> Iterator[str]:
    if ids := [each.conversation.conversation_id for each in finished if not each.passed]:
        more = f" and {len(ids) - _MAX_SHOWN} more" if len(ids) > _MAX_SHOWN else ""
        yield (
            "these did not pass in their run; make sure that they show what the agent should do: "
            f"{', '.join(ids[:_MAX_SHOWN])}{more}"
        )
    # Exported scenarios run without a model.
    for name, criteria in {each.scenario: each.criteria for each in finished if each.criteria}.items():
        yield f"{name}: its {count(criteria, 'criterion', 'criteria')} and any expected outcome are left out"
    calls: Counter[str] = Counter()
    for each in finished:
        calls[each.scenario] += len(each.conversation.user_calls)
    for name, made in calls.items():
        if made:
            what = f"{count(made, 'call')} of the simulated user's own tools"
            yield f"{name}: {what} left out: a script has none"


def _check_filters(earlier: EarlierResults, scenarios: Sequence[str], ids: Sequence[str]) -> None:
    names = {each.scenario for each in earlier.conversations}
    for text in scenarios:
        if not any(matches_name(name, (text,)) for name in names):
            raise UsageError(
                f"--scenario: {earlier.path} contains no conversation of a scenario with "
                f"{text!r} in its name; "
                f"{did_you_mean(text, names)}"
            )
    known = {each.conversation.conversation_id for each in earlier.conversations}
    for wanted in ids:
        if wanted not in known:
            raise UsageError(
                f"--conversation: {earlier.path} contains no conversation {wanted!r}; "
                f"{did_you_mean(wanted, known)}"
            )


def _left_out_notes(chosen: Sequence[ExportedConversation], limit: int) -> list[str]:
    notes = [
        f"left out {each.conversation.conversation_id}, {why}"
        for each in chosen
        if (why := missing(each.conversation))
    ]
    return notes if len(notes) <= limit else [*notes[:limit], f"left out {len(notes) - limit} more"]
