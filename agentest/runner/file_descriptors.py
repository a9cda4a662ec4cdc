"""File descriptors: every connection needs one, and the system allows a process only so many."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from agentest.models.providers import ModelSpec
from agentest.runner.prepare import Prepared

RESERVE = 32
"""What a process needs besides connections: streams, reports, the event loop, the agent's server."""

_MOST_OF_ONE = 10
"""How many requests a conversation under way may have at one model, where each metric is asked alone."""


def allow(needed: int) -> int:
    """Raise this process's limit so that it may have as many as needed; how many it may have now."""
    try:
        import resource
    except ImportError:  # this platform has no such limit
        return needed
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return needed
    wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):  # the system has bounds of its own
        return soft
    return wanted


def fitted(prepared: Prepared, processes: int = 1, allow: Callable[[int], int] = allow) -> Prepared:
    """What was prepared, with no more under way at once than there may be connections; a note says so.

    Args:
        processes: among how many it is divided.
        allow: takes how many file descriptors a process may come to need, gives how many it may have.
    """
    conversations, calls, taken = _taken(prepared)
    needed = RESERVE + -(-taken // processes)
    # No process is held to its share: a busy one has more, and who is left has all when others have died.
    allowed = allow(RESERVE + taken)
    if allowed >= needed:
        return prepared
    part = max(0, allowed - RESERVE) * processes / taken
    fewer = max(processes, int(conversations * part))

    def lower(spec: ModelSpec) -> ModelSpec:
        return replace(spec, max_concurrency=max(processes, int(_most(spec, conversations) * part)))

    lowered = replace(
        prepared,
        request=replace(prepared.request, options=replace(prepared.request.options, concurrency=fewer)),
        user=prepared.user and lower(prepared.user),
        judge=prepared.judge and lower(prepared.judge),
        confirm=prepared.confirm and lower(prepared.confirm),
        named={wish: lower(spec) for wish, spec in prepared.named.items()},
    )
    where = f" in each of {processes} processes" if processes > 1 else ""
    note = (
        f"{_shown(conversations, calls)} at once need {needed:,} file descriptors{where}, and {allowed:,} "
        f"are allowed: there will be {_shown(fewer, _calls(lowered, fewer))} at once. "
        f"Allow more with `ulimit -n {needed}`, or ask for less with --concurrency"
    )
    return replace(lowered, notes=(*lowered.notes, note))


def make_room(prepared: Prepared, allow: Callable[[int], int] = allow) -> None:
    """Raise this process's limit so that it could hold everything, as far as the system lets it."""
    allow(RESERVE + _taken(prepared)[2])


def _taken(prepared: Prepared) -> tuple[int, int, int]:
    """How many conversations there may be at once, calls to models, and file descriptors for both."""
    conversations = min(prepared.concurrency, sum(unit.conversations for unit in prepared.plan.units))
    calls = _calls(prepared, conversations)
    each = max((agent.file_descriptors for agent in prepared.plan.agents.values()), default=1)
    return conversations, calls, conversations * each + calls


def _calls(prepared: Prepared, conversations: int) -> int:
    """How many connections to models there may be at once. Roles of one model share its limit."""
    if prepared.request.options.tape == "replay":
        return 0
    user, judge = prepared.user, prepared.judge
    alike = user and judge and user == replace(judge, temperature=user.temperature)
    specs = [spec for spec in (user, None if alike else judge) if spec]
    # A named model that differs from the configured one in its sampling alone shares its limit.
    known = {(spec.base_url, spec.model) for spec in specs}
    more = (*prepared.named.values(), *([prepared.confirm] if prepared.confirm else []))
    others = {(s.base_url, s.model): s for s in more if (s.base_url, s.model) not in known}
    return sum(_most(spec, conversations) for spec in (*specs, *others.values()))


def _most(spec: ModelSpec, conversations: int) -> int:
    return min(_MOST_OF_ONE * conversations, spec.requests_at_once(conversations))


def _shown(conversations: int, calls: int) -> str:
    return f"{conversations:,} conversations" + (f" with {calls:,} model calls" if calls else "")
