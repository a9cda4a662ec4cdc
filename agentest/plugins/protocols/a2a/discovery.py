"""Discovery of how to reach an A2A agent: its card, the ways to send requests, and the first that works.

All conversations with an agent share one `WayFinder`, so discovery runs once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Literal, TypeVar
from urllib.parse import SplitResult, parse_qs, quote, urljoin, urlsplit, urlunsplit
from uuid import UUID, uuid5

import anyio

from agentest.agents.error_hints import ProbeResponse
from agentest.agents.json_reader import mapping_at, objects_at, text_at
from agentest.agents.port import AgentNotes
from agentest.agents.protocol_probe import DetectedProtocol, EndpointProbe, ProtocolProbe
from agentest.plugins.protocols.a2a.settings import A2aAgent
from agentest.support.errors import AgentError
from agentest.support.lazy_dataclasses import dataclass, replace

_JSON_RPC, _REST = "JSONRPC", "HTTP+JSON"
_HISTORY_EXTENSION = "https://langchain.com/a2a/extensions/history-scope/v1"
"""Extension of LangGraph's server; histories of a server that names it contain the results of tools."""
_SHOWN_SCHEMES = 3
_SCHEME_TYPES = {
    "apiKeySecurityScheme": "apiKey",
    "httpAuthSecurityScheme": "http",
    "oauth2SecurityScheme": "oauth2",
    "openIdConnectSecurityScheme": "openIdConnect",
    "mtlsSecurityScheme": "mutualTLS",
}
WELL_KNOWN = "/.well-known/agent-card.json"
OLD_WELL_KNOWN = "/.well-known/agent.json"
_LANGGRAPH_PATH = "/a2a/"
_LANGGRAPH_NAMESPACE = UUID("6ba7b821-9dad-11d1-80b4-00c04fd430c8")
"""The namespace from which LangGraph's server derives the assistant ids of graphs."""
Fetch = Callable[[str], Awaitable[Any]]  # returns the JSON value at an address, or None if there is none
Version = Literal["1.0", "0.3"]
VERSIONS: tuple[Version, ...] = ("1.0", "0.3")
_LOOPBACK = ("localhost", "127.0.0.1", "::1", "0.0.0.0", "::")
_PORTS = {"http": 80, "https": 443}
_CARD_TIMEOUT_S = 10.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestWay:
    """One way to send requests to an agent: address, version and binding."""

    url: str  # the address. In a card's offer it may be relative; "" then means the endpoint.
    version: Version = "1.0"
    rest: bool = False  # True for HTTP+JSON, False for JSON-RPC


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCard:
    """The parts of an agent card that Agentest uses."""

    offers: tuple[RequestWay, ...] = ()  # the interfaces that Agentest supports
    refused: tuple[str, ...] = ()  # descriptions of the interfaces that Agentest does not support
    streams: bool = True  # False only if the card says that the agent does not stream
    credentials: str = ""  # a description of the required credentials; "" if the card names none
    tells_calls: bool = False  # True if the server is known to report all calls


def read_card(value: Any) -> AgentCard | None:
    """Read a card; None if the value is not a card."""
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        return None
    interfaces = [_interface(*item) for item in _interfaces(value)]
    if not interfaces:
        return None
    capabilities = mapping_at(value, "capabilities")
    extensions = objects_at(capabilities, "extensions")
    schemes = mapping_at(value, "securitySchemes")
    credentials = [_scheme(mapping_at(schemes, name)) for name in [*schemes][:_SHOWN_SCHEMES]]
    return AgentCard(
        offers=tuple(interface for interface in interfaces if isinstance(interface, RequestWay)),
        refused=tuple(interface for interface in interfaces if isinstance(interface, str)),
        streams=capabilities.get("streaming") is not False,
        credentials=" or ".join(dict.fromkeys(filter(None, credentials))),
        tells_calls=any(extension.get("uri") == _HISTORY_EXTENSION for extension in extensions),
    )


def _interfaces(card: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield address, binding and version of each interface, in both spellings, because servers mix them."""
    for item in objects_at(card, "supportedInterfaces"):
        yield (
            text_at(item, "url"),
            text_at(item, "protocolBinding"),
            text_at(item, "protocolVersion") or "1.0",
        )
    version, url = text_at(card, "protocolVersion") or "0.3", text_at(card, "url")
    if url and not (version[:1] != "0" and card.get("supportedInterfaces")):
        yield url, text_at(card, "preferredTransport") or _JSON_RPC, version
    for item in objects_at(card, "additionalInterfaces"):
        yield text_at(item, "url"), text_at(item, "transport"), version


def _interface(url: str, binding: str, named_version: str) -> RequestWay | str:
    version: Version = "0.3" if named_version.startswith("0.") else "1.0"
    if not _is_address(url):
        url = ""  # the endpoint is the most likely address
    is_rest = binding.upper() == _REST and version == "1.0"
    if is_rest or binding.upper() == _JSON_RPC:
        return RequestWay(url=url, version=version, rest=is_rest)
    return f"{binding or 'an unnamed binding'} {named_version} at {url or 'no address'}"


def _is_address(url: str) -> bool:
    try:
        return bool(url) and (urlsplit(url).port or 0) >= 0
    except ValueError:
        return False


def _scheme(scheme: Mapping[str, Any]) -> str:
    for key, kind in _SCHEME_TYPES.items():
        if key in scheme:
            return _scheme({"type": kind, **mapping_at(scheme, key)})
    match scheme.get("type"):
        case "apiKey":
            location = scheme.get("in") or scheme.get("location") or "header"
            return f"a key in the {location} {scheme.get('name')}"
        case "http":
            return f"a header Authorization: {str(scheme.get('scheme', 'bearer')).capitalize()} …"
        case "oauth2" | "openIdConnect":
            return "a header Authorization: Bearer … with a token of its login"
        case "mutualTLS":
            return "a certificate of the client"
    return ""


def base_of(endpoint: str) -> str:
    """Return the agent's address: the endpoint, or if that is a card's address, the card's agent."""
    parts = urlsplit(endpoint)
    path, query = parts.path or "/", parts.query
    for known in (WELL_KNOWN, OLD_WELL_KNOWN):
        if path.endswith(known):
            path, query = path.removesuffix(known) or "/", ""
            if assistant := parse_qs(parts.query).get("assistant_id"):
                path = f"{path.rstrip('/')}{_LANGGRAPH_PATH}{quote(assistant[0], '')}"
            break
    return urlunsplit((parts.scheme, parts.netloc, path, query, ""))


async def find_card(endpoint: str, fetch: Fetch) -> AgentCard | None:
    """Fetch the card of the agent at an endpoint from its usual addresses; None if there is none."""
    for url, is_specific in _card_addresses(endpoint):
        card = read_card(await fetch(url))
        if card is not None and (is_specific or _is_card_of(card, base_of(endpoint))):
            return card
    return None


def _is_card_of(card: AgentCard, base: str) -> bool:
    path = urlsplit(base).path.rstrip("/")
    return any(urlsplit(offer.url).path.rstrip("/") == path for offer in card.offers)


def _card_addresses(endpoint: str) -> Iterator[tuple[str, bool]]:
    base = base_of(endpoint)
    if urlsplit(endpoint).path.endswith((WELL_KNOWN, OLD_WELL_KNOWN)):
        yield endpoint, True
    parts = urlsplit(base)
    root, path = urlunsplit((parts.scheme, parts.netloc, "", "", "")), parts.path.rstrip("/")
    yield f"{root}{path}{WELL_KNOWN}", True
    before, separator, assistant = path.rpartition(_LANGGRAPH_PATH)
    if separator:
        yield f"{root}{before}{WELL_KNOWN}?assistant_id={assistant}", True
    if path:
        yield f"{root}{WELL_KNOWN}", False
    yield f"{root}{path}{OLD_WELL_KNOWN}", True
    if path:
        yield f"{root}{OLD_WELL_KNOWN}", False


def langgraph_assistant(url: str, problem: str) -> str:
    """Return the id of a graph's default assistant if the server refused the graph's name, else ""."""
    _, separator, name = urlsplit(url).path.rstrip("/").rpartition(_LANGGRAPH_PATH)
    return str(uuid5(_LANGGRAPH_NAMESPACE, name)) if separator and "must be a UUID" in problem else ""


def rank_ways(base: str, card: AgentCard | None, wanted: Version | None) -> tuple[RequestWay, ...]:
    """Return the ways worth trying, the best first.

    The card's offers come first: JSON-RPC before HTTP+JSON, the newest version first. Versions that the
    card does not name follow, because cards are not always right. The result is empty if the card offers
    only interfaces that Agentest does not support.
    """
    versions = (wanted,) if wanted else VERSIONS
    offers = [offer for offer in card.offers if offer.version in versions] if card else []
    if card and card.refused and not card.offers:
        return ()
    rpc = [offer for offer in offers if not offer.rest]
    named = [
        replace(offer, url=url)
        for offer in sorted(rpc or offers, key=lambda offer: VERSIONS.index(offer.version))
        for url in _offer_addresses(base, offer.url)
    ]
    if not offers or rpc:
        urls = list(dict.fromkeys(way.url for way in named)) or [base]
        named += [RequestWay(url=url, version=version) for version in versions for url in urls]
    return tuple(dict.fromkeys(named))


def _offer_addresses(base: str, offered: str) -> list[str]:
    """Return the addresses where an offer may be reachable, all at the endpoint's origin."""
    ours, theirs = urlsplit(base), urlsplit(urljoin(base, offered))
    offered_here = urlunsplit((ours.scheme, ours.netloc, theirs.path or "/", theirs.query or ours.query, ""))
    if same_origin(base, theirs.geturl()):
        return [offered_here, base]
    return [base, offered_here] if ours.path in ("", "/") else [base]


def same_origin(url: str, other: str) -> bool:
    """Return whether two addresses have the same origin. All names of this machine count as one host."""
    a, b = _origin(urlsplit(url)), _origin(urlsplit(other))
    return a is not None and a == b


def _origin(parts: SplitResult) -> tuple[str, str, int] | None:
    try:
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return None
    return parts.scheme, "localhost" if host in _LOOPBACK else host, port or _PORTS.get(parts.scheme, 0)


Say = Callable[[RequestWay, bool], Awaitable[T]]


class WayRefused(AgentError):
    """The agent refused requests in this way, and has not processed any of them."""

    def __init__(self, message: str, *, nowhere: bool = False) -> None:
        """`nowhere` is true if nothing accepts requests at that address, in any version."""
        super().__init__(message)
        self.nowhere = nowhere


class WayFinder:
    """The ways to reach an agent. One conversation tries them; the others wait for the result."""

    def __init__(self, config: A2aAgent, timeout_s: float, notes: AgentNotes) -> None:
        self._config = config
        self._timeout_s = min(timeout_s, _CARD_TIMEOUT_S)
        self._notes = notes
        self._lock = anyio.Lock()
        self._ways: tuple[RequestWay, ...] | None = None
        self._settled = False
        self.card: AgentCard | None = None

    async def use_first_way(self, fetch: Fetch, say: Say[T]) -> T:
        """Call `say` with one way after the other and return its result for the first that is not refused.

        `say` takes a way, and whether there is no other address to try. It raises WayRefused if the agent
        does not accept this way. `fetch` fetches the JSON value at an address, for the card.
        """
        if not self._settled:
            async with self._lock:
                if self._ways is None:
                    await self._find_ways(fetch)
                # A card names the ways, so the other conversations need not wait for the first reply.
                self._settled = self._settled or self.card is not None
                if not self._settled:
                    try:
                        return await self._try_ways(say)
                    finally:
                        self._settled = True
        return await self._try_ways(say)

    async def _find_ways(self, fetch: Fetch) -> None:
        with anyio.move_on_after(self._timeout_s):
            self.card = await find_card(self._config.endpoint, fetch)
        base = base_of(self._config.endpoint)
        self._ways = rank_ways(base, self.card, self._config.protocol_version)
        # The card of an application in this process cannot know the address.
        if self.card is not None and self._config.app is None:
            urls = [urljoin(base, offer.url) for offer in self.card.offers]
            if urls and not any(same_origin(base, url) for url in urls):
                self._notes.add(
                    "origin",
                    f"its card names another address, {urls[0]}; requests go to the configured endpoint all "
                    "the same",
                )

    async def _try_ways(self, say: Say[T]) -> T:
        refusals: list[str] = []
        while True:
            if not self._ways:
                offered = ", ".join(self.card.refused) if self.card else "nothing"
                raise AgentError(
                    f"the agent's card offers {offered}; spoken here are JSON-RPC (1.0 and 0.3) and "
                    "HTTP+JSON (1.0)"
                )
            way = self._ways[0]
            try:
                return await say(way, all(other.url == way.url for other in self._ways))
            except WayRefused as refused:
                refusals.append(str(refused))
                if not self._drop_way(way, refused.nowhere):
                    raise AgentError("; then: ".join(dict.fromkeys(refusals))) from None

    def _drop_way(self, way: RequestWay, nowhere: bool) -> bool:
        known = self._ways or ()
        if way != known[0]:
            return True
        left = tuple(other for other in known[1:] if not (nowhere and other.url == way.url))
        if left:
            self._ways = left
        return bool(left)


class A2aProbe(ProtocolProbe):
    """Finds an A2A agent card at the endpoint or at the server's root."""

    order = 1
    required = frozenset({"jsonrpc"})

    def is_spoken(self, response: ProbeResponse) -> bool:
        return response.first_object.get("jsonrpc") == "2.0"

    async def find(self, endpoint: EndpointProbe) -> DetectedProtocol | None:
        async def fetch(url: str) -> Any:
            response = await endpoint.get(url)
            return response.json if response is not None and response.status == 200 else None

        for url in dict.fromkeys((endpoint.url, urljoin(endpoint.url, "/"))):
            card = await find_card(url, fetch)
            if card is not None and card.offers:
                return self.found(base_of(url), f"its agent card offers A2A {card.offers[0].version}")
        return None
