"""Cookies: scope and lifetime."""

from __future__ import annotations

import pytest

from agentest.agents.http.exchange import CookieJar

SET_AT = "https://shop.example.com:8443/api/login"


@pytest.mark.parametrize(
    ("line", "url", "sent"),
    [
        ("a=1", "https://shop.example.com:8443/api/chat", "a=1"),
        ("a=1", "https://shop.example.com:8443/apis", ""),
        ("a=1; Path=/", "https://shop.example.com:8443/other", "a=1"),
        ("a=1; path=/api", "https://shop.example.com:8443/api", "a=1"),
        ("a=1; Path=/", "https://shop.example.com/", ""),
        ("a=1; Path=/", "https://www.shop.example.com:8443/", ""),
        ("a=1; Path=/; Domain=.Example.com", "https://www.example.com/", "a=1"),
        ("a=1; Path=/; Domain=example.com", "https://notexample.com/", ""),
        ("a=1; Path=/; Domain=other.com", "https://other.com/", ""),
        ("a=1; Path=/; Domain=com", "https://shop.example.com:8443/", ""),
        ("a=1; Path=/; Secure", "http://shop.example.com:8443/", ""),
        ("a=1; Path=/; Max-Age=0", "https://shop.example.com:8443/", ""),
        ("a=1; Path=/; Max-Age=60", "https://shop.example.com:8443/", "a=1"),
        ("a=1; Path=/; Expires=Thu, 01 Jan 1970 00:00:00 GMT", "https://shop.example.com:8443/", ""),
        ("a=1; Path=/; Expires=whenever; Partitioned; SameSite=Lax", "https://shop.example.com:8443/", "a=1"),
        ('a="x=y z"; Path=/', "https://shop.example.com:8443/", 'a="x=y z"'),
        ("nameless; Path=/", "https://shop.example.com:8443/", ""),
        ("", "https://shop.example.com:8443/", ""),
    ],
)
def test_the_scope_of_a_cookie(line: str, url: str, sent: str) -> None:
    """A cookie goes to its server, path or domain, until it expires."""
    jar = CookieJar()
    jar.store(SET_AT, [line])
    assert jar.header(url) == sent


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8000", "[::1]:8000"])
def test_secure_cookies_on_loopback(host: str) -> None:
    """Browsers send them to loopback without TLS, and so do we."""
    jar = CookieJar()
    jar.store(f"http://{host}/", ["a=1; Secure"])
    assert jar.header(f"http://{host}/") == "a=1"


def test_cookies_that_replace_others() -> None:
    """The newest of a name and path counts, the longest path comes first, configured ones stay."""
    jar = CookieJar()
    jar.store("http://h/", ["a=1", "b=1"])
    jar.store("http://h/", ["a=2", "b=; Max-Age=0"])
    jar.store("http://h/api/x", ["a=3; Path=/api"])
    assert jar.header("http://h/", "own=0; a=9") == "own=0; a=2"
    assert jar.header("http://h/api/y") == "a=3"
    assert (jar.value("a"), jar.value("b")) == ("3", None)
    assert CookieJar(jar).header("http://h/") == "a=2"
