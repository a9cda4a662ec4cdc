"""Encode and decode all stored dataclasses, based on their fields.

A field `agent_message` has the key `agentMessage`. The type of a field determines its JSON form; a `Layout`
has the exceptions. Unknown keys are ignored, and a key that an older version did not write gets the field's
default.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from enum import Enum, IntEnum
from functools import partial
from types import NoneType, UnionType
from typing import Any, Generic, TypeVar, Union, get_args, get_origin, get_type_hints

from agentest.domain.end_reason import end_reason_of_older_file
from agentest.domain.results import (
    AlignedRow,
    CauseExample,
    CausePlace,
    CheckResult,
    CriterionResult,
    ModelUsage,
    Reason,
    RootCause,
    RunResult,
    ScenarioCause,
    Score,
    Skipped,
    TrajectoryResult,
    TurnEvaluation,
    UniqueError,
    Unscored,
    VerdictWarning,
)
from agentest.domain.transcript import (
    Conversation,
    Failure,
    Remark,
    ServerOutput,
    ToolCall,
    Turn,
    UnfinishedTurn,
)
from agentest.store.shapes import (
    AdkCase,
    Counts,
    RunHead,
    RunUsage,
    ScenarioLine,
    StoredAgent,
    StoredCheck,
    StoredComparison,
    StoredConversation,
    StoredEntry,
    StoredFailure,
    StoredRun,
    StoredScenario,
    StoredSlowTurn,
    StoredTime,
    StoredTrajectory,
    StoredTrajectoryScore,
    Summary,
    TurnScores,
    TurnTrajectory,
)
from agentest.support.json_text import Json, plain

T = TypeVar("T")

_MILLISECONDS_DIGITS = 3
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_JSON_TYPES = (str, int, bool, NoneType, object)
"""Types whose values are their own JSON form. A field of type `object` contains JSON already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The exceptions to the default file format of a dataclass. All names are names of fields."""

    order: tuple[str, ...] = ()
    """Fields that come first, in this order; the others follow in their own order."""
    left_out: tuple[str, ...] = ()
    """Fields that are not stored. They must have a default."""
    only_if_set: tuple[str, ...] = ()
    """Fields that are written only if they differ from their default."""
    flat: tuple[str, ...] = ()
    """Fields whose keys are merged into the object that has the field."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Field → its key, if that is not the field's name in camelCase."""
    digits: Mapping[str, int] = field(default_factory=dict)
    """Field → the number of stored decimals. Fields named `…_ms` have three."""
    older: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    """Field → a function that converts the form of older versions."""


Convert = Callable[[Any], Any] | None
"""None leaves the value unchanged."""


@dataclass(frozen=True, slots=True)
class _Form:
    """The functions that encode and decode the values of one type."""

    write: Convert = None
    read: Convert = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _FieldForm:
    """A field and its form."""

    name: str
    key: str
    write: Convert
    read: Convert
    unwritten: Any
    """The value that is not written; MISSING if all values are written."""


@dataclass(frozen=True, slots=True)
class _FlatFieldForm:
    """A field whose value's keys are merged into its owner's keys."""

    name: str
    codec: Codec[Any]


class Codecs:
    """The codecs of a file's dataclasses, created on first use.

    Args:
        layouts: the layouts of dataclasses with exceptions.
    """

    def __init__(self, layouts: Mapping[type, Layout]) -> None:
        self._layouts = layouts
        self._codecs: dict[type, Codec[Any]] = {}

    def of(self, cls: type[T]) -> Codec[T]:
        """Return the codec of a dataclass."""
        if cls not in self._codecs:
            codec = self._codecs[cls] = Codec(cls)
            codec.learn(self._layouts.get(cls, Layout()), self)  # it may contain values of its own type
        return self._codecs[cls]

    def write(self, value: object) -> Json:
        """Encode a dataclass instance in JSON types."""
        return self.of(type(value)).write(value)

    def read(self, cls: type[T], data: Mapping[str, Any]) -> T:
        """Decode a value. The data is not validated here; that is the task of the schema."""
        return self.of(cls).read(data)

    def key(self, cls: type, name: str) -> str:
        """Return the key of a field."""
        return self.of(cls).key(name)

    def form(self, hint: Any) -> _Form:
        """Return the form of a type's values."""
        if hint in _JSON_TYPES:
            return _Form()
        if hint is Any:
            return _Form(plain)
        if hint is float:
            return _Form(_written_number, _read_number)
        if get_origin(hint) in (Union, UnionType):
            return self._union(get_args(hint))
        if get_origin(hint):
            return self._container(hint)
        return _enum(hint) if issubclass(hint, Enum) else _form_of(self.of(hint))

    def _container(self, hint: Any) -> _Form:
        if get_origin(hint) is tuple:
            item = self.form(get_args(hint)[0])
            return _Form(partial(_list, item.write), partial(_tuple, item.read))
        if get_origin(hint) is Mapping:
            item = self.form(get_args(hint)[1])
            return _Form(partial(_dict, item.write), partial(_dict, item.read))
        raise TypeError(f"{hint} has no form in a file")

    def _union(self, hints: tuple[Any, ...]) -> _Form:
        others = [hint for hint in hints if hint is not NoneType]
        form = self._any_of(others) if len(others) > 1 else self.form(others[0])
        return _Form(_unless_none(form.write), _unless_none(form.read)) if NoneType in hints else form

    def _any_of(self, hints: list[Any]) -> _Form:
        if all(map(is_dataclass, hints)):
            codecs = [self.of(hint) for hint in hints]
            return _Form(self.write, lambda data: _codec_for(codecs, data).read(data))
        return _Form(plain, _read_number) if float in hints else _Form()


class Codec(Generic[T]):
    """Encodes and decodes one dataclass."""

    def __init__(self, cls: type[T]) -> None:
        self._cls = cls
        self._members: list[_FieldForm | _FlatFieldForm] = []
        self._needed: set[str] = set()

    def learn(self, layout: Layout, codecs: Codecs) -> None:
        """Determine how the fields are encoded and decoded."""
        hints = get_type_hints(self._cls)
        stored = [each for each in fields(self._cls) if each.name not in layout.left_out]  # type: ignore[arg-type]
        first = {name: place for place, name in enumerate(layout.order)}
        stored.sort(key=lambda each: first.get(each.name, len(first)))
        self._members = [
            _FlatFieldForm(each.name, codecs.of(_without_none(hints[each.name])))
            if each.name in layout.flat
            else _member(each, codecs.form(hints[each.name]), layout)
            for each in stored
        ]
        for each, member in zip(stored, self._members, strict=True):
            if each.default is MISSING and each.default_factory is MISSING:
                self._needed |= member.codec._needed if isinstance(member, _FlatFieldForm) else {member.key}

    @property
    def keys(self) -> dict[str, bool]:
        """Return every key, and whether it is always written."""
        keys: dict[str, bool] = {}
        for member in self._members:
            if isinstance(member, _FlatFieldForm):
                keys |= member.codec.keys
            else:
                keys[member.key] = member.unwritten is MISSING
        return keys

    def key(self, name: str) -> str:
        """Return the key of a field."""
        return next(m.key for m in self._members if isinstance(m, _FieldForm) and m.name == name)

    def write(self, value: T) -> Json:
        """Encode the value in JSON types."""
        data: Json = {}
        for member in self._members:
            content = getattr(value, member.name)
            if isinstance(member, _FlatFieldForm):
                if content is not None:
                    data.update(member.codec.write(content))
            elif member.unwritten is MISSING or content != member.unwritten:
                data[member.key] = content if member.write is None else member.write(content)
        return data

    def read(self, data: Mapping[str, Any]) -> T:
        """Decode a value."""
        values = {}
        for member in self._members:
            if isinstance(member, _FlatFieldForm):
                if member.codec.is_in(data):
                    values[member.name] = member.codec.read(data)
            elif member.key in data:
                content = data[member.key]
                values[member.name] = content if member.read is None else member.read(content)
        return self._cls(**values)

    def is_in(self, data: Mapping[str, Any]) -> bool:
        """True if the data contains such a value, that is, each key without a default."""
        return all(key in data for key in self._needed)


def _member(each: Field[Any], form: _Form, layout: Layout) -> _FieldForm:
    digits = layout.digits.get(each.name, _MILLISECONDS_DIGITS if each.name.endswith("_ms") else None)
    write = form.write if digits is None else partial(_rounded, digits)
    older = layout.older.get(each.name)
    read = form.read
    if older:
        read = partial(_read_older, older, form.read)
    default = each.default_factory() if each.default_factory is not MISSING else each.default
    return _FieldForm(
        name=each.name,
        key=layout.names.get(each.name, _camel_case(each.name)),
        write=write,
        read=read,
        unwritten=default if each.name in layout.only_if_set else MISSING,
    )


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def _without_none(hint: Any) -> Any:
    """Return the type of an optional value."""
    return next((each for each in get_args(hint) if each is not NoneType), hint)


def _codec_for(codecs: list[Codec[Any]], data: Mapping[str, Any]) -> Codec[Any]:
    return next(codec for codec in codecs if codec.is_in(data))


def _form_of(codec: Codec[Any]) -> _Form:
    return _Form(codec.write, codec.read)


def _enum(cls: type[Enum]) -> _Form:
    """Encode members by value, or ordered numbers by their names in lower case."""
    if issubclass(cls, IntEnum):
        return _Form(lambda member: member.name.lower(), lambda name: cls[name.upper()])
    return _Form(lambda member: member.value, cls)


def _unless_none(convert: Convert) -> Convert:
    return None if convert is None else lambda value: None if value is None else convert(value)


def _list(convert: Convert, values: Any) -> list[Any]:
    return list(values) if convert is None else [convert(value) for value in values]


def _tuple(convert: Convert, values: Any) -> tuple[Any, ...]:
    return tuple(values) if convert is None else tuple([convert(value) for value in values])


def _dict(convert: Convert, values: Mapping[str, Any]) -> Json:
    return dict(values) if convert is None else {key: convert(value) for key, value in values.items()}


def _rounded(digits: int, value: float | None) -> float | None:
    return None if value is None else round(value, digits)


def _written_number(value: float) -> float | str:
    """Return the number, or its name if JSON has no form for it."""
    return value if math.isfinite(value) else json.dumps(value)


def _read_number(value: Any) -> Any:
    return _NOT_FINITE.get(value, value) if isinstance(value, str) else value


def _read_older(older: Callable[[Any], Any], read: Convert, data: Any) -> Any:
    data = older(data)
    return data if read is None else read(data)


def _agents(data: Any) -> Any:
    """Read the agents of a version 1 file, by name."""
    return {name: {} for name in data} if isinstance(data, list) else data


def _verdict_warnings(data: Any) -> Any:
    """Read the warnings that question a verdict; older files have texts of other warnings under this key."""
    return [each for each in data if not isinstance(each, str)]


_ALIGNMENT = ("alignment", "alignment_more")
_SEVERAL = ("broken", "counted", "name", "score", "parts")
_SIDES = ("mode", "expected", "forbidden", "actual")
_ALL_BUT_THE_MESSAGE = (
    *("conversation_id", "turn_index", "metric", "expected", "actual"),
    *("group", "check", "trajectory", "criterion"),
)

CODECS = Codecs(
    {
        Remark: Layout(only_if_set=("calls_before",)),
        ToolCall: Layout(
            order=("name", "args", "result", "mocked", "seen_by", "also_seen_by", "call_id"),
            only_if_set=(
                *("also_seen_by", "call_id", "duration_ms", "round"),
                *("raised", "approval", "by_real_tool"),
            ),
            names={"call_id": "id"},
        ),
        Turn: Layout(
            order=(
                "turn_index",
                "user_message",
                "agent_message",
                "tool_calls",
                "latency_ms",
                "retries",
                "requests",
            ),
            only_if_set=(
                "author",
                "state_after",
                "state_error",
                "model_calls",
                "first_token_ms",
                "tells_calls",
                "calls_hidden",
                "call_refused",
                "started_at",
                "user_ms",
                "tools_ms",
                "asked_calls",
                "redacted",
            ),
        ),
        UnfinishedTurn: Layout(
            only_if_set=("server_output", "started_at", "user_ms", "tools_ms", "agent_ms", "redacted")
        ),
        ServerOutput: Layout(only_if_set=("lines_before", "exit_status")),
        Score: Layout(
            left_out=("rubrics",), only_if_set=("samples", "labels", "outcome", "evidence", "severity")
        ),
        CriterionResult: Layout(only_if_set=("samples",)),
        UniqueError: Layout(only_if_set=("fails",)),
        StoredFailure: Layout(only_if_set=("severity",)),
        Unscored: Layout(only_if_set=("own_code",)),
        Skipped: Layout(names={"why": "skipped"}),
        ModelUsage: Layout(order=("calls", "retries"), flat=("tokens",), digits={"cost": 6}),
        StoredTime: Layout(flat=("spent",)),
        StoredTrajectoryScore: Layout(flat=("score",)),
        StoredTrajectory: Layout(only_if_set=(*_SIDES, "without_calls", "vacuous", *_ALIGNMENT, *_SEVERAL)),
        AlignedRow: Layout(only_if_set=("difference",)),
        TurnScores: Layout(only_if_set=("judged_ms",)),
        StoredCheck: Layout(only_if_set=("reply", "turn_index")),
        TurnTrajectory: Layout(flat=("trajectory",)),
        StoredConversation: Layout(
            only_if_set=(
                *("shortened", "initial_state", "criteria", "invalid"),
                *("checks", "mock_state", "inexact_state", "user_calls"),
                *("severe_failures", "severity_unknown"),
            ),
            names={"user_calls": "userToolCalls"},
            flat=("adk",),
            older={"ended_by": end_reason_of_older_file},
        ),
        AdkCase: Layout(flat=("case",)),
        StoredScenario: Layout(
            flat=("repeated", "adk"),
            only_if_set=(
                *("goal", "profile", "information", "causes", "reasons", "intervals"),
                *("pass_rate", "pass_hat_k", "flaky", "severity_unknown", "verdict_warnings"),
            ),
        ),
        Counts: Layout(only_if_set=("pass_rate",)),
        Reason: Layout(only_if_set=_ALL_BUT_THE_MESSAGE),
        TrajectoryResult: Layout(
            left_out=(*_ALIGNMENT, "score", "parts"), only_if_set=(*_SIDES, "broken", "without_calls", "name")
        ),
        CheckResult: Layout(only_if_set=("reply", "error", "turn_index")),
        StoredEntry: Layout(flat=("scenario",)),
        ScenarioLine: Layout(only_if_set=("amended",)),
        StoredAgent: Layout(only_if_set=("no_call_seen",)),
        StoredSlowTurn: Layout(only_if_set=("first_token_ms",)),
        RunUsage: Layout(flat=("tokens",), digits={"cost": 6}),
        Summary: Layout(
            flat=("counts",),
            only_if_set=("unclaimed_calls", "silent_agents", "unanswered_calls", "per_agent"),
            older={"warnings": _verdict_warnings},
        ),
        VerdictWarning: Layout(only_if_set=("agent", "file", "line", "tools")),
        ScenarioCause: Layout(only_if_set=("conversation_id", "turn_index")),
        CauseExample: Layout(only_if_set=("agent",)),
        CausePlace: Layout(only_if_set=("conversation_id", "turn_index")),
        RootCause: Layout(only_if_set=("labels",)),
        RunHead: Layout(older={"agents": _agents}, only_if_set=("calibration", "shard", "joining")),
        StoredRun: Layout(flat=("head",)),
        StoredComparison: Layout(flat=("head",)),
    }
)
"""The codecs of all values. Costs are rounded, because their sum depends on the order of the answers."""

NOT_STORED: Mapping[type, tuple[str, ...]] = {
    Conversation: ("time", "session_id", "invalid", "live_state"),
    Failure: ("bypassed",),
    Score: ("rubrics",),
    TurnEvaluation: ("reference",),
    RunResult: ("addresses",),
}
"""Fields of `transcript` and `results` that have their default after reading.

Time and the reason for invalidity are stored once, with the result of the conversation. Rubrics and
references are in the ADK part of a case. The state object of the mocks exists only until it has been judged.
A failure's message names the bypassed mocks. Agent addresses are in the record of a run
(`store.runs.record`). A trajectory is stored with its conversation (`StoredTrajectory`), so the copy in a
reason has no alignment.
"""
