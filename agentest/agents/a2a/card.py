"""An agent's card: where and in which form it says that it can be talked to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

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
