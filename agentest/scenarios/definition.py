"""What a scenario file says: `scenario()` and `sequence()`.

`scenario()` checks its options at once, so that an error points at its line. It registers the scenario with
the discovery that is importing the file, if there is one; otherwise it only returns the value. While a
discovery imports the file, a refused scenario is registered with what is wrong instead of raising: the file's
other scenarios still run, and every mistake is reported.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from typing import Any

from agentest.mocks.binding import MockSequence
from agentest.scenarios.calls import CallOrder
from agentest.scenarios.criteria import Criterion
from agentest.scenarios.making import made, refused, unreadable
from agentest.scenarios.matchers.showing import brief
from agentest.scenarios.model import Check, Scenario
from agentest.scenarios.session import Session
from agentest.support.errors import ScenarioError
from agentest.support.spelling import did_you_mean, snake_keys

_registry: ContextVar[list[Scenario] | None] = ContextVar("agentest_registry", default=None)


@contextmanager
def collecting() -> Iterator[list[Scenario]]:
    """Collect the scenarios that are defined meanwhile, in this context alone."""
    scenarios: list[Scenario] = []
    _absolute.cache_clear()  # links may lead elsewhere by now
    token = _registry.set(scenarios)
    try:
        yield scenarios
    finally:
        _registry.reset(token)


def sequence(*values: Any) -> MockSequence:
    """A mock that answers with `values` in order and then repeats the last one.

    `sequence([a, b])` is the same as `sequence(a, b)`. A value may be a function, which is called, or an
    exception, which is raised. Raises ValueError when there is no value.
    """
    steps = tuple(values[0]) if len(values) == 1 and isinstance(values[0], list) else values
    if not steps:
        raise ValueError("sequence() needs at least one value")
    if any(isinstance(step, MockSequence) for step in steps):
        raise ValueError("a sequence() cannot hold another sequence()")
    return MockSequence(steps)


def scenario(
    name: str,
    *,
    profile: str | None = None,
    goal: str | None = None,
    knowledge: Sequence[str | Mapping[str, str]] | None = None,
    user_prompt_template: str | None = None,
    conversations_per_scenario: int | None = None,
    repeat: Mapping[str, Any] | str | None = None,
    max_turns: int | None = None,
    parallel: bool | None = None,
    agent: str | None = None,
    turns: Sequence[str | Mapping[str, Any]] | None = None,
    tools: Mapping[str, Any] | None = None,
    mocks: Mapping[str, Any] | None = None,
    trajectory: Mapping[str, Any] | CallOrder | Sequence[Mapping[str, Any] | CallOrder] | None = None,
    assertions: Mapping[str, Any] | None = None,
    expect: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    state: Mapping[str, Any] | None = None,
    final_state: Mapping[str, Any] | None = None,
    check: Check | None = None,
    user_tools: Mapping[str, Any] | None = None,
    thresholds: Mapping[str, float] | None = None,
    metrics: Sequence[str] | None = None,
    expected_outcome: str | None = None,
    criteria: Sequence[str | Criterion | Mapping[str, Any]] | None = None,
    patience: int | None = None,
    date: str | datetime.date | None = None,
    tags: Sequence[str] | None = None,
    session: Session | Mapping[str, Any] | None = None,
    final_session_state: Mapping[str, Any] | None = None,
    skip: bool | str | None = None,
    **camel_case: Any,
) -> Scenario:
    """Define a scenario. Every option is also accepted in the original's camelCase.

    Args:
        name: unique within a run.
        profile: who the simulated user is.
        goal: what the simulated user wants; needed unless `turns` are given.
        knowledge: facts that the simulated user knows, texts or `{"content": text}`.
        user_prompt_template: replaces the simulated user's prompt; `{{profile}}`, `{{goal}}`,
            `{{knowledge}}` and `{{date}}` are filled in.
        conversations_per_scenario: how often to hold the conversation (default: configuration; scripted: 1).
        repeat: hold conversations until the verdict is decided, not a fixed number of them: "3..20" or
            `{"min": 3, "max": 20, "confidence": 0.95}` (default: configuration; scripted: none).
        max_turns: longest conversation, in turns (default: configuration).
        parallel: False holds its conversations one after another (default: configuration).
        agent: name of an agent of the configuration's `agents`.
        turns: makes the scenario scripted: user messages, or dicts with `user_message`, `trajectory` and
            `expect`.
        tools: tool name → mock: a value, a function or `sequence(…)`. `mocks={"tools": …}` is the same.
        trajectory: expected tool calls of the whole conversation; a list of several, each with a name, must
            hold in all. `assertions={"toolCalls": …}` is the same.
        expect: what the agent `says` and `never_says` in the whole conversation.
        state: what the mocks find in `ctx.state`; each conversation has a copy of its own.
        final_state: keys of the mocks' state → their values at the end, or matchers.
        check: a function of the conversation and the mocks' state at the end, which returns what is wrong,
            or raises AssertionError.
        user_tools: tool name → mock, for the simulated user alone.
        thresholds: metric → least average; `pass_rate` → least share of conversations that pass.
        metrics: built-in metrics to judge (default: configuration).
        expected_outcome: what should happen in the end; `goal_completion` is judged by it.
        criteria: sentences, each of which must hold of the whole conversation. A violated one fails the
            scenario, unless it is a `Criterion(text, required=False)`.
        patience: after how many answers that are the same and do not help the simulated user gives up.
        date: the date or date-time (ISO 8601) that the simulated user, judges and `{{date}}` see (default:
            configuration, else today).
        tags: for `agentest run --tag`.
        session: where the agent keeps the conversation: `state` (JSON), `app_name`, `user_id`, `session_id`.
        final_session_state: keys of the session's state → their values after the last turn, or matchers.
        skip: True or the reason why the scenario is not run.

    Raises:
        ScenarioError: with file, line, scenario and option, unless a discovery is importing the file.
    """
    options = {key: value for key, value in locals().items() if key != "camel_case" and value is not None}
    options.setdefault("name", name)
    frame = sys._getframe(1)
    file, line = _absolute(frame.f_code.co_filename), frame.f_lineno
    registry = _registry.get()
    try:
        new = made({**options, **_camel_options(camel_case, options)}, file, line)
    except Exception as error:  # noqa: BLE001 - an object of the user's own may raise wherever it is looked at
        problem = str(error) if isinstance(error, ValueError) else unreadable(options, error)
        problem = f"{file}:{line}: scenario {brief(name)}: {problem}"
        if registry is None:
            raise ScenarioError(problem) from None
        new = refused(options, file, line, problem)
    if registry is not None:
        registry.append(new)
    return new


@lru_cache(maxsize=1)
def _absolute(file: str) -> str:
    """A file's path without links. It is looked up once for all scenarios of a file."""
    return str(Path(file).resolve())


_OPTIONS = tuple(scenario.__kwdefaults__ or ())


def _camel_options(extra: Mapping[str, Any], named: Mapping[str, Any]) -> dict[str, Any]:
    options = snake_keys(extra, _OPTIONS)
    for key in options:
        if key not in _OPTIONS:
            raise ValueError(f"unknown option `{key}`; {did_you_mean(key, _OPTIONS)}")
        if key in named:
            raise ValueError(f"`{key}` is given twice, in both spellings")
    return options
