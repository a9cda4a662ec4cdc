"""Routes for talks: conversations of a person with an agent on the page, which can be saved."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from typing import Any, TypeVar

from aiohttp import web
from pydantic_core import from_json

from agentest.domain.transcript import Conversation, Turn, UnfinishedTurn
from agentest.mocks.answering import ManualAnswer
from agentest.plugins.page.server import json_routes
from agentest.plugins.page.server.runs import save_conversation
from agentest.plugins.page.talk.saved_conversation import talk_to_save
from agentest.plugins.page.talk.talk import (
    ActionNotPossible,
    CallInbox,
    CallState,
    PersonConversation,
    PersonUser,
    PreparedTalk,
    TalkChoice,
    TalkEvent,
    choices,
    prepare_talk,
)
from agentest.runner.plan import Unit
from agentest.runner.prepare import RunRequest
from agentest.store.codec import CODECS
from agentest.support.errors import UsageError
from agentest.support.files import shown_path
from agentest.support.json_text import Json, NotJson, json_text
from agentest.support.redaction import without_secrets

Event = Mapping[str, Any]
_T = TypeVar("_T")
MOST_UNDER_WAY = 4
MOST_KEPT = 12  # maximum number of talks, including those that have ended
ALONE_S = 600.0  # seconds after which a talk without a viewer ends
_TO_END_S = 15.0


class PageTalk:
    """One conversation on the page. It stays available after its end, so that it can be saved."""

    def __init__(self, chosen: PreparedTalk, alone_s: float = ALONE_S) -> None:
        """Start the conversation in the running event loop. `alone_s` seconds without a viewer end it."""
        self.id = secrets.token_hex(8)
        self.chosen = chosen
        self.events: list[Event] = []
        self.inbox = CallInbox(self._call)
        self.visitor = PersonUser(lambda: self._add({"type": "listening"}))
        self.talking = PersonConversation(
            chosen.prepared,
            chosen.unit,
            f"{chosen.unit.slug}-talk-{self.id[:6]}",
            self.visitor,
            self._add_happening,
            lambda _, mocks: mocks.attended_by(self.inbox),
        )
        self._finished: Conversation | None = None  # with its end
        self.ended = False
        self._more = asyncio.Event()
        self._watchers = 0
        self._alone_s = alone_s
        self._leaving: asyncio.TimerHandle | None = None
        self._task = asyncio.create_task(self._run())
        self._set_alone_timer()

    async def follow(self, pause_s: float) -> AsyncGenerator[Event | None]:
        """Yield all events of the talk until it ends; None after each `pause_s` seconds without one."""
        number = 0
        while True:
            while number < len(self.events):
                number += 1
                yield self.events[number - 1]
            if self.ended:
                return
            try:
                await asyncio.wait_for(self._more.wait(), pause_s)
            except TimeoutError:
                yield None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Count a viewer of the talk while the block runs."""
        self._watchers += 1
        self._set_alone_timer()
        try:
            yield
        finally:
            self._watchers -= 1
            self._set_alone_timer()

    def hold(self, *, calls: bool) -> None:
        """Set whether tool calls wait for the person."""
        self.inbox.hold(calls=calls)
        self._add({"type": "hold", "calls": calls})

    def note(self, text: str) -> None:
        self._add({"type": "note", "text": text})

    def end(self) -> None:
        """End the conversation. A turn in progress is cancelled."""
        if not self.visitor.leave():
            self.talking.stop()

    async def close(self) -> None:
        """End the conversation and wait until its resources are closed."""
        self.end()
        _, late = await asyncio.wait([self._task], timeout=_TO_END_S)
        if late:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=_TO_END_S)

    def _set_alone_timer(self) -> None:
        if self._leaving:
            self._leaving.cancel()
        if not self._watchers and not self.ended:
            self._leaving = asyncio.get_running_loop().call_later(self._alone_s, self._end_alone)

    def _end_alone(self) -> None:
        self.note("nobody looked at this conversation any more, so it was ended")
        self.end()

    async def _run(self) -> None:
        problem: str | None = None
        try:
            self._finished = await self.talking.run()
        except UsageError as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001 - errors of the user's code are reported on the page
            problem = self._redact(f"{type(error).__name__}: {error}")
        finally:
            self._finish(problem)

    def _finish(self, problem: str | None) -> None:
        for warning in self.talking.unclaimed:
            self.note(self._redact(warning.message))
        conversation = self._finished
        failure = conversation.failure if conversation else None
        self._add(
            {
                "type": "ended",
                "endedBy": str(conversation.ending) if conversation else None,
                "error": problem or (self._redact(failure.message) if failure else None),
                "turns": [CODECS.write(turn) for turn in talk_to_save(self.talking).conversation.turns],
                "unfinishedTurn": CODECS.write(self._redacted(conversation.unfinished))
                if conversation and conversation.unfinished
                else None,
            }
        )
        self.ended = True
        self._set_alone_timer()
        self._wake()

    def _redact(self, text: str) -> str:
        return self.chosen.prepared.loaded.redact(text)

    def _redacted(self, value: _T) -> _T:
        return without_secrets(value, self.chosen.prepared.loaded.redact)

    def _add_happening(self, what: TalkEvent) -> None:
        match what:
            case Unit(scenario=scenario) as unit:
                self._add(
                    {
                        "type": "ready",
                        "scenario": scenario.name,
                        "file": unit.file,
                        "agent": unit.agent,
                        "profile": scenario.profile,
                        "goal": scenario.goal,
                        "knowledge": list(scenario.knowledge),
                        "script": [turn.user_message for turn in scenario.turns],
                        "tools": list(scenario.tools),
                        "aboutCalls": self.chosen.about_calls,
                        "reached": self.chosen.reached,
                    }
                )
            case str():
                self.note(what)
            case UnfinishedTurn():
                self._add({"type": "user", "turnIndex": what.turn_index, "text": what.user_message})
            case Turn():
                self._add({"type": "turn", "turn": CODECS.write(what)})

    def _call(self, state: CallState) -> None:
        outcome = state.proposed
        proposed: Json = {}
        if outcome:  # as text for editing, so that numbers keep their exact form
            fails = outcome.error is not None and outcome.result == {"error": outcome.error}
            error = outcome.error if fails else None
            proposed = {"proposed": {"resultText": indented_json(outcome.result), "error": error}}
        self._add(
            {
                "type": "call",
                "number": state.number,
                "call": CODECS.write(self._redacted(state.call)),
                "waiting": state.waiting,
                "answered": state.answered,
                "byHand": state.by_hand,
                **proposed,
            }
        )

    def _add(self, event: Event) -> None:
        self.events.append({"seq": len(self.events) + 1, **event})
        self._wake()

    def _wake(self) -> None:
        self._more.set()
        self._more = asyncio.Event()


def indented_json(value: Any) -> str:
    """Format a value as indented JSON; `null` if it is not JSON."""
    try:
        return json.dumps(json.loads(json_text(value)), indent=2, ensure_ascii=False)
    except (NotJson, ValueError, RecursionError):
        return "null"


class Talks(dict[str, PageTalk]):
    """All talks of a server, by id."""

    def begin(self, chosen: PreparedTalk) -> PageTalk:
        """Start a talk. Raises ActionNotPossible if other talks have to end first."""
        under_way = [talk for talk in self.values() if not talk.ended]
        if len(under_way) >= MOST_UNDER_WAY:
            raise ActionNotPossible(
                f"{MOST_UNDER_WAY} conversations are under way already: end one of them first"
            )
        others = [talk for talk in under_way if chosen.excludes(talk.chosen)]
        if others:
            raise ActionNotPossible(
                f"agent {chosen.unit.agent!r} cannot have a second conversation besides the one on "
                f"{others[0].chosen.unit.scenario.name!r}: it is exclusive, or a server is started for one "
                "conversation at a time. End that one first"
            )
        for talk in [talk for talk in self.values() if talk.ended][: max(0, len(self) - MOST_KEPT + 1)]:
            del self[talk.id]
        talk = PageTalk(chosen)
        self[talk.id] = talk
        return talk

    async def close(self) -> None:
        """End all talks."""
        await asyncio.gather(*(talk.close() for talk in self.values() if not talk.ended))


TALKS: web.AppKey[Talks] = web.AppKey("talks", Talks)
_HEARTBEAT_S = 10.0


def add_talks(app: web.Application) -> None:
    """Add the routes, and end the talks when the server shuts down."""
    talks = app[TALKS] = Talks()
    at = "/api/talks/{talk}"
    app.add_routes(
        (
            json_routes.json_route("GET", "/api/talks", _choices),
            json_routes.json_route("POST", "/api/talks", _begin, status=201),
            web.get(f"{at}/events", _events),
            json_routes.json_route("POST", f"{at}/say", _send_message),
            json_routes.json_route("POST", f"{at}/answer", _answer),
            json_routes.json_route("POST", f"{at}/hold", _pause_talk),
            json_routes.json_route("POST", f"{at}/end", _end),
            json_routes.json_route("POST", f"{at}/save", _save),
        )
    )
    app.on_shutdown.append(lambda _: talks.close())


def _project_request(request: web.Request) -> RunRequest:
    project = request.app[json_routes.UI]
    return RunRequest(project.root, project.config)


async def _choices(request: web.Request, _: json_routes.Values) -> Json:
    available = await json_routes.call_with_imports(request.app, choices, _project_request(request))
    root = request.app[json_routes.UI].root
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
        for each in available.scenarios
    ]
    talks = [
        {
            "id": talk.id,
            "scenario": talk.chosen.unit.scenario.name,
            "agent": talk.chosen.unit.agent,
            "ended": talk.ended,
        }
        for talk in request.app[TALKS].values()
    ]
    agents, broken = list(available.agents), list(available.broken)
    return {"scenarios": scenarios, "agents": agents, "broken": broken, "talks": talks}


async def _begin(request: web.Request, body: json_routes.Values) -> Json:
    choice = TalkChoice(
        file=json_routes.optional_text(body, "file"),
        scenario=json_routes.optional_text(body, "scenario"),
        agent=json_routes.optional_text(body, "agent") or None,
    )
    chosen = await json_routes.call_with_imports(request.app, prepare_talk, _project_request(request), choice)
    return {"id": request.app[TALKS].begin(chosen).id}


async def _events(request: web.Request) -> web.StreamResponse:
    talk = _talk(request)
    response = await json_routes.open_event_stream(request)
    with talk.watched(), suppress(ConnectionError):  # the page can close the connection at any time
        async with aclosing(talk.follow(_HEARTBEAT_S)) as events:
            async for event in events:
                await json_routes.send_event(response, event)
    return response


async def _send_message(request: web.Request, body: json_routes.Values) -> Json:
    talk = _talk(request)
    text = (json_routes.optional_text(body, "text") or "").strip()
    if not text:
        raise UsageError("write a message first")
    talk.visitor.say(text)
    return {}


async def _answer(request: web.Request, body: json_routes.Values) -> Json:
    talk = _talk(request)
    number = body.get("call")
    if not isinstance(number, int):
        raise UsageError("`call`: expected the number of a call")
    talk.inbox.give(number, _requested_result(body))
    return {}


async def _pause_talk(request: web.Request, body: json_routes.Values) -> Json:
    _talk(request).hold(calls=body.get("tools") is True)
    return {}


async def _end(request: web.Request, _: json_routes.Values) -> Json:
    _talk(request).end()
    return {}


async def _save(request: web.Request, body: json_routes.Values) -> Json:
    return await save_conversation(request, body, talk_to_save(_talk(request).talking))


def _talk(request: web.Request) -> PageTalk:
    try:
        return request.app[TALKS][request.match_info["talk"]]
    except KeyError:
        raise json_routes.ItemNotFound(
            "this conversation is not known here any more: the server was started anew"
        ) from None


def _requested_result(body: json_routes.Values) -> ManualAnswer | None:
    """Return the person's result for a tool call; None for the mock's. Raises UsageError for invalid JSON."""
    error, text = json_routes.optional_text(body, "error"), json_routes.optional_text(body, "resultText")
    if error is not None:
        if not error.strip():
            raise UsageError("write the message of the error")
        return ManualAnswer(error=error.strip())
    if text is None:
        return None
    try:
        return ManualAnswer(result=from_json(text, allow_inf_nan=False))
    except ValueError as problem:
        raise UsageError(f"the answer is not JSON: {problem}. A text stands in quotes") from None
