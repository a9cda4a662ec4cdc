"""What judges of a whole conversation are asked."""

from __future__ import annotations

from collections.abc import Sequence

from agentest.adk.formats.model import Rubric
from agentest.adk.metrics.prompts import ANSWERED_ONE_BY_ONE, property_blocks
from agentest.support.templates import fill

_GOALS = """\
Question: which goals did the user have in the conversation, and which of them were reached by its end?
A goal is something that the user wanted to have done or to know, as far as it can be told from what the \
user said and, where there is one, from the block user_goal. Take goals that came up on the way too, and \
take apart what can be reached without the other (a return, and how long the refund takes). A question that \
the assistant asked, a step towards a goal and what the user has to give for it are no goals of their own, \
and one that the user took back or replaced is none any more. One that stands in user_goal and never came \
up was not reached. Where the user wanted nothing but to talk, that is the one goal.
A goal is reached (yes) if the user got it in full: what was to be done, if the result of a tool call, or \
the reply itself (a text that was to be written), shows that it was done; what was to be known, if the \
assistant told it, in accord with what the tools answered and what it was given. It is not reached (no) if \
it was only promised, reached in part, dropped, put off, declined without a reason that anything bears \
out, or claimed while no tool result shows it or one says otherwise; that the user is content, or believes \
it, proves nothing. Where the tool calls cannot be seen, what the assistant says that it did counts, unless \
something contradicts it.
What could not or must not be reached counts as reached (yes) if the assistant told the user so, with the \
reason, and tool results or its instructions show that it is so; where no instructions are shown, a definite \
rule that it names will do, unless something contradicts it.
List every goal once: what it is in a few words, the reason, then yes or no."""

TASKS = """\
Judge how the assistant behaved in the conversation as a whole: all of its replies, and all of its tool \
calls with their order, arguments and results. A mistake that the assistant made good in a later turn \
counts as made good."""

TOOL_TASKS = f"""\
{TASKS} Where no tool was called in the whole conversation, all properties are fulfilled if none was \
needed, and none of them is if one was."""

_PROPERTIES = """\
Question: which of the following properties does the conversation have? {{about}} Where there is no \
tool_call block, no tool was called; what the assistant says that it did does not count. A call that was \
answered with an error was made, but did nothing.

{{properties}}

{{answers}} Name the turn that decides in the reason."""

TRAJECTORY = {
    "progress": "Every turn of the assistant brings the user nearer to what they want, or says why that "
    "cannot be; there is no detour, no standing still and no going round in circles.",
    "order": "Steps come in an order that makes sense: what has to be known or agreed is settled before "
    "anything is done that depends on it.",
    "memory": "Whatever was said or found out earlier is used where it matters: the assistant neither asks "
    "for it again nor contradicts it.",
    "questions": "Where something essential is missing or ambiguous the assistant asks for it, and it asks "
    "for nothing that it does not need.",
    "recovery": "Where something goes wrong, a tool fails or the user corrects the assistant, it notices, "
    "tells the user what matters of it, and goes on in a way that makes sense.",
    "bounds": "The assistant keeps to what it was given as its instructions and to what the user agreed to; "
    "it does nothing of consequence that nobody asked for.",
}
"""What makes a good way through a conversation: id → property."""

TOOL_USE = {
    "choice": "Every tool that is called fits what was to be done or found out at that point.",
    "arguments": "The arguments of every call follow from what the user said, what the tools answered or "
    "what is plainly implied; none is made up, left out or taken from the wrong place.",
    "completeness": "No call is missing: what the assistant says that it did or found out was done or found "
    "out by a call, wherever one of its tools was needed for that, and so was whatever the user asked for "
    "that its tools can do, unless it was rightly declined.",
    "economy": "No call is needless: none repeats one that had been answered already, and none serves "
    "nothing.",
    "order": "Every call that depends on another comes after it, and nothing is changed for good before it "
    "was looked up or agreed to.",
    "results": "All that the tools answered, errors included, is taken up rightly in later calls and "
    "replies; no error is kept from the user whom it concerns.",
}
"""What makes a good use of tools: id → property."""


def goals_question() -> str:
    """What the user wanted, and which of it was reached."""
    return _GOALS


def properties_question(rubrics: Sequence[Rubric], about: str) -> str:
    """Which of the properties, numbered from 1, the conversation has."""
    shown = property_blocks(rubrics)
    return fill(_PROPERTIES, {"about": about, "properties": shown, "answers": ANSWERED_ONE_BY_ONE})
