"""Sign requests to an agent as the channels do from which it expects them."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Mapping
from time import time
from urllib.parse import parse_qsl

from agentest.config.agents.over_http import Sign

Signer = Callable[[str, bytes, str], Mapping[str, str]]
"""Returns the headers for a URL, a body and its content type."""


def signer(sign: Sign) -> Signer:
    """Return what signs requests."""
    if sign.slack:
        return lambda _, body, __: _slack(sign.slack or "", body, int(time()))
    if sign.twilio:
        return lambda url, body, kind: _twilio(sign.twilio or "", url, body, kind)
    return lambda _, body, __: {"x-hub-signature-256": f"sha256={_hex(sign.whatsapp or '', body)}"}


def _hex(secret: str, content: bytes) -> str:
    return hmac.new(secret.encode(), content, hashlib.sha256).hexdigest()


def _slack(secret: str, body: bytes, now: int) -> Mapping[str, str]:
    signature = _hex(secret, b"v0:%d:%b" % (now, body))
    return {"x-slack-request-timestamp": str(now), "x-slack-signature": f"v0={signature}"}


def _twilio(secret: str, url: str, body: bytes, content_type: str) -> Mapping[str, str]:
    """Sign the URL and the fields of a form, in the order of their names."""
    fields = parse_qsl(body.decode(), keep_blank_values=True) if "form" in content_type else []
    signed = url + "".join(name + value for name, value in sorted(fields))
    digest = hmac.new(secret.encode(), signed.encode(), hashlib.sha1).digest()
    return {"x-twilio-signature": base64.b64encode(digest).decode()}
