"""Faults that a scenario injects into what an agent depends on."""

from __future__ import annotations

from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import did_you_mean

MODEL_FAULTS = ("rate_limit", "timeout", "truncated", "refusal", "malformed_arguments")
"""Kinds of faults of the agent's model."""
_KINDS = frozenset(MODEL_FAULTS)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault to inject. Create it with `fault`."""

    kind: str
    at: int = 1
    """The first request or call that fails, counted from 1 in each conversation."""
    times: int = 1
    """How many requests or calls fail."""
    tool: str | None = None
    """The tool that it concerns; None: any."""


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """A fault that a turn met."""

    kind: str
    at: int
    """The request of the conversation, counted from 1."""


def fault(kind: str, at: int = 1, times: int = 1, *, tool: str | None = None) -> Fault:
    """Return a fault for a scenario, such as `model_faults=[fault("rate_limit", at=2)]`.

    Args:
        kind: what goes wrong. Of a model: `rate_limit`, `timeout`, `truncated`, `refusal` or
            `malformed_arguments`.
        at: the first request of the conversation that fails, counted from 1.
        times: how many requests fail.
        tool: the tool that it concerns, if it concerns one.

    Raises ValueError for values that no fault can have.
    """
    if kind not in _KINDS:
        raise ValueError(f"fault: unknown kind {kind!r}; {did_you_mean(str(kind), _KINDS)}")
    for name, value in (("at", at), ("times", times)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"fault: `{name}` is {value!r}; write a whole number of at least 1")
    if tool is not None and not (isinstance(tool, str) and tool.strip()):
        raise ValueError(f"fault: `tool` is {tool!r}; write the name of a tool")
    return Fault(kind, at, times, tool)


class DueFaults:
    """Decides which fault each request of one conversation meets.

    A request meets at most one fault: the first in the list that is due and not used up. Another fault that
    is due waits for the next request.
    """

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        self._left = [[each, each.times] for each in faults]

    def take(self, number: int, tools: frozenset[str]) -> Fault | None:
        """Return the fault that a request meets; None if it meets none.

        Args:
            number: counts the requests of the conversation from 1.
            tools: the tools that it offers.
        """
        for entry in self._left:
            each, left = entry
            assert isinstance(each, Fault)
            assert isinstance(left, int)
            offered = bool(tools) if each.tool is None else each.tool in tools
            needs_tool = each.tool is not None or each.kind == "malformed_arguments"
            if left and number >= each.at and (offered or not needs_tool):
                entry[1] = left - 1
                return each
        return None
