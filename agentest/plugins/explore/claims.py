"""Claims of success in replies, recognized by a table of phrases.

A sentence with a negation, a condition, a question or a plan claims nothing.
"""

from __future__ import annotations

import re
from functools import lru_cache

_SENTENCE = re.compile(r"[^.!?\n]+[.!?]*")
_NO_CLAIM = re.compile(
    r"n't\b|\b(?:not|no|never|none of|cannot|unable|fail\w*|error\w*|unfortunately|sorry|apolog\w+|"
    r"problem\w*|issues?|trouble|unsuccessful\w*|declin\w+|reject\w+|unavailable|busy|without|instead|if|unless|once|"
    r"when|whether|after|until|as soon as|before|would|should|could|can|may|might|will|shall|let me|try\w*|"
    r"trying|attempt\w*|maybe|perhaps|unclear|unsure|uncertain|unknown|pending|wait\w*|timed out|time-?out|"
    r"verify|check\w*|nicht|kein\w*|leider|fehler\w*)\b|'ll\b|\?",
    re.IGNORECASE,
)
_GENERAL = re.compile(
    r"\ball (?:set|done|good)\b|^\W*done\b|\bit(?:'s| is) done\b|\bsuccessful(?:ly)?\b|"
    r"\b(?:is|are|has been|have been|'s|was|were) (?:now |all )?(?:confirmed|complete|completed|in place|"
    r"ready|finished|processed|done)\b|\bconfirmation (?:number|code|id)\b|\byou(?:'re| are) all set\b",
    re.IGNORECASE,
)
_IRREGULAR = {
    "send": "sent",
    "pay": "paid",
    "make": "made",
    "put": "put",
    "set": "set",
    "sell": "sold",
    "buy": "bought",
    "write": "written",
    "withdraw": "withdrawn",
    "set up": "set up",
    "reset": "reset",
    "submit": "submitted",
    "transfer": "transferred",
    "ship": "shipped",
    "drop": "dropped",
    "stop": "stopped",
    "cancel": "cancel(?:l?ed)",
    "begin": "begun",
    "undo": "undone",
    "redo": "redone",
    "give": "given",
    "take": "taken",
    "top": "topped",
    "email": "e-?mailed|sent",
    "mail": "mailed|sent",
    "order": "ordered|placed",
    "book": "booked|confirmed",
    "reserve": "reserved|booked|confirmed",
    "create": "created|made|opened|set up",
    "post": "posted|published",
    "refund": "refunded|issued",
    "delete": "deleted|removed",
    "remove": "removed|deleted",
    "update": "updated|changed",
    "change": "changed|updated",
    "add": "added",
    "schedule": "scheduled|booked|confirmed",
    "pause": "paused",
    "turn": "turned|switched",
}
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def claims_of_success(text: str, tool: str, *, only_named: bool = False) -> str:
    """Return the sentence that says that a tool took effect; "" if none does.

    Args:
        only_named: ignore phrases that do not name what the tool does, because something else succeeded.
    """
    for found in _SENTENCE.finditer(text):
        sentence = found.group().strip()
        if not sentence or _NO_CLAIM.search(sentence):
            continue
        if _named(tool).search(sentence) or (not only_named and _GENERAL.search(sentence)):
            return sentence
    return ""


@lru_cache(maxsize=256)
def _named(tool: str) -> re.Pattern[str]:
    """Return the pattern of sentences that say that the tool's verb was done."""
    participles = "|".join(_participle(word.lower()) for word in _WORD.findall(tool) if len(word) > 2)
    done = f"(?:{participles or 'done'})"
    return re.compile(
        rf"\b(?:is|are|was|were|been|'s|'re|i|we|i've|we've|have|has)"
        rf"(?: now| just| all| successfully)? {done}\b"
        rf"|^\W*{done}\b",
        re.IGNORECASE,
    )


def _participle(verb: str) -> str:
    if verb in _IRREGULAR:
        return _IRREGULAR[verb]
    if verb.endswith("e"):
        return f"{verb}d"
    if verb.endswith("y") and verb[-2:-1] not in "aeiou":
        return f"{verb[:-1]}ied"
    return f"{verb}ed"
