"""The tool calls of one run: put together from pieces, and turned into calls made or asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentest.agents.reading import read_any, read_arguments
from agentest.domain.messages import ToolRequest
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import ToolCall
from agentest.support.errors import AgentError

_CUT_SHORT = "the run ended before it was answered"


@dataclass(slots=True)
class Call:
    """One call as far as it has been told."""

    id: str
    name: str = ""
    pieces: list[str] = field(default_factory=list)
    """Of the arguments, as they were streamed."""
    in_snapshot: str | None = None
    """The arguments as the last list of all messages had them."""
    content: Any = None
    """What it was answered, as it was told."""
    answered: bool = False
    ended: bool = False
    """Whether the agent has written it to its end."""

    @property
    def arguments(self) -> str:
        """The text of the arguments. A snapshot wins: some servers lose the first piece of a stream."""
        streamed = "".join(self.pieces)
        told = [text for text in (self.in_snapshot, streamed) if text and text.strip()]
        return next((text for text in told if _is_object(text)), told[0] if told else "")

    def begin(self, name: str) -> None:
        """A call begins; one that has a name already is told anew, as when an interrupted run goes on."""
        if self.name:
            self.pieces.clear()
        self.name = name

    def list(self, function: Mapping[str, Any]) -> None:
        """Take what a list of all messages says of it."""
        arguments = function.get("arguments")
        self.name, self.in_snapshot = function["name"], arguments if isinstance(arguments, str) else None

    def answer(self, content: Any) -> None:
        self.content, self.answered = content, True

    def requested(self) -> ToolRequest:
        """The call as one that is ours to answer."""
        return ToolRequest(self.id, self.name, self.arguments)

    def made(self, turn_index: int, error: str | None = None) -> ToolCall:
        """The call as one that the agent has made itself; `error` says why it has no result."""
        args, problem = read_arguments(self.arguments)
        return ToolCall(
            name=self.name,
            args=args,
            result=_read_result(self.content),
            mocked=False,
            turn_index=turn_index,
            invalid_arguments=problem,
            error=error,
            seen_by=SeenBy.AGENT,
            call_id=self.id,
        )

    def made_or_begun(self, turn_index: int) -> ToolCall:
        """The call of a run that has failed, perhaps before anybody answered it."""
        return self.made(turn_index, None if self.answered else _CUT_SHORT)


def told_once(calls: Sequence[Call], listed: Sequence[str]) -> list[Call]:
    """The calls as they were made, each once. Raises AgentError for one that never had a name.

    Args:
        calls: in the order in which they were told; one that was told twice and answered once is one call.
        listed: ids in the order of a snapshot, which has what was not streamed in its place.
    """
    for call in calls:
        if not call.name:
            raise AgentError(
                f"the agent told of a tool call {call.id!r} without its name: expected a TOOL_CALL_START "
                "with `toolCallId` and `toolCallName`"
            )
    once = [call for at, call in enumerate(calls) if not _told_again(call, calls[at + 1 :])]
    if not listed:
        return once
    by_id: dict[str, list[Call]] = {}
    for call in once:
        by_id.setdefault(call.id, []).append(call)
    order = _in_order(list(by_id), list(dict.fromkeys(listed)))
    return [call for identifier in order for call in by_id.get(identifier, ())]


def _told_again(call: Call, later: Sequence[Call]) -> bool:
    return not call.answered and any(
        (call.id, call.name, call.arguments) == (other.id, other.name, other.arguments) for other in later
    )


def _in_order(told: Sequence[str], listed: Sequence[str]) -> list[str]:
    """Ids of calls in the order of a snapshot; one that it lacks comes behind its neighbour in the stream."""
    order, at = list(listed), 0
    for identifier in told:
        if identifier in order:
            at = order.index(identifier) + 1
        else:
            order.insert(at, identifier)
            at += 1
    return order


def _is_object(text: str) -> bool:
    return isinstance(read_any(text), Mapping)


def _read_result(content: Any) -> Any:
    """A result, read where it is a JSON object or list; parts of text are joined."""
    if isinstance(content, list) and all(map(_is_text, content)):
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str) or not content.lstrip().startswith(("{", "[")):
        return content
    return read_any(content)


def _is_text(part: Any) -> bool:
    return isinstance(part, Mapping) and isinstance(part.get("text"), str)
