"""What the configuration says of single requests: where they go, what they send, what is kept."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Self
from urllib.parse import urljoin, urlsplit

from pydantic import Field, field_validator, model_validator

from agentest.config.agents.ports import address_at, normal_address
from agentest.config.fields import (
    AtLeastOne,
    PathText,
    Section,
    check_headers,
    check_url,
)
from agentest.support.json_path import check_path
from agentest.support.json_text import NotJson, check_plain
from agentest.support.redaction import header_secrets, looks_secret, url_secrets
from agentest.support.templates import Template

_PLACEHOLDER = re.compile(r"\{\{\s*[\w.-]+\s*\}\}")
_NAME = re.compile(r"[A-Za-z_]\w*")
_NOT_SAVED = ("message", "messages", "turn_index", "scenario", "state")
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_TYPE = "content-type"


class Source(Section):
    """Where a value stands in an answer: a JMESPath, or one of the other three."""

    path: PathText | None = None
    header: str | None = Field(default=None, min_length=1)
    cookie: str | None = Field(default=None, min_length=1)
    regex: str | None = Field(default=None, min_length=1)
    """Into the text of the answer; its first group is the value."""

    @model_validator(mode="before")
    @classmethod
    def _text_is_a_path(cls, data: Any) -> Any:
        return {"path": check_path(data)} if isinstance(data, str) else data

    @field_validator("regex")
    @classmethod
    def _has_a_group(cls, value: str | None) -> str | None:
        try:
            if value is not None and re.compile(value).groups < 1:
                raise ValueError(f"is {value!r} and has no group: put what is to be kept in parentheses")
        except re.error as error:
            raise ValueError(f"is {value!r}, which is no regular expression: {error}") from None
        return value

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if len([value for value in self._ways() if value is not None]) != 1:
            raise ValueError("takes a JMESPath, or one of {header: …}, {cookie: …} and {regex: …}")
        return self

    def _ways(self) -> tuple[str | None, ...]:
        return (self.path, self.header, self.cookie, self.regex)

    @property
    def words(self) -> str:
        """As it is written in the configuration."""
        if self.path is not None:
            return self.path
        kind = "header" if self.header else "cookie" if self.cookie else "regex"
        return f"{{{kind}: {getattr(self, kind)}}}"


class Request(Section):
    """A request beside that of the turn, with placeholders in all of its values."""

    endpoint: str = Field(min_length=1)
    """An address, or what follows that of the agent: `/login`."""
    method: str = "POST"
    params: dict[str, Any] = Field(default_factory=dict)
    headers: dict[str, str] = Field(default_factory=dict)
    body: Any = None

    @field_validator("method")
    @classmethod
    def _known_method(cls, value: str) -> str:
        return check_method(value)

    @field_validator("headers")
    @classmethod
    def _valid_headers(cls, value: dict[str, str]) -> dict[str, str]:
        return check_headers(value)

    @field_validator("params")
    @classmethod
    def _flat(cls, value: dict[str, Any]) -> dict[str, Any]:
        return check_params(value)

    @field_validator("endpoint")
    @classmethod
    def _one_form_of_placeholder(cls, value: str) -> str:
        return normal_address(value)

    def at_port(self, port: int) -> Self:
        """The request to a server that has been started at this port."""
        return self.model_copy(update={"endpoint": address_at(self.endpoint, port)})

    @model_validator(mode="after")
    def _body_can_be_sent(self) -> Self:
        check_body(self.body, self.headers)
        return self

    @property
    def templates(self) -> tuple[tuple[str, Any], ...]:
        """Key → what may hold placeholders."""
        return tuple((key, getattr(self, key)) for key in ("endpoint", "params", "headers", "body"))

    @property
    def secrets(self) -> list[str]:
        return request_secrets(self.endpoint, self.params, self.headers, self.body)


class Step(Request):
    """A request of `setup` or `teardown`."""

    per: Literal["conversation", "run"] = "conversation"
    save: dict[str, Source] = Field(default_factory=dict)
    """Placeholder → where its value stands in the answer."""

    @field_validator("save")
    @classmethod
    def _names_of_placeholders(cls, value: dict[str, Source]) -> dict[str, Source]:
        return check_saved(value)


class Poll(Request):
    """How to ask for a job's result."""

    method: str = "GET"
    until: PathText
    """True for the answer that has the result."""
    every_ms: AtLeastOne = 500


def check_method(value: str) -> str:
    """The method in capitals. Raises ValueError for another than those that agents take."""
    if value.upper() not in _METHODS:
        raise ValueError(f"is {value!r}, expected one of {', '.join(_METHODS)}")
    return value.upper()


def check_params(params: dict[str, Any]) -> dict[str, Any]:
    """Parameters of an address: texts, numbers, booleans, and lists of these. Raises ValueError."""
    for name, value in params.items():
        for item in value if isinstance(value, list) else [value]:
            if item is not None and not isinstance(item, str | int | float):
                raise ValueError(
                    f"{name!r} holds a {type(item).__name__}, expected a text, a number or a list"
                )
    return params


def check_saved(saved: dict[str, Source]) -> dict[str, Source]:
    """Names that can be placeholders. Raises ValueError."""
    for name in saved:
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} cannot be a placeholder: letters, digits and underscores are expected"
            )
        if name in _NOT_SAVED:
            raise ValueError(f"{{{{{name}}}}} stands for something already; choose another name")
    return saved


def check_endpoint(value: str, base: str = "") -> str:
    """An address with placeholders in its path and query alone. Raises ValueError.

    Args:
        base: the address that it may be the end of.
    """
    bare = _PLACEHOLDER.sub("x", value)
    origin = urlsplit(value).netloc if "://" in value else ""
    if value.startswith("{{") or _PLACEHOLDER.search(origin) or "{" in origin:
        raise ValueError("has a placeholder where the host stands; one may stand in the path and the query")
    if "#" in bare:
        raise ValueError("has a part after `#`, which is never sent")
    check_url(urljoin(base, bare) if base else bare)
    return value


def check_body(body: Any, headers: Mapping[str, str]) -> None:
    """Raise ValueError for a body that cannot be sent under its content type."""
    kind = next((v.lower() for n, v in headers.items() if n.lower() == _TYPE), "")
    if isinstance(body, str):
        _check_text(body, kind)
        return
    try:
        check_plain(body)
    except NotJson as error:
        raise ValueError(f"`body` cannot be sent as JSON: {error} (write it as a text, in quotes)") from None
    if "form" in kind and not isinstance(body, Mapping | None):
        raise ValueError(
            f"`body` is a form ({kind}) and must be keys and values, not a {type(body).__name__}"
        )


def _check_text(body: str, kind: str) -> None:
    """Refuse a text that should be JSON and is none, as values are never pasted into JSON text."""
    looks_like_json = (
        not kind and body.lstrip().startswith(("{", "[")) and not _PLACEHOLDER.match(body.strip())
    )
    if not looks_like_json and "json" not in kind:
        return
    if _PLACEHOLDER.fullmatch(body.strip()):
        return
    try:
        json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"`body` is a text that should be JSON and is none: {error}. Write it as keys and values, with "
            'each placeholder in quotes: "{{messages}}" becomes the list itself'
        ) from None


def names_in(template: Any) -> frozenset[str]:
    """The placeholders of a value."""
    return Template(template).names


def request_secrets(endpoint: str, params: Any, headers: dict[str, str], body: Any) -> list[str]:
    """What must not be shown of a request: credentials in its address and headers, passwords in its body."""
    found = [*url_secrets(endpoint), *header_secrets(headers), *_secrets_in(params), *_secrets_in(body)]
    return [secret for secret in found if not _PLACEHOLDER.search(secret)]


def _secrets_in(value: Any, name: str = "") -> Iterator[str]:
    """Texts that stand under names which look secret, at any depth."""
    if isinstance(value, str) and looks_secret(name):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _secrets_in(item, str(key))
    elif isinstance(value, list):
        for item in value:
            yield from _secrets_in(item, name)
