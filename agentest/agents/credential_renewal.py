"""Credentials that expire: add what commands print to requests, and sign requests for AWS.

All requests of an agent share its credentials, which are renewed for all of them at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import quote, urlsplit

import aiohttp
import anyio
from yarl import URL

from agentest.config.agents.over_http import AwsSignature, HeaderCommand, HttpAgent, stand_in
from agentest.config.fields import check_headers
from agentest.support.calling import SharedAttempt
from agentest.support.deadlines import TimeLimit, uncounted
from agentest.support.errors import CannotSend, ConfigError, errors_as
from agentest.support.http.client import Client, DirectResponse, Headers, Sender
from agentest.support.http.websockets import WebSocket
from agentest.support.process_groups import OutputTail, start_process
from agentest.support.text import shortened

_MAX_OUTPUT_CHARS = 65_536
_SHOWN_CHARS = 400
_GRACE_S = 1.0
_UNAUTHORIZED = 401
OnSecret = Callable[[Iterable[str]], None]


class CommandValue:
    """The value of a header that a command prints."""

    def __init__(self, name: str, config: HeaderCommand, root: Path, on_secret: OnSecret) -> None:
        self.value = ""
        self.number = 0  # number of the value, from 1
        self.accepted = 1
        """Number of the newest value that the agent may have accepted. The first one counts."""
        self.name = name
        self._config = config
        self._root = root
        self._on_secret = on_secret
        self._read_at = 0.0
        self._attempts = SharedAttempt()

    async def current(self) -> str:
        """Return the value, from a new run of the command if it is too old. Raises CannotSend."""
        every_s = self._config.every_s
        if self.number == 0 or (every_s is not None and monotonic() - self._read_at >= every_s):
            await self.newer_than(self.number)
        return self.value

    async def newer_than(self, number: int) -> None:
        """Run the command if the value is not newer. Requests that wait share one run. Raises CannotSend."""
        with uncounted():
            await self._attempts.until(lambda: self.number > number, self._renew)

    async def _renew(self) -> None:
        self.value = await self._read()
        self.number, self._read_at = self.number + 1, monotonic()

    async def _read(self) -> str:
        command, limit_s = self._config.command, self._config.timeout_s
        shown = command if isinstance(command, str) else " ".join(command)
        subject = f"headers.{self.name}: the command `{shortened(shown, 100)}`"
        try:
            with TimeLimit(limit_s):
                status, output, log = await _run(command, self._root)
        except TimeoutError:
            raise CannotSend(
                f"{subject} did not finish within {limit_s:g} s. Run it in a terminal: does it wait "
                "for a login? Otherwise raise `timeout_s` next to `command`"
            ) from None
        except (OSError, ValueError) as error:
            raise CannotSend(f"{subject} cannot be started: {error}") from None
        if status:
            said = f":\n{log}" if log else ", and wrote nothing to standard error"
            raise CannotSend(f"{subject} exited with status {status}{said}")
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        self._on_secret([word for line in lines for word in (line, line.split()[-1])])
        if len(lines) != 1:
            printed = f"printed {len(lines)} lines" if lines else "printed nothing"
            said = f". Its standard error:\n{log}" if log else ""
            raise CannotSend(f"{subject} {printed}; it must print the value, on one line{said}")
        value = lines[0]
        prefix = self._config.prefix
        if prefix is None:
            is_token = self.name.lower() == "authorization" and " " not in value
            prefix = "Bearer " if is_token else ""
        try:
            return check_headers({self.name: f"{prefix}{value}"})[self.name]
        except ValueError:
            raise CannotSend(f"{subject} printed characters that no header may have") from None


async def _run(command: str | tuple[str, ...], root: Path) -> tuple[int, str, str]:
    output, log = OutputTail(_MAX_OUTPUT_CHARS), OutputTail(_SHOWN_CHARS)
    process = await start_process(command, cwd=root, stdout=output, stderr=log)
    try:
        status = await process.wait()
        await output.end()
    finally:
        await process.end(_GRACE_S, 0.0)
    return status, output.text, log.text


class AwsSigner:
    """Signs requests with Signature Version 4. Raises ConfigError if botocore or credentials are missing."""

    def __init__(self, config: AwsSignature, on_secret: OnSecret) -> None:
        try:
            from botocore.exceptions import BotoCoreError
            from botocore.session import Session
        except ImportError:
            raise ConfigError(
                "sign.aws: needs botocore, which is not installed: pip install 'agentest-sim[aws]'"
            ) from None
        self._service = config.service
        self._on_secret = on_secret
        self._errors: type[Exception] = BotoCoreError
        with errors_as(ConfigError, "sign.aws: ", BotoCoreError):
            session: Any = Session(profile=config.profile)
            self._region = config.region or session.get_config_variable("region")
            self._credentials: Any = session.get_credentials()
        if self._credentials is None:
            raise ConfigError(
                "sign.aws: found no credentials; run `aws configure` or `aws sso login`, or write `profile`"
            )
        if not self._region:
            raise ConfigError("sign.aws: the region is unknown; write `region`, or set AWS_REGION")

    async def signed(self, method: str, url: str, headers: Headers, content: bytes | None) -> Headers:
        """Return the headers with a signature. Raises CannotSend if the credentials cannot be renewed."""
        with uncounted():
            return await anyio.to_thread.run_sync(self._sign, method, url, headers, content)

    def _sign(self, method: str, url: str, headers: Headers, content: bytes | None) -> Headers:
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest

        # The path and query must be those that are sent, and `Client` normalizes them.
        sent = URL(url.replace(" ", "%20")).with_fragment(None).with_user(None)
        sent = sent.with_scheme("https" if sent.scheme in ("https", "wss") else "http")
        # AWS encodes a query more strictly than URLs must be.
        query = re.sub(r"[^=&%]+", lambda part: quote(part[0], safe="-_.~"), sent.raw_query_string)
        signed_url = f"{sent.origin()}{sent.raw_path}{query and '?'}{query}"
        request = AWSRequest(method, signed_url, headers=dict(headers), data=content or b"")
        with errors_as(CannotSend, "sign.aws: ", self._errors):
            frozen = self._credentials.get_frozen_credentials()
            self._on_secret([text for text in (frozen.secret_key, frozen.token) if text])
            SigV4Auth(frozen, self._service, self._region).add_auth(request)
        return [(name, str(value)) for name, value in request.headers.items()]


class AuthorizedSender:
    """A `Sender` that adds the values of commands, renews them after a 401, and signs requests."""

    def __init__(
        self, inner: Sender, commands: Iterable[CommandValue], signer: AwsSigner | None, endpoint: str
    ) -> None:
        self._inner = inner
        self._commands = {stand_in(command.name): command for command in commands}
        self._signer = signer
        self._origin = urlsplit(endpoint)[:2]

    async def send_direct(
        self, method: str, url: str, headers: Headers, content: bytes | None
    ) -> DirectResponse:
        """Send a request. Raises CannotSend, and what the inner sender raises."""
        filled, used = await self._filled(method, url, headers, content)
        response = await self._inner.send_direct(method, url, filled, content)
        if response.status_code == _UNAUTHORIZED and (old := renewable(used)):
            await response.aclose()
            await renew(old)
            filled, used = await self._filled(method, url, headers, content)
            response = await self._inner.send_direct(method, url, filled, content)
        if response.status_code != _UNAUTHORIZED:
            accept(used)
        return response

    async def _filled(
        self, method: str, url: str, headers: Headers, content: bytes | None
    ) -> tuple[Headers, UsedValues]:
        used: UsedValues = {}
        filled: list[tuple[str, str]] = []
        for name, value in headers:
            command = self._commands.get(value)
            filled.append((name, await command.current() if command else value))
            if command:
                used[command] = command.number
        if self._signer and urlsplit(url)[:2] == self._origin:
            return await self._signer.signed(method, url, filled, content), used
        return filled, used


class AuthorizedClient(AuthorizedSender, Client):
    """An `AuthorizedSender` that also opens WebSockets."""

    async def open_websocket(self, url: str, headers: Headers, protocols: Sequence[str] = ()) -> WebSocket:
        """Connect to a WebSocket. Raises CannotSend, and what the inner client raises."""
        assert isinstance(self._inner, Client)
        filled, used = await self._filled("GET", url, headers, None)
        try:
            socket = await self._inner.open_websocket(url, filled, protocols)
        except aiohttp.WSServerHandshakeError as error:
            if error.status != _UNAUTHORIZED or not (old := renewable(used)):
                raise
            await renew(old)
            filled, used = await self._filled("GET", url, headers, None)
            socket = await self._inner.open_websocket(url, filled, protocols)
        accept(used)
        return socket


UsedValues = dict[CommandValue, int]  # command → the number of its value in a request


def renewable(used: UsedValues) -> UsedValues:
    """Return the values that a new run may improve: not those that were new and never accepted."""
    return {command: number for command, number in used.items() if number <= command.accepted}


async def renew(old: UsedValues) -> None:
    for command, number in old.items():
        await command.newer_than(number)


def accept(used: UsedValues) -> None:
    for command, number in used.items():
        command.accepted = max(command.accepted, number)


async def authorized(
    name: str, config: HttpAgent, client: Sender, root: Path, on_secret: OnSecret
) -> AuthorizedSender:
    """Return a sender with an agent's credentials. Raises ConfigError if there are none."""
    commands = [
        CommandValue(header, command, root, on_secret) for header, command in config.header_commands.items()
    ]
    with errors_as(ConfigError, f"agent {name!r}: ", (CannotSend, ConfigError)):
        signer = AwsSigner(config.sign.aws, on_secret) if config.sign and config.sign.aws else None
        for command in commands:
            await command.current()
    kind = AuthorizedClient if isinstance(client, Client) else AuthorizedSender
    return kind(client, commands, signer, config.endpoint or config.default_endpoint)
