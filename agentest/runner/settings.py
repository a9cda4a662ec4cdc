"""How a run is run, from the configuration and the command line's options."""

from __future__ import annotations

from dataclasses import dataclass

from agentest.config.config import Config
from agentest.config.models import Batch
from agentest.domain.results import Severity
from agentest.runner.plan import Options


@dataclass(frozen=True, slots=True)
class Settings:
    """How a run is run."""

    concurrency: int = 20
    """Conversations under way at once."""
    parallel: bool = True
    """Whether conversations of one scenario may be under way at once, unless the scenario says it."""
    debounce_s: float = 0.0
    fail_on: Severity = Severity.HIGH
    samples: int = 1
    batch: Batch = Batch.TURN
    skip_decided: bool = False
    check_user: bool = False
    strict: bool = False
    """Whether a warning that questions a verdict makes its scenario errored."""
    fail_fast: bool = False
    keep_conversations: bool = True
    """Whether results keep their conversations after these have been reported."""


def settings_of(config: Config, options: Options, *, keep_conversations: bool = True) -> Settings:
    """The settings of a configuration; options come first."""
    return Settings(
        concurrency=options.concurrency or config.concurrency,
        parallel=config.parallel,
        debounce_s=config.debounce_ms / 1000,
        fail_on=config.severity,
        samples=config.judge.samples,
        batch=config.judge.batch,
        skip_decided=config.judge.skip_decided,
        check_user=config.user.check,
        strict=config.strict if options.strict is None else options.strict,
        fail_fast=options.fail_fast,
        keep_conversations=keep_conversations,
    )
