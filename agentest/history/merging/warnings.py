"""What is to be said of a run as a whole, when its parts are known."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from agentest.domain.results import RunWarning, ScenarioResult, VerdictWarning, WarningCode
from agentest.domain.tool_visibility import Sight
from agentest.history.merging.parts import MergedPart
from agentest.runner.tool_names import is_known
from agentest.runner.verdict_warnings import without
from agentest.store.runs.finished import Place

Held = Mapping[Place, ScenarioResult]
"""The scenarios of the whole run."""


def sights_of(parts: Sequence[MergedPart], agents: Sequence[str], held: Held) -> dict[str, Sight]:
    """How the calls of each agent came to be known in the whole run.

    An agent whose every turn told of its calls is one that reports them: that must be so in all parts.
    """
    known = {name: _sight_of(name, parts, held) for name in agents}
    return {name: sight for name, sight in known.items() if sight}


def _sight_of(name: str, parts: Sequence[MergedPart], held: Held) -> Sight | None:
    mine = [part for part in parts if name in part.held.run.agents]
    talked = [
        part for part in mine if any(held[place].totals.turns for place in part.places if place[1] == name)
    ]
    ends = [_sight_in(part, name) for part in talked]
    at_first = mine[0].held.run.agents[name].tool_calls
    return ends[0] if ends and len(set(ends)) == 1 else at_first


def _sight_in(part: MergedPart, name: str) -> Sight | None:
    end = part.held.end
    agents = end.agents if end and name in end.agents else part.held.run.agents
    return agents[name].tool_calls


def silent_of(parts: Sequence[MergedPart], held: Held) -> tuple[RunWarning, ...]:
    """The agents that were never seen to call a tool: one that was in any part is not silent."""
    called = {agent for (_, agent), each in held.items() if each.totals.slowest and each.totals.tool_calls}
    told = [w for part in parts if part.held.end for w in part.held.end.summary.silent_agents]
    return tuple(dict.fromkeys(warning for warning in told if warning.agent not in called))


def amended_of(held: Held) -> dict[Place, ScenarioResult]:
    """The scenarios of which another part refutes a warning.

    Each part warns of tools that it does not know, and of agents that it has seen to call none.
    """
    known = frozenset[str]().union(*(each.totals.called for each in held.values()))
    seen = {agent for (_, agent), each in held.items() if each.totals.called}
    now = {place: without(each, _refuted(each, known, seen)) for place, each in held.items()}
    return {place: each for place, each in now.items() if each is not held[place]}


def _refuted(
    result: ScenarioResult, known: frozenset[str], seen: Collection[str]
) -> Iterator[VerdictWarning]:
    for warning in result.verdict_warnings:
        silent = warning.code is WarningCode.NO_CALL_SEEN and warning.agent in seen
        unknown = warning.code is WarningCode.UNKNOWN_TOOL and all(is_known(t, known) for t in warning.tools)
        if silent or unknown:
            yield warning


def unanswered_of(parts: Sequence[MergedPart], held: Held) -> tuple[RunWarning, ...]:
    """The tools of which calls were answered with null."""
    del held
    return tuple(
        dict.fromkeys(w for part in parts if part.held.end for w in part.held.end.summary.unanswered_calls)
    )
