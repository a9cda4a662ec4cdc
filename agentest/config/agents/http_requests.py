"""Settings of single HTTP requests: where they go, what they send, and which values they save."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar
from urllib.parse import urljoin, urlsplit

from pydantic import AfterValidator, Field, field_validator, model_validator

from agentest.config.agents.base import FAMILIES
from agentest.config.agents.companion_servers import check_placeholders
from agentest.config.fields import (
    AtLeastOne,
    HttpHeaders,
    NotNegative,
    PathTemplateText,
    PathText,
    Section,
    address_at,
    check_json,
    check_url,
    normal_address,
)
from agentest.support.errors import errors_as
from agentest.support.jmespath_expressions import check_path
from agentest.support.json_text import named_texts
from agentest.support.redaction import header_secrets, looks_secret, url_secrets
from agentest.support.templates import Template, without
from agentest.support.text import did_you_mean

_PLACEHOLDER = re.compile(r"\{\{\s*[\w.-]+\s*\}\}")
_PLACEHOLDER_ALONE = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_NAME = re.compile(r"[A-Za-z_]\w*")
_Place = TypeVar("_Place")
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


class ValueSource(Section):
    """The place of a value in a response: a JMESPath, a header, a cookie or a regular expression."""

    path: PathText | None = None
    header: str | None = Field(default=None, min_length=1)
    cookie: str | None = Field(default=None, min_length=1)
    regex: str | None = Field(default=None, min_length=1)
    """A regular expression for the response's text, or for the header. Its first group is the value."""

    @model_validator(mode="before")
    @classmethod
    def _text_is_a_path(cls, data: Any) -> Any:
        return {"path": check_path(data)} if isinstance(data, str) else data

    @field_validator("regex")
    @classmethod
    def _has_a_group(cls, value: str | None) -> str | None:
        with errors_as(ValueError, f"is {value!r}, which is not a regular expression: ", re.error):
            if value is not None and re.compile(value).groups < 1:
                raise ValueError(f"is {value!r} and has no group: put the part to save in parentheses")
        return value

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        regex = None if self.header else self.regex
        if (self.path, self.header, self.cookie, regex).count(None) != 3:
            raise ValueError(
                "takes a JMESPath, or one of {header: …}, {cookie: …}, {regex: …} and {header: …, regex: …}"
            )
        return self

    @property
    def words(self) -> str:
        """The source as written in the configuration."""
        if self.path is not None:
            return self.path
        kinds = ("header", "cookie", "regex")
        return f"{{{', '.join(f'{kind}: {getattr(self, kind)}' for kind in kinds if getattr(self, kind))}}}"


def _checked_method(value: str) -> str:
    if value.upper() not in _METHODS:
        raise ValueError(f"is {value!r}, expected one of {', '.join(_METHODS)}")
    return value.upper()


def _checked_params(params: dict[str, Any]) -> dict[str, Any]:
    for name, value in params.items():
        for item in value if isinstance(value, list) else [value]:
            if item is not None and not isinstance(item, str | int | float):
                raise ValueError(
                    f"{name!r} holds a {type(item).__name__}, expected a text, a number or a list"
                )
    return params


def check_saved_names(saved: dict[str, _Place]) -> dict[str, _Place]:
    """Return names and places of saved values. Raises ValueError for a name that cannot be a placeholder."""
    for name in saved:
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} cannot be a placeholder: letters, digits and underscores are expected"
            )
        if name in ("message", "messages", "turn_index", "scenario", "state"):
            raise ValueError(f"{{{{{name}}}}} stands for something already; choose another name")
    return saved


Method = Annotated[str, AfterValidator(_checked_method)]  # an HTTP method, in upper case
Params = Annotated[dict[str, Any], AfterValidator(_checked_params)]
"""Query parameters: texts, numbers, booleans, and lists of these."""
SavedValues = Annotated[dict[str, ValueSource], AfterValidator(check_saved_names)]
"""Placeholder → place of its value in the response."""


def check_endpoint(value: str, base: str = "") -> None:
    """Check a URL, relative to `base`, with placeholders only in its path and query. Raises ValueError."""
    bare = _PLACEHOLDER.sub("x", value)
    origin = urlsplit(value).netloc if "://" in value else ""
    if value.startswith("{{") or _PLACEHOLDER.search(origin) or "{" in origin:
        raise ValueError("has a placeholder where the host stands; one may stand in the path and the query")
    if "#" in bare:
        raise ValueError("has a part after `#`, which is never sent")
    check_url(urljoin(base, bare) if base else bare)


def check_body(body: Any, headers: Mapping[str, str]) -> None:
    """Raise ValueError for a body that does not fit its content type."""
    kind = next((v.lower() for n, v in headers.items() if n.lower() == "content-type"), "")
    if isinstance(body, str):
        _check_text(body, kind)
        return
    with errors_as(ValueError, "`body` "):
        check_json(body)
    if "form" in kind and not isinstance(body, Mapping | None):
        raise ValueError(
            f"`body` is a form ({kind}) and must be keys and values, not a {type(body).__name__}"
        )


def _check_text(body: str, kind: str) -> None:
    text = body.strip()
    looks_like_json = not kind and text.startswith(("{", "[")) and not _PLACEHOLDER.match(text)
    if _PLACEHOLDER.fullmatch(text) or not (looks_like_json or "json" in kind):
        return
    try:
        json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"`body` is a text that should be JSON and is none: {error}. Write it as keys and values, with "
            'each placeholder in quotes: "{{messages}}" becomes the list itself'
        ) from None


def names_in(template: Any) -> frozenset[str]:
    """Return the placeholders in a value."""
    return Template(template).names


def request_secrets(endpoint: str, params: Any, headers: dict[str, str], body: Any) -> list[str]:
    """Return the secrets of a request: credentials in its URL and headers, passwords in its body."""
    named = (text for name, text in named_texts([params, body]) if looks_secret(name))
    secrets = [*url_secrets(endpoint), *header_secrets(headers), *named]
    return [secret for secret in secrets if not _PLACEHOLDER.search(secret)]


class HttpRequestSettings(Section):
    """A request other than that of the turn, with placeholders in all values."""

    endpoint: Annotated[str, Field(min_length=1), AfterValidator(normal_address)]
    """A URL, or a path to append to the agent's endpoint: `/login`."""
    method: Method = "POST"
    params: Params = Field(default_factory=dict)
    headers: HttpHeaders = Field(default_factory=dict)
    body: Any = None

    def at_port(self, port: int) -> Self:
        """Return the request for a server that has started at this port."""
        return self.model_copy(update={"endpoint": address_at(self.endpoint, port)})

    @model_validator(mode="after")
    def _body_can_be_sent(self) -> Self:
        check_body(self.body, self.headers)
        return self

    @property
    def whole_endpoint(self) -> str | None:
        """The placeholder whose value is the whole URL, like that of a `Location` header."""
        match = _PLACEHOLDER_ALONE.fullmatch(self.endpoint)
        return match and match[1]

    @property
    def templates(self) -> tuple[tuple[str, Any], ...]:
        """Key → value that may contain placeholders."""
        return tuple((key, getattr(self, key)) for key in ("endpoint", "params", "headers", "body"))

    @property
    def secrets(self) -> list[str]:
        return request_secrets(self.endpoint, self.params, self.headers, self.body)


class SetUpRequest(HttpRequestSettings):
    """A request of `setup` or `teardown`."""

    per: Literal["conversation", "run"] = "conversation"
    save: SavedValues = Field(default_factory=dict)
    """Placeholder → place of its value in the response."""


def required_in(template: Any) -> frozenset[str]:
    """Return the placeholders that need a value. A key that holds only one without a value is left out."""
    return names_in(without(template, names_in(template)))


class Conditional(Section):
    """A request or a message that may depend on a condition."""

    condition: PathTemplateText | None = Field(default=None, alias="if")
    """JMESPath into the saved values. It is sent only if this is true."""

    @property
    def condition_names(self) -> frozenset[str]:
        """The names on which the condition depends."""
        if self.condition is None:
            return frozenset()
        from agentest.support.jmespath_expressions import PathTemplate

        condition = PathTemplate(self.condition)
        return condition.names | condition.fields

    def check_condition(self, location: str, known: tuple[str, ...]) -> None:
        """Raise ValueError for a condition with a name that never has a value."""
        check_placeholders(f"{location}.if", self.condition, known, FAMILIES)
        strange = {name for name in self.condition_names - {*known} if name.partition(".")[0] not in FAMILIES}
        if strange:
            raise ValueError(
                f"`{location}.if` looks at `{min(strange)}`, which nothing saves; "
                f"{did_you_mean(min(strange), known)}"
            )


class TurnRequest(Conditional, HttpRequestSettings):
    """A request of a turn. `endpoint` and `method` are those of the agent unless it has its own."""

    endpoint: Annotated[str, AfterValidator(normal_address)] = ""
    method: Method | None = None  # type: ignore[assignment]  # None: the agent's
    save: SavedValues = Field(default_factory=dict)
    """Placeholder → place of its value in the response."""
    until: PathTemplateText | None = None
    """Path that is true for the last response. Until then, the request is repeated."""
    every_ms: AtLeastOne = 500
    quiet_ms: NotNegative = 0
    """How long the response has to stay the same before it is the last."""

    @property
    def repeats(self) -> bool:
        """True if the request is repeated until there is a result."""
        return self.until is not None

    @property
    def sends_message(self) -> bool:
        """True if the request contains the user's message."""
        return bool(names_in([self.templates]) & {"message", "messages"})

    @property
    def required_names(self) -> frozenset[str]:
        """The placeholders that need a value."""
        path, _, query = self.endpoint.partition("?")
        pairs = [part.partition("=")[::2] for part in query.split("&")]
        return names_in(path) | required_in([pairs, self.params, self.headers, self.body])

    @model_validator(mode="after")
    def _waits_for_something(self) -> Self:
        if not self.repeats and {"every_ms", "quiet_ms"} & self.model_fields_set:
            raise ValueError("`every_ms` and `quiet_ms` are for a request that is repeated: set `until`, too")
        return self


class Poll(TurnRequest):
    """How to poll for the result of a job."""

    endpoint: Annotated[str, Field(min_length=1), AfterValidator(normal_address)]
    method: Method = "GET"
    repeats: ClassVar[bool] = True  # without `until`, as long as the status is 202 or there is no content
