"""results.json and the journal read back, checked by their schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentest.domain.end_reason import Ending
from agentest.domain.root_causes import root_causes
from agentest.domain.transcript import Blame, Conversation, Failure
from agentest.store.conversations import conversation_of, with_vacuous
from agentest.store.journal_reading import KILLED, OtherVersionError, is_journal, journal_document
from agentest.store.layouts import CODECS
from agentest.store.run_results import entries, run_of, summary
from agentest.store.runs.record import read_record
from agentest.store.shapes import (
    ComparedScenario,
    Mode,
    RunHead,
    StoredComparison,
    StoredConversation,
    StoredEntry,
    StoredRun,
)
from agentest.support.errors import UsageError
from agentest.support.files import user_bytes
from agentest.version import __version__

if TYPE_CHECKING:
    from jsonschema import ValidationError


AnyRun = StoredRun | StoredComparison

JOURNAL = "journal.jsonl"
"""The name of a run's journal, which is there whatever the reporters are."""
_SHORTENED = "it was stored without the ends of texts over 1,000,000 characters, so it is not judged again"
_MODE = CODECS.key(RunHead, "mode")


def read_results(path: Path) -> AnyRun:
    """The run that a results.json or a journal holds.

    Raises UsageError that says where the file is not what Agentest writes.
    """
    try:
        content = user_bytes(path, most=None)
        if is_journal(content):
            return completed(_checked_run(journal_document(content), path))
        return _checked_run(json.loads(content.decode()), path)
    except OSError as error:
        raise unreadable(path, error) from None
    except OtherVersionError as error:
        raise _not_ours(path, str(error)) from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON: {error}") from None


def unreadable(path: Path, error: OSError) -> UsageError:
    """What to say of results that cannot be read: where the journal of the run is there, that it is."""
    journal = path.with_name(JOURNAL)
    if not isinstance(error, FileNotFoundError) or path.name == JOURNAL or not journal.is_file():
        return UsageError(f"{path} cannot be read: {error.strerror}")
    return UsageError(
        f"{path} is not there: the last run was one without `--reporter json`, or did not end; take its "
        f"journal instead: {journal}"
    )


def stored_run(document: Mapping[str, Any]) -> AnyRun:
    """The run that a document holds. The document must be as the schema says."""
    comparison = document[_MODE] == Mode.COMPARISON
    return CODECS.read(StoredComparison, document) if comparison else CODECS.read(StoredRun, document)


def conversations_of(run: AnyRun) -> dict[tuple[str, str], tuple[Conversation, ...]]:
    """The conversations of a run by scenario and agent, to be judged again or exported."""
    return {
        (entry.scenario.name, entry.scenario.agent): tuple(map(usable, entry.conversations))
        for entry in entries(run)
        if entry.conversations
    }


def usable(stored: StoredConversation) -> Conversation:
    """A stored conversation; one whose texts were shortened has failed, as it cannot be judged again.

    One that is invalid stays so: what its user did has been judged.
    """
    conversation = replace(conversation_of(stored), invalid=stored.invalid)
    if not conversation.shortened or conversation.failure:
        return conversation
    return replace(conversation, ending=Ending.ERROR, failure=Failure(Blame.INTERNAL, _SHORTENED))


def planned_of(run: AnyRun) -> dict[tuple[str, str], int]:
    """How many conversations were planned, by scenario and agent, where the file says so."""
    return {
        (entry.scenario.name, entry.scenario.agent): entry.scenario.planned_conversations
        for entry in entries(run)
        if entry.scenario.planned_conversations
    }


def completed(run: AnyRun) -> AnyRun:
    """A run from a journal with what its lines could not say yet.

    These are the summary of a run that was killed, whose duration is not known and 0, and which trajectories
    hold only because no call of their agent was seen.
    """
    silent = {name for name, agent in run.head.agents.items() if agent.no_call_seen}
    if silent:
        run = _with_vacuous(run, silent)
    if run.head.stopped != KILLED:
        return run
    result = run_of(run)
    return replace(run, head=replace(run.head, summary=summary(result), root_causes=root_causes(result)))


def _with_vacuous(run: AnyRun, silent: set[str]) -> AnyRun:
    if isinstance(run, StoredRun):
        return replace(run, scenarios=_marked(run.scenarios, silent))
    compared = (replace(scenario, agents=_marked(scenario.agents, silent)) for scenario in run.scenarios)
    return replace(run, scenarios=tuple[ComparedScenario, ...](compared))


def _marked(scenarios: tuple[StoredEntry, ...], silent: set[str]) -> tuple[StoredEntry, ...]:
    return tuple(
        replace(entry, conversations=tuple(map(with_vacuous, entry.conversations)))
        if entry.scenario.agent in silent
        else entry
        for entry in scenarios
    )


def _checked_run(document: Any, path: Path) -> AnyRun:
    """The run that the document holds. Raises UsageError where the schema does not describe it."""
    trusted = _written_here(document, path)
    return trusted if trusted is not None else _described_run(document, path)


def _written_here(document: Any, path: Path) -> AnyRun | None:
    """The run, where this version has written the file into the folder of a kept run.

    Nobody else writes there, and the schema takes ten times as long as all the rest. None where the file is
    not what its place says.
    """
    record = read_record(path.parent)
    if record is None or record.version != __version__:
        return None
    try:
        return stored_run(document)
    except (LookupError, TypeError, ValueError, AttributeError):
        return None


def _described_run(document: Any, path: Path) -> AnyRun:
    """The run, checked by the schema. Raises UsageError."""
    from jsonschema.validators import (
        validator_for,  # takes a tenth of a second: only commands that read files pay
    )

    schema = json.loads(files("agentest").joinpath("schemas/results.schema.json").read_text("utf-8"))
    problem = next(iter(validator_for(schema)(schema).iter_errors(document)), None)
    if problem:
        problem = _cause(problem)
        raise _not_ours(path, f"{problem.json_path}: {problem.message[:200]}")
    return stored_run(document)


def _not_ours(path: Path, problem: str) -> UsageError:
    return UsageError(f"{path} is not a results.json or a journal of this version of Agentest: {problem}")


def _cause(problem: ValidationError) -> ValidationError:
    """What is wrong in the form that the document's mode chooses, or else the problem itself."""
    alternatives = problem.context or ()
    other = {each.schema_path[0] for each in alternatives if list(each.path) == [_MODE]}
    return next((each for each in alternatives if each.schema_path[0] not in other), problem)
