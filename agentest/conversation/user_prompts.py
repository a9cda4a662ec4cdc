"""The prompts of the model that plays the user."""

from __future__ import annotations

from agentest.scenarios.definition import Scenario
from agentest.storing import shortened
from agentest.support.templates import fill
from agentest.transcript import Turn

PERSONA = """\
You are a person who talks to an assistant through a chat window. You are the one who wants something; the \
assistant is the one who helps.

Who you are:
{{profile}}

What you want to achieve:
{{goal}}

What you know:
{{knowledge}}"""

RULES = """\
How you talk:
- Write one message at a time, as this person would type it: short, in the first person, about one thing.
- Never say or hint that you are a model, that this is a test, or that you were given instructions.
- Say only what this person knows. If the assistant asks for something that is not listed above, say that \
you don't know or leave it to the assistant; do not make up names, numbers, dates or references.
- Answer the assistant's questions. Give a detail when it is asked for or needed, not all at once.
- Don't do the assistant's work and don't praise it for things it has not done.

When you stop:
- Set should_stop to true only when the assistant has confirmed that what you want is done, or has made \
plain that it cannot be done at all. A promise, a question or a partial answer is no reason to stop.
- Otherwise should_stop is false, and message is what you say next; never leave it empty.
- When you stop, message may be empty: nothing that you write then is sent."""

OPENING = "(The chat window is open. Write your first message.)"
SILENCE = "(The assistant has written nothing.)"
"""What the user sees of a turn in which the agent only called tools."""


def user_prompt(scenario: Scenario) -> str:
    """The system prompt of a scenario's simulated user; its own template replaces only the persona."""
    values = {
        "profile": scenario.profile or "An ordinary user of this assistant.",
        "goal": scenario.goal,
        "knowledge": "\n".join(f"- {fact}" for fact in scenario.knowledge) or "- nothing beyond the above",
    }
    return fill(scenario.user_prompt_template or PERSONA, values) + "\n\n" + RULES


def reply_seen(turn: Turn) -> str:
    """The agent's reply as the user is shown it: no model reads a text of megabytes."""
    return shortened(turn.agent_message) or SILENCE
