"""Parse and validate JSON-RPC 2.0 messages, independent of the transport."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeGuard

from agentest.support.json_text import parse_untrusted_json
from agentest.support.lazy_dataclasses import dataclass

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
TOO_LARGE = -32001

RequestId = str | int | float | None


class RpcError(Exception):
    """An error response to a request.

    Args:
        code: a code of JSON-RPC or MCP.
        message: for people.
        data: for programs.
    """

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data

    def body(self, request_id: RequestId) -> dict[str, Any]:
        """Return the error as a response."""
        error: dict[str, Any] = {"code": self.code, "message": str(self)}
        if self.data is not None:
            error["data"] = self.data
        return {"jsonrpc": "2.0", "id": request_id, "error": error}


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcRequest:
    """A request that expects a response."""

    id: RequestId
    method: str
    params: Mapping[str, Any]


def parsed(body: bytes) -> Any:
    """Parse a body as JSON. Raises RpcError."""
    try:
        return parse_untrusted_json(body)
    except (ValueError, RecursionError) as error:
        raise RpcError(PARSE_ERROR, f"the body is not JSON: {error}") from None


def request_in(message: Any) -> RpcRequest | None:
    """Return the request in a message; None if the message expects no response.

    Raises RpcError if it is not a valid message.
    """
    if not isinstance(message, dict):
        raise RpcError(INVALID_REQUEST, f"expected a JSON-RPC message, an object, found {_kind(message)}")
    if "method" not in message:
        if message.keys() & {"result", "error"}:  # a response, although we never send requests
            return None
        raise RpcError(INVALID_REQUEST, "the message has no `method`")
    if not isinstance(message["method"], str):
        raise RpcError(INVALID_REQUEST, f"`method` is {_kind(message['method'])}, and must be a text")
    if "id" not in message:
        return None
    return RpcRequest(id=_checked_id(message["id"]), method=message["method"], params=_params(message))


def id_of(message: Any) -> RequestId:
    """Return the id of a possibly invalid message; None if it has none."""
    id = message.get("id") if isinstance(message, dict) else None
    return id if _is_id(id) else None


def _checked_id(value: Any) -> RequestId:
    if not _is_id(value):
        raise RpcError(INVALID_REQUEST, f"`id` is {_kind(value)}, and must be a text or a number")
    return value


def _is_id(value: Any) -> TypeGuard[str | int | float]:
    if isinstance(value, float):
        return math.isfinite(value)  # 1e999 is valid JSON, but cannot be written back
    return isinstance(value, str | int) and not isinstance(value, bool)


def _params(message: Mapping[str, Any]) -> Mapping[str, Any]:
    params = message.get("params")
    if params is None:
        return {}
    if not isinstance(params, dict):
        raise RpcError(INVALID_PARAMS, f"`params` is {_kind(params)}, and must be an object")
    return params


def _kind(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "a number that is too large"
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
