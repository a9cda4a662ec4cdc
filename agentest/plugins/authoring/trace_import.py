"""`agentest import` of traces: write the sessions that differ as scenarios with recorded mocks.

With a model they are simulated users with a goal, otherwise scripts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from agentest.domain.end_reason import Ending
from agentest.domain.tool_verbs import verb_effect
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import Blame, Conversation, Failure, ToolCall, Turn, UnfinishedTurn
from agentest.plugins.authoring.personal_data import PersonalData
from agentest.plugins.authoring.scenario_files import export_data
from agentest.plugins.authoring.trace_messages import Item
from agentest.plugins.authoring.trace_sessions import (
    ReadTraces,
    RecordedSession,
    files_of,
    read_traces,
    speakers,
)
from agentest.scenarios.discovery import DATA_ENDINGS, discover_file
from agentest.scenarios.model import Scenario
from agentest.scenarios.source_code import export_script, scripted_scenario
from agentest.scenarios.trajectory import ExpectedCall, Trajectory
from agentest.support.errors import UsageError, errors_as
from agentest.support.files import write_for_user
from agentest.support.importing import Imports
from agentest.support.interrupts import run_event_loop
from agentest.support.lazy_dataclasses import dataclass, replace
from agentest.support.text import count, quoted_names, shortened

if TYPE_CHECKING:
    from agentest.models.providers import ModelSpec
    from agentest.plugins.authoring.trace_wording import WordedSession

_NAME_CHARS = 60
_NEW_WORD = 0.05
_ENOUGH_NEW = 1.0
_DOUBTS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportRequest:
    """What to import: rows by templates with placeholders (None: by their columns), or sessions."""

    source: str = ""  # a file of rows, or the name of a Hugging Face dataset
    output: Path | None = None
    name: str | None = None
    turns: tuple[str, ...] = ()
    says: str | None = None
    outcome: str | None = None
    columns: tuple[str, ...] = ()  # `ROLE=COLUMN`, in place of a column that its name suggests
    split: str | None = None  # the split of a dataset, `train` by default
    limit: int | None = None
    force: bool = False
    form: str | None = None
    most: int | None = None  # the most scenarios; None: 20
    redact: tuple[str, ...] = ()
    config: Path | None = None
    model: str | None = None
    offline: bool = False
    scripts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """Which traces become how many scenarios."""

    paths: tuple[Path, ...]
    form: str | None = None
    roles: Mapping[str, str] = field(default_factory=dict)  # speaker → `user` or `assistant`
    output: Path
    most: int = 20
    redact: Mapping[str, str] = field(default_factory=dict)
    """Name → regular expression of further personal data."""
    force: bool = False
    model: ModelSpec | None = None  # words goals and outcomes; None: the sessions become scripts


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportResult:
    """The written files, a summary, and notes for the user."""

    files: tuple[Path, ...]
    summary: str
    notes: tuple[str, ...]
    is_valid: bool  # True if all written scenarios are valid


def check_output(output: Path, others: Sequence[Path] = (), *, force: bool) -> None:
    """Raise UsageError if a run would not find the file, or if it or another file to write exists."""
    if not output.name.endswith((".sim.py", *DATA_ENDINGS)):
        raise UsageError(f"--output: {output} would not be found; its name must end in .sim.yaml or .sim.py")
    for path in (output, *others):
        if path.exists() and not force:
            raise UsageError(f"{path} exists already; --force replaces it")


def invalid_scenarios(output: Path) -> tuple[int, int, list[str]]:
    """Return how many scenarios a written file has, how many of them are invalid, and their problems."""
    found = discover_file(output.resolve(), Imports())
    invalid = sum(bool(each.refused) for each in found.scenarios) + len(found.broken)
    return len(found.scenarios), invalid, [message for _, _, message in found.problems]


class _Session(NamedTuple):
    recorded: RecordedSession
    turns: tuple[Turn, ...]
    without_result: int
    left_out: Counter[str]  # what its scenario cannot have → how often it occurs
    unread: Mapping[str, str]  # what of it can have calls that were not read → what to do


def import_traces(request: TraceRequest) -> ImportResult:
    """Write scenarios for the sessions of traces. Raises UsageError before anything is written."""
    output = request.output
    check_output(output, force=request.force)
    with errors_as(UsageError, "--redact: is not a regular expression: ", re.error):
        personal = PersonalData(request.redact)
    found = read_traces(request.paths, request.form, request.roles)
    sessions = [each for each in _sessions(found) if each.turns]
    if not sessions:
        raise UsageError("; ".join(["no session with a user's message was found", *_notes(found, [], 0)]))
    chosen = different(sessions, request.most)
    for before, turn in (pair for each in sessions for pair in pairwise(each.turns)):
        personal.learn_answer(before.agent_message, turn.user_message)
    for turn in (turn for each in sessions for turn in each.turns):
        called = [(call.args, call.result) for call in turn.tool_calls]
        personal.learn([turn.user_message, turn.agent_message, called])
    is_data = output.name.endswith(DATA_ENDINGS)
    hidden = [tuple(_hidden(turn, personal) for turn in each.turns) for each in chosen]
    worded, wording_notes = _worded(hidden, request.model)
    source = (export_data if is_data else export_script)(list(_scenarios(chosen, hidden, worded, personal)))
    if any(worded):
        from agentest.plugins.authoring.trace_wording import with_citations

        source = with_citations(source, [each.citations() if each else {} for each in worded])
    write_for_user(output, source.encode())
    notes = [*_notes(found, sessions, len(chosen)), *wording_notes, *_privacy_notes(personal, hidden)]
    _, invalid, problems = invalid_scenarios(output)
    summary = f"{count(len(chosen), 'scenario')} from {count(len(sessions), 'session')}"
    return ImportResult(files=(output,), summary=summary, notes=(*notes, *problems), is_valid=not invalid)


def _privacy_notes(personal: PersonalData, hidden: Sequence[Sequence[Turn]]) -> Iterator[str]:
    if personal.counts:
        yield f"replaced {', '.join(personal.counted())}"
    turns = [turn for each in hidden for turn in each]
    shown = [(turn.user_message, [(call.args, call.result) for call in turn.tool_calls]) for turn in turns]
    if doubts := list(dict.fromkeys(personal.doubts(shown))):
        more = f" and {len(doubts) - _DOUBTS} more" if len(doubts) > _DOUBTS else ""
        yield f"perhaps personal, but kept: {quoted_names(doubts[:_DOUBTS])}{more}; --redact REGEX replaces"


def recorded_conversations(
    paths: Sequence[Path], form: str | None, columns: Sequence[str] = ()
) -> tuple[list[Conversation], list[str]]:
    """Return the sessions of traces, an errored one if records are unread, and notes. Raises UsageError."""
    found = read_traces([file for path in paths for file in files_of(path)], form, speakers(columns))
    read = _sessions(found)
    sessions = [each for each in read if each.turns]
    conversations = [finished for each in read if (finished := _finished(each))]
    notes = _notes(found, sessions, None)
    if not sessions or not conversations:
        raise UsageError("; ".join(["no session with a user's message and a reply was found", *notes]))
    last = [(each.turns[-1], each.recorded.failed) for each in sessions]
    if cut := sum(not (turn.agent_message or turn.tool_calls or failed) for turn, failed in last):
        notes.append(f"{count(cut, 'session')} ended without a reply; the last message is not judged")
    if unread := [*_unread_records(found)]:
        why = f"sessions or calls can be missing: {'; '.join(unread)}; delete or repair what is not a session"
        conversations.append(Conversation("unread", (), Ending.ERROR, Failure(Blame.INTERNAL, why)))
    return conversations, notes


def _finished(session: _Session) -> Conversation | None:
    id, failed, turns = session.recorded.id, session.recorded.failed, session.turns
    cut = [each for each in turns[-1:] if not each.agent_message and (failed or not each.tool_calls)]
    read = turns[: len(turns) - len(cut)]
    if cut and failed:
        problem = Failure(Blame.AGENT, "the agent did not reply, and the trace of the session has an error")
        unfinished = UnfinishedTurn(cut[0].turn_index, cut[0].user_message, cut[0].tool_calls)
        return Conversation(id, read, Ending.ERROR, problem, unfinished, session_id=id)
    if session.unread:
        parts = [f"{session.left_out[what]} × {what} ({todo})" for what, todo in session.unread.items()]
        why = f"session {id} was not read completely, so calls can be missing: {'; '.join(parts)}"
        return Conversation(id, turns, Ending.ERROR, Failure(Blame.INTERNAL, why), session_id=id)
    return Conversation(id, read, Ending.RECORDED, session_id=id) if read else None


def _notes(found: ReadTraces, sessions: Sequence[_Session], chosen: int | None) -> list[str]:
    """Return what was read and left out. `chosen`: number of sessions that become scenarios; None: none."""
    notes = []
    if forms := +found.forms:  # without those that were counted 0 times
        notes.append("read " + ", ".join(f"{n} {form}" for form, n in forms.items()) + " records")
    notes += _unread_records(found)
    if found.silent_spans:
        notes.append(
            f"{count(found.silent_spans, 'model request')} had no messages, perhaps because they were not "
            "recorded (OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT) or are in logs: import those, too"
        )
    if found.passed_over:
        kinds = ", ".join(f"{n} {kind}" for kind, n in found.passed_over.items())
        notes.append(f"passed over records without messages of their own: {kinds}")
    if found.words:
        words = ", ".join(f"{word!r} as the {role}" for word, role in found.words)
        notes.append(f"read {words}" + ("" if chosen is None else "; --column ROLE=WORD changes one"))
    for what, n in found.left_out.items():
        notes.append(f"left out {n} × {what}")
    unanswered = sum(not each.turns[-1].agent_message for each in sessions)
    if unanswered and chosen is not None:
        notes.append(f"{count(unanswered, 'session')} ended without a reply; the last message is sent, too")
    if (silent := len(found.sessions) - len(sessions)) and sessions:
        notes.append(f"left out {count(silent, 'session')} without a user's message")
    if alike := 0 if chosen is None else len(sessions) - chosen:
        notes.append(f"left out {count(alike, 'session')} like the others; --count N keeps more")
    if lost := sum(each.without_result for each in sessions):
        mock = "" if chosen is None else ": its mock answers null"
        notes.append(f"{count(lost, 'call')} had no recorded result{mock}")
    return notes


def _unread_records(found: ReadTraces) -> Iterator[str]:
    if found.unknown:
        examples = "; ".join(
            f"{n} with {keys} ({found.examples[keys]})" for keys, n in found.unknown.most_common(2)
        )
        yield f"left out {count(found.unknown.total(), 'record')} of unknown form: {examples}"
    if lines := found.broken_lines:
        yield f"left out {count(len(lines), 'broken line')}: {'; '.join(lines[:3])}"


def _sessions(found: ReadTraces) -> list[_Session]:
    made = list(map(_session, found.sessions.values()))
    found.left_out = sum((each.left_out for each in made), Counter())
    return [each for each in made if each.turns or each.unread]


def _session(recorded: RecordedSession) -> _Session:
    steps, left_out, unread = recorded.steps, Counter[str](), dict[str, str]()
    by_id, called = dict[str, list[Any]](), Counter[str]()  # ids may repeat within a session
    left = {key: list(values) for key, values in recorded.results.items()}
    for item in steps:
        if item.kind == "call" and item.text:
            called[item.id] += 1
        elif item.kind == "result" and item.id:
            by_id.setdefault(item.id, [])[max(called[item.id], 1) - 1 :] = [item.value]
        elif item.kind == "result":
            left.setdefault(item.text, []).append(item.value)
    without = 0

    def result_of(call: Item) -> Any:
        nonlocal without
        for results, key in ((by_id, call.id), (left, call.id), (left, call.text)):
            if results.get(key):
                return results[key].pop(0)
        without += 1
        return None

    turns: list[Turn] = []
    texts, replies, calls = list[str](), list[str](), list[ToolCall]()

    def close() -> None:
        if texts:
            turns.append(Turn(len(turns), "\n\n".join(texts), "\n\n".join(replies), tuple(calls)))
            texts.clear()
        elif replies or calls:
            left_out[what := "step of the agent before the user's first message"] += len(replies) + len(calls)
            unread.update({what: "add the user's message that they follow"} if calls else {})
        calls.clear()
        replies.clear()

    for item in steps:
        if item.kind == "user":
            if replies or calls:
                close()
            texts.append(item.text)
        elif item.kind == "assistant":
            replies.append(item.text)
        elif item.kind == "call" and item.text:
            made = ToolCall(item.text, item.value, result_of(item), False, len(turns), seen_by=SeenBy.SPANS)
            calls.append(made)
        elif item.kind != "result":
            left_out[what := item.text or "call without the name of its tool"] += 1
            if todo := "add the name" if item.kind == "call" else item.value:
                unread[what] = todo
    close()
    stray = [f"result of {tool or 'a tool'} without its call" for tool in _stray_results(left, steps)]
    left_out.update(stray)
    unread |= dict.fromkeys(stray, "add the record of the call")
    return _Session(recorded, tuple(turns), without, left_out, unread)


def _stray_results(left: Mapping[str, Sequence[Any]], steps: Sequence[Item]) -> Iterator[str]:
    called = {key for item in steps if item.kind == "call" for key in (item.id, item.text)}
    strays = (item for item in steps if item.kind == "result" and item.id)
    yield from (item.text for item in strays if {item.id, item.text}.isdisjoint(called))
    yield from (key for key, values in left.items() if key not in called for _ in values)


def different(sessions: Sequence[_Session], most: int) -> list[_Session]:
    """Return the sessions that show something new, those that show most first, at most so many."""
    left = [(each, _elements(each), _words(each)) for each in sessions]
    seen: set[str] = set()
    chosen: list[_Session] = []
    while left and len(chosen) < most:
        gains = [len(elements - seen) + _NEW_WORD * len(words - seen) for _, elements, words in left]
        best = max(range(len(left)), key=lambda at: (gains[at], -at))
        if chosen and gains[best] < _ENOUGH_NEW:
            break
        session, elements, words = left.pop(best)
        chosen.append(session)
        seen |= elements | words
    return chosen


def _elements(session: _Session) -> set[str]:
    steps = [
        f"{call.name}({','.join(sorted(call.args) if isinstance(call.args, Mapping) else ())}) "
        f"{_outcome(call.result)}"
        for turn in session.turns
        for call in turn.tool_calls
    ]
    steps.append("failed" if session.recorded.failed else "ended")
    return {" → ".join(steps[at : at + size]) for size in (1, 2, 3) for at in range(len(steps) - size + 1)}


def _outcome(result: Any) -> str:
    if isinstance(result, Mapping) and any(key in result for key in ("error", "errors")):
        return "error"
    return "empty" if result in (None, "", [], {}) else "ok"


def _words(session: _Session) -> set[str]:
    texts = " ".join(turn.user_message for turn in session.turns)
    return {f"word {word}" for word in re.findall(r"[^\W\d_]{4,}", texts.lower())}


def _worded(
    sessions: Sequence[Sequence[Turn]], model: ModelSpec | None
) -> tuple[Sequence[WordedSession | None], list[str]]:
    if model is None:
        return [None] * len(sessions), []
    from agentest.plugins.authoring.trace_wording import word_sessions  # a model's client is needed only here

    found = run_event_loop(word_sessions, sessions, model)
    words = len(sessions) - found.sessions.count(None)
    notes = [f"{model.name} worded {count(words, 'scenario')} in {count(found.usage.calls, 'model call')}"]
    if found.problems:
        stay = count(len(found.problems), "scenario")
        notes.append(f"{stay} stayed a script, as in: {found.problems[0]}")
    return found.sessions, notes


def _scenarios(
    sessions: Sequence[_Session],
    hidden: Sequence[tuple[Turn, ...]],
    worded: Sequence[WordedSession | None],
    personal: PersonalData,
) -> Iterator[Scenario]:
    names: set[str] = set()
    for each, turns, wording in zip(sessions, hidden, worded, strict=True):
        about = wording.name if wording and wording.name.strip() else turns[0].user_message
        name = shortened(" ".join(about.split()), _NAME_CHARS)
        origin = personal.text(f"{Path(each.recorded.file).name}, session {each.recorded.id}")
        numbered = (f"{name} ({origin}{f', {n}' if n > 1 else ''})" for n in range(1, len(sessions) + 1))
        unique = next(each for each in numbered if each not in names)
        names.add(unique)
        calls = () if each.recorded.failed else tuple(_expected(turns))
        expected = Scenario(unique, "", 0, trajectory=(Trajectory("contains", calls),) if calls else ())
        conversation = Conversation(each.recorded.id, turns, Ending.SCRIPT)
        script = scripted_scenario(unique, conversation, expected)
        user = wording.options(failed=each.recorded.failed) if wording else None
        yield replace(script, turns=(), **user) if user else script


def _hidden(turn: Turn, personal: PersonalData) -> Turn:
    calls = tuple(
        ToolCall(call.name, personal.hidden(call.args), personal.hidden(call.result), True, turn.turn_index)
        for call in turn.tool_calls
    )
    return Turn(turn.turn_index, personal.text(turn.user_message), personal.text(turn.agent_message), calls)


def _expected(turns: Sequence[Turn]) -> Iterator[ExpectedCall]:
    calls = [call for turn in turns for call in turn.tool_calls if _outcome(call.result) != "error"]
    writes = [call for call in calls if verb_effect(call.name) == "write"]
    seen: list[tuple[str, Any]] = []
    for call in writes or [call for call in calls if verb_effect(call.name) != "read"]:
        if (call.name, call.args) not in seen:
            seen.append((call.name, call.args))
            yield ExpectedCall(call.name, call.args if isinstance(call.args, Mapping) else None)
