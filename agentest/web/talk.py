"""Routes of talks: a conversation that a person holds with an agent on the page, and what is saved of it."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from time import time
from typing import Any, TypeVar

from aiohttp import web
from pydantic_core import from_json

from agentest.authoring.saved_conversation import Talk
from agentest.domain.end_reason import Ending
from agentest.domain.transcript import Conversation
from agentest.mocks.answering import Given, Outcome
from agentest.mocks.resolver import MockResolver
from agentest.runner.prepare import Request
from agentest.runner.talk import (
    CallSeen,
    Choice,
    Choices,
    ChosenTalk,
    Desk,
    Happening,
    Held,
    Noted,
    NotNow,
    Ready,
    Replied,
    Spoke,
    Talking,
    Visitor,
    choices,
    chosen_talk,
)
from agentest.store.codec import CODECS
from agentest.support.errors import UsageError
from agentest.support.files import shown_path
from agentest.support.json_text import NotJson, json_text
from agentest.support.redaction import without_secrets
from agentest.web.json_exchange import answered, body_of, event_stream, tell_event, text_if_any
from agentest.web.project import UI, Missing, imported
from agentest.web.runs import saved

Event = Mapping[str, Any]
_T = TypeVar("_T")
MOST_UNDER_WAY = 4
MOST_KEPT = 12
"""How many talks are known at once, those that have ended included."""
ALONE_S = 600.0
"""After how many seconds a talk ends at which nobody looks."""
_TO_END_S = 15.0
"""How long a talk may take to close what it has opened."""


class PageTalk:
    """One conversation on the page, from its begin to its end and beyond: it can be saved afterwards."""

    def __init__(self, chosen: ChosenTalk, alone_s: float = ALONE_S) -> None:
        """Begins at once, in the running event loop. `alone_s`: see ALONE_S."""
        self.id = secrets.token_hex(8)
        self.chosen = chosen
        self.began = time()
        """In seconds since 1970."""
        self.events: list[Event] = []
        self.desk = Desk(self._call)
        self.visitor = Visitor(lambda: self._add({"type": "listening"}))
        self._conversation_id = f"{chosen.unit.slug}-talk-{self.id[:6]}"
        self._talking = Talking(
            chosen.prepared, chosen.unit, self._conversation_id, self.visitor, self._tell, self._attend
        )
        self._held: Held | None = None
        self._ended = False
        self._more = asyncio.Event()
        self._watchers = 0
        self._alone_s = alone_s
        self._leaving: asyncio.TimerHandle | None = None
        self._task = asyncio.create_task(self._run())
        self._alone()

    @property
    def ended(self) -> bool:
        return self._ended

    @property
    def conversation(self) -> Conversation:
        """What was said so far, without secrets, turns alone that are closed."""
        held = self._held.conversation if self._held else None
        turns = held.turns if held else self._talking.turns
        return self._told(Conversation(self._conversation_id, turns, Ending.SATISFIED))

    async def follow(self, pause_s: float) -> AsyncGenerator[Event | None]:
        """All events from the first on, to the end of the talk; None where none comes for a while."""
        number = 0
        while True:
            while number < len(self.events):
                number += 1
                yield self.events[number - 1]
            if self._ended:
                return
            try:
                await asyncio.wait_for(self._more.wait(), pause_s)
            except TimeoutError:
                yield None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """While a page looks on."""
        self._watchers += 1
        self._not_alone()
        try:
            yield
        finally:
            self._watchers -= 1
            self._alone()

    def hold(self, *, calls: bool) -> None:
        """Have calls wait for the person, or not."""
        self.desk.hold(calls=calls)
        self._add({"type": "hold", "calls": calls})

    def note(self, text: str) -> None:
        self._add({"type": "note", "text": text})

    def end(self) -> None:
        """End the conversation; in the middle of a turn, the turn is broken off."""
        if not self.visitor.leave():
            self._talking.stop()

    async def close(self) -> None:
        """End it, and wait until what it has opened is closed."""
        self._not_alone()
        self.end()
        _, late = await asyncio.wait([self._task], timeout=_TO_END_S)
        if late:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=_TO_END_S)

    def _alone(self) -> None:
        self._not_alone()
        if not self._watchers and not self._ended:
            self._leaving = asyncio.get_running_loop().call_later(self._alone_s, self._left)

    def _not_alone(self) -> None:
        if self._leaving:
            self._leaving.cancel()

    def _left(self) -> None:
        self.note("nobody looked at this conversation any more, so it was ended")
        self.end()

    async def _run(self) -> None:
        problem: str | None = None
        try:
            self._held = await self._talking.run()
        except UsageError as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001 - whatever a user's code does, the page is told
            problem = self._redact(f"{type(error).__name__}: {error}")
        finally:
            self._finish(problem)

    def _finish(self, problem: str | None) -> None:
        for warning in self._held.unclaimed if self._held else ():
            self.note(self._redact(warning.message))
        held = self._held.conversation if self._held else None
        failure = held.failure if held else None
        self._add(
            {
                "type": "ended",
                "endedBy": str(held.ending) if held else None,
                "error": problem or (self._redact(failure.message) if failure else None),
                "turns": [CODECS.write(turn) for turn in self.conversation.turns],
                "unfinishedTurn": CODECS.write(self._told(held.unfinished))
                if held and held.unfinished
                else None,
            }
        )
        self._ended = True
        self._not_alone()
        self._wake()

    def _redact(self, text: str) -> str:
        return self.chosen.prepared.loaded.redact(text)

    def _told(self, value: _T) -> _T:
        return without_secrets(value, self.chosen.prepared.loaded.redact)

    def _attend(self, _: str, mocks: MockResolver) -> None:
        mocks.attended_by(self.desk)

    def _tell(self, what: Happening) -> None:
        match what:
            case Ready():
                self._add(self._ready())
            case Noted():
                self.note(what.text)
            case Spoke():
                self._add({"type": "user", "turnIndex": what.turn_index, "text": what.text})
            case Replied():
                self._add({"type": "turn", "turn": CODECS.write(what.turn)})

    def _ready(self) -> Event:
        scenario = self.chosen.unit.scenario
        return {
            "type": "ready",
            "scenario": scenario.name,
            "file": self.chosen.unit.file,
            "agent": self.chosen.unit.agent,
            "profile": scenario.profile,
            "goal": scenario.goal,
            "knowledge": list(scenario.knowledge),
            "script": [turn.user_message for turn in scenario.turns],
            "tools": list(scenario.tools),
            "aboutCalls": self.chosen.about_calls,
            "reached": self.chosen.reached,
        }

    def _call(self, seen: CallSeen) -> None:
        proposed = seen.proposed
        self._add(
            {
                "type": "call",
                "number": seen.number,
                "call": CODECS.write(self._told(seen.call)),
                "waiting": seen.waiting,
                "answered": seen.answered,
                "byHand": seen.by_hand,
                **({"proposed": _proposed(proposed)} if proposed else {}),
            }
        )

    def _add(self, event: Event) -> None:
        self.events.append({"seq": len(self.events) + 1, **event})
        self._wake()

    def _wake(self) -> None:
        self._more.set()
        self._more = asyncio.Event()


def _proposed(outcome: Outcome) -> dict[str, str | None]:
    """A mock's answer as the person edits it: in text, so that no number is changed on the way."""
    fails = outcome.error is not None and outcome.result == {"error": outcome.error}
    return {"resultText": pretty(outcome.result), "error": outcome.error if fails else None}


def pretty(value: Any) -> str:
    """JSON over several lines."""
    try:
        return json.dumps(json.loads(json_text(value)), indent=2, ensure_ascii=False)
    except (NotJson, ValueError, RecursionError):
        return "null"


class Talks:
    """All talks of a server."""

    def __init__(self, alone_s: float = ALONE_S) -> None:
        self._alone_s = alone_s
        self._talks: dict[str, PageTalk] = {}

    def __iter__(self) -> Iterator[PageTalk]:
        return iter(self._talks.values())

    def __getitem__(self, key: str) -> PageTalk:
        return self._talks[key]

    @property
    def under_way(self) -> list[PageTalk]:
        return [talk for talk in self if not talk.ended]

    def begin(self, chosen: ChosenTalk) -> PageTalk:
        """Begin one. Raises NotNow where others must end before."""
        self._check_place(chosen)
        for talk in [talk for talk in self if talk.ended][: max(0, len(self._talks) - MOST_KEPT + 1)]:
            del self._talks[talk.id]
        talk = PageTalk(chosen, self._alone_s)
        self._talks[talk.id] = talk
        return talk

    async def close(self) -> None:
        """End all of them."""
        await asyncio.gather(*(talk.close() for talk in self.under_way))

    def _check_place(self, chosen: ChosenTalk) -> None:
        under_way = self.under_way
        if len(under_way) >= MOST_UNDER_WAY:
            raise NotNow(f"{MOST_UNDER_WAY} conversations are under way already: end one of them first")
        others = [talk for talk in under_way if _exclude_each_other(chosen, talk.chosen)]
        if others:
            raise NotNow(
                f"agent {chosen.unit.agent!r} cannot be talked to beside the conversation on "
                f"{others[0].chosen.unit.scenario.name!r}: it is exclusive, or a server is started for one "
                "conversation at a time. End that one first"
            )


def _exclude_each_other(one: ChosenTalk, other: ChosenTalk) -> bool:
    """Whether a second conversation would lose its servers with the first, or an agent holds one alone."""
    in_line = one.unit.about.line
    return (one.starts_servers and other.starts_servers) or (
        in_line is not None and in_line == other.unit.about.line
    )


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
