"""What the user's next message means where an agent has asked whether it may do something."""

from __future__ import annotations

import re

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
