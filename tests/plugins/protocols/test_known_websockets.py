"""The documented configurations, tested with stand-ins for public WebSocket APIs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from documented_apis import at, check_conversations_at_once, check_failure, documented, said
from http_agents import Routes
from known_apis import graphql, realtime

from agentest import scenario
from agentest.testing import run_scenarios

APIS: dict[str, Callable[[], Routes]] = {"OpenAI Realtime": realtime, "GraphQL subscriptions": graphql}


@pytest.mark.parametrize("heading", APIS)
def test_conversations_at_once_stay_apart(heading: str) -> None:
    check_conversations_at_once(heading, APIS[heading](), said)


@pytest.mark.parametrize("heading", APIS)
def test_an_error_of_the_server_is_the_agents_failure(heading: str) -> None:
    check_failure(heading, APIS[heading](), "no model")


def test_mocks_answer_the_functions_of_realtime() -> None:
    """Two concurrent calls are answered before one response is requested, and a ban fails."""
    paid: list[int] = []

    def pay(amount: int) -> dict[str, int]:
        paid.append(amount)
        return {"paid": amount}

    with at(realtime()) as url:
        result = run_scenarios(
            [
                scenario(
                    "paid",
                    turns=["pay", "Thanks"],
                    tools={"pay": pay},
                    trajectory={"expected": ["pay", "pay"]},
                ),
                scenario("banned", turns=["pay"], tools={"pay": pay}, trajectory={"forbidden": ["pay"]}),
            ],
            agent=documented("OpenAI Realtime", url),
        )
    assert {each.name: each.verdict.status for each in result.scenarios} == {
        "paid": "passed",
        "banned": "failed",
    }
    turns = result.scenarios[0].conversations[0].conversation.turns
    assert [turn.agent_message for turn in turns] == ["Paid: [1, 2]", "2. Thanks"]
    assert sorted(paid) == [1, 1, 2, 2]
