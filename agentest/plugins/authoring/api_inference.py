"""Turn requests that work into the settings of an agent with its own API, and prove each guess by trying it.

The reply is the text that changes with the message. What keeps a conversation is found by two conversations
at once: each has to remember a name, and to know nothing of the other's.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import field, replace
from functools import reduce
from itertools import product
from operator import getitem
from typing import Any
from urllib.parse import urlencode, urljoin

import anyio
from pydantic import ValidationError

from agentest.agents.error_hints import is_page, readable
from agentest.agents.http.client import HttpClient
from agentest.agents.http.exchange import CookieJar
from agentest.agents.http.extraction import AnswerPaths, ResponseExtraction
from agentest.agents.http.reader import AnswerReader
from agentest.agents.http_sender import HttpSender
from agentest.agents.port import SENT_REQUESTS
from agentest.agents.protocol_probe import MESSAGE_FIELDS
from agentest.agents.reply_detection import Place, name_of
from agentest.config.agents.http import HttpTemplateAgent
from agentest.config.file import interpolated
from agentest.domain.transcript import SentRequest
from agentest.plugins.authoring.answer_reading import (
    ID_NAME,
    NotProved,
    TrialAnswer,
    cased_like,
    error_settings,
    find_reply,
    is_id,
    owner_of,
)
from agentest.plugins.authoring.request_examples import (
    HELLO,
    MADE_UP,
    RequestExample,
    changed,
    cookie_names,
    escaped,
    example_of,
    label_of,
    request_settings,
    texts_sent,
    without_cookies,
)
from agentest.plugins.page.talk.talk import ShortTalk, lone_resources, short_talk
from agentest.support.deadlines import TimeLimit
from agentest.support.errors import AgentestError
from agentest.support.http.client import DirectResponse, Sender
from agentest.support.jmespath_expressions import path_to
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.redaction import looks_secret
from agentest.support.text import shortened

_TEXTS = (HELLO, "What is my name?", "Please list three things that you can do.")
_NAMES = ("Zorvik", "Quelna")  # they are parts of no word
_MESSAGE, _SESSION = "{{message}}", "{{session_id}}"
UNKNOWN_CONVERSATION = "No field that keeps a conversation was found, so every message begins a new one."
_MOST_PLACES = 6
_JOB_S, _POLL_S = 60.0, 0.25
_SESSION_NAME = re.compile(
    r"(session|conversation|conv|thread|chat|dialog(ue)?|context|room|ticket)s?[_-]?(id|key|token|uuid|no)?$",
    re.I,
)
_PERSON_NAME = re.compile(
    r"(^uid|user|client|contact|sender|visitor|customer|from)[_-]?(id|key|uuid)?$", re.I
)
_NUMBER = re.compile(r"[0-9a-f]{6,}|\d+")
_GUESSED_SESSIONS = ("session_id", "sessionId", "conversation_id", "conversationId", "thread_id", "threadId")
_NO_MESSAGES = {"role", "sender", "from", "author", "type", "jsonrpc", "method", "model", "operationname",
                "locale", "language", "lang", "stream", "kind", "event", "action"}  # fmt: skip
_KEPT = "each remembered its own name, and not the other's"
_SHARED = "one knows what only the other was told"
_ROLE_NAME = re.compile(r"(?i)role|sender|from|author|type|speaker|who|by|source")
_ANSWERING_ROLES = {"human": ("ai", "assistant", "bot"), "customer": ("agent", "assistant", "bot")}


class _TrialClient(HttpClient):
    """A client whose failures are results, so it gives no advice on them."""

    def open_sender(self, jar: CookieJar, *, for_setup: bool = False) -> HttpSender:
        del for_setup
        return super().open_sender(jar, for_setup=True)


class _NotingReader(AnswerReader):
    def __init__(self, paths: AnswerPaths, heard: list[tuple[DirectResponse, ResponseExtraction]]) -> None:
        super().__init__(paths)
        self._heard = heard

    async def read(self, response: DirectResponse, gathering: ResponseExtraction) -> None:
        self._heard.append((response, gathering))
        await super().read(response, gathering)


REQUESTS_ADVICE = (
    "Give the request that works, as in a README or from the browser (Copy as cURL): "
    "agentest init --curl 'curl …'. Several: those before the message first."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectedAgent:
    """A detected agent."""

    settings: Mapping[str, Any]  # those under `agent`
    remarks: tuple[str, ...]  # one sentence each
    tried: tuple[str, ...] = ()  # the requests that were sent and what came back, in order
    is_known: bool = True  # True if one of the protocols was recognized
    is_complete: bool = False  # True if the configuration is complete, so that a run can follow
    variables: Mapping[str, str] = field(default_factory=dict)  # name → value, of those in the settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """Settings that are not known to be right."""

    requests: tuple[Mapping[str, Any], ...]
    """Those of RequestExample. All but the last are for setup."""
    more: Mapping[str, Any] = field(default_factory=dict)  # further settings: `reply`, `session`, `poll`
    message: Place = ()  # the place of the message in the turn's request
    forms: Sequence[Mapping[str, Any]] = ()  # other settings `messages`, if the agent may refuse these
    is_read: bool = False  # True once the place of the reply is known

    @property
    def turn(self) -> Any:
        return self.requests[-1]

    def with_turn(self, place: Place, value: Any, **more: Any) -> Draft:
        turn = changed(self.turn, place, value)
        return replace(self, requests=(*self.requests[:-1], turn), more={**self.more, **more})

    @property
    def saves(self) -> list[str]:
        """The names that requests of a conversation's setup save."""
        own = (each for each in self.requests[:-1] if each.get("per") != "run")
        return [name for each in own for name in each["save"]]

    def settings(self, variables: Mapping[str, str]) -> dict[str, Any]:
        """Return the settings under `agent`. They may have these variables of the environment."""
        own = request_settings(self.turn, "", "POST")
        own["endpoint"] = own["endpoint"].removesuffix("/")
        shared, setup = self.turn["headers"].items(), []
        for each in self.requests[:-1]:
            headers = {name: value for name, value in each["headers"].items() if (name, value) not in shared}
            each = {**each, "headers": headers}
            setup.append(request_settings(each, self.turn["origin"], self.turn["method"]))
        settings = {"type": "http", **own, **({"setup": setup} if setup else {}), **self.more}
        return dict(escaped(settings, variables))


def _message_rank(place: Place, text: Any) -> tuple[int, bool, Place] | None:
    """Return how likely a text is the message, least for the likeliest; None if it cannot be."""
    name = name_of(place).lower()
    rank = MESSAGE_FIELDS.index(name) if name in MESSAGE_FIELDS else len(MESSAGE_FIELDS)
    if not isinstance(text, str) or not text.strip() or place[0] == "headers" or name in _NO_MESSAGES:
        return None
    is_graphql = "{" in text and re.match(r"\s*(query|mutation|subscription|\{)", text)
    is_segment = place[0] == "path" and " " not in text
    if is_graphql or is_segment or (is_id(text) and rank == len(MESSAGE_FIELDS)):
        return None
    return rank, " " not in text.strip(), tuple(str(part) for part in place)


def _may_name_conversation(request: Mapping[str, Any], place: Place, text: Any) -> bool:
    label = label_of(request, place)
    is_key = place[0] == "headers" and looks_secret(str(place[1]))
    is_path = place[0] == "path" and (place[1] == 0 or ":" in text[1:] or not is_id(text))
    if "{{" in str(text) or is_key or is_path or _PERSON_NAME.search(label):
        return False
    is_item = place[0] == "body" and isinstance(place[-1], int)
    return bool(_SESSION_NAME.search(label)) or (is_id(text) and (is_item or bool(ID_NAME.search(label))))


class ApiInference:
    """Finds and proves the settings of one agent. Sends messages to it.

    Args:
        client: sends the requests.
        variables: the values of `${NAME}` in headers and bodies.
        named: True if the names of the fields come from the user or from a document, not from a guess.
    """

    def __init__(self, client: Sender, variables: Mapping[str, str], *, named: bool = True) -> None:
        self._client = client
        self._variables = variables
        self._named = named
        self._heard: list[tuple[DirectResponse, ResponseExtraction]] = []
        self._sample = "", ""  # a message and its reply
        self._sent: deque[SentRequest] = deque(maxlen=200)

    def exchange(self) -> Iterator[str]:
        """Yield what was sent and what came: of the first request that failed, else of the last."""
        failed = (each for each in self._sent if not 200 <= (each.status or 0) < 300)
        for each in [*failed, *list(self._sent)[-1:]][:1]:
            yield f"sent {each.method} {each.url}\n       {shortened(readable(each.content or b''), 200)}"
            yield f"came {each.status or 'no answer'}\n       {shortened(readable(each.body), 200)}"

    async def infer(self, examples: Sequence[RequestExample]) -> DetectedAgent:
        """Return what the examples show, of which the last with a message is a turn. Raises NotProved."""
        SENT_REQUESTS.set(self._sent)
        places = [
            (rank, index, place, text)
            for index, example in enumerate(examples)
            for place, text in texts_sent(example.request)
            if (rank := _message_rank(place, text))
        ]
        if not places:
            raise NotProved("no request has a text that could be the message")
        turn = max(index for rank, index, *_ in places if rank == min(places)[0])
        others = [each.request for each in examples[turn + 1 :]]
        later = [f"/{'/'.join(it['path'])}?{urlencode(it['params'])}".rstrip("?") for it in others]
        given = examples[: turn + 1]
        without, about = await self._without_cookies(given)
        for some in (without, given) if without != given else (given,):
            problems: list[NotProved] = []
            start = await self._linked(some)
            for _, _, place, text in sorted(each for each in places if each[1] == turn)[:_MOST_PLACES]:
                draft = _with_message_at(start, place)
                try:
                    found = await self._with_message(draft, text, later)
                except NotProved as error:
                    error.settings = draft.settings(self._variables)
                    problems.append(error)
                else:
                    return replace(found, remarks=(*found.remarks, *_cookie_remarks(given, some, about)))
        raise problems[0]

    async def _without_cookies(
        self, given: Sequence[RequestExample]
    ) -> tuple[Sequence[RequestExample], int | None]:
        """Leave out the recorded cookies without which the agent answers: all conversations would share them.

        Also return the status of the last answer without one that is needed.
        """
        names, kept, status = cookie_names(given), given, None
        for some in dict.fromkeys((names, (), *((name,) for name in names))) if names else ():
            fewer = [replace(each, request=without_cookies(each.request, some)) for each in kept]
            try:
                answer = await self._answer(await self._linked(fewer), HELLO)
                if is_page(answer.reply.encode()):
                    raise NotProved("the message was answered with a web page")
            except NotProved:
                if not some:
                    break  # it does not answer with all of them either
                status = self._sent[-1].status
            else:
                kept = fewer
        return kept, status

    async def _linked(self, examples: Sequence[RequestExample]) -> Draft:
        """Send all requests but the last, and find what they answer in those after them."""
        known: list[_Answered] = []
        for example in examples:
            request = example.request
            for earlier in known:
                request = earlier.linked(request)
            steps = [each.as_setup() for each in known if each.save or "set-cookie" in each.answer.headers]
            draft = Draft(requests=(*steps, request))
            if example is not examples[-1]:
                known.append(_Answered(example, request, await self._answer(draft, HELLO)))
        return draft

    async def _with_message(self, draft: Draft, text: str, later: Iterable[str]) -> DetectedAgent:
        texts = list(dict.fromkeys((text, *_TEXTS)))[:3]
        try:
            first = await self._answer(draft, text)
        except NotProved:
            if (fresh := _with_fresh_ids(draft)) is None:
                raise
            draft, first = fresh, await self._answer(fresh, text)
        try:
            found = await self._found_reply(draft, texts, first)
        except NotProved:
            ended = await self._with_poll(draft, first, later) or _with_fresh_ids(draft)
            if ended is None:
                raise
            draft = ended
            found = await self._found_reply(draft, texts, await self._answer(draft, text))
        where = next((f"`{key}: {path}`" for key, path in found.items()), "the whole answer")
        more = {**draft.more, **found, **error_settings(draft.turn["body"])}
        draft = replace(draft, more=more, is_read=True)
        draft, shown, doubt = await self._with_conversation(draft, first)
        text, reply = self._sample
        made_up = [name_of(at) for at, sent in texts_sent(draft.turn) if sent == MADE_UP]
        remarks = (
            f"The reply is {where}: its text changes with the message.",
            *([shown] if shown else []),
            *(f"The agent requires `{name}`, and its value is made up." for name in made_up),
            f"It answered {text!r} with {shortened(' '.join(reply.split()), 80)!r}.",
            *([f"{doubt} {REQUESTS_ADVICE}"] if doubt else []),
        )
        return DetectedAgent(settings=draft.settings(self._variables), remarks=remarks, is_complete=not doubt)

    async def _found_reply(self, draft: Draft, texts: Sequence[str], first: TrialAnswer) -> dict[str, str]:
        quoted = re.compile(rf'"\w+":\s*{re.escape(json.dumps(texts[0]))}')
        if any(map(quoted.search, first.known)):
            raise NotProved("its answers quote the whole JSON body, so it takes that for the user's text")
        return find_reply(texts, [first, *[await self._answer(draft, text) for text in texts[1:]]])

    async def _answer(self, draft: Draft, text: str) -> TrialAnswer:
        """Return the last answer to a text, sent as the first message of a conversation."""
        async with self._talks(draft, 1) as (talk,):
            return await self._say(talk, text)

    @asynccontextmanager
    async def _talks(self, draft: Draft, number: int) -> AsyncIterator[list[ShortTalk]]:
        settings = {"name": "agent", **draft.settings(self._variables)}
        settings |= {} if draft.is_read else {"reply": "to_string(@)"}
        if "{{message" not in json.dumps({**settings, "setup": []}):
            # No agent does without the message.
            settings["headers"] = {**settings.get("headers", {}), "X-Message": _MESSAGE}
        try:
            config = HttpTemplateAgent.model_validate(interpolated(settings, self._variables, {}))
        except ValidationError as error:
            raise NotProved(error.errors()[0]["msg"]) from None
        async with AsyncExitStack() as stack:
            client = _TrialClient(config, lone_resources(self._client, stack))
            client.reader = _NotingReader(client.paths, self._heard)
            talks = [short_talk(client, f"agentest-{1 + at}") for at in range(number)]
            yield [await stack.enter_async_context(talk) for talk in talks]

    async def _say(self, talk: ShortTalk, text: str) -> TrialAnswer:
        """Send a message and return the last answer. Raises NotProved if it is an error, or if none came."""
        self._heard.clear()
        reply, problem = "", ""
        try:
            reply = (await talk.say(text)).text or ""
        except AgentestError as error:
            problem = str(error)
        if not self._heard:
            raise NotProved(problem)
        response, gathering = self._heard[-1]
        values = [piece.fields for piece in gathering.pieces]
        answer = TrialAnswer(response.status_code, response.headers, values, reply)
        if sign := answer.failure:
            raise NotProved(f"the message was answered with {sign}")
        if problem and not answer.is_pending:
            raise NotProved(problem)
        self._sample = text, reply
        return answer

    async def _with_poll(self, draft: Draft, answer: TrialAnswer, later: Iterable[str]) -> Draft | None:
        """Return the draft with the requests that fetch a job's result, or None if none gives a result."""
        headers = {n: v for n, v in draft.turn["headers"].items() if n != "content-type"}
        for source, value, endpoint, is_sure in answer.job_places(draft.turn["path"], later):
            url = urljoin(draft.turn["origin"], endpoint.replace("{{job}}", str(value)))
            fetch = {**example_of("GET", url, headers, None).request, "origin": draft.turn["origin"]}
            asking = Draft(requests=(*draft.requests[:-1], fetch))
            with suppress(TimeoutError, NotProved), TimeLimit(_JOB_S):
                async with self._talks(asking, 1) as (talk,):
                    while (result := await self._say(talk, HELLO)).is_pending:
                        if not is_sure and str(value) not in result.known:
                            break
                        await anyio.sleep(_POLL_S)
                if result.fields and not result.is_pending:
                    poll = {"endpoint": endpoint, **result.until}
                    return replace(draft, more={**draft.more, "save": {"job": source}, "poll": poll})
        return None

    async def _with_conversation(self, draft: Draft, answer: TrialAnswer) -> tuple[Draft, str, str]:
        """Return the draft with what keeps a conversation, what shows it, and what is in doubt."""
        ways = list(_ways(draft, answer, named=self._named))
        is_unknown = len(ways) - len(draft.forms) > 2
        made_up = [place for place, text in texts_sent(draft.turn) if text == MADE_UP]
        ways += [Way(draft=_made_up(draft, made_up))] if made_up else []
        likely: tuple[Draft, str, str] | None = None
        doubt = ""
        while ways:
            way = ways.pop(0)
            try:
                shown = await self._shown(way)
            except NotProved as error:
                shown = ""
                if draft.forms and way.draft is draft:
                    doubt = doubt or f"A conversation of two messages failed: {error}."
            if shown == _SHARED:
                doubt = f"Two conversations at once share one: {_SHARED}."
            elif shown == _KEPT and way.parts:
                ways = list(way.parts)
            elif shown:
                found = way.draft, f"{way.about}: {shown}.", ""
                if shown == _KEPT or not way.is_named:
                    return found
                likely = likely or found
        if not likely and (doubt or is_unknown):
            return draft, "", doubt or UNKNOWN_CONVERSATION
        return likely or (draft, UNKNOWN_CONVERSATION, "")

    async def _shown(self, way: Way) -> str:
        """Return what two conversations at once show of their memory, or "". Raises NotProved."""
        said = [f"My name is {name}." for name in _NAMES] + 2 * ["What is my name?"]
        async with self._talks(way.draft, 2) as talks:
            answers = [await self._say(talk, text) for talk, text in zip(2 * talks, said, strict=True)]
        first, second = answers[:2], answers[2:]
        knows = [[re.search(rf"(?ai)\b{name}\b", each.reply) for name in _NAMES] for each in second]
        if knows[0][1] or knows[1][0]:
            return _SHARED
        if knows[0][0] and knows[1][1]:
            return _KEPT
        return way.shown(list(zip(first, second, strict=True)), [talk.session_id for talk in talks])


def _cookie_remarks(
    given: Sequence[RequestExample], sent: Sequence[RequestExample], status: int | None
) -> Iterator[str]:
    """Yield what became of recorded cookies. `status`: that of the answer without one that is sent."""
    kept = cookie_names(sent)
    if left := ", ".join(f"`{name}`" for name in cookie_names(given) if name not in kept):
        yield f"Left out the recorded cookies {left}: the agent answers without."
    if kept:
        names = ", ".join(f"`{name}`" for name in kept)
        problem = f"the agent answers {status}" if status and status >= 300 else "no reply was found"
        yield f"All conversations share the recorded cookies {names}: without, {problem}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way to keep a conversation."""

    draft: Draft
    is_named: bool = False  # True if nothing but the name of a field shows it
    parts: tuple[Way, ...] = ()  # if this way keeps a conversation, one of these does

    @property
    def about(self) -> str:
        """The way, as the beginning of a sentence."""
        turn, session = self.draft.turn, self.draft.more.get("session")
        labels = [label_of(turn, place) for place, text in texts_sent(turn) if text == _SESSION]
        names = " and ".join(f"`{name}`" for name in labels or self.draft.saves)
        if "{{messages}}" in json.dumps(turn["body"]):
            return "Each request has the whole conversation"
        source = f", which its answers have as `{session}`" if session else ", which `setup` creates"
        whence = source if session or not labels else ""
        return f"The conversation is {names}{whence}" if names else "The conversation needs no field"

    def shown(self, pairs: Sequence[tuple[TrialAnswer, TrialAnswer]], ids: Sequence[str]) -> str:
        """Return what the answers of two conversations show, if none remembers a name; or ""."""
        if session := self.draft.more.get("session"):
            given = [(one.find(session), two.find(session)) for one, two in pairs]
            is_kept = all(one is not None and one == two for one, two in given) and given[0] != given[1]
            return "the same id comes back when it is sent, and another for another" if is_kept else ""
        if all(sent in answer.known for pair, sent in zip(pairs, ids, strict=True) for answer in pair):
            return "each answer repeats the id that was sent"
        if self.draft.saves:
            return "each conversation begins with a request that creates its own"
        cookies = [[answer.headers.get("set-cookie", "") for answer in pair] for pair in pairs]
        if all(one and not two for one, two in cookies) and cookies[0] != cookies[1]:
            return "its first answer sets a cookie, and no later one does"
        return "the request has this field; no answer showed that it remembers" if self.is_named else ""


def _ways(draft: Draft, answer: TrialAnswer, *, named: bool) -> Iterator[Way]:
    """Yield the ways to keep a conversation, those with the most evidence first."""
    turn = draft.turn
    fields = [place for place, text in texts_sent(turn) if _may_name_conversation(turn, place, text)]
    given = dict.fromkeys(place for place, _ in answer.texts if _SESSION_NAME.search(owner_of(place)))
    if not fields:
        yield Way(draft=draft)
    yield from (Way(draft=replace(draft, more={**draft.more, "messages": form})) for form in draft.forms)
    for place in fields:
        yield from (Way(draft=draft.with_turn(place, _SESSION, session=path_to(at))) for at in given)
        is_named = named and bool(_SESSION_NAME.search(label_of(turn, place)))
        yield Way(draft=draft.with_turn(place, _SESSION), is_named=is_named)
    container: Place = ("body",) if isinstance(turn["body"], Mapping) else ("params",)
    for at, around in product(given, dict.fromkeys((draft.message[:-1], container))):
        name, owner = name_of(at), owner_of(at)
        above = owner.removesuffix("_id")
        # An id in an object is sent back in one, or alone.
        for names in ((name,),) if name == owner else ((above, name), (owner,), (f"{above}Id",)):
            if isinstance(known := reduce(getitem, around, turn), Mapping) and names[0] not in known:
                yield Way(draft=draft.with_turn((*around, *names), _SESSION, session=path_to(at)))
    for header in filter(_SESSION_NAME.search, map(str, answer.headers)):
        place = ("headers", header.lower())
        yield Way(draft=draft.with_turn(place, _SESSION, session={"header": header}))
    known = reduce(getitem, container, turn)
    if not fields and not draft.saves and "{{messages}}" not in json.dumps(turn["body"]):
        guessed = [(*container, name) for name in _GUESSED_SESSIONS if name not in known]
        parts = tuple(Way(draft=draft.with_turn(place, _SESSION)) for place in guessed)
        yield Way(draft=_made_up(draft, guessed), parts=parts)
    for name in dict.fromkeys(name_of(at) for at, _ in answer.texts):
        if _PERSON_NAME.search(name) and name not in known:
            yield Way(draft=draft.with_turn((*container, name), _SESSION))
    persons = [place for place, _ in texts_sent(turn) if _PERSON_NAME.search(name_of(place))]
    if fields and persons:
        yield Way(draft=_made_up(draft, persons))
    if fresh := _with_fresh_ids(draft):
        yield Way(draft=fresh)
    if fields:
        yield Way(draft=draft)


def _with_fresh_ids(draft: Draft) -> Draft | None:
    """Return the draft with a new id for each conversation in place of its ids, and of its persons."""
    places = [
        place
        for place, text in texts_sent(draft.turn)
        if _may_name_conversation(draft.turn, place, text) or _PERSON_NAME.search(name_of(place))
    ]
    fresh = _made_up(draft, places)
    return fresh if fresh.turn != draft.turn else None


def _made_up(draft: Draft, places: Sequence[Place]) -> Draft:
    for place in places:
        draft = draft.with_turn(place, _SESSION)
    return draft


@dataclass(frozen=True, slots=True)
class _Answered:
    """A request before the message, its answer, and what later requests need of it."""

    example: RequestExample
    request: Mapping[str, Any]
    answer: TrialAnswer
    save: dict[str, str] = field(default_factory=dict)

    def as_setup(self) -> Mapping[str, Any]:
        """Return the request as one of `setup`. A login is sent once a run."""
        is_login = "${" in json.dumps([self.request["params"], self.request["body"]])
        return {**self.request, **({"per": "run"} if is_login else {}), "save": self.save}

    def linked(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a later request with placeholders for the values that this one answered with."""
        for place, text in texts_sent(request):
            if found := self._link(label_of(request, place), str(text)):
                at, part = found
                owner = owner_of(at)
                thing = self.request["path"][-1].removesuffix("s")
                name = re.sub(r"\W", "_", owner if owner.lower() not in ("id", "key") else f"{thing}_id")
                self.save[name] = path_to(at)
                request = changed(request, place, str(text).replace(part, f"{{{{{name}}}}}"))
        return request

    def _link(self, label: str, text: str) -> tuple[Place, str] | None:
        if text in (sent for _, sent in texts_sent(self.request)):
            return None  # it was known before this answer
        given, variable = self.answer.texts, self.example.variable
        if variable and (match := re.search(rf"\$\{{?{variable}\b\}}?", text)):
            by_path = next((at for at, _ in given if path_to(at) == self.example.path), None)
            best = by_path or _likeliest(label, text, given)
            return (best, match[0]) if best else None
        part = text.rpartition(" ")[2]
        is_token = label.lower() == "authorization"
        if not (is_token or (is_id(part) and ID_NAME.search(label))):
            return None
        best = _likeliest("token" if is_token else label, part, given)
        return (best, part) if best else None


def _likeliest(label: str, text: str, given: Sequence[tuple[Place, Any]]) -> Place | None:
    """Return the place of the value that a later request needs under this name."""

    def bare(name: str) -> str:
        return re.sub("[_-]", "", name).lower()

    def score(each: tuple[Place, Any]) -> int:
        at, value = each
        owner, wanted = bare(owner_of(at)), bare(label)
        same = owner == wanted or (wanted == "token" and "token" in owner)
        alike = bool(_SESSION_NAME.search(label)) and bool(_SESSION_NAME.search(owner_of(at)))
        is_id = name_of(at).lower() in ("id", "key", "uuid") and wanted != "token"
        same_shape = _NUMBER.sub("9", str(value)) == _NUMBER.sub("9", text)
        return 4 * same + 2 * alike + 2 * is_id + same_shape

    best = max(given, key=score, default=None)
    return best[0] if best and score(best) else None


def _with_message_at(draft: Draft, place: Place) -> Draft:
    """Put the message into its place. A list of the conversation's messages is sent as a whole."""
    for end in range(len(place) - 1, 0, -1):
        items, item = reduce(getitem, place[:end], draft.turn), reduce(getitem, place[: end + 1], draft.turn)
        role = next(filter(_ROLE_NAME.fullmatch, item), None) if isinstance(item, Mapping) else None
        if isinstance(items, list) and role and isinstance(item[role], str):
            known = [each[role] for each in items if each.get(role, item[role]) != item[role]][:1]
            usual = _ANSWERING_ROLES.get(item[role].lower(), ("assistant", "agent", "bot"))
            roles = known or [cased_like(item[role], each) for each in usual]
            user = changed(item, place[end + 1 :], "{{content}}")
            is_usual = user == {"role": "user", "content": "{{content}}"} and roles[0] == "assistant"
            forms = [{"user": user, "assistant": {**user, role: each}} for each in roles]
            form = {} if is_usual else {"messages": forms[0]}
            draft = draft.with_turn(place[:end], "{{messages}}", **form)
            return replace(draft, message=place[:end], forms=forms[1:])
    return replace(draft.with_turn(place, _MESSAGE), message=place)
