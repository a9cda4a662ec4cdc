"""The users that a model plays: from a goal, a profile and knowledge, or by the plan of an evaluation set."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic import Field, field_validator

from agentest.conversation.user import NextMessage, out_of_patience
from agentest.conversation.user_prompts import (
    MAX_ROUNDS,
    NOT_ENDED,
    OPENING,
    ActingMessage,
    ActingOpening,
    OpeningMessage,
    ReasonToStop,
    ToolUse,
    UserAnswer,
    UserMessage,
    assistant_block,
    date_line,
    ending_of,
    known_facts,
    shortened_reply,
    user_prompt,
)
from agentest.conversation.user_text import check_role
from agentest.domain.end_reason import PLAN_ENDS, Ending
from agentest.domain.messages import earlier_messages
from agentest.domain.transcript import Conversation, ToolCall, Turn
from agentest.mocks.resolver import MockResolver
from agentest.models.port import CallKey, Message, Model
from agentest.scenarios.model import ConversationPlan, Scenario
from agentest.support.dates import prompt_date
from agentest.support.errors import ConfigError, MockError, ModelError
from agentest.support.json_text import STRICT, json_or, well_formed
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.templates import fill
from agentest.support.text import cut, data_block, did_you_mean, shortened, turn_name


class SimulatedUser:
    """A user played by a model, with its own tools.

        user = SimulatedUser(ScriptedModel(user=["On Friday, please."]), books_a_haircut)
        message = await user.next_message([])

    `attempt`: number of earlier attempts (`user.check`).
    """

    def __init__(
        self,
        model: Model,
        scenario: Scenario,
        scope: str = "",
        conversation: int = 1,
        *,
        attempt: int = 0,
        tools: UserTools | None = None,
    ) -> None:
        self._model = model
        self._prompt = user_prompt(scenario)
        self._own = "\n".join((scenario.profile, scenario.goal, *known_facts(scenario)))
        self._patience = scenario.patience
        self._key = CallKey("user", scope, conversation, sample=attempt)
        self._tools = tools
        self._earlier: list[Message] = [
            {"role": "assistant", "content": each.text}
            if each.role == "user"
            else {"role": "user", "content": assistant_block(each.text) if tools else each.text}
            for each in earlier_messages(scenario.history)
            if each.role != "tool call"
        ]

    async def next_message(self, turns: Sequence[Turn]) -> NextMessage | Ending:
        if out_of_patience(self._patience, turns):
            return Ending.GAVE_UP
        key = replace(self._key, turn=len(turns))
        answer: UserMessage
        if self._tools:
            answer = await self._answer_after_tools(turns, key, self._tools)
        else:
            shape = UserMessage if turns else OpeningMessage
            answer = await self._model.ask(self._messages(turns), shape, key)
        ending = answer.ending
        if ending and not answer.message.strip():
            return ending
        check_role(answer.message, self._own)
        return NextMessage(answer.message, ending)

    async def _answer_after_tools(self, turns: Sequence[Turn], key: CallKey, tools: UserTools) -> UserMessage:
        shape = ActingMessage if turns else ActingOpening
        for used in range(MAX_ROUNDS + 1):
            answer = await self._model.ask(self._messages(turns), shape, key)
            if not answer.tool_calls:
                return answer
            if used < MAX_ROUNDS:
                await tools.use(answer, len(turns))
        raise ModelError(
            f"the simulated user used its own tools more than {MAX_ROUNDS} times before its message of "
            f"{turn_name(len(turns))} without writing one (inference failure)"
        )

    def _messages(self, turns: Sequence[Turn]) -> list[Message]:
        messages: list[Message] = [
            {"role": "system", "content": self._prompt},
            {"role": "user", "content": OPENING},
            *self._earlier,
        ]
        for turn in turns:
            messages += self._tool_messages(turn.turn_index)
            messages.append({"role": "assistant", "content": turn.user_message})
            reply = shortened_reply(turn)
            messages.append({"role": "user", "content": assistant_block(reply) if self._tools else reply})
        return messages + self._tool_messages(len(turns))

    def _tool_messages(self, turn_index: int) -> list[Message]:
        return self._tools.messages(turn_index) if self._tools else []


_RESULT_CHARS = 20_000
_NAME_CHARS = 100
_UNSENT_TEXT_NOTE = (
    "What you wrote besides was not sent, and nothing has ended: you could not know yet what the tool would "
    "show. Write it now if it still holds."
)


@dataclass(frozen=True, slots=True)
class _Round:
    uses: Sequence[ToolUse]
    results: Sequence[str]
    has_extra_text: bool

    @property
    def messages(self) -> list[Message]:
        request = json.dumps({"tool_calls": [use.model_dump() for use in self.uses]}, ensure_ascii=False)
        blocks = [_block(use, result) for use, result in zip(self.uses, self.results, strict=True)]
        answer = "\n".join([*blocks, *([_UNSENT_TEXT_NOTE] if self.has_extra_text else [])])
        return [{"role": "assistant", "content": request}, {"role": "user", "content": answer}]


class UserTools:
    """The user's tools in one conversation, answered by `mocks`. A call belongs to the turn that follows."""

    def __init__(self, mocks: MockResolver) -> None:
        self._mocks = mocks
        self._names = tuple(spec.name for spec in mocks.specs())
        self._rounds: defaultdict[int, list[_Round]] = defaultdict(list)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """All calls so far, in order."""
        return self._mocks.calls

    async def recorded(self, conversation: Conversation) -> Conversation:
        """Return the transcript with all calls."""
        return replace(conversation, user_calls=self.calls)

    def messages(self, turn_index: int) -> list[Message]:
        """Return the tool calls before the user's message of a turn, as its model sees them."""
        return [message for each in self._rounds[turn_index] for message in each.messages]

    async def use(self, answer: ActingMessage, turn_index: int) -> None:
        """Make the calls of an answer in order; an invalid one gets an error. Raises what a mock raised."""
        results = [await self._result(use, turn_index) for use in answer.tool_calls]
        self._rounds[turn_index].append(_Round(answer.tool_calls, results, answer.has_extra_text))

    async def _result(self, use: ToolUse, turn_index: int) -> str:
        name = well_formed(use.name)
        if name not in self._names:
            problem = f"you have no tool {shortened(name, _NAME_CHARS)!r}; yours are {', '.join(self._names)}"
            args = _parsed(use.arguments)
            return self._mocks.refuse(shortened(name, _NAME_CHARS), args, turn_index, problem)
        try:
            return await self._mocks.resolve_json(name, use.arguments, turn_index)
        except MockError as error:
            raise MockError(f"{error} (one of the simulated user's own tools, `user_tools`)") from error


def _parsed(arguments: str) -> Any:
    try:
        return json.loads(arguments, **STRICT) if arguments.strip() else {}
    except (ValueError, RecursionError):
        return arguments


def _block(use: ToolUse, result: str) -> str:
    name = json.dumps(shortened(use.name, _NAME_CHARS), ensure_ascii=False)
    in_json = json.dumps(json_or(result, result), ensure_ascii=False)
    lines = (f"tool: {cut(name, _RESULT_CHARS)}", f"result: {cut(in_json, _RESULT_CHARS)}")
    return data_block("tool_result", "\n".join(lines))


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
        self._date = prompt_date(date)
        self._model = model
        self._plan = plan
        self._key = CallKey("user", scope, conversation, sample=attempt)

    async def next_message(self, turns: Sequence[Turn]) -> NextMessage | Ending:
        if not turns:
            return _sent_message(self._plan.starting_prompt)
        key = replace(self._key, turn=len(turns))
        answer = await self._model.ask(plan_messages(self._plan, turns, self._date), PlanMessage, key)
        signal = self._plan.stop_signal.lower()
        if signal and signal in answer.message.lower():
            return ending_of(answer.ended_by)
        return _sent_message(answer.message)


def _sent_message(message: str) -> NextMessage:
    if not message.strip():
        raise ModelError("the simulated user's message is empty (inference failure)")
    return NextMessage(message)


def plan_user_prompt(plan: ConversationPlan, date: str | None = None) -> str:
    """Return the instructions of the model that plays the user. `date`: as in a scenario."""
    return str(plan_messages(plan, (), prompt_date(date))[0]["content"])


def plan_messages(plan: ConversationPlan, turns: Sequence[Turn], date: str = "") -> list[Message]:
    """Build the prompt for the message after these turns. `date`: as shown; "" leaves it out."""
    if plan.instructions:
        values = {
            "stop_signal": plan.stop_signal,
            "conversation_plan": plan.plan,
            "conversation_history": "\n\n".join(
                _LINE_END.sub(r"\g<0>  ", f"{who}: {text}")
                for turn in turns
                for who, text in (("user", turn.user_message), ("agent", shortened_reply(turn)))
            ),
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
    habits = fill(HABITS, {"stop_signal": plan.stop_signal, "ends": plan_ends("you")})
    if plan.persona:
        habits = fill(AS_PERSONA, {PERSONA: plan.persona})
    values = {"conversation_plan": plan.plan, "habits": habits, "stop_signal": plan.stop_signal}
    return fill(PROMPT, values)


def plan_ends(user: str) -> str:
    """Return when a user with a plan, of this name, ends the conversation, one reason per line."""
    return "\n".join(f"- {fill(when, {'user': user})}" for when in PLAN_ENDS.values())
