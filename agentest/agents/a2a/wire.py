"""What is sent to an A2A agent, in either version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from agentest.agents.a2a.ways import Way
from agentest.domain.messages import Attachment, UserText

JSON_BODY = {"accept": "application/json"}
_SEND = {"1.0": ("SendMessage", "SendStreamingMessage"), "0.3": ("message/send", "message/stream")}
_GET = {"1.0": "GetTask", "0.3": "tasks/get"}
_CANCEL = {"1.0": "CancelTask", "0.3": "tasks/cancel"}


def send_method(way: Way, streaming: bool) -> str:
    """What sending a message is called."""
    if way.rest:
        return "message:stream" if streaming else "message:send"
    return _SEND[way.version][streaming]


def headers_of(way: Way) -> dict[str, str]:
    """1.x servers take requests without the version for those of 0.3, and 0.3's methods with it for wrong."""
    return {"A2A-Version": way.version} if way.version == "1.0" else {}


def sending(way: Way, params: Mapping[str, Any], streaming: bool) -> tuple[str, dict[str, Any]]:
    """Address and JSON of a request that sends a message."""
    method = send_method(way, streaming)
    return _addressed(way, method, params) if not way.rest else (_below(way, f"/{method}"), dict(params))


def asking(way: Way, task_id: str) -> tuple[str, dict[str, Any]]:
    """Address and JSON of a request for a task; over HTTP+JSON the address alone, for a GET."""
    if way.rest:
        return _below(way, f"/tasks/{task_id}"), {}
    return _addressed(way, _GET[way.version], {"id": task_id})


def cancelling(way: Way, task_id: str) -> tuple[str, dict[str, Any]]:
    """Address and JSON of a request that cancels a task."""
    if way.rest:
        return _below(way, f"/tasks/{task_id}:cancel"), {}
    return _addressed(way, _CANCEL[way.version], {"id": task_id})


def get_method(way: Way) -> str:
    """What asking for a task is called."""
    return "GET /tasks/{id}" if way.rest else _GET[way.version]


def _below(way: Way, path: str) -> str:
    return way.url.rstrip("/") + path


def _addressed(way: Way, method: str, params: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    return way.url, {"jsonrpc": "2.0", "id": uuid4().hex, "method": method, "params": dict(params)}


def params_of(
    said: UserText,
    way: Way,
    *,
    body: Mapping[str, Any],
    context_id: str | None,
    task_id: str | None,
    streaming: bool,
) -> dict[str, Any]:
    """The parameters of a request that sends a message, over those of `body`.

    Args:
        context_id: of the conversation; None: the server shall make one.
        task_id: of the task that waits for this message; None: none does.
    """
    params = {**body, "message": _message(said, way, body.get("message", {}), context_id, task_id)}
    if way.version == "0.3":
        # What is left open here, 0.3's servers decide as they like.
        waits = {} if streaming else {"blocking": True}
        params["configuration"] = {"acceptedOutputModes": [], **waits, **body.get("configuration", {})}
    return params


def _message(
    said: UserText, way: Way, more: Mapping[str, Any], context_id: str | None, task_id: str | None
) -> dict[str, Any]:
    old = way.version == "0.3"
    message = {
        **more,
        "messageId": uuid4().hex,
        "role": "user" if old else "ROLE_USER",
        "parts": _parts(said, old),
    }
    if old:
        message["kind"] = "message"
    if context_id is not None:
        message["contextId"] = context_id
    if task_id is not None:
        message["taskId"] = task_id
    return message


def _parts(said: UserText, old: bool) -> list[dict[str, Any]]:
    text = [{"text": said.text}] if said.text or not said.attachments else []
    if old:
        return [*({"kind": "text", **part} for part in text), *map(_old_file, said.attachments)]
    return [*text, *map(_file, said.attachments)]


def _file(file: Attachment) -> dict[str, Any]:
    name = {"filename": file.name} if file.name else {}
    content = {"url": file.uri} if file.uri else {"raw": file.base64}
    return {**content, "mediaType": file.mime_type, **name}


def _old_file(file: Attachment) -> dict[str, Any]:
    name = {"name": file.name} if file.name else {}
    content = {"uri": file.uri} if file.uri else {"bytes": file.base64}
    return {"kind": "file", "file": {**content, "mimeType": file.mime_type, **name}}
