"""Read the answers of an unknown API: where the reply is, ids, states, and the results of jobs.

The reply is the text that changes with the message. Ids, states, errors and the message itself are none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import anyio

from agentest.agents.error_hints import is_page
from agentest.agents.protocol_probe import DetectedProtocol, EndpointProbe
from agentest.agents.reply_detection import USUAL_PLACES, Place, name_of, values_in
from agentest.support.jmespath_expressions import JsonPath, path_to
from agentest.support.lazy_dataclasses import dataclass

_NO_REPLY = re.compile(
    r"(?i:(?:\b|_)(?:id|uuid|key|status|state|type|object|role|model|created(?:_at)?|timestamp|time|date|url|event"
    r"|error|errors|detail|details|exception|traceback|prompt|question|query|input))$|[a-z](?:Id|At)$"
)
"""Names of what is no reply."""
_ERRORS = ("error", "errors", "exception")
_OPAQUE = re.compile(r"(?=.*\d)[\w.:+/=-]{6,}")
_WITH_DIGIT = re.compile(r"(?<!\S)[^\s\d]*\d\S*")
_WORD = re.compile(r"[^\W\d_]{2,}")
_STATES = ("status", "state", "job_status", "task_status")
_PENDING = (
    "queued", "pending", "running", "processing", "accepted", "in_progress", "started", "submitted",
    "working", "created", "enqueued", "waiting", "scheduled", "in-progress", "inprogress", "received",
)  # fmt: skip
"""States of a job that has no result yet."""
_FAILED = ("error", "failed", "failure", "cancelled")
_DONE = ("done", "ready", "finished", "complete", "completed")
ID_NAME = re.compile(
    r"(?i:\b|_|job|task|session|chat|thread|conversation|request|run|user)(?i:[a-z]?id|uuid|key|no|number|token)$"
    r"|[a-z](?:I[dD]|Key|No|Number|Token|U[uU][iI][dD])$"
)
_ID = re.compile(r"(?=.*\d)[\w.:-]{2,}|[0-9a-f]{8,}|<[^<>]+>|\{\w+\}|:\w+|\$\{?\w+\}?|YOUR[_-]\w+")
_texts_in = partial(values_in, from_end=True)
_CERTAIN = ("reply", "response", "answer")
_USUAL = (
    *dict.fromkeys(place.rpartition(".")[2] for place in USUAL_PLACES),
    "delta",
    "token",
    "chunk",
    "data",
)


class _KnownApi(NamedTuple):
    """A public API that the documentation has a configuration for, and how its servers show it."""

    about: str
    place: str  # how to look, `GET`, `POST` or `WS`, and where it is on its servers
    sign: str  # a pattern of the status and the body of the answer
    recipe: str
    page: str = "known-apis"


_TAKEN = "(?!404|405)"
_REFUSED_OR_EMPTY = r"(401|403|415)|2\d\d \s*(\{\})?$"  # an API of its own answers, or names its fields
_TEAMS = "Teams and Bot Framework"
_KNOWN_APIS = (
    _KnownApi("a Gradio app", "GET /config", '200 .*"dependencies"', "Gradio"),
    _KnownApi("a Gradio app", "GET /gradio_api/info", '200 .*"named_endpoints"', "Gradio"),
    _KnownApi("GraphQL over WebSocket", "WS /graphql", "101", "GraphQL subscriptions"),
    _KnownApi("a ChatKit server", "POST /chatkit", _TAKEN, "ChatKit"),
    _KnownApi("a bot for Slack's events", "POST /slack/events", _TAKEN, "Slack", "reply-webhooks"),
    _KnownApi(
        "a bot of the Bot Framework", "POST /api/messages", _REFUSED_OR_EMPTY, _TEAMS, "reply-webhooks"
    ),
)
_ACTIVITY = {"type": "message", "text": "Hello", "conversation": {"id": "agentest-1"}}


async def find_known_api(probe: EndpointProbe, *, elsewhere: bool = False) -> DetectedProtocol | None:
    """Find a public API at the endpoint, or `elsewhere` on its server. The documentation has the rest."""
    own = urlsplit(probe.url).path.rstrip("/")
    for api in _KNOWN_APIS:
        method, _, place = api.place.partition(" ")
        is_here = own.endswith(place)
        # What a GET returns describes the whole server.
        is_described = method == "GET" and (not own or own.split("/")[1] == place.split("/")[1])
        path, answer, settings = "" if is_here else place, "", {"type": "http", "endpoint": probe.url}
        if not (is_here or is_described or elsewhere):
            continue
        if method == "WS":
            answer = "101" if is_here and await probe.websocket_greeting() is not None else ""
        elif response := await (probe.get(path) if method == "GET" else probe.post(path, _ACTIVITY)):
            body = response.body.decode(errors="replace")
            answer = "" if is_page(response.body) else f"{response.status} {body}"
        if answer and re.match(api.sign, answer, re.S):
            because = (
                f"This looks like {api.about}: {place} answers {answer[:3]}. Copy its configuration from "
                f"`agentest docs {api.page}`, {api.recipe!r}, and complete it."
            )
            return DetectedProtocol(settings=settings, because=because)
    return None


class NotProved(Exception):
    """The reply, or something else, was not found. The message says why, as a sentence."""

    settings: Mapping[str, Any] = {}  # what was tried, as far as it is known


@dataclass(frozen=True, slots=True)
class TrialAnswer:
    """An answer to a message."""

    status: int
    headers: Mapping[str, str]
    values: Sequence[Any]
    """The events of a stream, or the JSON value or the text alone. A text in an event is its `data`."""
    reply: str  # what the settings read in it

    @property
    def fields(self) -> Mapping[str, Any]:
        """The JSON object that is the whole answer; empty for another answer."""
        return self.values[0] if len(self.values) == 1 and isinstance(self.values[0], Mapping) else {}

    @property
    def texts(self) -> list[tuple[Place, Any]]:
        """The places and values of all texts and numbers."""
        return [each for value in self.values for each in _texts_in(value) if each[1] not in (None, "")]

    @property
    def known(self) -> set[str]:
        """All texts and numbers, as texts."""
        return {str(value) for _, value in self.texts}

    def find(self, source: str | Mapping[str, str]) -> Any:
        """Return the value of a header, or at a path, of the first event that has one; None without one."""
        if isinstance(source, Mapping):
            return self.headers.get(source["header"])
        found = map(JsonPath(source).find, self.values)
        return next((value for value in found if value is not None), None)

    @property
    def _state(self) -> tuple[str, str]:
        """The path and the text of the state that it reports, or two ""."""
        texts = ((at, each) for at, each in _texts_in(self.fields) if isinstance(each, str) and len(at) <= 2)
        return next(((path_to(at), each) for at, each in texts if name_of(at).lower() in _STATES), ("", ""))

    @property
    def is_pending(self) -> bool:
        """True if it says that its result comes later."""
        is_open = any(self.fields.get(key) is False for key in _DONE)
        return self.status == 202 or is_open or self._state[1].lower() in _PENDING

    @property
    def failure(self) -> str:
        """What shows that it is an error, or ""."""
        path, state = self._state
        found = [f"`{key}`" for key in _ERRORS if self.fields.get(key)]
        found += [f"`{key}: false`" for key in ("ok", "success") if self.fields.get(key) is False]
        found += [f"`{path}: {state}`"] if state.lower() in _FAILED else []
        return next(iter(found), "")

    @property
    def until(self) -> dict[str, str]:
        """The setting by which the last answer of a job is known, if the status does not tell it."""
        path, state = self._state
        failed = (cased_like(state, each) for each in ("failed", "error"))
        others = "".join(f" || {path} == '{each}'" for each in failed if each != state)
        done = (key for key, value in self.fields.items() if value is True and key.lower() in _DONE)
        until = f"{path} == '{state}'{others}" if path else next(done, "")
        return {"until": until} if until else {}

    def job_places(self, path: Sequence[str], later: Iterable[str]) -> Iterator[tuple[Any, Any, str, bool]]:
        """Yield where the id or address of a job is, its value, where its result may be, and if that is sure.

        Args:
            path: of the request that began the job, in parts.
            later: the paths and queries of requests that fetched the result of another job.
        """
        for each in later:
            endpoint = re.sub(r"[^/?&=]+", lambda part: "{{job}}" if is_id(part[0]) else part[0], each)
            if "{{job}}" in endpoint:
                yield from ((path_to(at), value, endpoint, True) for at, value in self.texts)
        if location := self.headers.get("location"):
            yield {"header": "Location"}, location, "{{job}}", True
        own, parent = "/".join(("", *path)), "/".join(("", *path[:-1]))
        for at, value in self.texts:
            if str(value).startswith(("http://", "https://", "/")):
                yield path_to(at), value, "{{job}}", False
            elif ID_NAME.search(name_of(at)) and " " not in str(value):
                thing = re.sub("_?id$", "", owner_of(at).lower()) or "job"
                around = [f"{parent}/{each}" for each in (f"{thing}s", "jobs", "tasks", "status", "results")]
                for place in dict.fromkeys((own, parent, *around, f"{own}/status", f"{own}/result")):
                    yield path_to(at), value, f"{place}/{{{{job}}}}", False
                yield path_to(at), value, f"{own}/{{{{job}}}}/result", False


def cased_like(example: str, word: str) -> str:
    """Return the word in capitals, or with one at its start, if the example is."""
    return word.upper() if example.isupper() else word.title() if example.istitle() else word


def owner_of(place: Place) -> str:
    """Return the name of a value; for `session.id`, that of the object that it belongs to."""
    names = [str(part) for part in place if isinstance(part, str)]
    is_bare = len(names) > 1 and names[-1].lower() in ("id", "key", "uuid")
    return f"{names[-2]}_id" if is_bare else names[-1] if names else ""


def is_id(text: Any) -> bool:
    """Return True if a text looks like an id, or like the placeholder for one in a README."""
    return isinstance(text, str) and bool(_ID.fullmatch(text)) and not re.fullmatch(r"v\d+", text)


def error_settings(body: Any) -> dict[str, str]:
    """Return where the answers to a request have errors, for protocols that answer them with status 200."""
    if not isinstance(body, Mapping):
        return {}
    is_graphql = re.search(r"(?<!{){(?!{)", str(body.get("query", "")))
    return {"error": "error"} if "jsonrpc" in body else {"error": "errors"} if is_graphql else {}


def find_reply(sent: Sequence[str], answers: Sequence[TrialAnswer]) -> dict[str, str]:
    """Return the settings of the reply: `reply` or `delta`, or none for an answer that is the reply itself.

    `sent` has the message before each answer. Each began a conversation. Raises NotProved.
    """
    if any(answer.is_pending for answer in answers):
        raise NotProved("the answer says that the result comes later")
    every = [value for answer in answers for value in answer.values]
    are_texts = all(isinstance(each, str) for each in every)
    bare = [each for each in every if isinstance(each, Mapping) and each.keys() == {"event", "data"}]
    if not are_texts and (bare != every or len({each["event"] for each in bare}) > 1):
        return _reply_in_events(sent, [answer.values for answer in answers])
    texts = ["".join(str(each["data"] if bare else each) for each in answer.values) for answer in answers]
    if _is_reply((), texts, sent):
        return {}
    raise NotProved("the answer does not change with the message")


def _reply_in_events(sent: Sequence[str], streams: Sequence[Sequence[Any]]) -> dict[str, str]:
    key = _kind_key(streams)
    tables = [_pieces(events, key) for events in streams]
    found: dict[tuple[str, ...], tuple[bool, tuple[int, int], str, Place]] = {}
    for place, kind in tables[0]:
        pieces = [table.get((place, kind), [""]) for table in tables]
        is_whole = all(late.startswith(early) for each in pieces for early, late in pairwise(each))
        texts = [each[-1] if is_whole else "".join(each) for each in pieces]
        if _is_reply(place, texts, sent):
            is_one_kind = all(other == kind for at, other in tables[0] if at == place)
            path = path_to(place) if is_one_kind else f"{key} == '{kind}' && {path_to(place)}"
            option = (is_whole, _rank(place), path, place)
            found[tuple(texts)] = min(option, found.get(tuple(texts), option))
    ranked = sorted(found.values(), key=lambda each: _rank(each[3]))
    if not ranked:
        shown = json.dumps(streams[0][-3:], ensure_ascii=False)
        raise NotProved(f"no text of the answer changes with the message: {shown:.200}")
    usual = [each for each in ranked if name_of(each[3]).lower() in _USUAL]
    if len(ranked) > 1 and len(usual) != 1 and name_of(ranked[0][3]).lower() not in _CERTAIN:
        paths = " and ".join(f"`{path}`" for _, _, path, _ in ranked[:3])
        raise NotProved(f"several texts change with the message, {paths}: write `reply` with one of them")
    is_whole, _, path, _ = ranked[0]
    return {"reply" if is_whole else "delta": path}


async def try_at_once(trials: Sequence[Callable[[], Awaitable[tuple[str, str]]]]) -> list[tuple[str, str]]:
    """Run trials concurrently and return what each returns: what came, and the problem or "".

    After the first that works, the others get as long again and a second, because many agents are silent to
    messages in a form that they do not know.
    """
    outcomes, begun, limit = [("", "no reply")] * len(trials), anyio.current_time(), anyio.CancelScope()

    async def run(number: int) -> None:
        outcomes[number] = await trials[number]()
        if not outcomes[number][1]:
            limit.deadline = min(limit.deadline, 2 * anyio.current_time() - begun + 1)

    with limit:
        async with anyio.create_task_group() as tasks:
            for number in range(len(trials)):
                tasks.start_soon(run, number)
    return outcomes


def _rank(place: Place) -> tuple[int, int]:
    name = name_of(place).lower()
    return _USUAL.index(name) if name in _USUAL else len(_USUAL), len(place)


def _is_reply(place: Place, texts: Sequence[Any], sent: Sequence[str]) -> bool:
    if not all(text.strip() for text in texts):
        return False
    if len({_WITH_DIGIT.sub("", text) for text in texts}) == 1:
        return False  # no more than an id or a time differs
    if any(str(part).lower() in _ERRORS for part in place) or (
        name_of(place).lower() not in _USUAL and _NO_REPLY.search(name_of(place))
    ):
        return False
    is_echo = all(text.strip() == message.strip() for text, message in zip(texts, sent, strict=True))
    return not is_echo and any(_WORD.search(text) and not _OPAQUE.fullmatch(text.strip()) for text in texts)


def _kind_key(streams: Sequence[Sequence[Any]]) -> str:
    """Return the key that tells the kinds of events apart: with the same few words in each stream."""
    first = streams[0][0]
    for key in dict.fromkeys(("event", "type", "kind", *(first if isinstance(first, Mapping) else ()))):
        words = [{_kind(event, key) for event in events} for events in streams]
        if len(words[0]) > 1 and words[0] == words[1] and not re.search(r"[^\w.-]", "".join(words[0])):
            return str(key)
    return "event"


def _pieces(events: Sequence[Any], key: str) -> dict[tuple[Place, str], list[str]]:
    """Return the texts of a stream, in order, by their place and the kind of their events."""
    found: dict[tuple[Place, str], list[str]] = {}
    for event in events:
        for place, text in _texts_in(event):
            if isinstance(text, str) and place != (key,):
                found.setdefault((place, _kind(event, key)), []).append(text)
    return found


def _kind(event: Any, key: str) -> str:
    return str(event.get(key, "")) if isinstance(event, Mapping) else ""
