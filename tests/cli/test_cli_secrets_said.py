"""Secrets in messages of agents, tools or judges are in no output; checks see the true text."""

from __future__ import annotations

import json

import pytest
from model_server import ModelServer, best
from project import Project
from said_secrets import SCENARIOS, SECRETS, answer, configured, environment, everything, found_in, judge

from agentest.testing import ScriptedAgent


def test_a_run_and_what_is_made_of_it(project: Project) -> None:
    """Twelve secrets from agents, tools, judges and names are in no file or stream."""
    project.scenario(SCENARIOS)
    project.write("broken.sim.py", 'import os\nraise RuntimeError("no " + os.environ["NESTED_SECRET"])\n')
    env = environment(project)
    with ScriptedAgent(answer) as agent, ModelServer(script=judge) as model:
        configured(project, agent, model)
        done = [
            project.run("--verbose", "--record", env=env),
            project.run("--workers", "2", "--verbose", env=env),
            project.agentest("judge", "latest", env=env),
            project.agentest("show", env=env),
            project.agentest("show", "latest", "--verbose", env=env),
            project.run("--list", env=env),
            project.run("--dry-run", env=env),
        ]
        asked = [
            json.dumps(each.body) for each in model.received if "should_stop" not in json.dumps(each.body)
        ]
    assert done[0].returncode == 1, done[0].stdout + done[0].stderr
    assert found_in(everything(project, *done)) == []
    assert found_in("\n".join(asked)) == []
    assert any("[redacted]" in text for text in asked)
    assert "zq12" not in everything(project, *done), "half a secret is one, too"


def test_a_stream_cuts_a_secret_in_two(project: Project) -> None:
    """Chunks of a stream are joined before secrets are redacted."""
    project.scenario('scenario("stream", turns=["stream"])')
    with ScriptedAgent(answer) as agent, ModelServer(best) as model:
        configured(project, agent, model, streaming=True)
        done = project.run("--verbose", "--offline", env=environment(project))
    assert done.returncode == 0, done.stdout
    assert "the token is [redacted]." in done.stdout
    assert found_in(everything(project, done)) == []


TRUTH = """
import os
token = os.environ["BOT_TOKEN"]
tools = {"echo": lambda args, ctx: {"same": args["BOT_TOKEN"] == token, "token": args["BOT_TOKEN"]}}
made = call("echo", BOT_TOKEN=token)
scenario("says it", turns=[{"user_message": "spell", "expect": {"contains": token, "max_words": 500}}])
scenario("must not", turns=[{"user_message": "spell", "expect": {"not_contains": token}}])
scenario("calls", turns=["args"], tools=tools, trajectory={"match_mode": "strict", "expected": [made]})
scenario("no such call", turns=["args"], tools=tools, trajectory={"forbidden": [made]})
scenario("only the name", turns=["args"], tools=tools, trajectory={"expected": ["echo"]})
scenario("fast", turns=[{"user_message": "spell", "expect": {"max_latency_ms": 60000}}])
"""
LIVE = {
    "says it": "passed",
    "must not": "failed",
    "calls": "passed",
    "no such call": "failed",
    "only the name": "passed",
    "fast": "passed",
}


def statuses(project: Project) -> dict[str, str]:
    """The status of each scenario in the last run."""
    last = max((project.root / ".agentest" / "runs").iterdir())
    return {
        each["name"]: each["status"] for each in json.loads((last / "results.json").read_text())["scenarios"]
    }


@pytest.mark.parametrize("arguments", [(), pytest.param(("--workers", "2"), marks=pytest.mark.slow)])
def test_checks_and_mocks_see_the_true_text(project: Project, arguments: tuple[str, ...]) -> None:
    """Results that depend on a secret use the true text; judged again without it, they are unknown."""
    project.scenario(TRUTH)
    env = environment(project)
    with ScriptedAgent(answer) as agent, ModelServer(best) as model:
        configured(project, agent, model)
        done = project.run("--offline", *arguments, env=env)
        live, results = statuses(project), project.results
        again = project.agentest("judge", "latest", env=env)
    assert live == LIVE, done.stdout
    turns = [turn for each in results["scenarios"] for c in each["conversations"] for turn in c["turns"]]
    assert all(turn["redacted"] is True for turn in turns)
    assert '"same": true' in json.dumps(results)
    unknown = dict.fromkeys(("says it", "must not", "calls", "no such call"), "errored")
    assert statuses(project) == LIVE | unknown, again.stdout + again.stderr
    assert (
        "secrets were hidden in turn 1 when the conversation was stored; run the scenario again"
        in again.stdout
    )
    assert found_in(everything(project, done, again)) == []


def test_resumed_and_merged_runs(project: Project) -> None:
    """Resumed and merged runs have no secrets either."""
    project.scenario(TRUTH)
    env = environment(project)
    with ScriptedAgent(answer) as agent, ModelServer(best) as model:
        configured(project, agent, model)
        done = [
            project.run("--offline", "--fail-fast", "--concurrency", "1", env=env),
            project.run("--offline", "--resume", env=env),
            project.run("--offline", "--shard", "1/2", env=env),
            project.run("--offline", "--shard", "2/2", env=env),
        ]
        runs = sorted(each.name for each in (project.root / ".agentest" / "runs").iterdir())
        done += [
            project.agentest("merge", *runs[-2:], env=env),
            project.agentest("show", "--verbose", env=env),
        ]
    assert statuses(project) == LIVE, done[-2].stdout + done[-2].stderr
    assert all(each.returncode == 1 for each in done[:2]), [each.stderr for each in done]
    assert found_in(everything(project, *done)) == []


def test_redaction_of_transcripts_can_be_turned_off(project: Project) -> None:
    """`redact_transcripts: false` stores messages unchanged; errors are still redacted."""
    project.scenario('scenario("spell", turns=["spell"])\nscenario("bad", turns=["random"])')
    with ScriptedAgent(answer) as agent, ModelServer(best) as model:
        configured(project, agent, model, redact_transcripts=False)
        project.run("--offline", env=environment(project))
    (spell,) = (each for each in project.results["scenarios"] if each["name"] == "spell")
    (bad,) = (each for each in project.results["scenarios"] if each["name"] == "bad")
    assert SECRETS["BOT_TOKEN"] in spell["conversations"][0]["turns"][0]["agentMessage"]
    assert "redacted" not in spell["conversations"][0]["turns"][0]
    assert found_in(json.dumps(bad)) == []


def test_short_secrets_and_words_stay_in_transcripts(project: Project) -> None:
    """A password that is short or a common word is not redacted in transcripts."""
    said = "postgres runs on test-db; the development password is hunter2, the Signature is valid"
    project.scenario(f'scenario("s", turns=[{{"user_message": "x", "expect": {{"contains": {said!r}}}}}])')
    words = {
        "DB_PASSWORD": "postgres",
        "A_TOKEN": "test-db",
        "B_SECRET": "development",
        "C_PASSWORD": "hunter2",
    }
    with ScriptedAgent([said]) as agent:
        project.config(
            agent.endpoint, agent={"endpoint": agent.endpoint, "headers": {"x-auth": "Signature a"}}
        )
        done = project.run("--verbose", env=words)
    assert done.returncode == 0
    assert said in done.stdout
    assert "secrets hidden" not in done.stdout


def test_the_user_model_sees_only_its_own_secrets(project: Project) -> None:
    """The user's model knows its password, and gets the agent's replies redacted."""
    project.scenario(
        'import os\nknown = ["My word is " + os.environ["MOCK_PASSWORD"]]\n'
        'scenario("s", profile="p", goal="g", knowledge=known, max_turns=2, metrics=[])'
    )
    with ScriptedAgent(answer) as agent, ModelServer(script=best) as model:
        configured(project, agent, model)
        project.run(env=environment(project))
    asked = [each.body["messages"] for each in model.received if "should_stop" in json.dumps(each.body)]
    assert all(SECRETS["MOCK_PASSWORD"] in messages[0]["content"] for messages in asked)
    replies = [
        message["content"] for messages in asked for message in messages[2:] if message["role"] == "user"
    ]
    assert replies
    assert found_in("\n".join(replies)) == []
