"""Credentials that are made while a run goes on: header values from commands, and signatures for AWS.

Both are added to a request when it is sent to the agent's own server, whatever the agent's protocol.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import anyio

from agentest.config.agents.over_http import AwsSignature, HeaderCommand, HttpAgent, commands
from agentest.config.fields import check_headers
from agentest.support.errors import CannotSend, ConfigError
from agentest.support.http.client import Client, DirectResponse, Headers, Sender
from agentest.support.http.websockets import WebSocket
from agentest.support.process_groups import run_in_group
from agentest.support.redaction import header_secrets
from agentest.support.text import shortened

_REUSE_FAILURE_S = 10.0
"""For this time, all conversations are told of one failure, and the command does not run again."""


class HeaderCommands:
    """Header values that commands print, shared by all conversations with one agent."""

    def __init__(
        self,
        by_name: Mapping[str, HeaderCommand],
        root: Path,
        on_secret: Callable[[Iterable[str]], None],
    ) -> None:
        self._values = {name: _PrintedValue(name, each, root, on_secret) for name, each in by_name.items()}

    def __bool__(self) -> bool:
        return bool(self._values)

    async def headers(self) -> dict[str, str]:
        """Return the headers with lower-case names. Raises CannotSend if a command fails."""
        return {name.lower(): await value.current() for name, value in self._values.items()}

    async def renew(self, refused: Mapping[str, str]) -> bool:
        """Run the commands again whose values a server has refused. Returns False if nothing has changed."""
        changed = False
        for name, value in self._values.items():
            changed |= await value.renewed(refused[name.lower()])
        return changed


class _PrintedValue:
    def __init__(
        self, name: str, command: HeaderCommand, root: Path, on_secret: Callable[[Iterable[str]], None]
    ) -> None:
        self._name = name
        self._command = command
        self._root = root
        self._on_secret = on_secret
        self._running = anyio.Lock()
        self._value = ""
        self._failure: CannotSend | None = None
        self._at = 0.0

    async def current(self) -> str:
        """Return the value, which is printed anew when it is too old."""
        async with self._running:
            age = monotonic() - self._at
            if self._failure is not None and age < _REUSE_FAILURE_S:
                raise self._failure
            every_s = self._command.every_s
            if not self._value or (every_s is not None and age >= every_s):
                await self._print()
            return self._value

    async def renewed(self, refused: str) -> bool:
        """Print the value anew, unless that has happened since it was `refused`. True if it is another."""
        async with self._running:
            if self._value == refused:
                await self._print()
            return self._value != refused

    async def _print(self) -> None:
        try:
            value, self._failure = await self._printed(), None
        except CannotSend as error:
            self._value, self._failure, self._at = "", error, monotonic()
            raise
        self._on_secret(header_secrets({"authorization": value}))
        self._value, self._at = value, monotonic()

    async def _printed(self) -> str:
        """Return what the command prints. A word alone for `Authorization` is a bearer token."""
        command = self._command.words
        try:
            with anyio.fail_after(self._command.timeout_s):
                status, out, err = await run_in_group(command, self._root)
        except TimeoutError:
            raise self._problem(f"has not ended after {self._command.timeout_s:g} s (timeout_s)") from None
        except OSError as error:
            raise self._problem(f"cannot be started: {error.strerror or error}") from None
        if status:
            said = shortened(err.decode(errors="replace").strip() or "nothing on stderr", 300)
            raise self._problem(f"ended with status {status}: {said}")
        rows = out.decode(errors="replace").strip().splitlines()
        if len(rows) != 1:
            raise self._problem(f"printed {len(rows)} lines, and a header value is one")
        is_word = self._name.lower() == "authorization" and " " not in rows[0]
        value = f"Bearer {rows[0]}" if is_word else rows[0]
        try:
            check_headers({self._name: value})
        except ValueError as error:
            raise self._problem(f"printed no header value: {error}") from None
        return value

    def _problem(self, what: str) -> CannotSend:
        return CannotSend(f"headers.{self._name}: the command `{shlex.join(self._command.words)}` {what}")


class AwsSigner:
    """Signs requests with AWS Signature Version 4."""

    def __init__(self, name: str, settings: AwsSignature) -> None:
        """Find the credentials. Raises ConfigError without botocore, a region or credentials."""
        try:
            from botocore.exceptions import ProfileNotFound
            from botocore.session import Session
        except ImportError:
            install = "pip install 'agentest-sim[aws]'"
            raise ConfigError(f"agent {name!r}: aws_sigv4 needs botocore; run: {install}") from None
        session = Session(profile=settings.profile)
        try:
            self._credentials = session.get_credentials()
            region = settings.region or session.get_config_variable("region")
        except ProfileNotFound as error:
            raise ConfigError(f"agent {name!r}: aws_sigv4.profile: {error}") from None
        if not region:
            raise ConfigError(
                f"agent {name!r}: aws_sigv4.region: none is configured; write one, like us-east-1"
            )
        if self._credentials is None:
            raise ConfigError(f"agent {name!r}: aws_sigv4: found no AWS credentials; run: aws sso login")
        self._service, self._region = settings.service, region

    def _signed(
        self, method: str, url: str, headers: Headers, content: bytes | None
    ) -> list[tuple[str, str]]:
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest

        # What proxies and clients change is left out of the signature.
        request = AWSRequest(method=method, url=url, data=content or b"")
        content_type = next((value for name, value in headers if name.lower() == "content-type"), None)
        if content_type:
            request.headers["content-type"] = content_type
        SigV4Auth(self._credentials.get_frozen_credentials(), self._service, self._region).add_auth(request)
        return [(name.lower(), value) for name, value in request.headers.items() if name != "content-type"]

    async def signed(
        self, method: str, url: str, headers: Headers, content: bytes | None
    ) -> list[tuple[str, str]]:
        """Return the headers of the signature. Credentials may be fetched, which blocks."""
        return await anyio.to_thread.run_sync(self._signed, method, url, headers, content)


class CredentialSender:
    """Sends an agent's requests, with credentials if they go to its own server."""

    def __init__(
        self, sender: Sender, config: HttpAgent, made: HeaderCommands, signer: AwsSigner | None
    ) -> None:
        self._sender = sender
        self._origin = _origin(config.endpoint)
        self._made = made
        self._signer = signer
        self._is_refused = False
        """True after new values were refused, too: then a 401 is the agent's answer."""

    async def send_direct(
        self, method: str, url: str, headers: Headers, content: bytes | None
    ) -> DirectResponse:
        """Send a request as a `Sender`. After a 401, values are made anew, and it is sent once more."""
        if _origin(url) != self._origin:
            return await self._sender.send_direct(method, url, headers, content)
        made = await self._made.headers()
        response = await self._send(method, url, headers, content, made)
        if response.status_code != 401 or not self._made or self._is_refused:
            self._is_refused &= response.status_code == 401
            return response
        if not await self._made.renew(made):
            self._is_refused = True
            return response
        await response.aclose()
        response = await self._send(method, url, headers, content, await self._made.headers())
        self._is_refused = response.status_code == 401
        return response

    async def _send(
        self, method: str, url: str, headers: Headers, content: bytes | None, made: Mapping[str, str]
    ) -> DirectResponse:
        sent = _with(headers, made)
        if self._signer:
            sent = _with(sent, dict(await self._signer.signed(method, url, sent, content)))
        return await self._sender.send_direct(method, url, sent, content)

    async def open_websocket(self, url: str, headers: Headers, protocols: Sequence[str] = ()) -> WebSocket:
        """Open a WebSocket as a `Client`, and once more with new values after a 401."""
        assert isinstance(self._sender, Client), "an `app` is refused with the configuration"
        made = await self._made.headers()
        try:
            return await self._sender.open_websocket(url, _with(headers, made), protocols)
        except aiohttp.WSServerHandshakeError as error:
            if error.status != 401 or not await self._made.renew(made):
                raise
        return await self._sender.open_websocket(url, _with(headers, await self._made.headers()), protocols)


def with_credentials(
    name: str,
    config: HttpAgent,
    sender: Sender,
    root: Path,
    on_secret: Callable[[Iterable[str]], None],
) -> Sender:
    """Return the sender with the credentials that the agent's settings ask for. Raises ConfigError."""
    made = HeaderCommands(commands(config.headers), root, on_secret)
    signer = AwsSigner(name, config.aws_sigv4) if config.aws_sigv4 else None
    return CredentialSender(sender, config, made, signer)


def _with(headers: Headers, more: Mapping[str, str]) -> Any:
    return [*((name, value) for name, value in headers if name.lower() not in more), *more.items()]


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return {"ws": "http", "wss": "https"}.get(parts.scheme, parts.scheme), parts.netloc
