"""Deterministic checks of a reply: `expect` on a scripted turn (contract, section 3)."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from referencing.exceptions import Unresolvable

from agentest import scenario
from agentest.domain.end_reason import Ending
from agentest.domain.reasons import check_status
from agentest.domain.results import CheckResult, Status
from agentest.domain.transcript import Conversation, Turn
from agentest.judging.reply_checks import check_first_token, check_reply, reply_contains, run_reply_checks
from agentest.scenarios.expectations import Expect, parse_expect
from agentest.scenarios.matchers.comparison import equal
from agentest.support.errors import ScenarioError
from agentest.testing import ScriptedAgent, run_scenarios


def checked(expect: dict[str, Any], reply: str, latency_ms: float = 0.0) -> tuple[CheckResult, ...]:
    return check_reply(parse_expect(expect), Turn(0, "hi", reply, latency_ms=latency_ms))


def passed(expect: dict[str, Any], reply: str, latency_ms: float = 0.0) -> list[bool]:
    return [result.passed for result in checked(expect, reply, latency_ms)]


@pytest.mark.parametrize(
    ("expect", "reply", "results"),
    [
        ({"contains": "9:00"}, "at 9:00", [True]),
        ({"contains": "Nine"}, "at nine", [False]),
        ({"contains": ["a", "z"]}, "abc", [True, False]),
        ({"notContains": "sorry"}, "done", [True]),
        ({"not_contains": ["sorry", "no"]}, "no", [True, False]),
        ({"regex": r"BK-\d+"}, "your id is BK-12.", [True]),
        ({"regex": [r"^BK", re.compile("bk", re.I)]}, "x BK", [False, True]),
        ({"max_words": 3}, "one two  three\n", [True]),
        ({"maxWords": [2, 3]}, "one two three", [False, True]),
        ({"max_words": 0}, "one", [False]),
        ({"json_schema": {"type": "integer"}}, " 12 ", [True]),
        ({"jsonSchema": [{"type": "object"}, {"required": ["a"]}]}, '{"b": 1}', [True, False]),
        ({"json_schema": {}}, "not JSON", [False]),
        ({"json_schema": {}}, "NaN", [False]),
        ({"json_schema": {}}, '```json\n{"a": 1}\n```', [False]),
        ({"json_schema": {"multipleOf": 0.5}}, "1e400", [False]),
        ({"json_schema": {"$ref": "#"}}, "1", [False]),
        ({"json_schema": {"items": {"$ref": "#"}}}, "[" * 5000 + "]" * 5000, [False]),
        ({"json_schema": {"properties": {1: {"type": "string"}}}}, '{"1": 2}', [False]),
    ],
)
def test_every_check_passes_and_fails(expect: Any, reply: str, results: list[bool]) -> None:
    """Each check takes a value or a list, in either spelling, and has one result per value."""
    assert passed(expect, reply) == results


@pytest.mark.parametrize(("took", "holds"), [(99.9, True), (100.0, True), (100.1, False), (None, None)])
def test_the_first_token_of_a_reply(took: float | None, holds: bool | None) -> None:
    """`max_first_token_ms` compares the time; if the agent does not stream or the reply is empty, the check
    is errored and says what would help."""
    expect = parse_expect({"maxFirstTokenMs": [100, 1000]})
    turn = Turn(0, "hi", "Hello.", latency_ms=5000.0, first_token_ms=took)
    first, second = check_first_token(expect, turn, "bot", "set streaming: true")
    assert check_status(first) is {True: Status.PASSED, False: Status.FAILED, None: Status.ERRORED}[holds]
    assert check_status(second) is (Status.ERRORED if holds is None else Status.PASSED)
    told = f"expected the first token within 100 ms; it took {took} ms"
    unknown = "time to the first token of agent 'bot' is not known: set streaming: true"
    assert first.reason == (unknown if holds is None else told)
    quiet, _ = check_first_token(expect, replace(turn, agent_message=""), "bot", "")
    assert (quiet.error is None) is (holds is not None)


STREAMS: dict[str, tuple[dict[str, Any], str]] = {
    "not streaming": ({}, "it does not stream its replies; set streaming: true in its configuration"),
    "streaming": ({"streaming": True}, "it streams, but this reply came without text in pieces"),
    "handler": (
        {"type": "custom", "handler": lambda messages, ctx: "Hi."},
        "of type custom are not streamed",
    ),
}


@pytest.mark.parametrize("name", STREAMS)
def test_why_the_first_token_is_not_known(name: str) -> None:
    """The error names the setting of this agent that would help, if one exists."""
    given_settings, says = STREAMS[name]
    with ScriptedAgent(["Hi."]) as server:
        where = {} if "type" in given_settings else {"endpoint": server.endpoint}
        turn = {"user_message": "Hi.", "expect": {"max_first_token_ms": 1000}}
        [found] = run_scenarios([scenario("s", turns=[turn])], agent={**where, **given_settings}).scenarios
    assert found.verdict.status is Status.ERRORED
    assert says in found.verdict.reasons[0].message


@pytest.mark.parametrize(("took", "holds"), [(99.9, True), (100.0, True), (100.1, False)])
def test_latency_is_allowed_up_to_its_limit(took: float, holds: bool) -> None:
    """A reply within the limit passes; for a slower one, the rounded time shown still exceeds the limit."""
    [result] = checked({"maxLatencyMs": 100}, "ok", took)
    assert result.passed is holds
    assert f"within 100 ms; it took {took} ms" in result.reason


def test_reasons_show_expectation_and_reply() -> None:
    """The reason of a check has the expectation and the reply, shortened if it is long."""
    [result] = checked({"contains": "needle"}, "h" * 1000)
    assert "'needle' in the reply" in result.reason
    assert "hhh…" in result.reason
    assert len(result.reason) < 400
    [result] = checked({"json_schema": {"properties": {"a": {"type": "string"}}}}, '{"a": 1}')
    assert "$.a: 1 is not of type 'string'" in result.reason
    [result] = checked({"max_words": 1}, "two words")
    assert (result.check, result.reason) == ("max_words", "expected at most 1 words; the reply has 2")


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=20), st.text(min_size=1, max_size=4))
def test_contains_and_not_contains_are_opposites(reply: str, text: str) -> None:
    """For any reply and text, exactly one of `contains` and `not_contains` passes."""
    both = passed({"contains": text, "not_contains": text}, reply)
    assert sorted(both) == [False, True]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"contain": "x"}, ("expect: unknown key `contain`", "`contains`")),
        ({}, ("expect: is empty",)),
        ({"contains": []}, ("expect: is empty",)),
        ("text", ("expect: expected a dict",)),
        ({"contains": ""}, ("expect.contains",)),
        ({"contains": [3]}, ("expect.contains", "3")),
        ({"contains": None}, ("expect.contains", "None")),
        ({"regex": "("}, ("expect.regex", "'('")),
        ({"regex": 3}, ("expect.regex", "3")),
        ({"regex": re.compile(b"x")}, ("expect.regex",)),
        ({"regex": "a{99999999999999999999}"}, ("expect.regex",)),
        ({"max_words": -1}, ("expect.max_words", "-1")),
        ({"max_words": True}, ("expect.max_words", "True")),
        ({"max_words": [None]}, ("expect.max_words", "None")),
        ({"max_latency_ms": "1s"}, ("expect.max_latency_ms", "'1s'")),
        ({"max_first_token_ms": -1}, ("expect.max_first_token_ms", "-1")),
        ({"max_latency_ms": float("nan")}, ("expect.max_latency_ms", "nan")),
        ({"json_schema": "object"}, ("expect.json_schema", "'object'")),
        ({"json_schema": {"type": "strin"}}, ("expect.json_schema", "'strin'")),
        ({"json_schema": {"pattern": "("}}, ("expect.json_schema", "'('")),
        ({"json_schema": {"$schema": 3}}, ("expect.json_schema", "$schema")),
        ({"json_schema": {"$id": 3}}, ("expect.json_schema", "3")),
        ({"json_schema": {"enum": b"12"}}, ("expect.json_schema", "bytes")),
        ({"json_schema": {"$ref": "#/x", "x": {"type": "strin"}}}, ("expect.json_schema", "'strin'")),
        ({"json_schema": {"$ref": "#/title", "title": "abc"}}, ("expect.json_schema", "'abc'")),
    ],
)
def test_a_wrong_expectation_is_refused_with_its_key(given: Any, says: tuple[str, ...]) -> None:
    """A check that can never work is refused when the scenario is defined; the error names its key."""
    with pytest.raises(ValueError) as caught:
        parse_expect(given)
    assert all(text in str(caught.value) for text in says), caught.value


@pytest.fixture
def listener() -> Iterator[tuple[str, list[str]]]:
    """A server that returns a schema for any path, and the list of paths requested."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, format: str, *args: Any) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", asked
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize(
    "place",
    [
        lambda ref: {"$ref": ref},
        lambda ref: {"properties": {"a": {"items": {"anyOf": [{"$ref": ref}]}}}},
        lambda ref: {"$ref": "#/hidden/here", "hidden": {"here": {"not": {"$ref": ref}}}},
        lambda ref: {"$schema": "http://json-schema.org/draft-07/schema#", "$ref": ref},
        lambda ref: {"$schema": ref, "$ref": ref},
        lambda ref: {"$id": ref, "$ref": "other.json"},
        lambda ref: {"$dynamicRef": ref},
    ],
)
def test_a_schema_is_never_fetched(place: Any, listener: tuple[str, list[str]]) -> None:
    """A reference outside the schema is refused with the scenario's line and is never requested."""
    url, asked = listener
    expect = {"json_schema": place(f"{url}/x.json")}
    with pytest.raises(ScenarioError, match=r"test_checks\.py:\d+: .*expect\.json_schema: `\$ref` '"):
        scenario("s", turns=[{"user_message": "hi", "expect": expect}])
    assert asked == []


def test_a_schema_that_was_never_parsed_is_not_fetched_either(listener: tuple[str, list[str]]) -> None:
    """Checks built without the parser do not request a schema."""
    url, asked = listener
    with pytest.raises(Unresolvable):
        check_reply(Expect(json_schema=({"$ref": url},)), Turn(0, "hi", "1"))
    assert asked == []


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}}},
        {"$ref": "#n", "$defs": {"n": {"$anchor": "n", "type": "integer"}}},
        {"$id": "http://a.test/root", "$ref": "n", "$defs": {"n": {"$id": "n", "type": "integer"}}},
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "$ref": "#/definitions/n",
            "definitions": {"n": {"type": "integer"}},
        },
        {"anyOf": [{"type": "integer"}, {"type": "object", "properties": {"next": {"$ref": "#"}}}]},
        {"not": {"const": {"$ref": "http://nowhere.test"}}, "type": "integer"},
        {"$schema": "http://my.test/dialect", "type": "integer"},
        {"anyOf": [{"type": "integer"}, {"$ref": "https://json-schema.org/draft/2020-12/schema"}]},
    ],
)
def test_references_inside_the_schema_work(schema: Any) -> None:
    """A reference to another part of the schema, or to a published draft, is followed."""
    assert passed({"json_schema": schema}, "3") == [True]
    assert passed({"json_schema": schema}, '"x"') == [False]


def test_a_failed_check_fails_the_scenario() -> None:
    """In a run without a model, a failed check fails the scenario at its turn."""
    turns = [
        {"user_message": "hi", "expect": {"contains": "hello"}},
        {"userMessage": "bye", "expect": {"maxWords": 1}},
    ]
    with ScriptedAgent(["hello there"]) as agent:
        [found] = run_scenarios([scenario("s", turns=turns)], agent=agent).scenarios
    assert found.verdict.status is Status.FAILED
    assert [(r.kind, r.turn_index) for r in found.verdict.reasons] == [("check", 1)]


HOSTILE = "a" * 5_000 + "!"


@pytest.mark.slow
def test_a_regex_that_never_finishes() -> None:
    """A regular expression that runs out of time makes its check errored, neither passed nor failed."""
    slow = {"regex": ["(a+)+$", "a!"], "json_schema": {"pattern": "(a+)+$"}}
    first, second, schema = checked(slow, json.dumps(HOSTILE))
    for result in (first, schema):
        assert not result.passed
        assert "'(a+)+$') gave no answer within 1 s" in str(result.error)
        assert "could not be decided" in result.reason
    assert (second.passed, second.error) == (True, None)


@pytest.mark.slow
def test_alternatives_that_never_finish() -> None:
    """The time limit also stops an expression with many alternatives and no repetition."""
    (result,) = checked({"regex": "(a|a)" * 60 + "$"}, HOSTILE)
    assert "could not be decided" in result.reason


@pytest.mark.parametrize(
    "rest", [{}, {"additionalProperties": False}, {"unevaluatedProperties": False}, {"minProperties": 1}]
)
@pytest.mark.slow
def test_a_hostile_key_of_a_reply(rest: dict[str, Any]) -> None:
    """A key on which `patternProperties` runs out of time makes the check errored."""
    schema = {**rest, "patternProperties": {"^(a+)+$": {}}}
    (result,) = checked({"json_schema": schema}, json.dumps({HOSTILE: 1}))
    assert "could not be decided" in result.reason
    assert passed({"json_schema": schema}, '{"aaa": 1}') == [True]


def test_a_schema_that_takes_too_long() -> None:
    """Checks that run out of time are errored; the quick ones keep their results."""
    expect = parse_expect({"contains": "[", "json_schema": {"uniqueItems": True}})
    objects = json.dumps([{"number": number} for number in range(3_000)])
    quick, slow = anyio.run(run_reply_checks, expect, Turn(0, "hi", objects), 0.05)
    assert (quick.passed, quick.error) == (True, None)
    assert slow.error == "a check gave no answer within 0.05 s"


@pytest.mark.slow
def test_a_hostile_reply_in_a_run() -> None:
    """A hostile reply makes its scenario errored, not failed and not passed; the others are judged."""
    expect = {"regex": "^(a+)+$"}
    made = [
        scenario(name, turns=[{"user_message": name, "expect": expect}])
        for name in ("hostile", "fine", "wrong")
    ]
    replies = {"hostile": HOSTILE, "fine": "aaa", "wrong": "b"}
    with ScriptedAgent(lambda body: replies[body["messages"][0]["content"]]) as agent:
        result = run_scenarios(made, agent=agent)
    assert [found.verdict.status for found in result.scenarios] == [
        Status.ERRORED,
        Status.PASSED,
        Status.FAILED,
    ]
    assert "could not be decided" in result.scenarios[0].verdict.reasons[0].message


@settings(max_examples=200)
@given(
    st.sampled_from(
        [r"\w+", r"^\s*x", r"(?i)É+", r"[[:alpha:]]+", r"(?:a){e<=1}", r"\d{2,}", r"a*?$", "x|y?"]
    ),
    st.sampled_from([0, re.I, re.M, re.S, re.A, re.I | re.X]),
    st.text(max_size=10) | st.text("ax e\u0301É\n1\ud800", max_size=10),
)
def test_expressions_match_as_in_python(pattern: str, flags: int, reply: str) -> None:
    """An expression matches exactly as Python's `re` does, with flags and on any text."""
    with warnings.catch_warnings(action="ignore"):
        compiled = re.compile(pattern, flags)
    assert passed({"regex": compiled}, reply) == [compiled.search(reply) is not None]


COMPOSED, DECOMPOSED = "Müller", "Mu\u0308ller"


@pytest.mark.parametrize(("wanted", "reply"), [(COMPOSED, DECOMPOSED), (DECOMPOSED, COMPOSED)])
def test_texts_in_another_normal_form_are_the_same(wanted: str, reply: str) -> None:
    """What looks equal is equal, in replies and in arguments; the result says that only the form differs."""
    [held, banned] = checked({"contains": wanted, "not_contains": wanted}, f"Dear {reply},")
    assert (held.passed, banned.passed) == (True, False)
    assert "in another normal form of Unicode" in held.reason
    [plain] = checked({"contains": wanted}, wanted)
    assert "normal form" not in plain.reason
    assert equal({"name": wanted}, {"name": reply})
    assert not equal({"name": wanted}, {"name": "Muller"})
    assert reply_contains(wanted, Turn(0, "hi", reply), Conversation("c", (), Ending.SCRIPT))
