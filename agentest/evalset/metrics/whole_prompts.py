"""What judges of a whole conversation are asked."""

from __future__ import annotations

from collections.abc import Sequence

from agentest.evalset.formats.model import Rubric
from agentest.evaluate.shown import block
from agentest.support.templates import fill

_GOALS = """\
Question: which goals did the user have in the conversation, and which of them were reached by its end?
A goal is something that the user wanted to have done or to know, as far as it can be told from what the \
user said and, unless it is (none), from the block user_goal. Take goals that came up on the way too; a \
question that the assistant asked, or a step towards a goal, is no goal of its own. Where the user wanted \
nothing but to talk, that is the one goal.
A goal is reached (yes) if the tool calls and their results, or the assistant's answers, show that the user \
got it in full. It is not reached (no) if it was only promised, reached in part, dropped, or reached by a \
claim that the tool results contradict. Where it could not be reached by anybody, it counts as reached if \
the assistant found that out and told the user so.
List every goal once: what it is in a few words, the reason, then yes or no."""

TASKS = """\
Judge how the assistant behaved in the conversation as a whole: all of its replies, and all of its tool \
calls with their order, arguments and results. A mistake that the assistant made good in a later turn \
counts as made good."""

_PROPERTIES = """\
Question: which of the following properties does the conversation have? {{about}} Where there is no \
tool_call block, no tool was called; what the assistant says that it did does not count.

{{properties}}

Answer for every property by its number: yes if it is fulfilled, or if it is about a case that did not \
arise; no if it is not fulfilled. Give the reason of each answer before the answer, with the turn that \
decides."""

TRAJECTORY = {
    "progress": "Every turn of the assistant brings the user nearer to what they want, or says why that "
    "cannot be; there is no detour, no standing still and no going round in circles.",
    "order": "Steps come in an order that makes sense: what has to be known or agreed is settled before "
    "anything is done that depends on it.",
    "memory": "The assistant uses what was said and found out earlier: it neither asks for it again nor "
    "contradicts it.",
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
    "out by a call, wherever one of its tools was needed for that.",
    "economy": "No call is needless: none repeats one that had been answered already, and none serves "
    "nothing.",
    "order": "Calls that depend on others come after them, and nothing is changed for good before it was "
    "looked up or agreed to.",
    "results": "What the tools answered, errors included, is taken up rightly in later calls and replies.",
}
"""What makes a good use of tools: id → property."""


def goals_question() -> str:
    """What the user wanted, and which of it was reached."""
    return _GOALS


def properties_question(rubrics: Sequence[Rubric], about: str) -> str:
    """Which of the properties, numbered from 1, the conversation has."""
    blocks = [block(f"property {n}", one.rubric_content.text_property) for n, one in enumerate(rubrics, 1)]
    return fill(_PROPERTIES, {"about": about, "properties": "\n\n".join(blocks)})
