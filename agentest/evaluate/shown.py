"""What judges are shown: the background and the conversation, as data that cannot pass for an instruction.

Everything that an agent, a tool, a user or a scenario wrote stands inside `<data>` blocks, with `<`, `>` and
`&` escaped, so that nothing written there can end a block. What is the same for many questions comes first:
providers charge little for a beginning that they have seen before.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from agentest.evaluate.background import Background
from agentest.storing import shortened
from agentest.support.json_text import safe_repr
from agentest.support.moments import shown_moment
from agentest.transcript import NO_TEXT, ToolCall, Turn


def escaped(text: str) -> str:
    """A text for the inside of a data block."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def block(name: str, text: str, turn: int | None = None) -> str:
    """A data block; the only place where such delimiters are written. A very long text is shortened."""
    at = "" if turn is None else f' turn="{turn}"'
    return f'<data name="{name}"{at}>\n{escaped(shortened(text))}\n</data>'


def turn_context(background: Background, turns: Sequence[Turn]) -> str:
    """The shared beginning of all questions about a turn, the last of `turns`."""
    parts = [*background_parts(background), "The conversation:", *_turns(turns[:-1])]
    return "\n\n".join([*parts, "The turn to judge:", *_turn(turns[-1])])


def conversation_context(background: Background, turns: Sequence[Turn]) -> str:
    """The shared beginning of all questions about a conversation."""
    return "\n\n".join([*background_parts(background), "The conversation:", *_turns(turns)])


def background_parts(background: Background) -> list[str]:
    """What is known besides the conversation; what is not known is left out."""
    facts = "\n".join(f"- {fact}" for fact in background.knowledge)
    blocks = {
        "assistant_instructions": background.instructions,
        "assistant_tools": background.tools,
        "user_goal": background.goal,
        "user_profile": background.profile,
        "knowledge": facts,
        "expected_outcome": background.expected_outcome,
        "date_and_time": shown_moment(background.started_at),
    }
    return [block(name, text) for name, text in blocks.items() if text]


def _turns(turns: Iterable[Turn]) -> list[str]:
    return [part for turn in turns for part in _turn(turn)]


def _turn(turn: Turn) -> list[str]:
    return [
        block("user", turn.user_message, turn.turn_index),
        *(block("tool_call", _call_record(call), turn.turn_index) for call in turn.tool_calls),
        block("assistant", turn.agent_message or NO_TEXT, turn.turn_index),
    ]


def _call_record(call: ToolCall) -> str:
    record = {"tool": call.name, "arguments": call.args, "result": call.result}
    try:
        return json.dumps(record, ensure_ascii=False, default=repr)
    except (TypeError, ValueError, RecursionError):  # a Python agent's arguments need not be JSON
        return safe_repr(record)
