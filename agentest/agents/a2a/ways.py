"""In which forms A2A is spoken: versions, bindings, and the addresses at which both are found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import SplitResult, urljoin, urlsplit, urlunsplit

from agentest.agents.a2a.card import Card, Offer

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
        for url in _places(base, offer.url):
            yield Way(url=url, version=offer.version, rest=offer.rest)


def _places(base: str, offered: str) -> list[str]:
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
