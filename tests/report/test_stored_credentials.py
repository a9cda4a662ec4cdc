"""Credentials are found in the JSON of a stored run."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from agentest.report.registry import find_credentials
from agentest.support.json_text import encoded
from agentest.support.redaction import CredentialFilter

PIECES = [
    *(
        "sk-",
        "ghp_",
        "AKIAABCDEFGHIJKLMNOP",
        "ya29.",
        "ya19.",
        "abcdefgh12",
        "hunter2222",
        "QWxhZGRpbjpvcGVu",
    ),
    *("token", "TOKEN=", "password: ", "api_key", "client_secret", "bearer", "Basic ", "eyJabcdefghij.abc"),
    *("%20", "%21", "://", "@", '"', "\\", "=", ":", " ", "\n", "?", "&sig=", "İ", "1", "2", "9", "0", "…"),
]


@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=12), max_size=8))
@example([["ya29.", "abcdefgh12", "abcdefgh12"], ["ya19.", "abcdefgh12", "abcdefgh12"]])
@example([["ya19.", "abcdefgh12", "abcdefgh12"], ["ya29.", "abcdefgh12", "abcdefgh12"]])
@example([["bearer", "%21", "abcdefgh12"], ["bearer", "%20", "abcdefgh12"]])
@example([["key ", "1"], ["sk-", "hunter2221"], ["sk-", "hunter2222"], ["hunter2222"]])
def test_credentials_are_learned_from_stored_texts(texts: list[list[str]]) -> None:
    """Of texts that differ only in digits, one without credentials stands for the others."""
    stored = [{"text": "".join(pieces), "n": 12} for pieces in texts]
    learnt, exact = CredentialFilter(), CredentialFilter()
    find_credentials((encoded(each) for each in stored), learnt)
    for each in stored:
        exact(encoded(each).decode())
    assert learnt.note == exact.note
    assert learnt(stored) == exact(stored)
