"""The session in which a conversation is held: the option `session` of a scenario.

Parsing raises ValueError whose message begins with the key that is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentest.scenarios.matchers.showing import brief
from agentest.scenarios.parsing import has_text_keys, kind_of, known_keys
from agentest.support.json_text import NotJson, check_plain

_KEYS = ("state", "app_name", "user_id", "session_id")


@dataclass(frozen=True, slots=True)
class Session:
    """The session in which an agent that keeps sessions holds the conversation."""

    app_name: str = ""
    user_id: str = ""
    state: Mapping[str, Any] = field(default_factory=dict)
    session_id: str | None = None


def parse_session(value: Any, key: str = "session") -> Session | None:
    """The session of a scenario; None where there is none."""
    if value is None:
        return None
    if isinstance(value, Session):
        value = {"state": value.state, "app_name": value.app_name, "user_id": value.user_id} | (
            {"session_id": value.session_id} if value.session_id else {}
        )
        value = {name: given for name, given in value.items() if given != ""}
    options = known_keys(value, _KEYS, key)
    if not options:
        raise ValueError(f"{key}: is empty; write the `state` that the agent's session begins with")
    return Session(
        _name(options, "app_name", key) or "",
        _name(options, "user_id", key) or "",
        _state(options.get("state", {}), f"{key}.state"),
        _name(options, "session_id", key),
    )


def _name(options: Mapping[str, Any], name: str, key: str) -> str | None:
    value = options.get(name)
    if value is not None and (not isinstance(value, str) or not value.strip()):
        raise ValueError(f"{key}.{name}: expected a text that is not empty, found {brief(value)}")
    return value


def _state(state: Any, key: str) -> dict[str, Any]:
    """The state as the agent gets it: a copy in JSON types, which nothing else can change."""
    if not has_text_keys(state):
        raise ValueError(f"{key}: expected a dict with texts as keys, found {kind_of(state)}")
    try:
        check_plain(dict(state))
    except NotJson as error:
        raise ValueError(f"{key}: cannot be sent, as it is no JSON: {error}") from None
    copy: dict[str, Any] = json.loads(json.dumps(dict(state)))
    return copy
