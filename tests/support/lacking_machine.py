"""A machine that cannot open connections."""

from __future__ import annotations

import errno
import os
from types import SimpleNamespace
from typing import Any

from aiohttp import ClientConnectionError, ClientConnectorError

NOTHING_LEFT = (errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL)


class Machine:
    """A client on a machine that can or cannot open connections."""

    def __init__(self, number: int) -> None:
        self.asked = 0
        self._number = number

    async def send_direct(self, *request: Any) -> Any:
        try:
            await self.open_websocket()
        except OSError as error:
            raise ClientConnectionError("no connection") from error

    async def open_websocket(self, *request: Any) -> Any:
        self.asked += 1
        key: Any = SimpleNamespace(host="bot", port=80, is_ssl=False, ssl=True)
        told = OSError(self._number, os.strerror(self._number))
        raise ClientConnectorError(key, told) from told
