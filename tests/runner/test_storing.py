"""Storage of long texts: shortened with their length, without effect on verdicts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from builders import conversation_result, tool_call, turn, unfinished_turn
from hypothesis import given
from hypothesis import strategies as st
from stored import conversations_of, to_json

from agentest import call, scenario
from agentest.config import Config
from agentest.domain.events import ConversationFinished, Event
from agentest.domain.results import ConversationResult, RunResult, TrajectoryResult
from agentest.domain.transcript import Remark, StateChange
from agentest.domain.truncation import MAX_CHARS, shortened, shortened_value, stored
from agentest.judging.evaluator import ScenarioEvaluator
from agentest.runner.sources import ConversationRequest, FinishedConversations
from agentest.store.reader import read_results
from agentest.testing import ScriptedAgent, ScriptedModel, run_scenarios
from agentest.testing import scripted as fakes

LONG = 2 * MAX_CHARS
SAID = f"… ({LONG} characters, shortened)"


def test_texts() -> None:
    """A text of up to a million characters is stored as is; a longer one keeps its beginning and length."""
    text = "x" * MAX_CHARS
    assert shortened(text) is text
    assert shortened("x" * LONG) == "x" * MAX_CHARS + SAID


VALUES = st.recursive(
    st.none() | st.integers() | st.sampled_from(["a", "x" * 400_000, "y" * 1_500_000]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=8,
)


@given(VALUES)
def test_values(value: Any) -> None:
    """A shortened value keeps its type and about a million characters; a small one is unchanged."""
    kept = shortened_value(value)
    size = len(json.dumps(value, ensure_ascii=False))
    assert len(json.dumps(kept, ensure_ascii=False)) <= MAX_CHARS + 2_000
    assert type(kept) is type(value)
    if size <= MAX_CHARS:
        assert kept is value


def test_values_of_many_parts() -> None:
    """A long list or object keeps its first items and counts the rest."""
    kept = shortened_value(list(range(LONG)))
    assert kept[:3] == [0, 1, 2]
    assert kept[-1] == f"… ({LONG - len(kept) + 1} more, shortened)"
    kept = shortened_value({str(n): "x" * 1000 for n in range(2000)})
    assert kept["0"] == "x" * 1000
    assert kept["…"] == f"({2000 - len(kept) + 1} more, shortened)"


def test_a_long_value_keeps_its_key() -> None:
    """Shortening cuts the value, not its key."""
    assert list(shortened_value({"blob": "x" * LONG, "next": 1})) == ["blob", "…"]


def test_a_key_that_was_cut_off_is_not_missing() -> None:
    """Shortening a state does not produce changes that nobody made."""
    before, after = {"blob": "", "next": 1}, shortened_value({"blob": "x" * LONG, "next": 1})
    change = StateChange.between(before, after)
    assert ([*change.added], [*change.changed], [*change.removed]) == ([], ["blob"], [])
    back = StateChange.between(after, {**before, "new": 1})
    assert ([*back.added], [*back.changed], [*back.removed]) == ([], ["blob"], [])


def test_values_that_contain_themselves() -> None:
    """Cyclic and deeply nested values are shortened, too."""
    endless: list[Any] = ["x" * MAX_CHARS]
    endless.append(endless)
    assert len(json.dumps(shortened_value(endless))) < MAX_CHARS + 1000
    deep: Any = "x" * LONG
    for _ in range(5_000):
        deep = [deep]
    assert len(json.dumps(shortened_value(deep))) < 1000


def test_a_whole_conversation() -> None:
    """Every long text is shortened and the conversation marked; without long texts it is unchanged."""
    small = conversation_result()
    assert stored(small) is small
    long = "x" * LONG
    calls = (
        tool_call(args={"q": long}, result=long),
        tool_call(args=long, invalid_arguments=long, error=long),
    )
    said = turn(user=long, agent=long, tool_calls=calls, remarks=(Remark("a", long),))
    held = replace(small.conversation, turns=(said,), unfinished=unfinished_turn(1, long, *calls))
    reason = TrajectoryResult(matched=False, summary=long)
    evaluations = tuple(replace(each, trajectory=reason) for each in small.turns)
    kept = stored(replace(small, conversation=held, trajectory=reason, turns=evaluations))
    assert kept.conversation.shortened
    assert str(kept).count(SAID) == 16
    assert len(str(kept)) < 17 * MAX_CHARS


def test_a_long_trajectory() -> None:
    """Its texts share one limit, and each shortened one says so."""
    long = "x" * LONG
    trajectory = TrajectoryResult(
        matched=False, summary="missing", mode="strict", expected=long, forbidden=None, actual=long
    )
    kept = stored(replace(conversation_result(), trajectory=trajectory)).trajectory
    assert kept is not None
    assert (kept.summary, kept.mode, kept.forbidden) == ("missing", "strict", None)
    assert kept.reason.count(SAID) == 2
    assert len(kept.reason) < MAX_CHARS + 200


def run(
    *, keep: list[Event] | None = None, model: Any = None, **options: Any
) -> tuple[RunResult, ScriptedAgent]:
    """A conversation with a long tool call, a long result and a long reply."""
    script = [fakes.tool_call("find", q="x" * LONG + "end"), "y" * LONG + "end", "Bye."]
    made = scenario("s", **options)
    with ScriptedAgent(script) as agent:
        events = keep if keep is not None else []
        return run_scenarios([made], agent=agent, model=model, on_event=events.append), agent


def test_nothing_is_judged_by_what_is_stored() -> None:
    """Mocks, checks, trajectories and the agent get whole texts; only events and storage are shortened."""
    ends = lambda text: text.endswith("end")  # noqa: E731
    seen: list[str] = []

    def find(args: Any, ctx: Any) -> str:
        seen.append(args["q"])
        return "z" * LONG + "end"

    told: list[Event] = []
    first = {
        "user_message": "Hi",
        "expect": {"contains": "end"},
        "trajectory": {"forbidden": [call("find", q=ends)]},
    }
    result, agent = run(
        keep=told,
        turns=[first, "Bye."],
        tools={"find": find},
        trajectory={"expected": [call("find", q=ends)]},
    )
    (found,) = result.scenarios[0].conversations
    assert ends(seen[0])
    assert [check.passed for check in found.turns[0].checks] == [True]
    assert found.trajectory
    assert found.trajectory.matched
    assert found.turns[0].trajectory
    assert found.turns[0].trajectory.forbidden_calls == ("find",)
    history = agent.requests[-1]["messages"]
    assert [len(message["content"]) for message in history[2:4]] == [LONG + 3, LONG + 3]
    (event,) = [event for event in told if isinstance(event, ConversationFinished)]
    for kept in (found, event.result):
        assert isinstance(kept, ConversationResult)
        assert kept.conversation.shortened
        assert len(str(kept.conversation)) < 4 * MAX_CHARS
        assert kept.conversation.turns[0].agent_message.endswith(f"… ({LONG + 3} characters, shortened)")


def test_models_are_shown_shortened_texts() -> None:
    """Judges and the simulated user get long texts shortened, with the missing length."""
    model = ScriptedModel(user=["Hi.", "Bye."])
    run(goal="Talk.", tools={"find": "z" * LONG}, conversations_per_scenario=1, model=model)
    sizes = {r.key.role: len("".join(m["content"] for m in r.messages)) for r in model.requests}
    assert sizes["user"] < 1.1 * MAX_CHARS
    assert sizes["judge"] < 3.1 * MAX_CHARS
    for request in model.requests:
        said = "".join(m["content"] for m in request.messages)
        if request.key.role == "judge":
            assert '<left_out characters="' in said
        elif request.key.turn:
            assert "characters, shortened)" in said


def test_shortened_conversations_are_not_judged_again(tmp_path: Path) -> None:
    """Judging a shortened conversation again makes it errored."""
    result, _ = run(turns=["Hi", "Bye."], tools={"find": 1})
    document = to_json(result)
    assert document["scenarios"][0]["conversations"][0]["shortened"] is True
    (tmp_path / "results.json").write_text(json.dumps(document))
    (held,) = conversations_of(read_results(tmp_path / "results.json")).values()
    assert held[0].shortened
    assert "it is not judged again" in (held[0].failure.message if held[0].failure else "")


def test_a_finished_conversation_that_was_shortened_is_not_evaluated() -> None:
    """No turn of it is judged, and its trajectory is not compared."""
    held = replace(conversation_result().conversation, shortened=True)
    unit = SimpleNamespace(scope="s")
    told: list[Any] = []

    async def go() -> Any:
        return await FinishedConversations(lambda *_: held).converse(
            ConversationRequest(unit, 1, "", told.append)
        )

    assert anyio.run(go) is held
    assert told == []
    made = scenario("s", turns=["Hi"], trajectory={"expected": ["find"]})
    evaluator = ScenarioEvaluator(scenario=made, scope="s")
    assert anyio.run(evaluator.trajectory, held) is None
    assert anyio.run(evaluator.trajectory, replace(held, shortened=False)) is not None


def test_a_key_keeps_its_name_whose_value_is_cut() -> None:
    """A short key before its long value is stored unchanged."""
    kept = shortened_value({"log": "x" * (MAX_CHARS + 1)})
    assert list(kept) == ["log"]
    assert kept["log"].endswith("characters, shortened)")


KEY = "sk-abcdefgh12345678"


def test_the_turn_that_broke_is_stored_with_its_http_exchanges() -> None:
    """Only the failed turn has request and response, redacted and shortened."""
    script = ["Fine.", fakes.Raw(f'{{"error": "{KEY}"}}'.encode(), status=500)]
    made = scenario("s", turns=["x" * 9_000, "last words"])
    with ScriptedAgent(script) as agent:
        result = run_scenarios([made], agent=agent)
    conversation = result.scenarios[0].conversations[0].conversation
    assert conversation.turns[0].exchanges == ()
    assert conversation.unfinished
    (exchange,) = conversation.unfinished.exchanges
    assert (exchange.method, exchange.url, exchange.status) == ("POST", agent.endpoint, 500)
    assert exchange.response == '{"error": "[redacted]"}'
    assert exchange.request.endswith('"content": "last words"}]}')
    assert len(exchange.request) < 5_000


@pytest.mark.parametrize("at", [8_176, 8_188])
def test_no_part_of_a_secret_is_stored_where_an_exchange_is_cut(at: int) -> None:
    """This holds even if the agent repeats its credentials in messages over the limit."""
    secret = "Zx91-Quiet-Marigold-77"
    answer = "y" * at + secret + "z" * 9_000
    made = scenario("s", turns=["x" * (32_700 + at % 60) + secret + "x" * 40_000])
    with ScriptedAgent([fakes.Raw(answer.encode(), status=500)]) as agent:
        settings = {"endpoint": agent.endpoint, "headers": {"Authorization": f"Bearer {secret}"}}
        result = run_scenarios([made], config=Config.model_validate({"agent": settings}))
    text = str(to_json(result))
    assert not [part for part in (secret[:7], secret[7:14], secret[-7:]) if part in text]
    unfinished = result.scenarios[0].conversations[0].conversation.unfinished
    assert unfinished
    assert unfinished.exchanges[0].request.endswith('x"}]}')


def test_a_check_of_the_whole_conversation_shows_the_last_exchange() -> None:
    """A failure without a turn shows the last exchange, as in results.json."""
    made = scenario("s", turns=["hi", "and?"], expect={"says": "Bye"})
    with ScriptedAgent(["Hello.", "Well."]) as agent:
        result = run_scenarios([made], agent=agent)
    first, last = to_json(result)["scenarios"][0]["conversations"][0]["turns"]
    assert "exchanges" not in first
    (exchange,) = last["exchanges"]
    assert list(exchange) == ["method", "url", "request", "status", "response"]
    assert "Well." in exchange["response"]
