"""The work of `agentest eval-set` and `agentest migrate`: create, fill, and convert evaluation sets."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentest.plugins.adk.formats import set_reader
from agentest.plugins.adk.formats.criteria import CRITERIA_FILE, parse_criteria
from agentest.plugins.adk.formats.eval_set import CAMEL_CASE, eval_set_json, tool_calls
from agentest.plugins.adk.set_files import SetFile, open_set, read, write
from agentest.support.errors import UsageError, errors_as
from agentest.support.files import write_for_user
from agentest.support.json_text import json_document
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import count, first_names, snake_keys


def migrate(
    old: Path,
    new: Path,
    initial_session: Path | None = None,
    *,
    camel_case: bool = False,
    config_out: Path | None = None,
) -> list[str]:
    """Convert `old`, write the set to `new`, and return notes for the user.

    `new` is replaced if it exists. `old` is never overwritten, because keys that Agentest does not read would
    be lost. The criteria in `old` are written to `config_out`, by default next to `new`; an existing criteria
    file is never replaced. Raises UsageError, also if a file cannot be written.
    """
    if new.is_dir():
        raise UsageError(f"{new}: is a folder; name the file to write, such as {new / old.name}")
    if old.exists() and new.exists() and old.samefile(new):
        raise UsageError(f"{new}: is the file to migrate; name another one to write")
    read = set_reader.read_eval_set(
        old, set_reader.read_session(initial_session) if initial_session else None
    )
    path, content, criteria_notes = _migrated_criteria(read, new, config_out)
    with errors_as(UsageError, f"{old}: cannot be written as JSON: "):
        document = eval_set_json(read.eval_set, camel_case=camel_case)
    write_for_user(new, document)
    if content is not None:
        write_for_user(path, content)
    summary = f"{new}: {count(len(read.eval_set.eval_cases), 'case')} from {read.path}"
    return [summary, *criteria_notes, *_notes(read, new), *[f"{new}: {CAMEL_CASE}"] * camel_case]


def _notes(read: set_reader.ReadSet, new: Path) -> list[str]:
    notes = []
    if read.form is set_reader.FileFormat.EVAL_SET:
        notes.append(f"{read.path} was an EvalSet already; keys that are not read were left out")
    loose = sum(
        call.args is None
        for case in read.eval_set.eval_cases
        if case.agentest and case.agentest.any_args_where_absent
        for turn in case.conversation or ()
        for call in tool_calls(turn.intermediate_data)
    )
    if loose:
        notes.append(
            f"{count(loose, 'expected call')} without arguments still match{'es' * (loose == 1)} a call with "
            "any: `any_args_where_absent` under the key `agentest` of the case says so. Google-adk does not "
            "read that key, and expects a call without arguments there"
        )
    if not new.name.endswith(set_reader.SUFFIXES):
        notes.append(
            f"`agentest eval FOLDER` finds only names that end in {' or '.join(set_reader.SUFFIXES)}"
        )
    return notes


_MAX_SHOWN = 5
_OUR_METRICS = (
    "tool_trajectory_f1",
    "reference_answer_match",
    "final_session_state_match",
    "intermediate_responses_match",
)
"""Metrics that google-adk does not have."""


_Criteria = tuple[Path, bytes | None, list[str]]
"""A criteria file, its content to write, None if nothing needs to be written, and notes about it."""


def _migrated_criteria(read: set_reader.ReadSet, new: Path, config_out: Path | None) -> _Criteria:
    if read.criteria is not None:
        return _own_criteria(read, read.criteria, new, config_out)
    if config_out is not None:
        raise UsageError(f"--config-out: {read.path} names no criteria of its own; leave the option out")
    old, path = read.path.parent / CRITERIA_FILE, new.parent / CRITERIA_FILE
    if old.resolve() == path.resolve() or not (old.is_file() or path.is_file()):
        return path, None, []
    if not path.exists():
        return path, set_reader.read_bytes(old), [f"{path}: copied from {old}, to which {read.path} is held"]
    if old.is_file() and _content(old) == _content(path):
        return path, None, []
    old_criteria = f"to {old}" if old.is_file() else "to the default criteria"
    return path, None, [f"{new} is held to {path}; {read.path} is held {old_criteria}"]


def _own_criteria(
    read: set_reader.ReadSet, criteria: Mapping[str, Any], new: Path, config_out: Path | None
) -> _Criteria:
    criteria_file = new.parent / CRITERIA_FILE
    path = config_out or criteria_file
    parse_criteria(criteria, str(read.path))  # refuse now what no run would accept
    notes = [*_notes_about_our_metrics(criteria, path)]
    if path.resolve() != criteria_file.resolve():
        notes.append(f"{new} is held to {path} with --config-file-path {path} alone")
    if path.exists():
        if _content(path) != json.loads(json.dumps(criteria)):
            raise UsageError(
                f"{path}: already exists and differs from {read.path}; nothing was written. Write "
                "NEW into a folder of its own, or name another file with --config-out PATH, and run NEW with "
                f"--config-file-path PATH. {read.path} asks for {json.dumps(criteria, ensure_ascii=False)}"
            )
        return path, None, [f"{path}: already says what {read.path} asks for", *notes]
    if shared := _sets_sharing_criteria(path, read, new):
        names = first_names(shared, _MAX_SHOWN)
        notes.append(f"{path} is the criteria of other sets of its folder from now on: {names}")
    return path, json_document(dict(criteria)).encode(), [f"{path}: the criteria of {read.path}", *notes]


def _notes_about_our_metrics(criteria: Mapping[str, Any], path: Path) -> Iterator[str]:
    ours = [name for name in _OUR_METRICS if name in criteria["criteria"]]
    if ours:
        yield f"{path}: google-adk does not know {', '.join(ours)}: leave it out for runs of google-adk"
    informational = [
        name
        for name, criterion in criteria["criteria"].items()
        if isinstance(criterion, dict) and criterion.get("information")
    ]
    if informational:
        names = ", ".join(informational)
        yield f"{path}: {names} cannot fail a case (`information`); google-adk does not read that key"


def _content(path: Path) -> Any:
    return set_reader.parse_json(path, set_reader.read_bytes(path))


def _sets_sharing_criteria(path: Path, read: set_reader.ReadSet, new: Path) -> list[str]:
    if path.name != CRITERIA_FILE or not path.parent.is_dir():
        return []
    migrated = {read.path.resolve(), new.resolve()}
    sharing = []
    for other in sorted(path.parent.iterdir()):
        if other.name.endswith(set_reader.SUFFIXES) and other.resolve() not in migrated:
            with suppress(UsageError):  # a set that cannot be read cannot run anyway
                sharing += [other.name] * (set_reader.read_eval_set(other).criteria is None)
    return sharing


_ID = re.compile(r"[a-zA-Z0-9_]+")
_SCENARIO_KEYS = ("starting_prompt", "conversation_plan", "user_persona")
_SESSION_KEYS = ("app_name", "user_id", "state", "session_id")
_LONGEST_NAME = 255
_USER = "agentest"


@dataclass(frozen=True, slots=True)
class SetLocation:
    """The location of an agent's evaluation set: in the agent's folder, as in google-adk."""

    agent: str
    set_id: str

    @property
    def folder(self) -> Path:
        """Return the agent's folder, or the working directory if the agent is a name or a URL.

        Raises UsageError for a missing folder, or for a word that cannot name an agent.
        """
        if not self.agent.strip() or Path(self.agent).is_file():
            raise UsageError(
                f"{self.agent!r} is not an agent; name its folder, or an agent of the configuration"
            )
        for folder in (Path(self.agent), Path(*self.agent.split("."))):
            if folder.is_dir():
                return folder
        if "://" not in self.agent and re.search(r"[/\\]", self.agent):
            raise UsageError(f"{self.agent}: the agent's folder does not exist")
        return Path()

    @property
    def app_name(self) -> str:
        """Return the agent's name in google-adk: `agent` if that is a valid name, else its folder's name."""
        return self.agent if _ID.fullmatch(self.agent) else self.folder.resolve().name

    @property
    def file(self) -> Path:
        """Return the set's file. Raises UsageError for an id that google-adk does not accept."""
        if not _ID.fullmatch(self.set_id):
            possible = re.sub("[^a-zA-Z0-9]+", "_", self.set_id).strip("_") or "return_flow_tests"
            raise UsageError(
                f"{self.set_id!r} cannot be the id of an evaluation set: expected letters of a to z, digits "
                f"and _ alone, such as {possible}"
            )
        name = f"{self.set_id}{set_reader.EVAL_SET_SUFFIX}"
        if len(name) > _LONGEST_NAME:
            raise UsageError(
                f"the id of the evaluation set has {len(self.set_id)} letters, too many for a file"
            )
        return self.folder / name


def create_set(location: SetLocation, now: float) -> Path:
    """Write an evaluation set without cases, and return its file. Raises UsageError if it exists.

    Args:
        now: the current time in seconds since 1970.
    """
    file = location.file
    if file.exists():
        raise UsageError(f"{file}: is there already; add cases to it, or choose another id")
    name = location.set_id
    empty = {"eval_set_id": name, "name": name, "eval_cases": [], "creation_timestamp": now}
    write_for_user(file, json_document(empty).encode())
    return file


def add_cases(
    location: SetLocation, scenarios: Path, session: Path | None, now: float
) -> list[tuple[str, bool]]:
    """Add each scenario of a file to a set, as a case with this session. Raises UsageError.

    The id of a case is a hash of its scenario, so adding the same scenario again has no effect. Returns the
    id of each, and True if the set did not have it already.
    """
    file = _existing_set(location)
    session_input: dict[str, Any] = {}
    if session:  # with the app and user that google-adk requires
        given = snake_keys(set_reader.read_session(session), _SESSION_KEYS)
        session_input = {"session_input": {"app_name": location.app_name, "user_id": _USER, **given}}
    new: dict[str, Any] = {}
    added = []
    for eval_id, scenario in _scenarios(scenarios):
        added.append((eval_id, eval_id not in file.ids and eval_id not in new))
        if added[-1][1]:
            case = {"eval_id": eval_id, "conversation_scenario": scenario, **session_input}
            new[eval_id] = {**case, "creation_timestamp": now}
    if new:
        write(file.content.with_text(file.with_added(*new.values())), file.content.version)
    return added


def _existing_set(location: SetLocation) -> SetFile:
    """Return the set to which cases are added. Raises UsageError if its cases cannot be read."""
    path = location.file
    if not path.exists():
        raise UsageError(
            f"{path}: does not exist; agentest eval_set create {location.agent} {location.set_id} makes it"
        )
    file = open_set(read(path, str(path)))
    if file.cases:
        set_reader.read_eval_set(path)
    return file


def _scenarios(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each scenario of a file with the id that google-adk gives it: eight digits of its hash."""
    read = set_reader.read_eval_set(file)
    if read.form is not set_reader.FileFormat.SCENARIOS:
        form = '{"scenarios": [{"starting_prompt": …, "conversation_plan": …}]}'
        raise UsageError(f"{file}: is an evaluation set already; expected conversation scenarios: {form}")
    written = set_reader.parse_json(file, set_reader.read_bytes(file))["scenarios"]
    for case, as_written in zip(read.eval_set.eval_cases, written, strict=True):
        assert case.conversation_scenario is not None, "the form has no other cases"
        named = snake_keys(as_written, _SCENARIO_KEYS)
        values = asdict(case.conversation_scenario)
        if isinstance(named.get("user_persona"), str):
            values["user_persona"] = named["user_persona"]
        digits = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
        yield digits[:8], {key: value for key, value in named.items() if value is not None}
