"""The gate between the model that plays the user and the agent: what the user says, and nothing else.

Models leak their reasoning, their instructions, the JSON of their answer and the tokens of chat templates.
What is around a message is removed; what cannot be told from it is refused, and the model is asked again.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from agentest.conversation.user import UserLeftRole
from agentest.support.text import shortened

STOP_MARK = "[[STOP]]"
_REASONING = "think|thinking|thought|reasoning|reflection|analysis|scratchpad|plan|internal"
_REASONING_BLOCK = re.compile(
    rf"<({_REASONING})\b[^<>]*>(?:.*?</\1\s*>|(?P<rest>.*))", re.IGNORECASE | re.DOTALL
)
_REASONING_END = re.compile(rf"\A.*</(?:{_REASONING})\s*>", re.IGNORECASE | re.DOTALL)
"""Models whose template opens the block send only its end."""
_REASONING_TAG = re.compile(
    rf"</?(?:{_REASONING})\b[^<>]*>|\[/?(?:think|thinking|thought|reasoning|scratchpad)\]"
    r"|\A\W*(?:thoughts?|reasoning|scratchpad)\W*:",
    re.IGNORECASE,
)
_FENCE = re.compile(r"\A```\w*(?>\s*\n)(.*?)\n?```\Z", re.DOTALL)
_CHANNEL = re.compile(r".*<\|channel\|>\s*final\s*<\|message\|>(.*?)(?:<\|(?:end|return)\|>.*)?\Z", re.DOTALL)
_TEMPLATE = re.compile(
    r"<\|[a-z_]{2,40}\|>|\[/?INST\]|<</?SYS>>|<(?:start|end)_of_turn>|</s>|<s>(?=\s|\Z)|\A\s*###\s*\w+:"
    r"|</?(?:system|assistant|user|message|instructions?)>|\b(?:should_stop|ended_by)\b"
)
_FIELD = re.compile(
    r"""^[ \t]*[*"'`]*(?P<key>should_stop|ended_by)[*"'`]*\s*[:=]\s*[*"'`]*"""
    r"""(?P<value>\w+(?: +\w+)*+)[ \t*"'`,]*$""",
    re.IGNORECASE | re.MULTILINE,
)
_USER_LABEL = re.compile(
    r"\A(?:\W*(?:state|thoughts?|reasoning)\W*:.*?\n\W{0,20}(?=message))?\W*(?:user|customer|human|me|message)\**\s*:\**\s*",
    re.IGNORECASE | re.DOTALL,
)
_ABOUT_ITS_PART = re.compile(
    r"\b(?:I|we)(?:'ll| will| need to| should| must| have to|'m going to| am going to| am|'m)\s+"
    r"(?:\w+ ){0,2}?(?:respond|reply|answer|write|act|play|playing|acting|speak|simulate|simulating)\w*\s+"
    r"(?:as|like|the role of|the part of)\s+(?:the|a|an|this)\s+(?:\w+ )?(?:user|customer|person|human)\b"
    r"|\bas (?:an|a large) (?:AI|language) (?:language )?model\b|\bas an AI, I\b"
    r"|\bthe (?:simulated|role-?played) user\b|\bstay(?:ing)? in character\b"
    r"|\bthe (?:user|customer) (?:wants me to|would (?:now )?(?:say|ask|reply|respond|write))\b"
    r"|\bas the (?:user|customer),? I(?:'d| would|'ll| will| should) (?:say|ask|reply|respond|write)\b"
    r"|\b(?:my|the) (?:system prompt|instructions) (?:say|says|tell|tells|require|state|states)\b"
    r"|\blet me (?:write|craft|compose|draft) (?:the|a|my) (?:next )?(?:message|reply|response)\b",
    re.IGNORECASE,
)
_TURNED = re.compile(
    r"(?:\A|\n)[^\S\n]*\**(?:assistant|agent|support agent|bot|chatbot)\**\s*:"
    r"|\bhow (?:can|may) I (?:help|assist) you\b"
    r"|\bwhat else (?:can|may) I (?:do|help)\b|\bis there anything else (?:that )?I can (?:help|assist|do)\b"
    r"|\bI(?:'m| am) (?:here|happy|glad) to (?:help|assist)(?: you)?\b",
    re.IGNORECASE,
)
_WORD, _SENTENCE_END = re.compile(r"\w+"), re.compile(r"(?<=[.!?:])\s+|\n+")
_KEYS = {"state", "message", "should_stop", "ended_by"}
_IS_JSON = "`message` contains the JSON of an answer; write only what the user says"
_SHOWN_CHARS, _LEAST_WORDS = 80, 7  # a shorter sentence of the prompt may be a coincidence


class Said(NamedTuple):
    """A user's message. `stops` is None if the text does not say whether it is the last."""

    text: str
    stops: bool | None = None


def said_in(text: str, prompts: frozenset[str] = frozenset()) -> Said:
    """Return what a model's text says as the user's message.

    Args:
        prompts: sentences of the model's instructions, as `sentences_of` returns them.

    Raises ValueError, with a sentence for the model, for a text that is not (only) a message.
    """
    text, stops = _unwrapped(_without_reasoning(text))
    for field in _FIELD.finditer(text):
        if field["key"].lower() == "should_stop":
            stops = field["value"].strip().lower() in ("true", "yes")
    text = _USER_LABEL.sub("", _FIELD.sub("", text)).strip()
    if STOP_MARK in text:
        text, stops = text.replace(STOP_MARK, "").strip(), True
    if found := _TEMPLATE.search(text):
        raise ValueError(f"`message` contains {found[0].strip()!r}; write only what the user says")
    if found := _ABOUT_ITS_PART.search(text):
        raise ValueError(f"`message` speaks of your task ({found[0]!r}); write only what the user says")
    if repeated := next(iter(sentences_of(text) & prompts), None):
        raise ValueError(f"`message` repeats your instructions ({shortened(repeated, _SHOWN_CHARS)!r})")
    return Said(text, stops)


def _without_reasoning(text: str) -> str:
    text = _REASONING_END.sub("", _REASONING_BLOCK.sub(lambda m: m[0] if m["rest"] is not None else "", text))
    if final := _CHANNEL.match(text):
        text = final[1]
    if found := _REASONING_TAG.search(text):
        raise ValueError(f"`message` contains reasoning ({found[0]}); write only what the user says")
    return text.strip()


def _unwrapped(text: str) -> Said:
    if fenced := _FENCE.match(text):
        text = fenced[1].strip()
    begin = text.find("{")
    if begin < 0:
        return Said(text)
    try:
        answer: Any = json.loads(text[begin:])
    except (ValueError, RecursionError):
        if not begin and re.search(r"""["'](?:message|should_stop)["']\s*:""", text):
            raise ValueError(_IS_JSON) from None
        return Said(text)
    is_answer = isinstance(answer, dict) and answer.keys() & {"message", "should_stop", "ended_by"}
    if not is_answer or (begin and not answer.keys() <= _KEYS):
        return Said(text)  # a user may paste JSON
    if begin and ("message" not in answer or not answer.keys() & {"should_stop", "ended_by"}):  # or of a page
        raise ValueError(_IS_JSON)
    message, stops = answer.get("message"), answer.get("should_stop")
    if message is not None and not isinstance(message, str):
        raise ValueError(_IS_JSON)
    inner = _unwrapped(_without_reasoning(message or ""))
    return Said(inner.text, stops if isinstance(stops, bool) else inner.stops)


def check_role(text: str, own: str) -> None:
    """Raise UserLeftRole if a message is plainly the assistant's.

    Args:
        own: what the scenario gives the user to say: profile, goal and knowledge.
    """
    found = _TURNED.search(text)
    if found and found[0].strip().casefold() not in own.casefold():
        raise UserLeftRole(f"user left its role: it wrote {shortened(found[0].strip(), _SHOWN_CHARS)!r}")


def sentences_of(text: str) -> frozenset[str]:
    """Return the longer sentences of a text, without case and punctuation."""
    sentences = (_WORD.findall(each.casefold()) for each in _SENTENCE_END.split(text))
    return frozenset(" ".join(words) for words in sentences if len(words) >= _LEAST_WORDS)
