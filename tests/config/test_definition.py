"""`define_config` checks a configuration in Python, and knows the type of every key."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import get_type_hints

import pytest

from agentest import Config, ConfigError, ConfigSettings, Runner, define_config, scenario
from agentest.config.file import RunSettings, load
from agentest.testing import ScriptedAgent, arun_scenarios, run_scenarios

AGENT = {"endpoint": "http://127.0.0.1:9/v1/chat/completions"}


def test_it_knows_every_key() -> None:
    """If it lacked a key, mypy would refuse a configuration that runs."""
    assert ConfigSettings.__annotations__.keys() == Config.model_fields.keys()


def test_it_returns_a_checked_configuration() -> None:
    """Keys have the types and the defaults of a file, in either spelling."""
    config = define_config(agent=AGENT, max_turns=4, judge={"samples": 3})
    assert (config.max_turns, config.judge.samples, config.concurrency) == (4, 3, 20)
    assert config == Config.model_validate({"agent": AGENT, "maxTurns": 4, "judge": {"samples": 3}})


def test_an_error_names_the_key() -> None:
    """This also holds outside of a file."""
    assert define_config({"agent": AGENT, "maxTurns": 4}, concurrency=2).max_turns == 4
    with pytest.raises(ConfigError, match="define_config: max_turns: found 0; "):
        define_config(agent=AGENT, max_turns=0)


def test_an_error_in_a_file_names_the_file_and_the_line(tmp_path: Path) -> None:
    """The line is that of the call in the user's file."""
    path = tmp_path / "agentest.config.py"
    path.write_text(
        f"from agentest import define_config\n\nconfig = define_config(agent={AGENT}, max_turn=3)\n"
    )
    with pytest.raises(ConfigError) as refused:
        load(path, {})
    assert str(refused.value) == f"{path}:3: max_turn: unknown key `max_turn`; did you mean `max_turns`?"


def test_a_run_takes_it(tmp_path: Path) -> None:
    """As the configuration of a runner, and as that of a file."""
    greets = scenario("greets", turns=["hi"], expect={"says": "hello"})
    with ScriptedAgent(["hello"]) as agent:
        config = define_config(agent={"endpoint": agent.endpoint}, output_dir=str(tmp_path))
        result = Runner(config=config).run(greets)
    assert result.scenarios[0].verdict.passed


@pytest.mark.parametrize("function", [run_scenarios, arun_scenarios, Runner.__init__])
def test_a_runner_takes_the_other_keys(function: Callable[..., object]) -> None:
    """Each key of a run has a type, and so have `agent`, `model` and the other parameters of a runner."""
    hints = get_type_hints(function)
    keywords = hints.pop("settings", None) or hints.pop("arguments")
    typed = {*hints, *keywords.__args__[0].__annotations__}
    assert typed >= {"agent", "config", "model", "options", "on_event", *RunSettings.__annotations__}
