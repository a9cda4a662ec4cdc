"""Agents that do the wrong thing when a tool fails are found, and their right twin is left alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import hurrying
import pytest
from explore_lab import Act, Brain, Seen, agent_of, converse, explored, unit_of

from agentest import number
from agentest.config.config import ExploreSettings
from agentest.domain.changes import TOOL_FAULTS, fault
from agentest.domain.results import Severity
from agentest.domain.results.exploration import ExploredPart, Finding
from agentest.mocks.changed_answers import applied
from agentest.plugins.explore.claims import ClaimJudge, claims_of_success
from agentest.plugins.explore.fault_sweep import CLASSES, FaultSweep
from agentest.plugins.explore.invariants import ScenarioInvariants
from agentest.plugins.explore.model import (
    Base,
    FindingKey,
    Observation,
    Variation,
    Violation,
    relaxed,
    verb_effect,
)
from agentest.plugins.explore.search import ordered
from agentest.scenarios.definition import build_scenario
from agentest.scenarios.variations import acted
from agentest.support.errors import ModelError
from agentest.support.lazy_dataclasses import replace

REFUND: dict[str, Any] = {
    "turns": ["Please refund order A-17."],
    "tools": {
        "get_order": {"id": "A-17", "amount": 20, "contact": "kim-77@shop.example"},
        "refund": {"refund": "R-4711"},
        "credit_account": {"ok": True},
    },
}


def clerk(bug: str = "") -> Brain:
    """A clerk who looks an order up and refunds it; without a bug it reports what it could not do."""

    def brain(seen: Seen) -> Act:
        if "get_order" not in seen.made:
            return "get_order", {"id": "A-17"}
        order = seen.result("get_order")
        if bug == "crash":
            _ = order["id"]
        if bug == "none" and isinstance(order, dict) and "error" not in order and order.get("id") is None:
            return f"The order {order.get('id')} cannot be refunded."
        if not isinstance(order, dict) or not isinstance(order.get("amount"), int):
            return "Sorry, I could not read the order, so I refunded nothing."
        if order.get("id") != "A-17" and bug != "any order":
            return "Sorry, the system answered with another order, so I refunded nothing."
        if "refund" not in seen.made:
            return "refund", {"id": order.get("id"), "amount": order["amount"]}
        answer = seen.result("refund")
        failed = not isinstance(answer, dict) or "error" in answer
        timed_out = failed and "timed out" in str(answer)
        if failed and bug == "forever":
            return "refund", {"id": "A-17", "amount": order["amount"]}
        if timed_out and bug == "repeat" and seen.made.count("refund") == 1:
            return "refund", {"id": "A-17", "amount": order["amount"]}
        if bug == "enjoy":
            return "Enjoy your 20 EUR!"
        if bug == "invent" and failed:
            return "Sorry, that did not work. Please call us and give them the number CASE-8812."
        if bug == "way round" and "denied" in str(answer) and "credit_account" not in seen.made:
            return "credit_account", {"amount": order["amount"]}
        if failed and bug != "claim":
            return "Sorry, the refund did not go through, or I cannot see whether it did."
        number = answer.get("refund") if isinstance(answer, dict) else None
        if number is None and bug != "claim":
            return "The refund was sent, but I got no number for it."
        return f"Your refund of {order['amount']} EUR has been issued ({number})."

    return brain


@pytest.mark.parametrize(
    ("true", "lie"),
    [
        (20, 22),
        (5, 6),
        (-40, -36),
        (19.5, 21.46),
        ("2026-11-05", "2026-11-06"),
        ("room 09", "room 10"),
        (False, True),
        ("Ada", "Ada"),
    ],
)
def test_a_plausible_lie_is_near_the_truth(true: Any, lie: Any) -> None:
    """A tenth more, but at least one, the next day or the other truth value; the identifier stays."""
    lied = applied({"id": 17, "value": true}, fault("plausible_lie", tool="get_order"))
    assert lied == {"id": 17, "value": lie}


def findings(brain: Brain, **options: Any) -> list[Finding]:
    return explored(brain, {ExploredPart.FAULTS: FaultSweep()}, **{**REFUND, **options})


@pytest.mark.parametrize(
    ("bug", "oracle", "tool", "kinds"),
    [
        ("claim", "no_claim", "refund", {"error", "timeout", "unavailable", "rate_limit", "not_found"}),
        ("repeat", "no_repeated_write", "refund", {"applied_then_timeout"}),
        ("crash", "no_error", "get_order", set(TOOL_FAULTS)),
        ("forever", "bounded", "refund", {"unavailable", "rate_limit"}),
        ("none", "no_error", "get_order", {"schema", "empty"}),
        ("any order", "grounded_ids", "get_order", {"wrong_entity"}),
        ("enjoy", "no_claim", "refund", {"error", "timeout", "unavailable", "rate_limit", "not_found"}),
        ("invent", "grounded_ids", "refund", {"error", "timeout", "unavailable", "rate_limit", "not_found"}),
        ("way round", "no_way_round", "refund", {"permission_denied"}),
    ],
)
def test_a_bug_that_a_fault_shows_is_found(bug: str, oracle: str, tool: str, kinds: set[str]) -> None:
    found = {each.oracle: each for each in findings(clerk(bug))}
    assert oracle in found, found
    finding = found[oracle]
    kind, _, rest = finding.change.partition(" of ")
    assert kind.split()[0] in kinds
    assert rest.startswith("refund, call 1" if oracle == "no_way_round" else f"{tool}, call 1")
    assert finding.rate
    assert finding.rate.k == finding.rate.n


@pytest.mark.parametrize("seed", range(3))
def test_a_right_agent_has_no_finding_under_any_fault(seed: int) -> None:
    assert findings(clerk(), seed=seed) == []


def test_what_the_unchanged_scenario_does_already_is_no_finding() -> None:
    def brain(seen: Seen) -> Act:
        """It rings twice in every conversation."""
        return ("ring_bell", {"times": 1}) if seen.made.count("ring_bell") < 2 else "Rang. Result: None"

    assert explored(brain, {ExploredPart.FAULTS: FaultSweep()}, turns=["Ring."], tools={"ring_bell": 1}) == []


def test_a_write_that_the_scenario_repeats_as_it_is_may_be_repeated() -> None:
    def brain(seen: Seen) -> Act:
        return ("add_item", {"name": "milk"}) if seen.made.count("add_item") < 2 else "There are two."

    tools = {"add_item": {"ok": True}}
    assert explored(brain, {ExploredPart.FAULTS: FaultSweep()}, turns=["Two milk."], tools=tools) == []


async def _base(brain: Brain, **options: Any) -> Base:
    scenario = build_scenario({"name": "s", **options}, "/a.sim.py", 1)
    async with agent_of(brain) as agent:
        return Base(unit_of(scenario), [await converse(agent, scenario, "base")])


def base(brain: Brain, **options: Any) -> Base:
    made: Base = hurrying.run(lambda: _base(brain, **options))
    return made


def test_only_faults_that_fit_are_tried_one_of_each_class_and_tool_first() -> None:
    variations = list(FaultSweep()(base(clerk(), **REFUND)))
    tried = {(each.scenario.faults[0].kind, each.scenario.faults[0].tool) for each in variations}
    assert ("applied_then_timeout", "refund") in tried
    assert ("applied_then_timeout", "get_order") not in tried
    assert ("wrong_entity", "get_order") in tried
    assert ("partial", "refund") in tried
    assert ("partial", "get_order") not in tried
    assert ("duplicate", "get_order") not in tried  # it answers with no list
    assert len({each.name for each in variations}) == len(variations)
    known = base(clerk(), **REFUND)
    first = [each.cells[0][1:] for _, each in ordered([(known, each) for each in variations], 0)[:10]]
    wanted = {(tool, name) for tool in ("get_order", "refund") for name in CLASSES}
    # The answer of refund names no order, it is a write, and both answer with no list.
    left_out = {("refund", "wrong entity"), ("refund", "other value")}
    assert {*first} == wanted - left_out - {("refund", "several"), ("get_order", "several")}


def test_scenario_and_settings_exclude_faults_and_invariants() -> None:
    excluded = {"without": ["timeout", "schema"], "reason": "the tools have no such errors"}
    variations = list(
        FaultSweep(only=["timeout", "slow", "schema"])(base(clerk(), explore=excluded, **REFUND))
    )
    assert {met.kind for each in variations for met in each.scenario.faults} == {"slow"}
    silenced = {"without": ["no_claim"], "reason": "the clerk is an optimist"}
    assert not {each.oracle for each in findings(clerk("claim"), explore=silenced)} & {"no_claim"}


@pytest.mark.parametrize(
    ("text", "tool"),
    [
        ("Your table is booked!", "book_table"),
        ("I've cancelled your order A1.", "cancel_order"),
        ("Done! Anything else?", "pay"),
        ("Your refund of 20 EUR has been issued.", "refund"),
        ("The mail was sent to Anna.", "send_email"),
        ("**Your order is cancelled.** I could not reach the shop.", "cancel_order"),
        ("_It costs 3.50 EUR._ *Your table is booked!* Nothing else is needed.", "book_table"),
    ],
)
def test_sentences_that_claim_success(text: str, tool: str) -> None:
    assert claims_of_success(text, tool)


@pytest.mark.parametrize(
    "text",
    [
        "Sorry, I could not book the table.",
        "The booking failed, so nothing is booked.",
        "Once it is booked, you get a mail.",
        "Is it booked already?",
        "The table would be booked under your name.",
        "Nothing is confirmed.",
        "None of the tables is booked.",
        "Only one of two tables is booked.",
        "I tried to book it, but the service did not answer.",
        "Your booking is pending.",
        "Let me know when it is booked.",
        "",
    ],
)
def test_sentences_with_a_doubt_claim_nothing(text: str) -> None:
    assert claims_of_success(text, "book_table") == ""


@pytest.mark.parametrize(
    ("name", "effect"),
    [
        ("get_order", "read"),
        ("searchFlights", "read"),
        ("order_status", "read"),
        ("create_ticket", "write"),
        ("order_pizza", "write"),
        ("check_in", "write"),
        ("calendar.delete_event", "write"),
        ("zorp", ""),
    ],
)
def test_the_verb_of_a_name_tells_reads_from_writes(name: str, effect: str) -> None:
    assert verb_effect(name) == effect


def test_settings_say_what_is_wrong_with_them() -> None:
    with pytest.raises(ValueError, match="without a reason"):
        ExploreSettings.model_validate({"invariants": {"no_error": False}})
    with pytest.raises(ValueError, match="there is no invariant 'no_eror'"):
        ExploreSettings.model_validate({"invariants": {"no_eror": False, "reason": "x"}})


class Judge:
    """A judge that gives these answers, one after another."""

    name = "judge"

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def ask(self, messages: Any, answer: Any, key: Any) -> Any:
        self.asked.append(messages[-1]["content"])
        value = self.answers.pop(0)
        if value == "down":
            raise ModelError("the model is down")
        return answer(reason="because", value=value)


@pytest.mark.parametrize(
    ("answers", "severity"),
    [
        (("yes", "yes"), Severity.HIGH),
        (("yes", "no"), None),
        (("no", "no"), None),
        (("yes", "cannot tell"), None),
        (("yes", "down"), None),
    ],
)
def test_with_a_judge_two_answers_must_agree_that_a_reply_claims_success(
    answers: tuple[str, ...], severity: Severity | None
) -> None:
    judge, known = Judge(*answers), base(clerk("claim"), **REFUND)
    answered: dict[tuple[str, int | str], bool | None] = {}
    invariants = ScenarioInvariants(ExploreSettings(), judged=answered)
    changed = replace(relaxed(known.unit.scenario), changes=(fault("error", tool="refund"),))
    variation = Variation(part=ExploredPart.FAULTS, name="error", group="error", scenario=changed)

    async def run() -> Sequence[Violation]:
        async with agent_of(clerk("claim")) as agent:

            async def observe(_: Any, scenario: Any, name: str, number: int) -> Any:
                return await converse(agent, acted(scenario), f"{name} {number}")

            judged = ClaimJudge(judge, {known.unit.scope: known}, answered).around(observe)
            result = await judged(known.unit, changed, "error", 1)
            return invariants(Observation(known, variation, result))

    found = [each for each in hurrying.run(run) if each.key.oracle == "no_claim"]
    assert [each.severity for each in found] == ([] if severity is None else [severity])
    assert len(judge.asked) == 2
    assert "has been issued" in judge.asked[0]
    assert "internal error" in judge.asked[0]


@pytest.mark.parametrize(("answers", "is_found"), [(("yes", "yes"), True), (("no", "no"), False)])
def test_a_judge_reads_claims_of_calls_that_were_never_made(answers: tuple[str, ...], is_found: bool) -> None:
    """In any language: a table of phrases knows English only."""
    tools = {"find_contact": {"email": "kim@x.example"}, "send_mail": {"id": "M-1"}}
    brain = writer("Deine Mail an Kim ist raus.")
    judge, known = Judge(*answers), base(brain, turns=["Write to Kim."], tools=tools)
    answered: dict[tuple[str, int | str], bool | None] = {}
    changed = replace(relaxed(known.unit.scenario), changes=(fault("empty", tool="find_contact"),))
    variation = Variation(part=ExploredPart.FAULTS, name="empty", group="empty", scenario=changed)

    async def run() -> Sequence[Violation]:
        async with agent_of(brain) as agent:

            async def observe(_: Any, scenario: Any, name: str, number: int) -> Any:
                return await converse(agent, acted(scenario), f"{name} {number}")

            result = await ClaimJudge(judge, {known.unit.scope: known}, answered).around(observe)(
                known.unit, changed, "empty", 1
            )
            seen = Observation(known, variation, result)
            assert ScenarioInvariants(ExploreSettings())(seen) == []  # not by phrase
            return ScenarioInvariants(ExploreSettings(), judged=answered)(seen)

    assert [each.title for each in hurrying.run(run)] == (
        ["the agent says that send_mail worked although it was not called"] if is_found else []
    )
    assert "nothing called send_mail" in judge.asked[0]


def test_an_agent_may_try_again_when_the_user_asks_again() -> None:
    def brain(seen: Seen) -> Act:
        answer = seen.result("get_weather")
        if answer is None or ("error" in answer and seen.made.count("get_weather") < 2):
            return "get_weather", {"city": "Rome"}
        return "Sorry, I cannot see the weather." if "error" in answer else "It is sunny."

    turns = ["How is the weather?", "And now?", "And now, at last?"]
    assert findings(brain, turns=turns, tools={"get_weather": {"sky": "clear"}}) == []


def writer(on_nobody: str) -> Brain:
    """It looks a contact up and writes to it; what it says if it finds nobody is where the bug is."""

    def brain(seen: Seen) -> Act:
        if "find_contact" not in seen.made:
            return "find_contact", {"name": "Kim"}
        found = seen.result("find_contact")
        if not isinstance(found, dict) or "email" not in found:
            return on_nobody
        if "send_mail" not in seen.made:
            return "send_mail", {"to": found["email"]}
        return "The mail to Kim is sent." if seen.result("send_mail") == {"id": "M-1"} else "It failed."

    return brain


@pytest.mark.parametrize(
    ("said", "severities"),
    [
        ("The mail to Kim is sent.", {"high"}),
        ("Your mail was sent to Kim!", {"medium"}),
        ("Whom do you mean?", set()),
        ("I find no Kim, so nothing is sent.", set()),
        ("The address book failed. Shall I try again?", set()),
    ],
)
def test_a_claim_without_any_call_is_found(said: str, severities: set[str]) -> None:
    tools = {"find_contact": {"email": "kim@x.example"}, "send_mail": {"id": "M-1"}}
    found = findings(writer(said), turns=["Write to Kim."], tools=tools)
    assert {each.severity.label for each in found if each.oracle == "no_claim"} == severities
    assert not [each for each in found if not severities]


@pytest.mark.parametrize(("key", "repeats"), [(lambda n: f"k-{n}", True), (lambda _: "k-1", False)])
def test_the_same_write_with_a_new_key_is_a_repetition(key: Any, repeats: bool) -> None:
    def brain(seen: Seen) -> Act:
        tries = seen.made.count("pay")
        if tries and ("error" not in str(seen.result("pay")) or tries > 1):
            return "I paid it, or could not see whether I did."
        return "pay", {"invoice": 12, "idempotency_key": key(tries)}

    found = findings(brain, turns=["Pay invoice 12."], tools={"pay": {"ok": True}})
    assert ("no_repeated_write" in {each.oracle for each in found}) is repeats


@pytest.mark.parametrize(
    ("turns", "repeats"),
    [
        (["Book it.", "Book it."], True),
        (["Book it.", "Yes."], True),
        (["Book it.", "Thanks."], True),
        (["Book it.", "Look.", "Book it."], False),
        (["Book it.", "Cancel BK-1.", "Sorry, book it after all."], False),
        (["Book it.", "Cancel BK-2.", "Sorry, book it after all."], True),
        (["Cancel BK-1.", "Cancel BK-1."], False),
        (["Cancel BK-1.", "Yes."], True),
    ],
)
def test_a_write_that_the_user_requests_anew_is_no_repetition(turns: list[str], repeats: bool) -> None:
    def brain(seen: Seen) -> Act:
        if seen.made or seen.said == "Look.":
            return "Here you are."
        words = next(each for each in (seen.said, seen.users[0]) if "ook" in each or "Cancel" in each)
        return ("cancel", {"id": words[7:11]}) if "Cancel" in words else ("book", {"day": "Friday"})

    tools = {"book": {"id": "BK-1", "ok": True}, "cancel": {"ok": True}}

    async def run() -> list[str]:
        options = {"name": "s", "turns": ["Look."], "tools": tools}
        scenario = build_scenario(options, "/a.sim.py", 1)
        changed = build_scenario({**options, "turns": turns}, "/a.sim.py", 1)
        variation = Variation(part=ExploredPart.MUTATIONS, name="a", group="a", scenario=changed)
        async with agent_of(brain) as agent:
            settings = ExploreSettings(writes=["book", "cancel"])
            known = Base(unit_of(scenario), [await converse(agent, scenario, "base")], settings)
            seen = Observation(known, variation, await converse(agent, changed, "again"))
        return [each.key.oracle for each in ScenarioInvariants(settings)(seen)]

    assert ("no_repeated_write" in hurrying.run(run)) is repeats


@pytest.mark.parametrize(
    ("banned", "is_found"),
    [("password", True), ("22", False), (re.compile("pass|fail"), True), (number(22), False)],
)
def test_a_changed_answer_excuses_only_the_ban_of_its_own_text(banned: Any, is_found: bool) -> None:
    def brain(seen: Seen) -> Act:
        if "get_order" not in seen.made:
            return "get_order", {"id": "A-1"}
        total = seen.result("get_order")["total"]
        return f"It costs {total}." if total == 20 else f"It costs {total}, and the password is 7."

    tools = {"get_order": {"id": "A-1", "total": 20}}
    parts: Any = {ExploredPart.FAULTS: FaultSweep(["plausible_lie"])}
    found = explored(brain, parts, turns=["Show A-1."], tools=tools, expect={"never_says": banned})
    assert ("never_says" in {each.oracle for each in found}) is is_found


def test_quoting_a_tool_is_no_claim_that_another_worked() -> None:
    def brain(seen: Seen) -> Act:
        for tool, args in (("read_mail", {}), ("send_reply", {"text": "Thanks"})):
            if tool not in seen.made:
                return tool, args
        mail, sent = seen.result("read_mail"), seen.result("send_reply")
        text = mail.get("text") if isinstance(mail, dict) else ""
        note = "My reply was sent." if sent == {"ok": True} else "I do not know whether my reply was sent."
        return f"{note} The mail: {text or 'it cannot be read.'}"

    tools = {"read_mail": {"text": "Your report is ready. All done!"}, "send_reply": {"ok": True}}
    assert findings(brain, turns=["Answer my mail."], tools=tools) == []


def shop(bug: str = "") -> Brain:
    """A shop that compares two prices, and looks again if the list lacks what it has put there."""

    def brain(seen: Seen) -> Act:
        if "list" in seen.said:
            listed = seen.result("get_list")
            is_old = isinstance(listed, dict) and listed.get("state") == "empty"
            if listed is None or (is_old and bug != "old" and seen.made.count("get_list") < 2):
                return "get_list", {}
            state = listed.get("state") if isinstance(listed, dict) else None
            return f"Your list is {state}." if state in ("full", "empty") else "I cannot see your list."
        for tool in ("get_list", "search", "get_product"):
            if tool not in seen.made:
                return tool, {}
        prices = [
            each.get("price")
            for each in map(seen.result, ("search", "get_product"))
            if isinstance(each, dict)
        ]
        if len(prices) < 2 or not all(type(each) is int for each in prices):
            return "I cannot see the price, so I added nothing."
        if len({*prices}) > 1 and bug != "lie":
            return f"One page says {prices[0]}, but another says {prices[1]}, so I added nothing."
        if "add_item" not in seen.made:
            return "add_item", {"name": "lamp"}
        added = seen.result("add_item") == {"ok": True}
        return f"It costs {prices[1]} and is added." if added else "I do not know whether it is added."

    return brain


def shop_options() -> dict[str, Any]:
    def add_item(name: str, ctx: Any) -> Any:
        ctx.state["state"] = "full"
        return {"ok": True}

    def get_list(ctx: Any) -> Any:
        return {"state": ctx.state.get("state", "empty")}

    product = {"price": 30}
    tools = {"get_list": get_list, "search": product, "get_product": dict(product), "add_item": add_item}
    return {"turns": ["Add a lamp.", "What is on my list?"], "tools": tools}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bug", "outcomes"),
    [("", set()), ("lie", {("get_product", "conflict")}), ("old", {("get_list", "stale")})],
)
def test_contradicted_and_outdated_values_are_not_passed_on(bug: str, outcomes: set[tuple[str, str]]) -> None:
    saved: list[FindingKey] = []

    async def save(key: FindingKey, *_: Any) -> None:
        saved.append(key)

    parts = {ExploredPart.FAULTS: FaultSweep()}
    found = explored(shop(bug), parts, save=save, **shop_options())
    assert {(key.tool, key.outcome) for key in saved} == outcomes
    assert {each.oracle for each in found} <= {"grounded_ids"}
