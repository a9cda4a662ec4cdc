"""Secrets stay out of what is shown, and everything else stays in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentest.redact import HIDDEN, MAX_ERROR_CHARS, Redactor, looks_secret

words = st.text("abcdefghijklmnopqrstuvwxyzABCDEF0123456789-_.", min_size=8, max_size=40)


@given(st.lists(words, min_size=1, max_size=4), st.text(max_size=20), st.text(max_size=20))
def test_known_secrets(secrets: list[str], before: str, after: str) -> None:
    """Whatever a known secret stands in, none of it is left, not even where one secret contains another."""
    redact = Redactor([*secrets, secrets[0] + "-longer"])
    shown = redact(before + f" {secrets[0]}-longer ".join(secrets) + after)
    assert not any(secret in shown.replace(HIDDEN, "\n") for secret in secrets)


@given(st.text(max_size=2000), st.lists(st.text(max_size=10), max_size=3))
def test_any_text(text: str, secrets: list[str]) -> None:
    """Any text can be redacted, and an error is never longer than 500 characters."""
    assert len(Redactor(secrets).error(text)) <= MAX_ERROR_CHARS == 500


@given(st.integers(0, 600), words)
def test_redacted_before_it_is_cut(padding: int, secret: str) -> None:
    """A secret at the place where an error is cut leaves no beginning behind."""
    secret = f"S{secret}S"
    shown = Redactor([secret]).error("x" * padding + secret + "y" * 100)
    assert secret[:5] not in shown


def test_a_cut_shows() -> None:
    """An error that was cut ends with an ellipsis; one that fits is whole."""
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
    ],
)
def test_forms_of_credentials(text: str, shown: str) -> None:
    """What has the form of a credential is hidden, whether it is known or not."""
    assert Redactor()(text) == shown


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
        "",
    ],
)
def test_what_stays(text: str) -> None:
    """Ordinary words, paths and addresses are not touched."""
    assert Redactor()(text) == text


def test_short_values() -> None:
    """A value too short to be a secret does not blot out ordinary words."""
    assert Redactor(["a", "", "  ", "yes"])("yes, a day") == "yes, a day"


def test_values_with_line_breaks_around_them() -> None:
    """A value that was read with a line break at its end is hidden without it too."""
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
def test_secret_names(name: str) -> None:
    """Names under which secrets usually stand are known, in every spelling."""
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
def test_other_names(name: str) -> None:
    """Names that only look a little like them are not."""
    assert not looks_secret(name)
