"""Routes of talks: a conversation that a person holds with an agent on the page, and what is saved of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from functools import wraps
from typing import Any, TypeVar

import anyio
from aiohttp import web
from pydantic_core import from_json, to_json

from agentest.analysis.export.talk import KINDS, Changed, Talk, Wish, to_write, write
from agentest.errors import UsageError
from agentest.mocks.attending import Given
from agentest.run.by_hand import NotNow
from agentest.run.prepare import Request
from agentest.run.talk_choice import Choice, Choices, choices, chosen_talk
from agentest.support.calling import in_thread
from agentest.support.paths import shown_path
from agentest.web.guard import Handler
from agentest.web.project import UI
from agentest.web.talks import PageTalk, Talks

TALKS: web.AppKey[Talks] = web.AppKey("talks", Talks)
_IMPORTS: web.AppKey[asyncio.Lock] = web.AppKey("talk_imports", asyncio.Lock)
_IMPORT_S = 120.0
"""How long the project's files may take to be imported."""
_PULSE_S = 10.0
"""How often a page that looks on is sent something: one that is gone is noticed by that."""
_T = TypeVar("_T")


def routes() -> Iterable[web.RouteDef]:
    """All of them."""
    at = "/api/talks/{talk}"
    return (
        web.get("/api/talks", _answering(_choices)),
        web.post("/api/talks", _answering(_begin)),
        web.get(f"{at}/events", _events),
        web.post(f"{at}/say", _answering(_say)),
        web.post(f"{at}/answer", _answering(_answer)),
        web.post(f"{at}/next", _answering(_next)),
        web.post(f"{at}/hold", _answering(_hold)),
        web.post(f"{at}/end", _answering(_end)),
        web.post(f"{at}/save", _answering(_save)),
    )


def add_talks(app: web.Application, talks: Talks | None = None) -> None:
    """Add the routes, and what ends the talks with the server."""
    app[TALKS] = talks or Talks()
    app[_IMPORTS] = asyncio.Lock()
    app.add_routes(routes())
    app.on_shutdown.append(_close)


async def _close(app: web.Application) -> None:
    await app[TALKS].close()


def _answering(handler: Handler) -> Handler:
    """The handler; what a person cannot do now is told as a conflict."""

    @wraps(handler)
    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except (NotNow, Changed) as error:
            return web.json_response({"error": str(error)}, status=409)
        except UsageError as error:
            return web.json_response({"error": str(error)}, status=400)

    return answer


async def _imported(request: web.Request, function: Callable[..., _T], *args: Any) -> _T:
    """What a function returns that imports the project's files, one at a time. Raises UsageError."""
    async with request.app[_IMPORTS]:
        try:
            with anyio.fail_after(_IMPORT_S):
                found: _T = await in_thread(function, *args)
        except TimeoutError:
            raise UsageError(
                f"reading the configuration and the scenarios took longer than {_IMPORT_S:g} s: some file "
                "that is imported hangs"
            ) from None
    return found


def _asked(request: web.Request) -> Request:
    project = request.app[UI]
    return Request(project.root, project.config)


async def _choices(request: web.Request) -> web.Response:
    found = await _imported(request, choices, _asked(request))
    return web.json_response({**_shown(found, request), "talks": _talks(request.app[TALKS])})


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
    body = await _body(request)
    choice = Choice(
        file=_text(body, "file"), scenario=_text(body, "scenario"), agent=_text(body, "agent") or None
    )
    chosen = await _imported(request, chosen_talk, _asked(request), choice)
    talk = request.app[TALKS].begin(chosen)
    return web.json_response({"id": talk.id}, status=201)


async def _events(request: web.Request) -> web.StreamResponse:
    """What has happened, from the first event on, and what happens, as server-sent events."""
    talk = _talk(request)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    with talk.watched(), suppress(ConnectionResetError):  # the page may go at any time
        await response.prepare(request)
        async for piece in _pieces(talk):
            await response.write(piece)
    return response


async def _pieces(talk: PageTalk) -> AsyncIterator[bytes]:
    async for event in talk.follow(_PULSE_S):
        yield b": still here\n\n" if event is None else b"data: " + to_json(event) + b"\n\n"


async def _say(request: web.Request) -> web.Response:
    talk, body = _talk(request), await _body(request)
    text = (_text(body, "text") or "").strip()
    if not text:
        raise UsageError("write a message first")
    talk.visitor.say(text)
    return _done()


async def _answer(request: web.Request) -> web.Response:
    talk, body = _talk(request), await _body(request)
    number = body.get("call")
    if not isinstance(number, int):
        raise UsageError("`call`: expected the number of a call")
    talk.desk.give(number, _given(body))
    return _done()


async def _next(request: web.Request) -> web.Response:
    talk, body = _talk(request), await _body(request)
    tool = _text(body, "tool")
    if not tool:
        raise UsageError("name the tool whose next call is answered so")
    talk.desk.set_next(tool, _given(body))
    talk.told_of_next()
    return _done()


async def _hold(request: web.Request) -> web.Response:
    talk, body = _talk(request), await _body(request)
    talk.hold(calls=body.get("tools") is True)
    return _done()


async def _end(request: web.Request) -> web.Response:
    _talk(request).end()
    return _done()


async def _save(request: web.Request) -> web.Response:
    """What would be written, or, where `write` says so, that it was written.

    `version` is that of the file which the person was shown: another one is not overwritten.
    """
    talk, body = _talk(request), await _body(request)
    kind = body.get("as")
    if kind not in KINDS:
        raise UsageError(f"`as`: expected one of {', '.join(KINDS)}")
    wish = Wish(kind=kind, path=_text(body, "path") or "", name=_text(body, "name") or "")
    unit = talk.chosen.unit
    saved = Talk(conversation=talk.conversation, scenario=unit.scenario, agent=unit.agent, began=talk.began)
    known = await _imported(request, choices, _asked(request))
    root, config = request.app[UI].root, talk.chosen.prepared.loaded.config
    planned = await in_thread(to_write, saved, wish, root, config, _places(known, request))
    if body.get("write") is True:
        await in_thread(write, planned, _text(body, "version"))
    return web.json_response(
        {
            "path": shown_path(planned.path, root.resolve()),
            "text": planned.shown,
            "notes": list(planned.notes),
            "version": planned.version,
            "written": body.get("write") is True,
        }
    )


def _places(known: Choices, request: web.Request) -> dict[str, str]:
    root = request.app[UI].root
    return {each.name: f"{shown_path(each.file, root)}:{each.line}" for each in known.scenarios}


def _talk(request: web.Request) -> PageTalk:
    try:
        return request.app[TALKS][request.match_info["talk"]]
    except KeyError:
        raise web.HTTPNotFound(
            reason="this conversation is not known here any more: the server was started anew"
        ) from None


async def _body(request: web.Request) -> dict[str, Any]:
    try:
        body = from_json(await request.read(), allow_inf_nan=False)
    except ValueError:
        raise UsageError("expected a body of JSON") from None
    if not isinstance(body, dict):
        raise UsageError("expected a body that is a JSON object")
    return body


def _text(body: dict[str, Any], key: str) -> str | None:
    value = body.get(key)
    if value is not None and not isinstance(value, str):
        raise UsageError(f"`{key}`: expected a text")
    return value


def _given(body: dict[str, Any]) -> Given | None:
    """The answer that a person wrote; None: the mock's own. Raises UsageError where it is no JSON."""
    error, text = _text(body, "error"), _text(body, "resultText")
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
    return web.json_response({})
