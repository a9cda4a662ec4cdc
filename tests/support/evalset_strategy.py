"""Arbitrary evaluation sets, for property tests."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from agentest.plugins.adk.formats import eval_set as m
from agentest.plugins.adk.formats.personas import UserBehavior, UserPersona

texts = st.text(max_size=8)
numbers = st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | st.integers() | numbers | texts
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
objects = st.dictionaries(texts, json_values, max_size=2)


def _tuples(values: st.SearchStrategy[Any], least: int = 0) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(values, min_size=least, max_size=2).map(tuple)


def _maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


def eval_sets(opaque: st.SearchStrategy[Any] = json_values) -> st.SearchStrategy[m.EvalSet]:
    """Sets that use every field. `opaque`: values that Agentest stores without reading them."""
    calls = st.builds(
        m.FunctionCall, _maybe(texts), _maybe(texts), _maybe(objects), opaque, _maybe(st.booleans())
    )
    answers = st.builds(
        m.FunctionResponse,
        _maybe(texts),
        _maybe(texts),
        _maybe(objects),
        _maybe(st.booleans()),
        opaque,
        opaque,
    )
    blobs = st.builds(m.Blob, _maybe(texts), _maybe(st.binary(max_size=4)), _maybe(texts))
    files = st.builds(m.FileData, _maybe(texts), _maybe(texts), _maybe(texts))
    parts = st.builds(
        m.Part,
        *(_maybe(texts), _maybe(calls), _maybe(answers), _maybe(st.booleans()), opaque),
        *(_maybe(blobs), _maybe(files)),
        *[opaque] * 10,
    )
    contents = st.builds(m.Content, _maybe(texts), _maybe(_tuples(parts)))
    data = st.builds(
        m.IntermediateData, _tuples(calls), _tuples(answers), _tuples(st.tuples(texts, _tuples(parts)))
    )
    event = st.builds(m.InvocationEvent, texts, _maybe(contents), opaque, opaque, _maybe(texts))
    events = st.builds(m.InvocationEvents, _tuples(event))
    rubrics = _maybe(
        _tuples(st.builds(m.Rubric, texts, st.builds(m.RubricContent, texts), _maybe(texts), _maybe(texts)))
    )
    agents = st.builds(m.AgentDetails, texts, texts, _tuples(opaque))
    apps = st.builds(m.AppDetails, st.dictionaries(texts, agents, max_size=2))
    invocations = st.builds(
        m.Invocation,
        contents,
        texts,
        _maybe(contents),
        _maybe(data | events),
        numbers,
        *[_maybe(numbers)] * 3,
        _maybe(apps),
        rubrics,
    )
    behaviors = st.builds(UserBehavior, texts, texts, _tuples(texts), _tuples(texts))
    personas = st.builds(UserPersona, texts, texts, _tuples(behaviors))
    led = st.builds(m.ConversationScenario, texts, texts, _maybe(personas))
    sessions = st.builds(m.SessionInput, texts, texts, objects, _maybe(texts))
    rest = {
        "session_input": _maybe(sessions),
        "creation_timestamp": numbers,
        "rubrics": rubrics,
        "final_session_state": _maybe(objects),
        "agentest": _maybe(st.builds(m.AgentestKeys, _maybe(st.booleans()), _maybe(_tuples(texts)))),
    }
    written = st.builds(m.EvalCase, texts, conversation=_tuples(invocations, least=1), **rest)
    scenarios = st.builds(m.EvalCase, texts, conversation_scenario=led, **rest)
    cases = st.lists(written | scenarios, min_size=1, max_size=2, unique_by=lambda case: case.eval_id)
    return st.builds(m.EvalSet, texts, cases.map(tuple), _maybe(texts), _maybe(texts), numbers)
