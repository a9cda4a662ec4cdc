"""Build HTTP responses for the agent, with status, headers and body as the document describes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from agentest.mock_servers.port import CallOutcome, RealAnswer, ServedAnswer
from agentest.mock_servers.registry import HEADER
from agentest.mock_servers.rest.operations import BodyContent, Operation, is_json
from agentest.mock_servers.rest.schema import SchemaViolation
from agentest.support.deadlines import TimeLimit
from agentest.support.http.address_guard import RefusedAddress
from agentest.support.http.bodies import BadBody
from agentest.support.http.client import Client
from agentest.support.http.retries import CONNECTION_ERRORS, describe
from agentest.support.json_text import json_text, well_formed
from agentest.support.redaction import without_credentials

JSON = "application/json"
_NO_BODY = (204, 205, 304)
NOTHING = (None, "")
"""Results that carry no information; the record of an empty body is a text."""
_OF_HOW = {CallOutcome.FAILED: 500, CallOutcome.UNMOCKED: 501, CallOutcome.REFUSED: 409}
"""Statuses that clients do not retry, because a refusal and a missing mock are permanent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolHttpResponse:
    """An HTTP response."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""


def in_json(status: int, value: Any, headers: Iterable[tuple[str, str]] = ()) -> ToolHttpResponse:
    """Return a JSON value as a response."""
    body = well_formed(json_text(value)).encode()
    return ToolHttpResponse(status=status, headers=(*headers, ("content-type", JSON)), body=body)


def misfit(operation: Operation, problems: Sequence[SchemaViolation], status: int | None) -> ToolHttpResponse:
    """Report invalid requests to the agent: as a message, and item by item in FastAPI's format."""
    declared = "422" in operation.answers
    detail = [{"loc": list(each.at), "msg": each.text, "type": "value_error"} for each in problems]
    said = {"error": "; ".join(map(str, problems)), "detail": detail}
    return in_json(status or (422 if declared else 400), said)


def written(operation: Operation, answer: ServedAnswer) -> ToolHttpResponse:
    """Return the response to a valid call."""
    if answer.real is not None:
        return (
            answer.real
            if isinstance(answer.real, ToolHttpResponse)
            else in_json(502, {"error": answer.message})
        )
    if answer.status is None and answer.how is not CallOutcome.ANSWERED:
        return in_json(_OF_HOW[answer.how], {"error": answer.message})
    status = answer.status or success(operation, answer.result)
    if status in _NO_BODY:
        return ToolHttpResponse(status=status, headers=answer.headers)
    told = {name.lower(): value for name, value in answer.headers}
    kind = told.get("content-type") or media_type(content_of(operation, status), answer.result)
    if isinstance(answer.result, str) and not is_json(kind):
        body = well_formed(answer.result).encode()
    else:
        body = well_formed(json_text(answer.result)).encode()
    kept = [header for header in answer.headers if header[0].lower() != "content-type"]
    return ToolHttpResponse(status=status, headers=(*kept, ("content-type", kind)), body=body)


def success(operation: Operation, result: Any) -> int:
    """Return the document's first status of success, preferring one with a body."""
    statuses = [(_number(status), content) for status, content in operation.answers.items()]
    good = [(status, content) for status, content in statuses if status and 200 <= status < 300]
    with_body = [status for status, content in good if content.kinds and status not in _NO_BODY]
    if result not in NOTHING and with_body:
        return with_body[0]
    return good[0][0] if good and good[0][0] else 200


def content_of(operation: Operation, status: int) -> BodyContent | None:
    """Return the document's content for a status."""
    answers: Mapping[str, BodyContent] = operation.answers
    return answers.get(str(status)) or answers.get(f"{status // 100}XX") or answers.get("DEFAULT")


def media_type(content: BodyContent | None, result: Any) -> str:
    """Return the media type of a response: JSON if the document has it or the result is not a text."""
    kinds = [kind for kind in content.kinds if "*" not in kind] if content else []
    in_json = next((kind for kind in kinds if is_json(kind)), None)
    if in_json or not isinstance(result, str) or not kinds:
        return in_json or JSON
    return (
        kinds[0]
        if "charset" in kinds[0] or not kinds[0].startswith("text/")
        else f"{kinds[0]}; charset=utf-8"
    )


def misfits(operation: Operation, answer: ToolHttpResponse, result: Any) -> str | None:
    """Describe how a mock's answer violates the document; None if it is valid."""
    content = content_of(operation, answer.status)
    if content is None:
        known = ", ".join(operation.answers).lower()
        failing = answer.status >= 400  # documents rarely describe failures
        return None if failing or not known else f"the status {answer.status} is none of its own: {known}"
    if answer.status in _NO_BODY or (not content.kinds and answer.status < 300):
        return None if result in NOTHING else f"an answer with status {answer.status} has no body"
    kind = next((kind for kind in content.kinds if is_json(kind)), None)
    schema = content.kinds[kind] if kind else None
    problems = schema.problems(result, "body", answered=True) if schema else []
    return "; ".join(map(str, problems)) or None


def _number(status: str) -> int | None:
    if status.isdecimal():
        return int(status)
    return int(status[0]) * 100 if status[:1].isdecimal() and status[1:] == "XX" else None


_LIMIT_S = 60.0
_OF_THE_CONNECTION = frozenset(
    [
        "connection",
        "content-length",
        "host",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "expect",
    ]
)
_NOT_PASSED_ON = _OF_THE_CONNECTION | {"accept-encoding", "content-encoding", HEADER}
"""Headers of a request that are not forwarded; its body is decompressed already."""
_FAILING = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class RealApi:
    """The real API."""

    url: str
    """Its base URL; the query is sent with each request."""
    client: Client
    redact: Callable[[str], str]
    """Hides credentials in error messages for the agent."""

    async def call(
        self, method: str, path_and_query: str, headers: Mapping[str, str], body: bytes
    ) -> RealAnswer:
        """Forward a request. If the real API does not respond, the answer has status 502.

        Args:
            path_and_query: as sent, without conversation and base path.
        """
        path, _, query = path_and_query.partition("?")
        base = urlsplit(self.url)
        queries = "&".join(each for each in (base.query, query) if each)
        url = urlunsplit((base.scheme, base.netloc, base.path.rstrip("/") + path, queries, ""))
        kept = [(name, value) for name, value in headers.items() if name not in _NOT_PASSED_ON]
        try:
            with TimeLimit(_LIMIT_S):
                return await self._asked(method, url, kept, body)
        except (BadBody, RefusedAddress) as error:
            return self._unreached(str(error))
        except CONNECTION_ERRORS as error:
            return self._unreached(describe(error))
        except TimeoutError:
            return self._unreached(f"it did not answer within {_LIMIT_S:g} s")

    def _unreached(self, problem: str) -> RealAnswer:
        shown = f"the real API, rest_mock.upstream {without_credentials(self.url)}"
        said = {"error": self.redact(f"{shown}, could not be asked: {problem}")}
        return RealAnswer(result=said, raw=in_json(502, said), failed=True)

    async def _asked(self, method: str, url: str, headers: list[tuple[str, str]], body: bytes) -> RealAnswer:
        response = await self.client.send_direct(method, url, headers, body or None)
        try:
            told = b"".join([piece async for piece in response.pieces()])
        finally:
            await response.aclose()
        kept = [(n, v) for n, v in response.headers.multi_items() if n.lower() not in _OF_THE_CONNECTION]
        answer = ToolHttpResponse(status=response.status_code, headers=tuple(kept), body=told)
        status = response.status_code
        return RealAnswer(result=_value(told), raw=answer, failed=status >= _FAILING, status=status)


def _value(body: bytes) -> Any:
    """Return the recorded form of a body."""
    try:
        return json.loads(body) if body else ""  # not null, which stands for a call without an answer
    except (ValueError, RecursionError):
        return body.decode("utf-8", "replace")
