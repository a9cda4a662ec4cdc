"""`date`: the date and time that simulated users, judges and `{{date}}` see."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest
from builders import turn

from agentest import ScenarioError, scenario
from agentest.config.file import load
from agentest.conversation.user_prompts import user_prompt
from agentest.judging.judge_input import turn_context
from agentest.judging.judgement import AgentBackground, background_of
from agentest.judging.questions import SYSTEM
from agentest.scenarios.model import Scenario
from agentest.support.dates import mask_moments, prompt_date
from agentest.support.errors import ConfigError
from agentest.testing import ScriptedAgent, ScriptedModel, run_scenarios

MAY = "2024-05-15"
NOON = "2024-05-15T12:00:00+02:00"


@pytest.mark.parametrize(
    ("given", "known"),
    [
        (MAY, MAY),
        ("2024-05-15 12:00", "2024-05-15T12:00:00"),
        (NOON, NOON),
        ("2024-05-15T10:00:00Z", "2024-05-15T10:00:00+00:00"),
        (datetime.date(2024, 5, 15), MAY),
        (datetime.datetime(2024, 5, 15, 12), "2024-05-15T12:00:00"),
    ],
)
def test_valid_dates(given: Any, known: str) -> None:
    """A scenario takes ISO 8601 text and Python dates."""
    assert scenario("s", goal="Book.", date=given).date == known


@pytest.mark.parametrize(
    "given", ["15.05.2024", "2024-13-01", "today", "", "2024-W20", "20240515", 20240515, True]
)
def test_other_dates_are_refused_with_file_and_key(given: Any, tmp_path: Path) -> None:
    """Scenario and configuration errors have the key, the place and what is expected."""
    with pytest.raises(
        ScenarioError, match=r"test_date\.py:\d+: scenario 's': date: expected a date or date-time"
    ):
        scenario("s", goal="Book.", date=given)
    file = tmp_path / "agentest.config.yaml"
    file.write_text(
        json.dumps({"agent": {"endpoint": "http://localhost:1"}, "date": given}), encoding="utf-8"
    )
    with pytest.raises(ConfigError, match=r"(?s)agentest\.config\.yaml.*date.*ISO 8601, like 2024-05-15"):
        load(file, {})


def test_the_configuration_reads_dates_of_yaml(tmp_path: Path) -> None:
    """YAML turns `2024-05-15` into a date, which counts like the text."""
    file = tmp_path / "agentest.config.yaml"
    for written, known in ((MAY, MAY), ("2024-05-15T12:00:00", "2024-05-15T12:00:00")):
        file.write_text(f"agent: {{endpoint: 'http://localhost:1'}}\ndate: {written}\n", encoding="utf-8")
        assert load(file, {}).config.date == known


def texts(model: ScriptedModel, role: str) -> list[str]:
    return [
        "\n".join(message["content"] for message in request.messages)
        for request in model.requests
        if request.key.role == role
    ]


def run(made: Scenario, **config: Any) -> tuple[ScriptedModel, ScriptedAgent]:
    model = ScriptedModel(user=["Hello"])
    with ScriptedAgent(["Hi."] * 2) as agent:
        body = {"when": "{{date}}", "said": "Today is {{date}}."}
        settings = {"endpoint": agent.endpoint, "body": body}
        run_scenarios([made], agent=settings, model=model, conversations_per_scenario=1, **config)
    return model, agent


def test_users_judges_and_requests_see_the_date() -> None:
    """The scenario's date takes precedence over the configuration's everywhere."""
    model, agent = run(scenario("s", goal="Book.", date=MAY), date="2001-01-01")
    assert all(f"For you it is now {MAY} (Wednesday)." in text for text in texts(model, "user"))
    of_user, *of_agent = sorted(texts(model, "judge"), key=lambda text: "user_instructions" not in text)
    assert f"For you it is now {MAY} (Wednesday)." in of_user
    assert all(f'<data name="date_and_time">\n{MAY} (Wednesday)\n</data>' in text for text in of_agent)
    assert of_agent
    assert "2001" not in "".join([*texts(model, "user"), *texts(model, "judge")])
    assert {request["when"] for request in agent.requests} == {MAY}
    assert {request["said"] for request in agent.requests} == {f"Today is {MAY}."}


def test_the_configurations_date_is_for_scenarios_without_one() -> None:
    """A scenario without a date has the configuration's."""
    model, agent = run(scenario("s", goal="Book."), date=NOON)
    assert all(NOON in text for text in (*texts(model, "user"), *texts(model, "judge")))
    assert {request["when"] for request in agent.requests} == {NOON}


def test_without_a_date_it_is_today() -> None:
    """`{{date}}` is today, users see the current time, and judges the start of the conversation."""
    before = datetime.datetime.now().astimezone().date().isoformat()
    model, agent = run(scenario("s", goal="Book."))
    after = datetime.datetime.now().astimezone().date().isoformat()
    assert {request["when"] for request in agent.requests} <= {before, after}
    for text in (*texts(model, "user"), *texts(model, "judge")):
        assert before in text or after in text


def test_a_persona_may_name_the_date() -> None:
    """If `user_prompt_template` has the placeholder, the date appears only there."""
    made = scenario("s", goal="Book.", date=MAY, user_prompt_template="It is {{date}}. {{goal}}")
    assert user_prompt(made).startswith(f"It is {MAY} (Wednesday). Book.")
    assert user_prompt(made).count(MAY) == 1


def test_a_configured_date_is_part_of_a_recorded_question() -> None:
    """A recording replays on any other day, but not with another configured date."""
    assert mask_moments(prompt_date(NOON)) == prompt_date(NOON)
    assert mask_moments(prompt_date(None, NOON)) == mask_moments(
        prompt_date(None, "2026-01-01T08:00:00+01:00")
    )


def test_instructions_outrank_the_date() -> None:
    """Judges are told that times in instructions or tool results count more than the shown date."""
    ranked = [
        "tool results",
        "the assistant's instructions",
        "shown date",
        "what the user says",
        "user_knowledge",
    ]
    facts = SYSTEM[SYSTEM.index("These are the known facts") :]
    assert sorted(ranked, key=facts.index) == ranked
    assert "state the current date or time, go by that" in facts
    assert "if their dates are long past, that is not a fault" in " ".join(facts.split())
    known = background_of(scenario("s", goal="Book.", date=MAY), AgentBackground(), [turn()])
    assert f"{MAY} (Wednesday)" in "".join(turn_context(known, [turn()]))
