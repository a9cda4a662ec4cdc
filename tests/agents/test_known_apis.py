"""The documented configurations, tested with stand-ins for servers with a public API."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from documented_apis import at, check_conversations_at_once, check_failure, documented, in_two, said
from http_agents import Routes
from known_apis import accepted_jobs, chatkit, direct_line, gradio, threads_and_runs

from agentest import scenario
from agentest.testing import run_scenarios

APIS: dict[str, tuple[Callable[[], Routes], Callable[[str], str]]] = {
    "ChatKit": (chatkit, said),
    "Gradio": (gradio, said),
    "Direct Line": (direct_line, in_two),
    "Jobs with 202 and Location": (accepted_jobs, said),
    "Threads and runs": (threads_and_runs, said),
}
FAILURES = {
    "ChatKit": "no model",
    "Gradio": "the agent reports an error (event `error`)",
    "Threads and runs": "no model",
}


@pytest.mark.parametrize("heading", APIS)
def test_conversations_at_once_stay_apart(heading: str) -> None:
    routes, form = APIS[heading]
    check_conversations_at_once(heading, routes(), form)


@pytest.mark.parametrize("heading", FAILURES)
def test_an_error_of_the_server_is_the_agents_failure(heading: str) -> None:
    check_failure(heading, APIS[heading][0](), FAILURES[heading])


def test_a_ban_sees_the_calls_that_chatkit_reports() -> None:
    """The server may run other tools that nothing reports, so a ban is failed or errored, never passed."""
    with at(chatkit()) as url:
        result = run_scenarios(
            [
                scenario("kept", turns=["Hi"], trajectory={"forbidden": ["pay"]}),
                scenario("broken", turns=["Hi", "pay"], trajectory={"forbidden": ["pay"]}),
            ],
            agent=documented("ChatKit", url),
        )
    assert {each.name: each.verdict.status for each in result.scenarios} == {
        "kept": "errored",
        "broken": "failed",
    }
