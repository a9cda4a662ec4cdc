"""Parse the options `state`, `check`, `tools` and `user_tools` of a scenario.

Invalid values raise ValueError with a message that names the option.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import lru_cache
from typing import Any

from agentest.domain.changes import TOOL_FAULTS, ChangedAnswers, Fault
from agentest.mocks.binding import Mock, MockSequence, bind
from agentest.mocks.calls import HttpResponse
from agentest.scenarios.matchers.display import brief
from agentest.scenarios.matchers.validity import word_in_value
from agentest.scenarios.model import Persona
from agentest.scenarios.parser import (
    ProblemCollector,
    checked,
    has_text_keys,
    kind_of,
    known_keys,
    nonempty_text,
)
from agentest.support.calling import accepted_values
from agentest.support.errors import ToolError, errors_as
from agentest.support.json_text import BuiltinState, NotJson, builtin_bytes, json_text
from agentest.support.text import snake_case

CHECK_PARAMETERS = ("conversation", "state")


OF_MODEL = "a fault of the agent's model; write it in `model_faults`"


def parse_profile(value: Any, key: str) -> str | Persona:
    """Parse a text, a `Persona`, or a dict with the arguments of `persona`. Raises ValueError."""
    if isinstance(value, str | Persona):
        return value
    from agentest.scenarios.personas import parse_persona

    return parse_persona(value, key)


def parse_state(value: Any, key: str = "state") -> Mapping[str, Any] | None:
    """Return a copy of the mocks' initial state; None if there is none."""
    if value is None or isinstance(value, BuiltinState):
        return value
    if not has_text_keys(value):
        raise ValueError(f"{key}: expected a dict with texts as keys, found {kind_of(value)}")
    data = builtin_bytes(dict(value))
    return _copied_state(value, key) if data is None else _cached_state(data)


@lru_cache(maxsize=8)
def _cached_state(data: bytes) -> BuiltinState:
    return BuiltinState(data)


def _copied_state(state: Mapping[str, Any], key: str) -> dict[str, Any]:
    if (word := word_in_value(state)) is not None:
        value_text = brief(word)
        raise ValueError(f"{key}: {value_text} is a matcher for expectations, not for the mocks' state")
    memo: dict[int, Any] = {}  # shared, so that objects used by two keys are copied once
    copy: dict[str, Any] = {}
    for name, value in state.items():
        try:
            copy[name] = deepcopy(value, memo)
        except Exception as error:  # noqa: BLE001 - users' copy methods may raise anything
            raise ValueError(
                f"{key}[{brief(name)}]: cannot be copied, and each conversation has a copy of its own "
                f'({brief(error)}); let a mock make it: ctx.state.setdefault("name", …)'
            ) from None
    return copy


def parse_check(value: Any, key: str = "check") -> Any:
    """Return the function that checks a conversation; None if there is none."""
    if value is None:
        return None
    is_function = callable(value) and not isinstance(value, type)
    checked(value, key, "a function of the conversation and the state", is_function)
    with errors_as(ValueError, f"{key}: the function cannot be called: ", TypeError):
        accepted_values(value, CHECK_PARAMETERS)
    from agentest.scenarios.function_source import find_check_flaw

    if flaw := find_check_flaw(value):
        raise ValueError(f"{key}: {flaw}")
    return value


def parse_tools(options: Mapping[str, Any]) -> dict[str, Mock]:
    """Return the validated mocks under `tools` or `mocks.tools`. Raises ValueError."""
    if "mocks" in options and "tools" in options:
        raise ValueError("tools: is given twice, as `tools` and as `mocks`")
    if "mocks" in options:
        tools = known_keys(options["mocks"], ("tools",), "mocks").get("tools", {})
    else:
        tools = options.get("tools", {})
    return {} if tools == "simulate" else _mocks(tools, "tools")


def parse_user_tools(tools: Any, *, scripted: bool, key: str = "user_tools") -> dict[str, Mock]:
    """Return the simulated user's validated tools; empty if there are none. Raises ValueError."""
    if tools is None:
        return {}
    if scripted:
        raise ValueError(f"{key}: is for a simulated user; a script calls no tools, so leave it out")
    return _mocks(tools, key)


def _mocks(tools: Any, key: str) -> dict[str, Mock]:
    if not isinstance(tools, Mapping):
        example = "write {'find_order': {'status': 'sent'}}"
        raise ValueError(f"{key}: expected a dict from tool name to mock, found {brief(tools)}; {example}")
    collector = ProblemCollector()
    check = _checked_data_mock if isinstance(tools, DataTools) else _checked_mock
    mocks = {
        collector.parse(nonempty_text, name, key): collector.parse(check, mock, f"{key}[{brief(name)}]")
        for name, mock in tools.items()
    }
    collector.check()
    return mocks


class DataTools(dict[str, Any]):
    """Tools of a data file, whose mocks may be written as one of `MOCK_FORMS`."""


def _checked_data_mock(mock: Any, key: str) -> Mock:
    return _checked_mock(_mock_of_data(mock, key), key)


def _mock_of_data(value: Any, key: str) -> Any:
    form = mock_form_of(value)
    if form is None:
        return value
    ((word, inner),) = value.items()
    return MOCK_FORMS[form][1](inner, f"{key}.{word}")


def mock_form_of(value: Any) -> str | None:
    """Return the word of the form that a value has in a data file; None if it stands for itself."""
    if not (isinstance(value, Mapping) and len(value) == 1):
        return None
    ((word, inner),) = value.items()
    form = snake_case(word) if isinstance(word, str) else ""
    return form if form in MOCK_FORMS and isinstance(inner, MOCK_FORMS[form][0]) else None


def _sequence_of_data(steps: list[Any], key: str) -> MockSequence:
    if not steps:
        raise ValueError(f"{key}: is empty; give at least one answer")
    made = tuple(_mock_of_data(step, f"{key}[{n}]") for n, step in enumerate(steps))
    if any(isinstance(step, MockSequence) for step in made):
        raise ValueError(f"{key}: a sequence cannot be in another one")
    return MockSequence(made)


def _http_response_of_data(value: Any, key: str) -> HttpResponse:
    options = known_keys(value, ("status", "body", "headers"), key)
    if "status" not in options:
        raise ValueError(f"{key}.status: is missing")
    headers = options.get("headers")
    checked(headers, f"{key}.headers", "a dict of texts", headers is None or has_text_keys(headers))
    with errors_as(ValueError, f"{key}: "):
        return HttpResponse(options["status"], options.get("body"), headers=headers)


MOCK_FORMS: Mapping[str, tuple[type, Callable[[Any, str], Any]]] = {
    "sequence": (list, _sequence_of_data),
    "error": (str, lambda message, _: ToolError(message)),
    "http_response": (dict, _http_response_of_data),
    # A value that is not changed, although it has one of these forms.
    "exactly": (object, lambda value, _: value),
}
"""Word → the type of its value, and its parser: what a dict with only this key stands for in a data file."""


def _checked_mock(mock: Any, key: str) -> Mock:
    if isinstance(mock, ChangedAnswers):
        if kinds := [each.kind for each in mock.changes if getattr(each, "kind", "error") not in TOOL_FAULTS]:
            raise ValueError(f"{key}: {kinds[0]!r} is {OF_MODEL}")
        return ChangedAnswers(_checked_mock(mock.mock, key), mock.changes)
    if isinstance(mock, Fault):
        raise ValueError(f"{key}: is a fault without an answer; write fault({mock.kind!r}, …).then(answer)")
    if isinstance(mock, MockSequence):
        return MockSequence(
            tuple(_checked_step(step, f"{key}, step {i}") for i, step in enumerate(mock.steps))
        )
    if isinstance(mock, type) and issubclass(mock, BaseException):
        raise ValueError(f'{key}: is a class; write {mock.__name__}("…") to make the tool fail')
    return _checked_step(mock, key)


def _checked_step(step: Any, key: str) -> Any:
    if isinstance(step, HttpResponse):
        _checked_step(step.body, key)
        return step
    if isinstance(step, BaseException) or (isinstance(step, type) and issubclass(step, BaseException)):
        return step
    if callable(step):
        problem = f"{key}: the function cannot be called with a tool's arguments: "
        with errors_as(ValueError, problem, (TypeError, ValueError)):
            return bind(step)
    if (word := word_in_value(step)) is not None:
        raise ValueError(f"{key}: {brief(word)} is a matcher for expectations, not for answers of mocks")
    with errors_as(ValueError, f"{key}: the answer is not JSON-serialisable: ", NotJson):
        json_text(step)
    return step
