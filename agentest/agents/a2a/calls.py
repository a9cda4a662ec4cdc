"""Tool calls that servers tell of, which A2A itself has no place for.

google-adk, and servers made after it, have them as data parts whose metadata says `function_call` or
`function_response`; LangGraph's server has the results alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentest.agents.a2a.reading import Json, Part
from agentest.agents.reading import read_result, shown
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import ARGUMENTS_UNTOLD, ToolCall
from agentest.support.errors import AgentError

_CALL = ("function_call", "functionCall")
_RESPONSE = ("function_response", "functionResponse")
_ADK = ("adk_app_name", "adk_session_id", "adk_invocation_id")
"""Keys of which google-adk writes some into the metadata of all that it sends."""
_EXACT = 2**53
"""Up to where a floating number is one whole number alone."""
_TOOL_RESULTS = "tool_results"


@dataclass(frozen=True, slots=True)
class Told:
    """A call of a turn, and the id by which its server knows it; "" without one."""

    id: str
    call: ToolCall


def is_adk(metadata: Iterable[Json]) -> bool:
    """Whether metadata is that of google-adk, which tells of every call of its agents."""
    return any(key in one for one in metadata for key in _ADK)


def is_inner(part: Part) -> bool:
    """Whether a part tells of the agent's inner work, and is nothing that it says to the user."""
    return bool(part.metadata.get("adk_thought")) or adk_type(part) != "" or _results(part) is not None


def adk_type(part: Part) -> str:
    """What the data of a part is to google-adk, like `function_call`; "" for other parts.

    The key is `adk_type`; in other languages and frameworks `type`, or one with a prefix of their own.
    """
    if not part.has_data or not isinstance(part.data, Mapping):
        return ""
    named = (value for key, value in part.metadata.items() if key == "type" or key.endswith("_type"))
    return next((value for value in named if isinstance(value, str)), "")


def function_of(part: Part, kinds: Sequence[str]) -> Json | None:
    """The function call or response that a part is; None for other parts. Raises AgentError."""
    if adk_type(part) not in kinds:
        return None
    if not isinstance(part.data.get("name"), str) or not part.data["name"]:
        raise AgentError(f"a `{kinds[0]}` of the agent has no name: {shown(part.data)}")
    return dict(part.data)


def call_of(part: Part) -> Json | None:
    """The function call that a part is."""
    return function_of(part, _CALL)


def response_of(part: Part) -> Json | None:
    """The response to a function call that a part is."""
    return function_of(part, _RESPONSE)


def tells_results(parts: Iterable[Part]) -> bool:
    """Whether LangGraph's server has told of results of tools."""
    return any(_results(part) is not None for part in parts)


def read_calls(parts: Sequence[Part], turn_index: int) -> list[Told]:
    """The calls in order, each once and with its result. Raises AgentError for calls without a name."""
    responses = [response for part in parts if (response := response_of(part)) is not None]
    told: dict[tuple[str, str], Told] = {}
    for number, found in enumerate(_found(parts, turn_index)):
        # Under an id that was used before, another name is another call.
        told.setdefault((found.id or f"#{number}", found.call.name), found)
    untold = [_from_response(one, turn_index) for one in responses if _id(one) and _key(one) not in told]
    return [*_with_results(list(told.values()), responses), *{one.id: one for one in untold}.values()]


def _found(parts: Iterable[Part], turn_index: int) -> Iterator[Told]:
    for part in parts:
        if (call := call_of(part)) is not None:
            args = _whole(call.get("args", {}))
            yield Told(_id(call), _observed(call["name"], args, turn_index))
        for result in _results(part) or ():
            yield _from_result(result, turn_index)


def _observed(name: str, args: Any, turn_index: int) -> ToolCall:
    return ToolCall(
        name=name, args=args, result=None, mocked=False, turn_index=turn_index, seen_by=SeenBy.AGENT
    )


def _with_results(told: list[Told], responses: Sequence[Json]) -> list[Told]:
    """The calls with their responses: by id, or the next of that name where ids are missing."""
    by_id = {_key(response): _whole(response.get("response")) for response in responses if _id(response)}
    by_name: dict[str, list[Any]] = {}
    for response in responses:
        if not _id(response):
            by_name.setdefault(response["name"], []).append(_whole(response.get("response")))
    done = []
    for one in told:
        result = one.call.result
        if (one.id, one.call.name) in by_id:
            result = by_id[one.id, one.call.name]
        elif not one.id and by_name.get(one.call.name):
            result = by_name[one.call.name].pop(0)
        done.append(replace(one, call=replace(one.call, result=result, call_id=one.id or None)))
    return done


def _results(part: Part) -> Sequence[Json] | None:
    found = part.data.get(_TOOL_RESULTS) if isinstance(part.data, Mapping) else None
    if not isinstance(found, list) or not all(isinstance(item, Mapping) for item in found):
        return None
    return found


def _from_result(result: Json, turn_index: int) -> Told:
    """A call of which only the result is told."""
    name, content = result.get("name"), result.get("content")
    if not isinstance(name, str) or not name:
        raise AgentError(f"a tool result of the agent has no name: {shown(result)}")
    call = replace(
        _observed(name, None, turn_index),
        result=read_result(content),
        error=str(content) if result.get("status") == "error" else None,
        invalid_arguments=ARGUMENTS_UNTOLD,
    )
    return Told(_id({"id": result.get("toolCallId")}), call)


def _from_response(response: Json, turn_index: int) -> Told:
    """A call of which only google-adk's response is told."""
    call = replace(
        _observed(response["name"], None, turn_index),
        result=_whole(response.get("response")),
        invalid_arguments=ARGUMENTS_UNTOLD,
        call_id=_id(response),
    )
    return Told(_id(response), call)


def _whole(value: Any) -> Any:
    """A value with whole numbers as such: what 1.x servers have them in knows floating ones alone."""
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return int(value)
    if isinstance(value, Mapping):
        return {key: _whole(item) for key, item in value.items()}
    return [_whole(item) for item in value] if isinstance(value, list) else value


def _key(function: Json) -> tuple[str, str]:
    return _id(function), function["name"]


def _id(function: Mapping[str, Any]) -> str:
    found = function.get("id")
    return found if isinstance(found, str) else ""
