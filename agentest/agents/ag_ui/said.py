"""Which of the messages of a run are the reply, and which were said on the way to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentest.agents.ag_ui.thread import calls_of
from agentest.agents.ag_ui.wire import Wire
from agentest.agents.reading import shown
from agentest.domain.transcript import Remark
from agentest.support.errors import AgentError

BETWEEN_MESSAGES = "\n\n"


@dataclass(frozen=True, slots=True)
class Spoken:
    """What was said in a run. `text` is empty where nothing was."""

    text: str
    author: str
    remarks: tuple[Remark, ...] = ()


@dataclass(frozen=True, slots=True)
class _Text:
    at: int
    text: str
    author: str
    of_subagent: bool


def read_spoken(messages: Sequence[Wire], agent: str, subagents: Mapping[str, str]) -> Spoken:
    """The reply is what the agent says after its last call, or last of all; subagents speak on the way.

    Args:
        agent: who speaks in messages without a name.
        subagents: the names of subagents, by the ids of their runs.
    """
    texts = [
        _Text(at, text, _author(message, agent, subagents), "subagentRunId" in message)
        for at, message in enumerate(messages)
        if message["role"] == "assistant" and (text := _content(message)).strip()
    ]
    if not texts:
        return Spoken("", agent)
    reply = _reply(texts, _last_call(messages))
    remarks = tuple(Remark(text.author, text.text) for text in texts if text not in reply)
    return Spoken(BETWEEN_MESSAGES.join(text.text for text in reply), reply[0].author, remarks)


def _reply(texts: Sequence[_Text], last_call: int) -> list[_Text]:
    own = [text for text in texts if not text.of_subagent] or texts
    return [text for text in own if text.at > last_call] or [own[-1]]


def _last_call(messages: Sequence[Wire]) -> int:
    calls = (at for at, m in enumerate(messages) if m["role"] == "tool" or calls_of(m))
    return max(calls, default=-1)


def _author(message: Wire, agent: str, subagents: Mapping[str, str]) -> str:
    name = message.get("name") or subagents.get(message.get("subagentRunId") or "")
    return name if isinstance(name, str) else agent


def _content(message: Wire) -> str:
    """The text of a message: a text, nothing, or parts with texts among them."""
    content = message.get("content")
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, Mapping)]
        return "".join(text for text in texts if isinstance(text, str))
    if content is not None and not isinstance(content, str):
        raise AgentError(f"the `content` of a message of the agent is not a text: {shown(content)}")
    return content or ""
