"""Group the tool calls of conversations by tool, and find which arguments had which answers.

The parameters of a mock come from the real tool's declaration, else from the recorded calls.
"""

from __future__ import annotations

import json
import keyword
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from agentest.domain.tool_visibility import SeenBy, ToolOutcome
from agentest.domain.transcript import ToolCall
from agentest.scenarios.python_formatting import literal
from agentest.support.json_text import named_texts, with_integers
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.redaction import HIDDEN, looks_secret
from agentest.support.text import count

_MCP_CONTENT_TYPES = frozenset({"text", "image", "audio", "resource", "resource_link"})
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_PAGE_TOKEN_PREFIXES = ("page", "next", "cursor", "continuation")
"""Prefixes of pagination tokens, which are not secrets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedToolAnswer:
    """One answer of a tool."""

    value: Any
    form: str  # text form of the answer, in which 1, 1.0, and True differ
    error: str | None = None  # the error message if the call failed
    status: int | None = None
    """The HTTP status of a failed call, whose `value` is the body. A failed call without one has no value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCase:
    """Identical calls, with their answers in order. The last answer repeats forever."""

    args: Mapping[str, Any] | None  # None if the arguments are unknown
    answers: tuple[RecordedToolAnswer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTool:
    """Everything known about one tool."""

    name: str
    calls: int
    cases: tuple[RecordedCase, ...]
    hidden: frozenset[str]  # arguments whose values are secrets, so that they cannot distinguish calls
    arguments: tuple[Mapping[str, Any], ...]  # the arguments of all calls
    description: str = ""
    parameters: Mapping[str, Any] | None = None
    """The JSON Schema of the arguments, as declared by the real tool; None if unknown."""

    @property
    def same(self) -> RecordedToolAnswer | None:
        """Return the answer if every call had the same one."""
        forms = {answer.form: answer for case in self.cases for answer in case.answers}
        return next(iter(forms.values())) if len(forms) == 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDeclaration:
    """A tool's description of itself."""

    description: str = ""
    parameters: Mapping[str, Any] | None = None


_UNKNOWN = ToolDeclaration()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTools:
    """The recorded tools, and notes for the user."""

    tools: tuple[RecordedTool, ...]
    notes: tuple[str, ...]


def gather_tools(
    conversations: Iterable[Sequence[ToolCall]],
    redact: Callable[[str], str],
    declared: Mapping[str, ToolDeclaration] | None = None,
    statuses: Iterable[Sequence[int | None]] = (),
) -> RecordedTools:
    """Return the tools that real implementations answered, by name, without secrets.

    Args:
        declared: declarations of tools, by name.
        statuses: for each conversation, the HTTP status of each call that has one.
    """
    calls_by_conversation = [tuple(calls) for calls in conversations]
    # By identity, because two equal calls can have different statuses.
    known = {
        id(call): status
        for calls, of_calls in zip(calls_by_conversation, statuses, strict=False)
        for call, status in zip(calls, of_calls, strict=False)
        if status
    }
    usable = [tuple(call for call in calls if _why_unusable(call) is None) for calls in calls_by_conversation]
    names = sorted({call.name for calls in usable for call in calls})
    made = [_tool(name, usable, redact, (declared or {}).get(name, _UNKNOWN), known) for name in names]
    tools = tuple(tool for tool, _ in made)
    notes = (*_left_out_notes(calls_by_conversation), *(note for _, of_tool in made for note in of_tool))
    return RecordedTools(tools=tools, notes=notes)


def _why_unusable(call: ToolCall) -> str | None:
    if call.mocked:
        return "a mock answered"
    if not call.name.strip():
        return "it has no name"
    if call.outcome is ToolOutcome.CANCELLED:
        return "it had no answer yet"
    if not call.ran:
        return "the user had not approved it"
    if call.seen_by is SeenBy.CALLER:
        return "the agent handed it to Agentest, which has no real tool to call"
    if call.args is not None and not isinstance(call.args, Mapping):
        return "its arguments are not a JSON object"
    if call.seen_by is SeenBy.MOCK_SERVER and call.outcome is ToolOutcome.REFUSED:
        return "its arguments do not fit, so the real tool was not called"
    return None


def _left_out_notes(conversations: Sequence[Sequence[ToolCall]]) -> Iterator[str]:
    every = [call for calls in conversations for call in calls]
    reasons = Counter((call.name, why) for call in every if (why := _why_unusable(call)))
    for (name, why), number in reasons.items():
        yield f"left out {count(number, 'call')} of {name!r}: {why}"


def _tool(
    name: str,
    conversations: Sequence[Sequence[ToolCall]],
    redact: Callable[[str], str],
    declared: ToolDeclaration,
    statuses: Mapping[int, int],
) -> tuple[RecordedTool, tuple[str, ...]]:
    calls = [[call for call in each if call.name == name] for each in conversations]
    every = [call for each in calls for call in each]
    clean = [_without_secrets(call.args, redact) for call in every if call.args is not None]
    hidden = frozenset(key for args, hid in clean for key in hid)
    has_arguments = len(clean) == len(every)
    answered = [[(call, _answer(call, redact, statuses.get(id(call)))) for call in each] for each in calls]
    cases, disputed = _group_cases(answered, redact, hidden, has_arguments=has_arguments)
    tool = RecordedTool(
        name=name,
        calls=len(every),
        cases=cases,
        hidden=hidden,
        arguments=tuple(args for args, _ in clean),
        description=redact(declared.description),
        parameters=declared.parameters,
    )
    return tool, tuple(_notes(tool, disputed, every))


def _notes(tool: RecordedTool, disputed: int, calls: Sequence[ToolCall]) -> Iterator[str]:
    if disputed:
        yield (
            f"{tool.name}: {count(disputed, 'call')} had other answers in another conversation; those of the "
            "first conversation are written"
        )
    if tool.hidden:
        yield (
            f"{tool.name}: the secret in {', '.join(sorted(tool.hidden))} is not written; any value will do"
        )
    if any(HIDDEN in answer.form for case in tool.cases for answer in case.answers):
        yield f"{tool.name}: {HIDDEN} stands where its answers hold secrets"
    if any("\\ufffd" in answer.form for case in tool.cases for answer in case.answers):
        yield f"{tool.name}: an answer was not a text; where its bytes have no character stands \ufffd"
    cases = tool.cases if tool.same is None and len(tool.cases) > 1 else ()
    values = [value for case in cases for value in (case.args or {}).values()]
    if dates := sorted(value for value in values if isinstance(value, str) and _DATE.match(value)):
        yield (
            f"{tool.name}: dates like {dates[0]} distinguish its calls. If the agent computes "
            f"them from today's date, they differ tomorrow: write `_` instead"
        )
    reported = [call for call in calls if call.seen_by in (SeenBy.AGENT, SeenBy.SPANS)]
    if untold := sum(call.result is None and not call.error for call in reported):
        yield (
            f"{tool.name}: of {count(untold, 'call')} no answer was told, or null: there its mock answers "
            "null; write what it should answer"
        )


def _group_cases(
    conversations: Sequence[Sequence[tuple[ToolCall, RecordedToolAnswer]]],
    redact: Callable[[str], str],
    hidden: frozenset[str],
    *,
    has_arguments: bool,
) -> tuple[tuple[RecordedCase, ...], int]:
    known: dict[str, tuple[Mapping[str, Any] | None, list[list[RecordedToolAnswer]]]] = {}
    for calls in conversations:
        mine: dict[str, list[RecordedToolAnswer]] = {}
        for call, answer in calls:
            clean, _ = _without_secrets(call.args, redact) if has_arguments else ({}, ())
            args = {k: v for k, v in clean.items() if k not in hidden} if has_arguments else None
            key = call_key(args)
            answers = known.setdefault(key, (args, []))[1]
            if key not in mine:
                mine[key] = []
                answers.append(mine[key])
            mine[key].append(answer)
    merged = [(args, *_merge_answers(answers)) for args, answers in known.values()]
    return (
        tuple(RecordedCase(args=args, answers=answers) for args, answers, _ in merged),
        sum(differ for _, _, differ in merged),
    )


def _merge_answers(
    answer_lists: Sequence[Sequence[RecordedToolAnswer]],
) -> tuple[tuple[RecordedToolAnswer, ...], bool]:
    shortened = [_without_repeated_end(answers) for answers in answer_lists]
    longest = max(shortened, key=len)
    last = len(longest) - 1
    differ = any(
        answer.form != longest[min(i, last)].form
        for answers in answer_lists
        for i, answer in enumerate(answers)
    )
    return tuple(shortened[0] if differ else longest), differ


def _without_repeated_end(answers: Sequence[RecordedToolAnswer]) -> list[RecordedToolAnswer]:
    """Remove repetitions at the end, because a sequence repeats its last answer."""
    needed = list(answers)
    while len(needed) > 1 and needed[-1].form == needed[-2].form:
        del needed[-1]
    return needed


def _answer(call: ToolCall, redact: Callable[[str], str], status: int | None) -> RecordedToolAnswer:
    value = redacted_json(_mock_form(call), redact)
    if call.error is None:
        return RecordedToolAnswer(value=value, form=json.dumps([value]))
    if status is not None:
        form = json.dumps([value, call.error, status])
        return RecordedToolAnswer(value=value, form=form, error=redact(call.error), status=status)
    result = call.result
    message = result.get("error") if isinstance(result, Mapping) and len(result) == 1 else result
    error = redact(message if isinstance(message, str) and message else call.error)
    return RecordedToolAnswer(value=None, form=json.dumps([None, error]), error=error)


def _mock_form(call: ToolCall) -> Any:
    result = call.result
    if call.seen_by is not SeenBy.MOCK_SERVER or not isinstance(result, list) or not result:
        return result
    are_parts = all(
        isinstance(each, Mapping) and each.get("type") in _MCP_CONTENT_TYPES and len(each) > 1
        for each in result
    )
    return {"content": result} if are_parts else result


def call_key(args: Mapping[str, Any] | None) -> str:
    """Return the same text for the same arguments: as in JSON, 1 equals 1.0, but not true."""
    return json.dumps(with_integers(args), sort_keys=True)


def _without_secrets(
    args: Mapping[str, Any], redact: Callable[[str], str]
) -> tuple[dict[str, Any], frozenset[str]]:
    clean = {key: redacted_json({key: value}, redact)[key] for key, value in args.items()}
    return clean, frozenset(key for key in args if clean[key] != args[key])


def redacted_json(value: Any, redact: Callable[[str], str]) -> Any:
    """Remove secrets from a JSON value: known ones, texts that look like one, and values of secret keys."""
    found = list(named_texts(value))
    texts = "\n".join(text for _, text in found)
    # A long value rarely has secrets, and checking each of its texts would take many times as long.
    has_secrets = redact(texts) != texts or any(_is_secret(key, text) for key, text in found)
    return _hidden_in(value, redact) if has_secrets else value


def _hidden_in(value: Any, redact: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {
            key: HIDDEN if _is_secret(key, item) else _hidden_in(item, redact) for key, item in value.items()
        }
    return [_hidden_in(item, redact) for item in value] if isinstance(value, list) else value


def _is_secret(key: str, value: Any) -> bool:
    named = looks_secret(key) and not key.lower().startswith(_PAGE_TOKEN_PREFIXES)
    return named and isinstance(value, str) and bool(value)


_RESERVED_NAMES = frozenset({"args", "ctx", "__debug__", "RuntimeError", "HttpResponse"})
_IN_PYTHON = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "array": "list[Any]",
    "object": "dict[str, Any]",
    "null": "None",
}
_BY_KIND: tuple[tuple[type, str], ...] = (
    (bool, "bool"),  # before int, because a bool is an int
    (str, "str"),
    (int, "int"),
    (float, "float"),
    (dict, "dict[str, Any]"),
    (list, "list[Any]"),
)
_MOST_CHOICES = 8
_PLAIN = (str, int, float, bool)


@dataclass(frozen=True, slots=True, kw_only=True)
class MockParameter:
    """One parameter of a mock."""

    name: str
    type: str
    default: str | None = None  # default value as Python source; None for a required parameter

    @property
    def source(self) -> str:
        return f"{self.name}: {self.type}" + (f" = {self.default}" if self.default is not None else "")


def parameters(tool: RecordedTool) -> tuple[MockParameter, ...] | None:
    """Return the parameters, required ones first; None if the arguments cannot be Python parameters.

    The types accept every recorded call, even if it contradicts the declaration.
    """
    properties = _properties(tool.parameters)
    seen = dict.fromkeys(key for args in tool.arguments for key in args)
    names = [*properties, *(name for name in seen if name not in properties)]
    if not names or not all(map(is_parameter, names)):
        return None
    if len({name.casefold() for name in names}) < len(names):
        return None
    made = [_parameter(name, tool, properties.get(name)) for name in names]
    known = [each for each in made if each]
    if len(known) < len(made):
        return None
    return tuple(sorted(known, key=lambda each: each.default is not None))


def is_parameter(name: str) -> bool:
    """Return True if a mock can have a parameter of this name, and receive it by name."""
    plain = name.isascii() and name.isidentifier() and not keyword.iskeyword(name)
    return plain and not name.startswith("_") and name not in _RESERVED_NAMES


def _properties(schema: Mapping[str, Any] | None) -> dict[str, Mapping[str, Any]]:
    properties = (schema or {}).get("properties")
    if not isinstance(properties, Mapping):
        return {}
    return {str(name): each if isinstance(each, Mapping) else {} for name, each in properties.items()}


def _parameter(name: str, tool: RecordedTool, declared: Mapping[str, Any] | None) -> MockParameter | None:
    values = [args[name] for args in tool.arguments if name in args]
    missing = len(values) < len(tool.arguments)
    required = (tool.parameters or {}).get("required") or ()
    if missing and any(value is None for value in values):
        return None  # absent and null would be indistinguishable
    types = _declared_types(declared) if declared is not None else []
    types = _with_recorded_types(types, values) if "Any" not in types else ["Any"]
    if not missing and (declared is None or name in required):
        return MockParameter(name=name, type=_union(types))
    default = _default(declared)
    # If answers depend on arguments, an absent argument must differ from every value.
    if default is not None and not (missing and len(tool.cases) > 1):
        return MockParameter(name=name, type=_union(types), default=default)
    return MockParameter(name=name, type=_union([*types, "None"]), default="None")


def _default(declared: Mapping[str, Any] | None) -> str | None:
    value = (declared or {}).get("default")
    if isinstance(value, str):
        return literal(value)
    return repr(value) if isinstance(value, _PLAIN) else None


def _declared_types(schema: Mapping[str, Any]) -> list[str]:
    choices: Any = schema.get("enum")
    few = isinstance(choices, list) and 0 < len(choices) <= _MOST_CHOICES
    if few and all(isinstance(each, str) for each in choices):
        return [f"Literal[{', '.join(map(literal, choices))}]"]
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            types = [t for each in schema[key] if isinstance(each, Mapping) for t in _declared_types(each)]
            return types or ["Any"]
    declared = schema.get("type")
    names = declared if isinstance(declared, list) else [declared]
    if names == ["array"]:
        items = schema.get("items")
        return [f"list[{_union(_declared_types(items) if isinstance(items, Mapping) else ['Any'])}]"]
    return [_IN_PYTHON.get(name, "Any") if isinstance(name, str) else "Any" for name in names]


def _with_recorded_types(types: list[str], values: Iterable[Any]) -> list[str]:
    known = list(types)
    for value in values:
        if not any(_accepts(each, value) for each in known):
            known.append(_type_of(value))
    return [name for name in known if not (name == "int" and "float" in known)]


def _accepts(name: str, value: Any) -> bool:
    if name.startswith("Literal["):
        return isinstance(value, str) and literal(value) in name
    recorded_type = _type_of(value)
    if name.startswith("list["):
        return recorded_type == "list[Any]" and (
            name == recorded_type or all(_accepts(name[5:-1], each) for each in value)
        )
    return name == recorded_type or (name == "float" and recorded_type == "int")


def _type_of(value: Any) -> str:
    if value is None:
        return "None"
    return next(name for kind, name in _BY_KIND if isinstance(value, kind))


def _union(types: Iterable[str]) -> str:
    unique = list(dict.fromkeys(types))
    if "Any" in unique or not unique:
        return "Any"
    return " | ".join(sorted(unique, key=lambda name: name == "None"))


def names_used(known: Iterable[MockParameter]) -> Iterator[str]:
    """Yield the names from `typing` that the parameters' types need."""
    for each in known:
        for name in ("Any", "Literal"):
            if name in each.type:
                yield name
