"""Ways from one view to the next, as somebody goes them who has a red run before them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import page_at
import sample_run
from playwright.sync_api import expect


def test_from_a_run_to_what_follows(page: Any, tmp_path: Path) -> None:
    """A run leads to its comparison, and is run again; so is the scenario of a conversation."""
    run = sample_run.sample_run()
    _, latest = page_at.keep_runs(tmp_path, [run, run])
    asked: list[Any] = []

    def take(route: Any) -> None:
        if route.request.method != "POST":
            return route.fallback()
        asked.append(json.loads(route.request.post_data))
        return route.fulfill(status=201, json={"id": "1", "title": "", "state": "waiting"})

    page.route("**/api/jobs", take)
    with page_at.served(tmp_path) as first:
        page.goto(f"{first}#/run?of={latest}")
        page.get_by_role("button", name="Run again what failed").click()
        page.get_by_role("link", name="Compare with the run before").click()
        expect(page.get_by_role("heading", name="Scenarios")).to_be_visible()
        expect(page).to_have_url(re.compile(f"compare.*new={latest}"))
        name = sample_run.wrong_calls().name
        page.goto(f"{first}#/conversation?of={latest}&scenario={name}&agent=booking")
        page.get_by_role("button", name="Run it again").click()
        expect(page.get_by_role("heading", name="Runs")).to_be_visible()
        page.close()  # before its server ends, for which it would ask again and again
    assert asked == [{"kind": "rerun", "run": latest}, {"kind": "run", "names": [name]}]
