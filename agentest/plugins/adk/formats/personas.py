"""Personas of simulated users: defined in an evaluation set, or one of three that ADK predefines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from pydantic import ConfigDict
from pydantic.alias_generators import to_camel
from pydantic.dataclasses import dataclass

from agentest.support.templates import fill, placeholders
from agentest.support.text import did_you_mean

_OPEN = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore")


@dataclass(slots=True, frozen=True, config=_OPEN)
class UserBehavior:
    """One habit of a persona, with the violations that a judge looks for."""

    name: str
    description: str
    behavior_instructions: tuple[str, ...]
    violation_rubrics: tuple[str, ...]


@dataclass(slots=True, frozen=True, config=_OPEN)
class UserPersona:
    """The persona of a simulated user."""

    id: str
    description: str
    behaviors: tuple[UserBehavior, ...]


_WHOLE_REQUESTS = UserBehavior(
    "Makes whole requests",
    "The user works through the plan one goal after another. Each request comes with everything that the "
    "plan says about it.",
    (
        "When the assistant has done what you asked, go on to the next goal of the plan.",
        "Leave out a goal that the assistant has already reached on its own.",
        "With a new goal, give all its details that the plan knows, so that nobody has to ask for them.",
    ),
    (
        "The message asks again for a goal that was already reached.",
        "The message asks for something that is not in the plan, or agrees to something that is not.",
        "The message holds a detail (a name, a number, an address) that the plan does not give.",
        "The message brings up a new goal without the details that the plan gives for it.",
        "The message brings up more than one new goal.",
    ),
)
_GOALS_FIRST = UserBehavior(
    "Names the goal first",
    "The user works through the plan one goal after another, says only what they want, and leaves it to the "
    "assistant to ask for details. They may follow the assistant's suggestions.",
    (
        "When the assistant has done what you asked, go on to the next goal of the plan.",
        "Leave out a goal that the assistant has already reached on its own.",
        "Say what you want, in a general way; keep the details until the assistant asks for them.",
    ),
    (
        "The message asks again for a goal that was already reached.",
        "The message asks for something that neither the plan nor the assistant has brought up.",
        "The message holds a detail that neither the plan nor the assistant has given.",
        "The message gives a detail of a goal before the assistant has asked for it.",
        "The message brings up more than one new goal.",
    ),
)
_ANSWERS_WHAT_MATTERS = UserBehavior(
    "Answers what matters",
    "The user answers questions that serve a goal of the plan, and leads back to the plan from all others.",
    (
        "Answer questions that serve your goals with what the plan says, and with no more than was asked.",
        "If the plan does not say it, tell the assistant that you do not know; never invent it.",
        "Do not answer small talk or questions about anything else; come back to what you want.",
    ),
    (
        "The message answers a question that serves no goal of the plan.",
        "The message answers with something that the plan does not say.",
    ),
)
_ANSWERS_EVERYTHING = UserBehavior(
    "Answers every question",
    "The user has an answer to each question of the assistant, small talk included, if only that they do "
    "not know.",
    (
        "Answer every question of the assistant, with what the plan says and no more than was asked.",
        "If the plan does not say it, admit that you do not know; never invent it.",
    ),
    (
        "The assistant asked something and the message leaves it unanswered.",
        "The message answers with something that the plan does not say, instead of admitting not to know.",
    ),
)
_CORRECTS = UserBehavior(
    "Corrects the assistant",
    "The user notices the assistant's mistakes and says so.",
    (
        "Object to statements that are wrong or make no sense.",
        "If the assistant did the wrong thing, ask it to put that right.",
    ),
    (
        "The assistant said something wrong and the message goes on as if it were right.",
        "The assistant took something risky for granted, and the message lets it pass.",
    ),
)
_DOES_NOT_CORRECT = UserBehavior(
    "Does not correct the assistant",
    "The user does not put the assistant right. A statement that is wrong or makes no sense ends the "
    "conversation.",
    ("If the assistant says something wrong or senseless, end the conversation with {{ stop_signal }}.",),
    ("The assistant made a mistake and the message corrects it instead of ending the conversation.",),
)
_SECOND_CHANCE = UserBehavior(
    "Gives one second chance",
    "The user helps the assistant over one failure in the whole conversation: something it could not do, did "
    "wrongly, or did not answer. Answering its questions does not count as help.",
    (
        "At the first failure, help the assistant to get it right.",
        "Look through the conversation first: if you have helped before, do not help again.",
    ),
    (
        "The message ends the conversation right after the assistant's first failure.",
        "The assistant has failed twice or more, and the message goes on without {{ stop_signal }}.",
    ),
)

_ENDS_INSTRUCTIONS = (
    "End the conversation when one of its ends is reached, and never before.",
    "Wait until the assistant has confirmed that the last of your goals is reached.",
    "To end the conversation, write {{ stop_signal }} in your message.",
)
_ENDS_VIOLATIONS = (
    "One of the ends is reached and the message does not use {{ stop_signal }}.",
    "The message uses {{ stop_signal }} although none of the ends is reached.",
)
_ENDS_AFTER_TWO = UserBehavior(
    "Ends in time",
    "The conversation has three ends: the assistant has confirmed every goal of the plan; it has handed the "
    "user over to a person; or it has failed twice. A failure is an action that it could not do or did "
    "wrongly, or an answer that it owes; a question back is none.",
    (*_ENDS_INSTRUCTIONS, "Count the assistant's failures: the second one ends the conversation."),
    _ENDS_VIOLATIONS,
)
_ENDS_AFTER_ONE = UserBehavior(
    "Ends in time",
    "The conversation has three ends: the assistant has confirmed every goal of the plan; it has handed the "
    "user over to a person; or it has failed. A failure is an action that it could not do or did wrongly, or "
    "an answer that it owes; a question back is none.",
    (*_ENDS_INSTRUCTIONS, "Look at the assistant's last message: if it failed, end the conversation."),
    (*_ENDS_VIOLATIONS, "The assistant has failed and the message goes on without {{ stop_signal }}."),
)
_MATTER_OF_FACT = UserBehavior(
    "Matter-of-fact tone",
    "The user writes clearly and to the point. {{ stop_signal }} fits every tone.",
    (
        "Use plain and exact words, technical ones where they fit.",
        "No slang, no abbreviations of chats, no emojis, no pleasantries.",
    ),
    (
        "The message has slang, abbreviations as in chats, or emojis.",
        "The message is padded with pleasantries or private remarks.",
        "The message is much longer than what it has to say.",
        "The message sounds like another person than the user's earlier ones.",
    ),
)
_CASUAL = UserBehavior(
    "Casual tone",
    "The user chats as people do with each other. {{ stop_signal }} fits every tone.",
    (
        "Write as you would talk: casual, in your own words.",
        "Be neither stiff nor overly polite, and do not bark commands.",
    ),
    (
        "The message is a bare command, without anything that makes it a conversation.",
        "The message is stiff or overly polite.",
        "The message is much longer than what it has to say.",
        "The message sounds like another person than the user's earlier ones.",
    ),
)

PERSONAS: Mapping[str, UserPersona] = {
    persona.id: persona
    for persona in (
        UserPersona(
            "EXPERT",
            "An expert knows exactly what they want and takes the assistant for a tool that should do it "
            "quickly. They have no time for small talk and needless questions.",
            (
                _WHOLE_REQUESTS,
                _ANSWERS_WHAT_MATTERS,
                _CORRECTS,
                _SECOND_CHANCE,
                _ENDS_AFTER_TWO,
                _MATTER_OF_FACT,
            ),
        ),
        UserPersona(
            "NOVICE",
            "A novice has a problem that they only half understand and lets the assistant guide them. They "
            "answer patiently, but can neither see the assistant's mistakes nor help it over them.",
            (_GOALS_FIRST, _DOES_NOT_CORRECT, _ANSWERS_EVERYTHING, _ENDS_AFTER_ONE, _CASUAL),
        ),
        UserPersona(
            "EVALUATOR",
            "An evaluator wants to find out whether the assistant can reach the goals of the plan.",
            (_WHOLE_REQUESTS, _ANSWERS_WHAT_MATTERS, _ENDS_AFTER_ONE, _DOES_NOT_CORRECT, _CASUAL),
        ),
    )
}
"""The predefined personas by name, which is case-sensitive."""


def persona(value: object) -> object:
    """Look up a persona's name; return any other value unchanged. Raises ValueError for an unknown name."""
    if not isinstance(value, str):
        return value
    if value not in PERSONAS:
        raise ValueError(f"there is no persona {value!r}; {did_you_mean(value, PERSONAS)}")
    return PERSONAS[value]


def persona_text(persona: UserPersona, stop_signal: str = "</finished>") -> str:
    """Describe the user and their behavior, for the model that plays the user."""
    habits = [(behavior, behavior.behavior_instructions) for behavior in persona.behaviors]
    return _with_signal("\n\n".join([persona.description.strip(), *_habit_texts(habits)]), stop_signal)


def persona_violations(persona: UserPersona, stop_signal: str = "</finished>") -> str:
    """List what a user of this persona must not do, for the model that judges the user."""
    habits = [(behavior, behavior.violation_rubrics) for behavior in persona.behaviors]
    return _with_signal("\n\n".join(_habit_texts(habits)), stop_signal)


def _habit_texts(habits: Iterable[tuple[UserBehavior, Iterable[str]]]) -> Iterator[str]:
    for behavior, rows in habits:
        listed = "\n".join(f"- {row}" for row in rows)
        yield f"{behavior.name}: {behavior.description}\n{listed}".strip()


def _with_signal(text: str, stop_signal: str) -> str:
    as_they_are = {name: "{{ " + name + " }}" for name in placeholders(text)}
    return fill(text, {**as_they_are, "stop_signal": stop_signal})
