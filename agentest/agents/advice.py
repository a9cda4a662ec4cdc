"""What to try after an answer that cannot be used: the likely cause, and the configuration that would fit."""

from __future__ import annotations

from urllib.parse import urlsplit

import anyio

from agentest.agents.hints import is_page
from agentest.agents.identifying import identify
from agentest.agents.probing import Look, Seen
from agentest.agents.recognising import NAMES, missing_fields, recognised

_LONGEST_LOOK_S = 5.0
_LOGIN = ("login", "signin", "sign-in", "sign_in", "sso", "oauth", "auth")
_OFTEN_THE_MESSAGE = ("message", "question", "query", "prompt", "input", "text", "content", "msg")


async def advice(seen: Seen, kind: str, look: Look) -> str:
    """A sentence without its full stop; "" where nothing better than the answer itself can be said.

    Args:
        seen: the answer that cannot be used.
        kind: the configured type of the agent.
        look: where it is; asked only for paths that are wrong, by requests that no agent answers with work.
    """
    if 300 <= seen.status < 400:
        return _login(seen)
    found = recognised(seen)
    if found is not None and found != kind:
        return f"this looks like {NAMES[found]}: `type: {found}`"
    if found is None and (missing := missing_fields(seen.json)):
        return _own_form(missing)
    if seen.status in (404, 405) or is_page(seen.body):
        return await _elsewhere(look)
    return ""


def _login(seen: Seen) -> str:
    path = urlsplit(seen.headers.get("location", "")).path.lower()
    if not any(word in path.split("/") for word in _LOGIN):
        return ""
    return (
        "that looks like a login: send the credentials with `headers`, or log in first by a `setup` request "
        "(type: http)"
    )


def _own_form(missing: tuple[str, ...]) -> str:
    said = next((name for name in _OFTEN_THE_MESSAGE if name in missing), missing[0])
    fields = ", ".join(
        f'{name}: "{{{{message}}}}"' if name == said else f"{name}: {_guess(name)}" for name in missing
    )
    return f"it has a form of its own: `type: http` with `body: {{{fields}}}`"


def _guess(name: str) -> str:
    return '"{{session_id}}"' if "session" in name or name.endswith("id") else "…"


async def _elsewhere(look: Look) -> str:
    finding = None
    with anyio.move_on_after(_LONGEST_LOOK_S):
        finding = await identify(look)
    if finding is None:
        return ""
    settings = ", ".join(f"{key}: {value}" for key, value in finding.settings.items())
    return f"{finding.because}: `{settings}`"
