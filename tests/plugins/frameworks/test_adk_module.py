"""The `adk_module` agent type: google-adk agents in this process, run by google-adk itself (`pytest -m adk`).

AGENTEST_ADK says that google-adk is installed with Agentest: then it must be there, or tests fail. Without it
only tests that need no google-adk run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio
import pytest
from evalset_documents import case, eval_set, invocation, message, text, use
from project import DEADLINE_S, Project, clean_environment

from agentest import call, scenario
from agentest.adk import AgentEvaluator, EvaluationFailed
from agentest.agents.port import NoReply, Resources, TurnContext
from agentest.config.config import Config
from agentest.domain.messages import Session, UserText
from agentest.domain.results import RunResult, Status
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import Conversation
from agentest.plugins.adk.in_process_evaluation import configuration
from agentest.plugins.frameworks.adk_settings import AdkModuleAgent
from agentest.plugins.frameworks.google_adk import AdkModuleClient, open_agent
from agentest.support.errors import ConfigError, UsageError
from agentest.support.http.client import open_client
from agentest.testing import run_scenarios

EXAMPLE = Path(__file__).parents[3] / "examples" / "adk_agent"
ENVIRONMENT = os.environ.get("AGENTEST_ADK")

with_google_adk = [
    pytest.mark.adk,
    pytest.mark.skipif(ENVIRONMENT is None, reason="AGENTEST_ADK names no environment with google-adk"),
    pytest.mark.filterwarnings("ignore"),  # google-adk's own
]


def marked(test: Any) -> Any:
    for mark in with_google_adk:
        test = mark(test)
    return test


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """A folder with the example agent as `my_agent`, as working directory, with its own modules."""
    shutil.copytree(EXAMPLE, tmp_path / "my_agent", ignore=shutil.ignore_patterns(".adk", "__pycache__"))
    monkeypatch.chdir(tmp_path)
    path, modules = [*sys.path], {*sys.modules}
    yield Project(tmp_path)
    sys.path[:] = path
    for name in {*sys.modules} - modules:
        if name.partition(".")[0] in ("my_agent", "other"):
            del sys.modules[name]


def opened(module: Any, **settings: Any) -> Any:
    """An agent that was opened, and what was noted when it was closed."""

    async def go() -> tuple[AdkModuleClient, list[str]]:
        notes: list[str] = []
        async with open_client() as client, AsyncExitStack() as stack:
            resources = Resources(
                client=client,
                timeout_s=20,
                threads=anyio.CapacityLimiter(1),
                root=Path.cwd(),
                closing=stack,
                on_note=notes.append,
            )
            config = AdkModuleAgent(type="adk_module", module=module, **settings)
            return await open_agent("a", config, resources), notes

    return anyio.run(go)


def run(
    *turns: str,
    copies: int = 1,
    agent: dict[str, Any] | None = None,
    one_by_one: bool = False,
    **options: Any,
) -> RunResult:
    made = scenario("s", turns=list(turns), conversations_per_scenario=copies, **options)
    settings = {"type": "adk_module", "module": "my_agent", **(agent or {})}
    concurrency = 1 if one_by_one else 20
    return run_scenarios([made], agent=settings, request_timeout_ms=60_000, concurrency=concurrency)


def held(result: RunResult) -> Conversation:
    return result.scenarios[0].conversations[0].conversation


# Without google-adk


def test_without_google_adk(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without google-adk the error says what to install, and the alternative."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "google"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "google", None)
    with pytest.raises(
        ConfigError, match=r"agent 'a' runs in this process by google-adk, which cannot be imp"
    ) as no:
        opened("my_agent")
    assert "pip install google-adk" in str(no.value)
    assert "`adk api_server`, and test that server" in str(no.value)


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        ({}, "Field required"),
        ({"module": ""}, "names the module or the folder"),
        ({"module": 3}, "names the module or the folder"),
        ({"module": "m", "server": {"command": "x", "ready": "tcp://h:1"}}, "this one runs in this process"),
        ({"module": "m", "tool_visibility": "returned"}, "runs its tools itself"),
    ],
)
def test_settings(agent: dict[str, Any], said: str) -> None:
    """Settings that mean nothing for an agent in this process are refused in words."""
    with pytest.raises(ValueError, match=said):
        Config.model_validate({"agent": {"type": "adk_module", **agent}})


def test_a_name_is_one_of_the_configuration_before_it_is_a_module(project: Project) -> None:
    """A name means the configuration's agent, else the module or folder in the working directory."""
    named, name = configuration("my_agent", project.root)
    assert (getattr(named.config.agent, "module", None), name) == ("my_agent", None)
    project.config("http://127.0.0.1:1", agents={"my_agent": {"endpoint": "http://127.0.0.1:2"}})
    assert configuration("my_agent", project.root)[1] == "my_agent"
    assert configuration("./my_agent", project.root)[0].config.agent.type == "adk_module"
    assert configuration("nobody", project.root)[1] == "nobody"


# With google-adk

GOOD = eval_set(
    "good",
    case(
        "books",
        invocation("Free on Friday?", "Free on friday: 15:00.", [use("check_availability", day="friday")]),
        invocation(
            "Book Friday at 15:00",
            "Zoe, friday at 15:00 is yours (booking 5).",
            [use("create_booking", day="friday", time="15:00")],
        ),
        session_input={"app_name": "salon", "user_id": "u", "state": {"customer": "Zoe", "bookings": 4}},
    ),
)
BAD = eval_set("bad", case("waits", invocation("Free on Friday?", "Nothing is free.")))

TESTS = """
import pytest
from agentest.adk import AgentEvaluator

@pytest.mark.asyncio
async def test_order_evals():
    await AgentEvaluator.evaluate(
        agent_module="my_agent",
        eval_dataset_file_path_or_dir="tests/eval/orders.test.json",
    )

@pytest.mark.asyncio
async def test_all_evals():
    await AgentEvaluator.evaluate(
        agent_module="my_agent",
        eval_dataset_file_path_or_dir="tests/eval/",
    )
"""


@marked
def test_a_test_of_google_adks_users(project: Project) -> None:
    """Tests written for google-adk's evaluator run when nothing but the import is changed."""
    project.write("tests/eval/orders.test.json", text(GOOD))
    project.write("test_orders.py", TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_orders.py"]
    done = subprocess.run(
        command,
        cwd=project.root,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=10 * DEADLINE_S,
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr


@marked
def test_the_verdict_is_google_adks(project: Project) -> None:
    """google-adk's own evaluator passes and fails the same files, of the same agent in the same process."""
    sys.path.insert(0, str(project.root))
    theirs = import_module("google.adk.evaluation.agent_evaluator").AgentEvaluator
    for name, document, passes in (("good", GOOD, True), ("bad", BAD, False)):
        project.write(f"{name}.test.json", text(document))
        for evaluator in (theirs, AgentEvaluator):
            try:
                anyio.run(lambda e=evaluator, n=name: e.evaluate("my_agent", f"{n}.test.json", 1))
                passed = True
            except AssertionError:
                passed = False
            assert passed is passes, (name, evaluator)


@marked
def test_an_agent_given_as_an_object(project: Project) -> None:
    """An agent of google-adk, its App, or its module's name is evaluated, and a miss has a reason."""
    salon = import_module("google.adk.apps.app").App
    sys.path.insert(0, str(project.root))
    agent = import_module("my_agent.agent").root_agent
    for given in (agent, salon(name="salon_app", root_agent=agent)):
        anyio.run(lambda g=given: AgentEvaluator.evaluate_eval_set(g, GOOD, {"response_match_score": 1.0}, 1))
    with pytest.raises(EvaluationFailed, match="Free on friday: 15:00"):
        anyio.run(lambda: AgentEvaluator.evaluate_eval_set(agent, BAD, {"response_match_score": 1.0}, 1))
    theirs = import_module("google.adk.evaluation.eval_set").EvalSet.model_validate(GOOD)
    config = import_module("google.adk.evaluation.eval_config").EvalConfig(
        criteria={"response_match_score": 1.0}
    )
    anyio.run(
        lambda: AgentEvaluator.evaluate_eval_set(
            agent_module="my_agent", eval_set=theirs, eval_config=config, agent_name="salon", num_runs=1
        )
    )


class Robot:
    """A class that only looks like an agent of google-adk."""

    name = "robot"

    def run_async(self) -> None:
        """Never called."""


Robot.__module__ = "google.adk.agents.robot"


def test_an_agent_in_the_configuration() -> None:
    """An agent object stays what it is in a configuration in Python, for entries of `compare` too."""
    robot = Robot()
    agent = AdkModuleAgent(type="adk_module", module=robot)
    config = Config.model_validate({"agent": agent, "compare": [{"name": "b", "user_id": "bob"}]})
    (other,) = config.compare
    assert isinstance(other, AdkModuleAgent)
    assert (other.module, other.address) == (agent.module, "google-adk agent <Robot 'robot'>")
    assert getattr(other.module, "value", None) is robot


@marked
def test_files_of_a_message(project: Project) -> None:
    """An image of a case reaches the agent's model unchanged, with the text."""
    seen: list[Any] = []

    def before_model(callback_context: Any, llm_request: Any) -> None:
        del callback_context
        seen.extend(part for content in llm_request.contents for part in content.parts if part.inline_data)

    sys.path.insert(0, str(project.root))
    agent = import_module("my_agent.agent").root_agent.clone(update={"before_model_callback": before_model})
    image = {"inline_data": {"mime_type": "image/png", "data": "aGk-_w"}}
    asked = {"user_content": {"role": "user", "parts": [{"text": "Free on Friday?"}, image]}}
    document = eval_set("pictures", case("a", {**invocation("", "Free on friday: 15:00."), **asked}))
    anyio.run(lambda: AgentEvaluator.evaluate_eval_set(agent, document, {"response_match_score": 1.0}, 1))
    assert {(part.inline_data.mime_type, part.inline_data.data) for part in seen} == {
        ("image/png", b"hi>\xff")
    }


@marked
def test_concurrent_conversations(project: Project) -> None:
    """Each has its own session; calls count as the agent's, and its tools are real."""
    expected = ["check_availability", call("create_booking", day="friday")]
    result = run(
        "Free on Friday?",
        "Book Friday at 15:00",
        copies=20,
        trajectory={"match_mode": "strict", "expected": expected},
    )
    assert result.scenarios[0].verdict.passed, result.scenarios[0].verdict
    for one in result.scenarios[0].conversations:
        first, second = one.conversation.turns
        assert second.agent_message == "somebody, friday at 15:00 is yours (booking 1)."
        assert [c.seen_by for c in first.tool_calls] == [SeenBy.AGENT]
        assert (first.usage.prompt_tokens, first.usage.completion_tokens) == (14, 6)


@marked
def test_an_agent_that_raises(project: Project) -> None:
    """An exception is the agent's error with type and message, and earlier turns are kept."""
    conversation = held(run("Free on Friday?", "Please crash"))
    assert conversation.failure is not None
    assert conversation.failure.blame == "agent"
    assert conversation.failure.message == (
        "the google-adk agent raised RuntimeError: the rules have nothing to say about that (agent.py:58)"
    )
    assert len(conversation.turns) == 1


OTHER = """
import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from google.adk.agents import BaseAgent, SequentialAgent
from google.adk.events import Event, EventActions
from google.genai import types


class Says(BaseAgent):
    text: str = ""

    async def _run_async_impl(self, ctx):
        said = ctx.user_content.parts[0].text
        if said == "hang":
            call = types.FunctionCall(id="1", name="wait", args={"s": 9})
            yield self._event(types.Part(function_call=call), ctx)
            await asyncio.sleep(600)
        delta = {"stage": self.name, "thing": object(), "seen": ctx.session.state.get("seen", 0) + 1}
        yield self._event(types.Part(text=self.text), ctx, delta)

    def _event(self, part, ctx, delta=None):
        content = types.Content(role="model", parts=[part])
        actions = EventActions(state_delta=delta or {})
        return Event(author=self.name, invocation_id=ctx.invocation_id, content=content, actions=actions)
"""


@marked
def test_state_is_read_back_and_time_is_bounded(project: Project) -> None:
    """Each reply has the state after its turn; an agent that hangs times out, with its calls kept."""
    project.write("other/agent.py", OTHER + "root_agent = Says(name='one', text='Hello')\n")

    async def go() -> None:
        async with open_client() as client, AsyncExitStack() as stack:
            resources = Resources(
                client=client,
                timeout_s=2,
                threads=anyio.CapacityLimiter(1),
                root=project.root,
                closing=stack,
                on_note=print,
            )
            agent = await open_agent("bot", AdkModuleAgent(type="adk_module", module="other"), resources)
            session = Session("shop", "u", {"cart": ["pen"], "seen": 1})
            for turn in (0, 1):
                ctx = TurnContext("c", "s", turn, print, session, session_id="s-1")
                reply = await agent.reply([UserText("hi")], ctx)
                state = dict(reply.state or {})
                assert "object" in state.pop("thing")
                assert state == {"cart": ["pen"], "seen": turn + 2, "stage": "one"}
                assert reply.state_before == (None if turn else {"cart": ["pen"], "seen": 1})
                assert reply.author == "one"
                assert reply.text == "Hello"
            with pytest.raises(
                NoReply, match="the google-adk agent of agent 'bot' did not answer within 2 s"
            ) as no:
                await agent.reply(
                    [UserText("hang")], TurnContext("c", "s", 2, print, session, session_id="s-1")
                )
            assert [c.name for c in no.value.observed] == ["wait"]

    anyio.run(go)


@marked
def test_the_state_of_a_session(project: Project) -> None:
    """A scenario sets and checks a session's state; an existing session keeps its own."""
    given = {"state": {"customer": "Zoe", "user:tier": "gold"}}
    after = {"bookings": 1, "customer": "Zoe", "user:tier": "gold"}
    result = run("Book Friday at 15:00", session=given, final_session_state=after)
    assert result.scenarios[0].verdict.passed, result.scenarios[0].verdict.reasons
    assert held(result).turns[0].agent_message == "Zoe, friday at 15:00 is yours (booking 1)."
    missed = run("Book Friday at 15:00", session=given, final_session_state={"bookings": 2})
    assert missed.scenarios[0].verdict.status is Status.FAILED
    pinned = {"state": {"bookings": 3}, "session_id": "one"}
    again = run("Book Friday at 15:00", copies=2, one_by_one=True, session=pinned)
    verdict = again.scenarios[0].verdict
    assert verdict.status is Status.ERRORED, verdict
    assert "the session 'one' exists already and keeps its own state" in verdict.reasons[0].message


COUNTS = """
class Counts(Says):
    async def _run_async_impl(self, ctx):
        event = self._event(types.Part(text="Hi"), ctx)
        event.actions.state_delta.update({k: ctx.session.state.get(k, 0) + 1 for k in ("user:n", "app:n")})
        yield event

root_agent = Counts(name="counts")
"""


@marked
def test_no_conversation_sees_the_state_of_another(project: Project) -> None:
    """State of the user and of the app lasts for a conversation: a verdict never depends on another one."""
    project.write("other.py", OTHER + COUNTS)
    counted = {"user:n": 2, "app:n": 2}
    result = run("Hi", "Hi", copies=3, agent={"module": "other"}, final_session_state=counted)
    assert result.scenarios[0].verdict.passed, result.scenarios[0].verdict.reasons


@marked
def test_a_file_of_a_message(project: Project) -> None:
    """Files of a user's message reach the agent with the text."""
    project.write("other.py", OTHER + SEES)
    parts = [{"text": "Look:"}, {"inline_data": {"mime_type": "text/plain", "data": "aGk="}}]
    looks = eval_set(
        "l", case("l", {"user_content": {"parts": parts}, "final_response": message("model", "hi")})
    )
    anyio.run(lambda: AgentEvaluator.evaluate_eval_set("other", looks, {"response_match_score": 1.0}, 1))


SEES = """
class Sees(Says):
    async def _run_async_impl(self, ctx):
        yield self._event(types.Part(text=ctx.user_content.parts[1].inline_data.data.decode()), ctx)

root_agent = Sees(name="eyes")
"""

FACTORY = """
async def get_agent_async():
    stack = AsyncExitStack()
    stack.callback(Path("closed").touch)
    parts = [Says(name=n, text=n.title()) for n in ("planner", "reviewer")]
    return SequentialAgent(name="pipeline", sub_agents=parts), stack
"""


APP = """
from google.adk.apps import App

app = App(name="inner", root_agent=Says(name="one", text="Of the app"))
"""


@marked
def test_where_an_agent_is_found(project: Project) -> None:
    """`get_agent_async` with what it opened, `app`, a part by its name, a folder anywhere, a plain module."""
    project.write("agents/other/__init__.py", "")
    project.write("agents/other/agent.py", OTHER + FACTORY)
    project.write("agents/other/.env", "USERS_KEY=from-the-folder\n")
    whole = held(run("hi", agent={"module": "agents/other"})).turns[0]
    assert (whole.agent_message, [r.text for r in whole.remarks]) == ("Reviewer", ["Planner"])
    assert (project.root / "closed").exists()
    assert os.environ.pop("USERS_KEY") == "from-the-folder"
    part = held(run("hi", agent={"module": "./agents/other/", "agent_name": "planner"})).turns[0]
    assert (part.agent_message, part.remarks) == ("Planner", ())
    project.write("other.py", OTHER + APP)
    assert held(run("hi", agent={"module": "other"})).turns[0].agent_message == "Of the app"


REFUSED = """
import os

class Refused(Says):
    async def _run_async_impl(self, ctx):
        raise ValueError("refused: " + os.environ["USERS_API_KEY"])
        yield

root_agent = Refused(name="refused")
"""


@marked
def test_a_key_of_the_agents_folder_is_not_shown(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent's `.env` is read only when the agent is opened, and no error shows it."""
    monkeypatch.setenv("USERS_API_KEY", "")  # set back after the test
    monkeypatch.delenv("USERS_API_KEY")
    project.write("other/.env", "USERS_API_KEY=hunter2-of-the-folder\n")
    project.write("other/__init__.py", "")
    project.write("other/agent.py", OTHER + REFUSED)
    failure = held(run("hi", agent={"module": "other"})).failure
    assert failure is not None
    assert "refused: [redacted]" in failure.message
    project.write("agents/broken/__init__.py", "import os\nraise ValueError(os.environ['USERS_API_KEY'])\n")
    with pytest.raises(ConfigError, match=r"ValueError: \[redacted\]"):
        opened("agents/broken")


@marked
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"module": "nowhere"}, "module: importing 'nowhere' failed: ModuleNotFoundError"),
        ({"module": "agents/nowhere"}, "module: there is no folder 'agents/nowhere' in "),
        ({"module": "json"}, "module 'json' has no `root_agent`, `get_agent_async` or `app`"),
        ({"module": "other"}, "importing 'other' failed: ZeroDivisionError"),
        ({"module": "number"}, "the agent of module 'number' is none of google-adk's, but 5"),
        ({"module": "my_agent", "agent_name": "x"}, "there is no agent 'x' in it; there are `salon`"),
    ],
)
def test_missing_agents(settings: dict[str, Any], said: str, project: Project) -> None:
    """One message before the first conversation says what was missing."""
    project.write("other.py", "1 / 0\n")
    project.write("number.py", "root_agent = 5\n")
    with pytest.raises(UsageError) as caught:
        opened(**settings)
    assert said in str(caught.value)


@marked
def test_a_run_with_workers(project: Project) -> None:
    """From the command line with workers, each runs the agent for itself."""
    project.config("", agent={"type": "adk_module", "module": "my_agent"})
    project.scenario('scenario("a", turns=["Free on Friday?"])\nscenario("b", turns=["Hi"])')
    done = project.run("--offline", "--workers", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    (held_b,) = project.scenario_result("b")["conversations"]
    assert held_b["turns"][0]["agentMessage"].startswith("I can look for free times")
