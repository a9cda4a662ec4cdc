"""What a scenario is: the frozen values that `scenario()` makes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentest.config.models import ModelWish
from agentest.domain.messages import Attachment, Session
from agentest.domain.metrics import BUILTIN, MetricLevel
from agentest.domain.repeat import Repeat
from agentest.domain.results import CaseId, Reference
from agentest.mocks.binding import Mock, RecordedAnswer
from agentest.scenarios.expectations import Expect, Saying
from agentest.scenarios.matchers.display import brief
from agentest.scenarios.parser import has_text_keys, kind_of, known_keys
from agentest.scenarios.trajectory import Trajectory
from agentest.support.json_text import NotJson, check_plain


@dataclass(frozen=True, slots=True)
class ConversationPlan:
    """What a simulated user of an evaluation set says first, and how it goes on."""

    starting_prompt: str
    plan: str
    persona: str = ""
    """Who the user is, in words; "" for nobody in particular."""
    instructions: str = ""
    """A prompt of the configuration's own, in place of ours; "" for ours."""
    stop_signal: str = "</finished>"
    model: ModelWish | None = None
    """Who is to play the user; None: the configured model."""


@dataclass(frozen=True, slots=True)
class Criterion:
    """A sentence that must hold of the whole conversation, as "Never asks for the full card number".

    Attributes:
        required: whether the scenario fails where it is violated; else it is only shown.
    """

    text: str
    required: bool = True


def parse_criteria(value: Any, key: str = "criteria") -> tuple[Criterion, ...]:
    """Texts, `Criterion` values and `{"text": …, "required": …}`, in their order. Raises ValueError."""
    if isinstance(value, str | Mapping) or not isinstance(value, Sequence):
        raise ValueError(f"{key}: expected a list of texts and Criterion values, found {brief(value)}")
    criteria = tuple(_criterion(item, f"{key}[{n}]") for n, item in enumerate(value))
    texts = [criterion.text for criterion in criteria]
    for n, text in enumerate(texts):
        if text in texts[:n]:
            raise ValueError(f"{key}[{n}]: {brief(text)} is there twice; reports name each by its text")
    return criteria


def _criterion(item: Any, key: str) -> Criterion:
    if isinstance(item, Mapping):
        known = known_keys(item, ("text", "required"), key)
        if "text" not in known:
            raise ValueError(f"{key}.text: is missing; write what must hold")
        item = Criterion(known["text"], known.get("required", True))
    criterion = item if isinstance(item, Criterion) else Criterion(item)
    if not isinstance(criterion.text, str) or not criterion.text.strip():
        raise ValueError(f"{key}: expected a sentence that must hold, found {brief(criterion.text)}")
    if not isinstance(criterion.required, bool):
        raise ValueError(f"{key}.required: expected True or False, found {brief(criterion.required)}")
    return Criterion(criterion.text.strip(), criterion.required)


Check = Callable[..., Any]
"""Receives the conversation and, where it takes two, the mocks' state. Returns None, or what is wrong."""


@dataclass(frozen=True, slots=True)
class ScriptedTurn:
    """One user message of a scripted scenario and what must hold after the agent's reply."""

    user_message: str
    trajectory: tuple[Trajectory, ...] = ()
    """All of them must hold."""
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
    trajectory: tuple[Trajectory, ...] = ()
    """Of the whole conversation; all of them must hold."""
    thresholds: Mapping[str, float] = field(default_factory=dict)
    metrics: tuple[str, ...] | None = None
    tags: tuple[str, ...] = ()
    skip: str | None = None
    """Why the scenario is not run; None when it is."""
    refused: str | None = None
    """What is wrong with it, so that it cannot run; then little else of it is known. None: nothing is."""
    case: CaseId | None = None
    """Which case of an evaluation set it is; None for a scenario of a `*.sim.py`."""
    session: Session | None = None
    final_session_state: Mapping[str, Any] | None = None
    """What the state of the agent's session must hold after the last turn; None: it is not looked at."""
    expect: tuple[Saying, ...] = ()
    """What must be said in the conversation, or never."""
    state: Mapping[str, Any] | None = None
    """What the mocks' state begins with; each conversation has a copy of its own. None: it is empty."""
    final_state: Mapping[str, Any] | None = None
    """What the state of the mocks must hold at the end; None: it is not looked at."""
    check: Check | None = None
    """Is asked about the whole conversation and the state of the mocks; None: there is none."""
    user_tools: Mapping[str, Mock] = field(default_factory=dict)
    """Tools of the simulated user's own, which are shown to nobody else."""
    expected_outcome: str = ""
    """What should happen in the end; "": the goal is reached, or rightly is not."""
    criteria: tuple[Criterion, ...] = ()
    patience: int | None = None
    """How often the user takes the same answer that does not help; None: as users do, and as they see it."""
    date: str | None = None
    """The date or date-time, in ISO 8601, that user, judges and `{{date}}` see; None: today."""
    plan: ConversationPlan | None = None
    recorded: tuple[RecordedAnswer, ...] | None = None
    """What tools answered when the case of an evaluation set was recorded: for calls that no mock answers."""

    @property
    def scripted(self) -> bool:
        return bool(self.turns)

    @property
    def keeps_state(self) -> bool:
        """Whether the state of its mocks at the end is kept: something is said of it, or asked about it."""
        return any(each is not None for each in (self.state, self.final_state, self.check))

    @property
    def trajectories(self) -> tuple[Trajectory, ...]:
        """All of them: of the conversation, and of its turns."""
        return (*self.trajectory, *(each for turn in self.turns for each in turn.trajectory))

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


_KEYS = ("state", "app_name", "user_id", "session_id")


def parse_session(value: Any, key: str = "session") -> Session | None:
    """The session of a scenario; None where there is none."""
    if value is None:
        return None
    if isinstance(value, Session):
        value = {"state": value.state, "app_name": value.app_name, "user_id": value.user_id} | (
            {"session_id": value.session_id} if value.session_id else {}
        )
        value = {name: given for name, given in value.items() if given != ""}
    options = known_keys(value, _KEYS, key)
    if not options:
        raise ValueError(f"{key}: is empty; write the `state` that the agent's session begins with")
    return Session(
        _name(options, "app_name", key) or "",
        _name(options, "user_id", key) or "",
        _state(options.get("state", {}), f"{key}.state"),
        _name(options, "session_id", key),
    )


def _name(options: Mapping[str, Any], name: str, key: str) -> str | None:
    value = options.get(name)
    if value is not None and (not isinstance(value, str) or not value.strip()):
        raise ValueError(f"{key}.{name}: expected a text that is not empty, found {brief(value)}")
    return value


def _state(state: Any, key: str) -> dict[str, Any]:
    """The state as the agent gets it: a copy in JSON types, which nothing else can change."""
    if not has_text_keys(state):
        raise ValueError(f"{key}: expected a dict with texts as keys, found {kind_of(state)}")
    try:
        check_plain(dict(state))
    except NotJson as error:
        raise ValueError(f"{key}: cannot be sent, as it is no JSON: {error}") from None
    copy: dict[str, Any] = json.loads(json.dumps(dict(state)))
    return copy
