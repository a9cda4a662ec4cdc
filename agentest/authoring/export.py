"""`agentest export`: write conversations of a results.json as an evaluation set or a scenario file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from agentest.adk.formats.eval_set import AgentestKeys
from agentest.adk.formats.set_reader import read_eval_set
from agentest.authoring.export_selection import (
    EarlierResults,
    ExportedConversation,
    Selection,
    read_earlier,
    select,
)
from agentest.domain.metrics import TRAJECTORY_METRICS
from agentest.scenarios import source_code
from agentest.scenarios.discovery import discover_file
from agentest.scenarios.expectations import Expect, Saying
from agentest.scenarios.model import Scenario
from agentest.scenarios.serialization import as_data
from agentest.scenarios.source_code import ExportedExpectations
from agentest.scenarios.trajectory import Trajectory
from agentest.support.errors import UsageError
from agentest.support.importing import Imports
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import count

Form = Literal["evalset", "scenario"]
Expecting = Literal["calls", "scenario"]
_ENDINGS = {"evalset": (".evalset.json", ".test.json"), "scenario": (".sim.py",)}
_SET_ID = "exported"
_COMPARED_BY_CRITERIA = (
    "the cases hold the calls and replies that were, too: name in a test_config.json beside them which "
    "criteria compare with these"
)


@dataclass(frozen=True, slots=True)
class Exported:
    """The content of an exported file, its description, and notes for the user."""

    content: bytes
    summary: str
    notes: tuple[str, ...]


def export(
    path: Path,
    form: Form,
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
    if camel_case and form != "evalset":
        raise UsageError("--camel-case is about evaluation sets: use it with --to evalset")
    earlier = read_earlier(path)
    selection = select(earlier, scenarios, ids)
    if expect == "scenario":
        selection = _with_scenario_expectations(earlier, selection, form, root)
    if form == "evalset":
        made = _evaluation_set(earlier, selection, output, camel_case)
    else:
        made = _script(earlier, selection)
    ending = _ENDINGS[form]
    if output and not output.name.endswith(ending):
        note = f"{output}: is found in a folder only when its name ends in {' or '.join(ending)}"
        return replace(made, notes=(*made.notes, note))
    return made


def _with_scenario_expectations(
    earlier: EarlierResults, selection: Selection, form: Form, root: Path
) -> Selection:
    """Replace the expectations of conversations with those of their scenario files."""
    expectations = find(selection.conversations, root, earlier.started)
    conversations, notes = with_expectations(selection.conversations, expectations, form)
    if any(each.case_keys for each in conversations):
        notes.append(_COMPARED_BY_CRITERIA)
    return Selection(conversations, (*selection.notes, *expectations.notes, *notes))


def write(exported: Exported, output: Path, *, force: bool) -> None:
    """Write the file. Raises UsageError if it exists, unless `force` is set."""
    from agentest.support.files import write_atomically

    if output.exists() and not force:
        raise UsageError(f"--output: {output} exists already; --force replaces it")
    try:
        write_atomically(output, exported.content)
    except OSError as error:
        raise UsageError(f"--output: {output} cannot be written: {error.strerror}") from None


def _evaluation_set(
    earlier: EarlierResults, selection: Selection, output: Path | None, camel_case: bool
) -> Exported:
    from agentest.adk.formats.eval_set import CAMEL_CASE, eval_set_json
    from agentest.authoring.export_selection import evaluation_set

    try:
        made = evaluation_set(selection.conversations, _set_id(output), earlier.started)
        content = eval_set_json(made, camel_case=camel_case)
    except (ValueError, RecursionError) as error:
        raise _unwritable_error(earlier, error) from None
    notes = (*selection.notes, *_session_notes(selection), *[CAMEL_CASE] * camel_case)
    return Exported(content, count(len(selection.conversations), "case"), notes)


def _session_notes(selection: Selection) -> Iterator[str]:
    """Yield a note about initial states that cannot be exported, because a session needs more data."""
    for each in selection.conversations:
        if each.conversation.initial_state:
            keys = ", ".join(each.conversation.initial_state)
            yield (
                f"{each.conversation.conversation_id}: its session began with a state ({keys}), which is "
                "left out; write it into the case: session_input with app_name, user_id and state"
            )


def _set_id(output: Path | None) -> str:
    """Return the file name without its suffix, as ADK names its files."""
    return output.name.split(".")[0] or _SET_ID if output else _SET_ID


def _script(earlier: EarlierResults, selection: Selection) -> Exported:
    from agentest.scenarios.source_code import export_script, has_nameless_call

    exportable = tuple(each for each in selection.conversations if not has_nameless_call(each.conversation))
    if not exportable:
        raise UsageError(f"{earlier.path}: the agent called tools without a name, which no mock can answer")
    notes = [
        f"left out {each.conversation.conversation_id}: the agent called a tool without a name"
        for each in selection.conversations
        if each not in exportable
    ]
    try:
        content = export_script(exportable).encode()
    except (ValueError, RecursionError) as error:
        raise _unwritable_error(earlier, error) from None
    return Exported(content, count(len(exportable), "scenario"), (*selection.notes, *notes))


def _unwritable_error(earlier: EarlierResults, error: Exception) -> UsageError:
    """Return the error for values that no run writes: infinite numbers and unpaired surrogates."""
    return UsageError(
        f"{earlier.path} holds a value that cannot be exported: {error}; leave its conversation out, "
        "with --scenario or --conversation"
    )


_T = TypeVar("_T")
_UNCHANGING = "exported tools answer as they did, and change no state"
_OTHERS = "they are not about one conversation, or a judge's"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnExpectations:
    """Expectations after one message of a script."""

    trajectory: tuple[Trajectory, ...] = ()
    expect: Expect | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioExpectations:
    """The expectations of a scenario or case that can apply to an exported conversation.

    Attributes:
        turns: expectations after each message of a script.
        left_out: options that cannot be exported → why.
    """

    trajectory: tuple[Trajectory, ...] = ()
    expect: tuple[Saying, ...] = ()
    final_session_state: Mapping[str, Any] | None = None
    thresholds: Mapping[str, float] = field(default_factory=dict)
    turns: tuple[TurnExpectations, ...] = ()
    date: str | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SourceExpectations:
    """Expectations by file and scenario name, and notes for the user."""

    expected: Mapping[tuple[str, str], ScenarioExpectations]
    notes: tuple[str, ...]


def find(conversations: Iterable[ExportedConversation], root: Path, started: float) -> SourceExpectations:
    """Find the expectations in a run's scenario files, which are imported, and in its evaluation sets.

    Args:
        root: the folder to which files in results are relative.
        started: start of the run, in seconds since 1970.
    """
    sources = dict.fromkeys((each.file, each.scenario, each.eval_id) for each in conversations)
    files = _RunFiles(root, started)
    expected: dict[tuple[str, str], ScenarioExpectations] = {}
    notes: list[str] = []
    for file, name, eval_id in sources:
        try:
            expected[file, name] = files.case(file, eval_id) if eval_id else files.scenario(file, name)
        except UsageError as error:
            notes.append(f"{name}: {error}; the same calls are expected in place of what it says")
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

    def scenario(self, file: str, name: str) -> ScenarioExpectations:
        if file not in self._scenarios:
            discovered = discover_file(self._path(file), self._imports, root=self._root)
            if discovered.broken:
                raise UsageError(f"{file} cannot be loaded: {discovered.broken[0].message}")
            self._scenarios[file] = discovered.scenarios
        for scenario in self._scenarios[file]:
            if scenario.name == name and scenario.refused:
                raise UsageError(f"the scenario cannot be loaded: {scenario.refused}")
            if scenario.name == name:
                return _of_scenario(scenario)
        raise UsageError(f"{file} has no scenario of that name any more")

    def case(self, file: str, eval_id: str) -> ScenarioExpectations:
        if file not in self._cases:
            cases = read_eval_set(self._path(file)).eval_set.eval_cases
            self._cases[file] = {case.eval_id: case.agentest for case in cases}
        if eval_id not in self._cases[file]:
            raise UsageError(f"{file} has no case {eval_id!r} any more")
        return _of_case(self._cases[file][eval_id] or AgentestKeys())

    def _path(self, file: str) -> Path:
        path = self._root / file
        if not path.is_file():
            raise UsageError(f"{file} is not there any more")
        if path.stat().st_mtime > self._started > 0:
            self.notes.append(f"{file} was changed after the run began: what it says now is written")
        return path


def _of_scenario(scenario: Scenario) -> ScenarioExpectations:
    reasons = {"final_state": _UNCHANGING, "check": _UNCHANGING}
    return ScenarioExpectations(
        trajectory=scenario.trajectory,
        expect=scenario.expect,
        final_session_state=scenario.final_session_state,
        thresholds=_trajectory_thresholds(scenario.thresholds),
        turns=tuple(
            TurnExpectations(trajectory=turn.trajectory, expect=turn.expect) for turn in scenario.turns
        ),
        date=scenario.date,
        left_out={
            **{name: why for name, why in reasons.items() if getattr(scenario, name)},
            **_other_thresholds(scenario.thresholds),
        },
    )


def _of_case(keys: AgentestKeys) -> ScenarioExpectations:
    expected = keys.expectations
    thresholds = expected.get("thresholds", {})
    unchanging = {"final_state": _UNCHANGING} if expected.get("final_state") else {}
    return ScenarioExpectations(
        trajectory=expected.get("trajectory", ()),
        expect=expected.get("expect", ()),
        thresholds=_trajectory_thresholds(thresholds),
        date=expected.get("date"),
        left_out={**unchanging, **_other_thresholds(thresholds)},
    )


def _trajectory_thresholds(thresholds: Mapping[str, float]) -> dict[str, float]:
    return {name: least for name, least in thresholds.items() if name in TRAJECTORY_METRICS}


def _other_thresholds(thresholds: Mapping[str, float]) -> dict[str, str]:
    others = ", ".join(name for name in thresholds if name not in _trajectory_thresholds(thresholds))
    return {f"thresholds ({others})": _OTHERS} if others else {}


class ExpectationWriter:
    """Collects what is written of a scenario. Values that cannot be written are left out, with a note."""

    def __init__(self, name: str, expected: ScenarioExpectations) -> None:
        self.name = name
        self.expected = expected
        self.notes = [f"{name}: {key} is left out: {why}" for key, why in expected.left_out.items()]

    def note(self, text: str) -> None:
        self.notes.append(f"{self.name}: {text}")

    def part(self, key: str, value: _T, write: Callable[[_T], Any]) -> Any:
        """Return the written form of a value; None if there is none."""
        try:
            return write(value)
        except ValueError as error:
            self.note(f"{key} is left out: {error}")
            return None

    def parts(self, key: str, values: Sequence[_T], write: Callable[[_T], Any]) -> tuple[_T, ...]:
        """Return the written form of all values that have one."""
        writable = [self.part(f"{key}[{n}]", value, write) is not None for n, value in enumerate(values)]
        return tuple(value for value, ok in zip(values, writable, strict=True) if ok)


def with_expectations(
    conversations: Sequence[ExportedConversation],
    expectations: SourceExpectations,
    form: Literal["evalset", "scenario"],
) -> tuple[tuple[ExportedConversation, ...], list[str]]:
    """Return the conversations with their expectations, as far as they can be written, and notes."""
    notes: list[str] = []
    completed: list[ExportedConversation] = []
    for each in conversations:
        expected = expectations.expected.get((each.file, each.scenario))
        if expected is None:
            completed.append(each)
            continue
        writer = ExpectationWriter(each.scenario, _limited_to_turns(expected, len(each.conversation.turns)))
        if form == "scenario":
            each = replace(each, words=as_source(writer))
        else:
            each = replace(each, case_keys=as_keys(writer))
        if each.words is None and each.case_keys is None:
            writer.note("says nothing that can be written: the same calls are expected")
        completed.append(each)
        notes += [note for note in writer.notes if note not in notes]
    return tuple(completed), notes


def _limited_to_turns(expected: ScenarioExpectations, turns: int) -> ScenarioExpectations:
    """Limit the expectations to the conversation's number of turns: a simulated one may have had others."""
    fitting = tuple(
        saying for saying in expected.expect if saying.in_turn is None or -turns <= saying.in_turn < turns
    )
    if len(fitting) == len(expected.expect):
        return expected
    why = f"the conversation had {count(turns, 'turn')}"
    return replace(expected, expect=fitting, left_out={**expected.left_out, "expect in a later turn": why})


def as_source(writer: ExpectationWriter) -> ExportedExpectations | None:
    """Return a scenario's expectations as source code; None if nothing can be written."""
    expected = writer.expected
    turns = tuple(
        dict(_sources(each.trajectory, each.expect, writer, f"turns[{n}]."))
        for n, each in enumerate(expected.turns)
    )
    keys = dict(_sources(expected.trajectory, None, writer, ""))
    if expect := writer.parts("expect", expected.expect, lambda saying: source_code.sayings_source([saying])):
        keys["expect"] = source_code.sayings_source(expect)
    if expected.final_session_state is not None:
        state = writer.part("final_session_state", expected.final_session_state, source_code.value_of)
        keys |= {} if state is None else {"final_session_state": state}
    if not (keys or any(turns)):
        return None
    if expected.thresholds:
        keys["thresholds"] = source_code.value_of(expected.thresholds)
    if expected.date:
        keys["date"] = source_code.value_of(expected.date)
    return ExportedExpectations(keys=keys, turns=turns)


def as_keys(writer: ExpectationWriter) -> AgentestKeys | None:
    """Return a scenario's expectations as a case's key `agentest`; None if nothing can be written."""
    expected = writer.expected
    for n, turn in enumerate(expected.turns):
        if turn.trajectory or turn.expect:
            writer.note(f"what turns[{n}] must hold is left out: a case has no place for it")
    if expected.final_session_state:
        writer.note("final_session_state is left out: a case has a key of its own for it")
    trajectory = [as_data(part) for part in writer.parts("trajectory", expected.trajectory, as_data)]
    expect = [as_data(part) for part in writer.parts("expect", expected.expect, as_data)]
    if not (trajectory or expect):
        return None
    return AgentestKeys(
        trajectory=_single_or_list(trajectory),
        expect=_single_or_list(expect),
        thresholds=dict(expected.thresholds) or None,
        date=expected.date,
    )


def _single_or_list(values: Sequence[Any]) -> Any:
    """Return a single value as it is, several as a list; None if there is none."""
    return (values[0] if len(values) == 1 else list(values)) if values else None


def _sources(
    trajectory: Sequence[Trajectory], expect: Expect | None, writer: ExpectationWriter, at: str
) -> Iterator[tuple[str, Any]]:
    if parts := writer.parts(f"{at}trajectory", trajectory, source_code.trajectory):
        yield "trajectory", source_code.trajectories(parts)
    if expect is not None and (written := writer.part(f"{at}expect", expect, source_code.expect)) is not None:
        yield "expect", written
