"""A whole response: how it ended, and what it says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentest.agents.ignored import Ignored
from agentest.agents.port import AgentReply, NoReply
from agentest.agents.reading import read_count, read_object, shown
from agentest.agents.responses.calls import Item, check_outputs, read_calls, read_made, with_ids
from agentest.agents.responses.items import approval_asked, check_items, read_said
from agentest.domain.transcript import ToolCall, Usage
from agentest.support.errors import AgentError

RESPONSES_PLACE = "is the path right? Responses endpoints usually end with /v1/responses or /responses"
_UNDER_WAY = ("queued", "in_progress")

Response = Mapping[str, Any]
"""A response as it came. What has been received of one may lack anything."""


def read_response(body: bytes) -> Response:
    """The response in a body. Raises AgentError."""
    answer = read_object(body, RESPONSES_PLACE)
    if not answer.keys() & {"output", "status"}:
        raise AgentError(_no_response(answer))
    return answer


def is_under_way(response: Response) -> bool:
    """Whether the response is still being made."""
    return response.get("status") in _UNDER_WAY


def made_so_far(response: Response, turn_index: int) -> tuple[ToolCall, ...]:
    """The calls that the agent has made, in a response of any state. Raises nothing."""
    output = response.get("output")
    items = [i for i in output if isinstance(i, Mapping)] if isinstance(output, list) else []
    return read_made(items, turn_index)


def items_of(response: Response) -> tuple[Item, ...]:
    """The items of a finished response, as the next request brings them. Raises AgentError."""
    identifier = response.get("id")
    return with_ids(check_items(response.get("output")), f"call_{identifier or 'of_agent'}")


def reply_of(
    response: Response, turn_index: int, author: str, ignored: Ignored, before: Sequence[Item] = ()
) -> AgentReply:
    """What a response says. Raises NoReply for one that is no answer, with the calls that were made.

    Args:
        before: the items of the conversation until then.
    """
    problem = _problem(response)
    if problem is None:
        try:
            items = items_of(response)
            check_outputs(items, before)
            return _reply(items, response, turn_index, author, ignored)
        except AgentError as error:
            problem = str(error)
    raise NoReply(problem, observed=made_so_far(response, turn_index))


def _reply(
    items: tuple[Item, ...], response: Response, turn_index: int, author: str, ignored: Ignored
) -> AgentReply:
    if problem := approval_asked(items):
        raise AgentError(problem)
    calls, said = read_calls(items, turn_index), read_said(items, ignored)
    return AgentReply(
        text=said.reply,
        tool_requests=calls.requests,
        usage=_usage(response.get("usage")),
        observed=calls.made,
        remarks=said.remarks_of(author),
    )


def _usage(reported: Any) -> Usage:
    cached = reported.get("input_tokens_details") if isinstance(reported, Mapping) else None
    return Usage(
        read_count(reported, "input_tokens"),
        read_count(reported, "output_tokens"),
        read_count(cached, "cached_tokens"),
    )


def _problem(response: Response) -> str | None:
    """Why a response is no answer."""
    status = response.get("status")
    if status == "incomplete":
        return _incomplete(response)
    if status == "cancelled":
        return "the agent's response was cancelled"
    if status == "failed" or response.get("error"):
        return f"the agent's response failed: {_error(response.get('error'))}"
    if status in _UNDER_WAY:
        return f"the agent's response is still {status!r}, and has no id by which it could be asked for"
    if status not in (None, "completed"):
        return f"the agent's response has the unknown status {shown(status)!r}"
    return _no_response(response) if "output" not in response else None


def _no_response(answer: Response) -> str:
    if answer.get("error"):
        return f"the agent's response failed: {_error(answer['error'])}"
    return f"the agent's answer is no response: it has no `output`: {shown(answer)}"


def _incomplete(response: Response) -> str:
    details = response.get("incomplete_details")
    reason = shown(details.get("reason")) if isinstance(details, Mapping) else "no reason is given"
    raise_it = "; raise body.max_output_tokens, if it is yours" if reason == "max_output_tokens" else ""
    return f"the agent's response is incomplete ({reason}): it was cut before its end{raise_it}"


def _error(error: Any) -> str:
    if not isinstance(error, Mapping) or not isinstance(error.get("message"), str):
        return shown(error) if error else "no reason is given"
    code = error.get("code")
    return f"{error['message']} ({code})" if isinstance(code, str | int) and code else str(error["message"])
