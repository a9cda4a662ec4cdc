"""The mocks of a scenario: the option `tools`, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentest.mocks.binding import Mock, MockSequence, bind
from agentest.mocks.http_response import HttpResponse
from agentest.scenarios.matchers.checking import word_in_value
from agentest.scenarios.matchers.showing import brief
from agentest.scenarios.parsing import known_keys
from agentest.support.json_text import NotJson, json_text


def parse_tools(options: Mapping[str, Any]) -> dict[str, Mock]:
    """The mocks under `tools`, or under `mocks.tools`, checked. Raises ValueError."""
    if "mocks" in options and "tools" in options:
        raise ValueError("tools: is given twice, as `tools` and as `mocks`")
    if "mocks" in options:
        tools = known_keys(options["mocks"], ("tools",), "mocks").get("tools", {})
    else:
        tools = options.get("tools", {})
    return _mocks(tools, "tools")


def parse_user_tools(tools: Any, *, scripted: bool, key: str = "user_tools") -> dict[str, Mock]:
    """The simulated user's own tools, checked; empty where there are none. Raises ValueError."""
    if tools is None:
        return {}
    if scripted:
        raise ValueError(f"{key}: is for a simulated user; a script calls no tools, so leave it out")
    return _mocks(tools, key)


def _mocks(tools: Any, key: str) -> dict[str, Mock]:
    if not isinstance(tools, Mapping):
        raise ValueError(f"{key}: expected a dict from tool name to mock, found {brief(tools)}")
    return {_name(name, key): _mock(mock, f"{key}[{brief(name)}]") for name, mock in tools.items()}


def _name(name: Any, key: str) -> str:
    if not isinstance(name, str):
        raise ValueError(f"{key}: expected a text, found {brief(name)}")
    if not name.strip():
        raise ValueError(f"{key}: is empty")
    return name


def _mock(mock: Any, key: str) -> Mock:
    """A mock with its functions' signatures read and its plain values known to be JSON."""
    if isinstance(mock, MockSequence):
        return MockSequence(tuple(_step(step, f"{key}, step {i}") for i, step in enumerate(mock.steps)))
    if isinstance(mock, type) and issubclass(mock, BaseException):
        raise ValueError(f'{key}: is a class; write {mock.__name__}("…") to make the tool fail')
    return _step(mock, key)


def _step(step: Any, key: str) -> Any:
    if isinstance(step, HttpResponse):
        _step(step.body, key)
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
