"""Faults that a scenario injects into what an agent depends on: its model, and its tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import did_you_mean

MODEL_FAULTS = ("rate_limit", "timeout", "truncated", "refusal", "malformed_arguments")
"""Kinds of faults of the agent's model."""


class ToolFault(NamedTuple):
    """What a kind of fault does to a call."""

    status: int = 0
    """The HTTP status of the error that the agent receives; 0: it receives a changed answer."""
    text: str = ""
    """The usual text of the error."""
    mock_runs: bool = False


TOOL_FAULTS: Mapping[str, ToolFault] = {
    "error": ToolFault(500, "internal error"),
    "not_found": ToolFault(404, "not found"),
    "permission_denied": ToolFault(403, "permission denied"),
    "rate_limit": ToolFault(429, "too many requests; try again later"),
    "unavailable": ToolFault(503, "the service is unavailable"),
    "timeout": ToolFault(504, "the request timed out"),
    "applied_then_timeout": ToolFault(504, "the request timed out", mock_runs=True),
    **dict.fromkeys(("slow", "empty", "truncated", "malformed", "schema"), ToolFault(mock_runs=True)),
    **dict.fromkeys(("stale", "wrong_entity", "plausible_lie", "duplicate"), ToolFault(mock_runs=True)),
    "partial": ToolFault(mock_runs=True),
}
"""Kinds of faults of a tool. A tool that is not called over HTTP receives the text as its error."""
ANSWERS_FIRST = frozenset(kind for kind, each in TOOL_FAULTS.items() if each.mock_runs)
"""Faults for which the tool's mock runs; the others are met in place of it."""
FAILING = frozenset({"partial", *(kind for kind, each in TOOL_FAULTS.items() if each.status)})
"""Faults by which the agent learns that the call failed, or may have failed."""
SCHEMA_MODES = ("drop", "retype", "null", "extra")
_KINDS = frozenset({*MODEL_FAULTS, *TOOL_FAULTS})
_SETTINGS = ("message", "code", "delay", "mode", "path")


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault to inject. Create it with `fault`."""

    kind: str
    at: int = 1
    """The first request or call that fails, counted from 1 in each conversation; of a tool: its calls."""
    times: int = 1
    """How many requests or calls fail."""
    tool: str | None = None
    """The tool that it concerns; None: any."""
    message: str = ""
    """The text of the error; "": a usual one."""
    code: str | int | None = None
    """A code beside the text of the error."""
    delay: float | None = None
    """Seconds until the answer; None: 2 for `slow`, else none."""
    mode: str = "drop"
    """What is wrong for `schema`: one of `SCHEMA_MODES`."""
    path: str = ""
    """The field that is wrong for `schema`, `wrong_entity` and `plausible_lie`, such as `items[0].price`;
    "": the first that fits."""

    @property
    def place(self) -> str:
        """The tool, as an injection has it."""
        return self.tool or ""

    def then(self, mock: Any) -> ChangedAnswers:
        """Return a mock whose calls meet this fault, and are otherwise answered by `mock`."""
        return changed(mock, (self,))

    def is_due(self, number: int) -> bool:
        """Return True if the tool's call of this number (from 1) meets it."""
        return self.at <= number < self.at + self.times


@dataclass(frozen=True, slots=True)
class ChangedAnswers:
    """A mock whose answers meet faults or carry injections."""

    mock: Any
    changes: tuple[Any, ...]
    """`Fault` and `Injection` values, in the order in which they apply."""


def changed(mock: Any, changes: Sequence[Any]) -> ChangedAnswers:
    """Return a mock with these changes before its own."""
    if isinstance(mock, ChangedAnswers):
        return ChangedAnswers(mock.mock, (*changes, *mock.changes))
    return ChangedAnswers(mock, tuple(changes))


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """A fault that a turn met."""

    kind: str
    at: int
    """The request of the conversation, counted from 1."""


def fault(kind: str, at: int = 1, times: int = 1, *, tool: str | None = None, **settings: Any) -> Fault:
    """Return a fault for a scenario.

    Of a tool: `tools={"pay": fault("timeout").then(pay)}` or `faults=[fault("timeout", tool="pay")]`. Of the
    agent's model: `model_faults=[fault("rate_limit", at=2)]`.

    Args:
        kind: what goes wrong. Of a tool: `error`, `not_found`, `permission_denied`, `rate_limit`,
            `unavailable`, `timeout`, `applied_then_timeout`, `slow`, `empty`, `truncated`, `malformed`,
            `schema`, `stale`, `wrong_entity`, `plausible_lie`, `duplicate` or `partial`. Of a model:
            `rate_limit`, `timeout`, `truncated`, `refusal` or `malformed_arguments`.
        at: the first call of the tool, or request of the conversation, that fails, counted from 1.
        times: how many calls or requests fail.
        tool: the tool that it concerns, if it concerns one.
        settings: of a tool's fault: `message` and `code` of the error, `delay` in seconds, `mode` of
            `schema` (`drop`, `retype`, `null` or `extra`), and `path` of the field that is wrong.

    Raises ValueError for values that no fault can have.
    """
    if kind not in _KINDS:
        raise ValueError(f"fault: unknown kind {kind!r}; {did_you_mean(str(kind), _KINDS)}")
    for name, value in (("at", at), ("times", times)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"fault: `{name}` is {value!r}; write a whole number of at least 1")
    if tool is not None and not (isinstance(tool, str) and tool.strip()):
        raise ValueError(f"fault: `tool` is {tool!r}; write the name of a tool")
    if unknown := [name for name in settings if name not in _SETTINGS]:
        raise ValueError(f"fault: unknown option `{unknown[0]}`; {did_you_mean(unknown[0], _SETTINGS)}")
    if settings and kind not in TOOL_FAULTS:
        raise ValueError(f"fault: `{next(iter(settings))}` is for faults of tools, and {kind!r} is not one")
    _check_settings(settings)
    return Fault(kind, at, times, tool, **settings)


def _check_settings(settings: dict[str, Any]) -> None:
    for name in ("message", "path"):
        if not isinstance(settings.get(name, ""), str):
            raise ValueError(f"fault: `{name}` is {settings[name]!r}; write a text")
    code, delay, mode = settings.get("code"), settings.get("delay"), settings.get("mode", SCHEMA_MODES[0])
    if isinstance(code, bool) or not isinstance(code, str | int | None):
        raise ValueError(f"fault: `code` is {code!r}; write a text or a whole number")
    if delay is not None and (isinstance(delay, bool) or not isinstance(delay, int | float) or delay < 0):
        raise ValueError(f"fault: `delay` is {delay!r}; write a number of seconds")
    if mode not in SCHEMA_MODES:
        raise ValueError(f"fault: unknown mode {mode!r}; {did_you_mean(str(mode), SCHEMA_MODES)}")


class DueFaults:
    """Decides which fault each request of one conversation meets.

    A request meets at most one fault: the first in the list that is due and not used up. Another fault that
    is due waits for the next request.
    """

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        self._faults = faults
        self._left = [each.times for each in faults]

    def take(self, number: int, tools: frozenset[str]) -> Fault | None:
        """Return the fault that a request meets; None if it meets none.

        Args:
            number: counts the requests of the conversation from 1.
            tools: the tools that it offers.
        """
        for n, each in enumerate(self._faults):
            offered = bool(tools) if each.tool is None else each.tool in tools
            needs_tool = each.tool is not None or each.kind == "malformed_arguments"
            if self._left[n] and number >= each.at and (offered or not needs_tool):
                self._left[n] -= 1
                return each
        return None
