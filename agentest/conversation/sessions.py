"""Ids of sessions, for agents that keep them."""

from __future__ import annotations

import re
from secrets import token_hex

from agentest.scenarios.session import Session

_WORDS_CHARS = 24


def session_id_of(session: Session | None, conversation_id: str) -> str:
    """The id that the user has given to the session, else a new one."""
    return (session and session.session_id) or new_session_id(conversation_id)


def new_session_id(conversation_id: str) -> str:
    """An id that no conversation of any run had before; it shows which conversation it is of.

    At most 63 lower-case letters, digits and hyphens: what URLs and the session services of ADK take.
    """
    words = re.sub(r"[^a-z0-9]+", "-", conversation_id.lower())[:_WORDS_CHARS].strip("-")
    return "-".join(part for part in ("agentest", words, token_hex(8)) if part)
