"""`agentest export`: write conversations of a results.json as an evaluation set or a scenario file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

from agentest.cli.stored_runs import only_named
from agentest.domain.metrics import TRAJECTORY_METRICS
from agentest.domain.reasons import conversation_passed
from agentest.domain.transcript import Conversation
from agentest.plugin import PLUGINS
from agentest.plugins.adk.cases import recorded_case
from agentest.plugins.adk.formats.eval_set import CAMEL_CASE, AgentestKeys, EvalSet, eval_set_json
from agentest.plugins.adk.formats.set_reader import read_eval_set
from agentest.plugins.authoring.scenario_files import as_data, export_data
from agentest.scenarios.discovery import DATA_ENDINGS, discover_file
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
from agentest.support.text import count, did_you_mean, first_names

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
    started: float  # when their run began, in seconds since 1970; 0 if unknown
    conversations: tuple[ExportedConversation, ...]
    notes: tuple[str, ...] = ()  # notes for the user about the conversations
    output: Path | None = None  # where the content will be written
    camel_case: bool = False

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
    earlier = replace(read_earlier(path, scenarios), output=output, camel_case=camel_case)
    task = select(earlier, ids)
    made = chosen.make(with_expectations(task, chosen, root) if expect == "scenario" else task)
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


def with_expectations(task: ExportTask, form: ExportFormat, root: Path) -> ExportTask:
    """Return conversations with what their scenarios expect, as far as it can be written.

    Expectations are in the run's scenario files, which are imported, and in its evaluation sets.
    """
    files = _RunFiles(root, task.started)
    notes: dict[str, None] = {}
    completed: list[ExportedConversation] = []
    for each in task.conversations:
        expected, left_out = None, list[str]()
        try:
            expected, left_out = writable(files.expected(each), len(each.conversation.turns), form)
        except UsageError as error:
            left_out.append(f"{error}; the same calls are expected instead")
        notes |= dict.fromkeys(f"{each.scenario}: {note}" for note in left_out)
        completed.append(replace(each, expected=expected))
    if form.of_cases and any(each.expected for each in completed):
        notes[_COMPARED_BY_CRITERIA] = None
    return replace(task, conversations=tuple(completed), notes=(*task.notes, *notes, *files.notes))


class _RunFiles:
    """The files of a run, each read once. `notes` lists files that have changed since."""

    def __init__(self, root: Path, started: float) -> None:
        self._root = root
        self._started = started
        self._imports = Imports()
        self._scenarios: dict[str, Mapping[str, Scenario]] = {}
        """File → its scenarios by name, or its cases by id."""
        self.notes: list[str] = []

    def expected(self, of: ExportedConversation) -> Scenario:
        """Return the scenario or case of a conversation. Raises UsageError if it is there no more."""
        if of.file not in self._scenarios:
            path = self._root / of.file
            if not path.is_file():
                raise UsageError(f"{of.file} is not there any more")
            if path.stat().st_mtime > self._started > 0:
                self.notes.append(
                    f"{of.file} was changed after the run began: its current content is written"
                )
            self._scenarios[of.file] = self._cases(of.file) if of.eval_id else self._defined(of.file)
        found = self._scenarios[of.file].get(of.eval_id or of.scenario)
        if found is None:
            what = f"case {of.eval_id!r}" if of.eval_id else "scenario of that name"
            raise UsageError(f"{of.file} has no {what} any more")
        if found.refused:
            raise UsageError(f"the scenario cannot be loaded: {found.refused}")
        return found

    def _defined(self, file: str) -> Mapping[str, Scenario]:
        discovered = discover_file(self._root / file, self._imports, root=self._root)
        if discovered.broken:
            raise UsageError(f"{file} cannot be loaded: {discovered.broken[0].message}")
        return {scenario.name: scenario for scenario in discovered.scenarios}

    def _cases(self, file: str) -> Mapping[str, Scenario]:
        cases = read_eval_set(self._root / file).eval_set.eval_cases
        own = {case.eval_id: (case.agentest or AgentestKeys()).expectations for case in cases}
        return {id: Scenario(id, file, 0, **expectations) for id, expectations in own.items()}


def writable(expected: Scenario, turns: int, form: ExportFormat) -> tuple[Scenario | None, list[str]]:
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
        return None, [*notes, "says nothing that can be written: the same calls are expected"]
    state = state if has_state else None
    found = replace(expected, turns=tuple(of_turns), trajectory=trajectory, expect=said)
    return replace(found, final_session_state=state), notes


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


def read_earlier(path: Path, scenarios: Sequence[str] = ()) -> ExportTask:
    """Read the conversations of a results.json, of the scenarios that are named. Raises UsageError."""
    run, hide = only_named(read_results(path), scenarios, path), CredentialFilter()
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
    if not conversations:
        raise UsageError(f"{path} contains no conversation; run the scenarios first: agentest run")
    try:
        started = datetime.fromisoformat(run.started_at).timestamp()
    except (ValueError, OverflowError, OSError):
        started = 0.0
    notes = tuple(filter(None, [hide.note]))
    return ExportTask(path=path, started=started, conversations=conversations, notes=notes)


def select(task: ExportTask, ids: Sequence[str]) -> ExportTask:
    """Return the finished conversations, of those with one of the ids if any is given. Raises UsageError."""
    known = {each.conversation.conversation_id for each in task.conversations}
    if unknown := next((each for each in ids if each not in known), None):
        problem = f"contains no conversation {unknown!r} of these scenarios; {did_you_mean(unknown, known)}"
        raise UsageError(f"--conversation: {task.path} {problem}")
    chosen = [each for each in task.conversations if not ids or each.conversation.conversation_id in ids]
    finished = [each for each in chosen if missing(each.conversation) is None]
    if not finished:
        reasons = "\n".join(_left_out_notes(chosen, len(chosen)))
        raise UsageError(f"{task.path}: no conversation is left to export\n{reasons}")
    notes = (*task.notes, *_left_out_notes(chosen, _MAX_SHOWN), *_content_notes(finished))
    return replace(task, conversations=tuple(finished), notes=notes)


def _content_notes(finished: Sequence[ExportedConversation]) -> Iterator[str]:
    if ids := [each.conversation.conversation_id for each in finished if not each.passed]:
        yield (
            "these did not pass in their run; make sure that they show what the agent should do: "
            f"{first_names(ids, _MAX_SHOWN)}"
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


def _left_out_notes(chosen: Sequence[ExportedConversation], limit: int) -> list[str]:
    notes = [
        f"left out {each.conversation.conversation_id}, {why}"
        for each in chosen
        if (why := missing(each.conversation))
    ]
    return notes if len(notes) <= limit else [*notes[:limit], f"left out {len(notes) - limit} more"]
