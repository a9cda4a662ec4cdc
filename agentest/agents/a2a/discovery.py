"""How one agent is talked to: found out once, and shared by all of its conversations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar
from urllib.parse import SplitResult, parse_qs, quote, urljoin, urlsplit, urlunsplit
from uuid import UUID, uuid5

import anyio

from agentest.support.errors import AgentError

_JSON_RPC, _REST = "JSONRPC", "HTTP+JSON"
_TELLING = "https://langchain.com/a2a/extensions/history-scope/v1"
"""An extension that LangGraph's server names, which has the results of tools in its histories."""
_SHOWN_SCHEMES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """An interface of the agent that can be spoken here."""

    url: str
    """May be relative; "": the endpoint."""
    version: Literal["1.0", "0.3"]
    rest: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What is of use in a card."""

    offers: tuple[Offer, ...] = ()
    refused: tuple[str, ...] = ()
    """The other interfaces, in words."""
    streams: bool = True
    """False only where it says so."""
    credentials: str = ""
    """What it wants to know who is asking, in words; "" where it does not say."""
    tells_calls: bool = False
    """Whether the server is known to tell of all calls."""


def read_card(value: Any) -> Card | None:
    """The card; None for what is none."""
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        return None
    interfaces = [_interface(item) for item in _interfaces(value)]
    if not interfaces:
        return None
    capabilities = _mapping(value.get("capabilities"))
    return Card(
        offers=tuple(found for found in interfaces if isinstance(found, Offer)),
        refused=tuple(found for found in interfaces if isinstance(found, str)),
        streams=capabilities.get("streaming") is not False,
        credentials=_credentials(value),
        tells_calls=any(
            _mapping(item).get("uri") == _TELLING for item in _list(capabilities.get("extensions"))
        ),
    )


def _interfaces(card: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Address, binding and version of each, in both spellings: 1.x servers write both into one card."""
    for item in map(_mapping, _list(card.get("supportedInterfaces"))):
        yield _text(item, "url"), _text(item, "protocolBinding"), _text(item, "protocolVersion") or "1.0"
    version = _text(card, "protocolVersion") or "0.3"
    if _text(card, "url") and not (version[:1] != "0" and card.get("supportedInterfaces")):
        yield _text(card, "url"), _text(card, "preferredTransport") or _JSON_RPC, version
    for item in map(_mapping, _list(card.get("additionalInterfaces"))):
        yield _text(item, "url"), _text(item, "transport"), version


def _interface(found: tuple[str, str, str]) -> Offer | str:
    url, binding, said = found
    version: Literal["1.0", "0.3"] = "0.3" if said.startswith("0.") else "1.0"
    if not _is_address(url):
        url = ""  # the endpoint itself is the likeliest
    if binding.upper() == _JSON_RPC:
        return Offer(url=url, version=version)
    if binding.upper() == _REST and version == "1.0":
        return Offer(url=url, version=version, rest=True)
    return f"{binding or 'an unnamed binding'} {said} at {url or 'no address'}"


def _is_address(url: str) -> bool:
    try:
        return bool(url) and (urlsplit(url).port or 0) >= 0
    except ValueError:
        return False


def _credentials(card: Mapping[str, Any]) -> str:
    schemes = [_scheme(_mapping(scheme)) for scheme in _mapping(card.get("securitySchemes")).values()]
    return " or ".join(dict.fromkeys(filter(None, schemes[:_SHOWN_SCHEMES])))


def _scheme(scheme: Mapping[str, Any]) -> str:
    """What a scheme wants; 1.0 has its content below a key that names its kind."""
    for key, kind in _KINDS.items():
        if key in scheme:
            return _scheme({"type": kind, **_mapping(scheme[key])})
    match scheme.get("type"):
        case "apiKey":
            place = scheme.get("in") or scheme.get("location") or "header"
            return f"a key in the {place} {scheme.get('name')}"
        case "http":
            return f"a header Authorization: {str(scheme.get('scheme', 'bearer')).capitalize()} …"
        case "oauth2" | "openIdConnect":
            return "a header Authorization: Bearer … with a token of its login"
        case "mutualTLS":
            return "a certificate of the client"
    return ""


_KINDS = {
    "apiKeySecurityScheme": "apiKey",
    "httpAuthSecurityScheme": "http",
    "oauth2SecurityScheme": "oauth2",
    "openIdConnectSecurityScheme": "openIdConnect",
    "mtlsSecurityScheme": "mutualTLS",
}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _text(value: Mapping[str, Any], key: str) -> str:
    found = value.get(key)
    return found if isinstance(found, str) else ""


WELL_KNOWN = "/.well-known/agent-card.json"
OLD_WELL_KNOWN = "/.well-known/agent.json"
_LANGGRAPH = "/a2a/"
"""What stands before the assistant's id in addresses of LangGraph's server."""

_GRAPHS = UUID("6ba7b821-9dad-11d1-80b4-00c04fd430c8")
"""From which LangGraph's server makes the ids of the assistants that it has for graphs."""

Fetch = Callable[[str], Awaitable[Any]]
"""The JSON value at an address; None where there is none."""


def base_of(endpoint: str) -> str:
    """The agent's address: the endpoint, but for that of a card the address to which the card belongs."""
    parts = urlsplit(endpoint)
    path, query = parts.path or "/", parts.query
    for known in (WELL_KNOWN, OLD_WELL_KNOWN):
        if path.endswith(known):
            path, query = path.removesuffix(known) or "/", ""
            if assistant := parse_qs(parts.query).get("assistant_id"):
                path = f"{path.rstrip('/')}{_LANGGRAPH}{quote(assistant[0], '')}"
            break
    return urlunsplit((parts.scheme, parts.netloc, path, query, ""))


async def find_card(endpoint: str, fetch: Fetch) -> Card | None:
    """The card of the agent at an endpoint, looked for where servers have it. None where there is none."""
    for url, own in _places(endpoint):
        card = read_card(await fetch(url))
        if card is not None and (own or _names(card, base_of(endpoint))):
            return card
    return None


def _names(card: Card, base: str) -> bool:
    """Whether a card at a server's root is that of the agent at this address: there may be several."""
    path = urlsplit(base).path.rstrip("/")
    return any(urlsplit(offer.url).path.rstrip("/") == path for offer in card.offers)


def _places(endpoint: str) -> Iterator[tuple[str, bool]]:
    """Addresses to ask, and whether what is there speaks of this agent alone."""
    base = base_of(endpoint)
    if urlsplit(endpoint).path.endswith((WELL_KNOWN, OLD_WELL_KNOWN)):
        yield endpoint, True
    parts = urlsplit(base)
    root, path = urlunsplit((parts.scheme, parts.netloc, "", "", "")), parts.path.rstrip("/")
    yield f"{root}{path}{WELL_KNOWN}", True
    before, found, assistant = path.rpartition(_LANGGRAPH)
    if found:
        yield f"{root}{before}{WELL_KNOWN}?assistant_id={assistant}", True
    if path:
        yield f"{root}{WELL_KNOWN}", False
    yield f"{root}{path}{OLD_WELL_KNOWN}", True
    if path:
        yield f"{root}{OLD_WELL_KNOWN}", False


def langgraph_assistant(url: str, problem: str) -> str:
    """The id of a graph's own assistant, where LangGraph's server refuses the graph's name; else ""."""
    _, found, name = urlsplit(url).path.rstrip("/").rpartition(_LANGGRAPH)
    return str(uuid5(_GRAPHS, name)) if found and "must be a UUID" in problem else ""


Version = Literal["1.0", "0.3"]
VERSIONS: tuple[Version, ...] = ("1.0", "0.3")
_LOOPBACK = ("localhost", "127.0.0.1", "::1", "0.0.0.0", "::")
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One form in which an agent may be talked to."""

    url: str
    version: Version = "1.0"
    rest: bool = False
    """HTTP+JSON in place of JSON-RPC."""


def ways(base: str, card: Card | None, wanted: Version | None) -> tuple[Way, ...]:
    """All ways worth trying, the best first.

    What the card offers comes first: JSON-RPC before HTTP+JSON, the newest version first. Then versions that
    the card does not name, for cards are not always right. Empty where the card offers nothing that is
    spoken here.
    """
    versions = (wanted,) if wanted else VERSIONS
    offers = [offer for offer in card.offers if offer.version in versions] if card else []
    if card and card.refused and not card.offers:
        return ()
    rpc = [offer for offer in offers if not offer.rest]
    if offers and not rpc:
        return _distinct(_at(base, offers))
    named = _distinct(_at(base, rpc))
    urls = list(dict.fromkeys(way.url for way in named)) or [base]
    return _distinct([*named, *(Way(url=url, version=v) for v in versions for url in urls)])


def _distinct(found: Iterable[Way]) -> tuple[Way, ...]:
    return tuple(dict.fromkeys(found))


def _at(base: str, offers: Sequence[Offer]) -> Iterator[Way]:
    for offer in sorted(offers, key=lambda offer: VERSIONS.index(offer.version)):
        for url in _ways_places(base, offer.url):
            yield Way(url=url, version=offer.version, rest=offer.rest)


def _ways_places(base: str, offered: str) -> list[str]:
    """Where an offer may be found: never at another origin than the endpoint's.

    Cards behind proxies, in containers and on forwarded ports name addresses that nobody else can reach.
    """
    ours, theirs = urlsplit(base), urlsplit(urljoin(base, offered))
    there = urlunsplit((ours.scheme, ours.netloc, theirs.path or "/", theirs.query or ours.query, ""))
    if same_origin(base, theirs.geturl()):
        return [there, base]
    return [base, there] if ours.path in ("", "/") else [base]


def same_origin(one: str, other: str) -> bool:
    """Whether two addresses are of one server, as far as addresses tell: names of this machine are one."""
    a, b = _origin(urlsplit(one)), _origin(urlsplit(other))
    return a is not None and a == b


def _origin(parts: SplitResult) -> tuple[str, str, int] | None:
    try:
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return None
    return parts.scheme, "localhost" if host in _LOOPBACK else host, port or _PORTS.get(parts.scheme, 0)


_CARD_TIMEOUT_S = 10.0

T = TypeVar("T")
Say = Callable[[Way, bool], Awaitable[T]]


class WayRefused(AgentError):
    """The agent cannot be talked to in this way; nothing of the request has been done."""

    def __init__(self, message: str, *, nowhere: bool = False) -> None:
        """`nowhere`: nobody takes requests at that address, in whatever version."""
        super().__init__(message)
        self.nowhere = nowhere


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where an agent is said to be, and what the user wishes."""

    name: str
    endpoint: str
    version: Version | None
    in_process: bool
    """Whether an application takes the requests, whose card cannot know the address."""


class Contact:
    """The ways to talk to an agent. One conversation tries them out, the others wait for what it finds."""

    def __init__(self, address: Address, timeout_s: float, on_note: Callable[[str], None]) -> None:
        self._address = address
        self._timeout_s = min(timeout_s, _CARD_TIMEOUT_S)
        self._on_note = on_note
        self._lock = anyio.Lock()
        self._ways: tuple[Way, ...] | None = None
        self._settled = False
        self.card: Card | None = None

    async def talk(self, fetch: Fetch, say: Say[T]) -> T:
        """What `say` makes of the first way that is not refused.

        Args:
            fetch: gets the JSON value at an address, for the card.
            say: gets a way, and whether there is no other address to try; raises WayRefused where the agent
                does not take this way.
        """
        if not self._settled:
            async with self._lock:
                if self._ways is None:
                    await self._look_around(fetch)
                # An agent with a card has said how it is talked to: nobody need wait for its first answer.
                self._settled = self._settled or self.card is not None
                if not self._settled:
                    return await self._first(say)
        return await self._say(say)

    async def _first(self, say: Say[T]) -> T:
        try:
            return await self._say(say)
        finally:
            self._settled = True

    async def _look_around(self, fetch: Fetch) -> None:
        address = self._address
        with anyio.move_on_after(self._timeout_s):
            self.card = await find_card(address.endpoint, fetch)
        base = base_of(address.endpoint)
        self._ways = ways(base, self.card, address.version)
        if self.card is not None and not address.in_process:
            self._note_elsewhere(base, self.card)

    def _note_elsewhere(self, base: str, card: Card) -> None:
        urls = [urljoin(base, offer.url) for offer in card.offers]
        elsewhere = [url for url in urls if not same_origin(base, url)]
        if elsewhere and len(elsewhere) == len(card.offers):
            self._on_note(
                f"agent {self._address.name!r}: its card names another address, {elsewhere[0]}; requests go "
                "to the configured endpoint all the same"
            )

    async def _say(self, say: Say[T]) -> T:
        refusals: list[str] = []
        while True:
            if not self._ways:
                raise self._nothing_spoken()
            way = self._ways[0]
            try:
                return await say(way, all(one.url == way.url for one in self._ways))
            except WayRefused as refused:
                refusals.append(str(refused))
                if not self._leave(way, refused.nowhere):
                    raise AgentError("; then: ".join(dict.fromkeys(refusals))) from None

    def _leave(self, way: Way, nowhere: bool) -> bool:
        """Go on to the next way, if others have not done so already; whether there is one to try."""
        known = self._ways or ()
        if way != known[0]:
            return True
        left = tuple(one for one in known[1:] if not (nowhere and one.url == way.url))
        if left:
            self._ways = left
        return bool(left)

    def _nothing_spoken(self) -> AgentError:
        offered = ", ".join(self.card.refused) if self.card else "nothing"
        return AgentError(
            f"the agent's card offers {offered}; spoken here are JSON-RPC (1.0 and 0.3) and HTTP+JSON (1.0)"
        )
