"""The plan of a run: filters, agents, conversations, metrics and thresholds, resolved before it starts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentest import ConversationMetric, QuantitativeMetric
from agentest.config.config import Config
from agentest.config.file import LoadedConfig
from agentest.domain.metrics import BUILTIN
from agentest.domain.results import ScenarioResult, Status
from agentest.plugin import Plugin, PluginRegistry
from agentest.runner.plan import Options, Plan, Unit, load_custom_metrics, make_plan, slugify
from agentest.scenarios.discovery import BrokenFile, DiscoveredScenarios
from agentest.scenarios.model import Scenario
from agentest.support.errors import ConfigError

ROOT = Path("/project")


class Politeness(QuantitativeMetric):
    """A custom metric."""

    def score(self, _: Any) -> float:
        return 1.0


class Helpfulness(Politeness):
    """One with the name of a built-in metric."""


class PassRate(Politeness):
    """One with the name of a threshold that is not on a metric."""


class Needy(ConversationMetric):
    """One whose constructor needs an argument."""

    def __init__(self, what: int) -> None:
        self.what = what

    def score(self, _: Any) -> float:
        return 1.0


def made(name: str = "s", line: int = 1, file: str = "a.sim.py", **more: Any) -> Scenario:
    return Scenario(**{"name": name, "file": str(ROOT / file), "line": line, "goal": "g", **more})


def scripted(name: str = "s", turns: int = 2, **more: Any) -> Scenario:
    from agentest.scenarios.model import ScriptedTurn

    return made(name, turns=(ScriptedTurn("hi"),) * turns, **{"goal": "", **more})


def plan(
    scenarios: Sequence[Scenario] = (),
    broken: Sequence[BrokenFile] = (),
    options: Options | None = None,
    **config: Any,
) -> Plan:
    checked = Config.model_validate({"agent": {"endpoint": "http://h"}, **config})
    discovered = DiscoveredScenarios(tuple(scenarios), tuple(broken))
    lines = {("metrics",): 2, ("thresholds",): 3, ("custom_metrics",): 4}
    loaded = LoadedConfig(checked, Path("agentest.config.yaml"), lines=lines)
    return make_plan(loaded, discovered, options or Options(), ROOT)


def unit(scenario: Scenario, options: Options | None = None, **config: Any) -> Unit:
    [only] = plan([scenario], options=options, **config).units
    return only


def errored(scenario: Scenario, **config: Any) -> str:
    """Return the error message of a scenario that cannot run."""
    [entry] = plan([scenario], **config).entries
    assert isinstance(entry, ScenarioResult)
    assert entry.verdict.status is Status.ERRORED
    return entry.verdict.reasons[0].message


def ran(made_plan: Plan) -> list[tuple[str, str]]:
    return [(entry.scenario.name, entry.agent) for entry in made_plan.units]


# Filters

MANY = [
    made("books a slot", 1, tags=("booking", "happy")),
    made("cancels a SLOT", 2, tags=("cancel",)),
    made("asks the way", 3, file="b.sim.py"),
]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (Options(), ["books a slot", "cancels a SLOT", "asks the way"]),
        (Options(scenarios=("slot",)), ["books a slot", "cancels a SLOT"]),
        (Options(scenarios=("BOOKS", "way")), ["books a slot", "asks the way"]),
        (Options(scenarios=("nothing",)), []),
        (Options(tags=("booking",)), ["books a slot"]),
        (Options(tags=("cancel", "happy")), ["books a slot", "cancels a SLOT"]),
        (Options(tags=("book",)), []),
        (Options(scenarios=("slot",), tags=("cancel",)), ["cancels a SLOT"]),
        (Options(scenarios=("",)), ["books a slot", "cancels a SLOT", "asks the way"]),
    ],
)
def test_filters(options: Options, names: list[str]) -> None:
    """Names match by substring in any case, tags exactly; a scenario must pass both filters."""
    assert [name for name, _ in ran(plan(MANY, options=options))] == names


def test_order() -> None:
    """Entries are sorted by file and line; those of one line, as from a loop, keep their order."""
    loop = [made(name, 4) for name in ("z", "y")]
    both = plan([*loop, made("first", 2), made("last", 1, file="b.sim.py")], compare=[{"name": "a"}])
    expected = ["first", "z", "y", "last"]
    assert ran(both) == [(name, agent) for name in expected for agent in ("agent", "a")]


# Conversations and turns


@pytest.mark.parametrize(
    ("scenario", "options", "conversations"),
    [
        (made(), Options(), 5),
        (made(conversations_per_scenario=2), Options(), 2),
        (made(conversations_per_scenario=2), Options(conversations=7), 7),
        (scripted(), Options(), 1),
        (scripted(goal="g"), Options(), 1),
        (scripted(conversations_per_scenario=2), Options(), 2),
        (scripted(), Options(conversations=7), 7),
    ],
)
def test_conversations(scenario: Scenario, options: Options, conversations: int) -> None:
    """--conversations comes before the scenario's number, then the configured one; scripts have 1."""
    assert unit(scenario, options, conversations_per_scenario=5).conversations == conversations


def test_turns() -> None:
    """A scenario's limit takes precedence over the configuration's; a script is never cut."""
    assert unit(made(), max_turns=4).max_turns == 4
    assert unit(made(max_turns=2), max_turns=4).max_turns == 2
    assert unit(scripted(turns=9), max_turns=4).max_turns > 9


# Metrics and thresholds


@pytest.mark.parametrize(
    ("own", "configured", "chosen"),
    [
        (None, None, tuple(BUILTIN)),
        (None, ["verbosity", "coherence"], ("coherence", "verbosity")),
        (("helpfulness",), ["verbosity"], ("helpfulness",)),
        ((), ["verbosity"], ()),
        (None, [], ()),
    ],
)
def test_metrics(own: tuple[str, ...] | None, configured: list[str] | None, chosen: tuple[str, ...]) -> None:
    """All eight metrics run unless the scenario or the configuration names fewer."""
    assert unit(made(metrics=own), metrics=configured).metrics == chosen


def test_thresholds_of_the_configuration() -> None:
    """A configured threshold applies to scenarios in which its metric is judged."""
    least = {"helpfulness": 4, "goal_completion": 1, "pass_rate": 0.5, "politeness": 0.1}
    config: Any = {"thresholds": least, "custom_metrics": [Politeness]}
    assert unit(made(), **config).thresholds == least
    assert unit(made(metrics=("coherence",)), **config).thresholds == {"pass_rate": 0.5, "politeness": 0.1}
    assert unit(scripted(), **config).thresholds == {"pass_rate": 0.5, "politeness": 0.1}
    assert unit(scripted(goal="g"), **config).thresholds == least


def test_thresholds_of_a_scenario() -> None:
    """A scenario's threshold replaces the configured one, even if nothing is judged."""
    assert unit(made(thresholds={"helpfulness": 2}), thresholds={"helpfulness": 4}).thresholds == {
        "helpfulness": 2
    }
    assert unit(scripted(thresholds={"helpfulness": 2})).thresholds == {"helpfulness": 2}


WRONG = [
    ({"metrics": ["helpfulnes"]}, "metrics: there is no metric 'helpfulnes'; did you mean `helpfulness`?"),
    ({"metrics": ["pass_rate"]}, "metrics: there is no metric 'pass_rate'"),
    (
        {"thresholds": {"helpfulnes": 3}},
        "thresholds: there is no metric 'helpfulnes'; did you mean `helpfulness`",
    ),
    ({"thresholds": {"helpfulness": 5.5}}, "thresholds.helpfulness: 5.5 is not between 0 and 5"),
    ({"thresholds": {"helpfulness": -1}}, "thresholds.helpfulness: -1 is not between 0 and 5"),
    ({"thresholds": {"goal_completion": 3}}, "thresholds.goal_completion: 3 is not between 0 and 1"),
    ({"thresholds": {"pass_rate": 1.1}}, "thresholds.pass_rate: 1.1 is not between 0 and 1"),
    (
        {"thresholds": {"agent_behavior_failure": 1}},
        "thresholds: agent_behavior_failure gives labels, not numbers; see fail_on_error_severity",
    ),
]


@pytest.mark.parametrize(("given_keys", "said"), WRONG)
def test_wrong_configured_metrics(given_keys: dict[str, Any], said: str) -> None:
    """An invalid metric or threshold in the configuration is an error of the whole run."""
    place = f"agentest.config.yaml:{2 if 'metrics' in given_keys else 3}: "
    with pytest.raises(ConfigError, match=f"^{re.escape(place + said)}"):
        plan([made()], **given_keys)


def test_a_threshold_of_a_metric_that_is_left_out() -> None:
    said = r"^agentest\.config\.yaml:3: thresholds\.helpfulness: `metrics` leaves it out"
    for metrics in (["coherence"], []):
        with pytest.raises(ConfigError, match=said):
            plan([made()], metrics=metrics, thresholds={"helpfulness": 3})


@pytest.mark.parametrize(("given_keys", "said"), WRONG)
def test_wrong_metrics_of_a_scenario(given_keys: dict[str, Any], said: str) -> None:
    """An invalid metric makes its scenario errored, with its place; the others run."""
    options: Any = {key: v if key == "thresholds" else tuple(v) for key, v in given_keys.items()}
    wrong = made("wrong", 7, **options)
    message = errored(wrong)
    assert message.startswith("a.sim.py:7: scenario 'wrong': ")
    assert said in message
    assert ran(plan([wrong, made("right", 8)])) == [("right", "agent")]


# Custom metrics


def test_custom_metrics(tmp_path: Path) -> None:
    """Custom metrics are import paths, classes or instances, named by class unless they set a name."""
    (tmp_path / "plan_metrics.py").write_text(
        "from agentest import QualitativeMetric\nclass HasTone(QualitativeMetric):\n    name = 'tone'\n"
        "    def evaluate(self, _):\n        return 'warm'\n"
    )
    found = load_custom_metrics(["plan_metrics:HasTone", Politeness, Needy(1)], tmp_path)
    assert [metric.name for metric in found] == ["tone", "politeness", "needy"]


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        ("nowhere_at_all:X", "custom_metrics[0]: importing 'nowhere_at_all' failed"),
        ("metric", "custom_metrics[0]: 'metric' is not an import path of the form pkg.module:Name"),
        (5, "custom_metrics[0]: 5 is not a metric; subclass QuantitativeMetric"),
        (dict, "is not a metric; subclass"),
        (Needy, "custom_metrics[0]: Needy() raised TypeError"),
        (Helpfulness, "custom_metrics[0]: the name 'helpfulness' is taken"),
        (PassRate, "custom_metrics[0]: the name 'pass_rate' is taken"),
    ],
)
def test_wrong_custom_metrics(metric: Any, said: str) -> None:
    """An invalid custom metric is reported with file, line and its position in the list."""
    with pytest.raises(ConfigError, match=rf"^agentest\.config\.yaml:4: .*{re.escape(said)}"):
        plan([made()], custom_metrics=[metric])


def test_two_custom_metrics_of_one_name() -> None:
    """Two custom metrics cannot share a name."""
    with pytest.raises(ConfigError, match=r"custom_metrics\[1\]: the name 'politeness' is taken"):
        plan([made()], custom_metrics=[Politeness, Politeness()])


# Agents

AGENTS: dict[str, Any] = {"agents": {"js": {"endpoint": "http://js"}, "other": {"endpoint": "http://o"}}}


def test_one_agent() -> None:
    """By default every scenario runs with the agent, and the plan has only agents that are used."""
    found = plan([made()], **AGENTS)
    assert ran(found) == [("s", "agent")]
    assert list(found.agents) == ["agent"]
    assert not found.comparison


def test_a_named_agent() -> None:
    """A scenario that names an agent runs with that one."""
    found = plan([made("a", agent="js"), made("b", 2)], **AGENTS)
    assert ran(found) == [("a", "js"), ("b", "agent")]
    assert {name: str(getattr(agent, "endpoint", "")) for name, agent in found.agents.items()} == {
        "js": "http://js",
        "agent": "http://h",
    }
    assert not found.comparison


def test_an_unknown_agent() -> None:
    """A scenario with an unknown agent is errored with the nearest name; an unknown --agent is refused."""
    assert "there is no agent 'jss'; did you mean `js`?" in errored(made(agent="jss"), **AGENTS)
    with pytest.raises(ConfigError, match="there is no agent 'jss'; did you mean `js`"):
        plan([made()], options=Options(agent="jss"), **AGENTS)


def test_comparison() -> None:
    """With agents to compare, every scenario runs with each of them, in configuration order."""
    compare = [{"name": "z", "body": {"model": "z"}}, {"name": "b", "endpoint": "http://b"}]
    found = plan([made("s"), made("t", 2, agent="js")], compare=compare, **AGENTS)
    assert ran(found) == [("s", "agent"), ("s", "z"), ("s", "b"), ("t", "js")]
    assert found.comparison


@pytest.mark.parametrize("name", ["agent", "z", "js"])
def test_one_agent_of_several(name: str) -> None:
    """--agent selects one of all agents, and nothing is compared."""
    found = plan([made()], options=Options(agent=name), compare=[{"name": "z"}], **AGENTS)
    assert ran(found) == [("s", name)]
    assert not found.comparison


# What is not run


def test_skipped() -> None:
    """A skipped scenario has one entry with its reason, and is not checked further."""
    found = plan([made(skip="later", metrics=("nope",), tags=("t",))], compare=[{"name": "b"}])
    [entry] = found.entries
    assert isinstance(entry, ScenarioResult)
    assert (entry.verdict.status, entry.verdict.reasons[0].message) == (Status.SKIPPED, "later")
    assert (entry.file, entry.line, entry.tags) == ("a.sim.py", 1, ("t",))
    assert found.units == ()


def test_broken_files() -> None:
    """A file that failed to load is errored at its place, whatever the filters."""
    broken = [
        BrokenFile(f"{ROOT}/b.sim.py", 3, "importing failed"),
        BrokenFile(f"{ROOT}/a.sim.py", 9, "importing failed, too"),
    ]
    entries = plan([made(line=5)], broken, Options(scenarios=("s",))).entries
    shown = [
        (e.name, e.file, e.line, e.verdict.status) if isinstance(e, ScenarioResult) else e.scenario.name
        for e in entries
    ]
    assert shown == [
        "s",
        ("a.sim.py", "a.sim.py", 9, Status.ERRORED),
        ("b.sim.py", "b.sim.py", 3, Status.ERRORED),
    ]


def test_refused_scenarios() -> None:
    """A refused scenario is errored at its place, skipped or not, and filters apply to it.

    It belongs to no agent, even if it names one.
    """
    wrong = made("wrong", 9, tags=("t",), refused="no goal", skip="later", agent="agent")
    [good, entry] = plan([made(line=5), wrong]).entries
    assert isinstance(good, Unit)
    assert isinstance(entry, ScenarioResult)
    assert (entry.name, entry.agent, entry.file, entry.line) == ("wrong", "", "a.sim.py", 9)
    assert (entry.verdict.status, entry.verdict.reasons[0].message) == (Status.ERRORED, "no goal")
    assert ran(plan([made(line=5), wrong], options=Options(scenarios=("=s",)))) == [("s", "agent")]
    for options in (Options(scenarios=("wrong",)), Options(tags=("t",))):
        assert len(plan([made(line=5), wrong], options=options).entries) == 1


# Names of their own


@given(st.lists(st.text(max_size=60), min_size=1, max_size=8, unique=True), st.booleans())
def test_slugs_and_scopes_are_unique(names: list[str], compared: bool) -> None:
    """Scenarios and agents with similar names still have different slugs and scopes."""
    agents = [{"name": name} for name in ("Agent!", "a@b", "a b")] if compared else []
    units = plan([made(name) for name in names], compare=agents).units
    assert len({u.slug for u in units}) == len({u.scope for u in units}) == len(units)
    assert all(re.fullmatch(r"[\w\-@~]+", u.slug) for u in units)


def test_scopes() -> None:
    """Names that concatenate to the same text still have different scopes."""
    scenarios = [made("a"), made("a @ b")]
    units = plan(scenarios, agent={"name": "b @ c", "endpoint": "http://h"}, compare=[{"name": "c"}]).units
    assert len({u.scope for u in units}) == 4


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("User books a slot", "user-books-a-slot"),
        ("  ¡Hola, señor! ", "hola-señor"),
        ("!!!", "scenario"),
        ("", "scenario"),
        ("x" * 100, "x" * 48),
        ("予約 する", "予約-する"),
    ],
)
def test_slugs(name: str, slug: str) -> None:
    """A slug is the name in lowercase words, shortened."""
    assert slugify(name) == slug


# Metrics of plug-ins

plugin = Plugin("tests")
plugin.metric("kindness", f"{__name__}:Politeness")
plugin.metric("tone", f"{__name__}:Politeness")
plugin.metric("slug", f"{__name__}:slugify")
plugin.metric("needy", f"{__name__}:Needy")


@pytest.fixture
def plugged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this module the only plug-in."""
    registry = PluginRegistry([lambda: iter([(__name__, "a test")])])
    monkeypatch.setattr("agentest.plugin.PLUGINS", registry)


@pytest.mark.usefixtures("plugged")
@pytest.mark.parametrize(
    "config", [{"metrics": ["kindness"]}, {"thresholds": {"kindness": 3}}, {"custom_metrics": ["kindness"]}]
)
def test_a_configured_metric_of_a_plugin_is_measured_everywhere(config: dict[str, Any]) -> None:
    """It has the name it was registered with, whatever its class is called."""
    made_plan = plan([made("one"), made("two", 2)], **config)
    assert [metric.name for metric in made_plan.custom] == ["kindness"]
    assert [unit.unmeasured for unit in made_plan.units] == [frozenset()] * 2


@pytest.mark.usefixtures("plugged")
def test_a_metric_of_a_plugin_is_measured_where_a_scenario_names_it() -> None:
    """Other scenarios do not pay its cost."""
    by_metrics, by_threshold = made("one", metrics=("kindness",)), made("two", 2, thresholds={"tone": 1.0})
    made_plan = plan([by_metrics, by_threshold, made("three", 3)])
    assert [metric.name for metric in made_plan.custom] == ["kindness", "tone"]
    assert [sorted(unit.unmeasured) for unit in made_plan.units] == [
        ["tone"],
        ["kindness"],
        ["kindness", "tone"],
    ]


@pytest.mark.usefixtures("plugged")
@pytest.mark.parametrize(
    ("name", "problem"), [("slug", "is not of the class"), ("needy", "failed: TypeError")]
)
def test_a_metric_that_cannot_be_used_names_its_plugin(name: str, problem: str) -> None:
    """Its author has to correct it, in the file that registers it."""
    with pytest.raises(ConfigError) as raised:
        plan([made()], metrics=[name])
    assert f"metric {name!r} of plug-in 'tests' ({__file__}:" in str(raised.value)
    assert problem in str(raised.value)


@pytest.mark.usefixtures("plugged")
def test_a_misspelled_metric_of_a_plugin() -> None:
    """It is suggested like a built-in one."""
    with pytest.raises(ConfigError, match="there is no metric 'kindnes'; did you mean `kindness`"):
        plan([made()], metrics=["kindnes"])
