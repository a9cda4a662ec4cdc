"""Backends of `useChat`: the AI SDK's own in three versions, and pydantic-ai's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from framework_lab import MARKS, Served, assert_mocked_tools, assert_own_tools, run

pytestmark = MARKS

NODE = ("node/bin/node", "ai_sdk_server.mjs", "--sdk")
PYTHON = ("pydantic_ai/bin/python", "pydantic_ai_server.py", "--protocol", "ai_sdk", "--path", "{path}")
BACKENDS = {
    "ai-7": (*NODE, "ai"),
    "ai-6": (*NODE, "ai6"),
    "ai-5": (*NODE, "ai5"),
    "pydantic-ai": PYTHON,
}
ASKING = ("ai-7", "ai-6", "pydantic-ai")


def served(backend: str, path: str = "") -> Served:
    """By the configuration of the page, or at another path."""
    return Served(
        id=backend,
        type="ai_sdk",
        page="agents/vercel-ai-sdk",
        command=(*BACKENDS[backend], "--port", "{port}"),
        cwd="servers" if backend == "pydantic-ai" else "node",
        agent={"endpoint": f"http://localhost{path}"} if path else {},
        asks=not path and backend in ASKING,
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_the_backend_does_is_told(backend: str, tmp_path: Path) -> None:
    """Replies, calls of the server and errors are read from the stream; chats stay apart.

    A tool that needs approval is answered by the user's next message, or by the configuration.
    """
    assert_own_tools(run(served(backend), tmp_path, "own_tools"), "reported")


@pytest.mark.parametrize("backend", ["ai-7", "ai-6", "ai-5"])
def test_tools_of_the_client_are_mocked(backend: str, tmp_path: Path) -> None:
    """Calls of tools that the server does not run are answered by the mocks."""
    assert_mocked_tools(run(served(backend, "/api/client-tools"), tmp_path, "mocked_tools"))


def test_a_text_stream_is_the_reply(tmp_path: Path) -> None:
    """A backend that streams only text reports no calls: they are unseen, and errored."""
    agent = replace(served("ai-7"), after="## Streams and errors", asks=False)
    assert_own_tools(run(agent, tmp_path, "own_tools"), "unseen")
