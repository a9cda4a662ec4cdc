"""The fixture `agentest`: scenarios and evaluation sets in the user's own tests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from unittest import SkipTest

import pytest

from agentest.pytest_plugin.fixture import Agentest
from agentest.scenarios.definition import scenario
from agentest.scenarios.model import Scenario
from agentest.support.errors import UsageError
from agentest.testing import ScenarioErrored, ScenarioFailed, ScriptedAgent


@pytest.fixture
def salon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agentest]:
    """The fixture in a project whose agent sends a greeting."""
    monkeypatch.delenv("AGENTEST_MODEL", raising=False)
    monkeypatch.chdir(tmp_path)
    with ScriptedAgent(["Hello."], name="salon") as agent:
        path = tmp_path / "agentest.config.yaml"
        path.write_text(json.dumps({"agent": {"endpoint": agent.endpoint, "name": "salon"}}))
        yield Agentest(path)


def says(text: str, name: str = "greets", **options: object) -> Scenario:
    return scenario(name, turns=[{"user_message": "Hi", "expect": {"contains": text}}], **options)


def test_a_run_is_checked(salon: Agentest) -> None:
    """`check` is silent if all passed; otherwise its error has the text of the console."""
    salon.run(says("Hello")).check()
    with pytest.raises(ScenarioFailed) as failed:
        salon.run(says("Hello"), says("Goodbye", "parts")).check()
    assert isinstance(failed.value, AssertionError)
    rows = str(failed.value).split("\n")
    assert rows[0] == "1 of 2 scenarios did not pass"
    assert rows[1].startswith("✗ failed   parts  ")
    assert "contains: expected 'Goodbye' in the reply" in rows[2]
    assert failed.value.result.scenarios[0].name == "greets"


def test_errored_scenarios_raise_no_assertion_error(salon: Agentest) -> None:
    """A test may expect an AssertionError, so an errored scenario raises another; a skipped one skips."""
    with pytest.raises(ScenarioErrored, match="helpfulness has a threshold") as errored:
        salon.run(says("Hello", goal="Be greeted.", thresholds={"helpfulness": 4})).check()
    assert not isinstance(errored.value, AssertionError)
    with pytest.raises(SkipTest, match="not yet"):
        salon.run(says("Hello", skip="not yet")).check()


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_async_code_awaits_a_run(salon: Agentest) -> None:
    """In a running event loop the error of `run` says what to await, and that works."""
    with pytest.raises(UsageError, match=r"`await agentest\.run_async\(…\)` there"):
        salon.run(says("Hello"))
    with pytest.raises(UsageError, match=r"`await agentest\.eval_async\(…\)` there"):
        salon.eval("cases.test.json")
    (await salon.run_async(says("Hello"))).check()


def test_an_agent_of_the_test_is_run(salon: Agentest) -> None:
    """Keywords are those of `run_scenarios`: another agent or other keys, also without configuration."""
    keywords = {"agent": lambda messages, ctx: "Goodbye."}
    salon.run(says("Goodbye"), conversations_per_scenario=2, **keywords).check()
    result = Agentest().run(says("Goodbye"), **keywords)
    assert result.scenarios[0].verdict.passed
    with pytest.raises(UsageError, match="which agent"):
        Agentest().run(says("Hello"))
