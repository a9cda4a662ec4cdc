"""`agentest coverage` from a prepared plan to its exit status."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, TextIO

from agentest.analysis.coverage.measure import Coverage, measure
from agentest.analysis.coverage.show import as_json, as_markdown, print_text
from agentest.errors import ExitCode, UsageError
from agentest.report.console.reporter import open_console
from agentest.results import ScenarioResult, Status
from agentest.run.outputs import output_dir
from agentest.run.prepare import Prepared
from agentest.store.reading import read_results
from agentest.support.paths import shown_path
from agentest.support.terminal import Output, clean_rows, source, tell

Form = Literal["text", "json", "markdown"]


def covered(prepared: Prepared, results: Sequence[Path] = ()) -> Coverage:
    """What the planned scenarios and their results cover. Raises UsageError.

    Args:
        results: files to read; () for the results of the last run, if there are any.
    """
    root, options = prepared.request.root, prepared.request.options
    last = output_dir(prepared) / "results.json"
    paths = list(results) or ([last] if last.exists() else [])
    skipped = [
        entry
        for entry in prepared.plan.entries
        if isinstance(entry, ScenarioResult) and entry.verdict.status is Status.SKIPPED
    ]
    return measure(
        prepared.plan.units,
        len(skipped),
        {shown_path(str(path.resolve()), root): read_results(path) for path in paths},
        only_units=options.filtered,
        agent=options.agent,
    )


def show(coverage: Coverage, form: Form, out: TextIO, environ: Mapping[str, str] = os.environ) -> None:
    """Write the coverage in one of its forms. Raises OutputError."""
    if form == "text":
        print_text(coverage, open_console(environ, out))
    else:
        text = source(as_json(coverage)) if form == "json" else clean_rows(as_markdown(coverage))
        Output(out, environ).write_bytes(text)


def enough(coverage: Coverage, least: float | None) -> ExitCode:
    """FAILED where a share is below `least` percent. Raises UsageError where there is no share."""
    if least is None:
        return ExitCode.PASSED
    shares = {"cells with a scenario": coverage.cells_share, "tools called": coverage.tools_share}
    if not any(shares.values()):
        raise UsageError(
            "--fail-under: there is nothing to measure: no scenario has a task: and a path: tag, "
            "and there are no results; tag scenarios, or run them with --reporter json"
        )
    below = {name: share for name, share in shares.items() if share and share.below(least)}
    for name, share in below.items():
        tell(
            f"agentest: {name}: {share.covered} of {share.of} ({share.percent} %), "
            f"less than the {least:g} % of --fail-under"
        )
    return ExitCode.FAILED if below else ExitCode.PASSED
