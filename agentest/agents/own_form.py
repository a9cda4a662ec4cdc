"""What to write for an agent of a form of its own, and for whatever a probe has found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentest.agents.paths import places_of_text
from agentest.agents.probing import Finding, Seen, as_settings
from agentest.agents.usual_places import usual_place
from agentest.support.errors import AgentError

_OFTEN_THE_MESSAGE = ("message", "question", "query", "prompt", "input", "text", "content", "msg")
_OWN = "it has a form of its own"


def described(finding: Finding) -> str:
    """What was found, and the configuration for it."""
    return f"{finding.because}: `{as_settings(finding.settings)}`"


def of_fields(missing: Sequence[str]) -> str:
    """The body for an agent that says which fields it misses."""
    values = body_of_fields(missing)
    shown = {name: f'"{value}"' if value else "…" for name, value in values.items()}
    fields = ", ".join(f"{name}: {value}" for name, value in shown.items())
    return f"{_OWN}: `type: http` with `body: {{{fields}}}`"


def body_of_fields(missing: Sequence[str]) -> dict[str, str]:
    """Field → what stands there in each request; "" where that is not known."""
    said = next((name for name in _OFTEN_THE_MESSAGE if name in missing), missing[0])
    return {name: _value(name, said) for name in missing}


def of_reply(seen: Seen) -> str:
    """What to write for an agent that answers with JSON of its own; "" where it is nobody's answer."""
    answer = seen.json if 200 <= seen.status < 300 else None
    if not isinstance(answer, Mapping) or any(answer.get(key) for key in ("error", "errors", "detail")):
        return ""
    places = places_of_text(answer)
    try:
        place = usual_place(answer)
    except AgentError:
        place = None
    if place is not None:
        where = f"`reply: {place.text}`"
    else:
        where = f"`reply` ({' or '.join(f'`{place}`' for place in places)})"
    body = '{message: "{{message}}"}'
    return f"if this form is its own: `type: http` with {where} and a `body` like `{body}`" if places else ""


def _value(name: str, message: str) -> str:
    if name == "messages":
        return "{{messages}}"
    if name == message:
        return "{{message}}"
    return "{{session_id}}" if "session" in name or name.endswith("id") else ""
