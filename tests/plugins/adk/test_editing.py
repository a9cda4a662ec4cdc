"""Cases of evaluation sets edited in their files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import evalset_documents as documents
import pytest
from evalset_strategy import eval_sets
from hypothesis import given

from agentest.plugins.adk.formats.eval_set import EvalSet, eval_set_json
from agentest.plugins.adk.formats.set_reader import read_eval_set
from agentest.plugins.adk.set_edits import CaseDraft, EditRejected, EvalSetEditor, free_id, listing
from agentest.plugins.adk.set_files import ChangedOnDisk, EvalSetProject, SetContent, open_set
from agentest.support.errors import UsageError

NAME = "shop.evalset.json"
ONE = documents.case("one", documents.invocation("Hello.", "Hi.", [documents.use("greet", who="me")]))
TWO = documents.case("two", documents.invocation("Bye.", "See you."))


@pytest.fixture
def editor(tmp_path: Path) -> EvalSetEditor:
    """An editor of a project with one set of two cases."""
    write(tmp_path, documents.text(documents.eval_set("shop", ONE, TWO)) + "\n")
    return EvalSetEditor(EvalSetProject(tmp_path))


def write(folder: Path, text: str, name: str = NAME) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


def on_disk(editor: EvalSetEditor, name: str = NAME) -> str:
    return (editor.project.root / name).read_bytes().decode()


def version(editor: EvalSetEditor, name: str = NAME) -> str:
    return editor.read(name).version


def changed(case: dict[str, Any], text: str) -> dict[str, Any]:
    """The case with another message of the user."""
    again: dict[str, Any] = json.loads(json.dumps(case))
    again["conversation"][0]["user_content"]["parts"][0]["text"] = text
    return again


@given(eval_sets())
def test_every_set_can_be_opened_and_saved_as_it_is(eval_set: EvalSet) -> None:
    """Saving a case unchanged keeps every byte of any set, in either spelling."""
    for camel in (False, True):
        content = SetContent(Path(NAME), NAME, eval_set_json(eval_set, camel_case=camel))
        file = open_set(content)
        assert list(file.ids) == [case.eval_id for case in eval_set.eval_cases]
        for place in range(len(file.cases)):
            assert file.with_value(place, file.value(place)) == content.text
            assert json.loads(file.case_text(place)) == file.value(place)


def test_one_message_is_all_that_changes(editor: EvalSetEditor) -> None:
    """A case that is saved with another message differs from the file in that message."""
    before = on_disk(editor)
    done = editor.save(NAME, version(editor), "one", CaseDraft(changed(ONE, "Good day.")))
    assert on_disk(editor) == before.replace("Hello.", "Good day.")
    assert done.file.ids[done.place] == "one"


ODD = (
    '\ufeff{"evalSetId": "odd",\r\n  "x-mine": [1,  2],\r\n  "evalCases": [\r\n    {"evalId": "a",'
    ' "owner": "me", "conversation": [{"userContent": {"parts": [{"text": "caf\\u00e9"}]}}]},\r\n'
    '    {"evalId": "b",'
    ' "conversation": [{"userContent": {"parts": [{"text": "b"}]}}]}\r\n  ]\r\n}'
)


def test_form_spelling_and_unknown_keys_stay(tmp_path: Path) -> None:
    """Mark of the byte order, line ends, escapes, unknown keys and a missing last newline stay."""
    write(tmp_path, ODD)
    editor = EvalSetEditor(EvalSetProject(tmp_path))
    file = editor.open(NAME)
    assert file.camel
    case = file.value(0)
    case["conversation"][0]["finalResponse"] = {"parts": [{"text": "thé"}]}
    editor.save(NAME, version(editor), "a", CaseDraft(case))
    saved = on_disk(editor)
    document = json.loads(ODD.removeprefix("\ufeff"))
    document["evalCases"][0] = case
    assert json.loads(saved.removeprefix("\ufeff")) == document
    assert saved.startswith('\ufeff{"evalSetId": "odd", "x-mine"')
    assert saved.endswith("}")
    assert "caf\\u00e9" in saved
    assert "th\\u00e9" in saved


def test_cases_are_added_copied_and_removed(editor: EvalSetEditor) -> None:
    """A case goes to its position, a copy after its original, and a removed one can be restored."""
    before = on_disk(editor)
    copied = editor.copy(NAME, version(editor), "one", free_id(editor.open(NAME), "one"))
    assert list(copied.file.ids) == ["one", "one_copy", "two"]
    removed = editor.remove(NAME, version(editor), "one_copy")
    assert on_disk(editor) == before
    editor.add(NAME, version(editor), CaseDraft(text=removed.removed), removed.place)
    assert list(editor.open(NAME).ids) == ["one", "one_copy", "two"]
    editor.remove(NAME, version(editor), "one_copy")
    editor.add(NAME, version(editor), CaseDraft(documents.simulated("three")))
    assert on_disk(editor) == documents.text(
        documents.eval_set("shop", ONE, TWO, documents.simulated("three"))
    ) + "\n"  # fmt: skip


def test_a_set_is_made_with_its_first_case(editor: EvalSetEditor) -> None:
    """A new file has a case, so that it can be read; an existing file is not overwritten."""
    editor.create("new/first.test.json", CaseDraft(ONE), 1.5)
    read = read_eval_set(editor.project.root / "new/first.test.json")
    assert (read.eval_set.eval_set_id, read.eval_set.creation_timestamp) == ("first", 1.5)
    with pytest.raises(ChangedOnDisk, match="is there already"):
        editor.create("new/first.test.json", CaseDraft(TWO), 2)


def test_a_first_case_is_written_into_an_empty_set(tmp_path: Path) -> None:
    """A set as `agentest eval_set create` makes it has no cases, and takes one."""
    write(tmp_path, '{\n  "eval_set_id": "e",\n  "eval_cases": []\n}\n')
    editor = EvalSetEditor(EvalSetProject(tmp_path))
    editor.add(NAME, version(editor), CaseDraft(ONE))
    assert on_disk(editor) == documents.text(documents.eval_set("e", ONE)) + "\n"


def test_the_last_case_stays(tmp_path: Path) -> None:
    """No set without cases is written: `agentest eval` would not read it."""
    write(tmp_path, documents.text(documents.eval_set("shop", ONE)))
    editor = EvalSetEditor(EvalSetProject(tmp_path))
    with pytest.raises(UsageError, match="is its only case"):
        editor.remove(NAME, version(editor), "one")


def test_a_case_alone_is_edited_and_not_joined(tmp_path: Path) -> None:
    """A file that is one case is saved; a second one has no place in it."""
    write(tmp_path, documents.text(ONE))
    editor = EvalSetEditor(EvalSetProject(tmp_path))
    editor.save(NAME, version(editor), "one", CaseDraft(changed(ONE, "New.")))
    assert on_disk(editor) == documents.text(changed(ONE, "New."))
    with pytest.raises(UsageError, match="one case alone"):
        editor.add(NAME, version(editor), CaseDraft(TWO))


REFUSED = [
    ({"eval_id": "one"}, "needs exactly one of", ()),
    ({**ONE, "eval_id": "two"}, "2 cases have this id", ("eval_id",)),
    ({**ONE, "eval_id": 5}, "`eval_id` is 5, expected a text", ("eval_id",)),
    ({**ONE, "conversation": []}, "no invocations", ("conversation",)),
    ({**ONE, "conversation": [{"user_content": {"part": []}}]}, "did you mean", ("conversation", 0, "user_content", "part")),  # noqa: E501
    ({**ONE, "session_input": {"app_name": "a", "user_id": "u", "state": 1}}, "expected an object", ("session_input", "state")),  # noqa: E501
    ({**ONE, "rubrics": [{"rubric_id": "r"}]}, "is missing", ("rubrics", 0, "rubricContent")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("case", "message", "keys"), REFUSED,
    ids=["no conversation", "id twice", "id no text", "empty", "unknown key", "state", "rubric"],
)  # fmt: skip
def test_what_cannot_be_read_is_not_written(
    editor: EvalSetEditor, case: Any, message: str, keys: Any
) -> None:
    """The reader's own message names the value in the case, and the file stays as it is."""
    before = on_disk(editor)
    with pytest.raises(EditRejected) as refused:
        editor.save(NAME, version(editor), "one", CaseDraft(case))
    assert message in refused.value.problems[0].message
    assert refused.value.problems[0].keys == keys
    assert on_disk(editor) == before


@pytest.mark.parametrize(
    "text", ['{"eval_id": "one"', "", '{"eval_id": "x"}, {"eval_id": "y"}', '{"a": NaN}'],
    ids=["cut", "empty", "two", "nan"],
)  # fmt: skip
def test_a_text_that_is_no_case_is_not_written(editor: EvalSetEditor, text: str) -> None:
    """A text must be one JSON value: nothing else is put into the file."""
    with pytest.raises(EditRejected, match="is not JSON"):
        editor.save(NAME, version(editor), "one", CaseDraft(text=text))


def test_a_broken_neighbour_is_named(editor: EvalSetEditor) -> None:
    """A problem in another case of the file is reported as such and prevents writing."""
    write(editor.project.root, on_disk(editor).replace('"eval_id": "two"', '"eval_id": 2'))
    with pytest.raises(EditRejected) as refused:
        editor.save(NAME, version(editor), "one", CaseDraft(changed(ONE, "New.")))
    assert [each.keys for each in refused.value.problems] == [None]
    assert refused.value.problems[0].message.startswith(f"{NAME}: case 2: `eval_id` is 2")


@pytest.mark.parametrize(
    ("case", "criteria", "message", "keys"),
    [
        (documents.case("one", documents.invocation("Hi.")), None, "default criteria compare", ()),
        (documents.case("one", {"user_content": {}}), None, "neither text nor a file", ("conversation", 0, "user_content")),  # noqa: E501
        ({**ONE, "final_session_state": {"a": 1}}, None, "which no criterion compares with", ()),
        ({**ONE, "eval_id": "a,b"}, None, "has a comma", ("eval_id",)),
        (ONE, {"criteria": {"tool_f1": 1}}, "there is no metric `tool_f1`", None),
    ],
    ids=["nothing expected", "nothing said", "unchecked", "comma", "criteria"],
)  # fmt: skip
def test_cases_that_would_not_be_evaluated_are_noted(
    editor: EvalSetEditor, case: Any, criteria: Any, message: str, keys: Any
) -> None:
    """A readable case is written; a note says that it would neither pass nor fail."""
    if criteria:
        write(editor.project.root, json.dumps(criteria), "test_config.json")
    notes = editor.save(NAME, version(editor), "one", CaseDraft(case)).notes
    assert [(message in note.message, note.keys) for note in notes] == [(True, keys)]


def test_a_changed_file_is_never_overwritten(editor: EvalSetEditor) -> None:
    """An edit that began from another version is refused, with what the file contains now."""
    began = version(editor)
    other = on_disk(editor).replace("Bye.", "Good bye.")
    write(editor.project.root, other)
    for edit in (
        lambda: editor.save(NAME, began, "one", CaseDraft(ONE)),
        lambda: editor.add(NAME, began, CaseDraft(documents.simulated("new"))),
        lambda: editor.copy(NAME, began, "one", "new"),
        lambda: editor.remove(NAME, began, "one"),
        lambda: editor.save_text(NAME, began, "{}"),
    ):
        with pytest.raises(ChangedOnDisk) as refused:
            edit()
        assert refused.value.current
        assert refused.value.current.text == other
    (editor.project.root / NAME).unlink()
    with pytest.raises(ChangedOnDisk, match="does not exist any more") as gone:
        editor.save(NAME, began, "one", CaseDraft(ONE))
    assert gone.value.current is None
    assert not (editor.project.root / NAME).exists()


def test_permissions_stay(editor: EvalSetEditor) -> None:
    """A private file keeps its permissions after an edit, and no other file remains."""
    path = editor.project.root / NAME
    path.chmod(0o640)
    editor.save(NAME, version(editor), "one", CaseDraft(changed(ONE, "New.")))
    assert path.stat().st_mode & 0o777 == 0o640
    assert [each.name for each in editor.project.root.iterdir()] == [NAME]
    path.chmod(0o440)
    with pytest.raises(UsageError, match="is read-only"):
        editor.save(NAME, version(editor), "one", CaseDraft(ONE))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("../outside.evalset.json", "outside of the project"),
        ("/etc/x.evalset.json", "outside of the project"),
        ("sub/../shop.evalset.json", "outside of the project"),
        ("C:/x.evalset.json", "outside of the project"),
        ("sub\\x.evalset.json", "forward slashes"),
        ("sub//x.evalset.json", "forward slashes"),
        ("", "forward slashes"),
        ("x\0.evalset.json", "control character"),
        ("agent.py", "its name ends neither"),
        (".git/x.evalset.json", "packages, of versions or of outputs"),
        ("node_modules/x.evalset.json", "packages, of versions or of outputs"),
        ("link.evalset.json", "is a link"),
        ("linked/x.evalset.json", "is a link"),
    ],
)  # fmt: skip
def test_no_other_file_is_touched(editor: EvalSetEditor, name: str, why: str, tmp_path: Path) -> None:
    """Only what the listing would name can be read or written."""
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.mkdir()
    write(outside, documents.text(documents.eval_set("shop", ONE)), "x.evalset.json")
    (tmp_path / "link.evalset.json").symlink_to(outside / "x.evalset.json")
    (tmp_path / "linked").symlink_to(outside)
    before = {path: path.read_bytes() for path in outside.iterdir()}
    for edit in (
        lambda: editor.open(name),
        lambda: editor.create(name, CaseDraft(ONE), 0),
        lambda: editor.save_text(name, None, "{}"),
    ):
        with pytest.raises(UsageError, match=why):
            edit()
    assert {path: path.read_bytes() for path in outside.iterdir()} == before


def test_criteria_are_checked_and_written(editor: EvalSetEditor) -> None:
    """A file of criteria is made and changed as a text; one that cannot be read is not written."""
    with pytest.raises(EditRejected, match=r"^test_config.json: criteria: there is no metric `tool_f1`"):
        editor.save_text("test_config.json", None, '{"criteria": {"tool_f1": 1}}')
    made = editor.save_text("test_config.json", None, '{"criteria": {"safety_v1": 1.0}}\n')
    with pytest.raises(EditRejected, match="is not JSON"):
        editor.save_text("test_config.json", made.version, "{")
    with pytest.raises(ChangedOnDisk):
        editor.save_text("test_config.json", None, "{}")
    editor.save_text("test_config.json", made.version, '{"criteria": {"safety_v1": 0.5}}\n')
    assert on_disk(editor, "test_config.json") == '{"criteria": {"safety_v1": 0.5}}\n'


def test_a_set_of_another_form_is_edited_as_a_text(tmp_path: Path) -> None:
    """Legacy files keep their format: their text can be edited, but not single cases."""
    legacy = '[\r\n {"query": "Hi.", "reference": "Hello."}\r\n]\r\n'
    write(tmp_path, legacy)
    editor = EvalSetEditor(EvalSetProject(tmp_path))
    with pytest.raises(UsageError, match="agentest migrate"):
        editor.open(NAME)
    editor.save_text(NAME, version(editor), legacy.replace("\r\n", "\n").replace("Hi.", "Ho."))
    assert on_disk(editor) == legacy.replace("Hi.", "Ho.")


def test_all_sets_of_a_project_are_listed(editor: EvalSetEditor) -> None:
    """Each set is listed with its cases or its problem; dependency folders are skipped."""
    folder = editor.project.root
    write(folder, "{", "sub/broken.test.json")
    write(folder, '[{"query": "Hi."}]', "sub/legacy.test.json")
    write(folder, documents.text(documents.eval_set("half", {"eval_id": "h"})), "sub/half.test.json")
    write(folder, '{"criteria": {}}', "sub/test_config.json")
    for skipped in (".git", "node_modules", ".agentest", "venv"):
        write(folder, "{}", f"{skipped}/x.test.json")
    write(folder, "", "venv/pyvenv.cfg")
    (folder / "link.test.json").symlink_to(folder / NAME)
    found = {each.file: each for each in listing(editor.project)[0]}
    below = [f"sub/{name}.test.json" for name in ("broken", "half", "legacy")]
    assert list(found) == ["link.test.json", NAME, *below]
    assert [(case.id, case.line) for case in found[NAME].cases] == [("one", 5), ("two", 39)]
    assert found["link.test.json"].error.startswith("link.test.json: is a link")
    assert found["sub/broken.test.json"].error.startswith("sub/broken.test.json:1: is not JSON")
    assert [case.id for case in found["sub/half.test.json"].cases] == ["h"]
    assert "needs exactly one of" in found["sub/half.test.json"].error
    assert "agentest migrate" in found["sub/legacy.test.json"].why_not
    assert [case.id for case in found["sub/legacy.test.json"].cases] == ["legacy"]
    assert found["sub/half.test.json"].criteria
    assert not found[NAME].criteria


def test_a_file_that_is_saved_as_it_was_keeps_mixed_line_ends(tmp_path: Path) -> None:
    """Browsers hand over one kind of line end: what was not edited is not made even."""
    mixed = documents.text(
        documents.eval_set("shop", documents.case("a", documents.invocation("Hi.")))
    ).replace("\n", "\r\n", 2)
    (tmp_path / NAME).write_bytes(mixed.encode())
    editor = EvalSetEditor(EvalSetProject(tmp_path))
    editor.save_text(NAME, version(editor), mixed.replace("\r\n", "\n"))
    assert (tmp_path / NAME).read_bytes() == mixed.encode()
