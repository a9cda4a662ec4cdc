"""Prompts for the judges of evaluation set metrics.

Judges see the agent's turns as in `agentest.judging.questions`: all metrics of a turn share the beginning of
the prompt, and the metric's question comes last. References, sentences, and properties are data blocks, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from tomllib import loads

from agentest.conversation.simulated_user import plan_ends
from agentest.domain.transcript import Turn
from agentest.judging.judge_input import JudgeBackground, block, message_blocks
from agentest.models.port import Message
from agentest.plugins.adk.formats.eval_set import ConversationScenario, Rubric
from agentest.plugins.adk.formats.personas import persona_violations
from agentest.plugins.adk.metrics.grader import AgentFacts
from agentest.support.templates import fill

_TEXTS: Mapping[str, str] = loads(files(__package__).joinpath("prompts.toml").read_text("utf-8"))
RESPONSE_QUALITY = _TEXTS["response_quality"]

MATCH = _TEXTS["match"]

_REPLY_PROPERTIES = _TEXTS["reply_properties"]

_TOOL_PROPERTIES = _TEXTS["tool_properties"]

ANSWERED_ONE_BY_ONE = _TEXTS["answered_one_by_one"]
"""How to answer properties, in all metrics that have some."""

_PROPERTIES = _TEXTS["properties"]

_GROUNDING = _TEXTS["grounding"]

USER_SYSTEM = _TEXTS["user_system"]

_PLAN_VIOLATIONS = _TEXTS["plan_violations"]

_DEFAULT_VIOLATIONS = _TEXTS["default_violations"]

_USER_QUESTION = _TEXTS["user_question"]


def background_of(facts: AgentFacts, goal: str, turns: Sequence[Turn]) -> JudgeBackground:
    """Return what judges know in addition to the conversation."""
    hidden = next((turn.calls_hidden for turn in turns if turn.calls_hidden), None)
    return JudgeBackground(
        goal=goal,
        instructions=facts.instructions,
        tools=facts.tools,
        date=facts.date,
        started_at=turns[0].started_at or "",
        unseen=hidden or ("" if all(turn.tells_calls for turn in turns) else facts.unseen),
    )


def match_question(reference: str) -> str:
    """Ask whether the reply is valid compared with a reference."""
    return fill(MATCH, {"reference": block("reference", reference)})


def rubric_question(rubrics: Sequence[Rubric], *, of_tools: bool) -> str:
    """Ask which of the rubrics, numbered from 1, are fulfilled in a turn."""
    return _about_properties(_PROPERTIES, _TOOL_PROPERTIES if of_tools else _REPLY_PROPERTIES, rubrics)


def properties_question(rubrics: Sequence[Rubric], about: str) -> str:
    """Ask which of the properties, numbered from 1, the conversation has."""
    return _about_properties(_CONVERSATION_PROPERTIES, about, rubrics)


def _about_properties(template: str, question: str, rubrics: Sequence[Rubric]) -> str:
    texts = (rubric.rubric_content.text_property for rubric in rubrics)
    blocks = "\n\n".join(block(f"property {n}", text) for n, text in enumerate(texts, 1))
    return fill(template, {"question": question, "properties": blocks, "answers": ANSWERED_ONE_BY_ONE})


def grounding_question(sentences: Sequence[str], source: str) -> str:
    """Ask which evidence supports each sentence, numbered from 1. `source` names their origin."""
    blocks = [block(f"sentence {n}", sentence) for n, sentence in enumerate(sentences, 1)]
    return fill(_GROUNDING, {"source": source, "sentences": "\n\n".join(blocks)})


def user_messages(
    scenario: ConversationScenario, before: Sequence[Turn], message: str, stop_signal: str
) -> list[Message]:
    """Return the messages to a judge of the simulated user's next message after the turns `before`.

    The judge looks for what the persona must not do, or for a default list. The user does not see tool calls,
    so the judge does not either.
    """
    persona = scenario.user_persona
    violations = persona_violations(persona, stop_signal) if persona else ""
    default = fill(_DEFAULT_VIOLATIONS, {"ends": plan_ends("the user")})
    parts = [
        block("plan", scenario.conversation_plan),
        block("persona", (persona.description if persona else "") or "(none)"),
        block("violations", f"{_PLAN_VIOLATIONS}\n\n{violations or default}"),
        "The conversation before the message to judge:",
        *message_blocks(before),
    ]
    question_parts = {
        "signal": block("stop_signal", stop_signal),
        "message": block("message to judge", message),
    }
    return [
        {"role": "system", "content": USER_SYSTEM},
        {"role": "user", "content": "\n\n".join(parts)},
        {"role": "user", "content": fill(_USER_QUESTION, question_parts)},
    ]


GOALS = _TEXTS["goals"]

TASKS = """\
Judge how the assistant behaved in the conversation as a whole: all of its replies, and all of its tool \
calls with their order, arguments and results. A mistake that the assistant made good in a later turn \
counts as made good."""

TOOL_TASKS = f"""\
{TASKS} Where no tool was called in the whole conversation, all properties are fulfilled if none was \
needed, and none of them is if one was."""

_CONVERSATION_PROPERTIES = _TEXTS["conversation_properties"]

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
"""Properties of a good trajectory: id → property."""

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
"""Properties of good tool use: id → property."""
