"""Sending with cookies, and going where an answer says that its result is, as browsers do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from urllib.parse import urljoin, urlsplit

from agentest.agents.http.cookies import CookieJar
from agentest.agents.http.requests import origin
from agentest.agents.http_sender import MAX_REDIRECTS
from agentest.config.fields import check_url
from agentest.support.errors import AgentError
from agentest.support.http.client import DirectResponse, Headers, Sender

_SEE_OTHER = 303
_MOVED = (301, 302, 303)
_ABOUT_BODIES = ("content-type", "content-length")
_GO_ANYWHERE = ("accept", "accept-encoding")
_LOGIN = ("login", "log-in", "signin", "sign-in", "sign_in", "auth", "sso", "oauth", "saml")


class Browser:
    """A `Sender` that keeps the cookies of one conversation."""

    def __init__(
        self,
        client: Sender,
        jar: CookieJar,
        on_secret: Callable[[Iterable[str]], None],
        *,
        follows_all: bool = False,
    ) -> None:
        """`follows_all`: also what leads to a login, as it is for the requests that log in."""
        self._client = client
        self._jar = jar
        self._on_secret = on_secret
        self._follows_all = follows_all

    async def send_direct(
        self, method: str, url: str, headers: Headers, content: bytes | None
    ) -> DirectResponse:
        """Send a request; a redirect that asks for a GET is followed. Raises AgentError, and as a Sender."""
        for _ in range(MAX_REDIRECTS + 1):
            response = await self._client.send_direct(method, url, self._with_cookies(url, headers), content)
            try:
                self._keep(url, response)
                target = self._target(method, url, response)
            except BaseException:
                await response.aclose()
                raise
            if target is None:
                return response
            await response.aclose()
            headers = _headers_of_get(headers, origin(target) == origin(url))
            method, url, content = "GET", target, None
        raise AgentError(f"{url}: more than {MAX_REDIRECTS} redirects")

    def _with_cookies(self, url: str, headers: Headers) -> Headers:
        given = "; ".join(value for name, value in headers if name.lower() == "cookie")
        cookies = self._jar.header(url, given)
        others = [header for header in headers if header[0].lower() != "cookie"]
        return [*others, ("cookie", cookies)] if cookies else others

    def _keep(self, url: str, response: DirectResponse) -> None:
        if lines := response.headers.get_list("set-cookie"):
            self._on_secret([cookie.value for cookie in self._jar.store(url, lines)])

    def _target(self, method: str, url: str, response: DirectResponse) -> str | None:
        """Where to look instead; None: this is the answer."""
        location = response.headers.get("location", "")
        if response.status_code not in _MOVED or not location:
            return None
        try:
            target = check_url(urljoin(url, location))
        except ValueError as error:
            raise AgentError(f"{url} redirects to an address that {error}") from None
        if self._follows_all:
            return target
        asks_for_get = method == "GET" or response.status_code == _SEE_OTHER
        return target if asks_for_get and not is_login(target) else None


def is_login(url: str) -> bool:
    """Whether an address looks like the one where users log in."""
    parts = urlsplit(url)
    words = {part for segment in parts.path.lower().split("/") for part in (segment, *segment.split("."))}
    return bool(words & set(_LOGIN)) or (parts.hostname or "").startswith(("login.", "auth.", "sso."))


def _headers_of_get(headers: Headers, same_origin: bool) -> Headers:
    """Without what describes a body; what may be credentials goes to no other server."""
    kept = [header for header in headers if header[0].lower() not in _ABOUT_BODIES]
    return kept if same_origin else [header for header in kept if header[0].lower() in _GO_ANYWHERE]
