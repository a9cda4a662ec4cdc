"""Parse the options `state`, `check`, `tools` and `user_tools` of a scenario.

Invalid values raise ValueError with a message that names the option.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from functools import lru_cache
from typing import Any

from agentest.mocks.binding import Mock, MockSequence, bind
from agentest.mocks.http_response import HttpResponse
from agentest.scenarios.check_source import find_check_flaw
from agentest.scenarios.matchers.display import brief
from agentest.scenarios.matchers.validity import word_in_value
from agentest.scenarios.parser import has_text_keys, kind_of, known_keys
from agentest.support.functions import accepted_values
from agentest.support.json_text import BuiltinState, NotJson, builtin_bytes, json_text

CHECK_PARAMETERS = ("conversation", "state")
"""Parameters that a `check` may have."""


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
    """Return one value for all scenarios with the same state, which may be large."""
    return BuiltinState(data)


def _copied_state(state: Mapping[str, Any], key: str) -> dict[str, Any]:
    if (word := word_in_value(state)) is not None:
        found = brief(word)
        raise ValueError(f"{key}: {found} is for what is expected, and no value of a state")
    memo: dict[int, Any] = {}  # shared, so that objects used by two keys are copied once
    return {name: _copied_value(value, memo, f"{key}[{brief(name)}]") for name, value in state.items()}


def _copied_value(value: Any, memo: dict[int, Any], key: str) -> Any:
    try:
        return deepcopy(value, memo)
    except Exception as error:  # noqa: BLE001 - users' copy methods may raise anything
        raise ValueError(
            f"{key}: cannot be copied, and each conversation has a copy of its own "
            f"({brief(error)}); let a mock make it: "
            f'ctx.state.setdefault("name", …)'
        ) from None


def parse_check(value: Any, key: str = "check") -> Any:
    """Return the function that checks a conversation; None if there is none."""
    if value is None:
        return None
    if not callable(value) or isinstance(value, type):
        found = brief(value)
        raise ValueError(f"{key}: expected a function of the conversation and the state, found {found}")
    try:
        accepted_values(value, CHECK_PARAMETERS)
    except TypeError as error:
        raise ValueError(f"{key}: the function cannot be called: {error}") from None
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
    return _mocks(tools, "tools")


def parse_user_tools(tools: Any, *, scripted: bool, key: str = "user_tools") -> dict[str, Mock]:
    """Return the simulated user's validated tools; empty if there are none. Raises ValueError."""
    if tools is None:
        return {}
    if scripted:
        raise ValueError(f"{key}: is for a simulated user; a script calls no tools, so leave it out")
    return _mocks(tools, key)


def _mocks(tools: Any, key: str) -> dict[str, Mock]:
    if not isinstance(tools, Mapping):
        raise ValueError(f"{key}: expected a dict from tool name to mock, found {brief(tools)}")
    return {
        _tool_name(name, key): _checked_mock(mock, f"{key}[{brief(name)}]") for name, mock in tools.items()
    }


def _tool_name(name: Any, key: str) -> str:
    if not isinstance(name, str):
        raise ValueError(f"{key}: expected a text, found {brief(name)}")
    if not name.strip():
        raise ValueError(f"{key}: is empty")
    return name


def _checked_mock(mock: Any, key: str) -> Mock:
    """Validate a mock: bind its functions, and check that plain values are JSON."""
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
    if _is_exception(step):
        return step
    if callable(step):
        try:
            return bind(step)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{key}: the function cannot be called with a tool's arguments: {error}"
            ) from None
    _refuse_words(step, key)
    try:
        json_text(step)
    except NotJson as error:
        raise ValueError(f"{key}: the answer is not JSON-serialisable: {error}") from None
    return step


def _refuse_words(answer: Any, key: str) -> None:
    word = word_in_value(answer)
    if word is not None:
        raise ValueError(f"{key}: {brief(word)} is for what is expected, and no answer of a mock")


def _is_exception(value: Any) -> bool:
    return isinstance(value, BaseException) or (isinstance(value, type) and issubclass(value, BaseException))
