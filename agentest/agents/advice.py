"""What to try after an answer that cannot be used: the likely cause, and the configuration that would fit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import anyio

from agentest.agents.detection import (
    NAMES,
    Finding,
    Look,
    Seen,
    as_settings,
    described,
    is_login_page,
    leads_to_login,
    missing_fields,
    of_fields,
    of_reply,
    perhaps,
    recognised,
    wants_a_model,
)
from agentest.agents.error_hints import is_page
from agentest.agents.identification import LONGEST_LOOK_S, ask, is_at, look_around
from agentest.support.deadlines import TimeLimit
from agentest.support.redaction import MAX_ERROR_CHARS

_SPEAKS_TLS = re.compile(rb"HTTP request (was sent )?to (an )?HTTPS (server|port)", re.I)
_CREDENTIALS = (401, 403)
_ROOTED = ("adk", "langgraph")
"""Types whose endpoint is the server's root, and which need the name of an agent there."""
_LOG_IN = "send the credentials with `headers`, or log in first by a `setup` request (type: http)"


class Advisor:
    """What is known of where one agent is. Looks around once, in however many conversations it fails."""

    def __init__(self, kind: str, look: Look) -> None:
        """`kind` is the configured type. `look` sends requests that no agent answers with work."""
        self._kind = kind
        self._look = look
        self._found: dict[bool, tuple[Finding, ...]] = {}
        self._one_at_a_time = anyio.Lock()
        self.has_answered = False
        """Whether it ever answered as its type does: whatever goes wrong afterwards, the type is right."""

    async def advised(self, problem: str, seen: Seen) -> str:
        """What went wrong, with the configuration that would fit, where it can be told."""
        said = await self.advice(seen)
        if not said or ("setup" in said and "setup" in problem):
            return problem
        sentence = f"{said[0].upper()}{said[1:]}"
        if len(problem) + len(sentence) + 2 <= MAX_ERROR_CHARS:
            return f"{problem.removesuffix('.')}. {sentence}"
        return f"{sentence}. {problem}"  # what is cut where errors are shown is their end

    async def advice(self, seen: Seen) -> str:
        """A sentence without its full stop; "" where nothing better than the answer itself can be said."""
        if _SPEAKS_TLS.search(seen.body):
            return "that server speaks TLS: write https:// (or wss://) in the endpoint"
        if leads_to_login(seen):
            return f"that looks like a login: {_LOG_IN}"
        if self.has_answered or 300 <= seen.status < 400:
            return ""
        if is_login_page(seen.body):
            return f"that is a page where users log in: {_LOG_IN}"
        found = recognised(seen)
        if found is None:
            return await self._unknown(seen)
        return await self._of_type(found) if found != self._kind else await self._of_own_type(seen)

    async def _of_type(self, found: str) -> str:
        finding = None
        if found in _ROOTED:
            with suppress(TimeoutError), TimeLimit(LONGEST_LOOK_S):
                finding = await ask(found, self._look)
        settings = f"type: {found}" if finding is None else as_settings(finding.settings)
        return f"this looks like {NAMES[found]}: `{settings}`"

    async def _of_own_type(self, seen: Seen) -> str:
        """What its own answer says is missing, where that can be told."""
        return await self._model() if wants_a_model(seen) else ""

    async def _unknown(self, seen: Seen) -> str:
        """Advice on an answer that nobody sends in particular."""
        if seen.status in _CREDENTIALS:
            return ""
        if wants_a_model(seen) and self._kind in ("chat_completions", "responses", "anthropic_messages"):
            return await self._model()
        is_elsewhere = seen.status in (404, 405, 426) or is_page(seen.body)
        found = await self._look_around(only_gets=not is_elsewhere)
        here = next((one for one in found if is_at(one, self._look.url)), None)
        if here is not None:
            return self._of_this_place(here, seen)
        if found and is_elsewhere:
            ours = next(filter(self._is_ours, found), None)
            return described(ours) if ours else f"elsewhere at this server: {described(found[0])}"
        said = self._of_what_came(seen)
        if said or not is_elsewhere:
            return said
        # The type's own path is beside the endpoint: what is at the endpoint itself?
        nothing_said = await self._look.post_nothing()
        return self._of_what_came(nothing_said) if nothing_said is not None else ""

    def _of_what_came(self, seen: Seen) -> str:
        missing = missing_fields(seen.json)
        if missing:
            return of_fields(missing)
        own = "" if self._kind == "http" else of_reply(seen)
        return own or perhaps(seen, self._kind, self._look.url)

    def _is_ours(self, finding: Finding) -> bool:
        return bool(finding.settings["type"] == self._kind)

    def _of_this_place(self, finding: Finding, seen: Seen) -> str:
        """Where the type is right already, its keys may be wrong: what a refusal of the form shows."""
        is_of_form = self._kind == "http" and seen.status == 422
        return described(finding) if is_of_form or not self._is_ours(finding) else ""

    async def _look_around(self, *, only_gets: bool) -> tuple[Finding, ...]:
        """What is there. Only where the endpoint is in doubt itself, a POST of nothing is worth its price."""
        async with self._one_at_a_time:
            if only_gets not in self._found:
                self._look.only_gets = only_gets
                self._found[only_gets] = tuple(await look_around(self._look, self._kind))
                self._look.only_gets = False
            return self._found[only_gets]

    async def _model(self) -> str:
        seen = None
        with suppress(TimeoutError), TimeLimit(LONGEST_LOOK_S):
            seen = await self._look.get("/v1/models")
        name = first_model(seen.json if seen is not None else None)
        return f"its first model is {name}: `body: {{model: {name}}}`" if name else ""


def first_model(listed: Any) -> str:
    """The first of the models that a server lists at /v1/models; "" where it lists none."""
    models = listed.get("data") if isinstance(listed, Mapping) else None
    first = models[0] if isinstance(models, list) and models else None
    name = first.get("id") if isinstance(first, Mapping) else None
    return name if isinstance(name, str) else ""
