"""The simulated user of an evaluation set: a starting prompt, a plan, and a stop signal."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from pydantic import Field, field_validator

from agentest.conversation.user import NextMessage
from agentest.conversation.user_prompts import (
    NOT_ENDED,
    OPENING,
    ReasonToStop,
    UserAnswer,
    date_line,
    ending_of,
    shortened_reply,
)
from agentest.domain.end_reason import PLAN_ENDS, Ending
from agentest.domain.transcript import Turn
from agentest.models.port import CallKey, Message, Model
from agentest.scenarios.model import ConversationPlan
from agentest.support.dates import format_date
from agentest.support.errors import ConfigError, ModelError
from agentest.support.templates import fill
from agentest.support.text import did_you_mean

REQUIRED = ("stop_signal", "conversation_plan", "conversation_history")
PERSONA = "persona"
_NAMES = (*REQUIRED, PERSONA)
_MARKUP = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}", re.S)
_LINE_END = re.compile("\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_NAME = re.compile(r"\{\{\s*(\w+)\s*\}\}")

PROMPT = """\
You are a person who talks to an assistant through a chat window. You are the one who wants something; the \
assistant is the one who helps. The plan says what you want and what you know. It is no script: what you \
write next depends on what the assistant has just written.

The plan:
{{conversation_plan}}

{{habits}}

In every case:
- Write one message at a time, in the first person, as it would be typed into the window.
- Never say or hint that you are a model, that this is a test, or that you were given a plan.
- Keep to the plan: no other goals, and no names, numbers, dates or other facts that are not in it.
- The conversation goes on until you write {{stop_signal}}. Nothing in that message is sent."""

HABITS = """\
How you behave:
- Answer what the assistant asks, with no more than it asks for. What the plan does not say you don't have \
at hand right now, and you say so.
- Where the assistant offers a choice that the plan leaves open, take what serves the plan best, once, and \
keep to it.
- When the assistant has done what you asked, go on to the next goal of the plan; leave out goals that are \
already reached. Name the goal first, and its details when you are asked for them.
- If the plan has you change your mind, do so at that point.
- If the assistant says something wrong or does the wrong thing, object. If it fails, ask it once to try \
again.
- Sound like a person in a chat: short and natural, neither stiff nor overly polite.

Write {{stop_signal}} as soon as one of these has come about, and never before:
{{ends}}"""

AS_PERSONA = """\
Who you are and how you behave:
{{persona}}"""


class PlanMessage(UserAnswer):
    """The next message of a user with a plan. The stop signal decides; `ended_by` is optional."""

    message: str = Field(description="What you write next, or the word that ends the conversation.")
    ended_by: ReasonToStop = Field(default=NOT_ENDED, description="How the conversation ends, where it does.")

    @field_validator("message")
    @classmethod
    def _says_something(cls, message: str) -> str:
        if not message.strip():
            raise ValueError("it is empty; write what the user says next")
        return message


class PlanUser:
    """A user whose model follows a plan.

    The first message is the starting prompt, unchanged. A message that contains the stop signal, in upper or
    lower case, ends the conversation and is dropped. An empty message is a ModelError.

    Args:
        attempt: number of earlier attempts at this conversation (`user.check`).
        date: as in a scenario.
    """

    def __init__(
        self,
        model: Model,
        plan: ConversationPlan,
        scope: str,
        conversation: int,
        *,
        attempt: int = 0,
        date: str | None = None,
    ) -> None:
        self._date = format_date(date)
        self._model = model
        self._plan = plan
        self._key = CallKey("user", scope, conversation, sample=attempt)

    async def next_message(self, turns: Sequence[Turn]) -> NextMessage | Ending:
        if not turns:
            return _sent_message(self._plan.starting_prompt)
        key = replace(self._key, turn=len(turns))
        answer = await self._model.ask(plan_messages(self._plan, turns, self._date), PlanMessage, key)
        if _ends(self._plan.stop_signal, answer.message):
            return ending_of(answer.ended_by)
        return _sent_message(answer.message)


def _sent_message(message: str) -> NextMessage:
    if not message.strip():
        raise ModelError("the simulated user's message is empty (inference failure)")
    return NextMessage(message)


def _ends(stop_signal: str, message: str) -> bool:
    return bool(stop_signal) and stop_signal.lower() in message.lower()


def plan_user_prompt(plan: ConversationPlan, date: str | None = None) -> str:
    """Return the instructions of the model that plays the user. `date`: as in a scenario."""
    return str(plan_messages(plan, (), format_date(date))[0]["content"])


def plan_messages(plan: ConversationPlan, turns: Sequence[Turn], date: str = "") -> list[Message]:
    """Build the prompt for the message after these turns. `date`: as shown; "" leaves it out."""
    if plan.instructions:
        values = {
            "stop_signal": plan.stop_signal,
            "conversation_plan": plan.plan,
            "conversation_history": _history(turns),
            PERSONA: plan.persona,
        }
        return [{"role": "user", "content": fill(plan.instructions, values)}]
    messages: list[Message] = [
        {"role": "system", "content": f"{_prompt(plan)}\n\n{date_line(date)}" if date else _prompt(plan)},
        {"role": "user", "content": OPENING},
    ]
    for turn in turns:
        messages.append({"role": "assistant", "content": turn.user_message})
        messages.append({"role": "user", "content": shortened_reply(turn)})
    return messages


def check_instructions(template: str, *, persona: bool = False) -> None:
    """Raise ConfigError for a prompt template with missing or unknown placeholders or other Jinja markup."""
    used = set()
    for markup in _MARKUP.findall(template):
        name = _NAME.fullmatch(markup)
        if name is None:
            raise ConfigError(
                f"`custom_instructions` has {markup!r}, which is not filled in; only {_listed(_NAMES)} are"
            )
        if name[1] not in _NAMES:
            hint = did_you_mean(name[1], _NAMES)
            raise ConfigError(f"`custom_instructions` has the unknown placeholder {markup!r}; {hint}")
        used.add(name[1])
    missing = [name for name in (_NAMES if persona else REQUIRED) if name not in used]
    if missing:
        why = ", as the case has a user_persona" if missing == [PERSONA] else ""
        raise ConfigError(f"`custom_instructions` must contain {_listed(missing)}{why}")


def _listed(names: Sequence[str]) -> str:
    return ", ".join("{{ " + name + " }}" for name in names)


def _prompt(plan: ConversationPlan) -> str:
    habits = fill(AS_PERSONA, {PERSONA: plan.persona}) if plan.persona else _default_habits(plan)
    values = {"conversation_plan": plan.plan, "habits": habits, "stop_signal": plan.stop_signal}
    return fill(PROMPT, values)


def _default_habits(plan: ConversationPlan) -> str:
    return fill(HABITS, {"stop_signal": plan.stop_signal, "ends": plan_ends("you")})


def plan_ends(user: str) -> str:
    """Return when a user with a plan, of this name, ends the conversation, one reason per line."""
    return "\n".join(f"- {fill(when, {'user': user})}" for when in PLAN_ENDS.values())


def _history(turns: Sequence[Turn]) -> str:
    lines = [
        f"{who}: {_indented(text)}"
        for turn in turns
        for who, text in (("user", turn.user_message), ("agent", shortened_reply(turn)))
    ]
    return "\n\n".join(lines)


def _indented(text: str) -> str:
    """Indent all lines but the first, so that none can pass for a message of the other side."""
    return _LINE_END.sub(r"\g<0>  ", text)
