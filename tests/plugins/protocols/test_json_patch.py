"""JSON Patch, as RFC 6902 has it."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from agentest.plugins.protocols.ag_ui.json_patch import BadPatch, CopyLimit, patched

VALUE = {"a": {"b": 1}, "list": [1, 2], "x/y": 1, "m~n": 2}
GOOD: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "add": ({"op": "add", "path": "/a/c", "value": 2}, {"a": {"b": 1, "c": 2}}),
    "add_over": ({"op": "add", "path": "/a", "value": 2}, {"a": 2}),
    "insert": ({"op": "add", "path": "/list/1", "value": 9}, {"list": [1, 9, 2]}),
    "append": ({"op": "add", "path": "/list/-", "value": 9}, {"list": [1, 2, 9]}),
    "replace": ({"op": "replace", "path": "/list/0", "value": 9}, {"list": [9, 2]}),
    "escaped": ({"op": "replace", "path": "/x~1y", "value": 9}, {"x/y": 9}),
    "tilde": ({"op": "replace", "path": "/m~0n", "value": 9}, {"m~n": 9}),
    "copy": ({"op": "copy", "from": "/a", "path": "/list/0"}, {"list": [{"b": 1}, 1, 2]}),
    "move": ({"op": "move", "from": "/list/0", "path": "/a/b"}, {"list": [2], "a": {"b": 1}}),
    "test": ({"op": "test", "path": "/a/b", "value": 1}, {}),
}
BAD: dict[str, tuple[Any, str]] = {
    "no_list": ({"op": "add"}, "a list of operations"),
    "no_object": ([1], "is an object"),
    "no_operation": ([{"op": "set", "path": "/a"}], "'set' is not an operation"),
    "no_path": ([{"op": "add", "path": "a", "value": 1}], "begins with a slash"),
    "no_value": ([{"op": "add", "path": "/a"}], "needs a `value`"),
    "nothing_there": ([{"op": "remove", "path": "/q"}], "nothing at 'q'"),
    "too_far": ([{"op": "add", "path": "/list/3", "value": 1}], "not a position"),
    "no_index": ([{"op": "remove", "path": "/list/-"}], "not a position"),
    "not_the_same": ([{"op": "test", "path": "/a/b", "value": 2}], "is another one"),
    "into_a_number": ([{"op": "add", "path": "/a/b/c", "value": 2}], "nothing can be put"),
}


@pytest.mark.parametrize(("operation", "changes"), GOOD.values(), ids=GOOD)
def test_each_operation(operation: dict[str, Any], changes: dict[str, Any]) -> None:
    """Each operation changes the part that it names, in a copy of the value."""
    before = deepcopy(VALUE)
    assert patched(VALUE, [operation]) == {**VALUE, **changes}
    assert before == VALUE


def test_the_empty_pointer_is_the_whole_value() -> None:
    """Operations are applied one after another."""
    assert patched(VALUE, []) == VALUE
    assert patched(
        VALUE, [{"op": "replace", "path": "", "value": {}}, {"op": "add", "path": "/a", "value": 1}]
    ) == {"a": 1}


@pytest.mark.parametrize(("patch", "says"), BAD.values(), ids=BAD)
def test_a_patch_that_does_not_apply_is_refused(patch: Any, says: str) -> None:
    """An invalid patch, or a pointer that leads nowhere, is reported."""
    with pytest.raises(BadPatch, match=says):
        patched(VALUE, patch)


@pytest.mark.slow
def test_copies_are_limited() -> None:
    """Copies of the document into itself, which double it each time, are refused before they fill memory."""
    doubling = [{"op": "copy", "from": "/a", "path": "/a/-"} for _ in range(64)]
    with pytest.raises(BadPatch, match="more than 10 MB"):
        patched({"a": ["x"]}, doubling)
    copies = CopyLimit(left=1000)
    assert patched({"a": "x" * 500}, [{"op": "copy", "from": "/a", "path": "/b"}], copies)
    with pytest.raises(BadPatch, match="copy"):
        patched({"a": "x" * 500}, [{"op": "copy", "from": "/a", "path": "/b"}], copies)


def test_a_deeply_nested_value_cannot_be_patched() -> None:
    """A value that is nested too deeply to be copied makes the patch fail."""
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"a": deep}
    with pytest.raises(BadPatch, match="nested too deeply"):
        patched({"a": deep}, [{"op": "copy", "from": "/a", "path": "/b"}])


def test_copied_values_are_independent() -> None:
    """Copied or moved values change independently, and values of the patch are not modified."""
    patch = [
        {"op": "add", "path": "/new", "value": {"x": [1]}},
        {"op": "copy", "from": "/new", "path": "/twin"},
        {"op": "add", "path": "/twin/x/-", "value": 2},
        {"op": "move", "from": "/twin/x", "path": "/moved"},
        {"op": "add", "path": "/moved/0", "value": 0},
    ]
    assert patched({}, patch) == {"new": {"x": [1]}, "twin": {}, "moved": [0, 1, 2]}
    assert patch[0]["value"] == {"x": [1]}
