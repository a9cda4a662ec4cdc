"""Secrets stay out of what is shown, and everything else stays in."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentest.support.redaction import (
    HIDDEN,
    MAX_ERROR_CHARS,
    CredentialFilter,
    Redactor,
    environment_secrets,
    header_secrets,
    looks_secret,
    url_secrets,
)

words = st.text("abcdefghijklmnopqrstuvwxyzABCDEF0123456789-_.", min_size=8, max_size=40)


@given(st.lists(words, min_size=1, max_size=4), st.text(max_size=20), st.text(max_size=20))
def test_known_secrets_are_removed(secrets: list[str], before: str, after: str) -> None:
    """No part of a known secret remains, even if one secret contains another."""
    redact = Redactor([*secrets, secrets[0] + "-longer"])
    shown = redact(before + f" {secrets[0]}-longer ".join(secrets) + after)
    assert not any(secret in shown.replace(HIDDEN, "\n") for secret in secrets)


def test_secrets_learned_during_a_run() -> None:
    """A redactor hides what it learns from then on, except for short texts and the oldest."""
    redact = Redactor(["known-secret"])
    hide, hide_error = redact.__call__, redact.error
    redact.learn(["short", "token-of-a-login", "token-of-a-login-2="])
    said = "short known-secret token-of-a-login-2= token-of-a-login"
    assert hide(said) == hide_error(said) == f"short {HIDDEN} {HIDDEN} {HIDDEN}"
    redact.learn(f"{number:08}" for number in range(2000))
    assert hide("token-of-a-login 00000001 known-secret") == f"token-of-a-login {HIDDEN} {HIDDEN}"


@pytest.mark.parametrize("form", ["{:08}", "tok-{:04}", "a-long-token-of-a-login-{:04}"])
def test_many_secrets_are_learned_and_the_oldest_forgotten(form: str) -> None:
    redact = Redactor()
    redact.learn(form.format(number) for number in range(2020))
    oldest, newest = (form.format(number) for number in (19, 2019))
    assert redact.transcript(f"{oldest} {form.format(20)} {newest}") == f"{oldest} {HIDDEN} {HIDDEN}"


@given(st.text(max_size=2000), st.lists(st.text(max_size=10), max_size=3))
def test_any_text_can_be_redacted(text: str, secrets: list[str]) -> None:
    """An error is never longer than 500 characters."""
    assert len(Redactor(secrets).error(text)) <= MAX_ERROR_CHARS == 500


@given(st.integers(0, 600), words)
def test_redacted_before_it_is_cut(padding: int, secret: str) -> None:
    """A secret at the place where an error is cut leaves no beginning behind."""
    secret = f"S{secret}S"
    shown = Redactor([secret]).error("x" * padding + secret + "y" * 100)
    assert secret[:5] not in shown


def test_a_shortened_error_ends_with_an_ellipsis() -> None:
    """An error that fits is not shortened."""
    redact = Redactor()
    assert redact.error("x" * 501) == "x" * 499 + "…"
    assert redact.error("x" * 500) == "x" * 500


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Authorization: Bearer abcd1234", f"Authorization: Bearer {HIDDEN}"),
        ("authorization: bearer abcd", f"authorization: bearer {HIDDEN}"),
        ("{'Authorization': 'Bearer a.b-c_d~e+f/g='}", f"{{'Authorization': 'Bearer {HIDDEN}'}}"),
        ("Bearer  two-spaces", f"Bearer  {HIDDEN}"),
        ("Bearer token-1234", f"Bearer {HIDDEN}"),
        ("Basic dXNlcjpwYXNz", f"Basic {HIDDEN}"),
        ("Basic QWxhZGRpbjpvcGVu==", f"Basic {HIDDEN}"),
        ("Incorrect API key provided: sk-abcdefgh1234.", f"Incorrect API key provided: {HIDDEN}."),
        ("sk-proj-abcdefgh_1234", HIDDEN),
        ("sk-ant-api03-abcdefgh", HIDDEN),
        ("ghp_abcdefgh1234 hf_abcdefgh1234", f"{HIDDEN} {HIDDEN}"),
        ("AIzaSyA1234567890abcdefghijk", HIDDEN),
        ("AKIAABCDEFGHIJKLMNOP", HIDDEN),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln", HIDDEN),
        ("x-api-key: abcdef12", f"x-api-key: {HIDDEN}"),
        ('{"api_key": "abcdef12"}', f'{{"api_key": "{HIDDEN}"}}'),
        ("?apikey=abcdef12&x=1", f"?apikey={HIDDEN}&x=1"),
        ("access_token=abcdef12", f"access_token={HIDDEN}"),
        ("http://user:pass@host/path", f"http://{HIDDEN}@host/path"),
        ("https://justatoken@host/path", f"https://{HIDDEN}@host/path"),
        ("at http://user:p@ss@host:80.", f"at http://{HIDDEN}@host:80."),
        (r'"http:\/\/user:pass@host"', rf'"http:\/\/{HIDDEN}@host"'),
        ("https://host/x?a=1&token=abc&b=2#x", f"https://host/x?a=1&token={HIDDEN}&b=2#x"),
        ("https://host/x?sig=a%2Fb%3D and on", f"https://host/x?sig={HIDDEN} and on"),
        ("?next=http://host/?key=abc", f"?next=http://host/?key={HIDDEN}"),
        ("Bearer%20abcd1234", f"Bearer%20{HIDDEN}"),
        ('connect(token="abcd1234", port=80)', f'connect(token="{HIDDEN}", port=80)'),
        ("PASSWORD = 'hunter2!'", f"PASSWORD = '{HIDDEN}'"),
        (r"{\"password\": \"hunter2!\"}", rf"{{\"password\": \"{HIDDEN}\"}}"),
        ("password=hunter2!", f"password={HIDDEN}"),
        ("cookie eyJzZXNzaW9uIjoxfQ, then", f"cookie {HIDDEN}, then"),
    ],
)
def test_credential_formats_are_hidden(text: str, shown: str) -> None:
    """A text in the format of a credential is hidden, known or not."""
    assert Redactor()(text) == shown


PIECES = [
    *(
        "sk-",
        "gsk_",
        "github_pat_",
        "glpat-",
        "shpat_",
        "shpat-",
        "xoxb-",
        "AKIAABCDEFGHIJKLMNOP",
        "abcdefgh12",
        "11AAAA",
    ),
    *("token", "TOKEN=", "password: ", "ſecret", "api_key", "account-key", "client_secret", "access-token"),
    *(
        "bearer ",
        "Basic ",
        "QWxhZGRpbjpvcGVu",
        "eyJabcdefghij.abc",
        "-----BEGIN PRIVATE KEY-----",
        "://",
        "@",
    ),
    *('"', "\\", "=", ":", " ", "\n", "\0", ".", "?", "&sig=", "hunter2222", "İ", "ß", "K", "1", "x"),
]


@given(st.lists(st.sampled_from(PIECES), max_size=12), st.sampled_from(["", " " * 4000]))
@example(["github_pat_", "11AAAA", "abcdefgh12"], " " * 4000)
@example(["shpat-", "11AAAA", "abcdefgh12", " ", "glpat-"], " " * 4000)
@example(["account-key", "=", "hunter2222"], " " * 4000)
@example(["İ", "ſecret", "=", "hunter2222"], " " * 4000)
def test_reports_find_what_errors_hide(pieces: list[str], rest: str) -> None:
    """Reports try a pattern only where a part of it is, unless the text is full of parts."""
    text = "".join(pieces) + rest
    assert (CredentialFilter()(text) == text) is (Redactor()(text) == text)


@pytest.mark.parametrize(
    "text",
    [
        "missing bearer token",
        "a bearer authentication scheme is required",
        "Bearer realm",
        "Basic authentication is not enabled",
        "a basic understanding of it",
        "the api key is missing",
        "api_key: null",
        "http://host:8000/path",
        "http://host/a:b@c",
        "scenarios/booking.sim.py:12",
        "ask-for-directions and task_management",
        "at 9:30 for 2 people",
        "https://host/x?page=2&monkey=banana#top",
        "mail ada@example.com or see http://host/ada@example.com",
        "the token: expected a word; password: missing",
        "",
    ],
)
def test_ordinary_words_are_not_redacted(text: str) -> None:
    """Ordinary words, paths and addresses are not touched."""
    assert Redactor()(text) == text


PASSWORD = "p@ss w\"rd/\\ü+<&'\n%#x🔑"


@pytest.mark.parametrize(
    "spell",
    [
        str,
        repr,
        ascii,
        quote,
        quote_plus,
        lambda text: quote(text, safe=""),
        lambda text: quote(text, safe="").lower(),
        lambda text: quote(quote(text, safe=""), safe=""),
        lambda text: quote(text, safe="!$&'()*+,;=:@"),
        json.dumps,
        lambda text: json.dumps(text, ensure_ascii=False),
        lambda text: json.dumps(json.dumps({"a": text})),
        lambda text: json.dumps(json.dumps({"a": text}, ensure_ascii=False)),
        html.escape,
        lambda text: html.escape(json.dumps(text)),
        lambda text: "".join(f"&#{ord(c)};" if not c.isalnum() else c for c in text),
        lambda text: str(httpx.URL("http://host/", params={"x": text})),
        lambda text: f"<{text}>",
    ],
)
def test_encoded_secrets_are_hidden(spell: Callable[[str], str]) -> None:
    """A secret is found in a URL, in JSON, in HTML and in Python, at several levels of quoting."""
    shown = Redactor([PASSWORD])(f"before {spell(PASSWORD)} after")
    assert shown.startswith("before ")
    assert shown.endswith(" after")
    assert HIDDEN in shown
    assert "ss" not in shown.replace(HIDDEN, "")
    assert "rd" not in shown.replace(HIDDEN, "")


@given(st.text(min_size=4, max_size=30).filter(lambda text: len(text.strip()) >= 4))
@example("000&")
def test_any_encoded_secret_is_hidden(secret: str) -> None:
    """This is true of any secret, whatever its characters."""
    secret = secret.strip()
    redact = Redactor([secret])
    for spelt in (secret, quote(secret, safe=""), json.dumps(secret)[1:-1], html.escape(secret)):
        assert redact(f"<{spelt}>") in (f"<{HIDDEN}>", f"<{spelt}>" if spelt == HIDDEN else "")


def test_secrets_in_a_url() -> None:
    """The password and secret query parameters of a URL are hidden, also as a Basic header has them."""
    url = "https://bot:p%40ss-word@host/x?page=2&api_key=a%2Fb12345"
    redact = Redactor(url_secrets(url))
    basic = base64.b64encode(b"bot:p@ss-word").decode()
    shown = redact(f"{url} sent {basic} with p@ss-word and a/b12345 for page=2")
    assert shown == (
        f"https://{HIDDEN}@host/x?page=2&api_key={HIDDEN} sent {HIDDEN} with {HIDDEN} and {HIDDEN} for page=2"
    )
    assert url_secrets("http://host:80/x?page=2") == url_secrets("http://[") == []


def test_secrets_in_headers() -> None:
    """The password of a Basic header is a secret of its own."""
    basic = "Basic " + base64.b64encode(b"bot:hunter2-x").decode()
    redact = Redactor(header_secrets({"Authorization": basic, "X-Trace": "abcdefgh"}))
    assert redact("hunter2-x abcdefgh") == f"{HIDDEN} abcdefgh"


def test_secrets_in_the_environment() -> None:
    """Variables with secret-looking names count, except short values and the working directory."""
    environ = {"BOT_TOKEN": "abcdefgh", "TEST_KEY": "test", "PWD": "/home/ada/bot", "HOME": "/home/ada"}
    assert environment_secrets(environ) == ["abcdefgh"]


LONG = 400_000
UNITS = (
    *(
        "eyJ-",
        "-eyJaaaaaaaa",
        "a.eyJ",
        "eyJaaaaaaaa.",
        "bearer ",
        "Bearer  auth",
        "Basic ",
        "Basic aAA",
        "api_key ",
    ),
    *(
        "api_key\\",
        "api_key = ",
        "password='",
        'token="a',
        "://",
        "://a:",
        "://a@",
        "x@",
        "?a",
        "?a=",
        "&key",
        "sk-a",
    ),
    *(
        "AKIA",
        "AIza",
        "p@ss",
        "p%2525",
        "\\",
        "p\\",
        "&amp;",
        "&#0000",
        "%",
        "%25",
        "p&amp;amp;",
        "a",
        "A",
        "0",
    ),
)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.slow
def test_redaction_time_is_linear(unit: str) -> None:
    """A text of any length is redacted in one pass: quadratic time would take many minutes."""
    redact = Redactor(['p@ss w"rd', "zq-secret-91"])
    for end in ("", "!"):
        assert len(redact.error(unit * (LONG // len(unit)) + end)) <= MAX_ERROR_CHARS
        redact(unit * (LONG // len(unit)) + end)
        CredentialFilter()(unit * (LONG // len(unit)) + end)


@given(st.integers(0, 9_000), st.integers(1, 3_000))
def test_a_long_error_is_cut_before_it_is_redacted(padding: int, hidden: int) -> None:
    """No part of a secret remains at the cut, however much was redacted before it."""
    secret = "S" + "zq-91/" * 40 + "S"
    text = f"Bearer {'x' * padding} {'sk-abcdefgh12 ' * hidden}{secret}{'y' * 9_000}"
    shown = Redactor([secret]).error(text)
    assert "zq-" not in shown
    assert len(shown) <= MAX_ERROR_CHARS


def test_short_values_are_not_secrets() -> None:
    """A value too short to be a secret does not hide ordinary words."""
    assert Redactor(["a", "", "  ", "yes"])("yes, a day") == "yes, a day"


def test_a_secret_with_a_trailing_newline() -> None:
    """A value that was read with a newline at its end is also hidden without it."""
    assert Redactor(["secret-value\n"])("it is secret-value!") == f"it is {HIDDEN}!"


@pytest.mark.parametrize(
    "name",
    [
        "OPENAI_API_KEY",
        "API_KEY_2",
        "apiKey",
        "x-api-key",
        "APIKEY",
        "TOKEN",
        "GITHUB_TOKEN",
        "ACCESSTOKEN",
        "authToken",
        "DB_PASSWORD",
        "DB_PASS",
        "CLIENT_SECRET",
        "Authorization",
        "proxy-authorization",
        "Cookie",
        "set-cookie",
        "AWS_SECRET_ACCESS_KEY",
        "GOOGLE_CREDENTIALS",
        "GITHUB_PAT",
    ],
)
def test_names_of_secrets(name: str) -> None:
    """Names that usually have secret values are known, in every spelling."""
    assert looks_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "PATH",
        "MAX_TOKENS",
        "TOKENIZER",
        "MONKEY",
        "AUTHOR",
        "COMPASS",
        "PORT",
        "HOST",
        "content-type",
        "KEYBOARD",
        "",
    ],
)
def test_similar_names_are_not_secret(name: str) -> None:
    """Names that are only similar are not."""
    assert not looks_secret(name)


def test_transcripts_hide_only_known_secrets() -> None:
    """Text that only resembles a credential stays in a transcript, as do short secrets and words."""
    redact = Redactor(["tok-1234-5678", "postgres", "DEVELOPMENT", "hunter2", "supersecretvalue", "91091191"])
    said = "sk-abcdefghijkl, Bearer abcdefgh, postgres, DEVELOPMENT, hunter2: "
    assert redact.transcript(said + "tok-1234-5678, supersecretvalue") == said + "[redacted], [redacted]"
    assert redact.transcript("call 91091191") == "call [redacted]"
    assert "[redacted]" in redact(said)


def test_transcripts_hide_parts_of_cut_secrets() -> None:
    """A secret cut by a `…` is recognized by the part that remains."""
    redact = Redactor(["zq12-split-over-chunks"])
    assert redact.transcript("it is zq12-split-… and …ver-chunks.") == "it is [redacted]… and …[redacted]."
    assert redact.transcript("zq12-… zq12-split … x") == "zq12-… zq12-split … x", (
        "too little, or not cut there"
    )


@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 2_100))
def test_one_of_very_many_learned_secrets(before: int, after: int, number: int) -> None:
    """Every learned secret is hidden at any position; forgotten ones are not."""
    assert LEARNED.transcript("x" * before + TOKENS[number] + "y" * after) == (
        "x" * before + (TOKENS[number] if number <= 100 else "[redacted]") + "y" * after
    )


def test_a_redactor_that_keeps_transcripts() -> None:
    """It redacts nothing in transcripts, but still redacts errors."""
    redact = Redactor(["tok-1234-5678"], transcripts=False).knowing(["tok-8765-4321"])
    redact.learn(["tok-1111-2222"])
    assert not redact.hides_transcripts
    assert redact.transcript("tok-1234-5678 tok-8765-4321 tok-1111-2222").count("tok") == 3
    assert "tok" not in redact("tok-1234-5678 tok-8765-4321 tok-1111-2222")


TOKENS = [f"{n * 7919 % 100_003:05}-of-a-login-{n}-" for n in range(2_101)]
LEARNED = Redactor()
LEARNED.learn(TOKENS)
