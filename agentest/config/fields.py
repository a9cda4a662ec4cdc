"""Value types and checks that several parts of the configuration share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from agentest.domain.events import ReportRequest
from agentest.plugin import PLUGINS, Kind, PluginError
from agentest.support.errors import ConfigError, errors_as
from agentest.support.files import check_writable, readable
from agentest.support.json_text import NotJson, check_plain
from agentest.support.text import snake_case, snake_keys

_HOST_AND_PORT = re.compile(r"[\w.-]+:\d+(/|$)|localhost(/|$)")
_SOURCES = (".py", ".yaml", ".yml", ".toml")  # suffixes of source files, which no report may overwrite
_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")


_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


def no_bool(value: object) -> object:
    """Return the value unless it is a boolean. Raises ValueError."""
    if isinstance(value, bool):  # True is equal to 1, and would be taken for it
        raise ValueError("a number is expected, not true or false")
    return value


AtLeastOne = Annotated[int, BeforeValidator(no_bool), Field(ge=1)]


NotNegative = Annotated[int, BeforeValidator(no_bool), Field(ge=0)]


Number = Annotated[float, BeforeValidator(no_bool)]


def _checked_path(text: str) -> str:
    from agentest.support.jmespath_expressions import check_path

    return check_path(text)


def _checked_path_template(text: str) -> str:
    from agentest.support.jmespath_expressions import PathTemplate

    return PathTemplate(text).text


PathTemplateText = Annotated[str, AfterValidator(_checked_path_template)]
"""A valid JMESPath expression, which may have placeholders."""
PathText = Annotated[str, AfterValidator(_checked_path)]  # a valid JMESPath expression


def key_names(model: type[BaseModel]) -> list[str]:
    """Return the keys of a part of the configuration as users write them."""
    return [info.alias or name for name, info in model.model_fields.items()]


class Section(BaseModel):
    """Base class of all parts of the configuration: both key spellings, no unknown keys, frozen values."""

    # Build schemas on first use: the whole configuration is needed, not each part in advance.
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _either_spelling(cls, data: Any) -> Any:
        return snake_keys(data, key_names(cls)) if isinstance(data, Mapping) else data


class AgentObject:
    """An agent object, wrapped so that pydantic does not convert it (or a dataclass) to a mapping."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AgentObject) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)

    def __repr__(self) -> str:
        return f"<{type(self.value).__name__} {getattr(self.value, 'name', '')!r}>"


def check_headers(headers: dict[str, str]) -> dict[str, str]:
    """Check that HTTP allows the header names and values. Messages never repeat a value."""
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a valid header name")
        if name.lower() in ("content-length", "transfer-encoding"):
            raise ValueError(f"the header {name!r} follows from the body: leave it out")
        if not _HEADER_VALUE.fullmatch(value):
            raise ValueError(
                f"the value of header {name!r} has a line break or another character that HTTP does not "
                "allow (does the variable it comes from end with a line break?)"
            )
    return headers


HttpHeaders = Annotated[dict[str, str], AfterValidator(check_headers)]


def check_json(body: Any) -> Any:
    """Return the value. Raises ValueError if JSON cannot express it, such as a YAML date (2024-01-31)."""
    try:
        check_plain(body)
    except NotJson as error:
        raise ValueError(f"cannot be sent as JSON: {error} (write it as a text, in quotes)") from None
    return body


def check_url(value: str) -> str:
    """Check that a value is an http or https URL with a host. Raises ValueError."""
    if any(c.isspace() or not c.isprintable() for c in value):
        raise ValueError("is not a URL: it has a space, a line break or another invisible character")
    with errors_as(ValueError, "is not a URL: "):
        parts = urlsplit(value)
        port_is_valid = has_valid_port(parts)
        _check_international(value)
    if parts.scheme not in ("http", "https"):
        hint = f"; write http://{value}" if _HOST_AND_PORT.match(value) else ""
        raise ValueError(f"must start with http:// or https://, but is {value!r}{hint}")
    if not parts.hostname or not port_is_valid:
        raise ValueError(f"has no valid host and port: {value!r}")
    return value


Url = Annotated[str, AfterValidator(check_url)]  # an http or https URL


def has_valid_port(parts: SplitResult) -> bool:
    try:
        return parts.port is None or parts.port > 0
    except ValueError:
        # Do not repeat the value: it may be part of a password.
        raise ValueError(
            "its port is not a number from 1 to 65535 (in a user or password, write / ? # as %2F %3F %23)"
        ) from None


def _check_international(url: str) -> None:
    if url.isascii() and "xn--" not in url:
        return
    import httpx  # importing httpx takes 0.1 s, and few configurations need it

    with errors_as(ValueError, "", httpx.InvalidURL):
        host = httpx.URL(url).host
    if not host:
        raise ValueError("it has no host")


def check_feature(kind: Kind, name: str) -> str:
    """Return the name of a feature. Raises ValueError with the most similar name if no plug-in has it."""
    with errors_as(ValueError, "", PluginError):
        return PLUGINS.get(kind, name).name


CallSourceName = Annotated[str, AfterValidator(partial(check_feature, "call source"))]
"""The name of a source of tool calls."""


def parse_report(text: str, root: Path | None = None) -> ReportRequest:
    """Parse `NAME` or `NAME=PATH`, relative to `root`. Raises ValueError."""
    name, equals, path = text.partition("=")
    if equals and not name:
        raise ValueError(f"found {text!r}; expected NAME=PATH, such as junit={path or 'report.xml'}")
    check_feature("reporter", name)
    if equals and not path.strip():
        raise ValueError(f"{text!r} names no file; write {name}=PATH, or {name} alone for the usual place")
    if path == "-":
        raise ValueError(f"{text!r}: '-' is not a file; write {name}=/dev/stdout for the standard output")
    return ReportRequest(name, (root or Path()) / Path(path).expanduser() if equals else None)


def parse_reports(texts: Iterable[str], root: Path) -> tuple[ReportRequest, ...]:
    """Parse reports and remove duplicates. Raises ValueError, also for two reports with the same file."""
    wanted = tuple(dict.fromkeys(parse_report(text, root) for text in texts))
    owners: dict[Path, str] = {}
    for report in wanted:
        if report.path and owners.setdefault(report.path.resolve(), report.name) != report.name:
            other = owners[report.path.resolve()]
            raise ValueError(f"{other} and {report.name} are both to be written to {report.path}")
    return wanted


def requested_reports(words: Sequence[str], folder: Path) -> tuple[ReportRequest, ...]:
    """Return the reports of the command line, relative to the user's folder. Raises ConfigError."""
    with errors_as(ConfigError, "--reporter: "):
        return parse_reports(words, folder)


def check_can_be_written(reports: Iterable[ReportRequest]) -> None:
    """Create the folders of reports. Raises ConfigError, also if a report would replace a source file."""
    for report in reports:
        if report.path is not None:
            if report.path.suffix in _SOURCES and report.path.exists():
                raise ConfigError(
                    f"reporter {report.name}: {readable(str(report.path))} already exists and "
                    "looks like a source file, which a report would replace: name another file"
                )
            try:
                check_writable(report.path)
            except OSError as error:
                why = error.strerror or error
                raise ConfigError(
                    f"reporter {report.name}: {readable(str(report.path))} cannot be written ({why}); "
                    "name a file in a folder that you may write to"
                ) from None


PORT = "{port}"  # the normal form. Users may also write `{{port}}`.
_PLACEHOLDER = re.compile(r"\{\{\s*port\s*\}\}|(?<![${])\{port\}")
_URL_PORT = re.compile(r"^(\w+://[^/?#]*:)(?:\{\{\s*port\s*\}\}|\{port\})(?=[/?#]|$)")
"""Only in the port position of a URL: in the path, `{{port}}` may be a saved value."""
_ANY_PORT = 9


def normal_address(url: str) -> str:
    """Return the URL with the placeholder in normal form."""
    return _URL_PORT.sub(rf"\1{PORT}", url)


def normal_text(text: str) -> str:
    """Return the text with the placeholder in normal form."""
    return _PLACEHOLDER.sub(PORT, text)


def address_at(url: str, port: int) -> str:
    return _URL_PORT.sub(rf"\g<1>{port}", url)


def text_at(text: str, port: int) -> str:
    return _PLACEHOLDER.sub(str(port), text)


def example_url(url: str) -> str:
    """Return the URL with an example port, to validate it."""
    return address_at(url, _ANY_PORT)


def address_awaits_port(url: str) -> bool:
    """Return True if the URL contains the placeholder."""
    return bool(_URL_PORT.match(url))


def text_awaits_port(text: str) -> bool:
    """Return True if the text contains the placeholder."""
    return bool(_PLACEHOLDER.search(text))


Path_ = tuple[str | int, ...]  # the position of a value: keys and list indices from the top of the file


def key_location(path: Path, at: Path_, lines: dict[Path_, int]) -> str:
    """Return `file:line: key`, with the line of the nearest key that exists in the file."""
    spelt = tuple(snake_case(part) if isinstance(part, str) else part for part in at)
    key = f": {dotted(at)}" if at else ""
    for depth in range(len(at), -1, -1):
        if spelt[:depth] in lines:
            return f"{path}:{lines[spelt[:depth]]}{key}"
    return f"{path}{key}"


def dotted(at: Path_) -> str:
    text = ""
    for part in at:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.lstrip(".")
