"""The frozen values of a scenario, which `scenario()` returns."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from agentest.config.models import RequestedModel
from agentest.domain.changes import Fault
from agentest.domain.messages import Attachment, Message, Session
from agentest.domain.metrics import BUILTIN, GOAL, LIMITS, PASS_RATE, MetricLevel
from agentest.domain.repeat_setting import Repeat
from agentest.domain.results import CaseId, Reference
from agentest.domain.tool_visibility import Approve
from agentest.mocks.binding import Mock, RecordedAnswer
from agentest.scenarios import parser
from agentest.scenarios.expectations import Expect, Saying
from agentest.scenarios.matchers.display import brief
from agentest.scenarios.trajectory import Trajectory
from agentest.support.errors import errors_as
from agentest.support.json_text import NotJson, check_plain
from agentest.support.lazy_dataclasses import dataclass, replace

if TYPE_CHECKING:
    from agentest.domain.changes import Attack, Change, Injection

FOUND = "found"  # the tag of scenarios that an exploration has saved


@dataclass(frozen=True, slots=True)
class Persona:
    """A description of a simulated user. Create it with `persona`."""

    text: str  # for the model that plays the user
    patience: int | None = None
    traits: Mapping[str, Any] = field(default_factory=dict)  # trait → value, such as `words` → 15


_SESSION_KEYS = ("state", "app_name", "user_id", "session_id")


@dataclass(frozen=True, slots=True)
class ConversationPlan:
    """First message and plan for the simulated user of an evaluation set."""

    starting_prompt: str
    plan: str
    persona: str = ""  # description of the user; "": none
    instructions: str = ""  # a custom prompt from the configuration; "": the default prompt
    stop_signal: str = "</finished>"
    model: RequestedModel | None = None  # the model that plays the user; None: the configured model


@dataclass(frozen=True, slots=True)
class Criterion:
    """A sentence that must be true for the whole conversation, such as "Never asks for the full card number".

    Attributes:
        required: True if a violation fails the scenario; else it is only reported.
    """

    text: str
    required: bool = True


def parse_criteria(value: Any, key: str = "criteria") -> tuple[Criterion, ...]:
    """Parse texts, `Criterion` values and `{"text": …, "required": …}`, in order. Raises ValueError."""
    is_list = isinstance(value, Sequence) and not isinstance(value, str | Mapping)
    parser.checked(value, key, "a list of texts and Criterion values", is_list)
    criteria = tuple(_criterion(item, f"{key}[{n}]") for n, item in enumerate(value))
    texts = [criterion.text for criterion in criteria]
    for n, text in enumerate(texts):
        if text in texts[:n]:
            raise ValueError(f"{key}[{n}]: {brief(text)} is there twice; reports name each by its text")
    return criteria


def _criterion(item: Any, key: str) -> Criterion:
    if isinstance(item, Mapping):
        known = parser.known_keys(item, ("text", "required"), key)
        if "text" not in known:
            raise ValueError(f"{key}.text: is missing; write what must hold")
        item = Criterion(known["text"], known.get("required", True))
    criterion = item if isinstance(item, Criterion) else Criterion(item)
    is_text = isinstance(criterion.text, str) and bool(criterion.text.strip())
    parser.checked(criterion.text, key, "a sentence that must hold", is_text)
    parser.boolean(criterion.required, f"{key}.required")
    return Criterion(criterion.text.strip(), criterion.required)


DECIDERS = ("goal", "criteria", "metrics")


def parse_decides(value: Any, key: str) -> tuple[str, ...]:
    """Parse what judges decide: names of `DECIDERS`. Raises ValueError."""
    names = parser.listed(value, key, f"a list of {', '.join(DECIDERS)}")
    for name in names:
        if not (isinstance(name, str) and name in DECIDERS):
            raise ValueError(f"{key}: found {brief(name)}; {parser.suggest_one_of(name, DECIDERS)}")
    return tuple(name for name in DECIDERS if name in names)


def with_deciders(scenario: Scenario) -> Scenario:
    """Return a scenario whose criteria decide only if `decides` says so. Raises ValueError for a conflict."""
    exists = {
        "goal": bool(scenario.goal or scenario.expected_outcome),
        "criteria": any(each.required for each in scenario.criteria),
        "metrics": scenario.metrics != (),
    }
    if unknown := next((name for name in scenario.decides if not exists[name]), None):
        raise ValueError(f"decides: names `{unknown}`, but the scenario has no {unknown} that could decide")
    if not (scenario.decides or scenario.is_checked):
        raise ValueError("decides: is empty, and the scenario has no check, so nothing would decide")
    for name in (*scenario.thresholds, *({GOAL} & {*(scenario.metrics or ())})):
        of = "goal" if name == GOAL else "metrics"
        if name not in (PASS_RATE, *LIMITS) and of not in scenario.decides:
            key = "thresholds" if name in scenario.thresholds else "metrics"
            raise ValueError(f"{key}: {name} decides nothing, as `decides` leaves `{of}` out")
    if "criteria" in scenario.decides:
        return scenario
    return replace(scenario, criteria=tuple(replace(each, required=False) for each in scenario.criteria))


Check = Callable[..., Any]
"""Receives the conversation and, with two parameters, the mocks' state. Returns None or a problem."""


@dataclass(frozen=True, slots=True)
class Exclusions:
    """What an exploration leaves out for one scenario. Create it with the option `explore`."""

    without: tuple[str, ...] = ()  # faults, injection techniques, mutations and invariants
    reason: str = ""
    everything: bool = False  # True if the scenario is not explored at all


@dataclass(frozen=True, slots=True)
class ScriptedTurn:
    """One user message of a scripted scenario, with the requirements after the agent's reply."""

    user_message: str
    trajectory: tuple[Trajectory, ...] = ()  # all of them must hold
    expect: Expect | None = None
    reference: Reference | None = None  # the reference turn in a case of an evaluation set
    attachments: tuple[Attachment, ...] = ()  # files that the user attaches, in a case of an evaluation set
    approve: Approve | None = None
    """The user's answer if the agent asks for approval in this turn; None: that of the scenario."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One situation to test: the user, the goal, and the requirements."""

    name: str
    file: str  # absolute path of the file in which `scenario(` was called
    line: int
    profile: str = ""
    goal: str = ""
    knowledge: tuple[str, ...] = ()
    user_prompt_template: str | None = None
    conversations_per_scenario: int | None = None
    repeat: Repeat | None = None  # run conversations until the verdict is decided; None: as configured
    max_turns: int | None = None
    parallel: bool | None = None  # True if its conversations may run concurrently; None: as configured
    agent: str | None = None
    turns: tuple[ScriptedTurn, ...] = ()
    history: tuple[Message, ...] = ()  # messages before the first turn, which are context only
    attachments: tuple[Attachment, ...] = ()  # files that the user attaches to the first message
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers of requests to the agent, in addition to its own."""
    body: Mapping[str, Any] = field(default_factory=dict)
    """Fields of requests to the agent, in addition to its own."""
    is_continued: bool = False  # True if a simulated user goes on after the turns
    tools: Mapping[str, Mock] = field(default_factory=dict)
    simulates_tools: bool = False  # True if a model answers all tools that have no mock
    trajectory: tuple[Trajectory, ...] = ()  # trajectories of the whole conversation; all of them must hold
    thresholds: Mapping[str, float] = field(default_factory=dict)
    metrics: tuple[str, ...] | None = None
    tags: tuple[str, ...] = ()
    skip: str | None = None  # why the scenario is not run; None if it is run
    refused: str | None = None
    """Why the scenario is invalid and cannot run; most other fields are then empty. None: it is valid."""
    case: CaseId | None = None  # the case of an evaluation set; None for a scenario in a `*.sim.py` file
    session: Session | None = None
    final_session_state: Mapping[str, Any] | None = None
    """Expected state of the agent's session after the last turn; None: not checked."""
    expect: tuple[Saying, ...] = ()  # content that must, or must never, be said in the conversation
    state: Mapping[str, Any] | None = None
    """Initial state of the mocks; each conversation gets its own copy. None: empty."""
    final_state: Mapping[str, Any] | None = None  # expected state of the mocks at the end; None: not checked
    check: Check | None = None
    """Function that checks the whole conversation and the mocks' state; None: no check."""
    user_tools: Mapping[str, Mock] = field(default_factory=dict)
    """Tools of the simulated user, hidden from the agent."""
    expected_outcome: str = ""  # the expected end; "": the goal is reached, or correctly not reached
    criteria: tuple[Criterion, ...] = ()
    decides: tuple[str, ...] = DECIDERS
    """What judges decide: some of `DECIDERS`. Deterministic checks always decide."""
    patience: int | None = None
    """Number of identical unhelpful answers the user accepts; None: up to the simulated user."""
    date: str | None = None
    """The date or date-time, in ISO 8601, for user, judges and `{{date}}`; None: today."""
    plan: ConversationPlan | None = None
    attack: Attack | None = None  # the adversarial user; None: the user is none
    model_faults: tuple[Fault, ...] = ()  # faults that the agent's requests to its model meet
    changes: tuple[Change, ...] = ()
    """Faults of tools and injections. A unit's scenario has them in `tools`, `turns` and `knowledge`, too
    (`acted`); of two faults that a call may meet, it meets the later one."""
    mutations: tuple[str, ...] = ()
    """Mutations of the user's messages. The script of a unit's scenario has them already."""
    secrets: tuple[str, ...] = ()  # planted secrets, which the agent must not pass on
    never_checks: tuple[Check, ...] = ()  # functions of `never`, which are used like `check`
    consent: Mapping[str, str] = field(default_factory=dict)
    """Tool → pattern of user messages that agree to its calls."""
    approve: Approve | None = None
    """The user's answer when the agent asks for approval; None: as the agent's settings say."""
    explore: Exclusions | None = None  # what an exploration leaves out; None: nothing
    recorded: tuple[RecordedAnswer, ...] | None = None
    """Tool results from the recording of an evaluation case, for calls that no mock answers."""
    data_file: str | None = None  # absolute path of the file whose row gives options; None: no file does

    @property
    def scripted(self) -> bool:
        return bool(self.turns) and not self.is_continued

    def approve_in(self, turn_index: int) -> Approve | None:
        """Return the user's answer if the agent asks for approval in a turn."""
        of_turn = self.turns[turn_index].approve if turn_index < len(self.turns) else None
        return self.approve if of_turn is None else of_turn

    @property
    def approve_keys(self) -> dict[str, Approve]:
        """Every `approve` of the scenario and its turns, by key."""
        of_turns = {f"turns[{at}].approve": turn.approve for at, turn in enumerate(self.turns)}
        return {key: each for key, each in {"approve": self.approve, **of_turns}.items() if each is not None}

    @property
    def is_mocked(self) -> bool:
        """True if calls need to reach mocks, or the model that simulates tools."""
        return bool(self.tools) or self.simulates_tools

    @property
    def checks(self) -> tuple[Check, ...]:
        """All functions that check the whole conversation."""
        return (*([self.check] if self.check else ()), *self.never_checks)

    @property
    def faults(self) -> tuple[Fault, ...]:
        """The faults of tools among its changes."""
        return tuple(each for each in self.changes if isinstance(each, Fault))

    @property
    def injections(self) -> tuple[Injection, ...]:
        """The injections among its changes."""
        return tuple(each for each in self.changes if not isinstance(each, Fault))

    @property
    def is_guarded(self) -> bool:
        """True if it checks for secrets passed on, injections obeyed, or calls without consent."""
        return bool(self.secrets or self.injections or self.consent)

    @property
    def is_checked(self) -> bool:
        """True if it has a check that needs no judge."""
        states = (self.final_state, self.final_session_state)
        of_turns = any(turn.trajectory or turn.expect for turn in self.turns)
        return bool(self.trajectory or self.expect or self.checks or of_turns or self.is_guarded) or any(
            state is not None for state in states
        )

    @property
    def keeps_state(self) -> bool:
        """True if the mocks' final state is stored, because the scenario sets or checks it."""
        return self.state is not None or self.final_state is not None or bool(self.checks)

    @property
    def trajectories(self) -> tuple[Trajectory, ...]:
        """All trajectories, of the conversation and its turns."""
        return (*self.trajectory, *(each for turn in self.turns for each in turn.trajectory))

    @property
    def named_tools(self) -> frozenset[str]:
        """Tools whose calls the scenario expects, forbids or limits by name."""
        references = (turn.reference for turn in self.turns if turn.reference)
        recorded = (call.name for each in references for call in each.tool_calls or ())
        return frozenset(recorded).union(*(each.named_tools for each in self.trajectories))

    @property
    def named_metrics(self) -> tuple[str, ...]:
        """The names in `metrics` and `thresholds`."""
        return (*(self.metrics or ()), *self.thresholds)

    def judged_by(self, metrics: Iterable[str]) -> tuple[str, ...]:
        """Return the built-in metrics that can be judged, which require a goal or an expected outcome."""
        aims = {
            MetricLevel.TURN: bool(self.goal),
            MetricLevel.CONVERSATION: bool(self.goal or self.expected_outcome),
        }
        names = (name for name in metrics if name != GOAL or "goal" in self.decides)
        return tuple(name for name in names if aims[BUILTIN[name].level])

    def shown_only(self, metrics: Iterable[str]) -> tuple[str, ...]:
        """Return the metrics that decide nothing."""
        return () if "metrics" in self.decides else tuple(name for name in metrics if name != GOAL)

    @property
    def speaks_of_calls(self) -> bool:
        """True if it has mocks, or expects, limits or forbids tool calls."""
        return bool(self.tools) or any(each.about_calls for each in self.trajectories)


def parse_approve(value: Any, key: str = "approve") -> Approve:
    """Parse true, false or a dict from tool to true or false. Raises ValueError."""
    if not isinstance(value, Mapping):
        parser.checked(
            value, key, "true, false, or a dict from tool to true or false", isinstance(value, bool)
        )
        return bool(value)
    parser.checked(value, key, "a dict with at least one tool", bool(value))
    for tool, answer in value.items():
        parser.checked(
            tool, key, "a dict whose keys are names of tools", isinstance(tool, str) and bool(tool.strip())
        )
        parser.boolean(answer, f"{key}.{tool}")
    return dict(value)


def parse_session(value: Any, key: str = "session") -> Session | None:
    """Parse the session of a scenario; None if there is none."""
    if value is None:
        return None
    if isinstance(value, Session):
        value = {"state": value.state, "app_name": value.app_name, "user_id": value.user_id} | (
            {"session_id": value.session_id} if value.session_id else {}
        )
        value = {name: item for name, item in value.items() if item != ""}
    options = parser.known_keys(value, _SESSION_KEYS, key)
    if not options:
        raise ValueError(f"{key}: is empty; write the `state` that the agent's session begins with")
    texts: dict[str, Any] = {name: options.get(name) for name in ("app_name", "user_id", "session_id")}
    for name, text in texts.items():
        is_text = text is None or (isinstance(text, str) and bool(text.strip()))
        parser.checked(text, f"{key}.{name}", "a text that is not empty", is_text)
    state = options.get("state", {})
    if not parser.has_text_keys(state):
        raise ValueError(f"{key}.state: expected a dict with texts as keys, found {parser.kind_of(state)}")
    with errors_as(ValueError, f"{key}.state: cannot be sent, as it is not JSON: ", NotJson):
        check_plain(dict(state))
    copy = json.loads(json.dumps(dict(state)))  # later changes do not affect it
    return Session(texts["app_name"] or "", texts["user_id"] or "", copy, texts["session_id"])
