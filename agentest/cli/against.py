"""What a run is compared with, from before it begins to its exit status."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from agentest.cli.afterwards import CONSOLE_REPORTERS
from agentest.cli.keeping import Keeping
from agentest.cli.kinds import Kind
from agentest.runner.prepare import Prepared
from agentest.store.runs.record import RunKind
from agentest.support.errors import ExitCode

if TYPE_CHECKING:  # imported where a run is compared
    from agentest.cli.baseline import Against
    from agentest.domain.events import Reporter


def comparing(prepared: Prepared, kind: Kind) -> Against | None:
    """What compares the run: with its baseline, or else its agents with each other. Raises UsageError."""
    request = prepared.request
    judged = kind.name is RunKind.JUDGE  # nobody talked to the agent: what differs would be the judge
    named = request.baseline or prepared.loaded.config.baseline or request.fail_on_regression
    wanted = bool(named) and not judged
    if not prepared.plan.entries or not (wanted or prepared.plan.comparison):
        return None
    from agentest.cli.baseline import Against, read_baseline

    return Against(read_baseline(prepared) if wanted else None, partial=prepared.is_partial)


def with_comparison(
    reporters: Sequence[Reporter],
    against: Against | None,
    prepared: Prepared,
    environ: Mapping[str, str],
) -> Sequence[Reporter]:
    if against is None:
        return reporters
    from agentest.cli.baseline import Told

    return [against, *reporters, Told(against, prepared, environ)]


def kept_comparison(against: Against | None, keeping: Keeping | None) -> Iterator[str]:
    """Keep the comparison with a baseline. Yields what could not be written."""
    if against is None or against.baseline is None or not against.comparisons or keeping is None:
        return
    from agentest.cli.baseline import COMPARISON, write_comparison

    try:
        write_comparison(against, keeping.folder.path)
        keeping.folder.publish(COMPARISON, COMPARISON)
    except OSError as error:
        yield f"{keeping.folder.path / COMPARISON} could not be written ({error.strerror or error})"


def with_regressions(code: ExitCode, against: Against | None) -> ExitCode:
    """The exit status of a run that may have regressed: that is a failure where the user says so."""
    if against is None or against.baseline is None or code is ExitCode.INTERRUPTED:
        return code
    if not against.comparisons:  # it was asked for, and is not known
        return code or ExitCode.ERRORED
    failed = against.regressed and against.baseline.fail_on_regression
    return ExitCode.FAILED if failed else code


def in_words(against: Against | None, prepared: Prepared) -> Iterator[str]:
    """What came of the comparison in a line, unless a reporter has written it to the console."""
    if against is None or not against.comparisons or CONSOLE_REPORTERS & prepared.reporters:
        return
    from agentest.cli.baseline import in_a_line

    yield f"compared: {in_a_line(against)}"
