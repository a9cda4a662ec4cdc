"""Data inside the page: JSON, compressed, as text that stands in an element."""

from __future__ import annotations

import base64
import gzip

from agentest.support.json_text import encoded


def packed(value: object) -> str:
    """A value of JSON types as the page unpacks it. The same value gives the same text."""
    return base64.b64encode(gzip.compress(encoded(value), mtime=0)).decode()
