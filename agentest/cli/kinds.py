"""The kinds of runs: where their conversations come from, and what they are called among the kept ones."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from agentest.cli.keeping import JUDGED, LATEST, FixedNames, Keeping
from agentest.domain.results import RunWarning
from agentest.domain.transcript import Conversation
from agentest.store.runs.record import RunKind

if TYPE_CHECKING:  # imported when a run really begins
    from agentest.runner.sources import SourceFactory
    from agentest.workers.ray.life import Recipe


class Kind(Protocol):
    """What kind of run this is: where its conversations come from, and what it is called."""

    @property
    def name(self) -> RunKind:
        """What it is called among the kept runs."""
        ...

    @property
    def fixed(self) -> FixedNames:
        """Its files in `output_dir`."""
        ...

    @property
    def spans(self) -> bool:
        """Whether agents may send spans."""
        ...

    @property
    def resumed_by(self) -> str:
        """The command that runs what is left of it when it was ended early; "": there is none."""
        ...

    @property
    def earlier(self) -> bool:
        """Whether its conversations are of an earlier run."""
        ...

    @property
    def recipe(self) -> Recipe | None:
        """How it is prepared again in another process; None: as any run of scenarios."""
        ...

    def source(self, keeping: Keeping | None) -> SourceFactory:
        """Where conversations come from, and where is kept what comes with them, if anywhere."""
        ...


@dataclass(frozen=True, slots=True)
class LiveRun:
    """Conversations with the agents, now."""

    name: RunKind = RunKind.RUN
    fixed: FixedNames = LATEST
    spans: bool = True
    earlier: bool = False
    resumed_by: str = "agentest run --resume"
    recipe: Recipe | None = None

    def source(self, keeping: Keeping | None) -> SourceFactory:
        from agentest.runner.sources import LiveAgents

        if keeping is None:
            return LiveAgents()
        return LiveAgents(keep_span=keeping.keep_span, keep_output=keeping.keep_output)


@dataclass(frozen=True, slots=True)
class JudgedRun:
    """Conversations of an earlier run, judged again; its results lie beside those of the latest run."""

    conversations: Mapping[str, Sequence[Conversation]]
    """By scope of the unit."""
    unclaimed: tuple[RunWarning, ...] = ()
    """Of its calls that belonged to no conversation."""
    name: RunKind = RunKind.JUDGE
    fixed: FixedNames = JUDGED
    spans: bool = False
    earlier: bool = True
    resumed_by: str = ""
    recipe: Recipe | None = None

    def source(self, keeping: Keeping | None) -> SourceFactory:
        from agentest.runner.sources import EarlierRun

        del keeping  # no agent is there
        return EarlierRun(self.conversations, self.unclaimed)


LIVE = LiveRun()


def eval_of(words: Iterable[str], options: Mapping[str, object]) -> LiveRun:
    """A run of evaluation sets, which goes on with the same words: nothing else says which sets they are.

    Args:
        options: name → value, of those that say what is run.
    """
    given = (
        f"--{name.replace('_', '-')}={value}" for name, value in options.items() if value not in (None, 1)
    )
    return LiveRun(RunKind.EVAL, resumed_by=shlex.join(["agentest", "eval", *words, *given, "--resume"]))
