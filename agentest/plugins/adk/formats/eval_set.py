"""The values of ADK's evaluation sets, and their JSON form.

Fields have google-adk's names (snake_case); files may also use ADK-TS's camelCase. The values are frozen
dataclasses with slots instead of pydantic models, because a set of ten thousand cases has a hundred thousand
values. Read files with `agentest.plugins.adk.formats.set_reader`, which locates errors. Expectations of a
case under its key `agentest` are stored as written, so that writing the set again does not change them.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, field, fields
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Tag,
    TypeAdapter,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic.dataclasses import dataclass
from pydantic_core import from_json

from agentest.domain.messages import Attachment, UserText
from agentest.domain.metrics import PASS_RATE, THRESHOLD_RANGE, TRAJECTORY_METRICS, normalize_thresholds
from agentest.plugins.adk.formats.personas import UserPersona, persona
from agentest.scenarios.definition import parse_date
from agentest.scenarios.expectations import parse_expected_state, parse_sayings
from agentest.scenarios.model import parse_criteria
from agentest.scenarios.options import parse_state
from agentest.scenarios.trajectory_parser import parse_trajectories
from agentest.support.errors import errors_as
from agentest.support.json_text import well_formed
from agentest.support.text import did_you_mean, on_one_line

# Infinity and NaN are not JSON: refuse them as numbers, and never write them as null.
_JSON = ConfigDict(
    alias_generator=to_camel, populate_by_name=True, allow_inf_nan=False, ser_json_inf_nan="constants"
)
CLOSED: ConfigDict = {**_JSON, "extra": "forbid"}
OPEN: ConfigDict = {**_JSON, "extra": "ignore"}
CASE_THRESHOLDS = (PASS_RATE, *TRAJECTORY_METRICS)
"""Metrics for which a case can set thresholds. Other thresholds belong to the criteria."""


def parse_thresholds(value: Any, key: str) -> dict[str, float]:
    """Parse a case's thresholds of metrics that are not criteria."""
    if not isinstance(value, Mapping) or not value:
        raise ValueError(f"{key}: expected an object from metric to number, found {value!r}")
    with errors_as(ValueError, f"{key}: "):
        thresholds = normalize_thresholds(value)
    for name, least in thresholds.items():
        if name not in CASE_THRESHOLDS:
            hint = did_you_mean(name, CASE_THRESHOLDS)
            raise ValueError(
                f"{key}: `{name}` can have no threshold here; {hint}. Other metrics have theirs in the "
                "criteria (test_config.json)"
            )
        low, high = THRESHOLD_RANGE[name]
        if not low <= least <= high:
            raise ValueError(f"{key}.{name}: {least:g} is not between {low:g} and {high:g}")
    return thresholds


def _not_empty(parse: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    def parsed(value: Any, key: str) -> Any:
        found = parse(value, key)
        if not found:
            raise ValueError(f"{key}: is empty, so it would check nothing")
        return found

    return parsed


_PARSERS: dict[str, Callable[[Any, str], Any]] = {
    "trajectory": _not_empty(parse_trajectories),
    "expect": parse_sayings,
    "state": parse_state,
    "final_state": parse_expected_state,
    "thresholds": parse_thresholds,
    "criteria": _not_empty(parse_criteria),
    "date": parse_date,
}


class NestedValueError(ValueError):
    """An invalid nested value. `at` is its path, such as `[0].expected`."""

    def __init__(self, at: str, message: str) -> None:
        super().__init__(message)
        self.at = at


def validated_as(name: str) -> AfterValidator:
    """Validate a value by the rules of this scenario key; failures are ValueErrors."""

    def check(value: Any) -> Any:
        try:
            parse_expectations({name: value})
        except ValueError as error:
            at, _, message = str(error).removeprefix(name).partition(": ")
            raise NestedValueError(at, message) from None
        return value

    return AfterValidator(check)


def parse_expectations(values: Mapping[str, Any]) -> dict[str, Any]:
    """Parse the values under a case's key `agentest`, which have been validated, to fields of a Scenario."""
    return {
        name: parse(values[name], name) for name, parse in _PARSERS.items() if values.get(name) is not None
    }


class BriefRepr:
    """Mixin whose repr shows only fields that are set, because most fields are empty."""

    __slots__ = ()

    def __repr__(self) -> str:
        arguments = (f"{name}={value!r}" for name, value in _fields_set(self))
        return f"{type(self).__name__}({', '.join(arguments)})"


@dataclass(slots=True, frozen=True, repr=False, config=CLOSED)
class FunctionCall(BriefRepr):
    """A tool call. Absent arguments (None) differ from empty ones (`{}`)."""

    id: str | None = None
    name: str | None = None
    args: dict[str, Any] | None = None
    partial_args: Any = None
    will_continue: bool | None = None


@dataclass(slots=True, frozen=True, repr=False, config=CLOSED)
class FunctionResponse(BriefRepr):
    """A tool's response."""

    id: str | None = None
    name: str | None = None
    response: dict[str, Any] | None = None
    will_continue: bool | None = None
    scheduling: Any = None
    parts: Any = None


def _as_base64(data: Any) -> Any:
    if isinstance(data, bytes):
        return b64encode(data).decode()
    if not isinstance(data, str):
        return data
    text = data.translate(_STANDARD).rstrip("=")
    with errors_as(ValueError, "expected the file's bytes in base64: "):
        return b64encode(b64decode(text + "=" * (-len(text) % 4), validate=True)).decode()


_STANDARD = str.maketrans("-_", "+/")


@dataclass(slots=True, frozen=True, repr=False, config=CLOSED)
class Blob(BriefRepr):
    """The bytes of a file, as base64 text. It can be constructed from bytes."""

    mime_type: str | None = None
    data: Annotated[str | None, BeforeValidator(_as_base64)] = None
    display_name: str | None = None


@dataclass(slots=True, frozen=True, repr=False, config=CLOSED)
class FileData(BriefRepr):
    """A reference to a file by its address."""

    mime_type: str | None = None
    file_uri: str | None = None
    display_name: str | None = None


@dataclass(slots=True, frozen=True, repr=False, config=CLOSED)
class Part(BriefRepr):
    """A part of a message. Texts, files, calls, and responses are read; other keys are preserved."""

    text: str | None = None
    function_call: FunctionCall | None = None
    function_response: FunctionResponse | None = None
    thought: bool | None = None
    thought_signature: Any = None
    inline_data: Blob | None = None
    file_data: FileData | None = None
    executable_code: Any = None
    code_execution_result: Any = None
    video_metadata: Any = None
    media_resolution: Any = None
    media_processing: Any = None
    tool_call: Any = None
    tool_response: Any = None
    part_metadata: Any = None
    audio_transcription: Any = None
    speech_metadata: Any = None


@dataclass(slots=True, frozen=True, repr=False, config=CLOSED)
class Content(BriefRepr):
    """A message."""

    role: str | None = None
    parts: tuple[Part, ...] | None = None


@dataclass(slots=True, frozen=True, repr=False, config=CLOSED)
class IntermediateData(BriefRepr):
    """The older form of the steps between a user's message and the final response."""

    tool_uses: tuple[FunctionCall, ...] = ()
    tool_responses: tuple[FunctionResponse, ...] = ()
    intermediate_responses: tuple[tuple[str, tuple[Part, ...]], ...] = ()
    """Pairs of an author and the parts of their message."""


@dataclass(slots=True, frozen=True, repr=False, config=OPEN)
class InvocationEvent(BriefRepr):
    """One event of an agent's work."""

    author: str
    content: Content | None = None
    grounding_metadata: Any = None
    usage_metadata: Any = None
    model_version: str | None = None


@dataclass(slots=True, frozen=True, repr=False, config=CLOSED)
class InvocationEvents(BriefRepr):
    """The newer form of the steps between a user's message and the final response."""

    invocation_events: tuple[InvocationEvent, ...] = ()


@dataclass(slots=True, frozen=True, repr=False, config=CLOSED)
class RubricContent(BriefRepr):
    text_property: str


@dataclass(slots=True, frozen=True, repr=False, config=CLOSED)
class Rubric(BriefRepr):
    """A property that a judge answers with yes or no."""

    rubric_id: str
    rubric_content: RubricContent
    description: str | None = None
    type: str | None = None
    """FINAL_RESPONSE_QUALITY or TOOL_USE_QUALITY, for a rubric of a case or an invocation."""


def _fields_set(value: Any) -> Iterator[tuple[str, Any]]:
    for each in fields(value):
        default = each.default if each.default_factory is MISSING else each.default_factory()
        current = getattr(value, each.name)
        if current != default:
            yield each.name, current


def _form(data: Any) -> str:
    if isinstance(data, Mapping):
        return "events" if data.keys() & {"invocation_events", "invocationEvents"} else "data"
    return "events" if isinstance(data, InvocationEvents) else "data"


IntermediateForm = IntermediateData | InvocationEvents | None  # the steps in either form
Intermediate = Annotated[
    Annotated[IntermediateData, Tag("data")] | Annotated[InvocationEvents, Tag("events")],
    Discriminator(_form),
]


@dataclass(slots=True, frozen=True, repr=False, config=CLOSED)
class AgentDetails(BriefRepr):
    """An agent's instructions and tools, in whichever form ADK recorded them."""

    name: str
    instructions: str = ""
    tool_declarations: tuple[Any, ...] = ()


@dataclass(slots=True, frozen=True, repr=False, config=CLOSED)
class AppDetails(BriefRepr):
    """The agents that took part in an invocation, by name."""

    agent_details: dict[str, AgentDetails] = field(default_factory=dict)


@dataclass(slots=True, frozen=True, repr=False, config=CLOSED)
class Invocation(BriefRepr):
    """A user's message and everything up to the agent's final response."""

    user_content: Content
    invocation_id: str = ""
    final_response: Content | None = None
    intermediate_data: Intermediate | None = None
    creation_timestamp: float = 0.0
    duration: float | None = None
    model_duration: float | None = None
    tool_duration: float | None = None
    app_details: AppDetails | None = None
    rubrics: tuple[Rubric, ...] | None = None


@dataclass(slots=True, frozen=True, repr=False, config=CLOSED)
class ConversationScenario(BriefRepr):
    """A conversation that a simulated user leads."""

    starting_prompt: str
    conversation_plan: str
    user_persona: Annotated[UserPersona | None, BeforeValidator(persona)] = None


@dataclass(slots=True, frozen=True, repr=False, config=OPEN)
class SessionInput(BriefRepr):
    """The session in which a case runs."""

    app_name: str
    user_id: str
    state: dict[str, Any] = field(default_factory=dict)
    session_id: str | None = None


@dataclass(slots=True, frozen=True, repr=False, config=CLOSED)
class AgentestKeys(BriefRepr):
    """Agentest's settings of a case, under its key `agentest`, which google-adk preserves and ignores."""

    any_args_where_absent: bool | None = None
    """True if an expected call without arguments matches any (ADK-TypeScript's `expected_tool_calls`)."""
    tags: tuple[str, ...] | None = None  # tags, as in scenarios
    # The keys of scenario files, as they are written in the set.
    trajectory: Annotated[Any, validated_as("trajectory")] = None
    expect: Annotated[Any, validated_as("expect")] = None
    state: Annotated[Any, validated_as("state")] = None
    final_state: Annotated[Any, validated_as("final_state")] = None
    date: Annotated[Any, validated_as("date")] = None
    thresholds: Annotated[Any, validated_as("thresholds")] = None
    criteria: Annotated[Any, validated_as("criteria")] = None

    @property
    def expectations(self) -> dict[str, Any]:
        """Return what the case expects in addition to its criteria, as fields of a Scenario."""
        return parse_expectations({field.name: getattr(self, field.name) for field in fields(self)})


@dataclass(slots=True, frozen=True, repr=False, config=OPEN)
class EvalCase(BriefRepr):
    """One conversation to evaluate: written out, or led by a simulated user."""

    eval_id: str
    conversation: tuple[Invocation, ...] | None = None
    conversation_scenario: ConversationScenario | None = None
    session_input: SessionInput | None = None
    creation_timestamp: float = 0.0
    rubrics: tuple[Rubric, ...] | None = None
    final_session_state: dict[str, Any] | None = None
    agentest: AgentestKeys | None = None

    @model_validator(mode="after")
    def _one_conversation(self) -> Self:
        if (self.conversation is None) == (self.conversation_scenario is None):
            raise ValueError("needs exactly one of conversation and conversation_scenario")
        return self


@dataclass(slots=True, frozen=True, repr=False, config=OPEN)
class EvalSet(BriefRepr):
    """The cases of a file."""

    eval_set_id: str
    eval_cases: tuple[EvalCase, ...]
    name: str | None = None
    description: str | None = None
    creation_timestamp: float = 0.0


EVAL_SET = TypeAdapter(EvalSet)
EVAL_CASE = TypeAdapter(EvalCase)
INVOCATION = TypeAdapter(Invocation)
_CONTENT_BYTES: Any = {"parts": {"__all__": {"inline_data": {"data"}}}}
_BYTES: Any = {
    "user_content": _CONTENT_BYTES,
    "final_response": _CONTENT_BYTES,
    "intermediate_data": {"invocation_events": {"__all__": {"content": _CONTENT_BYTES}}},
}


CAMEL_CASE = "in camelCase, which ADK-TS reads and google-adk does not"


def eval_set_json(eval_set: EvalSet, *, camel_case: bool = False) -> bytes:
    """Return the set as a JSON file without empty fields, in snake_case, or in camelCase as ADK-TS writes it.

    Nulls in arguments, responses, and states are preserved. Reading the file returns an equal set. Raises
    ValueError for values that JSON cannot represent: Infinity, NaN, and unpaired surrogates.
    """
    document = EVAL_SET.dump_json(eval_set, indent=2, by_alias=camel_case, exclude_none=True) + b"\n"
    if not finite(document):
        raise ValueError(
            f"the set {eval_set.eval_set_id!r} holds Infinity or NaN, which JSON has no form for"
        )
    return document


def finite(document: bytes) -> bool:
    """Return False if the document contains Infinity or NaN, which are not JSON."""
    if b"NaN" in document or b"Infinity" in document:
        try:
            from_json(document, allow_inf_nan=False)
        except ValueError:
            return False
    return True


def invocation_json(invocation: Invocation) -> dict[str, Any]:
    """Return an invocation in the form of results: camelCase, without empty fields and the bytes of files."""
    value: dict[str, Any] = INVOCATION.dump_python(
        invocation, mode="json", by_alias=True, exclude_none=True, exclude=_BYTES
    )
    return value


def content(text: str, role: str) -> Content:
    """Return a message with one text."""
    return Content(role, (Part(text=text),))


def text_of(message: Content | None) -> str:
    """Join a message's text parts by newlines; "" if there are none."""
    return "\n".join(p.text for p in message.parts if p.text) if message and message.parts else ""


def tool_calls(data: IntermediateForm) -> tuple[FunctionCall, ...]:
    """Return the calls of either form, in order."""
    if isinstance(data, InvocationEvents):
        return tuple(p.function_call for p in _parts(data) if p.function_call)
    return data.tool_uses if data else ()


def tool_responses(data: IntermediateForm) -> tuple[FunctionResponse, ...]:
    """Return the tool responses of either form, in order."""
    if isinstance(data, InvocationEvents):
        return tuple(p.function_response for p in _parts(data) if p.function_response)
    return data.tool_responses if data else ()


def answered_calls(data: IntermediateForm) -> Iterator[tuple[FunctionCall, FunctionResponse | None]]:
    """Pair each call with its response: the one with its id, else the next of its name without another id."""
    left = list(tool_responses(data))
    for call in tool_calls(data):
        same_id = (r for r in left if r.id is not None and r.id == call.id)
        same_name = (r for r in left if r.name in (None, call.name) and (r.id is None or call.id is None))
        response = next(same_id, None) or next(same_name, None)
        if response is not None:
            left.remove(response)
        yield call, response


def _parts(data: InvocationEvents) -> list[Part]:
    return [p for e in data.invocation_events if e.content and e.content.parts for p in e.content.parts]


MAX_BYTES = 20_000_000  # maximum size of all files of one message together

_SENT = {"text", "inline_data", "file_data"}
_ABOUT_TEXT = {"thought", "thought_signature"}  # metadata about a text, which no user sends


def user_message(content: Content, invocation: str) -> UserText:
    """Return the message of a user. Raises ValueError with a sentence if it cannot be sent.

    An empty text is sent, because the agent's reaction to it is worth testing.

    Args:
        invocation: its id, or its number in the conversation.
    """
    origin = f"user_content of invocation {invocation}"
    files = tuple(_attachment(part, origin) for part in content.parts or () if _is_file(part, origin))
    if not files and all(part.text is None for part in content.parts or ()):
        raise ValueError(f"{origin} has neither text nor a file; write what the user says as a part `text`")
    size = sum(file.size or 0 for file in files)
    if size > MAX_BYTES:
        raise ValueError(f"{origin} has files of {size:,} bytes, more than the {MAX_BYTES:,} that are sent")
    return UserText(text_of(content), files)


def _is_file(part: Part, origin: str) -> bool:
    """Return True if the part is a file. Raises ValueError if it is neither text nor file."""
    present = {field.name for field in fields(part) if getattr(part, field.name) is not None}
    others = sorted(present - _SENT - _ABOUT_TEXT)
    if others:
        raise ValueError(
            f"{origin} has a part `{others[0]}` that cannot be sent as a user's message; "
            "texts (`text`) and files (`inline_data`, `file_data`) can"
        )
    return bool(present & {"inline_data", "file_data"})


def _attachment(part: Part, origin: str) -> Attachment:
    if part.inline_data is not None and part.file_data is not None:
        raise ValueError(f"{origin} has a part with both `inline_data` and `file_data`; make two parts of it")
    key, file = ("inline_data", part.inline_data) if part.inline_data else ("file_data", part.file_data)
    assert file is not None, "a part that is a file"

    def given(name: str) -> str:
        value = getattr(file, name)
        if not value:
            raise ValueError(f"{origin} has a part `{key}` without `{name}`; it cannot be sent")
        return str(value)

    content = {"base64": given("data")} if isinstance(file, Blob) else {"uri": well_formed(given("file_uri"))}
    mime_type = on_one_line(well_formed(given("mime_type")))
    name = on_one_line(well_formed(file.display_name or ""))
    return Attachment(mime_type=mime_type, name=name, origin=origin, **content)


def can_fail(expectations: Mapping[str, Any]) -> bool:
    """Return True if they can fail a case: then it is evaluated even if no criterion applies."""
    required = any(criterion.required for criterion in expectations.get("criteria", ()))
    return required or any(expectations.get(name) for name in ("trajectory", "expect", "final_state"))
