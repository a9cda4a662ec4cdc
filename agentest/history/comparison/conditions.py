"""What was not the same in two runs besides what is compared: it may explain a difference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agentest.history.comparison.measured import MeasuredRun
from agentest.history.comparison.pairing import Pair
from agentest.support.text import count


def conditions(
    base: MeasuredRun, new: MeasuredRun, pairs: Sequence[Pair], left_out: int = 0
) -> Iterator[str]:
    """A sentence for each. `left_out`: how many scenarios one of the runs had not selected."""
    for label, run in (("base", base), ("new", new)):
        if run.stopped:
            yield f"the {label} run ended early ({run.stopped}): what had finished is compared"
    if base.version != new.version:
        yield f"Agentest: {base.version}, now {new.version}; judges may have been asked in other words"
    if base.agents != new.agents:
        yield f"agents: {', '.join(base.agents)}, now {', '.join(new.agents)}"
    for role in dict.fromkeys((*base.models, *new.models)):
        before, now = base.models.get(role), new.models.get(role)
        if before != now:
            yield f"model of the {role}: {before or 'none'}, now {now or 'none'}"
    if left_out:
        yield f"{count(left_out, 'scenario')} not selected in both runs: left out"
    yield from _conversations(pairs)
    yield from _repeated(pairs)


def _conversations(pairs: Sequence[Pair]) -> Iterator[str]:
    both = [
        (p.base, p.new) for p in pairs if p.base and p.new and p.base.conversations and p.new.conversations
    ]
    other = [(b, n) for b, n in both if len(b.conversations) != len(n.conversations)]
    if other:
        first, second = other[0]
        yield (
            f"conversations: other numbers in {count(len(other), 'scenario')}, "
            f"{len(first.conversations)} and now {len(second.conversations)} in {second.name!r}"
        )


def _repeated(pairs: Sequence[Pair]) -> Iterator[str]:
    """Those of which a run held conversations until the verdict was decided: their pass rates are shifted."""
    ended = sum(any(side and side.repeated for side in (p.base, p.new)) for p in pairs if p.base and p.new)
    if ended:
        yield (
            f"repeat: {count(ended, 'scenario')} ended when decided, which makes good pass rates better and "
            "bad ones worse; chance counts twice there"
        )
