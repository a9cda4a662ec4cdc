"""`{port}`: where a free port comes to stand, in an agent's addresses and in what starts its server."""

from __future__ import annotations

import re

PORT = "{port}"
"""As it is kept and shown; users may write `{{port}}`, too."""
_ANYWHERE = re.compile(r"\{\{\s*port\s*\}\}|(?<![${])\{port\}")
"""`${port}` is a variable of the shell."""
_OF_A_HOST = re.compile(r"^(\w+://[^/?#]*:)(?:\{\{\s*port\s*\}\}|\{port\})(?=[/?#]|$)")
"""In an address it stands for its port alone: in the path, `{{port}}` may be something saved before."""
_ANY_PORT = 9


def normal_address(url: str) -> str:
    """The address with the placeholder in the form in which it is kept."""
    return _OF_A_HOST.sub(rf"\1{PORT}", url)


def normal_text(text: str) -> str:
    """A text with the placeholder in the form in which it is kept."""
    return _ANYWHERE.sub(PORT, text)


def address_at(url: str, port: int) -> str:
    """The address with this port."""
    return _OF_A_HOST.sub(rf"\g<1>{port}", url)


def text_at(text: str, port: int) -> str:
    """A text with this port."""
    return _ANYWHERE.sub(str(port), text)


def sample(url: str) -> str:
    """The address as it may look once there is a port, to be checked."""
    return address_at(url, _ANY_PORT)


def address_awaits_port(url: str) -> bool:
    """Whether the address has no port yet."""
    return bool(_OF_A_HOST.match(url))


def text_awaits_port(text: str) -> bool:
    """Whether a text has a place for a port."""
    return bool(_ANYWHERE.search(text))
