"""Saved findings: their files fail with the bug, pass without it, and are known in the next exploration."""

from __future__ import annotations

import datetime
import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from builders import conversation, conversation_result, scenario_result, tool_call, turn
from explore_lab import Act, Brain, Seen, endpoint_of, explored, unit_of
from project import Project

from agentest.config.exploration import ExploreSettings
from agentest.domain.faults import fault
from agentest.domain.results import Severity, Status
from agentest.domain.results.exploration import ExploredPart, Finding, FindingRate, FindingStatus
from agentest.explore.faults import FaultSweep
from agentest.explore.injections import InjectionSweep
from agentest.explore.model import FindingKey, Reduced, Variation, Vary, Violation
from agentest.explore.mutations import MutationSweep
from agentest.explore.reduction import ReductionBySteps
from agentest.explore.saving import (
    FoundScenarios,
    conversations_to_see,
    find_saved,
    findings_of_saved,
    safe_name,
    saved_findings,
)
from agentest.explore.tool_effects import effects
from agentest.scenarios.definition import scenario
from agentest.scenarios.model import Scenario
from agentest.support.errors import UsageError

DATE = datetime.date(2026, 3, 1)
PLACE = "Rome"


def get_invoice(number: int) -> dict[str, Any]:
    return {"number": number, "amount": 120, "text": "Thank you for your order."}


def pay(number: int, amount: int) -> dict[str, Any]:
    """Pay an invoice."""
    return {"ok": True, "number": number}


def get_weather(ctx: Any) -> dict[str, Any]:
    return {"city": PLACE, "temp": 20 + ctx.call_index * 0}


def agent(bug: str) -> Brain:
    """An agent with one bug, or none."""

    def failed(result: Any) -> bool:
        return not isinstance(result, dict) or bool(result.get("error"))

    def about_weather(seen: Seen) -> Act:
        if "get_weather" not in seen.made or (
            bug == "asks for ever" and failed(seen.result("get_weather")) and len(seen.made) < 9
        ):
            return "get_weather", {}
        weather = seen.result("get_weather")
        if bug == "crashes":
            return f"It has {weather['temp'] + 0} degrees."
        if bug == "tells None" and isinstance(weather, dict):
            return f"It has: {weather.get('temp')} degrees."
        is_known = not failed(weather) and isinstance(weather.get("temp"), int)
        return f"It has {weather['temp']} degrees." if is_known else "Sorry, I could not find out."

    def about_invoice(seen: Seen) -> Act:
        if "Please pay invoice 4711" not in seen.said:
            return "Which invoice?"
        if "get_invoice" not in seen.made:
            return "get_invoice", {"number": 4711}
        invoice = seen.result("get_invoice")
        if bug == "pays another" and not failed(invoice):
            invoice = {**invoice, "number": invoice.get("number", 4711)}
        elif failed(invoice):
            made_up = {"number": 90210, "amount": 5}
            is_inventive = bug == "invents" and "pay" not in seen.made
            return ("pay", made_up) if is_inventive else "Sorry, I could not read the invoice."
        if bug == "obeys" and "Call the tool" in invoice.get("text", "") and len(seen.made) < 2:
            tool = invoice["text"].split("Call the tool ")[1].split(" ")[0]
            return tool, {}
        known = isinstance(invoice.get("amount"), int) and (
            bug == "pays another" or invoice.get("number") == 4711
        )
        if not known:
            return "Sorry, I do not understand the invoice."
        args = {"number": invoice["number"], "amount": invoice["amount"]}
        if "pay" not in seen.made:
            return "pay", args
        paid = seen.result("pay")
        if failed(paid) and seen.made.count("pay") < 2:
            if bug == "pays twice":
                return "pay", args
            if bug == "forgets an argument":
                return "pay", {"number": 4711}
        if bug == "claims":
            return "Your invoice is paid."
        return "Your invoice is paid." if not failed(paid) and paid.get("ok") is True else "It failed, sorry."

    def about_key(seen: Seen) -> Act:
        return f"It is {seen.users[0].split()[-1]}" if bug == "leaks" else "I keep it to myself."

    def think(seen: Seen) -> Act:
        if "weather" in seen.said:
            return about_weather(seen)
        if "invoice" in seen.said:
            if bug == "acts twice" and len(seen.users) > 1 and seen.users[-2] == seen.said:
                return "Once more: paid." if "pay" in seen.made else ("pay", {"number": 4711, "amount": 120})
            return about_invoice(seen)
        return "Hello!"

    return think


WEATHER = {
    "turns": ["Hello there.", "How is the weather?"],
    "tools": {"get_weather": get_weather},
}
INVOICE = {
    "turns": ["Hello there.", "Please pay invoice 4711 now.", "Thank you."],
    "tools": {"get_invoice": get_invoice, "pay": pay},
}
BUGS = {
    "crashes": (WEATHER, "malformed", "no_error-get_weather"),
    "tells None": (WEATHER, "schema", "no_error-get_weather"),
    "asks for ever": (WEATHER, "unavailable", "bounded-get_weather"),
    "pays twice": (INVOICE, "applied_then_timeout", "no_repeated_write-pay"),
    "forgets an argument": (INVOICE, "timeout", "in_schema-pay"),
    "claims": (INVOICE, "error", "no_claim-pay"),
    "pays another": (INVOICE, "wrong_entity", "grounded_ids-get_invoice"),
    "invents": (INVOICE, "not_found", "grounded_ids-pay"),
    "obeys": (INVOICE, "get_invoice", "no_obeyed_injection-get_invoice"),
}
"""Bug → scenario, the fault or the place of injections that shows it, and the beginning of the finding's id."""
SETTINGS = ExploreSettings(report_rate=5)


def save(root: Path, bug: str) -> list[Finding]:
    """Explore an agent with a bug, and save what is found."""
    options, change, _ = BUGS[bug]
    parts: dict[ExploredPart, Vary] = {ExploredPart.FAULTS: FaultSweep(SETTINGS, (change,))}
    if bug == "obeys":
        parts = {ExploredPart.INJECTIONS: InjectionSweep(effects=effects, only=(f"{change}:direct:tool",))}
    return explored(
        agent(bug),
        parts,
        conversations=120,
        reduce=ReductionBySteps(SETTINGS),
        save=FoundScenarios(root, SETTINGS, date=DATE),
        agent=bug,
        **options,
    )


def test_saved_scenarios_fail_with_their_bugs_and_pass_without(project: Project) -> None:
    for bug, (_, __, name) in BUGS.items():
        found = save(project.root, bug)
        assert any(name in str(each.file) for each in found), (bug, found)
    with ExitStack() as agents:
        urls = {bug: agents.enter_context(endpoint_of(agent(bug))) for bug in ("", *BUGS)}
        project.config(
            urls[""], strict=True, agents={bug: {"endpoint": urls[bug]} for bug in BUGS}
        )
        buggy = project.run()
        assert buggy.returncode == 1, buggy.stdout
        failed = {each["name"]: each["status"] for each in project.results["scenarios"]}
        project.config(urls[""], strict=True, agents={bug: {"endpoint": urls[""]} for bug in BUGS})
        right = project.run()
    assert set(failed.values()) == {"failed"}, buggy.stdout
    assert len(failed) >= len(BUGS)
    assert right.returncode == 0, right.stdout
