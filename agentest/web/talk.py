"""Routes of talks: a conversation that a person holds with an agent on the page, and what is saved of it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import aclosing, suppress
from typing import Any

from aiohttp import web
from pydantic_core import from_json

from agentest.authoring.export.talk import Talk
from agentest.mocks.attending import Given
from agentest.runner.prepare import Request
from agentest.runner.talk_choice import Choice, Choices, choices, chosen_talk
from agentest.support.errors import UsageError
from agentest.support.paths import shown_path
from agentest.web.exchange import answered, body_of, event_stream, tell_event, text_if_any
from agentest.web.importing import imported
from agentest.web.project import UI, Missing
from agentest.web.saved import saved
from agentest.web.talks import PageTalk, Talks

TALKS: web.AppKey[Talks] = web.AppKey("talks", Talks)
_PULSE_S = 10.0
"""How often a page that looks on is sent something: one that is gone is noticed by that."""


def routes() -> Iterable[web.RouteDef]:
    """All of them."""
    at = "/api/talks/{talk}"
    return (
        web.get("/api/talks", _choices),
        web.post("/api/talks", _begin),
        web.get(f"{at}/events", _events),
        web.post(f"{at}/say", _say),
        web.post(f"{at}/answer", _answer),
        web.post(f"{at}/hold", _hold),
        web.post(f"{at}/end", _end),
        web.post(f"{at}/save", _save),
    )


def add_talks(app: web.Application, talks: Talks | None = None) -> None:
    """Add the routes, and what ends the talks with the server."""
    app[TALKS] = talks or Talks()
    app.add_routes(routes())
    app.on_shutdown.append(_close)


async def _close(app: web.Application) -> None:
    await app[TALKS].close()


def _asked(request: web.Request) -> Request:
    project = request.app[UI]
    return Request(project.root, project.config)


async def _choices(request: web.Request) -> web.Response:
    found = await imported(request.app, choices, _asked(request))
    return answered({**_shown(found, request), "talks": _talks(request.app[TALKS])})


def _shown(found: Choices, request: web.Request) -> dict[str, Any]:
    root = request.app[UI].root
    scenarios = [
        {
            "file": shown_path(each.file, root),
            "name": each.name,
            "line": each.line,
            "agent": each.agent,
            "goal": each.goal,
            "tools": list(each.tools),
            "skip": each.skip,
        }
        for each in found.scenarios
    ]
    return {"scenarios": scenarios, "agents": list(found.agents), "broken": list(found.broken)}


def _talks(talks: Talks) -> list[dict[str, Any]]:
    return [
        {
            "id": talk.id,
            "scenario": talk.chosen.unit.scenario.name,
            "agent": talk.chosen.unit.agent,
            "ended": talk.ended,
        }
        for talk in talks
    ]


async def _begin(request: web.Request) -> web.Response:
    body = await body_of(request)
    choice = Choice(
        file=text_if_any(body, "file"),
        scenario=text_if_any(body, "scenario"),
        agent=text_if_any(body, "agent") or None,
    )
    chosen = await imported(request.app, chosen_talk, _asked(request), choice)
    talk = request.app[TALKS].begin(chosen)
    return answered({"id": talk.id}, status=201)


async def _events(request: web.Request) -> web.StreamResponse:
    """What has happened, from the first event on, and what happens, as server-sent events."""
    talk = _talk(request)
    response = await event_stream(request)
    with talk.watched(), suppress(ConnectionError):  # the page may go at any time
        async with aclosing(talk.follow(_PULSE_S)) as events:
            async for event in events:
                await tell_event(response, event)
    return response


async def _say(request: web.Request) -> web.Response:
    talk, body = _talk(request), await body_of(request)
    text = (text_if_any(body, "text") or "").strip()
    if not text:
        raise UsageError("write a message first")
    talk.visitor.say(text)
    return _done()


async def _answer(request: web.Request) -> web.Response:
    talk, body = _talk(request), await body_of(request)
    number = body.get("call")
    if not isinstance(number, int):
        raise UsageError("`call`: expected the number of a call")
    talk.desk.give(number, _given(body))
    return _done()


async def _hold(request: web.Request) -> web.Response:
    talk, body = _talk(request), await body_of(request)
    talk.hold(calls=body.get("tools") is True)
    return _done()


async def _end(request: web.Request) -> web.Response:
    _talk(request).end()
    return _done()


async def _save(request: web.Request) -> web.Response:
    talk = _talk(request)
    unit = talk.chosen.unit
    held = Talk(conversation=talk.conversation, scenario=unit.scenario, agent=unit.agent, began=talk.began)
    return await saved(request, held)


def _talk(request: web.Request) -> PageTalk:
    try:
        return request.app[TALKS][request.match_info["talk"]]
    except KeyError:
        raise Missing("this conversation is not known here any more: the server was started anew") from None


def _given(body: dict[str, Any]) -> Given | None:
    """The answer that a person wrote; None: the mock's own. Raises UsageError where it is no JSON."""
    error, text = text_if_any(body, "error"), text_if_any(body, "resultText")
    if error is not None:
        if not error.strip():
            raise UsageError("write the message of the error")
        return Given(error=error.strip())
    if text is None:
        return None
    try:
        return Given(result=from_json(text, allow_inf_nan=False))
    except ValueError as problem:
        raise UsageError(f"the answer is not JSON: {problem}. A text stands in quotes") from None


def _done() -> web.Response:
    return answered({})
