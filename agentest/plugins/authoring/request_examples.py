"""Requests that work, in parts: of curl commands, of a browser's recording, or found by trying."""

from __future__ import annotations

import base64
import codecs
import json
import os
import re
import shlex
import sys
from argparse import ArgumentError, ArgumentParser
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from itertools import groupby, product
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlencode, urlsplit

from agentest.agents.error_hints import ProbeResponse, is_page
from agentest.agents.protocol_probe import GREETERS, MESSAGE_FIELDS, EndpointProbe, missing_fields
from agentest.agents.reply_detection import Place, name_of, values_in
from agentest.plugins.authoring.answer_reading import is_id
from agentest.support.errors import UsageError, errors_as
from agentest.support.json_text import json_or
from agentest.support.lazy_dataclasses import dataclass, replace
from agentest.support.redaction import CredentialFilter, looks_secret

USUAL_PATHS = ("/chat", "/api/chat", "/ask", "/message", "/messages", "/invoke", "/query", "/agent", "/run")
"""Where agents with an API of their own usually are."""
HELLO = "Hello, my name is Ada."
ANY_MODEL = "agent"
_TYPE, _JSON_TYPE = "content-type", "application/json"
FORM = "application/x-www-form-urlencoded"
_NOISE = re.compile(
    r"(?i)(|accept-(encoding|language)|cache-control|connection|content-length|dnt|host|if-.*|origin|pragma"
    r"|priority|referer|sec-.*|te|upgrade-insecure-requests|user-agent|x-requested-with)$"
)
"""Headers that browsers and curl add to every request; `:authority` and others begin with a colon."""
_DATA = re.compile(r"json|event-stream|text/plain")  # in types of answers that are no part of a page
_ADDRESS = re.compile(r"(?i)https?://|(localhost|[\w-]+(\.[\w-]+)+)(:\d+)?(/|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestExample:
    """A request that works, in parts, with the values that it was sent with."""

    request: Mapping[str, Any]
    """`origin`, `method`, `path` (a list), `params`, `headers` (in lower case) and `body`: JSON or a text."""
    variable: str = ""  # the shell variable that receives a value of the answer
    path: str = ""  # the JMESPath of that value


def example_of(method: str, url: str, headers: Mapping[str, str], body: Any) -> RequestExample:
    """Return a request in parts."""
    parts = urlsplit(url)
    path = [unquote(part) for part in parts.path.removeprefix("/").split("/")]
    params = dict(parse_qsl(parts.query, keep_blank_values=True))
    parts_of_path = {"origin": f"{parts.scheme}://{parts.netloc}", "path": path, "params": params}
    return RequestExample(request={**parts_of_path, "method": method, "headers": dict(headers), "body": body})


def read_curl(source: str) -> list[RequestExample]:
    """Read the curl commands of a text, of a file, or of the standard input (`-`), in their order.

    Raises UsageError if there is none.
    """
    found: list[RequestExample] = []
    variable = ""
    is_text = re.search(r"\bcurl(\.exe)?\s|://", source)
    text = source if is_text else sys.stdin.read() if source == "-" else _content(f"@{source}")
    for name, _, value in re.findall(r"""(?m)^ *(?:export )?(\w+)=(["']?)([^"'$`(\s]+)\2 *$""", text):
        text = re.sub(rf"\$(?:{name}\b|\{{{name}\}})", lambda _, value=value: value, text)
    for words in _commands(text):
        while len(words) > 1 and _BEFORE_COMMANDS.fullmatch(words[0]):
            words = words[1:]
        if words[0] in ("curl", "curl.exe"):
            found.append(replace(_of_curl(words[1:]), variable=variable))
            variable = ""
        elif words[0] == "jq" and found and found[-1].variable:
            path = next((word for word in words[1:] if word.startswith(".")), "")
            found[-1] = replace(found[-1], path=path.lstrip("."))
        else:
            variable = words[-1][:-1] if words[-1].endswith("=") else ""
    if not found:
        raise UsageError("--curl has no curl command. Expected: curl http://localhost:8000/chat -d '{…}'")
    return found


def read_har(file: Path) -> list[RequestExample]:
    """Read the requests of a browser's recording (HAR) that send or fetch data, the first of each kind.

    Raises UsageError if there is none.
    """
    found: dict[tuple[str, str], RequestExample] = {}
    problem = f"--har: {file} is not a recording of a browser, with `log.entries`: "
    with errors_as(UsageError, problem, (ValueError, LookupError, TypeError, AttributeError)):
        for entry in json.loads(_content(f"@{file}"))["log"]["entries"]:
            request, answer = entry["request"], entry["response"]["content"].get("mimeType", "")
            is_sent = request["url"].startswith("http") and request["method"] not in ("OPTIONS", "DELETE")
            if not is_sent or not _DATA.search(answer):
                continue
            sent = request.get("postData", {})
            words = ["-X", request["method"], request["url"]]
            words += [f"--header={each['name']}: {each['value']}" for each in request["headers"]]
            if "multipart" in sent.get("mimeType", ""):
                words += [f"--form={each['name']}={each.get('value', '')}" for each in sent["params"]]
            elif sent.get("text"):
                words.append(f"--data-raw={sent['text']}")
            parts = urlsplit(request["url"]).path.split("/")
            kind = "/".join("" if is_id(part) else part for part in parts)
            found.setdefault((request["method"], kind), _of_curl(words))
    if not found:
        raise UsageError(f"--har: {file} has no request that sends or fetches data")
    return list(found.values())


def _commands(text: str) -> Iterator[list[str]]:
    """Split shell text into commands, and these into words."""
    text = re.sub(r'(?ms)="\$\((.*?)\)"$', r"=$(\1)", text)
    text = re.sub(r"\\\r?\n", " ", re.sub(r"(?m)^\s*#.*$", "", text))
    text = re.sub(r"(?<=\s)\$'((?:[^'\\]|\\.)*)'", _unescaped, text)
    lexer = shlex.shlex(text, posix=True, punctuation_chars="\n;|&()`")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    with errors_as(UsageError, "--curl cannot be read. Copy whole commands, with their quotes: "):
        words = list(lexer)
    for ends, command in groupby(words, lambda word: bool(word) and not word.strip("\n;|&()`")):
        if not ends:
            yield [word.removesuffix("$") if word.endswith("=$") else word for word in command]


def _unescaped(match: re.Match[str]) -> str:
    escape = re.compile(r"\\(?:u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", re.S)
    text = escape.sub(lambda each: codecs.decode(each[0], "unicode_escape"), match[1])
    return shlex.quote(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


_BEFORE_COMMANDS = re.compile(r"[$%>]|sudo|time|\w+=.*", re.S)  # a prompt, and variables of one command
_OTHER_OPTIONS = """
-A -c -C -D -e -E -K -m -o -P -r -U -w -x -y -Y -z --user-agent --cookie-jar --dump-header --referer --cert
--key --cacert --config --max-time --connect-timeout --output --write-out --proxy --noproxy --resolve --retry
"""
"""Options with a value that is no part of a request."""


def _parser() -> ArgumentParser:
    parser = ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument(*_OTHER_OPTIONS.split(), dest="other")
    for names in ("-X --request", "-u --user", "--url"):
        parser.add_argument(*names.split(), default="")
    for names in ("-H --header", "-b --cookie", "-F --form --form-string"):
        parser.add_argument(*names.split(), action="append", default=[])
    for names, read in (
        ("-d --data --data-ascii", lambda value: _content(value).replace("\n", "")),
        ("--data-raw", str),
        ("--data-binary", _content),
        ("--data-urlencode", lambda value: quote_plus(value, safe="=")),
    ):
        parser.add_argument(*names.split(), action="append", dest="data", type=read, default=[])
    parser.add_argument("--json", action="append", type=_content, default=[])
    for names in ("-G --get", *(f"-{letter}" for letter in "sSiIkLNvfgnOjJq#")):
        parser.add_argument(*names.split(), action="store_true")
    return parser


def _of_curl(words: Sequence[str]) -> RequestExample:
    with errors_as(UsageError, "--curl cannot be read: ", ArgumentError):
        given, others = _parser().parse_known_args(words)
    url = given.url or next(filter(_ADDRESS.match, others), "")
    if not url:
        raise UsageError("a request of --curl has no address: expected curl http://localhost:8000/chat …")
    url = url if "://" in url else f"http://{url}"
    pairs = (each.partition(":") for each in given.header)
    headers = {key.strip().lower(): text.strip() for key, _, text in pairs if not _NOISE.match(key.strip())}
    if headers.get("accept", "").replace(" ", "").startswith(("*/*", _JSON_TYPE, "text/html")):
        del headers["accept"]
    if given.json:
        headers[_TYPE] = _JSON_TYPE
    if given.user:
        user = _VARIABLE.sub(lambda each: _value_of(each[1]) if each[1].isupper() else each[0], given.user)
        headers["authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"
    if cookies := [each for each in given.cookie if "=" in each]:
        headers["cookie"] = "; ".join(cookies)
    text = ("" if headers.get(_TYPE) == _JSON_TYPE else "&").join([*given.data, *given.json])
    if given.get and text:
        return example_of(given.request or "GET", f"{url}{'&' if '?' in url else '?'}{text}", headers, None)
    kind = headers.get(_TYPE, "").lower()
    body = json_or(text, text) if text else None
    if given.form:
        fields = (each.partition("=") for each in given.form)
        body = {key: text.partition(";type=")[0] for key, _, text in fields if text[:1] not in ("@", "<")}
        headers[_TYPE] = "multipart/form-data"
    elif isinstance(body, str) and (FORM in kind or (not kind and "=" in body)):
        body, headers[_TYPE] = dict(parse_qsl(body, keep_blank_values=True)), FORM
    elif not isinstance(body, str) and (_JSON_TYPE in kind or FORM in kind or body is None):
        headers.pop(_TYPE, None)  # that of every JSON body
    method = (given.request or ("POST" if given.data or given.json or given.form else "GET")).upper()
    return example_of(method, url, headers, body)


def _content(value: str) -> str:
    if not value.startswith("@"):
        return value
    with errors_as(UsageError, f"{value[1:]} cannot be read: ", (OSError, UnicodeDecodeError)):
        return Path(value[1:]).read_text(encoding="utf-8")


def _value_of(variable: str) -> str:
    if variable not in os.environ:
        raise UsageError(f"${variable} has no value: set it in the environment, and run this again")
    return os.environ[variable]


_VARIABLE = re.compile(r"\$\{?(\w+)\}?")
_NAMES_OF_SECRETS = re.compile(r"^\s*[A-Za-z]+ +|(?<![\w.-])[\w.-]+=|[;:,\s]+")  # `Bearer `, `sid=`; `
_SCHEME = re.compile(r"(Bearer|Basic|Token|ApiKey) ", re.I)
_CREDENTIALS = CredentialFilter()


def hidden(
    value: Any, variables: MutableMapping[str, str], inherited: Collection[str] = (), name: str = ""
) -> Any:
    """Return a JSON value with `${NAME}` for secrets and for variables of the shell.

    Args:
        variables: receives the name and the value of each.
        inherited: variables of the shell that stand for something else.
        name: the key of the value.

    Raises UsageError for a variable without a value, except in a path.
    """
    if isinstance(value, Mapping):
        return {key: hidden(each, variables, inherited, key) for key, each in value.items()}
    if isinstance(value, list):
        return [hidden(each, variables, inherited, name) for each in value]
    if not isinstance(value, str) or not value:
        return value
    if name == "cookie":
        named = cookies_in(value).items()
        return "; ".join(
            f"{key}={hidden(text, variables, inherited, f'cookie_{key}')}" for key, text in named
        )
    is_login = name == "authorization"
    of_shell = {each for each in _VARIABLE.findall(value) if is_login or each.isupper()}
    for each in of_shell.difference(inherited):
        if name == "path" and each not in os.environ:
            continue  # the id of a README's example, which an answer has
        variables[each] = _value_of(each)
        value = re.sub(rf"\$(?:{each}\b|\{{{each}\}})", f"${{{each}}}", value)
    literal = _VARIABLE.sub("", value)
    if not (looks_secret(name) and _NAMES_OF_SECRETS.sub("", literal)) and _CREDENTIALS(literal) == literal:
        return value
    scheme, space, secret = value.partition(" ") if _SCHEME.match(value) else ("", "", value)
    secret = _VARIABLE.sub(lambda each: variables.get(each[1], each[0]), secret)
    usual = "AGENT_TOKEN" if is_login else re.sub(r"\W", "_", f"AGENT_{name}").upper()
    names = (usual, *(f"{usual}_{number}" for number in range(2, 100)))
    variable = next(each for each in names if {**os.environ, **variables}.get(each, secret) == secret)
    variables[variable] = secret
    return f"{scheme}{space}${{{variable}}}"


def escaped(value: Any, variables: Collection[str]) -> Any:
    """Return settings in which `${NAME}` is a text, except for these variables.

    Settings may come from a server, which must not read the environment.
    """
    if isinstance(value, Mapping):
        return {key: escaped(each, variables) for key, each in value.items()}
    if isinstance(value, list):
        return [escaped(each, variables) for each in value]
    own = "|".join(map(re.escape, variables)) or r"\Z."
    return re.sub(rf"\$\{{(?!(?:{own})\}})", "$${", value) if isinstance(value, str) else value


def cookies_in(header: str) -> dict[str, str]:
    """Return the cookies of a `Cookie` header: name → value."""
    pairs = (each.strip().partition("=") for each in header.split(";"))
    return {name: text for name, _, text in pairs if name}


def without_cookies(request: Mapping[str, Any], names: Collection[str]) -> Mapping[str, Any]:
    """Return a request in parts without these cookies."""
    headers = dict(request["headers"])
    sent = cookies_in(headers.pop("cookie", "")).items()
    if rest := "; ".join(f"{name}={text}" for name, text in sent if name not in names):
        headers["cookie"] = rest
    return {**request, "headers": headers}


def cookie_names(examples: Iterable[RequestExample]) -> tuple[str, ...]:
    """Return the names of all cookies that requests send."""
    headers = (each.request["headers"].get("cookie", "") for each in examples)
    return tuple(dict.fromkeys(name for header in headers for name in cookies_in(header)))


def request_settings(request: Mapping[str, Any], origin: str, default: str) -> dict[str, Any]:
    """Return the settings of a request in parts, without this origin. `default` is the method to omit."""
    path = "/".join(part if "{{" in part else quote(part, "~:@!$&'()*+,;=") for part in request["path"])
    headers = {name.title(): value for name, value in request["headers"].items()}
    method = None if request["method"] == default else request["method"]
    server = "" if request["origin"] == origin else request["origin"]
    found = {**request, "endpoint": f"{server}/{path}", "headers": headers, "method": method}
    keys = ("endpoint", "method", "params", "headers", "body", "save", "per")
    return {key: found[key] for key in keys if found.get(key) or (key == "body" and found[key] is not None)}


def texts_sent(request: Mapping[str, Any]) -> Iterator[tuple[Place, Any]]:
    """Yield the place of each text, number and null that a request sends."""
    for place, value in values_in({key: request[key] for key in ("path", "params", "headers", "body")}):
        if place[0] != "headers" or place[1] not in (_TYPE, "accept"):
            yield place, value


def label_of(request: Mapping[str, Any], place: Place) -> str:
    """Return the name of a place in a request. That of an id in a path is the name of its collection."""
    if place[0] != "path" or not isinstance(place[1], int):
        return name_of(place)
    before = request["path"][: place[1]]
    return f"{before[-1].removesuffix('s')}_id" if before else "id"


def changed(value: Any, place: Place, new: Any) -> Any:
    """Return a copy of a JSON value with another value at a place."""
    if not place:
        return new
    first, rest = place[0], place[1:]
    if isinstance(value, list):
        return [changed(it, rest, new) if at == first % len(value) else it for at, it in enumerate(value)]
    return {**(value or {}), first: changed((value or {}).get(first), rest, new)}


_REFUSED_JSON = (400, 404, 415, 422, 500)  # statuses of a server that may expect a form in place of JSON
_NAMED_FIELD = re.compile(
    r"(?<![\w.])((?:[\w.]+(?:, and |, | and ))*[\w.]+)[\"'`]? (?:field )?(?:is|are) (?:required|missing)"
    r"|(?:missing|required)[^\"'`\w]*(?:(?:field|parameter|key|property)[^\"'`\w]*)?[\"'`](\w+)[\"'`]"
    r"|(?:missing|required) (?:field|parameter|key|property):? (\w+)\b(?! is\b)",
    re.I,
)
MADE_UP = "agentest-1"
_MOST_FIELDS = 8
_USUAL_VALUES = {"locale": "en", "language": "en", "lang": "en", "channel": "web", "model": ANY_MODEL}


async def accepted_messages(
    probe: EndpointProbe, url: str, response: ProbeResponse
) -> AsyncIterator[tuple[str, Any, bool]]:
    """Yield content types and bodies that an endpoint accepts, and whether it has asked for their fields.

    `response` came for a message with all usual fields.
    """
    text = response.body.decode("utf-8", errors="replace")
    repeated = [name for name, who in GREETERS.items() if re.search(rf"\b{who}\b", text)]
    names = dict.fromkeys((*(repeated if len(repeated) == 1 else ()), "message", "messages", *MESSAGE_FIELDS))
    asked = asked_fields(response)
    alone = [(name,) for name in names]
    starts = [asked] if asked else [*alone, *(("session_id", *each) for each in alone[:3])]
    if response.is_success and not re.match(r"\s*(\{|\[|(data|event|id|retry|):)", text):
        yield "text/plain", HELLO, False  # a server of plain text takes JSON for the user's words
    kinds = ("", FORM) if response.status in _REFUSED_JSON else ("",)
    for kind, fields in product(kinds, starts):
        wanted = fields
        while len(wanted) < _MOST_FIELDS:
            body = body_of(wanted)
            answer = await probe.post(url, urlencode(body) if kind else body)
            if answer is not None and answer.is_success and not is_page(answer.body):
                yield kind, body, bool(asked) or wanted != fields
            more = tuple(name for name in asked_fields(answer) if name not in wanted)
            if not more:
                break
            # The first field was a guess.
            wanted = (*wanted, *more) if wanted != fields or asked else more


def asked_fields(response: ProbeResponse | None) -> tuple[str, ...]:
    """Return the fields that an error says are missing."""
    if response is None or response.is_success:
        return ()
    text = response.body.decode("utf-8", errors="replace")[:2_000]
    found = (name for names in _NAMED_FIELD.findall(text) for name in re.split(",? and |, ", "".join(names)))
    return missing_fields(response.json) or tuple(dict.fromkeys(found))


def body_of(names: Sequence[str]) -> dict[str, Any]:
    """Return a first message with these fields, which may be within others: `input.text`."""
    body: dict[str, Any] = {}
    last = {name.rpartition(".")[2]: name for name in names}
    message = next((last[name] for name in MESSAGE_FIELDS if name in last), names[-1])
    for field_name, name in last.items():
        value: Any = HELLO if name == message else _USUAL_VALUES.get(field_name.lower(), MADE_UP)
        if field_name == "messages":
            value = [{"role": "user", "content": HELLO}]
        body = changed(body, tuple(name.split(".")), value)
    return body
