"""What a run with a budget knows before it begins, and where it keeps what it pays for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from agentest.cli.expecting import earlier_of, forecast_of
from agentest.cli.keeping import ANSWERS, Keeping
from agentest.cli.kinds import Kind
from agentest.domain.forecast import over_budget
from agentest.runner.prepare import Prepared
from agentest.runner.session import Spending


def spending_of(
    prepared: Prepared, kind: Kind, keeping: Keeping | None, note: Callable[[str], None]
) -> Spending:
    """What is known of the costs; a note says if they are expected to exceed the budget."""
    options = prepared.request.options
    found = None if options.tape == "replay" else forecast_of(prepared, kind.name)
    if over := found and over_budget(found, options.max_llm_calls, options.max_cost, kind.resumed_by):
        note(over)
    earlier = earlier_of(prepared, kind.name)
    took = earlier.took if earlier else {}
    if earlier and dict(earlier.models) != prepared.model_names:
        took = {place: replace(each, cost=None) for place, each in took.items()}
    return Spending(
        took=took,
        answers=keeping.folder.path / ANSWERS if keeping and kind.resumed_by else None,
        earlier_answers=prepared.kept.answers if prepared.kept else None,
        resumed_by=kind.resumed_by,
    )
