"""What a scenario file says: `scenario()`, `sequence()` and the frozen values they make.

`scenario()` checks what it is given at once, so that an error points at its line. It registers the scenario
with the discovery that is importing the file, if there is one; called otherwise it just returns the value.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentest.errors import ScenarioError
from agentest.messages import Attachment
from agentest.metrics import BUILTIN, MetricLevel, metric_name, normal_thresholds
from agentest.mocks.binding import BoundFunction, Mock, MockSequence, RecordedAnswer
from agentest.repeat import Repeat
from agentest.results import CaseId, Reference
from agentest.scenarios.conversation_plan import ConversationPlan
from agentest.scenarios.criteria import Criterion, parse_criteria
from agentest.scenarios.expectations import (
    Expect,
    Trajectory,
    known_keys,
    parse_expect,
    parse_expected_state,
    parse_trajectory,
)
from agentest.scenarios.expectations import call as call
from agentest.scenarios.session import Session as Session
from agentest.scenarios.session import parse_session
from agentest.scenarios.tools import parse_tools as parse_tools
from agentest.scenarios.values import checked_text, needed_text, positive, repeat_of, yes_or_no
from agentest.support.spelling import did_you_mean, snake_keys


@dataclass(frozen=True, slots=True)
class ScriptedTurn:
    """One user message of a scripted scenario and what must hold after the agent's reply."""

    user_message: str
    trajectory: Trajectory | None = None
    expect: Expect | None = None
    reference: Reference | None = None
    """What the turn should be, for a case of an evaluation set."""
    attachments: tuple[Attachment, ...] = ()
    """Files that the user sends along, in a case of an evaluation set."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One situation to test: who talks to the agent, what they want, and what must happen."""

    name: str
    file: str
    """Absolute path of the file in which `scenario(` was called."""
    line: int
    profile: str = ""
    goal: str = ""
    knowledge: tuple[str, ...] = ()
    user_prompt_template: str | None = None
    conversations_per_scenario: int | None = None
    repeat: Repeat | None = None
    """Hold conversations until the verdict is decided; None: as configured."""
    max_turns: int | None = None
    parallel: bool | None = None
    """Whether its conversations may be held at the same time; None: as configured."""
    agent: str | None = None
    turns: tuple[ScriptedTurn, ...] = ()
    tools: Mapping[str, Mock] = field(default_factory=dict)
    trajectory: Trajectory | None = None
    thresholds: Mapping[str, float] = field(default_factory=dict)
    metrics: tuple[str, ...] | None = None
    tags: tuple[str, ...] = ()
    skip: str | None = None
    """Why the scenario is not run; None when it is."""
    case: CaseId | None = None
    """Which case of an evaluation set it is; None for a scenario of a `*.sim.py`."""
    session: Session | None = None
    final_session_state: Mapping[str, Any] | None = None
    """What the state of the agent's session must hold after the last turn; None: it is not looked at."""
    expected_outcome: str = ""
    """What should happen in the end; "": the goal is reached, or rightly is not."""
    criteria: tuple[Criterion, ...] = ()
    patience: int | None = None
    """How often the user takes the same answer that does not help; None: as users do, and as they see it."""
    plan: ConversationPlan | None = None
    recorded: tuple[RecordedAnswer, ...] | None = None
    """What tools answered when the case of an evaluation set was recorded: for calls that no mock answers."""

    @property
    def scripted(self) -> bool:
        return bool(self.turns)

    @property
    def trajectories(self) -> tuple[Trajectory, ...]:
        """All of them: of the conversation, and of its turns."""
        all_of_them = (self.trajectory, *(turn.trajectory for turn in self.turns))
        return tuple(each for each in all_of_them if each)

    @property
    def named_tools(self) -> frozenset[str]:
        """The tools whose calls it expects, forbids or limits by name."""
        references = (turn.reference for turn in self.turns if turn.reference)
        recorded = (call.name for each in references for call in each.tool_calls or ())
        return frozenset(recorded).union(*(each.named_tools for each in self.trajectories))

    def judged_by(self, metrics: Iterable[str]) -> tuple[str, ...]:
        """Those of the built-in metrics that can be judged: of turns by the goal, of the whole also by an
        expected outcome alone."""
        aims = {
            MetricLevel.TURN: bool(self.goal),
            MetricLevel.CONVERSATION: bool(self.goal or self.expected_outcome),
        }
        return tuple(name for name in metrics if aims[BUILTIN[name].level])

    @property
    def speaks_of_calls(self) -> bool:
        """Whether it has mocks, or expects, limits or forbids tool calls anywhere."""
        return bool(self.tools) or any(each.about_calls for each in self.trajectories)

    @property
    def expects_calls(self) -> bool:
        """Whether an evaluation set expects tool calls of a turn. Its criteria say if that counts."""
        return any(turn.reference and turn.reference.tool_calls for turn in self.turns)


_registry: ContextVar[list[Scenario] | None] = ContextVar("agentest_registry", default=None)


@contextmanager
def collecting() -> Iterator[list[Scenario]]:
    """Collect the scenarios that are defined meanwhile, in this context alone."""
    scenarios: list[Scenario] = []
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
    trajectory: Mapping[str, Any] | None = None,
    assertions: Mapping[str, Any] | None = None,
    thresholds: Mapping[str, float] | None = None,
    metrics: Sequence[str] | None = None,
    expected_outcome: str | None = None,
    criteria: Sequence[str | Criterion | Mapping[str, Any]] | None = None,
    patience: int | None = None,
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
        user_prompt_template: replaces the simulated user's prompt; `{{profile}}`, `{{goal}}` and
            `{{knowledge}}` are filled in.
        conversations_per_scenario: how often to hold the conversation (default: configuration; scripted: 1).
        repeat: hold conversations until the verdict is decided, not a fixed number of them: "3..20" or
            `{"min": 3, "max": 20, "confidence": 0.95}` (default: configuration; scripted: none).
        max_turns: longest conversation, in turns (default: configuration).
        parallel: False holds its conversations one after another (default: configuration).
        agent: name of an agent of the configuration's `agents`.
        turns: makes the scenario scripted: user messages, or dicts with `user_message`, `trajectory` and
            `expect`.
        tools: tool name → mock: a value, a function or `sequence(…)`. `mocks={"tools": …}` is the same.
        trajectory: expected tool calls of the whole conversation. `assertions={"toolCalls": …}` is the same.
        thresholds: metric → least average; `pass_rate` → least share of conversations that pass.
        metrics: built-in metrics to judge (default: configuration).
        expected_outcome: what should happen in the end; `goal_completion` is judged by it.
        criteria: sentences, each of which must hold of the whole conversation. A violated one fails the
            scenario, unless it is a `Criterion(text, required=False)`.
        patience: after how many answers that are the same and do not help the simulated user gives up.
        tags: for `agentest run --tag`.
        session: where the agent keeps the conversation: `state` (JSON), `app_name`, `user_id`, `session_id`.
        final_session_state: keys of the session's state → their values after the last turn, or matchers.
        skip: True or the reason why the scenario is not run.

    Raises:
        ScenarioError: with file, line, scenario and option.
    """
    options = {key: value for key, value in locals().items() if key != "camel_case" and value is not None}
    options.setdefault("name", name)
    frame = sys._getframe(1)
    file, line = str(Path(frame.f_code.co_filename).resolve()), frame.f_lineno
    try:
        made = _make({**options, **_camel_options(camel_case, options)}, file, line)
    except ValueError as error:
        raise ScenarioError(f"{file}:{line}: scenario {name!r}: {error}") from None
    registry = _registry.get()
    if registry is not None:
        registry.append(made)
    return made


_OPTIONS = tuple(scenario.__kwdefaults__ or ())


def _camel_options(extra: Mapping[str, Any], named: Mapping[str, Any]) -> dict[str, Any]:
    options = snake_keys(extra, _OPTIONS)
    for key in options:
        if key not in _OPTIONS:
            raise ValueError(f"unknown option `{key}`; {did_you_mean(key, _OPTIONS)}")
        if key in named:
            raise ValueError(f"`{key}` is given twice, in both spellings")
    return options


def _make(options: dict[str, Any], file: str, line: int) -> Scenario:
    turns = _turns(options.get("turns"))
    goal = checked_text(options.get("goal", ""), "goal")
    if not turns and not goal.strip():
        raise ValueError(
            "has neither `goal` nor `turns`; give a goal for a simulated user, or turns for a script"
        )
    max_turns = positive(options.get("max_turns"), "max_turns")
    if max_turns is not None and turns and max_turns < len(turns):
        raise ValueError(f"max_turns: is {max_turns}, but the script has {len(turns)} turns")
    if turns and options.get("patience") is not None:
        raise ValueError("patience: is for a simulated user; a script says all its turns, so leave it out")
    return Scenario(
        name=needed_text(options["name"], "name"),
        file=file,
        line=line,
        profile=checked_text(options.get("profile", ""), "profile"),
        goal=goal,
        knowledge=_knowledge(options.get("knowledge", ())),
        user_prompt_template=_template(options.get("user_prompt_template")),
        conversations_per_scenario=positive(
            options.get("conversations_per_scenario"), "conversations_per_scenario"
        ),
        repeat=repeat_of(options),
        max_turns=max_turns,
        parallel=yes_or_no(options.get("parallel"), "parallel"),
        agent=needed_text(options["agent"], "agent") if "agent" in options else None,
        turns=turns,
        tools=parse_tools(options),
        trajectory=_trajectory(options),
        thresholds=_thresholds(options.get("thresholds", {})),
        metrics=_metrics(options.get("metrics")),
        expected_outcome=_expected_outcome(options),
        criteria=parse_criteria(options.get("criteria", ())),
        patience=positive(options.get("patience"), "patience"),
        tags=_tags(options.get("tags", ())),
        skip=_skip(options.get("skip")),
        session=parse_session(options.get("session")),
        final_session_state=parse_expected_state(options.get("final_session_state"), "final_session_state"),
    )


def _expected_outcome(options: Mapping[str, Any]) -> str:
    text = options.get("expected_outcome")
    return "" if text is None else needed_text(text, "expected_outcome").strip()


def _knowledge(facts: Any) -> tuple[str, ...]:
    if isinstance(facts, str) or not isinstance(facts, Sequence):
        raise ValueError(f"knowledge: expected a list of texts, found {facts!r}")
    return tuple(_knowledge_item(item, f"knowledge[{i}]") for i, item in enumerate(facts))


def _knowledge_item(item: Any, key: str) -> str:
    if isinstance(item, Mapping):
        return needed_text(known_keys(item, ("content",), key).get("content"), f"{key}.content")
    return needed_text(item, key)


PLACEHOLDERS = ("profile", "goal", "knowledge")


def _template(template: Any) -> str | None:
    if template is None:
        return None
    from agentest.support.templates import placeholders

    text = needed_text(template, "user_prompt_template")
    for name in placeholders(text):
        if name not in PLACEHOLDERS:
            raise ValueError(
                f"user_prompt_template: unknown placeholder {{{{{name}}}}}; "
                f"{did_you_mean(name, PLACEHOLDERS)}"
            )
    return text


def _turns(turns: Any) -> tuple[ScriptedTurn, ...]:
    if turns is None:
        return ()
    if isinstance(turns, str) or not isinstance(turns, Sequence):
        raise ValueError(f"turns: expected a list of user messages, found {turns!r}")
    if not turns:
        raise ValueError("turns: is empty; give at least one user message")
    return tuple(_turn(item, f"turns[{i}]") for i, item in enumerate(turns))


def _turn(item: Any, key: str) -> ScriptedTurn:
    if isinstance(item, str):
        return ScriptedTurn(item)
    options = known_keys(item, ("user_message", "assertions", "trajectory", "expect"), key)
    if "user_message" not in options:
        raise ValueError(f"{key}.user_message: is missing")
    trajectory = _trajectory(options, f"{key}.")
    if trajectory and trajectory.max_turns is not None:
        raise ValueError(f"{key}.trajectory.max_turns: belongs to the scenario, not to one turn")
    expect = parse_expect(options["expect"], f"{key}.expect") if "expect" in options else None
    return ScriptedTurn(checked_text(options["user_message"], f"{key}.user_message"), trajectory, expect)


def _trajectory(options: Mapping[str, Any], prefix: str = "") -> Trajectory | None:
    values = {name: options[name] for name in ("trajectory", "assertions") if options.get(name) is not None}
    if len(values) > 1:
        raise ValueError(f"{prefix}trajectory: is given twice, as `trajectory` and as `assertions`")
    if "assertions" in values:
        inner = known_keys(values["assertions"], ("tool_calls",), f"{prefix}assertions")
        if "tool_calls" not in inner:
            raise ValueError(f"{prefix}assertions.tool_calls: is missing")
        return parse_trajectory(inner["tool_calls"], f"{prefix}assertions.tool_calls")
    return parse_trajectory(values["trajectory"], f"{prefix}trajectory") if values else None


def _thresholds(thresholds: Any) -> dict[str, float]:
    if not isinstance(thresholds, Mapping):
        raise ValueError(f"thresholds: expected a dict from metric to number, found {thresholds!r}")
    try:
        return normal_thresholds(thresholds)
    except ValueError as error:
        raise ValueError(f"thresholds: {error}") from None


def _metrics(names: Any) -> tuple[str, ...] | None:
    if names is None:
        return None
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise ValueError(f"metrics: expected a list of metric names, found {names!r}")
    return tuple(metric_name(needed_text(name, "metrics")) for name in names)


def _tags(tags: Any) -> tuple[str, ...]:
    if isinstance(tags, str) or not isinstance(tags, Sequence):
        raise ValueError(f"tags: expected a list of texts, found {tags!r}")
    return tuple(needed_text(tag, "tags") for tag in tags)


def _skip(skip: Any) -> str | None:
    if skip is None or skip is False:
        return None
    return "skip=True" if skip is True else needed_text(skip, "skip")


__all__ = [
    "BoundFunction",
    "Scenario",
    "ScriptedTurn",
    "call",
    "collecting",
    "scenario",
    "sequence",
]
