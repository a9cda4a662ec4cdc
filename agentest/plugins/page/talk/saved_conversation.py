"""Save a conversation that a person had: as a script, a case, or a draft of a simulated scenario."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

from agentest.domain.end_reason import Ending
from agentest.domain.messages import Session
from agentest.domain.transcript import Conversation
from agentest.plugins.adk import set_files
from agentest.plugins.adk.cases import recorded_case
from agentest.plugins.adk.formats.eval_set import EvalSet, SessionInput, eval_set_json
from agentest.plugins.adk.formats.set_reader import SUFFIXES, set_name
from agentest.plugins.adk.set_edits import check_set
from agentest.plugins.adk.set_files import ChangedOnDisk, SetContent, open_set
from agentest.plugins.page.talk.talk import PersonConversation, choices
from agentest.runner.plan import slugify
from agentest.runner.prepare import RunRequest, configure
from agentest.scenarios import source_code
from agentest.scenarios.model import Scenario
from agentest.scenarios.python_formatting import literal
from agentest.scenarios.trajectory import ExpectedCall, Trajectory
from agentest.store.codec import CODECS
from agentest.store.reader import usable
from agentest.support.errors import UsageError, errors_as
from agentest.support.files import matches_any, name_problem, patterns, readable, shown_path
from agentest.support.json_text import Json
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.redaction import without_secrets
from agentest.support.text import count, shortened

Kind = Literal["script", "case", "scenario"]
KINDS: tuple[Kind, ...] = ("script", "case", "scenario")
_SCENARIO_SUFFIX = ".sim.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveRequest:
    """The content to save, and its place."""

    kind: Kind
    path: str  # path relative to the folder of the configuration
    name: str  # name of the scenario, or id of the case


def request_named(text: str, scenario: Scenario, root: Path) -> SaveRequest:
    """Return the request of a command line: NAME of a script, or FILE::NAME of a script or a case.

    Without FILE, a script is saved in the file that the page suggests.
    """
    path, _, name = text.rpartition("::")
    if path.endswith(SUFFIXES):
        return SaveRequest(kind="case", path=path, name=name)
    folder = Path(scenario.file).parent if scenario.file.endswith(_SCENARIO_SUFFIX) else root
    file = folder / f"{slugify(name).replace('-', '_')}{_SCENARIO_SUFFIX}"
    return SaveRequest(kind="script", path=path or shown_path(file, root), name=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationToSave:
    """A conversation to save.

    Attributes:
        began: in seconds since 1970.
        notes: notes for the person.
    """

    conversation: Conversation
    scenario: Scenario
    agent: str
    began: float
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedFile:
    """A file before it is written."""

    path: Path
    content: bytes
    preview: str  # the new part of the file
    notes: tuple[str, ...] = ()  # notes for the person
    version: str | None = None  # version of the existing file; None if there is none


def talk_to_save(talk: PersonConversation) -> ConversationToSave:
    """Return a conversation with a person so far, without its open turn and without secrets."""
    conversation = Conversation(talk.id, talk.turns, Ending.SATISFIED)
    return ConversationToSave(
        conversation=without_secrets(conversation, talk.prepared.loaded.redact),
        scenario=talk.unit.scenario,
        agent=talk.unit.agent,
        began=talk.began,
    )


def prepare_file(talk: ConversationToSave, request: SaveRequest, project: RunRequest) -> PreparedFile:
    """Prepare the file. Raises UsageError if the conversation cannot be saved, or not at this path."""
    if not talk.conversation.turns:
        raise UsageError("there is no turn to save yet: the agent has not replied to anything")
    prepare = _case if request.kind == "case" else _scenario
    return prepare(talk, request, free_path(request, project))


def free_path(request: SaveRequest, project: RunRequest) -> Path:
    """Return the file to save in. Raises UsageError if it cannot be used, or if the name is taken.

    For a scenario, this reads the configuration and imports all scenario files.
    """
    name = request.name.strip()
    if not name:
        raise UsageError("give it a name" if request.kind != "case" else "give the case an id")
    if request.kind == "case":
        path = _target_file(request.path, project.root, SUFFIXES, None)
        if path.exists() and name in open_set(set_files.read(path, request.path)).ids:
            raise UsageError(f"{request.path} has a case {name!r} already: choose another id")
        return path
    project = RunRequest(project.root, project.config)  # all its scenarios
    config = configure(project).config
    for each in choices(project).scenarios:
        if each.name == name:
            location = f"{shown_path(each.file, project.root)}:{each.line}"
            raise UsageError(f"there is a scenario {name!r} already ({location}): choose another name")
    path = _target_file(request.path, project.root, (_SCENARIO_SUFFIX,), config.output_dir)
    parts = path.relative_to(project.root.resolve()).parts
    if not matches_any(parts, patterns(config.include)) or matches_any(parts, patterns(config.exclude)):
        raise UsageError(
            f"{request.path}: agentest run would not find it there; `include` of the configuration is "
            f"{', '.join(config.include)}"
        )
    if path.exists():
        raise UsageError(f"{request.path} is there already, and is not overwritten: choose another name")
    return path


def write(planned: PreparedFile, version: str | None) -> None:
    """Write the file, unless it has changed since the preview. Raises UsageError and ChangedOnDisk.

    Args:
        version: the version that the person previewed.
    """
    try:
        set_files.write(SetContent(planned.path, planned.path.name, planned.content), version)
    except ChangedOnDisk as error:
        raise ChangedOnDisk(f"{error}: look at it again, and save then", error.current) from None


def save_talk(talk: PersonConversation, name: str) -> tuple[str, ...]:
    """Save under the name of a command line. Returns notes for the person. Raises UsageError."""
    project = talk.prepared.request
    request = request_named(name, talk.unit.scenario, project.root)
    planned = prepare_file(talk_to_save(talk), request, project)
    write(planned, planned.version)
    command = f"agentest {'eval' if request.kind == 'case' else 'run'} {request.path}"
    return f"the conversation is saved: {command}", *planned.notes


def _scenario(talk: ConversationToSave, request: SaveRequest, path: Path) -> PreparedFile:
    if source_code.has_nameless_call(talk.conversation):
        raise UsageError("the agent called a tool without a name, which no mock can answer")
    state = talk.scenario.session.state if talk.scenario.session else None
    conversation = talk.conversation
    if conversation.initial_state is None and state:
        conversation = replace(conversation, initial_state=state)
    name = request.name.strip()
    source = (
        source_code.export_script([source_code.scripted_scenario(name, conversation)])
        if request.kind == "script"
        else starting_point(name, conversation, talk.scenario)
    )
    with errors_as(UsageError, "the conversation contains a value that cannot be written: "):
        content = source.encode()
    notes = (*talk.notes, *_mock_notes(talk))
    return PreparedFile(path=path, content=content, preview=source, notes=notes)


def _mock_notes(talk: ConversationToSave) -> Iterator[str]:
    calls = talk.conversation.tool_calls
    bypassed = len(calls) - len(source_code.mockable_calls(calls))
    if bypassed:
        yield f"{count(bypassed, 'call')} that the agent answered itself got no mock: none would reach it"
    failed = [call for call in calls if call.error and call.result != {"error": call.error}]
    if failed:
        yield f"{count(len(failed), 'answer')} with a status of HTTP that says failure lost that status"


def _case(talk: ConversationToSave, request: SaveRequest, path: Path) -> PreparedFile:
    conversation = replace(talk.conversation, conversation_id=request.name.strip())
    with errors_as(
        UsageError, "the conversation contains a value that cannot be written: ", (ValueError, RecursionError)
    ):
        case, session = recorded_case(conversation, talk.began), talk.scenario.session
        if session is not None and session.state:
            user, app = session.user_id or "agentest", session.app_name or talk.agent
            case = replace(case, session_input=SessionInput(app, user, state=dict(session.state)))
        made = EvalSet(set_name(path), (case,), creation_timestamp=talk.began)
        if path.exists():
            return replace(_added_to_set(path, request, made), notes=talk.notes)
        written = eval_set_json(made)
        return PreparedFile(path=path, content=written, preview=written.decode(), notes=talk.notes)


def _added_to_set(path: Path, request: SaveRequest, made: EvalSet) -> PreparedFile:
    """Add the case to the existing set, in the set's format. Raises UsageError."""
    eval_set = open_set(set_files.read(path, request.path))
    key = "evalCases" if eval_set.camel else "eval_cases"
    case = json.loads(eval_set_json(made, camel_case=eval_set.camel))[key][0]
    new = eval_set.content.with_text(eval_set.with_added(case))
    check_set(new)
    preview = json.dumps(case, indent=2, ensure_ascii=False)
    return PreparedFile(path=path, content=new.data, preview=preview, version=eval_set.content.version)


def _target_file(name: str, root: Path, endings: tuple[str, ...], output_dir: str | None) -> Path:
    """Return the file, which must be below the root, even through links. Raises UsageError."""
    if not name.strip():
        raise UsageError("name the file to save in")
    if problem := name_problem(name):
        raise UsageError(f"{name!r:.150} {problem}")
    if not name.endswith(endings) or Path(name).name in endings:
        raise UsageError(f"{readable(name)}: the name must end in {' or '.join(endings)}")
    home = root.resolve()
    path = Path(os.path.normpath(home / name))
    if not path.is_relative_to(home) or not path.resolve().is_relative_to(home):
        raise UsageError(f"{readable(name)}: is outside of the project; name a file below its folder")
    if output_dir and path.is_relative_to(home / output_dir):
        raise UsageError(f"{readable(name)}: is in the folder of the runs; choose another one")
    return path


_ABOUT = '"""A scenario with a simulated user, made from a conversation. Open tasks are marked TODO."""'
_SHOWN_CHARS = 80
GOAL = "TODO: what the user wants, and when they have it."


def starting_point(name: str, conversation: Conversation, scenario: Scenario) -> str:
    """Return the source of a `*.sim.py` with one scenario with a simulated user.

    Its tools answer as they were observed. Its user has the goal and knowledge of the original scenario.
    """
    called = tuple(map(ExpectedCall, source_code.named_in(conversation.tool_calls)))
    state = scenario.session.state if scenario.session else None
    made = Scenario(
        name,
        file="",
        line=0,
        profile=scenario.profile,
        goal=scenario.goal or GOAL,
        knowledge=scenario.knowledge,
        session=Session(state=dict(state)) if state else None,
        tools=source_code.repeating_mocks(conversation.tool_calls),
        trajectory=(Trajectory("contains", called),) if called else (),
        tags=("from-a-talk",),
    )
    return source_code.scenarios_source([made], _ABOUT, ["\n".join(_open_decisions(conversation, scenario))])


def _open_decisions(conversation: Conversation, scenario: Scenario) -> Iterator[str]:
    if turns := conversation.turns:
        yield f"The user began with: {literal(shortened(turns[0].user_message, _SHOWN_CHARS))}"
    if not scenario.goal:
        yield "TODO: write the goal; until then the simulated user wants nothing."
    if not scenario.profile:
        yield "TODO: say who the user is, with profile=…, where that matters."
    if not scenario.knowledge:
        yield "TODO: list what the user knows, with knowledge=[…]."
    if source_code.mockable_calls(conversation.tool_calls):
        yield "TODO: tools answer as in that one conversation; another one may call them otherwise."
    if conversation.tool_calls:
        yield "TODO: keep in `expected` what has to be called every time, and say what may never be."


DID_NOT_PASS = "it did not pass in its run: make sure that it shows what the agent should do"


def conversation_to_save(scenario: Json, agent: str, conversation: Json, began: float) -> ConversationToSave:
    """Return the conversation to save. Raises UsageError if it is unfinished or incomplete.

    Args:
        scenario, conversation: as in results.json.
        began: start of the run, in seconds since 1970.
    """
    read = usable(CODECS.read(Conversation, conversation))
    if why := source_code.missing(read):
        raise UsageError(f"this is a conversation {why}: it cannot be saved")
    state = read.initial_state
    about = Scenario(
        name=scenario["name"],
        file=scenario["file"],
        line=scenario["line"],
        profile=scenario.get("profile", ""),
        goal=scenario.get("goal", ""),
        session=Session(state=dict(state)) if state else None,
    )
    notes = () if conversation["passed"] else (DID_NOT_PASS,)
    return ConversationToSave(conversation=read, scenario=about, agent=agent, began=began, notes=notes)
