"""`agentest eval [AGENT] FILE_OR_DIR…`: which word is the agent; what is listed and counted beforehand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from evalset_documents import case, criteria, eval_set, invocation, simulated, text
from project import Project

from agentest.adk import AgentEvaluator
from agentest.plugins.adk.plan import parse_eval_words
from agentest.plugins.frameworks.adk_settings import AdkModuleAgent
from agentest.support.errors import UsageError
from agentest.testing import ScriptedAgent

NAMES = ("agent", "weather", "orders")
URL = "http://localhost:8000/v1/chat/completions"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Packages with an agent, without and with sets; folders of sets; an agent in TypeScript."""
    monkeypatch.chdir(tmp_path)
    project = Project(tmp_path)
    for agent in ("my_agent/agent.py", "shop/bots/asker/agent.py"):
        project.write(agent, "from somewhere import make\n\nroot_agent = make()\n")
    project.write("whole/__init__.py", "from somewhere import root_agent\n")
    for name in ("whole/a.test.json", "orders/a.test.json", "typed/a.test.json", "one.test.json"):
        project.write(name, text(eval_set("s", case("c", invocation("x", "x")))))
    project.write("typed/agent.ts", "export const rootAgent = 1;")
    project.write("my_agent/returns.evalset.json", text(eval_set("returns", simulated("s"))))
    project.write("weather/notes.txt", "no sets here")
    return project


def module(name: str) -> AdkModuleAgent:
    return AdkModuleAgent(type="adk_module", module=name)


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("words", "option", "agent", "targets"),
    [
        ("one.test.json", None, None, "one.test.json"),
        ("one.test.json:c orders", "weather", "weather", "one.test.json:c orders"),
        ("one.test.json", URL, URL, "one.test.json"),
        ("one.test.json", "./my_agent", module("./my_agent"), "one.test.json"),
        # A name, a URL, a package, before a target.
        ("agent one.test.json", None, "agent", "one.test.json"),
        (f"{URL} one.test.json orders", None, URL, "one.test.json orders"),
        ("my_agent one.test.json:c", None, module("my_agent"), "one.test.json:c"),
        ("./shop/bots/asker one.test.json", None, module("./shop/bots/asker"), "one.test.json"),
        ("shop.bots.asker one.test.json", None, module("shop.bots.asker"), "one.test.json"),
        # A folder of sets is a target, unless it is a package and another target follows.
        ("orders one.test.json", None, None, "orders one.test.json"),
        ("whole", None, None, "whole"),
        ("whole whole/a.test.json", None, module("whole"), "whole/a.test.json"),
        # A folder without sets that is called like an agent is no target.
        ("weather one.test.json", None, "weather", "one.test.json"),
        # Sets by their ids, in the agent's folder, as `adk eval_set create` makes them.
        ("my_agent returns", None, module("my_agent"), "my_agent/returns.evalset.json"),
        ("my_agent returns:s", None, module("my_agent"), "my_agent/returns.evalset.json:s"),
        # What is not there is told by who reads it.
        ("nowhere/a.test.json", None, None, "nowhere/a.test.json"),
    ],
)
def test_the_first_word_may_be_the_agent(words: str, option: Any, agent: Any, targets: str) -> None:
    """A name, a URL or a package before the files is the agent; files and folders of sets are targets."""
    assert parse_eval_words(tuple(words.split()), option, NAMES) == (agent, tuple(targets.split()))


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("words", "option", "names", "told"),
    [
        ("wether one.test.json", None, NAMES, "wether is neither .* did you mean `weather`?"),
        ("nobody", None, NAMES, "the configuration has `agent`, `orders`, `weather`"),
        ("nobody one.test.json", None, (), "give a URL, or a folder whose agent.py has a root_agent"),
        ("agent", None, NAMES, "agent is an agent; name the files or folders"),
        ("my_agent one.test.json", "weather", NAMES, "two agents are named: my_agent, and --agent weather"),
        ("http://u:pw@h/ x", "http://u:pw@i/", (), "two agents are named: http://[^pw]*@h/, and .*[^w]@i/;"),
        ("typed one.test.json", None, NAMES, r"in another language \(agent.ts\).* start it behind a server"),
        ("one.test.json agent", None, NAMES, "agent is an agent, and stands after files; name it first"),
        ("one.test.json http://u:pw@h/", None, (), "http://[^pw]*@h/ is an agent, and stands after files"),
        ("weather one.test.json", None, (), r"neither an agent \(no root_agent .* nor a folder with"),
    ],
)
def test_unknown_arguments_are_refused(words: str, option: Any, names: Any, told: str) -> None:
    """Words that are neither agent nor target, and two agents, are refused with a solution."""
    with pytest.raises(UsageError, match=told):
        parse_eval_words(tuple(words.split()), option, names)


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("words", [("",), ("weather", ""), (" ", "one.test.json")])
def test_an_empty_word_is_refused(words: tuple[str, ...]) -> None:
    """A word without letters, as an empty variable of a shell gives it, never means the working directory."""
    with pytest.raises(UsageError, match=r"one of the words is empty .* name the files or folders"):
        parse_eval_words(words, None, NAMES)


def test_the_agent_comes_first_as_in_adk(project: Project) -> None:
    """`agentest eval AGENT FILE` runs the file against that agent, by URL or by name."""
    project.write("c.json", text(criteria(response_match_score=1.0)))
    with ScriptedAgent(["x"]) as agent, ScriptedAgent(["y"]) as other:
        command = ("eval", agent.endpoint, "one.test.json", "--config_file_path", "c.json")
        assert project.agentest(*command).returncode == 0
        project.config(agent.endpoint, agents={"weather": {"endpoint": other.endpoint}})
        assert project.agentest("eval", "weather", *command[2:]).returncode == 1
        assert (len(agent.requests), len(other.requests)) == (1, 1)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_folders_run_their_tests(project: Project, anyio_backend: str) -> None:
    """A folder's `*.evalset.json` run only with --all; otherwise a note says that they are left out."""
    del anyio_backend
    project.write("orders/b.evalset.json", text(eval_set("b", case("d", invocation("y", "y")))))
    with ScriptedAgent(lambda body: body["messages"][-1]["content"]) as agent:
        with pytest.warns(UserWarning, match=r"1 file \*.evalset.json left out; --all"):
            await AgentEvaluator.evaluate(agent.endpoint, "orders", 1)
        assert len(agent.requests) == 1
        await AgentEvaluator.evaluate(agent.endpoint, "orders", 1, every_set=True)
        assert len(agent.requests) == 3


def test_cases_are_listed_and_counted_without_an_agent(project: Project) -> None:
    """--list prints cases and criteria, --dry-run the maximum of model calls, without any call."""
    held = criteria(response_match_score=0.5, safety_v1=0.8, final_response_match_v2=0.8)
    project.write("orders/test_config.json", text(held))
    project.write("orders/b.evalset.json", text(eval_set("b", simulated("d"))))
    listed = project.agentest("eval", "orders", "--all", "--list", "--num-runs", "2")
    assert listed.returncode == 0, listed.stderr
    least = "response_match_score ≥ 0.5, safety_v1 ≥ 0.8, final_response_match_v2 ≥ 0.8"
    assert listed.stdout.splitlines() == [
        f"orders/a.test.json: held to {least}",
        "orders/a.test.json:5  c  scripted × 2",
        f"orders/b.evalset.json: held to {least}",
        "orders/b.evalset.json:5  d  simulated × 2",
    ]
    dry = project.agentest("eval", "orders", "--all", "--dry-run", "--model", "openai/x")
    assert [line.split()[:5] for line in dry.stdout.splitlines()[1:4]] == [
        ["0", "6", "0", "6", "c"],
        ["19", "120", "0", "139", "d"],
        ["19", "126", "0", "145", "in"],
    ]
    assert project.agentest("eval", "orders", "--list", "--dry-run").returncode == 2
    assert "agentest eval URL FILE_OR_DIR" in project.agentest("eval", "orders").stderr
