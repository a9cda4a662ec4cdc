"""The placeholder `{port}` for a free port in an agent's URLs and in its server's command."""

from __future__ import annotations

import re

PORT = "{port}"
"""The normal form. Users may also write `{{port}}`."""
_PLACEHOLDER = re.compile(r"\{\{\s*port\s*\}\}|(?<![${])\{port\}")
"""`${port}` is a shell variable."""
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
    """Return the URL with this port."""
    return _URL_PORT.sub(rf"\g<1>{port}", url)


def text_at(text: str, port: int) -> str:
    """Return the text with this port."""
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
