"""`agentest export`: write conversations of a results.json as an evaluation set or a scenario file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from agentest.authoring.export_selection import EarlierResults, Selection, read_earlier, select
from agentest.support.errors import UsageError

Form = Literal["evalset", "scenario"]
Expecting = Literal["calls", "scenario"]
_ENDINGS = {"evalset": (".evalset.json", ".test.json"), "scenario": (".sim.py",)}
_SET_ID = "exported"
_BESIDE = (
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
    from agentest.authoring.export_expectations import find, with_expectations

    found = find(selection.held, root, earlier.started)
    held, notes = with_expectations(selection.held, found, form)
    if any(each.own for each in held):
        notes.append(_BESIDE)
    return Selection(held, (*selection.notes, *found.notes, *notes))


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
        made = evaluation_set(selection.held, _set_id(output), earlier.started)
        content = eval_set_json(made, camel_case=camel_case)
    except (ValueError, RecursionError) as error:
        raise _unwritable_error(earlier, error) from None
    notes = (*selection.notes, *_session_notes(selection), *[CAMEL_CASE] * camel_case)
    return Exported(content, _count(len(selection.held), "case"), notes)


def _session_notes(selection: Selection) -> Iterator[str]:
    """Yield a note about initial states that cannot be exported, because a session needs more data."""
    for each in selection.held:
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

    held = tuple(each for each in selection.held if not has_nameless_call(each.conversation))
    if not held:
        raise UsageError(f"{earlier.path}: the agent called tools without a name, which no mock can answer")
    notes = [
        f"left out {each.conversation.conversation_id}: the agent called a tool without a name"
        for each in selection.held
        if each not in held
    ]
    try:
        content = export_script(held).encode()
    except (ValueError, RecursionError) as error:
        raise _unwritable_error(earlier, error) from None
    return Exported(content, _count(len(held), "scenario"), (*selection.notes, *notes))


def _unwritable_error(earlier: EarlierResults, error: Exception) -> UsageError:
    """Return the error for values that no run writes: infinite numbers and unpaired surrogates."""
    return UsageError(
        f"{earlier.path} holds a value that cannot be exported: {error}; leave its conversation out, "
        "with --scenario or --conversation"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
