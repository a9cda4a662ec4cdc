"""The values of an exploration in progress: changed scenarios, violations and candidates."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from agentest.config.config import ExploreSettings
from agentest.domain.results import ConversationResult, Severity
from agentest.domain.results.exploration import ExploredPart, FindingRate
from agentest.domain.tool_verbs import verb_effect
from agentest.domain.transcript import Conversation, ToolCall, Turn
from agentest.runner.known_tools import tools_of_unit
from agentest.runner.plan import Unit
from agentest.scenarios import trajectory
from agentest.scenarios.model import Scenario
from agentest.scenarios.variations import as_base
from agentest.support.lazy_dataclasses import dataclass, replace
from agentest.support.patterns import PatternTimeout


class FindingKey(NamedTuple):
    """The identity of a finding: two violations with the same key are the same finding."""

    oracle: str
    tool: str = ""
    detail: str = ""  # the argument, path, marker or technique that it is about; never a value that varies
    outcome: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One broken invariant in one conversation."""

    key: FindingKey
    severity: Severity
    title: str  # without values that vary, such as `pay is repeated after a time-out`
    text: str  # one sentence with the values
    turn_index: int | None = None
    least_rate: float = 0.0
    """The least share of confirming conversations that must show it; fewer are no finding."""
    banned: trajectory.ExpectedCall | None = None
    """A call by which a saved scenario fails, if no word of the scenario itself does."""
    wanted: trajectory.ExpectedCall | None = None
    """A call without which a saved scenario fails, if no word of the scenario itself does."""
    unsaid: str = ""
    """A text in the reply of its turn by which a saved scenario fails, if no word of the scenario does."""


SEVERITIES: Mapping[str, Severity] = {
    "no_error": Severity.HIGH,
    "in_schema": Severity.HIGH,
    "no_repeated_write": Severity.CRITICAL,
    "consent": Severity.CRITICAL,
    "no_secret": Severity.CRITICAL,
    "no_obeyed_injection": Severity.CRITICAL,
    "no_claim": Severity.HIGH,
    "no_way_round": Severity.HIGH,
    "grounded_ids": Severity.HIGH,
    "bounded": Severity.MEDIUM,
    "relation": Severity.HIGH,
}
"""Invariant → severity of a violation."""


def violation(
    invariant: str,
    title: str,
    text: str,
    *,
    tool: str = "",
    detail: str = "",
    outcome: str = "",
    severity: Severity | None = None,
    **more: Any,
) -> Violation:
    """Return a violation of an invariant, with its usual severity unless given."""
    severity = SEVERITIES.get(invariant, Severity.HIGH) if severity is None else severity
    key = FindingKey(invariant, tool, detail, outcome)
    return Violation(key=key, severity=severity, title=title, text=text, **more)


@dataclass(frozen=True, eq=False)
class Base:
    """A scenario that passes as it is, with its conversations."""

    unit: Unit
    conversations: Sequence[ConversationResult]
    settings: ExploreSettings = ExploreSettings()
    others: Sequence[Base] = ()  # all scenarios that are explored, itself among them

    @cached_property
    def effects(self) -> ToolEffects:
        """What its tools do."""
        return ToolEffects(self.unit, self.settings)

    @cached_property
    def scenario(self) -> Scenario:
        """The scenario that variations change: with a fixed script and plain mocks."""
        return as_base(replace(self.unit.written or self.unit.scenario, date=self.unit.scenario.date))

    @property
    def calls(self) -> list[ToolCall]:
        """The calls of all its conversations."""
        return [call for each in self.conversations for call in each.conversation.tool_calls]

    @property
    def without(self) -> tuple[str, ...]:
        """The names of changes and invariants that the scenario leaves out."""
        exclusions = self.unit.scenario.explore
        return exclusions.without if exclusions else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Variation:
    """A changed scenario to try."""

    part: ExploredPart
    name: str  # unique among the variations of its base: "timeout of pay, call 1"
    group: str
    """What it tries, such as `timeout × pay`: the search learns by groups what is worth a second try."""
    scenario: Scenario  # the changed scenario, without the expectations that the change makes impossible
    relation: str = "fewer"
    """How its writes may relate to those of the base: `same`, `fewer` (a subset) or `new`."""
    cells: tuple[tuple[ExploredPart, str, str], ...] = ()
    """What it covers: part, tool and class of fault, tool and place, or scenario and mutation."""
    rank: int = 0
    """Lower ranks are tried first within a cell, and cells are covered in the order of their first ranks."""
    combines: tuple[str, ...] = ()  # the names of the variations that it combines; (): it is a single one
    base: Base | None = None
    """What its conversations are compared with; None: those of the base that it varies."""

    @property
    def kind(self) -> str:
        """The fault, technique or mutation that it begins with."""
        return self.name.partition(" ")[0]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its single changes."""
        return self.combines or (self.name,)


def relaxed(scenario: Scenario, *, keep_limits: bool = True) -> Scenario:
    """Return a scenario without what a change may break: expected calls, goal, outcome, final state.

    Bans, limits, `never` and `never_says` stay.

    Args:
        keep_limits: False if calls may fail, so that a right agent makes more of them.
    """
    freed: dict[str, Any] = {} if keep_limits else {"max_calls": None, "max_calls_per_tool": None}
    return replace(
        scenario,
        turns=tuple(
            replace(
                turn,
                trajectory=_relaxed_trajectories(turn.trajectory, freed),
                expect=_only_bans(turn.expect),
                reference=None,
            )
            for turn in scenario.turns
        ),
        trajectory=_relaxed_trajectories(scenario.trajectory, freed),
        expect=tuple(each for each in scenario.expect if each.never),
        thresholds={},
        metrics=(),
        expected_outcome="",
        criteria=(),
        final_state=None,
        final_session_state=None,
        check=None,
    )


def _only_bans(expect: Any) -> Any:
    if expect is None or not (expect.not_contains or expect.never_says):
        return None
    return type(expect)(not_contains=expect.not_contains, never_says=expect.never_says)


def _relaxed_trajectories(
    trajectories: Iterable[trajectory.Trajectory], freed: Mapping[str, Any]
) -> tuple[trajectory.Trajectory, ...]:
    relaxation: dict[str, Any] = {"match_mode": "contains", "expected": None, "min_calls": None, **freed}
    kept = (replace(each, rounds=False, at_most_once=False, **relaxation) for each in trajectories)
    return tuple(each for each in kept if each.about_calls or each.max_turns is not None)


class Observation(NamedTuple):
    """The input of an oracle: one conversation of a changed scenario, and the effects of its tools."""

    base: Base
    variation: Variation
    result: ConversationResult

    @property
    def effects(self) -> ToolEffects:
        """What the tools do."""
        return self.base.effects

    @property
    def conversation(self) -> Conversation:
        return self.result.conversation

    @property
    def scenario(self) -> Scenario:
        """The changed scenario."""
        return self.variation.scenario

    @property
    def base_conversations(self) -> Iterator[Conversation]:
        """The other conversations, of the unchanged scenario."""
        return (each.conversation for each in self.base.conversations if each is not self.result)

    def usual_turns(self, message: str) -> list[Turn]:
        """Return the turns of other conversations, of the unchanged scenario, that answer a message."""
        turns = (turn for each in self.base_conversations for turn in each.turns)
        return [turn for turn in turns if turn.user_message == message]

    @property
    def base_calls(self) -> Iterator[ToolCall]:
        return (call for each in self.base_conversations for call in each.tool_calls)

    @property
    def base_replies(self) -> Iterator[str]:
        return (reply for each in self.base_conversations for reply in each.replies)


Oracle = Callable[[Observation], Iterable[Violation]]
"""Yields the violations of one invariant. What it cannot decide is no violation."""
Invariants = Callable[[Observation], Sequence[Violation]]
"""Returns the violations in a conversation. What cannot be decided is no violation."""
Vary = Callable[[Base], Iterable[Variation]]  # yields the variations of one part for a base, in any order
Converse = Callable[[Unit, Scenario, str, int], Awaitable[ConversationResult]]
"""Runs one conversation: base unit, changed scenario, a name of the change, and the conversation's number."""
Observe = Callable[[Scenario, str, int], Awaitable[ConversationResult]]
"""Runs one conversation of a changed scenario: its name and number identify it for resumption."""


class Sweep:
    """What one part of an exploration tries; a subclass yields the variations of a base (`Vary`).

    Args:
        only: the names of the changes to try, or patterns of them; (): all.
    """

    def __init__(self, only: Sequence[str] = ()) -> None:
        self.only = only

    def tries(self, name: str, base: Base) -> bool:
        """Return True if a kind of change is to be tried with a base."""
        return name not in base.without and (not self.only or name in self.only)


class BudgetSpent(Exception):
    """The budget of conversations, time or cost is spent."""


class Reduced(NamedTuple):
    """A confirmed candidate, in its final form or on the way to it."""

    scenario: Scenario
    example: ConversationResult
    violation: Violation  # in the example
    rate: FindingRate
    minimal: bool = False
    file: str | None = None


Save = Callable[[FindingKey, Reduced, Unit, Variation, Observe], Awaitable[str | None]]
"""Saves a finding whose file fails; returns its path from the project, or None if it was not saved."""


# What tools do

_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_PARTY = re.compile(r"(?:^|_)(?:to|recipients?|cc|bcc|payee|beneficiary|destination|webhook|url)$")


class ToolEffects:
    """What the tools of a unit do: which of them write, which only read, and what their arguments look like.

    Declarations come first: `explore.writes`, `reads` and `expected_writes` of the scenario, `readOnlyHint`
    of MCP tools, and the methods of HTTP operations. Otherwise the verb of the name decides: a guess.
    """

    def __init__(self, unit: Unit, settings: ExploreSettings) -> None:
        self._settings = settings
        self._validators: dict[str, Any] = {}
        self._tools = {tool.name: tool for tool in tools_of_unit(unit.traits.tools, unit.scenario.tools)}
        declared = unit.scenario.trajectories
        self._reads: list[trajectory.ToolName] = [name for each in declared for name in each.reads]
        self._writes: list[trajectory.ToolName] = [
            name
            for each in declared
            if each.writes
            for step in each.expected or ()
            for name in trajectory.names_in(step)
        ]

    def is_write(self, name: str) -> bool:
        """Return True if a tool is declared, or looks, as if it changes something."""
        declared = self._declared(name)
        return declared == "write" if declared else verb_effect(name) == "write"

    def schema(self, name: str) -> Mapping[str, Any] | None:
        """Return the JSON Schema of a tool's arguments; None if it is unknown."""
        return self._tools[name].parameters if name in self._tools else None

    def argument_problem(self, name: str, args: Mapping[str, Any]) -> str:
        """Return why arguments do not fit the tool's schema; "" if they fit, or if that is unknown."""
        if name not in self._validators:
            self._validators[name] = _validator_of(self.schema(name))
        validator = self._validators[name]
        try:
            problem = None if validator is None else next(iter(validator.iter_errors(dict(args))), None)
        except Exception:  # noqa: BLE001 - a schema that cannot be used decides nothing, and is reported
            return ""
        return str(problem.message) if problem else ""

    def unusable_schemas(self) -> tuple[str, ...]:
        """Return the tools whose schema is not valid, so that no call can be found to break it."""
        return tuple(name for name, tool in self._tools.items() if not _is_usable(tool.parameters or {}))

    def party_argument(self, name: str) -> str | None:
        """Return the argument that names who receives what a tool sends; None if it has none."""
        if name in self._settings.parties:
            return self._settings.parties[name]
        properties = (self.schema(name) or {}).get("properties")
        arguments = properties if isinstance(properties, Mapping) else ()
        return next((each for each in arguments if _PARTY.search(str(each).lower())), None)

    def guessed(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the names whose effect is a guess, in order."""
        return tuple(name for name in dict.fromkeys(names) if not self._declared(name))

    def _declared(self, name: str) -> str:
        if any(_matches(each, name) for each in self._settings.writes):
            return "write"
        if any(_matches(each, name) for each in self._reads):
            return "read"
        if any(trajectory.is_one_tool(each) and each == name for each in self._writes):
            return "write"
        known = self._tools.get(name)
        if known is not None and known.read_only is not None:
            return "read" if known.read_only else "write"
        method, _, path = name.partition(" ")
        if method.isupper() and path.startswith("/"):
            return "read" if method in _SAFE_METHODS else "write"
        return ""


def _is_usable(schema: Mapping[str, Any]) -> bool:
    from agentest.support.json_schema import check_references, draft_of

    try:
        draft_of(schema).check_schema(schema)
        check_references(schema)
    except Exception:  # noqa: BLE001 - jsonschema raises many kinds for an invalid schema
        return False
    return True


def _validator_of(schema: Mapping[str, Any] | None) -> Any:
    if not schema or not schema.keys() & {"properties", "required", "additionalProperties"}:
        return None
    from agentest.support.json_schema import schema_validator

    try:
        return schema_validator(schema, lambda pattern, text: re.search(pattern, text) is not None)
    except Exception:  # noqa: BLE001 - a schema that cannot be used decides nothing
        return None


def _matches(wanted: trajectory.ToolName, name: str) -> bool:
    try:
        return trajectory.name_matches(wanted, name)
    except PatternTimeout:
        return False
