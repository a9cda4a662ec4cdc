"""What an agent is answered that has asked whether it may do something: by the user, or the configuration."""

from __future__ import annotations

import re
from dataclasses import dataclass

MOST_APPROVALS = 50
"""How often an agent may ask in one turn without being ended."""
TOO_MANY_QUESTIONS = (
    f"the agent asked for approval more than {MOST_APPROVALS} times in one turn without replying to the user"
)
REFUSED, AGREED = "The user refused.", "The user agreed."

_YES = re.compile(
    r"(yes|yeah|yep|y|ok|okay|sure|certainly|of course|approved?|i approve|accept(ed)?|i accept|agreed|"
    r"i agree|confirm(ed)?|i confirm|go ahead|please do|do it|true)\b",
    re.IGNORECASE,
)
_TAKES_BACK = re.compile(r"\b(no|not|never|wait|stop|cancel|but|if|unless)\b|n't\b", re.IGNORECASE)


def is_approval(text: str) -> bool:
    """Whether a message agrees: it begins with a yes and takes nothing back.

    Everything else is no approval: it goes to the agent as the reason of a refusal, in the user's words.
    """
    said = text.strip()
    return bool(_YES.match(said)) and not _TAKES_BACK.search(said)


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer of the user, or of the configuration."""

    approved: bool
    words: str | None = None
    """What the user has said; None where `approvals` decides."""

    @property
    def reason(self) -> str:
        """Why it is so, for agents that want to be told."""
        return self.words or (AGREED if self.approved else REFUSED)


def decided_by_user(words: str) -> Decision:
    """What a message of the user decides."""
    return Decision(is_approval(words), words)


def decided_by(approvals: str) -> Decision | None:
    """What the configuration decides; None where the user is asked."""
    return None if approvals == "ask" else Decision(approvals == "approve")
