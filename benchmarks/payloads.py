"""Request bodies for the bare clients: of the form and the size of those that Agentest sends."""

from __future__ import annotations

from typing import Any

from benchmarks.workload import LABEL_JUDGES, LINE, TOOL, TURN_JUDGES

Payload = dict[str, Any]

_PROMPT = "You judge one turn of a conversation between a user and an assistant. " * 14
_EXCHANGE = f'<data name="user">\n{LINE}\n</data>\n' + "What was said and which tools were called. " * 16
_QUESTION = "Question: how good is the reply in the turn to judge? Give an integer from 1 to 5. " * 7
_REPLY = "There are two openings in the morning, at 09:00 and at 10:30; which one shall I book? " * 4

GOAL_JUDGE = "goal_completion"


def user_payload(turn: int) -> Payload:
    """What the simulated user's model is asked before a turn."""
    said = [
        message
        for _ in range(turn)
        for message in ({"role": "assistant", "content": LINE}, {"role": "user", "content": _REPLY})
    ]
    messages = [{"role": "system", "content": _PROMPT}, {"role": "user", "content": "Begin."}, *said]
    form = {"message": {"type": "string"}, "should_stop": {"type": "boolean"}}
    return _asking(messages, "UserMessage", form)


def agent_payload(turn: int, after_tool: bool) -> Payload:
    """What the agent gets: the whole conversation, with the tool's result or without."""
    messages: list[Payload] = []
    for _ in range(turn):
        messages += [{"role": "user", "content": LINE}, *_tool_round()]
        messages.append({"role": "assistant", "content": _REPLY})
    messages.append({"role": "user", "content": LINE})
    return {"messages": [*messages, *_tool_round()] if after_tool else messages}


def judge_payload(turn: int, metric: str) -> Payload:
    """What a judge of a turn, or of a conversation after that turn, is asked."""
    content = _EXCHANGE * (turn + 1) + _QUESTION
    messages = [{"role": "system", "content": _PROMPT}, {"role": "user", "content": content}]
    return _asking(messages, "Answer", {"reason": {"type": "string"}, "value": {"enum": _values(metric)}})


def _values(metric: str) -> list[Any]:
    if metric in TURN_JUDGES:
        return [1, 2, 3, 4, 5]
    return ["no failure", "repetition", "wrong tool"] if metric in LABEL_JUDGES else [0, 1]


def _tool_round() -> list[Payload]:
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": TOOL, "arguments": '{"service": "haircut"}'},
    }
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": '{"slots": ["09:00", "10:30"]}'},
    ]


def _asking(messages: list[Payload], name: str, properties: Payload) -> Payload:
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": name, "strict": True, "schema": schema}}
    return {"model": "fake", "messages": messages, "response_format": form}
