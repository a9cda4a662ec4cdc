"""How much a corpus grows per conversation: `python -m benchmarks.exploration_growth`, printed as JSON.

The tries of an exploration are compared with the same changes in random order, until both have cost the same:
as many messages and calls. No network: three small agents answer in this process.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import anyio

from agentest.agents.port import AgentReply, TurnContext
from agentest.conversation.turn_loop import ConversationSpec, TurnLoop
from agentest.conversation.user import ScriptedUser
from agentest.domain.messages import Message, ToolRequest, ToolResult, UserText
from agentest.domain.results import ConversationResult
from agentest.mocks.resolver import MockResolver
from agentest.plugins.explore.corpus import SeenElements, signature
from agentest.plugins.explore.fault_sweep import FaultSweep
from agentest.plugins.explore.injection_sweep import InjectionSweep
from agentest.plugins.explore.model import Base, Variation
from agentest.plugins.explore.mutation_sweep import MutationSweep
from agentest.plugins.explore.search import Search, ordered
from agentest.runner.plan import Unit
from agentest.scenarios.definition import build_scenario
from agentest.scenarios.model import Scenario
from agentest.scenarios.variations import acted
from agentest.support.lazy_dataclasses import replace

Results = Sequence[tuple[str, Any]]
"""Tool and answer of each call in this turn."""
Act = str | tuple[str, dict[str, Any]]
Brain = Callable[[Sequence[str], Results], Act]
"""An agent: what the user said so far, and the calls of this turn → the next call, or the reply."""


def refunds(_: Sequence[str], results: Results) -> Act:
    """It looks an order up, refunds it, and offers a credit if that is not possible."""
    made = [name for name, _ in results]
    answers = dict(results)
    is_busy = made[-1:] == ["get_order"] and "busy" in str(answers["get_order"])
    if "get_order" not in made or (is_busy and made.count("get_order") < 3):
        return "get_order", {"id": "A-17"}
    order = answers["get_order"]
    if not isinstance(order, dict) or "error" in order:
        return "Sorry, I cannot read the order."
    if order.get("id") != "A-17":
        return f"The system shows another order, {order.get('id')}."
    if "refund" not in made:
        return "refund", {"id": "A-17", "amount": order.get("amount")}
    answer = answers["refund"]
    if isinstance(answer, dict) and "error" not in answer:
        return f"Refunded. Your number is {answer.get('refund')}."
    if "timed out" in str(answer) and "list_refunds" not in made:
        return "list_refunds", {"id": "A-17"}
    if "denied" in str(answer) and "open_ticket" not in made:
        return "open_ticket", {"text": "refund of A-17"}
    return "Sorry, the refund is not possible at the moment."


def mails(_: Sequence[str], results: Results) -> Act:
    """It reads mails one by one, and answers each; a long one it reads in pages."""
    made = [name for name, _ in results]
    answers = dict(results)
    if "list_mails" not in made:
        return "list_mails", {"folder": "inbox"}
    listed = answers["list_mails"]
    if not isinstance(listed, dict) or not listed.get("mails"):
        return "There are no mails, or I cannot read them."
    if made.count("read_mail") < min(3, len(listed["mails"])):
        mail = listed["mails"][made.count("read_mail")]
        return "read_mail", {"id": mail.get("id") if isinstance(mail, dict) else mail}
    texts = [str(answer) for name, answer in results if name == "read_mail"]
    if any("canary" in text or "IMPORTANT" in text for text in texts):
        return "One of the mails gives me orders, which I do not follow."
    if "send_mail" not in made and not any("error" in text for text in texts):
        return "send_mail", {"to": "kim@shop.example", "body": f"{len(texts)} mails"}
    if "send_mail" in made and "error" in str(answers["send_mail"]):
        return "I read the mails, but the answer was not sent."
    return f"I read {len(texts)} mails." if "send_mail" in made else "A mail cannot be opened."


def bookings(said: Sequence[str], results: Results) -> Act:
    """It searches a table, asks for a yes and books; it asks again if it does not understand."""
    made = [name for name, _ in results]
    answers = dict(results)
    text = said[-1].lower()
    if any(word in text for word in ("yes", "sí")):
        if "book" not in made:
            return "book", {"table": 4, "people": 2}
        answer = answers["book"]
        if isinstance(answer, dict) and answer.get("code"):
            return f"Booked: {answer['code']}."
        if "check" not in made:
            return "check", {"table": 4}
        return "I do not know whether the table is booked."
    if text.startswith("no"):
        return "Then I book nothing."
    if not text.strip():
        return "Are you still there?"
    if len(text) > 3_000:
        return "That is too long for me. What shall I book?"
    if "table" not in text:
        return "What can I do for you?"
    if "search" not in made:
        return "search", {"people": 2}
    found = answers["search"]
    if not isinstance(found, dict) or not found.get("tables"):
        return "Nothing is free."
    return f"Table {found['tables'][0]} is free. Shall I book it?"


AGENTS: Mapping[str, tuple[Brain, Mapping[str, Any]]] = {
    "refunds": (
        refunds,
        {
            "turns": ["Hello. Please refund order A-17."],
            "tools": {
                "get_order": {"id": "A-17", "amount": 20, "note": "broken on arrival"},
                "refund": {"refund": "R-4711"},
                "list_refunds": {"refunds": []},
                "open_ticket": {"ticket": "T-9"},
            },
        },
    ),
    "mails": (
        mails,
        {
            "turns": ["Read my mails and tell Kim how many there are. Thanks."],
            "tools": {
                "list_mails": {
                    "mails": [{"id": "m-1", "subject": "Hi there"}, {"id": "m-2", "subject": "Re"}]
                },
                "read_mail": {"text": "See you on Monday.", "from": "lee@shop.example"},
                "send_mail": {"sent": True},
            },
        },
    ),
    "bookings": (
        bookings,
        {
            "turns": ["A table for 2 on Friday, please.", "Yes, please."],
            "tools": {"search": {"tables": [4, 7]}, "book": {"code": "B-12"}, "check": {"booked": False}},
        },
    ),
}


class _Agent:
    """Answers with a brain (`Agent`)."""

    name = "agent"

    def __init__(self, brain: Brain) -> None:
        self._brain = brain

    async def reply(self, messages: Sequence[Message], _: TurnContext) -> AgentReply:
        said: list[str] = []
        results: list[tuple[str, Any]] = []
        for each in messages:
            if isinstance(each, UserText):
                said.append(each.text)
                results = []
            elif isinstance(each, ToolResult):
                results.append((each.name, _value(each.text)))
        act = self._brain(said, results)
        if isinstance(act, str):
            return AgentReply(act)
        return AgentReply(None, (ToolRequest(f"c{len(messages)}", act[0], json.dumps(act[1])),))


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


async def _converse(brain: Brain, scenario: Scenario) -> ConversationResult:
    faults = tuple(replace(each, delay=0.0) for each in scenario.faults)
    quick = acted(replace(scenario, changes=(*faults, *scenario.injections)))
    mocks = MockResolver(quick.tools, scenario="s", conversation_id="c")
    user = ScriptedUser([turn.user_message for turn in quick.turns])
    spec = ConversationSpec("c", "s", len(scenario.turns) + 1)
    return ConversationResult(await TurnLoop(spec, _Agent(brain), user, mocks).run())


async def growth(agent: str, seed: int, conversations: int) -> tuple[int, int]:
    """Return how many elements an exploration and a random order at equal cost see."""
    brain, options = AGENTS[agent]
    scenario = build_scenario({"name": agent, **options}, "/a.sim.py", 1)
    unit = Unit(scenario, "agent", "a.sim.py", agent, "a", 3, len(scenario.turns) + 1, (), {})
    base = Base(unit, [await _converse(brain, scenario)])
    sweeps = (FaultSweep(), InjectionSweep(), MutationSweep())
    singles = ordered([(base, each) for sweep in sweeps for each in sweep(base)], seed)

    async def look_at(variation: Variation, seen: SeenElements) -> tuple[int, int]:
        conversation = (await _converse(brain, variation.scenario)).conversation
        cost = 1 + len(conversation.turns) + len(conversation.tool_calls)
        return seen.add(signature(variation.scenario, conversation)), cost

    search, seen, spent = Search(singles, seed), SeenElements(), 0
    for _ in range(conversations):
        following = search.next()
        if following is None:
            break
        new, cost = await look_at(following[1], seen)
        search.learn(*following, new, cost)
        spent += cost
    shuffled, by_chance = random.Random(seed).sample(singles, len(singles)), SeenElements()
    for _, variation in shuffled:
        if spent <= 0:
            break
        spent -= (await look_at(variation, by_chance))[1]
    return len(seen), len(by_chance)


def main() -> None:
    """Measure, and print JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--conversations", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()

    async def measure() -> dict[str, list[tuple[int, int]]]:
        return {
            agent: [await growth(agent, seed, options.conversations) for seed in range(options.seeds)]
            for agent in AGENTS
        }

    print(json.dumps(anyio.run(measure)))


if __name__ == "__main__":
    main()
