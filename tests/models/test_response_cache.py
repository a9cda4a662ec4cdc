"""The file of stored model responses."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentest.models.port import ModelAnswer
from agentest.models.response_cache import ResponseCache


@pytest.mark.parametrize(
    ("answer", "is_stored"),
    [
        (ModelAnswer("hello"), True),
        (ModelAnswer("the key is sk-1"), False),
        (ModelAnswer("", "I do not repeat sk-1"), False),
    ],
)
def test_an_answer_with_a_secret_is_not_stored(tmp_path: Path, answer: ModelAnswer, is_stored: bool) -> None:
    path, told = tmp_path / "answers.sqlite3", list[str]()
    for _ in range(2):
        cache = ResponseCache(path, lambda text: text.replace("sk-1", "***"), told.append)
        found = cache.find("question")
        cache.store("question", answer)
        cache.close()
    assert (found is not None) == is_stored
    assert b"sk-1" not in path.read_bytes()
    assert told == []
