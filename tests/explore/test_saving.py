"""Saved findings: their files fail with the bug, pass without it, and are known in the next exploration."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from dataclasses import replace
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
from agentest.explore.model import FindingKey, Reduced, Variation, Violation
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
    "crashes": (WEATHER, "no_error-get_weather"),
    "tells None": (WEATHER, "no_error-get_weather"),
    "asks for ever": (WEATHER, "bounded-get_weather"),
    "pays twice": (INVOICE, "no_repeated_write-pay"),
    "forgets an argument": (INVOICE, "in_schema-pay"),
    "claims": (INVOICE, "no_claim-pay"),
    "pays another": (INVOICE, "grounded_ids-get_invoice"),
    "invents": (INVOICE, "grounded_ids-pay"),
    "obeys": (INVOICE, "no_obeyed_injection-get_invoice"),
}


def save(root: Path, bug: str) -> list[Finding]:
    """Explore an agent with a bug, and save what is found."""
    settings = ExploreSettings()
    options, _ = BUGS[bug]
    faults = {ExploredPart.FAULTS: FaultSweep(settings)}
    injections = {ExploredPart.INJECTIONS: InjectionSweep(effects=effects)}
    return explored(
        agent(bug),
        injections if bug == "obeys" else faults,
        reduce=ReductionBySteps(settings),
        save=FoundScenarios(root, settings, date=DATE),
        **options,
    )


@pytest.mark.parametrize("bug", BUGS)
def test_a_saved_scenario_fails_with_the_bug_and_passes_without(bug: str, project: Project) -> None:
    found = save(project.root, bug)
    files = [each.file for each in found if each.file]
    assert any(BUGS[bug][1] in str(file) for file in files), found
    with endpoint_of(agent(bug)) as url:
        project.config(url, strict=True)
        done = project.run()
    assert done.returncode == 1, done.stdout
    assert {each["status"] for each in project.results["scenarios"]} == {"failed"}
    with endpoint_of(agent("")) as url:
        project.config(url, strict=True)
        done = project.run()
    assert done.returncode == 0, done.stdout
