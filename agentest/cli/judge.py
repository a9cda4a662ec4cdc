"""`agentest judge`: judge the finished conversations of an earlier run again, without calling the agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import click

from agentest.cli.location import Location, request_of
from agentest.cli.options import (
    exits,
    model_option,
    offline_option,
    option,
    output_options,
    spread,
    where,
    which,
)
from agentest.cli.run import run_once
from agentest.cli.run_output import judged_run
from agentest.domain.metrics import BUILTIN
from agentest.domain.results import ScenarioResult, Status
from agentest.domain.transcript import Conversation
from agentest.plugin import if_command
from agentest.runner.plan import Options, Plan, Unit, unrun_result
from agentest.runner.prepare import ReportOptions, prepare
from agentest.store.reader import conversations_of, read_results
from agentest.support.errors import ExitCode, UsageError
from agentest.support.terminal import tell


def plan_for_finished(
    plan: Plan,
    conversations: Mapping[tuple[str, str], Sequence[Conversation]],
    planned: Mapping[tuple[str, str], int],
) -> tuple[Plan, dict[str, Sequence[Conversation]]]:
    """Return the plan limited to finished conversations, and the conversations by scope.

    A scenario without results is skipped. Conversations whose scenario is no longer defined are reported
    as errored, so that none is ignored. A scenario with fewer conversations than planned is errored,
    unless the finished ones already fail.
    """
    by_scope: dict[str, Sequence[Conversation]] = {}
    entries: list[Unit | ScenarioResult] = []
    left = dict(conversations)
    for entry in plan.entries:
        if not isinstance(entry, Unit):
            entries.append(entry)
            continue
        key = entry.scenario.name, entry.agent
        with_threshold, planned_count = left.pop(key, None), planned.get(key)
        if with_threshold is None:
            entries.append(_without_conversations(entry, planned_count))
        else:
            by_scope[entry.scope] = with_threshold
            entries.append(replace(entry, conversations=len(with_threshold), of=planned_count, repeat=None))
    reported = {entry.name for entry in entries if isinstance(entry, ScenarioResult)}
    entries += [_undefined_scenario(name, agent) for name, agent in left if name not in reported]
    units = tuple(entry for entry in entries if isinstance(entry, Unit))
    return replace(plan, entries=tuple(entries), units=units), by_scope


@click.command()
@click.argument("run")
@where
@which
@output_options
@model_option
@offline_option
@spread
@option("--metric metrics", "NAME", "Judge only this metric.", multiple=True)
@exits
def judge(location: Location, options: Options, reports: ReportOptions, run: str) -> ExitCode:
    """Judge the finished conversations of RUN again, without calling the agent.

    RUN is an id (agentest runs) or its beginning, `latest`, a folder, a results.json or a journal.jsonl.
    """
    project = location.enter()
    path = project.run_file(run)
    prepared = prepare(request_of(project, options, reports))
    earlier = read_results(path)
    selected = {unit.scenario.name for unit in prepared.plan.units}
    conversations = {
        (name, agent): finished
        for (name, agent), finished in conversations_of(earlier).items()
        if (name in selected or not options.filtered) and options.agent in (None, agent)
    }
    planned = {(each.name, each.agent): each.planned for each in earlier.scenarios if each.planned}
    plan, by_scope = plan_for_finished(prepared.plan, conversations, planned)
    if not by_scope:
        hint = if_command("eval", "; it has cases of evaluation sets, which `agentest eval` runs and grades")
        of_sets = any(each.case for each in earlier.scenarios)
        raise UsageError(f"{path} has no conversation of the selected scenarios{hint if of_sets else ''}")
    requested = prepared.request.options.metrics
    scenario_thresholds = (unit.scenario.thresholds for unit in plan.units)
    with_threshold = {
        name
        for thresholds in (prepared.loaded.config.thresholds, *scenario_thresholds)
        for name in thresholds
    }
    if unchecked := ", ".join(
        sorted(name for name in with_threshold if requested and name in BUILTIN and name not in requested)
    ):
        tell(f"agentest: --metric leaves out {unchecked}, so no threshold on it is checked")
    return run_once(replace(prepared, plan=plan), judged_run(by_scope, earlier.unclaimed))


def _without_conversations(unit: Unit, planned: int | None) -> ScenarioResult:
    status, why = Status.SKIPPED, "the results have no conversation of it"
    if planned:
        status, why = Status.ERRORED, f"of {planned} planned conversations, the earlier run finished none"
    name, line = unit.scenario.name, unit.scenario.line
    return unrun_result(name, unit.agent, unit.file, line, why, status=status, planned=planned or 0)


def _undefined_scenario(name: str, agent: str) -> ScenarioResult:
    message = f"the results have conversations of {name!r} with agent {agent!r}, but no scenario defines it"
    return unrun_result(name, agent, "", 0, message)
