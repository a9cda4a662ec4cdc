"""A conversation's messages in OpenAI's format."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentest.agents.chat_completions import from_wire, to_wire
from agentest.domain.messages import AgentMessage, ToolRequest, ToolResult, UserText

TEXT = st.text(max_size=20)
REQUESTS = st.builds(ToolRequest, id=TEXT, name=st.text(min_size=1, max_size=20), arguments=TEXT)
AGENT_MESSAGES = st.builds(
    AgentMessage, text=TEXT | st.none(), tool_requests=st.lists(REQUESTS, max_size=3).map(tuple)
)


def test_the_format_of_each_message() -> None:
    """User text, tool calls, their results and the reply are written as chat completions."""
    request = ToolRequest("call_1", "find", '{"day": "friday"}')
    function = {"name": "find", "arguments": '{"day": "friday"}'}
    assert to_wire(
        [
            UserText("When?"),
            AgentMessage(None, (request,)),
            ToolResult("call_1", "find", '["9:00"]'),
            AgentMessage("At nine."),
            UserText("Thanks."),
            AgentMessage(""),
        ]
    ) == [
        {"role": "user", "content": "When?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": '["9:00"]'},
        {"role": "assistant", "content": "At nine."},
        {"role": "user", "content": "Thanks."},
        {"role": "assistant", "content": ""},
    ]


@given(AGENT_MESSAGES)
def test_a_message_round_trip(message: AgentMessage) -> None:
    """Reading a written message gives the same message."""
    assert from_wire(to_wire([message])[0]) == message


def test_written_messages_are_copies() -> None:
    """A handler that changes its messages does not change the conversation."""
    said = [AgentMessage("Hi", (ToolRequest("1", "find", "{}"),))]
    first = to_wire(said)
    first[0]["tool_calls"][0]["function"]["name"] = "lose"
    first.append({"role": "user", "content": "?"})
    assert to_wire(said) == to_wire([AgentMessage("Hi", (ToolRequest("1", "find", "{}"),))])
