"""From an agent's finished work to its reply: which text it is, and what was said and done besides."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from agentest.agents.a2a.reader import Artifact, Json, Part, as_json, mapping_at, text_at
from agentest.agents.a2a.task import INPUT_REQUIRED, Heard, Work
from agentest.agents.json_reader import read_result, shown
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import ARGUMENTS_UNTOLD, Remark, ToolCall, Usage
from agentest.support.errors import AgentError

_BETWEEN_ARTIFACTS = "\n\n"
_AUTHOR, _EVENT, _USAGE = "adk_author", "adk_event_id", "adk_usage_metadata"
_INTERRUPT = ({"id", "value"}, {"id", "value", "response_schema"})
"""Keys of the data with which LangGraph's server asks for input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What an agent said about one message of the user."""

    text: str | None
    remarks: tuple[Remark, ...] = ()
    author: str | None = None
    first_ms: float | None = None
    """When the first piece of the text came; None: all came at once."""


def check_ended_well(work: Work, credentials: str) -> None:
    """Raise AgentError for work that failed; `credentials` says which ones the agent's card asks for."""
    if work.message is not None or work.state in ("completed", INPUT_REQUIRED):
        return
    text = spoken(work.status.message.parts) if work.status and work.status.message else ""
    said = f": {text}" if text else ", and it does not say why"
    match work.state:
        case "rejected":
            raise AgentError(f"the agent rejected the task{said}")
        case "canceled":
            raise AgentError(f"the agent canceled the task{said}")
        case "auth-required":
            asks = f"; its card asks for {credentials}" if credentials else ""
            raise AgentError(
                f"the agent's task wants credentials (auth-required){said}{asks}; `headers` of the agent are "
                "sent with every request"
            )
    raise AgentError(f"the agent's task failed{said}")


def parts_of(work: Work) -> list[Part]:
    """All parts that the agent has sent, in order."""
    heard = [part for heard in work.heard for part in heard.message.parts]
    return heard + [part for artifact in work.artifacts.values() for part in artifact.parts]


def tells_calls(work: Work) -> bool:
    """Whether the answer shows that its server tells of all calls."""
    heard = [one for heard in work.heard for one in (heard.metadata, heard.message.metadata)]
    of_artifacts = [artifact.metadata for artifact in work.artifacts.values()]
    adk = is_adk([*work.metadata, *heard, *of_artifacts, work.task_metadata])
    return adk or tells_results(parts_of(work))


def read_said(work: Work, name: str, given: Mapping[str, str]) -> Said:
    """What the agent said.

    Args:
        name: the agent's, for remarks whose author is not told.
        given: artifact → its text, of those that earlier turns have shown.
    """
    artifacts = list(_new_artifacts(work, given))
    text, used = _chosen(work, artifacts, given)
    if not text.strip():
        text = ("" if _has_artifact(work, given) else _last_heard(work)) or _in_place_of_text(work)
    told = [(_author_of(heard, name), spoken(heard.message.parts)) for heard in work.heard]
    told += [(_author(artifact.metadata) or name, one) for artifact, one in artifacts]
    return Said(
        text=text or None,
        remarks=tuple(_remarks(told, {text.strip(), *(one.strip() for one in used.values())})),
        author=_last_author(work),
        first_ms=_first_ms(work, text, used),
    )


def _chosen(
    work: Work, artifacts: Sequence[tuple[Artifact, str]], given: Mapping[str, str]
) -> tuple[str, Mapping[str, str]]:
    """The text of the reply, "" for none, and the artifacts that it is made of.

    Artifacts are the reply, also where they have no text: what was said on the way does not replace them.
    """
    if work.message is not None:
        return spoken(work.message.parts), {}
    asked = spoken(work.status.message.parts) if work.status and work.status.message else ""
    if asked and work.state == INPUT_REQUIRED:
        return asked, {}
    used = _of_the_reply(artifacts)
    if used or _has_artifact(work, given):
        return _BETWEEN_ARTIFACTS.join(used.values()), used
    return asked, {}


def _has_artifact(work: Work, given: Mapping[str, str]) -> bool:
    """Whether the agent has answered with an artifact that no earlier turn has shown."""
    if work.message is not None or work.state == INPUT_REQUIRED:
        return False
    return any(given.get(artifact.id) != spoken(artifact.parts) for artifact in work.artifacts.values())


def given_artifacts(work: Work) -> dict[str, str]:
    """Artifact → its text: what a task that goes on has shown so far."""
    return {artifact.id: spoken(artifact.parts) for artifact in work.artifacts.values()}


def spoken(parts: Sequence[Part]) -> str:
    """What parts say to the user: texts joined with nothing, else data as JSON; then the files' names."""
    outer = [part for part in parts if not is_inner(part)]
    text = "".join(part.text for part in outer if part.text)
    if not text:
        text = "\n".join(_data_text(part.data) for part in outer if part.has_data)
    return "\n".join(filter(None, [text, *(part.file for part in outer if part.file)]))


def _data_text(data: Any) -> str:
    if isinstance(data, Mapping) and data.keys() in _INTERRUPT:
        data = data["value"]
    return data if isinstance(data, str) else as_json(data)


def _new_artifacts(work: Work, given: Mapping[str, str]) -> Iterator[tuple[Artifact, str]]:
    """The artifacts with their texts, but for what earlier turns have shown of them."""
    for artifact in work.artifacts.values():
        text, before = spoken(artifact.parts), given.get(artifact.id, "")
        text = text.removeprefix(before) if before else text
        if text.strip():
            yield artifact, text


def _of_the_reply(artifacts: Sequence[tuple[Artifact, str]]) -> dict[str, str]:
    """The artifacts that are the reply: all, but of those that stand for google-adk's events the last."""
    events = [artifact.id for artifact, _ in artifacts if _EVENT in artifact.metadata]
    return {artifact.id: text for artifact, text in artifacts if artifact.id not in events[:-1]}


def _last_heard(work: Work) -> str:
    texts = [spoken(heard.message.parts) for heard in work.heard]
    return next((text for text in reversed(texts) if text.strip()), "")


def _in_place_of_text(work: Work) -> str:
    """What stands for a text: a call that waits for a word of the user, an answer that nobody sums up."""
    last = parts_of(work)[-1:]
    for part in last:
        call, response = call_of(part), response_of(part)
        if call is not None and work.state == INPUT_REQUIRED:
            return as_json({"name": call["name"], "args": call.get("args", {})})
        if response is not None:
            return as_json(response.get("response"))
    return ""


def _remarks(told: Sequence[tuple[str, str]], reply: Set[str]) -> Iterator[Remark]:
    """What was said beside the reply and its pieces, each once.

    Of texts that grow from message to message, the reply as the last of them, the whole is told alone.
    """
    texts = [(author, text.strip()) for author, text in told]
    kept: set[tuple[str, str]] = set()
    for at, (author, text) in enumerate(texts):
        grows = at + 1 < len(texts) and texts[at + 1][1].startswith(text)
        said = any(whole.startswith(text) for whole in reply)
        if text and not grows and not said and (author, text) not in kept:
            kept.add((author, text))
            yield Remark(author, text)


def _author(metadata: Json) -> str:
    return text_at(metadata, _AUTHOR)


def _author_of(heard: Heard, name: str) -> str:
    return _author(heard.metadata) or _author(heard.message.metadata) or name


def _last_author(work: Work) -> str | None:
    """Who gave the reply, where all who say something are told: a finished task alone names the last one."""
    told = [_author(one) for one in work.metadata]
    told += [_author(artifact.metadata) for artifact in work.artifacts.values()]
    return next((author for author in reversed(told) if author), None)


def _first_ms(work: Work, reply: str, shown: Container[str]) -> float | None:
    pieces = [came for artifact, came in work.came_ms.items() if artifact in shown]
    for heard in work.heard:
        text = spoken(heard.message.parts).strip()
        if heard.at_ms is not None and text and reply.strip().startswith(text):
            pieces.append(heard.at_ms)
    return min(pieces, default=None)


def read_usage(work: Work, known: set[str]) -> tuple[Usage, int | None]:
    """Tokens that google-adk reports of each answer of a model, and how many answers there were.

    A task that is told only when it has ended has those of its last answer alone, and no number of answers.

    Args:
        known: ids of the events that were counted before; those of this work are added.
    """
    told = [*work.metadata, *(artifact.metadata for artifact in work.artifacts.values())]
    counted = [_tokens(one) for one in told if _is_new(one, known)]
    if not counted and _is_new(work.task_metadata, known):
        return _tokens(work.task_metadata), None
    return sum(counted, Usage()), len(counted) or None


def _is_new(metadata: Json, known: set[str]) -> bool:
    event = text_at(metadata, _EVENT)
    if not mapping_at(metadata, _USAGE) or event in known:
        return False
    if event:
        known.add(event)
    return True


def _tokens(metadata: Json) -> Usage:
    reported = mapping_at(metadata, _USAGE)

    def count(key: str) -> int:
        value = reported.get(key)
        if not isinstance(value, int | float) or isinstance(value, bool):
            return 0
        return max(0, int(value))  # numbers have become floating ones on the way

    return Usage(count("promptTokenCount"), count("candidatesTokenCount"), count("cachedContentTokenCount"))


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
